"""A language server of a workspace across restarts, and its logs.

`server_state_machine` decides when a process is launched or killed; `LanguageServer` executes the effects and
dispatches the events.
"""

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
from holdfast.extensions.lsp import server_state_machine
from holdfast.extensions.lsp.lsp_connection import ConnectionClosed, LspConnection
from holdfast.extensions.lsp.server_config import LaunchSpec, ServerConfig, Unlaunchable
from holdfast.extensions.lsp.server_session import ServerSession
from holdfast.tasks import TaskOwner
from holdfast.workspace.process.piped_process import GuardedChild

__all__ = ["LanguageServer", "MessageTrace", "ServerHooks", "ServerLog"]


_MAX_TRACE_BYTES = 5 << 20
_MAX_TRACED_MESSAGE = 4_000
_MAX_LOG_LINES = 500
_MAX_LOG_LINE = 1_000


class ServerLog:
    """The last lines of a server's output and of its state changes."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_MAX_LOG_LINES)

    def write(self, text: str) -> None:
        """Append text."""
        self._lines.extend(line[:_MAX_LOG_LINE] for line in text.splitlines()[-_MAX_LOG_LINES:])

    @property
    def text(self) -> str:
        """The stored lines."""
        return "\n".join(self._lines)


class MessageTrace:
    """Writes all messages to a rotating file. Long messages are cut."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._log = logging.Logger("holdfast.lsp")
        self._file = RotatingFileHandler(path, maxBytes=_MAX_TRACE_BYTES, backupCount=1, encoding="utf-8", delay=True)
        self._file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._log.addHandler(self._file)

    def write(self, label: str, text: str) -> None:
        """Write a message with its label."""
        shown = text if len(text) <= _MAX_TRACED_MESSAGE else f"{text[:_MAX_TRACED_MESSAGE]}… ({len(text)} characters)"
        self._log.debug("%s %s", label, shown.rstrip())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


_log = logging.getLogger("holdfast.server")

_SHUTDOWN_TIMEOUT = 0.3
_COUNT_INTERVAL = 0.1
"""Minimum seconds between notices of diagnostic counts."""
_MAX_QUEUED_FILES = 16


class ServerHooks(msgspec.Struct, frozen=True):
    """Services shared by the servers of a workspace."""

    prepare: Callable[[ServerConfig, str], Awaitable[LaunchSpec | Unlaunchable]]
    """Find the program of a configuration for a root directory."""
    spawn: Callable[[LaunchSpec, str], Awaitable[GuardedChild]]
    read: Callable[[str], Awaitable[str | None]]
    """Return the text of a file, or None if it cannot be read or is too large."""
    publish: Callable[[LspNotice], None]
    trace: Callable[[str], Callable[[str, str], None] | None]


