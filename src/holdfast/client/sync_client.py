"""A blocking client for short-lived commands: one socket, no event loop, few imports.

The client for long-running programs is `holdfast.client.client`.
"""

import select
import socket
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from holdfast.client.errors import BrokenResponse, ConnectionLost, ServerProblem, TimedOut, Unreachable, message_of
from holdfast.client.server_address import QueryItems, ServerAddress, build_request
from holdfast.http11.client_messages import IDEMPOTENT, InvalidResponse, ResponseParser
from holdfast.http11.sse import SseEvent, SseReader

__all__ = ["ServerInfo", "SyncClient", "SyncEventStream"]

_READ_SIZE = 64 * 1024
_HEARTBEAT_TIMEOUT = 45.0
"""Heartbeat timeout in seconds. The server sends a heartbeat three times as often."""

_STREAM_HEADERS = (("Accept", "text/event-stream"), ("Cache-Control", "no-cache"))


class ServerInfo(NamedTuple):
    """A server's response to `GET /v1/version`. Servers of earlier versions have no `data_id`."""

    version: str
    protocol: int
    pid: int
    data_id: str


class SyncClient:
    """Keeps one connection for requests; each stream has its own. Not thread-safe."""

    def __init__(self, address: ServerAddress, *, timeout: float = 30.0) -> None:
        self.address = address
        self.server: ServerInfo | None = None
        """The server's description of itself, if it was identified."""
        self._timeout = timeout
        self._idle: socket.socket | None = None

    def __enter__(self) -> "SyncClient":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def connect(self, timeout: float | None = None) -> None:
        """Open the connection for the next request. Raises `Unreachable` if no server responds."""
        if self._idle is None:
            self._idle = self._open(self._timeout if timeout is None else timeout)

    def peer_pid(self) -> int:
        """Return the process that listens on the unix socket; 0 without a connection or where the system does not
        support it.

        The process id is also 0 if that process is in another PID namespace.
        """
        if self._idle is None or self._idle.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
            return 0
        return int.from_bytes(self._idle.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)[:4], sys.byteorder)

    def request(
        self,
        method: str,
        path: str,
        query: QueryItems = (),
        body: bytes | None = None,
        *,
        timeout: float | None = None,
        can_repeat: bool = False,
    ) -> tuple[int, bytes]:
        """Return the status and the body of the response, for any status.

        An idle connection that the server has closed is replaced once if a repetition is safe: the method is
        idempotent, or the caller sets `can_repeat`.
        """
        deadline = time.monotonic() + (self._timeout if timeout is None else timeout)
        message = build_request(self.address, method, path, query, body, (("Accept", "application/json"),))
        idle, self._idle = self._idle, None
        if idle is not None:
            if _is_idle(idle):
                response = self._exchange(idle, message, method, deadline)
                if response is not None:
                    return response
                if method not in IDEMPOTENT and not can_repeat:
                    raise ConnectionLost
            else:
                idle.close()
        response = self._exchange(self._open(_seconds_left(deadline)), message, method, deadline)
        if response is None:
            raise ConnectionLost
        return response

    def stream(self, path: str, query: QueryItems = (), *, quiet: float = _HEARTBEAT_TIMEOUT) -> "SyncEventStream":
        """Open an event stream. Raises `ServerProblem` if the server returns an error."""
        message = build_request(self.address, "GET", path, query, headers=_STREAM_HEADERS)
        stream = SyncEventStream(self._open(self._timeout), message, self._timeout, quiet)
        stream.address = self.address
        return stream

    def close(self) -> None:
        """Close the connection."""
        idle, self._idle = self._idle, None
        if idle is not None:
            idle.close()

    def _open(self, timeout: float) -> socket.socket:
        address = self.address
        try:
            if not address.path:
                return socket.create_connection((address.host, address.port), timeout)
            connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                connection.settimeout(timeout)
                connection.connect(address.path)
            except BaseException:
                connection.close()
                raise
        except OSError as error:
            reason = _reason(error)
            raise Unreachable(f"No Holdfast server answers at {address}: {reason}.", reason=reason) from error
        return connection

    def _exchange(
        self, connection: socket.socket, message: bytes, method: str, deadline: float
    ) -> tuple[int, bytes] | None:
        """Return the response, or None if the connection ended before its first byte."""
        parser = ResponseParser(method)
        body: list[bytes] = []
        is_reusable = False
        try:
            _send(connection, message, deadline)
            while not parser.is_done:
                data = _receive(connection, deadline)
                if data:
                    body.append(parser.feed(data))
                elif parser.has_begun:
                    parser.end()
                else:
                    return None
            is_reusable = parser.can_be_kept
        except TimeoutError:
            raise TimedOut from None
        except InvalidResponse:
            raise BrokenResponse from None
        except OSError:
            if parser.has_begun:
                raise ConnectionLost from None
            return None
        finally:
            if is_reusable:
                self._idle = connection
            else:
                connection.close()
        if parser.head is None:
            raise BrokenResponse
        return parser.head.status, b"".join(body)


