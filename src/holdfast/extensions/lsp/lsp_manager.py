"""All language servers of a workspace: assignment of servers to files, and their combined diagnostics."""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from holdfast.domain.errors import ToolError
from holdfast.domain.events import Change, LspEvent
from holdfast.domain.extensions import LspInfo, LspNotice, LspState
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.lsp import server_state
from holdfast.extensions.lsp.diagnostics import FileDiagnostic, listed, told
from holdfast.extensions.lsp.diagnostics_wait import AT_A_GLANCE, AT_LEISURE, DiagnosticsWait, Times
from holdfast.extensions.lsp.file_changes import Look, changes, looked
from holdfast.extensions.lsp.language_server import LanguageServer, MessageTrace, ServerHooks
from holdfast.extensions.lsp.lsp_types import path_of
from holdfast.extensions.lsp.positions import Text
from holdfast.extensions.lsp.server_config import (
    LaunchSpec,
    Match,
    ProjectFacts,
    ServerConfig,
    Unlaunchable,
    matches_for,
    prepared,
    surveyed,
)
from holdfast.tasks import TaskOwner
from holdfast.workspace.files.file_paths import display_path, is_within
from holdfast.workspace.files.open_files import locate, read_whole_file
from holdfast.workspace.files.text_encoding import decode
from holdfast.workspace.process.child_process import GuardedChild

__all__ = ["LspManager"]


_LARGEST = 2 << 20
_KNOWN_FOR = 30.0
"""Seconds for which the servers of a directory and file type are cached."""
_MOST_KNOWN = 1_000


