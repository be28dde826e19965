"""Request layer: calls a route of the route table, and encodes and decodes its bodies."""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any, TypeVar, cast

import msgspec

from holdfast.client.errors import (
    BrokenResponse,
    ClientError,
    ConnectionLost,
    ServerProblem,
    TimedOut,
    Unreachable,
    message_of,
)
from holdfast.client.http_messages import IDEMPOTENT, Address, Head, QueryItems, ResponseReader, build_request, fill
from holdfast.domain.approvals import Via
from holdfast.protocol.routes import ROUTES, Route

__all__ = ["Connection", "ConnectionPool", "OpenResponse", "Response", "RouteMethods"]


# Connection pool of the asynchronous client, for one server.

_MOST_IDLE = 4
_IDLE_SECONDS = 30.0
"""Idle timeout in seconds. Shorter than the server's, so that a request does not race with the closing of its
connection.
"""
_CONNECT_SECONDS = 10.0
_MOST_UNREAD = 256 * 1024


class Response(msgspec.Struct, frozen=True):
    """A complete response."""

    head: Head
    body: bytes


class Connection(asyncio.Protocol):
    """One connection. Reading pauses while its consumer does not keep up."""

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
        """Store the transport."""
        self._transport = cast(asyncio.Transport, transport)
        self.is_open = True

    def data_received(self, data: bytes) -> None:
        """Queue received data. Unexpected data closes the connection."""
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
        """Record the end of the connection and wake the reader."""
        self.is_open = False
        self._error = exc
        self._wake()

    def send(self, message: bytes) -> None:
        """Write a request."""
        if self._transport is not None and self.is_open:
            self._transport.write(message)

    async def receive(self) -> bytes:
        """Return the next data, or nothing at the end of the connection. Raises the error that broke it."""
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
        """Abort the connection. Unsent and unread data is dropped."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class OpenResponse:
    """A response whose body is still being received. Its connection is not reused."""

    def __init__(self, connection: Connection, reader: ResponseReader, head: Head, begun: bytes) -> None:
        self.head = head
        self._connection = connection
        self._reader = reader
        self._begun = begun

    async def read(self) -> bytes | None:
        """Return the next bytes of the body, possibly none, or None at its end. Raises `ConnectionLost`."""
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
        """Close the connection."""
        self._connection.close()


class ConnectionPool:
    """Opens connections and keeps a few idle ones. Connections in use are not limited: each belongs to a waiting
    caller.
    """

    def __init__(self, address: Address) -> None:
        self.address = address
        self._idle: list[Connection] = []
        self._in_use: set[Connection] = set()
        self._is_closed = False

    async def exchange(self, message: bytes, *, method: str, can_repeat: bool, seconds: float | None) -> Response:
        """Send a request and return its response.

        An idle connection that turns out to be closed is replaced once if the request can be repeated safely. Otherwise
        `ConnectionLost` is raised, because the server may have processed the request.
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
        """Send a GET request and read the head of the response, on a separate connection."""
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
        """Open further connections to another address. Requests and streams in progress keep their connections."""
        if address != self.address:
            self.address = address
            for connection in self._idle:
                connection.close()
            self._idle.clear()

    def close(self) -> None:
        """Close idle and busy connections. Requests in progress raise `ConnectionLost`; streams are closed by their
        owners.
        """
        self._is_closed = True
        for connection in (*self._idle, *self._in_use):
            connection.close()
        self._idle.clear()

    def _kept(self) -> Connection | None:
        """Return the most recently used idle connection that has not timed out."""
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
        # From now on any received data is unexpected and closes the connection.
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

    async def _try(self, connection: Connection, message: bytes, method: str) -> Response | None:
        """Return the response, or None if the connection ended before its first byte."""
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
        return Response(reader.head, b"".join(body))


# Request layer: calls a route of the route table, and encodes and decodes its bodies.

T = TypeVar("T")

_BY_NAME: dict[str, Route] = {route.name: route for route in ROUTES}
_JSON = (("Accept", "application/json"),)


class RouteMethods:
    """Base class of the client methods. `seconds` is the time limit for a response."""

    def __init__(self, address: Address, *, client_id: str, via: Via, seconds: float) -> None:
        self.client_id = client_id
        self.via = via
        self._pool = ConnectionPool(address)
        self._seconds: float | None = seconds
        self._encoder = msgspec.json.Encoder()
        self._decoders: dict[str, msgspec.json.Decoder[Any]] = {}

    @property
    def address(self) -> Address:
        """The address of the server."""
        return self._pool.address

    @address.setter
    def address(self, address: Address) -> None:
        """Send further requests to another address, for example after a restart of the server."""
        self._pool.move(address)

    async def _ask(self, answer: type[T], name: str, *, query: QueryItems = (), body: object = None, **names: str) -> T:
        """Call a route that returns a body."""
        return self._decode(answer, name, await self._exchange(name, names, query=query, body=body))

    async def _send(self, name: str, *, query: QueryItems = (), body: object = None, **names: str) -> None:
        """Call a route that returns only a status."""
        await self._exchange(name, names, query=query, body=body)

    async def _exchange(
        self,
        name: str,
        names: Mapping[str, str],
        *,
        query: QueryItems = (),
        body: object = None,
        can_repeat: bool = False,
        is_patient: bool = False,
    ) -> bytes:
        """Call a route and return the raw body. Every 2xx status counts as success, regardless of the route table."""
        route = _BY_NAME[name]
        message = build_request(
            self.address,
            route.method,
            fill(route.full_path, names),
            query,
            None if body is None else self._encoder.encode(body),
            _JSON,
        )
        answer = await self._pool.exchange(
            message,
            method=route.method,
            can_repeat=can_repeat or route.method in IDEMPOTENT,
            seconds=None if is_patient else self._seconds,
        )
        if not 200 <= answer.head.status < 300:
            raise ServerProblem(answer.head.status, message_of(answer.body))
        return answer.body

    def _decode(self, answer: type[T], name: str, raw: bytes) -> T:
        decoder = self._decoders.get(name)
        if decoder is None:
            decoder = self._decoders[name] = msgspec.json.Decoder(answer)
        try:
            value: T = decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise BrokenResponse(f"The server answered {name} with something that cannot be read.") from None
        return value
