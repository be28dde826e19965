"""A local HTTP server with configured responses, which records its requests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from stream_servers import stream_server

__all__ = ["JsonServer", "json_server"]


class JsonServer:
    """`answers` are by path: an object becomes JSON, bytes are sent unchanged, a status is sent without a body."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.requests: list[str] = []
        self.headers: dict[str, str] = {}
        self.held = asyncio.Event()
        self.held.set()
        self.waiting = asyncio.Event()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                line, *rest = head.decode().strip().split("\r\n")
                self.headers = {name.lower(): value for name, _, value in (item.partition(": ") for item in rest)}
                body = await reader.readexactly(int(self.headers.get("content-length", 0)))
                method, path, _ = line.split()
                self.requests.append(f"{method} {path}")
                self.waiting.set()
                await self.held.wait()
                writer.write(self._answer(path, body))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    def _answer(self, path: str, body: bytes) -> bytes:
        answer = self.answers.get(path, 404)
        if callable(answer):
            answer = answer(msgspec.json.decode(body))
        status = answer if isinstance(answer, int) else 200
        data = answer if isinstance(answer, bytes) else b"" if isinstance(answer, int) else msgspec.json.encode(answer)
        return b"HTTP/1.1 %d OK\r\ncontent-length: %d\r\n\r\n%s" % (status, len(data), data)


@asynccontextmanager
async def json_server() -> AsyncIterator[JsonServer]:
    """Run a server without responses for the duration of the block."""
    server = JsonServer()
    async with stream_server(server.serve) as server.port:
        yield server
