"""An owner that a test plays: it records what arrives at its port, and responds as the test wants."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import httptools

from holdfast.testing.gates import start

__all__ = ["FakeOwner", "fake_owner", "respond"]

Answer = Callable[["FakeOwner", asyncio.StreamWriter], Coroutine[Any, Any, None]]


async def respond(_: "FakeOwner", writer: asyncio.StreamWriter) -> None:
    """Respond to every request with a JSON object."""
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 3\r\n\r\n{}\n")
    await writer.drain()


class FakeOwner:
    """What has arrived: heads, and bodies as far as they have come."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.address = ""
        self.heads: list[str] = []
        self.body = b""
        self.ended = 0
        """Connections that have ended."""

    @property
    def targets(self) -> list[str]:
        return [head.split("\r\n")[0].rpartition(" ")[0] for head in self.heads]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode("latin-1"))
            answering = start(self.answer(self, writer))
            parser = httptools.HttpRequestParser(self)
            parser.feed_data(self.heads[-1].encode("latin-1"))
            while data := await reader.read(65536):
                parser.feed_data(data)
            answering.cancel()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            self.ended += 1
            writer.transport.abort()

    def on_body(self, body: bytes) -> None:
        self.body += body


@asynccontextmanager
async def fake_owner(answer: Answer = respond) -> AsyncIterator[FakeOwner]:
    owner = FakeOwner(answer)
    server = await asyncio.start_server(owner.serve, "127.0.0.1", 0)
    owner.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield owner
    finally:
        server.close()
