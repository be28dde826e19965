"""Relays requests to the owner of a workspace, and its responses to the client.

Theory of operation. Each request looks up the owner in the store and opens a connection of its own: nothing is cached
that a takeover could make wrong, and a request is never lost on a stale connection. Only a
failed attempt to connect is repeated, and only if the store names another owner by then: nothing was sent, so this is
safe for every method. A request that was sent is not repeated, because the owner may have executed it.

Request and response are forwarded as they arrive; a slow reader on one side slows down the other one. Three things end
a relayed request: its response, the client that disconnects, and the owner that is replaced. The last one covers an
owner that is suspended, because the other nodes evict it within seconds; a network that is cut between two nodes is
found by probes of the kernel. So a command may run for hours, and no request waits for a dead node.

Nothing of the client's request is sent except method, route, parameters, declared query parameters and the body: no
header, so neither credentials nor cookies. A node never relays a request that another node has relayed.
"""

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlencode

import msgspec

from holdfast.cluster.ports import RelayTarget
from holdfast.domain.errors import BadRequest, HoldfastError, StorageError, StorageUnavailable, StorageUnknown
from holdfast.domain.ids import NodeId
from holdfast.http11.client_messages import ResponseHead, ResponseParser, quote, serialize_request
from holdfast.protocol.error_status import UnknownWorkspace
from holdfast.protocol.routes import ROUTES, Route
from holdfast.server.http.application import read_body
from holdfast.server.http.connection import Receive, RequestCycle, Scope, Send
from holdfast.server.http.listen import is_our_own
from holdfast.server.relay.relay_address import RelayAddress, parse_address
from holdfast.server.relay.served_routes import ACCEPTED, POLLED, SERVED_BY, SLOW
from holdfast.server.workspace_handle import WorkspaceHandle
from holdfast.server.workspace_manager import WorkspaceManager
from holdfast.tasks import TaskOwner

if TYPE_CHECKING:
    from holdfast.runtime.workspace_host import WorkspaceHost

__all__ = ["SENDER_HEADER", "NoOwner", "NotRelayed", "OutcomeUnknown", "OwnerAnswer", "OwnerUnreachable", "Relay"]

SENDER_HEADER = "holdfast-node"
"""The node that relays a request."""
_CONNECT_SECONDS = 2.0
_ANSWER_SECONDS = 3.0
"""Time for the answer to a request that this node can answer itself."""
_SLOW_SECONDS = 20.0
_OPEN_SECONDS = 2.0
"""Time that a request waits for this node to open a workspace that it has just claimed."""
_CHECK_SECONDS = 1.0
"""Interval at which a request that waits for its response checks that the owner is still the owner."""
_AVOID_SECONDS = 2.0
"""Time for which requests that this node can answer itself are not sent to a node that has not answered."""
_KEEP_SECONDS = 1.0
"""Time for which an answer to a route that clients poll is used again."""
_MAX_ANSWER = 32 * 1024 * 1024
_READ_SIZE = 64 * 1024
_REFUSED = (401, 403)
_PASSED_HEADERS = ("content-type", "content-length", "content-encoding", "cache-control", "vary", "retry-after")
_ROUTES = {route.name: route for route in ROUTES}
_log = logging.getLogger("holdfast.cluster")
T = TypeVar("T")


class OwnerUnreachable(StorageUnavailable):
    """The server that owns this workspace cannot be reached: try again in a moment."""


class NoOwner(StorageUnavailable):
    """No server owns this workspace at this moment: try again in a moment."""


class OutcomeUnknown(StorageUnknown):
    """The server that owns this workspace has ended before it responded: see whether the request had an effect."""


class NotRelayed(BadRequest):
    """Servers do not relay this route: send the request to any server as a client."""


class OwnerAnswer(msgspec.Struct, frozen=True):
    """The response of the owner to a request of a handler."""

    status: int
    body: bytes


