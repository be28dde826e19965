"""A small real server for tests: a script handles each connection and writes raw bytes."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from holdfast.client.server_address import ServerAddress
from holdfast.domain.events import Change, Gap, GapEvent, Hello, HelloEvent, SessionEvent, StreamedEvent
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.sessions import Session
from holdfast.http11.sse import frame
from scratch import scratch_directory
from stream_servers import stream_server

__all__ = [
    "Exchange",
    "Handler",
    "ReceivedRequest",
    "ScriptedServer",
    "StreamServer",
    "answer",
    "chunk",
    "frame_of",
    "session_event",
    "short_directory",
    "stream_head",
]


@contextmanager
def short_directory() -> Iterator[Path]:
    """Return a short directory path: socket paths are limited, and pytest's directories are long."""
    with scratch_directory() as made:
        yield made.resolve()


def answer(body: bytes = b"", status: int = 200, headers: str = "") -> bytes:
    return f"HTTP/1.1 {status} Word\r\nContent-Length: {len(body)}\r\n{headers}\r\n".encode() + body


def stream_head(status: int = 200) -> bytes:
    return (f"HTTP/1.1 {status} Word\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n").encode()


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


def session_event(name: str) -> SessionEvent:
    session = Session(SessionId(name), SessionId(""), f"title of {name}", 0, 0, 0, MessageId(""), 0.0, 1, 1, False, 0)
    return SessionEvent(Change("updated", session))


def frame_of(event: StreamedEvent, number: int | None = None) -> bytes:
    return frame(msgspec.json.encode(event), number)


class ReceivedRequest:
    """A received request."""

    def __init__(self, head: str, body: bytes) -> None:
        first, *lines = head.split("\r\n")
        self.method, self.target, _ = first.split(" ")
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self.path, _, query = self.target.partition("?")
        self.query = dict(item.split("=", 1) for item in query.split("&") if item)
        self.body = body


class Exchange:
    """One connection as its script sees it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, number: int) -> None:
        self._reader = reader
        self._writer = writer
        self.number = number
        """The number of earlier connections."""

    async def asked(self, *, reads_body: bool = True) -> ReceivedRequest | None:
        """Return the next request, or None when the client has disconnected."""
        try:
            head = (await self._reader.readuntil(b"\r\n\r\n")).decode()
        except (asyncio.IncompleteReadError, ConnectionError):
            return None
        asked = ReceivedRequest(head.removesuffix("\r\n\r\n"), b"")
        if not reads_body:
            return asked
        asked.body = await self._reader.readexactly(int(asked.headers.get("content-length", "0")))
        return asked

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def wait_for_disconnect(self) -> None:
        while await self._reader.read(65536):
            pass

    def hang_up(self) -> None:
        self._writer.close()


Handler = Callable[[Exchange], Awaitable[None]]


class ScriptedServer:
    """`async with ScriptedServer(script) as address`: the script handles every connection, which is then closed."""

    def __init__(self, script: Handler) -> None:
        self._script = script
        self._directory = TemporaryDirectory()
        self._connections = 0
        self._server = AsyncExitStack()

    async def __aenter__(self) -> ServerAddress:
        path = f"{self._directory.name}/s"
        await self._server.enter_async_context(stream_server(self._serve, path=path))
        return ServerAddress(path=path)

    async def __aexit__(self, *_: object) -> None:
        await self._server.aclose()
        self._directory.cleanup()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        exchange = Exchange(reader, writer, self._connections)
        self._connections += 1
        try:
            await self._script(exchange)
        except (ConnectionError, asyncio.CancelledError):
            return
        finally:
            writer.close()


class StreamServer:
    """Serves a numbered log in the resumable form. Each connection is cut after a number of bytes of its frames."""

    def __init__(self, log: list[tuple[int, bytes]], cuts: Iterator[int | None]) -> None:
        self.log = log
        self.cuts = cuts
        self.connections = 0
        self.asked_since: list[int] = []

    async def __call__(self, exchange: Exchange) -> None:
        asked = await exchange.asked()
        if asked is None:
            return
        self.connections += 1
        since = int(asked.query["since"])
        self.asked_since.append(since)
        newest = self.log[-1][0] if self.log else 0
        raw = frame_of(HelloEvent(Hello(newest, 1, 1)))
        if since > newest:
            raw += frame_of(GapEvent(Gap(newest, 1, 1)))
        raw += b"".join(frame(body, number) for number, body in self.log if number > since)
        cut = next(self.cuts, None)
        await exchange.send(stream_head())
        if cut is None:
            await exchange.send(chunk(raw))
            await exchange.wait_for_disconnect()
        elif raw[:cut]:
            await exchange.send(chunk(raw[:cut]))
