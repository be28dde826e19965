"""Follows the events of a workspace across broken connections.

Each numbered event is returned exactly once, in order. When the connection breaks or times out, the stream reconnects
after the last number received. It ends when it is closed, or when the server reports that the workspace does not exist;
the workspace can then be created again and followed from `cursor`.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from holdfast.client.backoff import Backoff
from holdfast.client.errors import ClientError, ServerProblem
from holdfast.client.events import CursorFilter, StreamEvent, decode_event
from holdfast.client.request import OpenResponse
from holdfast.client.server_address import ServerAddress
from holdfast.domain.events import GapEvent, HelloEvent
from holdfast.http11.sse import SseReader

__all__ = ["SILENCE_TIMEOUT", "EventStream"]

SILENCE_TIMEOUT = 45.0
"""The server sends a heartbeat every 15 s. A connection without data for three times that is considered dead."""

_CHECK_INTERVAL = 5.0
"""Seconds of silence after which the server is checked, if there is another one."""

_PERMANENT_STATUSES = frozenset({400, 401, 403, 405})
"""Statuses for which a retry is useless; the error is raised."""


class EventStream:
    """An iterator of events. Cancelling a step loses nothing: the next step continues at the same position."""

    def __init__(
        self,
        connect: Callable[[int], Awaitable[OpenResponse]],
        *,
        since: int,
        backoff: Backoff,
        quiet_seconds: float = SILENCE_TIMEOUT,
        find_better: Callable[[ServerAddress], Awaitable[bool]] | None = None,
    ) -> None:
        """`connect` may try several servers. `find_better` then returns whether another one has replaced the server of
        a connection that is silent.
        """
        self._connect = connect
        self._find_better = find_better
        self._silence = 0.0
        self._has_begun = False
        self._follower = CursorFilter(since)
        self._backoff = backoff
        self._quiet_seconds = quiet_seconds
        self._ready: deque[StreamEvent] = deque()
        self._response: OpenResponse | None = None
        self._reader = SseReader()
        self._closed = asyncio.Event()
        self._attempt: asyncio.Timeout | None = None
        self.cursor = since
        """The last number returned."""
        self.is_workspace_gone = False
        """True if the stream ended because the workspace does not exist any more."""
        self.trouble: ClientError | None = None
        """The reason why there is currently no connection."""

    async def __aenter__(self) -> "EventStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> "EventStream":
        return self

    async def __anext__(self) -> StreamEvent:
        while not self._ready:
            if self._closed.is_set():
                raise StopAsyncIteration
            if self._response is None:
                await self._open()
            else:
                await self._read(self._response)
        item = self._ready.popleft()
        # The server cannot provide the events in between; the consumer loads a snapshot at this cursor.
        if isinstance(item.event, GapEvent):
            self.cursor = item.event.payload.cursor
        elif item.number is not None:
            self.cursor = item.number
        return item

    @property
    def is_connected(self) -> bool:
        """True if there is a connection."""
        return self._response is not None

    async def close(self) -> None:
        """End the iteration, also of a waiting consumer. Events that were not returned are dropped."""
        self._closed.set()
        self._ready.clear()
        self._close_response()
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            # A deadline interrupts the attempt in the consumer's task, without cancelling that task.
            attempt.reschedule(asyncio.get_running_loop().time())
        # Let a waiting consumer run and end its iteration.
        await asyncio.sleep(0)

    async def _open(self) -> None:
        """Make one connection attempt. After a failure, wait before returning."""
        try:
            response = await self._open_response()
        except ServerProblem as problem:
            # Retrying is useless until the workspace exists again, and only the owner can create it.
            if problem.status == 404:
                self.is_workspace_gone = True
                self._closed.set()
                return
            if problem.status in _PERMANENT_STATUSES:
                raise
            self.trouble = problem
        except ClientError as error:
            self.trouble = error
        else:
            self._response, self._reader, self.trouble = response, SseReader(), None
            self._silence, self._has_begun = 0.0, False
            return
        await self._pause()

    async def _open_response(self) -> OpenResponse:
        """Return an open response. Raises `ClientError`, also if the stream is closed meanwhile."""
        response: OpenResponse | None = None
        try:
            async with asyncio.timeout(None) as self._attempt:
                response = await self._connect(self._follower.since)
        except TimeoutError:
            # Only `close` sets a deadline for an attempt.
            pass
        finally:
            self._attempt = None
        if self._closed.is_set():
            if response is not None:
                response.close()
            response = None
        if response is None:
            raise ClientError("The stream is closed.")
        return response

    async def _read(self, response: OpenResponse) -> None:
        """Read the next bytes. The end of a response, regular or not, leads to a new connection."""
        limit = self._quiet_seconds if self._find_better is None else min(_CHECK_INTERVAL, self._quiet_seconds)
        try:
            async with asyncio.timeout(limit):
                data = await response.read()
            self._silence = 0.0
        except TimeoutError:
            self._silence += limit
            if await self._is_replaced(response) or self._silence >= self._quiet_seconds:
                self._close_response()
                self.trouble = ClientError("The server has stopped responding.")
            return
        except ClientError as error:
            self.trouble = error
            data = None
        if self._closed.is_set():
            return
        if data is None:
            self._close_response()
            # Another server may continue at once. A stream that breaks before it has begun shows no working server.
            if self._find_better is None or not self._has_begun:
                await self._pause()
            return
        for raw in self._reader.feed(data):
            item = decode_event(raw)
            # Not earlier: an accepted connection may still be closed before the stream begins.
            if isinstance(item.event, HelloEvent):
                self._backoff.reset()
                self._has_begun = True
            if self._follower.accept(item):
                self._ready.append(item)

    async def _is_replaced(self, response: OpenResponse) -> bool:
        if self._find_better is None or response.address is None:
            return False
        return await self._find_better(response.address)

    async def _pause(self) -> None:
        """Wait for the backoff delay, or until the stream is closed."""
        try:
            async with asyncio.timeout(self._backoff.wait()):
                await self._closed.wait()
        except TimeoutError:
            return

    def _close_response(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.close()