class Relay:
    """Relays requests to the owners of workspaces, and admits requests that other nodes have relayed.

    `tls` verifies the certificates of other nodes; by default with the authorities of the system.
    """

    def __init__(self, manager: WorkspaceManager, tls: ssl.SSLContext | None = None) -> None:
        assert manager.host is not None, "only a cluster has other nodes"
        self._manager = manager
        self._host: WorkspaceHost = manager.host
        self._tls = tls
        self._avoided: dict[str, float] = {}
        """Nodes that did not answer, with the time until which they are avoided."""
        self._kept: dict[tuple[str, str], tuple[float, OwnerAnswer | None]] = {}
        """Cached answers to routes that clients poll, by workspace and route, with their expiry."""

    async def dispatch(
        self, route: Route, params: Mapping[str, str], query: Mapping[str, str], exchange: tuple[Scope, Receive, Send]
    ) -> Receive | None:
        """Relay a request if the owner has to answer it. Returns None if it was answered, or else the `receive` with
        which this node answers it.
        """
        scope, receive, send = exchange
        if "relayed_by" in scope:
            self._admit(route, params)
            return receive
        served_by = SERVED_BY[route.name]
        if served_by == "here" or "id" not in params:
            return receive
        try:
            handle = await self._manager.find(params["id"])
        except UnknownWorkspace:
            return receive
        if handle.is_local:
            return receive
        target = _target_of(route, params, query)
        if served_by == "owner":
            cycle: RequestCycle | None = scope.get("exchange")
            # Such a request may use its connection for an unlimited time.
            with cycle.connection.hold() if cycle is not None and route.ends_with_caller else nullcontext():
                return None if await self._pass_on(handle, route.method, target, receive, send) else receive
        body = await read_body(scope, receive)
        seconds = _SLOW_SECONDS if route.name in SLOW else _ANSWER_SECONDS
        if await self._try_pass_on(handle, (route.method, target, body), send, seconds):
            return None
        return _replay(body, receive)

    async def fetch(
        self, handle: WorkspaceHandle, name: str, params: Mapping[str, str], body: bytes = b""
    ) -> OwnerAnswer | None:
        """Return the response of the owner to a route, or None if there is none at once."""
        key, now = (handle.id, name), asyncio.get_running_loop().time()
        if name in POLLED and key in self._kept and self._kept[key][0] > now:
            return self._kept[key][1]
        answer = await self._fetch(handle, name, params, body)
        if name in POLLED:
            self._kept = {known: kept for known, kept in self._kept.items() if kept[0] > now}
            self._kept[key] = now + _KEEP_SECONDS, answer
        return answer

    async def _fetch(
        self, handle: WorkspaceHandle, name: str, params: Mapping[str, str], body: bytes
    ) -> OwnerAnswer | None:
        route = _ROUTES[name]
        owner = await self._reachable_owner(handle)
        if owner is None:
            return None
        target = _target_of(route, params, {})
        try:
            seconds = _SLOW_SECONDS if name in SLOW else _ANSWER_SECONDS
            async with asyncio.timeout(seconds), self._open(handle, owner, route.method, target) as connection:
                head, answer = await self._while_owned(handle, connection, _collect(connection, body))
        except (OSError, TimeoutError, HoldfastError):
            self._avoid(owner)
            return None
        return None if head.status in _REFUSED or head.status >= 500 else OwnerAnswer(head.status, answer)

    def _admit(self, route: Route, params: Mapping[str, str]) -> None:
        """Check a request that another node has relayed. It is answered here or refused, never relayed again."""
        if route.name not in ACCEPTED:
            raise NotRelayed
        try:
            handle = self._manager.handle(params["id"])
        except UnknownWorkspace:
            raise NoOwner from None
        if not handle.is_local:
            raise NoOwner

    async def _pass_on(self, handle: WorkspaceHandle, method: str, target: str, receive: Receive, send: Send) -> bool:
        """Relay a request. Returns False if this node has become the owner."""
        owner = await self._owner(handle)
        if owner is None:
            return False
        async with self._open(handle, owner, method, target) as connection:
            tasks = TaskOwner()
            leaving = tasks.start(_send_body(connection, receive), name="relay: request", done=_retrieve)
            losing = tasks.start(
                self._wait_until_replaced(handle, connection.owner), name="relay: owner", done=_retrieve
            )
            answering = tasks.start(_pass_response(connection, send), name="relay: response", done=_retrieve)
            try:
                await asyncio.wait((leaving, losing, answering), return_when=asyncio.FIRST_COMPLETED)
                if not answering.done():
                    if leaving.done() or connection.has_answered:
                        # The rest of the response has no reader, or will never come. The connection is aborted.
                        return True
                    raise OwnerUnreachable if method == "GET" else OutcomeUnknown
                answering.result()
            except OSError:
                if not connection.has_answered:
                    raise (OwnerUnreachable if method == "GET" else OutcomeUnknown) from None
            finally:
                tasks.cancel_all()
                await tasks.drain()
        return True

    async def _try_pass_on(
        self, handle: WorkspaceHandle, call: tuple[str, str, bytes], send: Send, seconds: float
    ) -> bool:
        """Relay a request that this node can answer itself. Returns False unless the owner has answered in time."""
        owner = await self._reachable_owner(handle)
        if owner is None:
            return False
        method, target, body = call
        async with AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(seconds):
                    connection = await stack.enter_async_context(self._open(handle, owner, method, target))
                    head = await self._while_owned(handle, connection, _head(connection, body))
            except (OSError, TimeoutError, StorageError):
                self._avoid(owner)
                return False
            if head.status in (*_REFUSED, 503):
                return False
            with suppress(OSError):
                # If it breaks off, the connection of the client is aborted.
                async with asyncio.timeout(_SLOW_SECONDS):
                    await _pass_response(connection, send)
        return True

    async def _owner(self, handle: WorkspaceHandle) -> RelayTarget | None:
        """Return the owner, or None if that is this node. Raises `StorageError`."""
        owner = await self._host.cluster.relay_target(handle.id)
        if owner is None:
            raise NoOwner
        if owner.node == self._host.membership.view.node:
            node = handle.node
            if node is None or not await node.wait_until(lambda: handle.is_local, _OPEN_SECONDS):
                raise NoOwner
            return None
        return owner

    async def _reachable_owner(self, handle: WorkspaceHandle) -> RelayTarget | None:
        """Return the owner. None if that is this node, if there is none, or if it has just failed to answer."""
        if handle.is_local:
            return None
        try:
            owner = await self._host.cluster.relay_target(handle.id)
        except StorageError:
            return None
        now = asyncio.get_running_loop().time()
        self._avoided = {node: until for node, until in self._avoided.items() if until > now}
        if owner is None or owner.node in self._avoided or owner.node == self._host.membership.view.node:
            return None
        return owner

    def _avoid(self, owner: RelayTarget) -> None:
        self._avoided[owner.node] = asyncio.get_running_loop().time() + _AVOID_SECONDS

    async def _while_owned(self, handle: WorkspaceHandle, connection: "_Connection", work: Coroutine[Any, Any, T]) -> T:
        """Return the result of `work`. Raises `OwnerUnreachable` if the owner is replaced first."""
        tasks = TaskOwner()
        working = tasks.start(work, name="relay: response", done=_retrieve)
        losing = tasks.start(self._wait_until_replaced(handle, connection.owner), name="relay: owner", done=_retrieve)
        try:
            await asyncio.wait((working, losing), return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise OwnerUnreachable
        finally:
            tasks.cancel_all()
            await tasks.drain()

    async def _wait_until_replaced(self, handle: WorkspaceHandle, node: NodeId) -> None:
        while True:
            await asyncio.sleep(_CHECK_SECONDS)
            with suppress(StorageError):
                now = await self._host.owner(handle.id)
                if now is None or now.node != node:
                    return

    @asynccontextmanager
    async def _open(
        self, handle: WorkspaceHandle, owner: RelayTarget, method: str, target: str
    ) -> AsyncIterator["_Connection"]:
        """Connect to the owner and send the head of a request. Raises `OwnerUnreachable`."""
        me = self._host.membership.view.node
        try:
            connection = await self._connect(owner, method)
        except OwnerUnreachable:
            now = await self._owner(handle)
            if now is None or now.node == owner.node:
                raise
            owner = now
            connection = await self._connect(owner, method)
        try:
            connection.send_head(target, str(me or ""))
            yield connection
        finally:
            connection.abort()

    async def _connect(self, owner: RelayTarget, method: str) -> "_Connection":
        address = parse_address(owner.address)
        if address is None:
            raise OwnerUnreachable(
                "The server that owns this workspace cannot be reached by other servers: start it with --relay."
            )
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                return _Connection(owner, address, method, await self._connected(address))
        except (FileNotFoundError, PermissionError):
            raise OwnerUnreachable(
                "The server that owns this workspace is on another machine or belongs to another user: start it with "
                "--relay."
            ) from None
        except ssl.SSLCertVerificationError as error:
            _log.error("the certificate of node %s is not trusted: %s", owner.node, error.verify_message)
            raise OwnerUnreachable(
                "The certificate of the server that owns this workspace is not trusted: start this one with --relay-ca."
            ) from None
        except (OSError, TimeoutError):
            raise OwnerUnreachable from None

    async def _connected(self, address: RelayAddress) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if address.path:
            reader, writer = await asyncio.open_unix_connection(address.path)
            if not is_our_own(writer.get_extra_info("socket")):
                writer.transport.abort()
                raise PermissionError
            return reader, writer
        if address.is_secure and self._tls is None:
            self._tls = await asyncio.to_thread(ssl.create_default_context)
        tls = self._tls if address.is_secure else None
        reader, writer = await asyncio.open_connection(address.host, address.port, ssl=tls)
        _probe_connection(writer.get_extra_info("socket"))
        return reader, writer


class _Connection:
    """A connection to the owner, for one request."""

    def __init__(
        self,
        owner: RelayTarget,
        address: RelayAddress,
        method: str,
        streams: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self.owner = owner.node
        self._token = owner.token
        self._address = address
        self._method = method
        self._reader, self._writer = streams
        self._parser = ResponseParser(method)
        self._body = b""
        self.has_answered = False
        """True if a part of the response was sent to the client."""

    def send_head(self, target: str, me: str) -> None:
        """Send request line and headers. The headers are our own; none is the client's. Raises `OwnerUnreachable`."""
        headers = [
            ("host", self._address.netloc),
            ("authorization", f"Bearer {self._token}"),
            (SENDER_HEADER, me),
            ("connection", "close"),
        ]
        if self._method != "GET":
            headers += [("content-type", "application/json"), ("transfer-encoding", "chunked")]
        try:
            head = serialize_request(self._method, target, headers)
        except ValueError:
            # The row of the node was changed by hand.
            raise OwnerUnreachable from None
        self._writer.write(head)

    async def send(self, piece: bytes) -> None:
        """Send a piece of the body; waits while the owner does not read."""
        if piece and self._method != "GET":
            self._writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await self._writer.drain()

    async def end(self) -> None:
        """End the body."""
        if self._method != "GET":
            self._writer.write(b"0\r\n\r\n")
            await self._writer.drain()

    async def head(self) -> ResponseHead:
        """Return status and headers."""
        while self._parser.head is None:
            await self._receive()
        return self._parser.head

    async def read(self) -> bytes:
        """Return the next piece of the body, empty at its end."""
        while not self._body and not self._parser.is_done:
            await self._receive()
        body, self._body = self._body, b""
        return body

    def abort(self) -> None:
        """Close the connection at once, which ends the request at the owner as a client that disconnects does."""
        self._writer.transport.abort()

    async def _receive(self) -> None:
        data = await self._reader.read(_READ_SIZE)
        if data:
            self._body += self._parser.feed(data)
        else:
            self._parser.end()


async def _send_body(connection: _Connection, receive: Receive) -> None:
    """Send the body of a request to the owner. Returns when the client has disconnected."""
    is_broken = False
    while (message := await receive())["type"] != "http.disconnect":
        # The owner may answer before it has read the body; the rest is then discarded.
        try:
            if not is_broken:
                await connection.send(message.get("body", b""))
                if not message.get("more_body"):
                    await connection.end()
        except OSError:
            is_broken = True


async def _write_body(connection: _Connection, body: bytes) -> None:
    for begin in range(0, len(body), _READ_SIZE):
        await connection.send(body[begin : begin + _READ_SIZE])
    await connection.end()


async def _pass_response(connection: _Connection, send: Send) -> None:
    """Send the response of the owner to the client.

    Raises `OSError` if it breaks off, and `OwnerUnreachable` if the owner refuses the token.
    """
    head = await connection.head()
    if head.status in _REFUSED:
        # The address leads to another server, or the owner has joined again under a new token.
        raise OwnerUnreachable
    headers = [
        (name.encode(), head.headers[name].encode("latin-1"))
        for name in _PASSED_HEADERS
        if name in head.headers and not (name == "content-length" and "transfer-encoding" in head.headers)
    ]
    connection.has_answered = True
    await send({"type": "http.response.start", "status": head.status, "headers": headers})
    while piece := await connection.read():
        await send({"type": "http.response.body", "body": piece, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _head(connection: _Connection, body: bytes) -> ResponseHead:
    await _write_body(connection, body)
    return await connection.head()


async def _collect(connection: _Connection, body: bytes) -> tuple[ResponseHead, bytes]:
    head = await _head(connection, body)
    pieces: list[bytes] = []
    size = 0
    while piece := await connection.read():
        size += len(piece)
        if size > _MAX_ANSWER:
            raise OwnerUnreachable
        pieces.append(piece)
    return head, b"".join(pieces)


def _target_of(route: Route, params: Mapping[str, str], query: Mapping[str, str]) -> str:
    """Return the request target, built from the route: a client cannot choose another path."""
    if any(value in ("", ".", "..") for value in params.values()):
        raise BadRequest("A part of the path is empty or consists of dots.")
    path = "/".join(quote(params[part[1:-1]]) if part.startswith("{") else part for part in route.full_path.split("/"))
    return f"{path}?{urlencode(query)}" if query else path


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that returns a body which was already read."""
    is_told = False

    async def again() -> dict[str, object]:
        nonlocal is_told
        if is_told:
            return dict(await receive())
        is_told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def _probe_connection(connection: socket.socket) -> None:
    """Let the kernel find out within some seconds that the other machine is gone."""
    options = (("SO_KEEPALIVE", 1), ("TCP_KEEPIDLE", 5), ("TCP_KEEPINTVL", 2), ("TCP_KEEPCNT", 3))
    for name, value in (*options, ("TCP_USER_TIMEOUT", 10_000)):
        if hasattr(socket, name):
            level = socket.SOL_SOCKET if name.startswith("SO_") else socket.IPPROTO_TCP
            connection.setsockopt(level, getattr(socket, name), value)


def _retrieve(task: asyncio.Task[Any]) -> None:
    """Mark the exception of a task as retrieved; the caller raises that of the response."""
    if not task.cancelled():
        task.exception()