class SyncEventStream:
    """The raw events of one stream. The iteration ends when the server ends the stream properly, and raises
    `ConnectionLost` when it breaks or no heartbeat arrives for `quiet` seconds.
    """

    def __init__(self, connection: socket.socket, message: bytes, timeout: float, quiet: float) -> None:
        self._connection = connection
        self._response = ResponseParser()
        self._events = SseReader()
        self._ready: deque[SseEvent] = deque()
        self._quiet = quiet
        self._received_at = time.monotonic()
        self.address: ServerAddress | None = None
        self.is_over = False
        try:
            self._begin(message, time.monotonic() + timeout)
        except BaseException:
            connection.close()
            raise

    def __enter__(self) -> "SyncEventStream":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __iter__(self) -> Iterator[SseEvent]:
        while self._ready or not self.is_over:
            yield from self.receive(self._quiet)
            if not self.is_over and time.monotonic() - self._received_at >= self._quiet:
                raise ConnectionLost("The server has stopped responding.")

    @property
    def silence(self) -> float:
        """Seconds since data were received."""
        return time.monotonic() - self._received_at

    def receive(self, timeout: float | None = None, *, wake: int | None = None) -> list[SseEvent]:
        """Return the events received, at least one; none after the timeout, at the end of the stream, or when `wake` is
        readable.

        `wake` is a file descriptor, such as a signal wakeup descriptor, because a signal handler alone does not end the
        wait.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._ready and not self.is_over:
            if not self._wait(deadline, wake):
                return []
            self._read()
        events = list(self._ready)
        self._ready.clear()
        return events

    def close(self) -> None:
        """Close the connection."""
        self.is_over = True
        self._connection.close()

    def _begin(self, message: bytes, deadline: float) -> None:
        """Send the request and read the head of the response."""
        refusal: list[bytes] = []
        try:
            _send(self._connection, message, deadline)
            while (head := self._response.head) is None or (head.status != 200 and not self._response.is_done):
                data = _receive(self._connection, deadline)
                if not data:
                    self._response.end()
                body = self._response.feed(data)
                if (head := self._response.head) is not None and head.status == 200:
                    self._ready.extend(self._events.feed(body))
                else:
                    refusal.append(body)
        except TimeoutError:
            raise TimedOut from None
        except OSError:
            if self._response.head is None:
                raise ConnectionLost from None
        if self._response.head is not None and self._response.head.status != 200:
            raise ServerProblem(self._response.head.status, message_of(b"".join(refusal)))
        self.is_over = self._response.is_done

    def _wait(self, deadline: float | None, wake: int | None) -> bool:
        """Wait until the connection is readable. Returns False after the deadline, or if only `wake` is readable."""
        poll = select.poll()
        poll.register(self._connection, select.POLLIN)
        if wake is not None:
            poll.register(wake, select.POLLIN)
        found = poll.poll(None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000)
        return any(descriptor == self._connection.fileno() for descriptor, _ in found)

    def _read(self) -> None:
        try:
            data = self._connection.recv(_READ_SIZE)
            self._received_at = time.monotonic()
            if not data:
                self._response.end()
            self._ready.extend(self._events.feed(self._response.feed(data)))
        except OSError:
            self.close()
            raise ConnectionLost("The stream of events broke off.") from None
        if self._response.is_done:
            self.close()


def _is_idle(connection: socket.socket) -> bool:
    """Return whether an idle connection is usable. A readable one was closed by the server."""
    poll = select.poll()
    poll.register(connection, select.POLLIN)
    return not poll.poll(0)


def _seconds_left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimedOut
    return left


def _send(connection: socket.socket, message: bytes, deadline: float) -> None:
    connection.settimeout(_seconds_left(deadline))
    try:
        connection.sendall(message)
    except (BrokenPipeError, ConnectionResetError):
        # A server that rejects a large request stops reading, but its response can still be read.
        return


def _receive(connection: socket.socket, deadline: float) -> bytes:
    connection.settimeout(_seconds_left(deadline))
    return connection.recv(_READ_SIZE)


def _reason(error: OSError) -> str:
    return (error.strerror or str(error) or type(error).__name__).rstrip(".")
