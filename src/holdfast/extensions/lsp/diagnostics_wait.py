"""Wait for the diagnostics of one file. `settling.py` computes the limits; this module uses the clock."""

import asyncio
import contextlib

import msgspec
from msgspec.structs import replace

from holdfast.domain.extensions import LspState
from holdfast.extensions.lsp.language_server import LanguageServer
from holdfast.extensions.lsp.lsp_types import uri_of

__all__ = [
    "AFTER_A_CHANGE",
    "AT_A_GLANCE",
    "AT_LEISURE",
    "WHEN_ASKED",
    "DiagnosticsWait",
    "Progress",
    "Times",
    "deadline",
]


# Time limits for diagnostics after a change. Pure: times are passed in.

MOST_SILENT = 2
"""After this many consecutive changes without a response a server is not waited for, until it responds again."""


class Times(msgspec.Struct, frozen=True):
    """Limits in seconds. `overall`: for all servers together. `start`: for a server that was just launched. `first`:
    for the first response of a server that does not report progress. `quiet`: after the last response.
    """

    overall: float
    start: float
    first: float
    quiet: float = 0.3


AFTER_A_CHANGE = Times(5.0, 5.0, 1.0)
AT_A_GLANCE = Times(0.3, 0.0, 0.3)
"""For a file that is only read."""
AT_LEISURE = Times(30.0, 30.0, 5.0)
"""For background checks."""
WHEN_ASKED = Times(5.0, 5.0, 5.0)
"""For an explicit request for diagnostics."""


class Progress(msgspec.Struct, frozen=True):
    """Progress of one server with a change. A time is None until the event has happened."""

    started: float | None = None
    """Time of the launch, until the server has responded for the first time."""
    told: float | None = None
    heard: float | None = None
    is_busy: bool = False
    """The server reports work in progress."""
    is_done: bool = False
    silences: int = 0


def deadline(begun: float, progress: Progress, times: Times) -> float:
    """Return the time until which to wait if nothing more happens."""
    end = begun + times.overall
    is_given_up = progress.silences >= MOST_SILENT and progress.heard is None and times.first < times.overall
    if progress.is_done or is_given_up:
        return begun
    if progress.heard is not None:
        return min(end, progress.heard + times.quiet)
    if progress.is_busy:
        return end
    # Concurrent waiters of a starting server share its start limit.
    up = progress.started + times.start if progress.started is not None else begun
    return min(end, up if progress.told is None else max(up, progress.told + times.first))


# Wait for the diagnostics of one file. `settling.py` computes the limits; this module uses the clock.


class DiagnosticsWait:
    """Sends a file to a server as soon as it is ready, then waits. `begun` is the start of the wait."""

    def __init__(self, server: LanguageServer, path: str, text: str, begun: float, times: Times) -> None:
        self._server = server
        self._path, self._text = path, text
        self._uri = uri_of(path)
        self._begun, self._times = begun, times
        self._progress = Progress()
        self._news = asyncio.Event()
        self._pulling: asyncio.Task[None] | None = None

    async def over(self) -> bool:
        """Wait within the limits. Returns whether the server has responded."""
        loop = asyncio.get_running_loop()
        with self._server.listening(self._hear):
            try:
                while (left := self._deadline(loop.time()) - loop.time()) > 0:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(left):
                            await self._news.wait()
                    self._news.clear()
            finally:
                if self._pulling is not None:
                    self._pulling.cancel()
        return self._judge()

    def _hear(self, uri: str) -> None:
        if uri == self._uri or (uri and self._progress.heard is not None):
            self._progress = replace(self._progress, heard=asyncio.get_running_loop().time())
        self._news.set()

    def _deadline(self, now: float) -> float:
        server, talk = self._server, self._server.talk
        if server.standing.state != LspState.READY or talk is None:
            is_starting = server.standing.state == LspState.STARTING
            self._progress = Progress(started=server.launched_at if is_starting else None, is_done=not is_starting)
        elif self._progress.told is None:
            self._tell(now)
        elif self._pulls():
            assert self._pulling is not None
            self._progress = replace(self._progress, is_busy=True, is_done=self._pulling.done())
        else:
            self._progress = replace(self._progress, is_busy=talk.is_busy)
        return deadline(self._begun, self._progress, self._times)

    def _tell(self, now: float) -> None:
        server, talk = self._server, self._server.talk
        assert talk is not None
        talk.add_root(server.root)
        talk.documents.sync(self._path, self._text)
        started = server.launched_at if not talk.has_spoken else None
        self._progress = Progress(started=started, told=now, silences=server.silences)
        if not self._pulls() and talk.has_answered(self._path):
            self._progress = replace(self._progress, is_done=True)

    def _pulls(self) -> bool:
        """Start a pull request if the server supports it. Some servers register the capability only after a while."""
        talk = self._server.talk
        if self._pulling is None and talk is not None and talk.answers_for_files:
            self._pulling = self._server.pull(talk, self._path, self._times.overall)
            self._pulling.add_done_callback(lambda _: self._news.set())
        return self._pulling is not None

    def _judge(self) -> bool:
        progress = self._progress
        if progress.told is None:
            return False
        has_spoken = progress.is_done or progress.heard is not None
        if not has_spoken and self._times.first >= 1:
            self._server.silences += 1
        return has_spoken
