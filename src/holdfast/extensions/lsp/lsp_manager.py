"""All language servers of a workspace: assignment of servers to files, and their combined diagnostics.

Theory of operation. `extension` is the part that the rest of the program uses; it creates an `LspManager` on first use,
because many workspaces never need one. The manager owns one `LanguageServer` for each configured name:

* `server_config` selects the servers of a file and determines how they are launched; the manager caches the selection
  for each directory and file type, since it reads the disk.
* `server_state_machine` decides when a process is launched, relaunched or given up. No server is started in advance:
  the first file of its language requests it.
* `server_supervisor` runs the process, `lsp_connection` the JSON-RPC messages, `server_session` the protocol state
  (capabilities, open documents, diagnostics).
* `diagnostics_wait` bounds how long a tool waits for the diagnostics of a change.

Files are changed by tools, by commands and by the user. There is no file watcher: before diagnostics are requested,
`sync_file_changes` compares a scan of the workspace with the previous one and sends the differences. A server that
fails, hangs or floods the connection must not delay or fail a tool: waits are bounded, and errors are reported as a
state that clients display.
"""

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from holdfast.domain.errors import ToolError
from holdfast.domain.events import Change, LspEvent
from holdfast.domain.extensions import LspInfo, LspNotice, LspState
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.lsp import server_state_machine
from holdfast.extensions.lsp.changed_file_scan import FileScan, compare_scans, scan_files
from holdfast.extensions.lsp.diagnostics import FileDiagnostic, format_diagnostics, to_file_diagnostics
from holdfast.extensions.lsp.diagnostics_wait import IN_BACKGROUND, ON_VIEW, DiagnosticsWait, WaitLimits
from holdfast.extensions.lsp.lsp_types import path_from_uri
from holdfast.extensions.lsp.positions import TextLines
from holdfast.extensions.lsp.server_config import (
    LaunchSpec,
    ProjectFacts,
    ServerConfig,
    ServerMatch,
    Unlaunchable,
    launch_spec,
    match_servers,
    read_project,
)
from holdfast.extensions.lsp.server_supervisor import LanguageServer, MessageTrace, ServerHooks
from holdfast.tasks import TaskOwner
from holdfast.workspace.files.path_strings import display_path, is_within
from holdfast.workspace.files.safe_open import locate, read_whole_file
from holdfast.workspace.files.text_encoding import decode
from holdfast.workspace.process.piped_process import GuardedChild

__all__ = ["LspManager"]


_MAX_FILE_BYTES = 2 << 20
_MATCH_TTL = 30.0
"""Seconds for which the servers of a directory and file type are cached."""
_MAX_CACHED_MATCHES = 1_000


