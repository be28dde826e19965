"""Wait for the diagnostics of one file. `settling.py` computes the limits; this module uses the clock."""

import asyncio
import contextlib

from msgspec.structs import replace

from holdfast.domain.languages import LspState
from holdfast.extensions.lsp.server import LanguageServer
from holdfast.extensions.lsp.settling import Progress, Times, deadline
from holdfast.extensions.lsp.shapes import uri_of

__all__ = ["Wait"]


class Wait:
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
