"""Connections to one server on an event loop, kept for the next request.

A connection is an `asyncio.Protocol` of our own, not a pair of streams: one that says something while nobody
asks is closed, so that no answer can ever be taken for the answer to another request.
"""

import asyncio
from collections import deque
from typing import cast

import msgspec

from holdfast.client.errors import BrokenResponse, ClientError, ConnectionLost, TimedOut, Unreachable
from holdfast.client.wire import Address, Head, ResponseReader

__all__ = ["Answer", "Connection", "OpenResponse", "Pool"]

_MOST_IDLE = 4
_IDLE_SECONDS = 30.0
"""Shorter than servers keep an idle connection: a request must not meet the closing of its connection."""
_CONNECT_SECONDS = 10.0
_MOST_UNREAD = 256 * 1024


class Answer(msgspec.Struct, frozen=True):
    """A whole response."""

    head: Head
    body: bytes


class Connection(asyncio.Protocol):
    """One connection. Reading pauses while its user does not keep up."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._unread: deque[bytes] = deque()
        self._unread_size = 0
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self.is_open = False
        self.in_use = False
        self.idle_since = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        if not self.in_use:
            self.close()
            return
        self._unread.append(data)
        self._unread_size += len(data)
        if self._unread_size > _MOST_UNREAD and not self._is_paused and self._transport is not None:
            self._transport.pause_reading()
            self._is_paused = True
        self._wake()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        self._error = exc
        self._wake()

    def send(self, message: bytes) -> None:
        if self._transport is not None and self.is_open:
            self._transport.write(message)

    async def receive(self) -> bytes:
        """What has come; nothing when the connection has ended. Raises what broke it."""
        while not self._unread:
            if not self.is_open:
                if self._error is not None:
                    raise self._error
                return b""
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        data = self._unread.popleft()
        self._unread_size -= len(data)
        if self._is_paused and self._transport is not None and self.is_open:
            self._transport.resume_reading()
            self._is_paused = False
        return data

    def close(self) -> None:
        """At once: what was not sent or read is of no interest any more."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class OpenResponse:
    """A response whose body is still coming. The connection is used up by it."""

    def __init__(self, connection: Connection, reader: ResponseReader, head: Head, begun: bytes) -> None:
        self.head = head
        self._connection = connection
        self._reader = reader
        self._begun = begun

    async def read(self) -> bytes | None:
        """The next bytes of the body, possibly none; None at its end. Raises `ConnectionLost` if it breaks off."""
        if self._begun:
            body, self._begun = self._begun, b""
            return body
        if self._reader.is_done:
            return None
        try:
            data = await self._connection.receive()
            if data:
                return self._reader.feed(data)
            self._reader.end()
        except (OSError, ClientError):
            self.close()
            raise ConnectionLost("The stream of events broke off.") from None
        return None

    def close(self) -> None:
        self._connection.close()


class Pool:
    """Makes connections and keeps a few. There is no limit on those in use: each belongs to a caller who waits."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[Connection] = []
        self._in_use: set[Connection] = set()
        self._is_closed = False

    async def exchange(self, message: bytes, *, method: str, can_repeat: bool, seconds: float | None) -> Answer:
        """Send a request and read its answer.

        A kept connection that turns out to be closed is replaced once: always when nothing was sent on it,
        else only if the request can be repeated without harm. In every other case the caller is told.
        """
        try:
            async with asyncio.timeout(seconds):
                kept = self._kept()
                if kept is not None:
                    answer = await self._try(kept, message, method)
                    if answer is not None:
                        return answer
                    if not can_repeat:
                        raise ConnectionLost
                answer = await self._try(await self._connect(), message, method)
                if answer is None:
                    raise ConnectionLost
                return answer
        except TimeoutError:
            raise TimedOut from None

    async def open(self, message: bytes, *, seconds: float | None) -> OpenResponse:
        """Send a GET and read the head of its answer, on a connection of its own."""
        connection = await self._connect()
        try:
            async with asyncio.timeout(seconds):
                connection.send(message)
                reader = ResponseReader()
                body = b""
                while reader.head is None:
                    data = await connection.receive()
                    if not data:
                        raise ConnectionLost
                    body = reader.feed(data)
        except BaseException as error:
            self._drop(connection)
            if isinstance(error, TimeoutError):
                raise TimedOut from None
            if isinstance(error, OSError):
                raise ConnectionLost from None
            raise
        self._in_use.discard(connection)
        return OpenResponse(connection, reader, reader.head, body)

    def move(self, address: Address) -> None:
        """Open further connections to another address. Requests and streams under way keep their connections."""
        if address != self.address:
            self.address = address
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def close(self) -> None:
        """Requests under way end with `ConnectionLost`. Streams belong to who opened them."""
        self._is_closed = True
        for connection in (*self._idle, *self._in_use):
            connection.close()
        self._idle.clear()

    def _kept(self) -> Connection | None:
        """A connection on which the server was heard of lately; the latest first."""
        now = asyncio.get_running_loop().time()
        while self._idle:
            connection = self._idle.pop()
            if connection.is_open and now - connection.idle_since < _IDLE_SECONDS:
                connection.in_use = True
                self._in_use.add(connection)
                return connection
            connection.close()
        return None

    def _keep(self, connection: Connection) -> None:
        self._in_use.discard(connection)
        if self._is_closed or len(self._idle) >= _MOST_IDLE:
            connection.close()
            return
        connection.in_use = False
        connection.idle_since = asyncio.get_running_loop().time()
        self._idle.append(connection)

    def _drop(self, connection: Connection) -> None:
        self._in_use.discard(connection)
        connection.close()

    async def _connect(self) -> Connection:
        if self._is_closed:
            raise ConnectionLost("This client is closed.")
        loop = asyncio.get_running_loop()
        address = self.address
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                if address.path:
                    _, connection = await loop.create_unix_connection(Connection, address.path)
                else:
                    _, connection = await loop.create_connection(Connection, address.host, address.port)
        except OSError as error:
            reason = (error.strerror or str(error) or "it does not answer").rstrip(".")
            raise Unreachable(f"No Holdfast server answers at {address}: {reason}.") from error
        connection.in_use = True
        self._in_use.add(connection)
        return connection

    async def _try(self, connection: Connection, message: bytes, method: str) -> Answer | None:
        """The answer, or None if the connection ended before a byte of it came."""
        reader = ResponseReader(method)
        body: list[bytes] = []
        is_kept = False
        try:
            connection.send(message)
            while not reader.is_done:
                data = await connection.receive()
                if data:
                    body.append(reader.feed(data))
                elif reader.has_begun:
                    reader.end()
                else:
                    return None
            is_kept = reader.can_be_kept
        except OSError:
            if reader.has_begun:
                raise ConnectionLost from None
            return None
        finally:
            if is_kept:
                self._keep(connection)
            else:
                self._drop(connection)
        if reader.head is None:
            raise BrokenResponse
        return Answer(reader.head, b"".join(body))