class LspManager:
    """The language servers of a workspace."""

    def __init__(self, ground: ExtensionContext) -> None:
        self._ground = ground
        self.root = os.path.realpath(ground.path)
        self._shop = ServerHooks(self._prepare, self._spawn, self.read, self._say, self._trace)
        self._servers: dict[str, LanguageServer] = {}
        self._known: dict[tuple[str, str], tuple[float, tuple[Match, ...]]] = {}
        self._traces: dict[str, MessageTrace] = {}
        self._seen: Look | None = None
        self._scans = 0
        self._applied_scan = 0
        self._tasks = TaskOwner()
        self._looks = TaskOwner()
        self._site = ProjectFacts(self.root, is_trusted=False, environment={})
        self._plans: tuple[ServerConfig, ...] = ()
        self._is_closed = False
        self.refresh()

    # Settings

    def refresh(self) -> None:
        """Apply the current settings and trust. Servers whose plan has changed are stopped."""
        site, plans = surveyed(self._ground)
        self._known.clear()
        by_name = {plan.name: plan for plan in plans}
        gone: set[str] = set()
        for name, server in list(self._servers.items()):
            if by_name.get(name) != server.plan or site.is_trusted != self._site.is_trusted:
                server.retire()
                gone.add(name)
                self._tasks.start(self._servers.pop(name).close(), name=f"close {name}")
        self._site, self._plans = site, plans
        for plan in plans:
            if plan.is_named and plan.name not in self._servers:
                added = self._add(plan, self.root)
                if plan.name in gone:
                    added.announce()

    def _add(self, plan: ServerConfig, root: str) -> LanguageServer:
        server = self._servers[plan.name] = LanguageServer(plan, root, self._shop)
        if plan.is_disabled:
            server.happens(server_state.Forbidden("", is_disabled=True))
        return server

    @property
    def ground(self) -> ExtensionContext:
        """The workspace services available to extensions."""
        return self._ground

    def infos(self) -> dict[str, LspInfo]:
        """Return the state of all servers, by name."""
        return {name: server.info() for name, server in sorted(self._servers.items())}

    def get(self, name: str) -> LanguageServer | None:
        """Return a server by name."""
        return self._servers.get(name)

    @property
    def servers(self) -> Sequence[LanguageServer]:
        """All servers."""
        return tuple(self._servers.values())

    # Assignment of servers to files

    async def servers_for(self, path: str) -> list[LanguageServer]:
        """Return the servers for a file, given its real path, and start them. Files outside the workspace have none."""
        if self._is_closed or not is_within(self.root, path):
            return []
        found: list[LanguageServer] = []
        for match in await self._matches(path):
            server = self._servers.get(match.plan.name) or self._add(match.plan, match.root)
            if match.why_not:
                server.happens(server_state.Forbidden(match.why_not))
                continue
            server.root = match.root
            server.want(path)
            found.append(server)
        if found and self._seen is None:
            await self._scan_first()
        return found

    async def _scan_first(self) -> None:
        """Scan the files when the first server starts, unless a later scan has finished meanwhile."""
        first = await asyncio.to_thread(looked, self.root)
        if self._seen is None:
            self._seen = first

    def knows(self, path: str) -> bool:
        """Return whether any server could support such a file."""
        return any(plan.fits(path) for plan in self._plans if not plan.is_disabled)

    async def _matches(self, path: str) -> tuple[Match, ...]:
        folder, name = os.path.split(path)
        ending = name.rpartition(".")[2] if "." in name else name
        now = asyncio.get_running_loop().time()
        if (known := self._known.get((folder, ending))) is not None and now - known[0] < _KNOWN_FOR:
            return known[1]
        found = await asyncio.to_thread(matches_for, path, self._plans, self._site)
        if len(self._known) >= _MOST_KNOWN:
            self._known.clear()
        self._known[folder, ending] = (now, found)
        return found

    async def read(self, path: str) -> str | None:
        """Return the text of a file, or None if it cannot be read or is too large."""
        try:
            seen = await asyncio.to_thread(lambda: read_whole_file(locate(self.root, path), _LARGEST))
            return decode(seen.data, path)[0]
        except ToolError:
            return None

    # Diagnostics

    async def ask_about(self, path: str, times: Times) -> dict[LanguageServer, bool]:
        """Send a file to its servers and wait within the limits of `times`. Returns which servers have responded."""
        begun = asyncio.get_running_loop().time()
        servers = await self.servers_for(path)
        text = await self.read(path) if servers else None
        if text is None:
            return {}
        if times is not AT_A_GLANCE:
            await self.catch_up()
        answered = await asyncio.gather(
            *(DiagnosticsWait(server, path, text, begun, times).over() for server in servers)
        )
        return dict(zip(servers, answered, strict=True))

    async def look_at(self, path: str) -> None:
        """Start the servers of a file and request its diagnostics in the background."""
        if await self.servers_for(path):
            self._looks.start(self.ask_about(path, AT_LEISURE), name="look at a file")

    async def catch_up(self) -> None:
        """Notify the servers of files that have changed on disk since the last scan."""
        talks = [server.talk for server in self._servers.values() if server.talk is not None]
        if not talks:
            return
        opened = {path for talk in talks for path in talk.documents.open}
        # Scans overlap. The result of a scan that began before the last applied one is outdated and dropped.
        self._scans += 1
        number = self._scans
        after = await asyncio.to_thread(looked, self.root, opened)
        if number < self._applied_scan:
            return
        self._applied_scan = number
        found = changes(self._seen, after) if self._seen is not None else []
        self._seen = after
        for talk in talks:
            talk.tell_of_files(found)
        for change in found:
            if change.path in opened and change.kind != 3 and (text := await self.read(change.path)) is not None:
                for talk in talks:
                    if change.path in talk.documents.open:
                        talk.documents.sync(change.path, text)

    def findings(self, path: str) -> tuple[list[FileDiagnostic], list[FileDiagnostic]]:
        """Return the diagnostics of a file and those of all other files."""
        here: list[FileDiagnostic] = []
        elsewhere: list[FileDiagnostic] = []
        for server in self._servers.values():
            if server.talk is None:
                continue
            encoding = server.talk.capabilities.position_encoding
            for uri, found in server.talk.findings.all().items():
                place = path_of(uri)
                if not is_within(self.root, place):
                    continue
                document = server.talk.documents.open.get(place)
                text = Text(document.text, encoding) if document is not None else None
                starts = [item.range.start for item in found]
                columns = [text.column(start) if text is not None else start.character for start in starts]
                into = here if place == path else elsewhere
                into += told(display_path(self.root, place), server.name, zip(found, columns, strict=True))
        return here, elsewhere

    def report(self, path: str, answered: Mapping[LanguageServer, bool], *, is_brief: bool) -> str:
        """Format the diagnostics of a file, and name the servers that have not responded. `is_brief` omits hints, and
        the warnings of other files.
        """
        here, elsewhere = self.findings(path)
        if is_brief:
            here = [item for item in here if item.severity <= 2]
            elsewhere = [item for item in elsewhere if item.severity == 1]
        text = listed({"file_diagnostics": here, "project_diagnostics": elsewhere})
        silent = [server.name for server, has in answered.items() if not has and server.standing.is_there]
        if silent:
            verb = "has" if len(silent) == 1 else "have"
            text += f"\n({', '.join(silent)} {verb} not answered yet: lsp_diagnostics looks again.)"
        return text.strip()

    # Callbacks of the servers

    async def _prepare(self, plan: ServerConfig, root: str) -> LaunchSpec | Unlaunchable:
        return await asyncio.to_thread(prepared, plan, root, self._site, self._ground.configuration)

    async def faults(self) -> dict[str, str]:
        """Return the reasons why servers named in the settings could not be started now."""
        found: dict[str, str] = {}
        for name, server in self._servers.items():
            if server.plan.is_named and not server.standing.is_there and not server.plan.is_disabled:
                ready = await self._prepare(server.plan, server.root)
                if isinstance(ready, Unlaunchable):
                    found[name] = ready.why
        return found

    async def _spawn(self, ready: LaunchSpec, root: str) -> GuardedChild:
        return await self._ground.spawn(ready.argv, root, ready.environment, has_input=True)

    def _say(self, notice: LspNotice) -> None:
        self._ground.publish(LspEvent(Change("updated", notice)))

    def _trace(self, name: str) -> Callable[[str, str], None] | None:
        if not self._ground.configuration.settings.options.debug_lsp:
            return None
        if name not in self._traces:
            self._traces[name] = MessageTrace(self.log_of(name))
        return self._traces[name].write

    def log_of(self, name: str) -> Path:
        """Return the path of a server's trace file."""
        return self._ground.data_dir / "lsp" / f"{name.replace('/', '_')}.log"

    # Shutdown

    def stop(self) -> None:
        """Stop all servers until a file is touched again."""
        for server in self._servers.values():
            server.happens(server_state.Stop())

    def restart(self, name: str = "") -> list[str]:
        """Restart one server, or all that were started. Returns their names. Raises `ToolError` for an unknown name."""
        if name and name not in self._servers:
            known = ", ".join(sorted(self._servers)) or "none"
            raise ToolError(f"There is no language server {name}. There is: {known}.")
        rests = (LspState.UNSTARTED, LspState.DISABLED)
        chosen = [server for server in self._servers.values() if server.name == name or not name]
        chosen = [server for server in chosen if name or server.standing.state not in rests]
        for server in chosen:
            opened = list(server.talk.documents.open) if server.talk is not None else []
            server.silences = 0
            server.happens(server_state.Restart())
            for path in opened[-8:]:
                server.want(path)
        return [server.name for server in chosen]

    async def close(self) -> None:
        """Stop all servers and wait for their processes."""
        self._is_closed = True
        self._looks.cancel_all()
        await self._looks.drain()
        await asyncio.gather(*(server.close() for server in self._servers.values()))
        await self._tasks.drain()
        for trace in self._traces.values():
            trace.close()
