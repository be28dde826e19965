"""Persistent HTTP/1.1 connections to providers, on asyncio and httptools.

General HTTP clients spend several times longer on a small chunk than parsing it takes. Here a chunk passes from the
socket to its reader in one step, and a connection can be aborted synchronously at any time.
"""

import asyncio
import errno
import re
import ssl
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Protocol, cast

import httptools
import msgspec

__all__ = [
    "CURRENT",
    "Abortable",
    "Connection",
    "ConnectionBroken",
    "ConnectionPool",
    "ConnectionRefused",
    "NotReached",
    "Origin",
    "Reply",
    "RequestWatchdog",
    "not_reached",
]


# Supervision of one request: detects silence, and closes its connections on demand.


class Abortable(Protocol):
    """An object that owns a connection."""

    @property
    def has_unread(self) -> bool:
        """True if received data have not been read yet. The reader is then slow, not the provider."""

    def hang_up(self) -> None:
        """Close the connection immediately. Idempotent."""


class RequestWatchdog:
    """Detects a silent provider and closes the connections of its request on demand.

    There is one timer per request. Received data only update a timestamp, so a chunk costs next to nothing.
    """

    def __init__(self, first_byte: float, between: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._first_byte = first_byte
        self._between = between
        self._held: list[Abortable] = []
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
    def patience(self) -> float:
        """Current limit for silence in seconds."""
        return self._between if self.has_begun else self._first_byte

    def start(self, on_stall: Callable[[], object] | None = None) -> None:
        """Start the timer. `on_stall` is called after all connections were closed."""
        self._on_stall = on_stall
        self.last = self._loop.time()
        self._look_in(self.patience)

    def hold(self, what: Abortable) -> None:
        """Register a connection to be closed with the request; closed at once if the request is already over."""
        if self.is_over:
            what.hang_up()
        else:
            self._held.append(what)

    def let_go(self, what: Abortable) -> None:
        """Unregister a connection that will be reused by another request."""
        if what in self._held:
            self._held.remove(what)

    def touch(self) -> None:
        """Record received body data."""
        self.last = self._loop.time()
        self.has_begun = True

    def finish(self) -> None:
        """End the supervision of a successful request without closing anything."""
        self._held.clear()
        self._stop()

    def hang_up(self) -> None:
        """Close all registered connections. Later registrations are closed at once."""
        self._stop()
        held, self._held = self._held, []
        for item in held:
            item.hang_up()

    def _stop(self) -> None:
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_in(self, seconds: float) -> None:
        """Schedule the next check, at most `between` seconds from now, because that limit applies as soon as the body
        begins.
        """
        self._timer = self._loop.call_later(min(seconds, self._between), self._look)

    def _look(self) -> None:
        if any(item.has_unread for item in self._held):
            self.last = self._loop.time()
        left = self.last + self.patience - self._loop.time()
        if left > 0:
            self._look_in(left)
            return
        self.has_stalled = True
        self.hang_up()
        if self._on_stall is not None:
            self._on_stall()


CURRENT: ContextVar[RequestWatchdog | None] = ContextVar("holdfast_watch", default=None)
"""Watch of the request made by the current task; reaches our transport through SDKs without a parameter for it."""


# Persistent HTTP/1.1 connections to providers, on asyncio and httptools.

KEEP_SECONDS = 50.0
"""Lifetime of an idle connection. Many servers close theirs after one minute."""
# Time for the rest of a response whose reader is done; afterwards the connection is closed instead of reused.
DRAIN_SECONDS = 1.0
_MOST_UNREAD = 262_144
_MOST_HEADERS = 200


class Origin(msgspec.Struct, frozen=True):
    """Address of a server."""

    host: str
    port: int
    is_secure: bool


class NotReached(OSError):
    """No connection could be made."""


class ConnectionRefused(NotReached):
    """No process listens at the address."""


class ConnectionBroken(OSError):
    """The connection ended in the middle of an answer."""


class Reply(msgspec.Struct):
    """Status and headers of a response."""

    status: int = 0
    headers: list[tuple[bytes, bytes]] = []
    ends_with_connection: bool = False

    def is_silent_about_its_end(self) -> bool:
        """Return whether the body is terminated only by the end of the connection."""
        names = {name.lower() for name, _ in self.headers}
        has_body = self.status not in (204, 304)
        return has_body and not names & {b"content-length", b"transfer-encoding"}


class Connection(asyncio.Protocol):
    """One connection, for one request at a time.

    The event loop calls the asyncio.Protocol methods, the parser calls the `on_…` methods, and the reader calls the
    rest.
    """

    def __init__(self, origin: Origin, owner: "ConnectionPool") -> None:
        self._loop = asyncio.get_running_loop()
        self._owner = owner
        self.origin = origin
        self._transport: asyncio.Transport | None = None
        self._parser: httptools.HttpResponseParser | None = None
        self._watch: RequestWatchdog | None = None
        self._pieces: list[bytes] = []
        self._unread = 0
        self._is_paused = False
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._error: Exception | None = None
        self._has_head = False
        self._is_complete = True
        self._may_stay = False
        self._is_abandoned = False
        self.reply = Reply()
        self.requests = 0
        self.has_heard = False
        """True if any byte of the current response was received. If not, the request may be repeated."""

    # Called by the event loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Store the transport."""
        # uvloop's transports are not subclasses of asyncio's.
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        """Parse received bytes and wake the reader. Reading is paused while too much is unread."""
        watch = self._watch
        if watch is None or self._parser is None:
            # Unsolicited data: the connection can no longer be used.
            self.hang_up()
            return
        watch.last = self._loop.time()
        self.has_heard = True
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            if not self._is_complete or self._parser is None:
                self._fail(ConnectionBroken(f"not HTTP: {error}"))
                return
        if self._pieces:
            watch.has_begun = True
            if self._unread > _MOST_UNREAD and not self._is_paused and self._transport is not None:
                self._is_paused = True
                self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        """Let the transport close itself."""
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Complete a response that ends with the connection; fail any other that is incomplete."""
        if self._transport is None:
            return
        self._transport = None
        self._owner.forget(self)
        if not self._is_complete:
            # A connection aborted by this side did not complete its response.
            if self._has_head and self.reply.ends_with_connection and error is None and self._error is None:
                self._is_complete = True
            else:
                self._error = self._error or ConnectionBroken(str(error or "the connection was closed"))
        self._stop_timer()
        self._wake()

    # Called by the parser

    def on_message_begin(self) -> None:
        """Reject a response without a request."""
        if self._is_complete:
            # A second response to one request: the connection must not be reused.
            self._may_stay = False
            raise httptools.HttpParserError("more than was asked for")

    def on_header(self, name: bytes, value: bytes) -> None:
        """Store a header; their number is bounded."""
        if len(self.reply.headers) >= _MOST_HEADERS:
            raise httptools.HttpParserError("too many headers")
        self.reply.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """Store the status. Interim responses (1xx) are skipped."""
        assert self._parser is not None
        self.reply.status = self._parser.get_status_code()
        if self.reply.status >= 200:
            self.reply.ends_with_connection = self.reply.is_silent_about_its_end()
            self._has_head = True

    def on_body(self, body: bytes) -> None:
        """Store a part of the body for the reader."""
        self._pieces.append(body)
        self._unread += len(body)

    def on_message_complete(self) -> None:
        """Mark the response complete, and return an abandoned connection for reuse."""
        if self.reply.status < 200:
            self.reply = Reply(headers=[])
            return
        self._is_complete = True
        # The parser forgets this value after the message.
        self._may_stay = self._parser is not None and self._parser.should_keep_alive()
        if self._is_abandoned:
            self._give_back()

    # Called by the reader

    @property
    def is_usable(self) -> bool:
        """True if the connection is open and has no response in progress."""
        return self._transport is not None and not self._transport.is_closing() and self._is_complete

    @property
    def has_unread(self) -> bool:
        """True if received body data are waiting for a reader."""
        return bool(self._pieces)

    def send(self, request: Sequence[bytes], watch: RequestWatchdog) -> None:
        """Send a request and begin an exchange, which `watch` may abort. Raises `ConnectionBroken`."""
        if self._transport is None or self._transport.is_closing():
            raise ConnectionBroken("the connection was closed")
        self._stop_timer()
        self._parser = httptools.HttpResponseParser(self)
        self._watch, self._error = watch, None
        self._pieces, self._unread = [], 0
        self._is_complete = self._has_head = self.has_heard = self._is_abandoned = self._may_stay = False
        self.reply = Reply(headers=[])
        self.requests += 1
        watch.hold(self)
        if not watch.is_over:
            self._transport.writelines(request)

    async def head(self) -> Reply:
        """Wait for the headers of the response. Raises `ConnectionBroken`."""
        while not self._has_head:
            if self._error is not None:
                raise self._error
            await self._wait()
        return self.reply

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
        if self._is_paused:
            self._is_paused = False
            if self._transport is not None:
                self._transport.resume_reading()
        return body

    def release(self) -> None:
        """End the exchange. If the response is incomplete, its rest is discarded for at most `DRAIN_SECONDS`."""
        if self._is_abandoned or self._transport is None:
            return
        self._pieces, self._unread = [], 0
        if self._is_complete:
            self._give_back()
        else:
            self._is_abandoned = True
            self._timer = self._loop.call_later(DRAIN_SECONDS, self.hang_up)
            if self._is_paused:
                self._is_paused = False
                self._transport.resume_reading()

    def hang_up(self) -> None:
        """Abort the connection."""
        self._fail(ConnectionBroken("hung up"))

    def wait_unused(self, seconds: float) -> None:
        """Abort the connection unless it is used again within this time."""
        self._timer = self._loop.call_later(seconds, self.hang_up)

    # Internal

    async def _wait(self) -> None:
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

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

    def _give_back(self) -> None:
        self._stop_timer()
        watch, self._parser, self._watch = self._watch, None, None
        if watch is not None:
            watch.let_go(self)
        if self._may_stay and not self.reply.ends_with_connection and self.is_usable:
            self._owner.keep(self)
        else:
            self.hang_up()


class ConnectionPool:
    """All connections of one event loop, idle ones by origin."""

    def __init__(self) -> None:
        self._idle: dict[Origin, list[Connection]] = {}
        self._open: set[Connection] = set()

    def __len__(self) -> int:
        return len(self._open)

    def waiting(self, origin: Origin) -> Connection | None:
        """Return an idle connection, the most recently used first, or None."""
        idle = self._idle.get(origin, [])
        while idle:
            connection = idle.pop()
            if connection.is_usable:
                return connection
        return None

    async def make(self, origin: Origin, tls: ssl.SSLContext | None, seconds: float | None) -> Connection:
        """Open a connection. Raises `NotReached` or `TimeoutError`."""
        loop = asyncio.get_running_loop()
        connection = Connection(origin, self)
        if not 0 < origin.port < 65_536:
            # The system would truncate the number and connect to another port.
            raise NotReached(f"there is no port {origin.port}")
        try:
            async with asyncio.timeout(seconds):
                await loop.create_connection(lambda: connection, origin.host, origin.port, ssl=tls)
        except TimeoutError:
            connection.hang_up()
            raise
        except OSError as error:
            raise not_reached(error) from error
        except BaseException:
            connection.hang_up()
            raise
        self._open.add(connection)
        return connection

    def keep(self, connection: Connection) -> None:
        """Keep an idle connection for the next request to the same origin."""
        self._idle.setdefault(connection.origin, []).append(connection)
        connection.wait_unused(KEEP_SECONDS)

    def forget(self, connection: Connection) -> None:
        """Remove a closed connection."""
        self._open.discard(connection)
        idle = self._idle.get(connection.origin)
        if idle is not None and connection in idle:
            idle.remove(connection)

    def close(self) -> None:
        """Abort all connections, including those in use."""
        for connection in tuple(self._open):
            connection.hang_up()


def not_reached(error: OSError) -> NotReached:
    """Convert a failure to connect to an error with a readable reason."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return NotReached(
            f"its certificate is not trusted ({error.verify_message}); SSL_CERT_FILE can name a file with its issuer"
        )
    if isinstance(error, ssl.SSLError):
        reason = (error.reason or "no reason").replace("_", " ").lower()
        return NotReached(f"the TLS handshake failed ({reason})")
    if _is_refused(error):
        return ConnectionRefused("the connection was refused")
    return NotReached((error.strerror or str(error)).lower())


def _is_refused(error: OSError) -> bool:
    """Return whether all attempts were refused. A name with several addresses raises one error that
    lists all attempts.
    """
    numbers = re.findall(r"\[Errno (\d+)\]", str(error))
    return isinstance(error, ConnectionRefusedError) or (
        error.errno is None and bool(numbers) and {int(number) for number in numbers} == {errno.ECONNREFUSED}
    )
