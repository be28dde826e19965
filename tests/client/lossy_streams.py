"""A client's event stream that loses events on demand, and then reports a gap as the server does."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.client.events import StreamEvent
from holdfast.client.stream import EventStream
from holdfast.domain.events import Gap, GapEvent
from holdfast.testing.gates import start

__all__ = ["LossyStreams", "lossy_streams"]


class LossyStreams:
    """Wraps the next stream that is opened. Others of the process are unchanged."""

    def __init__(self) -> None:
        self.stream: EventStream | None = None
        self.lost: list[StreamEvent] = []
        self.is_cut = False
        self.is_open = asyncio.Event()
        self._is_armed = True
        self._injected: list[StreamEvent] = []
        self._restored = asyncio.Event()
        self._lost_one = asyncio.Event()

    def make(self, connect: Callable[[int], Awaitable[Any]], **options: Any) -> EventStream:  # noqa: ANN401
        if not self._is_armed:
            return EventStream(connect, **options)
        self._is_armed = False
        self.is_open.set()
        self.stream = _LossyStream(self, connect, options)
        return self.stream

    def cut(self) -> None:
        """Drop all events from now on."""
        self.is_cut = True

    def restore(self) -> None:
        """Deliver a gap, then the following events."""
        self.is_cut = False
        self._restored.set()

    def deliver(self, item: StreamEvent) -> None:
        """Return an item that the server has not sent."""
        self._injected.append(item)
        self._restored.set()

    async def lose(self, is_wanted: Callable[[StreamEvent], bool]) -> None:
        """Return when such an event was dropped."""
        async with asyncio.timeout(20):
            while not any(map(is_wanted, self.lost)):
                self._lost_one.clear()
                await self._lost_one.wait()

    def drop(self, item: StreamEvent) -> None:
        self.lost.append(item)
        self._lost_one.set()

    async def next_injected(self, cursor: int) -> StreamEvent:
        """Return an injected item or the gap."""
        await self._restored.wait()
        item = self._injected.pop(0) if self._injected else StreamEvent(GapEvent(Gap(cursor, 1, 1)))
        if not self._injected:
            self._restored.clear()
        return item


class _LossyStream(EventStream):
    def __init__(self, owner: LossyStreams, connect: Callable[[int], Awaitable[Any]], options: dict[str, Any]) -> None:
        super().__init__(connect, **options)
        self._owner = owner

    async def __anext__(self) -> StreamEvent:
        while True:
            reading, restored = start(super().__anext__()), start(self._owner.next_injected(self.cursor))
            try:
                await asyncio.wait({reading, restored}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                restored.cancel()
                if not reading.done():
                    # A cancelled step loses nothing.
                    reading.cancel()
            if restored.done() and not restored.cancelled():
                return restored.result()
            item = await reading
            if not self._owner.is_cut:
                return item
            self._owner.drop(item)


def lossy_streams(patch: pytest.MonkeyPatch) -> LossyStreams:
    """Let the next stream of a client lose events."""
    made = LossyStreams()
    patch.setattr("holdfast.client.client.EventStream", made.make)
    return made