class LanguageServer:
    """One language server: its process, connection and state."""

    def __init__(self, config: ServerConfig, root: str, hooks: ServerHooks) -> None:
        self.config = config
        self.root = root
        self.status = server_state_machine.ServerState()
        self.session: ServerSession | None = None
        self.launched_at = 0.0
        self.silent_changes = 0
        """Number of consecutive changes without a response."""
        self.connected_at = NEVER
        """Time of readiness, for clients."""
        self.log = ServerLog()
        self._hooks = hooks
        self._connection: LspConnection | None = None
        self._tasks = TaskOwner()
        self._timer: asyncio.TimerHandle | None = None
        self._count_timer: asyncio.TimerHandle | None = None
        self._published_count = 0
        self._queued_files: dict[str, None] = {}
        self._preparations = TaskOwner()
        self._is_retired = False
        self._listeners: list[Callable[[str], None]] = []

    @property
    def name(self) -> str:
        """The configured name."""
        return self.config.name

    @property
    def diagnostic_count(self) -> int:
        """Number of known diagnostics."""
        return self.session.diagnostics.count if self.session is not None else 0

    def info(self) -> LspInfo:
        """Return the state for clients."""
        status = self.status
        return LspInfo(self.name, status.state, self.connected_at, status.error, self.diagnostic_count)

    # Events

    def request_start(self, path: str = "") -> None:
        """Start the server, and queue a file to be opened once it is ready."""
        if path and self.status.state != LspState.READY:
            # Inserted again at the end: the limit drops the file that was requested longest ago.
            self._queued_files.pop(path, None)
            self._queued_files[path] = None
            if len(self._queued_files) > _MAX_QUEUED_FILES:
                del self._queued_files[next(iter(self._queued_files))]
        self.dispatch(server_state_machine.Requested(_now()))

    def dispatch(self, event: server_state_machine.Event) -> None:
        """Apply an event to the state machine and execute the effects."""
        # Events of a process that is being stopped must not start another one.
        if self._is_retired and not isinstance(event, server_state_machine.Stop):
            return
        previous = self.status
        self.status, effects = server_state_machine.transition(previous, event)
        for effect in effects:
            match effect:
                case server_state_machine.Kill():
                    self._kill()
                case server_state_machine.Launch(launch=launch):
                    self.launched_at = _now()
                    self._tasks.start(self._launch(launch), name=f"launch {self.name}")
                case server_state_machine.SetTimer(launch=launch, seconds=seconds):
                    self._cancel_timer()
                    loop = asyncio.get_running_loop()
                    self._timer = loop.call_later(seconds, self.dispatch, server_state_machine.TimerFired(launch))
        if (previous.state, previous.error) != (self.status.state, self.status.error):
            self.publish_state()
        self._notify_listeners()

    def publish_state(self) -> None:
        """Publish and log the current state."""
        status = self.status
        line = f"{datetime.now(UTC):%H:%M:%S} {status.state.name.lower()}"
        self.log.write(f"{line}: {status.error}" if status.error else line)
        if status.state == LspState.ERROR:
            _log.warning("language server %s: %s", self.name, status.error)
        self._publish("state_changed")

    def _kill(self) -> None:
        connection, self._connection, self.session = self._connection, None, None
        self.connected_at = NEVER
        if connection is not None:
            self._tasks.start(connection.close(_SHUTDOWN_TIMEOUT), name=f"close {self.name}")

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _launch(self, launch: int) -> None:
        connection: LspConnection | None = None
        try:
            prepared = await self._preparations.start(self._prepare(), name=f"prepare {self.name}")
            if isinstance(prepared, Unlaunchable):
                if prepared.is_missing:
                    self.dispatch(server_state_machine.ProgramMissing(launch, _now(), prepared.reason))
                # The server may have been stopped or relaunched while its program was being searched.
                elif self.status.launch == launch:
                    self.dispatch(server_state_machine.Forbidden(prepared.reason))
                return
            session = ServerSession(prepared.config, self.root, self._on_change, self.log.write)
            # Create the trace before the process: a trace file that cannot be opened must not leave a process behind.
            trace = self._hooks.trace(self.name)
            child = await self._hooks.spawn(prepared, self.root)
            connection = LspConnection(child, session.handle, self._exit_handler(launch), self.log.write, trace)
            connection.start()
            # The server may have been stopped or relaunched while the process was being started.
            if self.status.launch != launch or not self.status.is_active:
                await connection.close()
                return
            self._connection = connection
            await session.initialize(connection, prepared.config.timeout)
            # `Kill` has replaced the connection if the server was stopped during the handshake.
            if self._connection is connection:
                self.session = session
                self.connected_at = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
                self.dispatch(server_state_machine.Started(launch, _now()))
                await self._open_queued_files(session)
        except asyncio.CancelledError:
            # The server is being closed.
            return
        except ConnectionClosed:
            # The connection has already reported the end, with the last output.
            return
        except (HoldfastError, OSError) as error:
            self.dispatch(server_state_machine.Exited(launch, _now(), f"It did not start: {error}"))
        except Exception:
            _log.exception("language server %s could not be started", self.name)
            self.dispatch(server_state_machine.Exited(launch, _now(), "It could not be started: see the server's log."))

    async def _prepare(self) -> LaunchSpec | Unlaunchable:
        return await self._hooks.prepare(self.config, self.root)

    def _exit_handler(self, launch: int) -> Callable[[str], None]:
        return lambda reason: self.dispatch(server_state_machine.Exited(launch, _now(), reason))

    async def _open_queued_files(self, session: ServerSession) -> None:
        queued, self._queued_files = self._queued_files, {}
        for path in queued:
            text = await self._hooks.read(path)
            # While the file was read, the process may have been replaced, or a tool may have opened the file.
            if text is not None and self.session is session and path not in session.documents.open:
                session.documents.sync(path, text)

    # Notifications

    def _on_change(self, uri: str) -> None:
        if uri:
            self.silent_changes = 0
        if self.diagnostic_count != self._published_count and self._count_timer is None:
            self._count_timer = asyncio.get_running_loop().call_later(_COUNT_INTERVAL, self._publish_count)
        self._notify_listeners(uri)

    def _publish_count(self) -> None:
        self._count_timer = None
        if self.diagnostic_count != self._published_count:
            self._publish("diagnostics_changed")

    def _publish(self, change: Literal["state_changed", "diagnostics_changed"]) -> None:
        self._published_count = self.diagnostic_count
        self._hooks.publish(LspNotice(change, self.name, self.status.state, self.status.error, self.diagnostic_count))

    def _notify_listeners(self, uri: str = "") -> None:
        # A copy, because a listener may remove itself.
        for listener in tuple(self._listeners):
            listener(uri)

    @contextmanager
    def listen(self, listener: Callable[[str], None]) -> Iterator[None]:
        """Call `listener` during the block: with the URI of a file that has new diagnostics, or with an empty string
        for other changes.
        """
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    def pull(self, session: ServerSession, path: str, seconds: float) -> asyncio.Task[None]:
        """Request the diagnostics of a file in the background."""
        return self._tasks.start(self._pull(session, path, seconds), name=f"pull from {self.name}")

    async def _pull(self, session: ServerSession, path: str, seconds: float) -> None:
        with contextlib.suppress(ToolError):
            await session.pull_diagnostics(path, seconds)
            for other in session.dependent_files(path):
                await session.pull_diagnostics(other, seconds)

    async def wait_until_ready(self, seconds: float) -> ServerSession:
        """Wait until the server is ready and return its session. Raises `ToolError` if it fails or is too slow."""
        changed = asyncio.Event()
        with self.listen(lambda _: changed.set()):
            try:
                async with asyncio.timeout(seconds):
                    while self.status.state == LspState.STARTING:
                        changed.clear()
                        await changed.wait()
            except TimeoutError:
                raise ToolError(f"{self.name} is still starting. Try again in a moment.") from None
        if self.session is None:
            reason = self.status.error or "It is not running."
            raise ToolError(f"The language server {self.name} cannot answer. {reason}")
        return self.session

    # Shutdown

    def retire(self) -> None:
        """Stop the server permanently."""
        self._is_retired = True
        self.dispatch(server_state_machine.Stop())

    async def close(self) -> None:
        """Stop the server, and wait for its process and tasks."""
        self.retire()
        self._cancel_timer()
        self._preparations.cancel_all()
        if self._count_timer is not None:
            self._count_timer.cancel()
        await self._tasks.drain()


def _now() -> float:
    return asyncio.get_running_loop().time()
