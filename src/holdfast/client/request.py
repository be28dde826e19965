"""Request layer: connections to a server, and calls of the route table with encoded and decoded bodies.

With several addresses, which belong to one server or cluster, a request that a server cannot process is sent to the
others in turn (`failover.py`). The address that works is preferred from then on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar
from weakref import WeakSet

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
from holdfast.client.failover import Round, can_move_on
from holdfast.client.server_address import QueryItems, ServerAddress, build_request, fill
from holdfast.domain.approvals import Via
from holdfast.http11.client_connection import ClientConnection, ConnectionPool, Origin
from holdfast.http11.client_messages import IDEMPOTENT, ConnectionBroken, InvalidResponse, ResponseHead
from holdfast.protocol.routes import ROUTES, Route

__all__ = ["ALTERNATIVE_TIMEOUT", "OpenResponse", "Response", "RouteMethods", "ServerConnections"]


_MAX_IDLE = 4
_IDLE_TIMEOUT = 30.0
"""Shorter than the server's, so that a request does not race with the closing of its connection."""
_CONNECT_TIMEOUT = 10.0
ALTERNATIVE_TIMEOUT = 3.0
"""Maximum seconds for a connection, and for a check, if there is another address."""


class Response(msgspec.Struct, frozen=True):
    """A complete response."""

    head: ResponseHead
    body: bytes


class OpenResponse:
    """A response whose body is still being received. Its connection is not reused."""

    def __init__(self, connection: ClientConnection, head: ResponseHead, address: ServerAddress | None = None) -> None:
        self.head = head
        self.address = address
        self._connection = connection

    async def read(self) -> bytes | None:
        """Return the next bytes of the body, or None at its end. Raises `ConnectionLost`."""
        try:
            return await self._connection.read() or None
        except ConnectionBroken:
            self.close()
            raise ConnectionLost("The stream of events broke off.") from None

    def close(self) -> None:
        """Close the connection."""
        self._connection.abort()


class ServerConnections:
    """Connections to one server, or to the servers of a cluster. Maps errors of HTTP to those of the client."""

    def __init__(self, address: ServerAddress, alternatives: Sequence[ServerAddress] = ()) -> None:
        self.addresses = (address, *alternatives)
        self.address = address
        """The address that is preferred."""
        self._pool = ConnectionPool(keep_seconds=_IDLE_TIMEOUT, max_idle=_MAX_IDLE)
        self._streams: WeakSet[OpenResponse] = WeakSet()
        self._is_closed = False

    @property
    def has_alternatives(self) -> bool:
        """True if requests can be sent to another address."""
        return len(self.addresses) > 1

    async def exchange(
        self,
        message: bytes,
        *,
        method: str,
        can_repeat: bool,
        seconds: float | None,
        address: ServerAddress | None = None,
    ) -> Response:
        """Send a request, to the preferred address by default, and return its response.

        An idle connection that turns out to be closed is replaced once if the request can be repeated safely. Otherwise
        `ConnectionLost` is raised, because the server may have processed the request.
        """
        address = address or self.address
        try:
            async with asyncio.timeout(seconds):
                idle = self._pool.pop_idle(_origin_of(address))
                if idle is not None:
                    response = await _exchange(idle, message, method)
                    if response is not None:
                        return response
                    if not can_repeat:
                        raise ConnectionLost
                response = await _exchange(await self._connect(address), message, method)
                if response is None:
                    raise ConnectionLost
                return response
        except TimeoutError:
            raise TimedOut from None

    async def open(
        self, message: bytes, *, seconds: float | None, address: ServerAddress | None = None
    ) -> OpenResponse:
        """Send a GET request and read the head of the response, on a separate connection."""
        address = address or self.address
        connection = await self._connect(address)
        try:
            async with asyncio.timeout(seconds):
                connection.send((message,), method="GET")
                head = await connection.head()
        except BaseException as error:
            connection.abort()
            if isinstance(error, TimeoutError):
                raise TimedOut from None
            if isinstance(error, InvalidResponse):
                raise BrokenResponse from None
            if isinstance(error, ConnectionBroken):
                raise ConnectionLost from None
            raise
        # From here on the stream is closed by its owner, also after this client.
        self._pool.forget(connection)
        response = OpenResponse(connection, head, address)
        self._streams.add(response)
        return response

    def move(self, address: ServerAddress) -> None:
        """Open further connections to another address. Requests and streams in progress keep their connections."""
        if address != self.address:
            self.address = address
            self._pool.close_idle()

    def prefer(self, address: ServerAddress) -> None:
        """Send further requests to another of the addresses. Streams of the earlier one break, and resume here."""
        if address != self.address:
            self.move(address)
            for stream in [*self._streams]:
                if stream.address != address:
                    stream.close()

    def close(self) -> None:
        """Close idle and busy connections. Requests in progress raise `ConnectionLost`; streams are closed by their
        owners.
        """
        self._is_closed = True
        self._pool.close()

    async def _connect(self, address: ServerAddress) -> ClientConnection:
        if self._is_closed:
            raise ConnectionLost("This client is closed.")
        try:
            timeout = ALTERNATIVE_TIMEOUT if self.has_alternatives else _CONNECT_TIMEOUT
            return await self._pool.connect(_origin_of(address), None, timeout)
        except OSError as error:
            if self._is_closed:
                raise ConnectionLost("This client is closed.") from None
            # A timeout is an OSError without a text.
            reason = str(error) or "it does not answer"
            raise Unreachable(f"No Holdfast server answers at {address}: {reason}.", reason=reason) from error


