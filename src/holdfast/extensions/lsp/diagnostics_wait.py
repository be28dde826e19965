"""Waits for the diagnostics of one file, within limits.

The protocol does not say when a server has finished with a change: a server may publish diagnostics late, in several
parts, or never. `deadline` computes, without a clock, how long to wait for the progress made so far; `DiagnosticsWait`
applies it to a running server. A server that supports pull diagnostics answers each request, so its answer ends the
wait.
"""

import asyncio
import contextlib

import msgspec
from msgspec.structs import replace

from holdfast.domain.extensions import LspState
from holdfast.extensions.lsp.lsp_types import file_uri
from holdfast.extensions.lsp.server_supervisor import LanguageServer

__all__ = [
    "AFTER_CHANGE",
    "IN_BACKGROUND",
    "ON_REQUEST",
    "ON_VIEW",
    "DiagnosticsWait",
    "Progress",
    "WaitLimits",
    "deadline",
]


MAX_SILENT_CHANGES = 2
"""After this many consecutive changes without a response a server is not waited for, until it responds again."""


class WaitLimits(msgspec.Struct, frozen=True):
    """Limits in seconds. `overall`: for all servers together. `start`: for a server that was just launched. `first`:
    for the first response of a server that does not report progress. `quiet`: after the last response.
    """

    overall: float
    start: float
    first: float
    quiet: float = 0.3


AFTER_CHANGE = WaitLimits(5.0, 5.0, 1.0)
"""For a file that a tool has changed."""
ON_VIEW = WaitLimits(0.3, 0.0, 0.3)
"""For a file that is only viewed."""
IN_BACKGROUND = WaitLimits(30.0, 30.0, 5.0)
"""For background checks."""
ON_REQUEST = WaitLimits(5.0, 5.0, 5.0)
"""For an explicit request for diagnostics."""


class Progress(msgspec.Struct, frozen=True):
    """Progress of one server with a change. A time is None until the event has happened."""

    launched_at: float | None = None
    """Time of the launch, until the server has responded for the first time."""
    sent_at: float | None = None
    received_at: float | None = None
    is_busy: bool = False
    """The server reports work in progress."""
    is_done: bool = False
    silent_changes: int = 0


def deadline(started_at: float, progress: Progress, limits: WaitLimits) -> float:
    """Return the time until which to wait if nothing more happens."""
    end = started_at + limits.overall
    # A server that ignored the last changes is not waited for again, unless the caller requests diagnostics explicitly.
    is_abandoned = (
        progress.silent_changes >= MAX_SILENT_CHANGES and progress.received_at is None and limits.first < limits.overall
    )
    if progress.is_done or is_abandoned:
        return started_at
    if progress.received_at is not None:
        return min(end, progress.received_at + limits.quiet)
    if progress.is_busy:
        # The server reports work in progress, so diagnostics will follow.
        return end
    # Concurrent waiters of a starting server share its start limit.
    up = progress.launched_at + limits.start if progress.launched_at is not None else started_at
    return min(end, up if progress.sent_at is None else max(up, progress.sent_at + limits.first))


class DiagnosticsWait:
    """Sends a file to a server as soon as it is ready, then waits. `started_at` is the start of the wait."""

    def __init__(self, server: LanguageServer, path: str, text: str, started_at: float, limits: WaitLimits) -> None:
        self._server = server
        self._path, self._text = path, text
        self._uri = file_uri(path)
        self._started_at, self._limits = started_at, limits
        self._progress = Progress()
        self._changed = asyncio.Event()
        self._pull_task: asyncio.Task[None] | None = None

    async def wait(self) -> bool:
        """Wait within the limits. Returns whether the server has responded."""
        loop = asyncio.get_running_loop()
        with self._server.listen(self._on_diagnostics):
            try:
                while (left := self._deadline(loop.time()) - loop.time()) > 0:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(left):
                            await self._changed.wait()
                    self._changed.clear()
            finally:
                if self._pull_task is not None:
                    self._pull_task.cancel()
        return self._has_responded()

    def _on_diagnostics(self, uri: str) -> None:
        # After diagnostics of this file, those of other files extend the wait: a change may affect several files.
        if uri == self._uri or (uri and self._progress.received_at is not None):
            self._progress = replace(self._progress, received_at=asyncio.get_running_loop().time())
        self._changed.set()

    def _deadline(self, now: float) -> float:
        server, session = self._server, self._server.session
        if server.status.state != LspState.READY or session is None:
            is_starting = server.status.state == LspState.STARTING
            self._progress = Progress(launched_at=server.launched_at if is_starting else None, is_done=not is_starting)
        elif self._progress.sent_at is None:
            self._send_file(now)
        elif self._is_pulling():
            assert self._pull_task is not None
            self._progress = replace(self._progress, is_busy=True, is_done=self._pull_task.done())
        else:
            self._progress = replace(self._progress, is_busy=session.is_busy)
        return deadline(self._started_at, self._progress, self._limits)

    def _send_file(self, now: float) -> None:
        server, session = self._server, self._server.session
        assert session is not None
        session.add_workspace_folder(server.root)
        session.documents.sync(self._path, self._text)
        started = server.launched_at if not session.has_responded else None
        self._progress = Progress(launched_at=started, sent_at=now, silent_changes=server.silent_changes)
        if not self._is_pulling() and session.has_current_diagnostics(self._path):
            self._progress = replace(self._progress, is_done=True)

    def _is_pulling(self) -> bool:
        """Start a pull request if the server supports it. Some servers register the capability only after a while."""
        session = self._server.session
        if self._pull_task is None and session is not None and session.supports_pull:
            self._pull_task = self._server.pull(session, self._path, self._limits.overall)
            self._pull_task.add_done_callback(lambda _: self._changed.set())
        return self._pull_task is not None

    def _has_responded(self) -> bool:
        progress = self._progress
        if progress.sent_at is None:
            return False
        has_responded = progress.is_done or progress.received_at is not None
        if not has_responded and self._limits.first >= 1:
            self._server.silent_changes += 1
        return has_responded
