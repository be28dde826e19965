"""HTTP/1.1 server: the connection and the listener. httptools parses requests; the application is ASGI.

Theory of operation. A `Connection` is an asyncio protocol. The parser calls `on_*`, which append to a queue of
exchanges (one request with its response). Only the first exchange is passed to the application; pipelined requests
wait, so responses keep the order of the requests. When a response ends, `_next` starts the following exchange.

Flow control works in both directions. A client that does not read fills the transport's buffer: `is_full` is set and
only the task that writes to this connection waits in `room`. A client that sends faster than it is served is not read
from (`update_reading`): while a second request is queued, while more than `_MAX_UNREAD_BODY` bytes of a body are
unread, or while the buffer is full. A body that the application does not read is received and discarded.

Time and size are bounded. A head larger than `_MAX_HEAD_BYTES` aborts the connection; `_silent` counts bytes for which
the parser made no callback, because it buffers a partial header without a limit. The idle timer runs without a
complete request and after the last response; bytes of a partial head do not extend it, bytes of a body do. The number
of connections is capped below the limit of descriptors (`ConnectionLimits`).

A half-closed connection (`nc -N`) still receives the responses to its complete requests. A disconnected client looks
the same to the kernel in most cases, so `_poll_for_hangup` polls for it twice a second.

Bytes that are not HTTP end the connection: with a 400 if no response has begun, otherwise after the current response
or at once, so that two responses are never mixed. See docs/decisions/0012.
"""

import asyncio
import resource
import socket
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from itertools import chain
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar, cast

import httptools

from holdfast.protocol.error_status import TooManyStreams
from holdfast.server.http.listen import is_hung_up, is_our_own
from holdfast.server.http.request_cycle import NOT_HTTP, Asgi, Message, Receive, RequestCycle, Scope, Send
from holdfast.tasks import TaskOwner

if TYPE_CHECKING:
    from ssl import SSLContext

__all__ = [
    "Asgi",
    "ConnectionLimits",
    "HttpServer",
    "Limited",
    "Message",
    "Receive",
    "RequestCycle",
    "Scope",
    "Send",
]


_MAX_DESCRIPTORS = 65_536
_RESERVED = 8
"""One of this many connections is reserved for short requests."""


class Limited(Protocol):
    """The properties of a connection that the limits depend on."""

    is_local: bool

    @property
    def is_unasked(self) -> bool:
        """True if no request is being answered."""

    @property
    def is_incomplete(self) -> bool:
        """True if a part of the request has not arrived."""


C = TypeVar("C", bound=Limited)


