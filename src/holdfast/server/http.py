"""HTTP/1.1 on connections of our own. httptools takes requests apart; what is behind is an ASGI application.

One request of a connection is answered at a time, in the order in which they came. A body that nobody wants is
passed over; a reader that does not read makes its writer wait, and nobody else.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any, TypeAlias, cast

import httptools

from holdfast.server.listen import is_our_own
from holdfast.tasks import TaskOwner

__all__ = ["Asgi", "Exchange", "HttpServer", "Message", "Receive", "Scope", "Send", "exchange_of"]

Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Asgi: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_KEEP_ALIVE_SECONDS = 90.0
_LARGEST_HEAD = 64 * 1024
_MOST_BODY_AT_ONCE = 64 * 1024
_REASONS = {
    200: b"OK", 202: b"Accepted", 204: b"No Content", 400: b"Bad Request", 401: b"Unauthorized", 403: b"Forbidden",
    404: b"Not Found", 405: b"Method Not Allowed", 409: b"Conflict", 413: b"Content Too Large",
    415: b"Unsupported Media Type", 421: b"Misdirected Request", 500: b"Internal Server Error",
    503: b"Service Unavailable",
}  # fmt: skip
_NOT_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 21\r\n"
    b"connection: close\r\n\r\nThis is not HTTP/1.1."
)
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_GONE = {"type": "http.disconnect"}


class Exchange:
    """One request and its answer. `receive` and `send` are ASGI's."""

    def __init__(self, connection: "Connection", scope: Scope, *, keeps: bool, waits: bool) -> None:
        self.connection = connection
        self.scope = scope
        self.keeps = keeps
        """Whether the connection outlives the answer."""
        self.is_whole = False
        """Whether all of the request has come."""
        self.is_over = False
        """Whether all of the answer has been handed over, or nobody is there to have it."""
        self.ends_with_connection = False
        """Set before the answer begins, for a body without length or chunks."""
        self.pieces: list[bytes] = []
        self.size = 0
        self._waits = waits
        self._is_told = False
        self._head: bytes | None = None
        self._has_begun = False
        self._is_chunked = False
        self._waiter: asyncio.Future[None] | None = None

    async def receive(self) -> Message:
        if self._waits:
            self._waits = False
            self.connection.write(_CONTINUE)
        while not self.is_over and not self.pieces and (not self.is_whole or self._is_told):
            self._waiter = self.connection.loop.create_future()
            await self._waiter
        if self.is_over:
            return _GONE
        body = b"".join(self.pieces)
        self.pieces.clear()
        self.size = 0
        self._is_told = self.is_whole
        self.connection.look()
        return {"type": "http.request", "body": body, "more_body": not self.is_whole}

    def wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._head = self._head_of(message["status"], message["headers"])
            return
        if self.is_over:
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        self.connection.write(self._framed(body, more=more))
        if not more:
            self.is_over = True
            self.connection.finish(self)
        elif self.connection.is_full:
            await self.connection.room()

    def write(self, data: bytes) -> None:
        """More of a body that has begun, without waiting for its reader."""
        if not self.is_over:
            self.connection.write(self._framed(data, more=True))

    def _head_of(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        lines = [b"HTTP/1.1 %d %s" % (status, _REASONS.get(status, b""))]
        has_length = False
        for name, value in headers:
            if name == b"content-length":
                has_length = True
            elif name == b"connection" and value == b"close":
                self.keeps = False
            lines.append(b"%s: %s" % (name, value))
        if not has_length:
            self._is_chunked = self.scope["http_version"] == "1.1" and not self.ends_with_connection
            if self._is_chunked:
                lines.append(b"transfer-encoding: chunked")
            else:
                self.keeps = False
        if not self.keeps and b"connection: close" not in lines:
            lines = [line for line in lines if not line.startswith(b"connection:")]
            lines.append(b"connection: close")
        return b"\r\n".join([*lines, b"", b""])

    def _framed(self, body: bytes, *, more: bool) -> bytes:
        if self.scope["method"] == "HEAD":
            body = b""
        elif self._is_chunked:
            body = (b"%x\r\n%b\r\n" % (len(body), body) if body else b"") + (b"" if more else b"0\r\n\r\n")
        if self._has_begun:
            return body
        self._has_begun = True
        assert self._head is not None, "an answer begins with its head"
        return self._head + body

    async def run(self, application: Asgi) -> None:
        """Have it answered. What breaks here breaks only this connection."""
        try:
            await application(self.scope, self.receive, self.send)
        finally:
            if not self.is_over:
                self.connection.abort()


def exchange_of(send: Send) -> Exchange | None:
    """Whose `send` it is, for who needs more than ASGI has."""
    exchange = getattr(send, "__self__", None)
    return exchange if isinstance(exchange, Exchange) else None


class Connection(asyncio.Protocol):
    """Over the unix socket only our own user is let in.

    Whether a request came over the unix socket is told by the family of its own socket, never by who its peer is
    said to be: the peer of a connection that was reset has no name any more.
    """

    transport: asyncio.Transport

    def __init__(self, server: "HttpServer") -> None:
        self.loop = server.loop
        self.is_full = False
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._exchanges: deque[Exchange] = deque()
        self._client: tuple[str, int] | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._size = 0
        self._is_paused = False
        self._is_leaving = False
        self._idle: asyncio.TimerHandle | None = None
        self._room: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        connection = transport.get_extra_info("socket")
        is_local = connection is not None and connection.family == socket.AF_UNIX
        if not is_local:
            name = transport.get_extra_info("peername")
            self._client = (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) > 1 else ("", 0)
        elif not is_our_own(connection):
            self.transport.abort()
        self._server.connections.add(self)
        self._grow_tired()

    def connection_lost(self, _: Exception | None) -> None:
        self._server.forget(self)
        self._rest()
        self.resume_writing()
        for exchange in self._exchanges:
            exchange.is_over = True
            exchange.wake()

    def data_received(self, data: bytes) -> None:
        self._rest()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # What follows is meant for a protocol that is not spoken here.
            self._pause(is_wanted=True)
        except httptools.HttpParserError:
            self._refuse()
        if not self._exchanges:
            self._grow_tired()

    def eof_received(self) -> None:
        return None

    # The parser calls these.

    def on_message_begin(self) -> None:
        self._url, self._headers, self._size = b"", [], 0

    def on_url(self, url: bytes) -> None:
        self._url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers.append((name.lower(), value))
        self._count(len(name) + len(value))

    def _count(self, size: int) -> None:
        self._size += size
        if self._size > _LARGEST_HEAD:
            self.abort()

    def on_headers_complete(self) -> None:
        url = httptools.parse_url(self._url)
        method, version = self._parser.get_method().decode("ascii"), self._parser.get_http_version()
        path = url.path or b""
        scope: Scope = {
            "type": "http",
            "http_version": version,
            "method": method,
            "path": path.decode("latin-1"),
            "raw_path": path,
            "query_string": url.query or b"",
            "headers": self._headers,
            "client": self._client,
        }
        waits = any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers)
        keeps = self._parser.should_keep_alive() and not self._parser.should_upgrade() and not self._is_leaving
        exchange = Exchange(self, scope, keeps=keeps, waits=waits)
        self._exchanges.append(exchange)
        if self._exchanges[0] is exchange:
            self._server.answer(exchange)
        self.look()

    def on_body(self, body: bytes) -> None:
        exchange = self._exchanges[-1] if self._exchanges else None
        if exchange is not None and not exchange.is_over:
            exchange.pieces.append(body)
            exchange.size += len(body)
            exchange.wake()
            self.look()

    def on_message_complete(self) -> None:
        if self._exchanges:
            self._exchanges[-1].is_whole = True
            self._exchanges[-1].wake()
            if self._exchanges[0].is_over:
                self._next()

    # The exchange calls these.

    def write(self, data: bytes) -> None:
        if data and not self.transport.is_closing():
            self.transport.write(data)

    async def room(self) -> None:
        """Until the reader has read."""
        if self.is_full:
            if self._room is None:
                self._room = self.loop.create_future()
            await asyncio.shield(self._room)

    def look(self) -> None:
        """Take no more from who sends faster than it is served."""
        last = self._exchanges[-1] if self._exchanges else None
        is_ahead = len(self._exchanges) > 1 or (last is not None and last.size > _MOST_BODY_AT_ONCE)
        self._pause(is_wanted=is_ahead)

    def finish(self, exchange: Exchange) -> None:
        """The answer is complete. A request that is not, is read to its end and passed over."""
        exchange.pieces.clear()
        exchange.size = 0
        exchange.wake()
        if not exchange.keeps or self._is_leaving:
            self.transport.close()
        elif exchange.is_whole:
            self._next()
        else:
            self.look()

    def _next(self) -> None:
        self._exchanges.popleft()
        if self._exchanges:
            self._server.answer(self._exchanges[0])
        else:
            self._grow_tired()
        self.look()

    def abort(self) -> None:
        """What waits to be sent is dropped."""
        self.transport.abort()

    def leave(self) -> None:
        """Close now, or with the end of the answer that is on its way."""
        self._is_leaving = True
        if not self._exchanges:
            self.transport.close()
        for exchange in self._exchanges:
            exchange.keeps = False

    # The transport calls these.

    def pause_writing(self) -> None:
        self.is_full = True

    def resume_writing(self) -> None:
        self.is_full = False
        if self._room is not None:
            self._room.set_result(None)
            self._room = None

    def _pause(self, *, is_wanted: bool) -> None:
        if is_wanted != self._is_paused and not self.transport.is_closing():
            self._is_paused = is_wanted
            if is_wanted:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _grow_tired(self) -> None:
        """Of a connection on which nothing is asked, or half of something."""
        self._rest()
        self._idle = self.loop.call_later(_KEEP_ALIVE_SECONDS, self.transport.close)

    def _rest(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _refuse(self) -> None:
        """Nothing that follows can be understood. An answer that is on its way must not be mixed with another."""
        if not self._exchanges:
            self.write(_NOT_HTTP)
            self.transport.close()
        elif self._exchanges[-1].is_whole:
            self._pause(is_wanted=True)
            self._exchanges[-1].keeps = False
        else:
            self.transport.abort()


class HttpServer:
    """Serves an application on sockets that others have bound."""

    def __init__(self, application: Asgi) -> None:
        self.loop = asyncio.get_running_loop()
        self.connections: set[Connection] = set()
        self._application = application
        self._tasks = TaskOwner()
        self._servers: list[asyncio.Server] = []
        self._empty: asyncio.Future[None] | None = None

    async def start(self, sockets: Iterable[socket.socket], guests: Iterable[socket.socket] = ()) -> None:
        """`guests` are connections that were accepted before."""
        for guest in guests:
            await self.loop.connect_accepted_socket(lambda: Connection(self), guest)
        for listener in sockets:
            self._servers.append(await self.loop.create_server(lambda: Connection(self), sock=listener, backlog=2048))

    def answer(self, exchange: Exchange) -> None:
        self._tasks.start(exchange.run(self._application), name="request")

    def forget(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if not self.connections and self._empty is not None and not self._empty.done():
            self._empty.set_result(None)

    async def stop(self, last_words: float) -> None:
        """Let nobody in, let answers end; whoever has not read its own after so many seconds is not waited for."""
        for server in self._servers:
            server.close()
        for connection in tuple(self.connections):
            connection.leave()
        self._empty = self.loop.create_future()
        if self.connections:
            hang_up = self.loop.call_later(last_words, self._hang_up)
            await self._empty
            hang_up.cancel()
        await self._tasks.drain()

    def _hang_up(self) -> None:
        for connection in tuple(self.connections):
            connection.abort()
