"""How many events per second reach readers in process, beside what asyncio alone can do, and what publishing costs.

Each delivery is a real wake-up: every reader waits in a task of its own, and the publisher lets the loop run
after each event. The limit is the same without a bus: futures set by one task and awaited by as many.
"""

import asyncio
import gc
import time
from collections.abc import Sequence

import uvloop

from bench.figures import Figure, Goal
from holdfast.bus.bus import Bus
from holdfast.domain.events import MessageDelta, MessageDeltaEvent
from holdfast.domain.ids import MessageId, SessionId, WorkspaceId
from holdfast.domain.store_operations import WorkspaceRecord

__all__ = ["measure"]

READERS = (1, 10, 100)
LAGGING = (0, 1, 100)
DELIVERIES = 100_000
PUBLISHED = 20_000


class EmptyLog:
    async def events_after(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, bytes]]:
        return ()

    async def bounds(self, workspace: WorkspaceId) -> tuple[int, int]:
        return 1, 0


def _bus() -> Bus:
    return Bus(WorkspaceRecord(WorkspaceId("w"), "/w", 1, 1, 0), EmptyLog(), open_parts=tuple)


def _deltas(count: int) -> list[MessageDeltaEvent]:
    session, message = SessionId("s" * 26), MessageId("m" * 26)
    return [MessageDeltaEvent(MessageDelta(session, message, 0, place * 6, "token ")) for place in range(count)]


async def _turns(count: int) -> None:
    """Run the loop until every reader waits."""
    for _ in range(count):
        await asyncio.sleep(0)


async def _read(bus: Bus, count: int) -> int:
    subscription = bus.subscribe(None, merge=False)
    await subscription.take(1)
    size = 0
    for _ in range(count):
        for frame in await subscription.take(1):
            size += len(frame.body)
    subscription.close()
    return size


async def _deliver(readers: int, count: int) -> float:
    bus = _bus()
    events = _deltas(count)
    async with asyncio.TaskGroup() as group:
        for _ in range(readers):
            group.create_task(_read(bus, count))
        await _turns(3)
        began = time.perf_counter()
        for event in events:
            bus.publish_live(event)
            await asyncio.sleep(0)
    return readers * count / (time.perf_counter() - began)


async def _await_futures(waiting: list[asyncio.Future[None]], count: int) -> None:
    loop = asyncio.get_running_loop()
    for _ in range(count):
        future = loop.create_future()
        waiting.append(future)
        await future


async def _deliver_bare(readers: int, count: int) -> float:
    waiting: list[asyncio.Future[None]] = []
    async with asyncio.TaskGroup() as group:
        for _ in range(readers):
            group.create_task(_await_futures(waiting, count))
        await _turns(3)
        began = time.perf_counter()
        for _ in range(count):
            woken = waiting[:]
            waiting.clear()
            for future in woken:
                future.set_result(None)
            await asyncio.sleep(0)
    return readers * count / (time.perf_counter() - began)


async def _publish_cost(lagging: int) -> float:
    """Return microseconds per event while `lagging` readers take no events."""
    bus = _bus()
    subscriptions = [bus.subscribe(None) for _ in range(lagging)]
    for subscription in subscriptions:
        await subscription.take()
    events = _deltas(PUBLISHED)
    began = time.perf_counter()
    for event in events:
        bus.publish_live(event)
    return (time.perf_counter() - began) / PUBLISHED * 1e6


def measure() -> list[Figure]:
    """Return the best of three results per row: disturbances only make a measurement slower."""
    figures = []
    gc.collect()
    for readers in READERS:
        count = DELIVERIES // max(readers, 5)
        pairs = [(uvloop.run(_deliver(readers, count)), asyncio.run(_deliver_bare(readers, count))) for _ in range(3)]
        value, limit = (max(column) for column in zip(*pairs, strict=True))
        goal = Goal(100_000, at_least=True) if readers == 100 else None
        figures.append(Figure(f"bus, {readers} readers", value, "per second", limit, "futures set and awaited", goal))
    for lagging in LAGGING:
        value = min(uvloop.run(_publish_cost(lagging)) for _ in range(3))
        figures.append(Figure(f"publish, {lagging} readers lagging", value, "µs"))
    return figures