async def _exchange(connection: ClientConnection, message: bytes, method: str) -> Response | None:
    """Return the response, or None if the connection ended before its first byte."""
    body: list[bytes] = []
    try:
        connection.send((message,), method=method)
        head = await connection.head()
        while data := await connection.read():
            body.append(data)
    except InvalidResponse:
        connection.abort()
        raise BrokenResponse from None
    except ConnectionBroken:
        if connection.has_received:
            raise ConnectionLost from None
        return None
    except BaseException:
        # Cancelled: the response may still come, so the connection cannot be reused.
        connection.abort()
        raise
    connection.release()
    return Response(head, b"".join(body))


def _origin_of(address: ServerAddress) -> Origin:
    return Origin(address.host, address.port, path=address.path)


T = TypeVar("T")

_BY_NAME: dict[str, Route] = {route.name: route for route in ROUTES}
_JSON = (("Accept", "application/json"),)


class RouteMethods:
    """Base class of the client methods. `seconds` is the time limit for a response."""

    def __init__(
        self,
        address: ServerAddress,
        alternatives: Sequence[ServerAddress] = (),
        *,
        client_id: str,
        via: Via,
        seconds: float,
    ) -> None:
        self.client_id = client_id
        self.via = via
        self._pool = ServerConnections(address, alternatives)
        self._seconds: float | None = seconds
        self._encoder = msgspec.json.Encoder()
        self._decoders: dict[str, msgspec.json.Decoder[Any]] = {}

    @property
    def address(self) -> ServerAddress:
        """The address of the server; of several the one that is used now."""
        return self._pool.address

    @address.setter
    def address(self, address: ServerAddress) -> None:
        """Send further requests to another address, for example after a restart of the server."""
        self._pool.move(address)

    async def _call(
        self, answer: type[T], name: str, *, query: QueryItems = (), body: object = None, **names: str
    ) -> T:
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
        can_repeat = can_repeat or _BY_NAME[name].method in IDEMPOTENT
        seconds = None if is_patient else self._seconds

        async def send(address: ServerAddress) -> bytes:
            return await self._send_to(
                address, name, names, query=query, body=body, can_repeat=can_repeat, seconds=seconds
            )

        return await self._attempt(send, can_repeat=can_repeat)

    async def _send_to(  # noqa: PLR0913 - the parts of a request
        self,
        address: ServerAddress,
        name: str,
        names: Mapping[str, str],
        *,
        query: QueryItems = (),
        body: object = None,
        can_repeat: bool = True,
        seconds: float | None = ALTERNATIVE_TIMEOUT,
    ) -> bytes:
        """Call a route at one address."""
        route = _BY_NAME[name]
        message = build_request(
            address,
            route.method,
            fill(route.full_path, names),
            query,
            None if body is None else self._encoder.encode(body),
            _JSON,
        )
        answer = await self._pool.exchange(
            message, method=route.method, can_repeat=can_repeat, seconds=seconds, address=address
        )
        if not 200 <= answer.head.status < 300:
            raise ServerProblem(answer.head.status, message_of(answer.body))
        return answer.body

    async def _attempt(self, send: Callable[[ServerAddress], Awaitable[T]], *, can_repeat: bool) -> T:
        """Send a request to the preferred address and, if its server cannot process it, to the others in turn.

        Raises `AllFailed` after the last one.
        """
        pool = self._pool
        if not pool.has_alternatives:
            return await send(pool.address)
        attempts = Round(pool.addresses, pool.address)
        while True:
            address = attempts.address
            try:
                if address != pool.address:
                    # A server that hangs accepts connections, too.
                    await self._check_health(address)
                await self._join_again(address)
                value = await send(address)
            except ClientError as error:
                if not can_move_on(error, can_repeat=can_repeat):
                    raise
                attempts.fail(error)
            else:
                pool.prefer(address)
                return value

    async def _join_again(self, address: ServerAddress) -> None:
        """Open the workspaces of this client at another server before the first request there."""

    async def _check_health(self, address: ServerAddress) -> None:
        """Raise `ClientError` unless the server at an address responds and can store data."""
        await self._send_to(address, "health", {})

    async def _find_better(self, current: ServerAddress) -> bool:
        """Return whether another server is preferred now, because the current one is not healthy and it is."""
        for address in (current, *(item for item in self._pool.addresses if item != current)):
            try:
                await self._check_health(address)
            except ClientError:
                continue
            self._pool.prefer(address)
            return address != current
        return False

    def _decode(self, answer: type[T], name: str, raw: bytes) -> T:
        decoder = self._decoders.get(name)
        if decoder is None:
            decoder = self._decoders[name] = msgspec.json.Decoder(answer)
        try:
            value: T = decoder.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise BrokenResponse(f"The server's response to {name} cannot be decoded.") from None
        return value