class LspManager:
    """The language servers of a workspace."""

    def __init__(self, context: ExtensionContext) -> None:
        self._context = context
        self.root = os.path.realpath(context.path)
        self._hooks = ServerHooks(self._prepare, self._spawn, self.read, self._publish, self._trace)
        self._servers: dict[str, LanguageServer] = {}
        self._match_cache: dict[tuple[str, str], tuple[float, tuple[ServerMatch, ...]]] = {}
        self._traces: dict[str, MessageTrace] = {}
        self._last_scan: FileScan | None = None
        self._scans = 0
        self._applied_scan = 0
        self._tasks = TaskOwner()
        self._background_checks = TaskOwner()
        self._project = ProjectFacts(self.root, is_trusted=False, environment={})
        self._configs: tuple[ServerConfig, ...] = ()
        self._is_closed = False
        self.refresh()

    # Settings

    def refresh(self) -> None:
        """Apply the current settings and trust. Servers whose plan has changed are stopped."""
        project, configs = read_project(self._context)
        self._match_cache.clear()
        by_name = {config.name: config for config in configs}
        removed: set[str] = set()
        for name, server in list(self._servers.items()):
            if by_name.get(name) != server.config or project.is_trusted != self._project.is_trusted:
                server.retire()
                removed.add(name)
                self._tasks.start(self._servers.pop(name).close(), name=f"close {name}")
        self._project, self._configs = project, configs
        for config in configs:
            if config.is_configured and config.name not in self._servers:
                added = self._add(config, self.root)
                if config.name in removed:
                    added.publish_state()

    def _add(self, config: ServerConfig, root: str) -> LanguageServer:
        server = self._servers[config.name] = LanguageServer(config, root, self._hooks)
        if config.is_disabled:
            server.dispatch(server_state_machine.Forbidden("", is_disabled=True))
        return server

    @property
    def context(self) -> ExtensionContext:
        """The workspace services available to extensions."""
        return self._context

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
            server = self._servers.get(match.config.name) or self._add(match.config, match.root)
            if match.refusal:
                server.dispatch(server_state_machine.Forbidden(match.refusal))
                continue
            server.root = match.root
            server.request_start(path)
            found.append(server)
        if found and self._last_scan is None:
            await self._first_scan()
        return found

    async def _first_scan(self) -> None:
        """Scan the files when the first server starts, unless a later scan has finished meanwhile."""
        first = await asyncio.to_thread(scan_files, self.root)
        if self._last_scan is None:
            self._last_scan = first

    def supports(self, path: str) -> bool:
        """Return whether any server could support such a file."""
        return any(config.supports(path) for config in self._configs if not config.is_disabled)

    async def _matches(self, path: str) -> tuple[ServerMatch, ...]:
        folder, name = os.path.split(path)
        file_type = name.rpartition(".")[2] if "." in name else name
        now = asyncio.get_running_loop().time()
        if (cached := self._match_cache.get((folder, file_type))) is not None and now - cached[0] < _MATCH_TTL:
            return cached[1]
        found = await asyncio.to_thread(match_servers, path, self._configs, self._project)
        if len(self._match_cache) >= _MAX_CACHED_MATCHES:
            self._match_cache.clear()
        self._match_cache[folder, file_type] = (now, found)
        return found

    async def read(self, path: str) -> str | None:
        """Return the text of a file, or None if it cannot be read or is too large."""
        try:
            seen = await asyncio.to_thread(lambda: read_whole_file(locate(self.root, path), _MAX_FILE_BYTES))
            return decode(seen.data, path)[0]
        except ToolError:
            return None

    # Diagnostics

    async def request_diagnostics(self, path: str, limits: WaitLimits) -> dict[LanguageServer, bool]:
        """Send a file to its servers and wait within the limits of `limits`. Returns which servers have responded."""
        started_at = asyncio.get_running_loop().time()
        servers = await self.servers_for(path)
        text = await self.read(path) if servers else None
        if text is None:
            return {}
        if limits is not ON_VIEW:
            await self.sync_file_changes()
        responses = await asyncio.gather(
            *(DiagnosticsWait(server, path, text, started_at, limits).wait() for server in servers)
        )
        return dict(zip(servers, responses, strict=True))

    async def check_in_background(self, path: str) -> None:
        """Start the servers of a file and request its diagnostics in the background."""
        if await self.servers_for(path):
            self._background_checks.start(self.request_diagnostics(path, IN_BACKGROUND), name="look at a file")

    async def sync_file_changes(self) -> None:
        """Notify the servers of files that have changed on disk since the last scan."""
        sessions = [server.session for server in self._servers.values() if server.session is not None]
        if not sessions:
            return
        open_paths = {path for session in sessions for path in session.documents.open}
        # Scans overlap. The result of a scan that began before the last applied one is outdated and dropped.
        self._scans += 1
        number = self._scans
        after = await asyncio.to_thread(scan_files, self.root, open_paths)
        if number < self._applied_scan:
            return
        self._applied_scan = number
        found = compare_scans(self._last_scan, after) if self._last_scan is not None else []
        self._last_scan = after
        for session in sessions:
            session.notify_file_changes(found)
        for change in found:
            if change.path in open_paths and change.kind != 3 and (text := await self.read(change.path)) is not None:
                for session in sessions:
                    if change.path in session.documents.open:
                        session.documents.sync(change.path, text)

    def diagnostics(self, path: str) -> tuple[list[FileDiagnostic], list[FileDiagnostic]]:
        """Return the diagnostics of a file and those of all other files."""
        here: list[FileDiagnostic] = []
        elsewhere: list[FileDiagnostic] = []
        for server in self._servers.values():
            if server.session is None:
                continue
            encoding = server.session.capabilities.position_encoding
            for uri, found in server.session.diagnostics.all().items():
                place = path_from_uri(uri)
                if not is_within(self.root, place):
                    continue
                document = server.session.document(place)
                text = TextLines(document.text, encoding) if document is not None else None
                starts = [item.range.start for item in found]
                columns = [text.column(start) if text is not None else start.character for start in starts]
                into = here if place == path else elsewhere
                into += to_file_diagnostics(
                    display_path(self.root, place), server.name, zip(found, columns, strict=True)
                )
        return here, elsewhere

    def format_report(self, path: str, responses: Mapping[LanguageServer, bool], *, is_brief: bool) -> str:
        """Format the diagnostics of a file, and name the servers that have not responded. `is_brief` omits hints, and
        the warnings of other files.
        """
        here, elsewhere = self.diagnostics(path)
        if is_brief:
            here = [item for item in here if item.severity <= 2]
            elsewhere = [item for item in elsewhere if item.severity == 1]
        text = format_diagnostics({"file_diagnostics": here, "project_diagnostics": elsewhere})
        silent = [server.name for server, has in responses.items() if not has and server.status.is_active]
        if silent:
            verb = "has" if len(silent) == 1 else "have"
            text += f"\n({', '.join(silent)} {verb} not answered yet: call lsp_diagnostics to check again.)"
        return text.strip()

    # Callbacks of the servers

    async def _prepare(self, config: ServerConfig, root: str) -> LaunchSpec | Unlaunchable:
        return await asyncio.to_thread(launch_spec, config, root, self._project, self._context.configuration)

    async def launch_problems(self) -> dict[str, str]:
        """Return the reasons why servers named in the settings could not be started now."""
        found: dict[str, str] = {}
        for name, server in self._servers.items():
            if server.config.is_configured and not server.status.is_active and not server.config.is_disabled:
                prepared = await self._prepare(server.config, server.root)
                if isinstance(prepared, Unlaunchable):
                    found[name] = prepared.reason
        return found

    async def _spawn(self, prepared: LaunchSpec, root: str) -> GuardedChild:
        return await self._context.spawn(prepared.argv, root, prepared.environment, has_input=True)

    def _publish(self, notice: LspNotice) -> None:
        self._context.publish(LspEvent(Change("updated", notice)))

    def _trace(self, name: str) -> Callable[[str, str], None] | None:
        settings = self._context.configuration.settings
        if not settings.options.debug_lsp:
            return None
        if name not in self._traces:
            self._traces[name] = MessageTrace(self.trace_path(name))
        return self._traces[name].write

    def trace_path(self, name: str) -> Path:
        """Return the path of a server's trace file."""
        return self._context.data_dir / "lsp" / f"{name.replace('/', '_')}.log"

    # Shutdown

    def stop(self) -> None:
        """Stop all servers until a file is touched again."""
        for server in self._servers.values():
            server.dispatch(server_state_machine.Stop())

    def restart(self, name: str = "") -> list[str]:
        """Restart one server, or all that were started. Returns their names. Raises `ToolError` for an unknown name."""
        if name and name not in self._servers:
            known = ", ".join(sorted(self._servers)) or "none"
            raise ToolError(f"There is no language server {name}. There is: {known}.")
        idle_states = (LspState.UNSTARTED, LspState.DISABLED)
        chosen = [server for server in self._servers.values() if server.name == name or not name]
        chosen = [server for server in chosen if name or server.status.state not in idle_states]
        for server in chosen:
            open_paths = list(server.session.documents.open) if server.session is not None else []
            server.silent_changes = 0
            server.dispatch(server_state_machine.Restart())
            for path in open_paths[-8:]:
                server.request_start(path)
        return [server.name for server in chosen]

    async def close(self) -> None:
        """Stop all servers and wait for their processes."""
        self._is_closed = True
        self._background_checks.cancel_all()
        await self._background_checks.drain()
        await asyncio.gather(*(server.close() for server in self._servers.values()))
        await self._tasks.drain()
        for trace in self._traces.values():
            trace.close()
