"""A language server of a workspace across restarts. `states.py` decides; this module executes the effects."""

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Literal

import msgspec

from holdfast.domain.errors import HoldfastError, ToolError
from holdfast.domain.extensions import NEVER, LspInfo, LspNotice, LspState
from holdfast.extensions.lsp import server_state
from holdfast.extensions.lsp.lsp_connection import ConnectionClosed, LspConnection
from holdfast.extensions.lsp.server_config import LaunchSpec, ServerConfig, Unlaunchable
from holdfast.extensions.lsp.server_session import ServerSession
from holdfast.tasks import TaskOwner
from holdfast.workspace.process.child_process import GuardedChild

__all__ = ["LanguageServer", "MessageTrace", "ServerHooks", "ServerLog"]


# Logs of language servers: recent output in memory, and an optional trace file of all messages.

_MOST_BYTES = 5 << 20
_LONGEST = 4_000
_MOST_LINES = 500
_LONGEST_LINE = 1_000


class ServerLog:
    """The last lines of a server's output and of its state changes."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)

    def write(self, text: str) -> None:
        """Append text."""
        self._lines.extend(line[:_LONGEST_LINE] for line in text.splitlines()[-_MOST_LINES:])

    @property
    def text(self) -> str:
        """The stored lines."""
        return "\n".join(self._lines)


class MessageTrace:
    """Writes all messages to a rotating file. Long messages are cut."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._log = logging.Logger("holdfast.lsp")
        self._file = RotatingFileHandler(path, maxBytes=_MOST_BYTES, backupCount=1, encoding="utf-8", delay=True)
        self._file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._log.addHandler(self._file)

    def write(self, what: str, text: str) -> None:
        """Write a message with its label."""
        shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
        self._log.debug("%s %s", what, shown.rstrip())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


# A language server of a workspace across restarts. `states.py` decides; this module executes the effects.

_log = logging.getLogger("holdfast.server")

_POLITE = 0.3
_SETTLED = 0.1
"""Minimum seconds between notices of diagnostic counts."""
_MOST_WANTED = 16


class ServerHooks(msgspec.Struct, frozen=True):
    """Services shared by the servers of a workspace."""

    prepare: Callable[[ServerConfig, str], Awaitable[LaunchSpec | Unlaunchable]]
    """Find the program of a plan for a root directory."""
    spawn: Callable[[LaunchSpec, str], Awaitable[GuardedChild]]
    read: Callable[[str], Awaitable[str | None]]
    """Return the text of a file, or None if it cannot be read or is too large."""
    say: Callable[[LspNotice], None]
    trace: Callable[[str], Callable[[str, str], None] | None]