class ConnectionLimits(Generic[C]):
    """The open connections, in the order in which they last received data."""

    def __init__(self) -> None:
        descriptors = _descriptors()
        # The rest is for files, processes and connections to providers.
        self._max = {True: descriptors // 2, False: descriptors // 4}
        self._open: dict[bool, dict[C, None]] = {True: {}, False: {}}
        self._held = {True: 0, False: 0}

    def __iter__(self) -> Iterator[C]:
        return iter((*self._open[True], *self._open[False]))

    def __bool__(self) -> bool:
        return any(self._open.values())

    def add(self, connection: C) -> C | None:
        """Add a connection. Above the limit, returns the connection to close: of those without a complete request the
        one that has received no data for the longest time, which may be the new one.
        """
        alike = self._open[connection.is_local]
        alike[connection] = None
        if len(alike) <= self._max[connection.is_local]:
            return None
        # Dicts keep insertion order, and `touch` moves a connection to the end.
        last = next((other for other in alike if other.is_unasked or other.is_incomplete), connection)
        del alike[last]
        return last

    def touch(self, connection: C) -> None:
        """Record that a connection has received data."""
        alike = self._open[connection.is_local]
        if connection in alike:
            del alike[connection]
            alike[connection] = None

    def remove(self, connection: C) -> None:
        """Remove a closed connection."""
        self._open[connection.is_local].pop(connection, None)

    @contextmanager
    def hold(self, connection: C) -> Iterator[None]:
        """Use a connection for a long request. Raises `TooManyStreams` if the rest is reserved for short ones."""
        kind = connection.is_local
        if self._held[kind] >= self._max[kind] - max(1, self._max[kind] // _RESERVED):
            raise TooManyStreams
        self._held[kind] += 1
        try:
            yield
        finally:
            self._held[kind] -= 1


def _descriptors() -> int:
    """Return the maximum number of descriptors of the process."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MAX_DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _MAX_DESCRIPTORS)


_KEEP_ALIVE_SECONDS = 90.0
_HANGUP_POLL_SECONDS = 0.5
"""Interval at which a half-closed connection is checked for a disconnected client."""
_MAX_HEAD_BYTES = 64 * 1024
_MAX_UNREAD_BODY = 64 * 1024


class Connection(asyncio.Protocol):
    """One client connection. Over the unix socket only the server's own user is accepted.

    The family of the server's own socket decides whether a request came over the unix socket. The peer's name is not
    used: a connection that was reset has none.
    """

    transport: asyncio.Transport

    def __init__(self, server: "HttpServer", application: Asgi) -> None:
        self.loop = server.loop
        self.application = application
        self.is_full = False
        self._server = server
        self._parser = httptools.HttpRequestParser(self)
        self._exchanges: deque[RequestCycle] = deque()
        self._client: tuple[str, int] | None = None
        self._url = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._size = 0
        self._silent = 0
        self._has_moved = False
        self._is_nearer = False
        self._is_paused = False
        self._is_leaving = False
        self._has_ended = False
        self._watch: asyncio.TimerHandle | None = None
        self._idle: asyncio.TimerHandle | None = None
        self._room: asyncio.Future[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the connection, or abort it if the unix peer is another user."""
        self.transport = cast("asyncio.Transport", transport)
        connection = transport.get_extra_info("socket")
        self.is_local = connection is not None and connection.family == socket.AF_UNIX
        if not self.is_local:
            name = transport.get_extra_info("peername")
            self._client = (str(name[0]), int(name[1])) if isinstance(name, tuple) and len(name) > 1 else ("", 0)
        elif not is_our_own(connection):
            self.transport.abort()
        self._server.register(self)
        self._start_idle_timer()

    def connection_lost(self, _: Exception | None) -> None:
        """Release everything that waits for the connection."""
        self._server.unregister(self)
        self._stop_idle_timer()
        if self._watch is not None:
            self._watch.cancel()
        self.resume_writing()
        for exchange in self._exchanges:
            exchange.is_over = True
            exchange.wake()

    def data_received(self, data: bytes) -> None:
        """Feed received bytes to the parser and restart or stop the idle timer."""
        self._server.connections.touch(self)
        self._has_moved = self._is_nearer = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            # The bytes that follow belong to another protocol, which is not supported.
            self._pause(is_wanted=True)
        except httptools.HttpParserError:
            self._refuse()
        # The parser buffers a partial header without a limit.
        self._silent = 0 if self._has_moved else self._silent + len(data)
        if self._silent > _MAX_HEAD_BYTES:
            self.abort()
        elif not self.is_unasked and self._exchanges[-1].is_whole:
            self._stop_idle_timer()
        elif self._is_nearer or self._idle is None:
            self._start_idle_timer()

    @property
    def is_unasked(self) -> bool:
        """Return True if no response is pending: no request, or the current response has been handed over."""
        return not self._exchanges or self._exchanges[0].is_over

    @property
    def is_incomplete(self) -> bool:
        """Return True if a part of the current request has not arrived."""
        return bool(self._exchanges) and not self._exchanges[0].is_whole

    def hold(self) -> AbstractContextManager[None]:
        """Use the connection for a long request. Raises `TooManyStreams`."""
        return self._server.connections.hold(self)

    def eof_received(self) -> bool:
        """Keep the connection open if complete requests still have responses to come. An incomplete request is
        dropped.
        """
        if self._exchanges and not self._exchanges[-1].is_whole:
            if len(self._exchanges) == 1:
                return False
            self._exchanges.pop()
        if self.is_unasked:
            return False
        self._stop_idle_timer()
        self._exchanges[-1].keeps = False
        self._has_ended = True
        self._poll_for_hangup()
        return not self.transport.is_closing()

    def _poll_for_hangup(self) -> None:
        """Check whether the client of a half-closed connection has disconnected, and abort the connection if
        so.

        Where the kernel cannot distinguish the two, a heartbeat is written to a stream, which fails if the client has
        disconnected. A request that is cancelled with its caller and writes nothing until it is done is aborted.
        """
        hung_up = is_hung_up(self.transport.get_extra_info("socket"))
        head = self._exchanges[0] if self._exchanges else None
        if hung_up is None and head is not None and head.probe:
            head.write_probe()
        elif hung_up or (hung_up is None and head is not None and head.is_watched):
            self.abort()
        if not self.transport.is_closing():
            self._watch = self.loop.call_later(_HANGUP_POLL_SECONDS, self._poll_for_hangup)

    # Callbacks of the parser.

    def on_message_begin(self) -> None:
        """Reset the state of the request that is being parsed."""
        self._url, self._headers, self._size = b"", [], 0
        self._has_moved = self._is_nearer = True

    def on_url(self, url: bytes) -> None:
        """Collect the request target."""
        self._url += url
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header, with its name in lower case."""
        self._headers.append((name.lower(), value))
        self._count(len(name) + len(value))

    def _count(self, size: int) -> None:
        self._has_moved = True
        self._size += size
        if self._size > _MAX_HEAD_BYTES:
            self.abort()

    def on_headers_complete(self) -> None:
        """Queue the request, and start it if no other one is being answered."""
        url = httptools.parse_url(self._url)
        method, version = self._parser.get_method().decode("ascii"), self._parser.get_http_version()
        path = url.path or b""
        scope: Scope = {
            "type": "http",
            "http_version": version,
            "method": method,
            "target": self._url,
            "path": path.decode("latin-1"),
            "raw_path": path,
            "query_string": url.query or b"",
            "headers": self._headers,
            "client": self._client,
        }
        # `100 Continue` is sent only when the application reads the body, so that a refused request sends none.
        waits = any(name == b"expect" and value.lower() == b"100-continue" for name, value in self._headers)
        keeps = self._parser.should_keep_alive() and not self._parser.should_upgrade() and not self._is_leaving
        exchange = RequestCycle(self, scope, keeps=keeps, waits=waits)
        self._is_nearer = True
        # Trailers after the body are ignored; they must not be added to the headers of the request.
        self._headers = []
        self._exchanges.append(exchange)
        # Only one request of a connection is answered at a time; the others wait in order.
        if self._exchanges[0] is exchange:
            self._server.answer(exchange)
        self.update_reading()

    def on_body(self, body: bytes) -> None:
        """Pass a piece of the body to the exchange; discard it if the response is complete."""
        self._has_moved = True
        exchange = self._exchanges[-1] if self._exchanges else None
        if exchange is not None and not exchange.is_over:
            exchange.pieces.append(body)
            exchange.size += len(body)
            exchange.wake()
            self._is_nearer = True
            self.update_reading()

    def on_message_complete(self) -> None:
        """Mark the request as complete. Start the next one if its response has already been sent."""
        self._has_moved = self._is_nearer = True
        if self._exchanges:
            self._exchanges[-1].is_whole = True
            self._exchanges[-1].wake()
            if self._exchanges[0].is_over:
                self._next()

    # Called by the exchange.

    def write(self, data: bytes) -> None:
        """Write to the transport unless it is closing."""
        if data and not self.transport.is_closing():
            self.transport.write(data)

    async def room(self) -> None:
        """Wait until the client has read enough of the write buffer."""
        if self.is_full:
            if self._room is None:
                self._room = self.loop.create_future()
            # Several tasks may wait for the same room; cancelling one must not wake the others.
            await asyncio.shield(self._room)

    def update_reading(self) -> None:
        """Stop reading from a client that sends faster than it is served or does not read its responses."""
        last = self._exchanges[-1] if self._exchanges else None
        is_ahead = self.is_full or len(self._exchanges) > 1 or (last is not None and last.size > _MAX_UNREAD_BODY)
        self._pause(is_wanted=is_ahead)

    def finish(self, exchange: RequestCycle) -> None:
        """Called when the response is complete. The rest of an incomplete request is received and discarded."""
        exchange.pieces.clear()
        exchange.size = 0
        exchange.wake()
        if not exchange.keeps or self._is_leaving:
            self._start_idle_timer()
            self.transport.close()
        elif exchange.is_whole:
            self._next()
        else:
            self._start_idle_timer()
            self.update_reading()

    def _next(self) -> None:
        self._exchanges.popleft()
        if self._exchanges:
            self._server.answer(self._exchanges[0])
        else:
            self._start_idle_timer()
        self.update_reading()

    def abort(self) -> None:
        """Close the connection at once; buffered output is dropped."""
        self.transport.abort()

    def leave(self) -> None:
        """Close the connection now, or after the pending responses."""
        self._is_leaving = True
        if not self._exchanges:
            self.transport.close()
        for exchange in self._exchanges:
            exchange.keeps = False

    # Callbacks of the transport.

    def pause_writing(self) -> None:
        """Called when the write buffer is full."""
        self.is_full = True

    def resume_writing(self) -> None:
        """Wake the writers that wait in `room`."""
        self.is_full = False
        if self._room is not None:
            self._room.set_result(None)
            self._room = None
        if self._is_paused:
            self.update_reading()

    def _pause(self, *, is_wanted: bool) -> None:
        if is_wanted != self._is_paused and not self._has_ended and not self.transport.is_closing():
            self._is_paused = is_wanted
            if is_wanted:
                self.transport.pause_reading()
            else:
                self.transport.resume_reading()

    def _start_idle_timer(self) -> None:
        """(Re)start the idle timeout: no request, an incomplete request, or an unread response.

        Bytes of a partial head do not extend it; bytes of a body do.
        """
        self._stop_idle_timer()
        unread = self.transport.get_write_buffer_size()
        self._idle = self.loop.call_later(_KEEP_ALIVE_SECONDS, self._idle_timeout, unread)

    def _idle_timeout(self, before: int) -> None:
        unread = self.transport.get_write_buffer_size()
        # While reading is paused for a pending response, the server is the slow side, so the client is not timed out.
        is_our_turn = self._is_paused and not self.is_unasked
        if not unread and not is_our_turn:
            self.transport.close()
        elif unread < before or is_our_turn:
            self._start_idle_timer()
        else:
            self.abort()

    def _stop_idle_timer(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None

    def _refuse(self) -> None:
        """Handle bytes that are not HTTP. The parser cannot continue, and a response in progress must not be mixed with
        a 400.
        """
        if not self._exchanges:
            self.write(NOT_HTTP)
            self.transport.close()
        elif self._exchanges[-1].is_whole:
            self._pause(is_wanted=True)
            self._exchanges[-1].keeps = False
        elif len(self._exchanges) == 1 and self._exchanges[0].break_off():
            self.write(NOT_HTTP)
            self.transport.close()
        else:
            self.transport.abort()


class HttpServer:
    """Serves ASGI applications on sockets that the caller has bound."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.connections: ConnectionLimits[Connection] = ConnectionLimits()
        self._tasks = TaskOwner()
        self._servers: dict[Asgi, list[asyncio.Server]] = {}
        self._empty: asyncio.Future[None] | None = None

    async def listen(self, listener: socket.socket, application: Asgi, tls: "SSLContext | None" = None) -> None:
        """Serve an application on a socket. The web page has another application than the API, and so have the other
        nodes of a cluster.
        """
        # The first connection may be reported before `create_server` returns.
        self._servers.setdefault(application, [])
        server = await self.loop.create_server(
            lambda: Connection(self, application), sock=listener, backlog=2048, ssl=tls
        )
        self._servers.setdefault(application, []).append(server)

    def leave(self, application: Asgi) -> None:
        """Stop serving this application and abort its connections."""
        for server in self._servers.pop(application, ()):
            server.close()
        self.abort_connections(application)

    def abort_connections(self, application: Asgi) -> None:
        """Abort the connections of an application."""
        for connection in tuple(self.connections):
            if connection.application is application:
                connection.abort()

    def answer(self, exchange: RequestCycle) -> None:
        """Start the task that answers a request."""
        self._tasks.start(exchange.run(exchange.connection.application), name="request")

    def register(self, connection: Connection) -> None:
        """Register a connection, and abort the one that has to make room for it.

        The event loop accepts a connection some iterations before it reports it. One that was accepted before `stop`
        or `leave` and is reported afterwards is aborted, because nothing else would close it.
        """
        last = self.connections.add(connection)
        if last is not None:
            last.abort()
        if self._empty is not None or connection.application not in self._servers:
            connection.abort()

    def unregister(self, connection: Connection) -> None:
        """Remove a closed connection, and wake `stop` after the last one."""
        self.connections.remove(connection)
        if self._empty is not None and not self._empty.done() and not self.connections:
            self._empty.set_result(None)

    async def stop(self, last_words: float) -> None:
        """Stop accepting, finish pending responses, then abort connections after `last_words` seconds."""
        for server in chain.from_iterable(self._servers.values()):
            server.close()
        for connection in self.connections:
            connection.leave()
        self._empty = self.loop.create_future()
        if self.connections:
            abort_timer = self.loop.call_later(last_words, self._abort_all)
            await self._empty
            abort_timer.cancel()
        # No client is connected any more, and a request may wait for an event that never occurs.
        self._tasks.cancel_all()
        await self._tasks.drain()
        # A request may have opened the port of the web page in the meantime.
        for server in chain.from_iterable(self._servers.values()):
            server.close()

    def _abort_all(self) -> None:
        for connection in self.connections:
            connection.abort()
