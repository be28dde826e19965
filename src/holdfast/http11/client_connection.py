"""Persistent HTTP/1.1 connections on asyncio, their pool, and the supervision of requests.

A chunk passes from the socket to its reader in one step, and a connection can be aborted synchronously at any time.
There is no lock and no task: the event loop calls `data_received`, which parses and wakes the reader.

A connection is *idle* (in the pool, no parser), *in use* (a request was sent, its response is incomplete) or
*abandoned* (its reader has enough; the rest of the response is discarded for a moment, because reuse saves a TLS
handshake). Bytes received while it is idle are unsolicited and close it.
"""

import asyncio
import errno
import re
import ssl
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol, cast

from holdfast.http11.client_messages import ConnectionBroken, InvalidResponse, ResponseHead, ResponseParser

__all__ = [
    "Abortable",
    "ClientConnection",
    "ConnectError",
    "ConnectionPool",
    "ConnectionRefused",
    "Origin",
    "RequestWatchdog",
    "connect_error",
]

DRAIN_SECONDS = 1.0
"""Time for the rest of a response whose reader is done; afterwards the connection is closed instead of reused."""

_MAX_UNREAD = 256 * 1024


class Origin(NamedTuple):
    """Address of a server: host and port, or the path of a unix socket."""

    host: str
    port: int
    is_secure: bool = False
    path: str = ""


class ConnectError(OSError):
    """No connection could be made."""


class ConnectionRefused(ConnectError):
    """No process listens at the address."""


def connect_error(error: OSError) -> ConnectError:
    """Convert a failure to connect to an error with a readable reason."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectError(
            f"its certificate is not trusted ({error.verify_message}); SSL_CERT_FILE can name a file with its issuer"
        )
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "no reason").replace("_", " ").lower()
        return ConnectError(f"the TLS handshake failed ({reason})")
    if _is_refused(error):
        return ConnectionRefused("the connection was refused")
    return ConnectError((error.strerror or str(error)).lower())


def _is_refused(error: OSError) -> bool:
    """Return whether all attempts were refused. A name with several addresses raises one error that
    lists all attempts.
    """
    numbers = re.findall(r"\[Errno (\d+)\]", str(error))
    return isinstance(error, ConnectionRefusedError) or (
        error.errno is None and bool(numbers) and {int(number) for number in numbers} == {errno.ECONNREFUSED}
    )


class Abortable(Protocol):
    """An object that owns a connection: ours, or a socket of a vendor's SDK."""

    @property
    def has_unread(self) -> bool:
        """True if received data have not been read yet. The reader is then slow, not the server."""

    def abort(self) -> None:
        """Close the connection immediately. Idempotent."""


