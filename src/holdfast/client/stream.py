"""Follows the events of a workspace through broken connections.

A numbered event is handed out exactly once, in order. When the connection breaks, goes quiet or is cut, the
stream opens again by itself, after the last number that came. It ends when it is closed, or when the server
says that there is no such workspace; the workspace can then be created again and followed from `cursor`.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable

from holdfast.client.backoff import Backoff
from holdfast.client.errors import ClientError, ServerProblem
from holdfast.client.items import Follower, Item, decode_item
from holdfast.client.pool import OpenResponse
from holdfast.domain.events import GapEvent, HelloEvent
from holdfast.protocol.sse import SseReader

__all__ = ["QUIET_SECONDS", "EventStream"]

QUIET_SECONDS = 45.0
"""The server says something every 15 s. After three times that, the connection is dead."""

_NEVER_RIGHT = frozenset({400, 401, 403, 405})
"""Asking again in the same way does not help: the caller has to know."""


class EventStream:
    """An iterator of items. A cancelled step loses nothing: the next one goes on where it stopped."""

    def __init__(
        self,
        connect: Callable[[int], Awaitable[OpenResponse]],
        *,
        since: int,
        backoff: Backoff,
        quiet_seconds: float = QUIET_SECONDS,
    ) -> None:
        self._connect = connect
        self._follower = Follower(since)
        self._backoff = backoff
        self._quiet_seconds = quiet_seconds
        self._ready: deque[Item] = deque()
        self._response: OpenResponse | None = None
        self._reader = SseReader()
        self._closed = asyncio.Event()
        self._attempt: asyncio.Timeout | None = None
        self.cursor = since
        """The last number that was handed out."""
        self.is_gone = False
        """Whether the stream ended because the workspace did."""
        self.trouble: ClientError | None = None
        """Why there is no connection at the moment."""

    async def __aenter__(self) -> "EventStream":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __aiter__(self) -> "EventStream":
        return self

    async def __anext__(self) -> Item:
        while not self._ready:
            if self._closed.is_set():
                raise StopAsyncIteration
            if self._response is None:
                await self._open()
            else:
                await self._read(self._response)
        item = self._ready.popleft()
        if isinstance(item.event, GapEvent):
            self.cursor = item.event.payload.cursor
        elif item.number is not None:
            self.cursor = item.number
        return item

    @property
    def is_connected(self) -> bool:
        return self._response is not None

    async def close(self) -> None:
        """Ends the iteration, also for somebody who waits in it. What was not handed out is dropped."""
        self._closed.set()
        self._ready.clear()
        self._let_go()
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.reschedule(asyncio.get_running_loop().time())
        await asyncio.sleep(0)

    async def _open(self) -> None:
        """One attempt; after a failure it waits, so that the next one comes later."""
        try:
            response = await self._try()
        except ServerProblem as problem:
            if problem.status == 404:
                self.is_gone = True
                self._closed.set()
                return
            if problem.status in _NEVER_RIGHT:
                raise
            self.trouble = problem
        except ClientError as error:
            self.trouble = error
        else:
            self._response, self._reader, self.trouble = response, SseReader(), None
            return
        await self._pause()

    async def _try(self) -> OpenResponse:
        """A connection that answers, unless the stream is closed meanwhile."""
        response: OpenResponse | None = None
        try:
            async with asyncio.timeout(None) as self._attempt:
                response = await self._connect(self._follower.since)
        except TimeoutError:
            # Only `close` sets an end to an attempt.
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
        """The next bytes. The end of a stream, proper or not, is a reason to open the next one."""
        try:
            async with asyncio.timeout(self._quiet_seconds):
                data = await response.read()
        except TimeoutError:
            self._let_go()
            self.trouble = ClientError("The server has gone quiet.")
            return
        except ClientError as error:
            self.trouble = error
            data = None
        if self._closed.is_set():
            return
        if data is None:
            self._let_go()
            await self._pause()
            return
        for raw in self._reader.feed(data):
            item = decode_item(raw)
            if isinstance(item.event, HelloEvent):
                self._backoff.reset()
            if self._follower.accept(item):
                self._ready.append(item)

    async def _pause(self) -> None:
        """Waits, unless it is closed meanwhile."""
        try:
            async with asyncio.timeout(self._backoff.wait()):
                await self._closed.wait()
        except TimeoutError:
            return

    def _let_go(self) -> None:
        response, self._response = self._response, None
        if response is not None:
            response.close()
