"""A local web server with pages of every behaviour."""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from holdfast.testing.gates import Gate
from stream_servers import stream_server

Page = Callable[["Visit"], Coroutine[Any, Any, None]]


class Visit:
    """One request and its response."""

    def __init__(self, server: "WebServer", path: str, headers: dict[str, str], writer: asyncio.StreamWriter) -> None:
        self.server = server
        self.path = path
        self.headers = headers
        self._writer = writer

    async def answer(self, body: bytes = b"", status: int = 200, *, headers: tuple[str, ...] = ()) -> None:
        await self.begin(status, (f"Content-Length: {len(body)}", *headers))
        await self.send(body)

    async def begin(self, status: int, headers: tuple[str, ...]) -> None:
        lines = [f"HTTP/1.1 {status} X", "Connection: close", *headers, "", ""]
        await self.send("\r\n".join(lines).encode())

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()


class WebServer:
    def __init__(self) -> None:
        self.pages: dict[str, Page] = {}
        self.visits: list[Visit] = []
        self.gate = Gate()
        self.left = asyncio.Event()
        """Set when a client disconnects during a response."""
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def page(self, path: str, body: bytes, content_type: str = "text/html") -> None:
        async def show(visit: Visit) -> None:
            await visit.answer(body, headers=(f"Content-Type: {content_type}",))

        self.pages[path] = show

    def redirect(self, path: str, to: str) -> None:
        async def show(visit: Visit) -> None:
            await visit.answer(status=302, headers=(f"Location: {to}",))

        self.pages[path] = show

    def endless(self, path: str, first: bytes = b"x" * 1_000) -> None:
        """Send the beginning of a page, then wait until the gate opens or the client disconnects."""

        async def show(visit: Visit) -> None:
            await visit.begin(200, ("Content-Length: 1000000", "Content-Type: text/plain"))
            await visit.send(first)
            await self.gate()

        self.pages[path] = show

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            first, *lines = head.split("\r\n")
            headers = dict(line.lower().split(": ", 1) for line in lines if ": " in line)
            visit = Visit(self, first.split()[1], headers, writer)
            self.visits.append(visit)
            page = self.pages.get(visit.path.partition("?")[0])
            async with asyncio.TaskGroup() as group:
                serving = group.create_task(page(visit) if page else visit.answer(b"no", 404))
                leaving = group.create_task(reader.read())
                await asyncio.wait([serving, leaving], return_when=asyncio.FIRST_COMPLETED)
                if not serving.done():
                    self.left.set()
                    serving.cancel()
                leaving.cancel()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def web_server() -> AsyncIterator[WebServer]:
    web = WebServer()
    async with stream_server(web.serve) as web.port:
        try:
            yield web
        finally:
            web.gate.open()