class RequestWatchdog:
    """Detects a silent server and closes the connections of its request on demand.

    There is one timer per request. Received data only update a timestamp, so a chunk costs next to nothing.
    """

    def __init__(self, first_byte: float, between: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._first_byte = first_byte
        self._between = between
        self._registered: list[Abortable] = []
        self._timer: asyncio.TimerHandle | None = None
        self._on_stall: Callable[[], object] | None = None
        self.last = self._loop.time()
        """Time of the last received data, written by the receivers."""
        self.has_begun = False
        """True if a part of the body was received; headers do not count."""
        self.is_over = False
        self.has_stalled = False
        self.page: tuple[int, bytes] | None = None
        """Status and beginning of a body received instead of a stream: a web page or a JSON error."""

    @property
    def timeout(self) -> float:
        """Current limit for silence in seconds."""
        return self._between if self.has_begun else self._first_byte

    def start(self, on_stall: Callable[[], object] | None = None) -> None:
        """Start the timer. `on_stall` is called after all connections were closed."""
        self._on_stall = on_stall
        self.last = self._loop.time()
        self._schedule_check(self.timeout)

    def register(self, connection: Abortable) -> None:
        """Register a connection to be closed with the request; closed at once if the request is already over."""
        if self.is_over:
            connection.abort()
        else:
            self._registered.append(connection)

    def unregister(self, connection: Abortable) -> None:
        """Unregister a connection that will be reused by another request."""
        if connection in self._registered:
            self._registered.remove(connection)

    def touch(self) -> None:
        """Record received body data."""
        self.last = self._loop.time()
        self.has_begun = True

    def finish(self) -> None:
        """End the supervision of a successful request without closing anything."""
        self._registered.clear()
        self._stop()

    def abort(self) -> None:
        """Close all registered connections. Later registrations are closed at once."""
        self._stop()
        registered, self._registered = self._registered, []
        for connection in registered:
            connection.abort()

    def _stop(self) -> None:
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule_check(self, seconds: float) -> None:
        """Schedule the next check, at most `between` seconds from now, because that limit applies as soon as the body
        begins.
        """
        self._timer = self._loop.call_later(min(seconds, self._between), self._check)

    def _check(self) -> None:
        # Data that are received but not read prove that the server is not silent.
        if any(connection.has_unread for connection in self._registered):
            self.last = self._loop.time()
        left = self.last + self.timeout - self._loop.time()
        if left > 0:
            self._schedule_check(left)
            return
        self.has_stalled = True
        self.abort()
        if self._on_stall is not None:
            self._on_stall()


class ClientConnection(asyncio.Protocol):
    """One connection, for one request at a time. Created by `ConnectionPool.connect`."""

    def __init__(self, origin: Origin, pool: "ConnectionPool") -> None:
        self._loop = asyncio.get_running_loop()
        self._pool = pool
        self.origin = origin
        self._transport: asyncio.Transport | None = None
        self._parser: ResponseParser | None = None
        self._watchdog: RequestWatchdog | None = None
        self._pieces: list[bytes] = []
        self._unread = 0
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._is_abandoned = False
        self.has_received = False
        """True if any byte of the current response was received. If not, the request may be repeated."""

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes and wake the reader. Reading is paused while too much is unread."""
        parser = self._parser
        if parser is None:
            # Unsolicited data: the connection can no longer be used.
            self.abort()
            return
        self.has_received = True
        watchdog = self._watchdog
        if watchdog is not None:
            watchdog.last = self._loop.time()
        try:
            body = parser.feed(data)
        except InvalidResponse as error:
            self._fail(error)
            return
        if body and not self._is_abandoned:
            if watchdog is not None:
                watchdog.has_begun = True
            self._pieces.append(body)
            self._unread += len(body)
            if self._unread > _MAX_UNREAD and not self._is_paused and self._transport is not None:
                self._is_paused = True
                self._transport.pause_reading()
        # The response was drained in time, so the connection can be reused.
        if self._is_abandoned and parser.is_done:
            self._return_to_pool()
        self._wake()

    def eof_received(self) -> bool:
        """Let the transport close itself."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Complete a response that ends with the connection; fail any other that is incomplete."""
        if self._transport is None:
            return
        self._transport = None
        self._pool.forget(self)
        if self._parser is not None and not self._parser.is_done and self._error is None:
            # A connection aborted by this side has an error already: its response is not complete.
            try:
                if error is not None:
                    raise ConnectionBroken(str(error)) from error
                self._parser.end()
            except ConnectionBroken as broken:
                self._error = broken
        self._stop_timer()
        self._wake()

    # Called by the user of the connection

    @property
    def is_usable(self) -> bool:
        """True if the connection is open and has no response in progress."""
        return self._transport is not None and not self._transport.is_closing() and self._is_complete

    @property
    def has_unread(self) -> bool:
        """True if received body data are waiting for a reader."""
        return bool(self._pieces)

    def send(self, request: Sequence[bytes], watchdog: RequestWatchdog | None = None, *, method: str = "POST") -> None:
        """Send a request and begin an exchange, which the watchdog may abort. Raises `ConnectionBroken`."""
        self.has_received = False
        if self._transport is None or self._transport.is_closing():
            raise ConnectionBroken("the connection was closed")
        self._stop_timer()
        self._parser = ResponseParser(method)
        self._watchdog, self._error = watchdog, None
        self._pieces, self._unread = [], 0
        self._is_abandoned = False
        if watchdog is not None:
            watchdog.register(self)
            # The request was aborted before it was sent; `register` has closed the connection.
            if watchdog.is_over:
                return
        self._transport.writelines(request)

    async def head(self) -> ResponseHead:
        """Wait for the head of the response. Raises `ConnectionBroken`."""
        assert self._parser is not None, "a request was sent"
        while self._parser.head is None:
            if self._error is not None:
                raise self._error
            await self._wait()
        return self._parser.head

    async def read(self) -> bytes:
        """Return all body bytes received since the last call; empty at the end. Raises `ConnectionBroken`."""
        while not self._pieces:
            if self._is_complete:
                return b""
            if self._error is not None:
                raise self._error
            await self._wait()
        pieces = self._pieces
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        self._pieces, self._unread = [], 0
        self._resume()
        return body

    def release(self) -> None:
        """End the exchange. If the response is incomplete, its rest is discarded for at most `DRAIN_SECONDS`."""
        if self._is_abandoned or self._transport is None:
            return
        self._pieces, self._unread = [], 0
        if self._is_complete:
            self._return_to_pool()
        else:
            self._is_abandoned = True
            # Draining a short rest is cheaper than a new connection; a stream without end must not be drained.
            self._timer = self._loop.call_later(DRAIN_SECONDS, self.abort)
            self._resume()

    def abort(self) -> None:
        """Close the connection immediately. Unsent and unread data are dropped."""
        self._fail(ConnectionBroken("the connection was aborted"))

    def expire_after(self, seconds: float) -> None:
        """Close the connection unless it is used again within this time."""
        self._timer = self._loop.call_later(seconds, self.abort)

    # Internal

    @property
    def _is_complete(self) -> bool:
        return self._parser is None or self._parser.is_done

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _resume(self) -> None:
        if self._is_paused:
            self._is_paused = False
            if self._transport is not None:
                self._transport.resume_reading()

    def _fail(self, error: Exception) -> None:
        if not self._is_complete:
            self._error = self._error or error
        self._stop_timer()
        if self._transport is not None:
            self._transport.abort()
        self._wake()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _return_to_pool(self) -> None:
        """Return the connection to the pool, or close it if the server does not keep it open."""
        self._stop_timer()
        parser, self._parser = self._parser, None
        watchdog, self._watchdog = self._watchdog, None
        if watchdog is not None:
            watchdog.unregister(self)
        if parser is not None and parser.can_be_kept and self.is_usable:
            self._pool.keep(self)
        else:
            self.abort()


class ConnectionPool:
    """All connections of one event loop, idle ones by origin.

    Connections in use are not limited, because each belongs to a waiting caller. An idle connection is closed after
    `keep_seconds`; many servers close theirs after one minute, and a request must not race with that.
    """

    def __init__(self, *, keep_seconds: float = 50.0, max_idle: int | None = None) -> None:
        self._keep_seconds = keep_seconds
        self._max_idle = max_idle
        self._idle: dict[Origin, list[ClientConnection]] = {}
        self._open: set[ClientConnection] = set()
        self._closings = 0

    def __len__(self) -> int:
        return len(self._open)

    def pop_idle(self, origin: Origin) -> ClientConnection | None:
        """Return an idle connection, the most recently used first, or None."""
        idle = self._idle.get(origin, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
        return None

    async def request(
        self,
        origin: Origin,
        message: tuple[bytes, bytes],
        watchdog: "RequestWatchdog",
        tls: ssl.SSLContext | None,
        seconds: float | None,
    ) -> tuple[ClientConnection, ResponseHead]:
        """Send head and body of a request, and return the connection and the head of the response.

        Raises `ConnectError`, `ConnectionBroken`, or `TimeoutError` if no connection could be made within `seconds`.
        """
        if (idle := self.pop_idle(origin)) is not None:
            try:
                return idle, await _send(idle, message, watchdog)
            except ConnectionBroken:
                # The server may close an idle connection at the moment of sending. Without a response byte the
                # request was not processed and is repeated on a new connection.
                if idle.has_received or watchdog.is_over:
                    raise
        fresh = await self.connect(origin, tls, seconds)
        return fresh, await _send(fresh, message, watchdog)

    async def connect(self, origin: Origin, tls: ssl.SSLContext | None, seconds: float | None) -> ClientConnection:
        """Open a connection. Raises `ConnectError` or `TimeoutError`."""
        loop = asyncio.get_running_loop()
        connection = ClientConnection(origin, self)
        if not origin.path and not 0 < origin.port < 65_536:
            # The system would truncate the number and connect to another port.
            raise ConnectError(f"there is no port {origin.port}")
        closings = self._closings
        try:
            async with asyncio.timeout(seconds):
                if origin.path:
                    await loop.create_unix_connection(lambda: connection, origin.path)
                else:
                    await loop.create_connection(lambda: connection, origin.host, origin.port, ssl=tls)
        except TimeoutError:
            connection.abort()
            raise
        except OSError as error:
            raise connect_error(error) from error
        except BaseException:
            connection.abort()
            raise
        if closings != self._closings:
            # `close` aborts the connections that it knows, and this one was not open yet.
            connection.abort()
            raise ConnectError("the client was closed")
        self._open.add(connection)
        return connection

    def keep(self, connection: ClientConnection) -> None:
        """Keep an idle connection for the next request to the same origin."""
        idle = self._idle.setdefault(connection.origin, [])
        if self._max_idle is not None and len(idle) >= self._max_idle:
            connection.abort()
            return
        idle.append(connection)
        connection.expire_after(self._keep_seconds)

    def forget(self, connection: ClientConnection) -> None:
        """Remove a connection that was closed, or that its user closes independently of the pool."""
        self._open.discard(connection)
        idle = self._idle.get(connection.origin)
        if idle is not None and connection in idle:
            idle.remove(connection)

    def close_idle(self) -> None:
        """Close the idle connections."""
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
            connections.clear()

    def close(self) -> None:
        """Abort all connections, including those in use and those that are being opened."""
        self._closings += 1
        for connection in tuple(self._open):
            connection.abort()


async def _send(
    connection: ClientConnection, message: tuple[bytes, bytes], watchdog: "RequestWatchdog"
) -> ResponseHead:
    try:
        connection.send(message, watchdog)
        return await connection.head()
    except BaseException:
        connection.abort()
        raise