class LanguageServer:
    """One language server: its process, connection and state."""

    def __init__(self, plan: ServerConfig, root: str, shop: ServerHooks) -> None:
        self.plan = plan
        self.root = root
        self.standing = server_state.ServerState()
        self.talk: ServerSession | None = None
        self.launched_at = 0.0
        self.silences = 0
        """Number of consecutive changes without a response."""
        self.connected_at = NEVER
        self.journal = ServerLog()
        self._shop = shop
        self._peer: LspConnection | None = None
        self._tasks = TaskOwner()
        self._timer: asyncio.TimerHandle | None = None
        self._telling: asyncio.TimerHandle | None = None
        self._told = 0
        self._wanted: dict[str, None] = {}
        self._preparing = TaskOwner()
        self._is_retired = False
        self._listeners: list[Callable[[str], None]] = []

    @property
    def name(self) -> str:
        """The name from the plan."""
        return self.plan.name

    @property
    def count(self) -> int:
        """Number of known diagnostics."""
        return self.talk.findings.count if self.talk is not None else 0

    def info(self) -> LspInfo:
        """Return the state for clients."""
        standing = self.standing
        return LspInfo(self.name, standing.state, self.connected_at, standing.error, self.count)

    # Events

    def want(self, path: str = "") -> None:
        """Start the server, and queue a file to be opened once it is ready."""
        if path and self.standing.state != LspState.READY:
            self._wanted.pop(path, None)
            self._wanted[path] = None
            if len(self._wanted) > _MOST_WANTED:
                del self._wanted[next(iter(self._wanted))]
        self.happens(server_state.Requested(_now()))

    def happens(self, event: server_state.Event) -> None:
        """Apply an event to the state machine and execute the effects."""
        if self._is_retired and not isinstance(event, server_state.Stop):
            return
        before = self.standing
        self.standing, effects = server_state.transition(before, event)
        for effect in effects:
            match effect:
                case server_state.Kill():
                    self._kill()
                case server_state.Launch(launch=launch):
                    self.launched_at = _now()
                    self._tasks.start(self._launch(launch), name=f"launch {self.name}")
                case server_state.SetTimer(launch=launch, seconds=seconds):
                    self._unwind()
                    loop = asyncio.get_running_loop()
                    self._timer = loop.call_later(seconds, self.happens, server_state.TimerFired(launch))
        if (before.state, before.error) != (self.standing.state, self.standing.error):
            self.announce()
        self._tell_all()

    def announce(self) -> None:
        """Publish and log the current state."""
        standing = self.standing
        words = f"{datetime.now(UTC):%H:%M:%S} {standing.state.name.lower()}"
        self.journal.write(f"{words}: {standing.error}" if standing.error else words)
        if standing.state == LspState.ERROR:
            _log.warning("language server %s: %s", self.name, standing.error)
        self._say("state_changed")

    def _kill(self) -> None:
        peer, self._peer, self.talk = self._peer, None, None
        self.connected_at = NEVER
        if peer is not None:
            self._tasks.start(peer.close(_POLITE), name=f"close {self.name}")

    def _unwind(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _launch(self, launch: int) -> None:
        peer: LspConnection | None = None
        try:
            ready = await self._preparing.start(self._prepared(), name=f"prepare {self.name}")
            if isinstance(ready, Unlaunchable):
                if ready.is_absent:
                    self.happens(server_state.ProgramMissing(launch, _now(), ready.why))
                elif self.standing.launch == launch:
                    self.happens(server_state.Forbidden(ready.why))
                return
            talk = ServerSession(ready.plan, self.root, self._heard, self.journal.write)
            # Create the trace before the process: a trace file that cannot be opened must not leave a process behind.
            trace = self._shop.trace(self.name)
            child = await self._shop.spawn(ready, self.root)
            peer = LspConnection(child, talk.hear, self._gone_of(launch), self.journal.write, trace)
            peer.start()
            # The server may have been stopped or relaunched while the process was being started.
            if self.standing.launch != launch or not self.standing.is_there:
                await peer.close()
                return
            self._peer = peer
            await talk.greet(peer, ready.plan.timeout)
            if self._peer is peer:
                self.talk = talk
                self.connected_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                self.happens(server_state.Started(launch, _now()))
                await self._open_wanted(talk)
        except asyncio.CancelledError:
            # The server is being closed.
            return
        except ConnectionClosed:
            # The connection has already reported the end, with the last output.
            return
        except (HoldfastError, OSError) as error:
            self.happens(server_state.Exited(launch, _now(), f"It did not start: {error}"))
        except Exception:
            _log.exception("language server %s could not be started", self.name)
            self.happens(
                server_state.Exited(launch, _now(), "It could not be started: the log of the server says why.")
            )

    async def _prepared(self) -> LaunchSpec | Unlaunchable:
        return await self._shop.prepare(self.plan, self.root)

    def _gone_of(self, launch: int) -> Callable[[str], None]:
        return lambda why: self.happens(server_state.Exited(launch, _now(), why))

    async def _open_wanted(self, talk: ServerSession) -> None:
        wanted, self._wanted = self._wanted, {}
        for path in wanted:
            text = await self._shop.read(path)
            if text is not None and self.talk is talk and path not in talk.documents.open:
                talk.documents.sync(path, text)

    # Notifications

    def _heard(self, uri: str) -> None:
        if uri:
            self.silences = 0
        if self.count != self._told and self._telling is None:
            self._telling = asyncio.get_running_loop().call_later(_SETTLED, self._tell_count)
        self._tell_all(uri)

    def _tell_count(self) -> None:
        self._telling = None
        if self.count != self._told:
            self._say("diagnostics_changed")

    def _say(self, what: Literal["state_changed", "diagnostics_changed"]) -> None:
        self._told = self.count
        self._shop.say(LspNotice(what, self.name, self.standing.state, self.standing.error, self.count))

    def _tell_all(self, uri: str = "") -> None:
        for listener in tuple(self._listeners):
            listener(uri)

    @contextmanager
    def listening(self, listener: Callable[[str], None]) -> Iterator[None]:
        """Call `listener` during the block: with the URI of a file that has new diagnostics, or with an empty string
        for other changes.
        """
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def pull(self, talk: ServerSession, path: str, seconds: float) -> asyncio.Task[None]:
        """Request the diagnostics of a file in the background."""
        return self._tasks.start(self._pull(talk, path, seconds), name=f"pull from {self.name}")

    async def _pull(self, talk: ServerSession, path: str, seconds: float) -> None:
        with contextlib.suppress(ToolError):
            await talk.pull(path, seconds)
            for other in talk.others(path):
                await talk.pull(other, seconds)

    async def until_ready(self, seconds: float) -> ServerSession:
        """Wait until the server is ready and return its session. Raises `ToolError` if it fails or is too slow."""
        news = asyncio.Event()
        with self.listening(lambda _: news.set()):
            try:
                async with asyncio.timeout(seconds):
                    while self.standing.state == LspState.STARTING:
                        news.clear()
                        await news.wait()
            except TimeoutError:
                raise ToolError(f"{self.name} is still starting. Try again in a moment.") from None
        if self.talk is None:
            why = self.standing.error or "It is not running."
            raise ToolError(f"The language server {self.name} cannot answer. {why}")
        return self.talk

    # Shutdown

    def retire(self) -> None:
        """Stop the server permanently."""
        self._is_retired = True
        self.happens(server_state.Stop())

    async def close(self) -> None:
        """Stop the server, and wait for its process and tasks."""
        self.retire()
        self._unwind()
        self._preparing.cancel_all()
        if self._telling is not None:
            self._telling.cancel()
        await self._tasks.drain()


def _now() -> float:
    return asyncio.get_running_loop().time()
