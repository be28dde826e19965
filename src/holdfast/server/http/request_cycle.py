"""A request of a connection and its response, as ASGI applications expect them."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import TYPE_CHECKING, Any, TypeAlias

__all__ = [
    "CONTINUE",
    "NOT_HTTP",
    "REASONS",
    "Asgi",
    "Message",
    "Receive",
    "RequestCycle",
    "Scope",
    "Send",
]


REASONS = {
    200: b"OK", 202: b"Accepted", 204: b"No Content", 400: b"Bad Request", 401: b"Unauthorized", 403: b"Forbidden",
    404: b"Not Found", 405: b"Method Not Allowed", 409: b"Conflict", 413: b"Content Too Large",
    415: b"Unsupported Media Type", 421: b"Misdirected Request", 500: b"Internal Server Error",
    503: b"Service Unavailable",
}  # fmt: skip
NOT_HTTP = (
    b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain; charset=utf-8\r\ncontent-length: 21\r\n"
    b"connection: close\r\n\r\nThis is not HTTP/1.1."
)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


if TYPE_CHECKING:
    from holdfast.server.http.connection import Connection


Message: TypeAlias = MutableMapping[str, Any]
Scope: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Asgi: TypeAlias = Callable[[Scope, Receive, Send], Awaitable[None]]

_GONE = {"type": "http.disconnect"}


class RequestCycle:
    """A request and its response. `receive` and `send` are those of ASGI."""

    def __init__(self, connection: "Connection", scope: Scope, *, keeps: bool, waits: bool) -> None:
        self.connection = connection
        self.scope = scope
        self.keeps = keeps
        """True if the connection stays open after the response."""
        self.is_whole = False
        """True if the complete request has been received."""
        self.is_over = False
        """True if the complete response has been handed over, or the client has disconnected."""
        self.ends_with_connection = False
        """Set before the response begins, for a body without length or chunks."""
        self.probe = b""
        """Bytes that clients ignore at any position of the response. Writing them detects a disconnected client."""
        self.pieces: list[bytes] = []
        self.size = 0
        self._waits = waits
        self._is_told = False
        self._head: bytes | None = None
        self._has_begun = False
        self._is_chunked = False
        self._waiter: asyncio.Future[None] | None = None

    async def receive(self) -> Message:
        """Return the next piece of the request body, or `http.disconnect` after the response or the connection has
        ended.
        """
        if self._waits:
            self._waits = False
            # A client that has sent its body anyway does not wait for it.
            if not self.is_whole and not self._has_begun:
                self.connection.write(CONTINUE)
        while not self.is_over and not self.pieces and (not self.is_whole or self._is_told):
            self._waiter = self.connection.loop.create_future()
            await self._waiter
        if self.is_over:
            return _GONE
        body = b"".join(self.pieces)
        self.pieces.clear()
        self.size = 0
        # The end of the body is reported once; the next `receive` waits for the disconnection.
        self._is_told = self.is_whole
        self.connection.update_reading()
        return {"type": "http.request", "body": body, "more_body": not self.is_whole}

    @property
    def is_watched(self) -> bool:
        """True if the application has the complete request and waits for the client to disconnect."""
        return self._is_told and self._waiter is not None and not self._waiter.done()

    def wake(self) -> None:
        """Wake the application if it waits in `receive`."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def break_off(self) -> bool:
        """Give up a malformed request. Returns True if no response has begun, so that an error can be sent."""
        is_silent = not self._has_begun and not self.is_over
        self.is_over = True
        self.wake()
        return is_silent

    async def send(self, message: Message) -> None:
        """Send the head or a part of the body; waits while the write buffer is full."""
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
        """Write more of a body that has begun, without waiting for the client to read it."""
        if not self.is_over:
            self.connection.write(self._framed(data, more=True))

    def write_probe(self) -> None:
        """Write the ignorable bytes that reveal a disconnected client, if the body has begun."""
        if self._has_begun and not self.connection.is_full:
            self.write(self.probe)

    def _head_of(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> bytes:
        lines = [b"HTTP/1.1 %d %s" % (status, REASONS.get(status, b""))]
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
        # The head is that of a GET; the body is omitted.
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
        """Run the application once earlier responses have been read. An error aborts this connection only."""
        # Handlers of streams need more than ASGI offers, such as a write that does not wait.
        self.scope["exchange"] = self
        try:
            await self.connection.room()
            await application(self.scope, self.receive, self.send)
        finally:
            # The scope and the exchange refer to each other; without this they would wait for the garbage collector.
            del self.scope["exchange"]
            if not self.is_over:
                self.connection.abort()
