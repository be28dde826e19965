"""R6 on the bus: hello, replay, live events. No reader misses a wake-up, and no publisher blocks."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Sequence

import pytest

from bus.folding_reader import FoldingReader
from holdfast.bus.bus import Bus, Subscription
from holdfast.bus.frames import Gap, GapEvent, Hello, HelloEvent
from holdfast.bus.shared_backlog import SlowReaderPolicy
from holdfast.domain.errors import StorageUnavailable
from holdfast.domain.event_erasure import redact_session
from holdfast.domain.events import (
    Change,
    MessageDelta,
    MessageDeltaEvent,
    MessageEvent,
    MessagePart,
    Removed,
    RemovedEvent,
    RunComplete,
    RunCompleteEvent,
    SessionEvent,
    encode_event,
)
from holdfast.domain.ids import MessageId, RunId, SessionId, WorkspaceId
from holdfast.domain.messages import Message, Text, TextPart
from holdfast.domain.store_operations import Entry, WorkspaceRecord
from holdfast.engine.ports import Outlet
from holdfast.tasks import TaskOwner
from holdfast.testing.conformance import session as stored_session

SESSION, MESSAGE = SessionId("s"), MessageId("m")


class BusHarness:
    """A workspace with one growing message, its log, and its bus."""

    def __init__(self, policy: SlowReaderPolicy | None = None, *, stored: int = 0, newest: int | None = None) -> None:
        self.rows: list[tuple[int, bytes]] = []
        self.oldest = 1
        self.text = ""
        self.calls = 0
        self.fails = False
        self.at_stop: Callable[[int], object] | None = None
        self.newest = 0
        for _ in range(stored):
            self.commit()
        self.newest = newest or self.newest
        record = WorkspaceRecord(WorkspaceId("w"), "/w", 7, 1, self.newest)
        self.bus = Bus(record, self, self.open_parts, policy)

    def commit(self, event: RunCompleteEvent | MessageEvent | SessionEvent | None = None) -> Entry:
        self.newest += 1
        event = event or ended(f"r{self.newest}")
        entry = Entry(self.newest, event, encode_event(event))
        self.rows.append((entry.number, entry.body))
        return entry

    def publish(self, count: int = 1) -> None:
        for _ in range(count):
            self.bus.publish([self.commit()])

    def begin(self) -> None:
        message = Message((TextPart(Text("")),), MESSAGE, "assistant", SESSION, "", "", 0, 0)
        self.bus.publish([self.commit(MessageEvent(Change("created", message)))])

    def grow(self, text: str = "x") -> None:
        offset = len(self.text)
        self.text += text
        self.bus.publish_live(MessageDeltaEvent(MessageDelta(SESSION, MESSAGE, 0, offset, text)))

    def open_parts(self) -> list[MessagePart]:
        return [MessagePart(SESSION, MESSAGE, 0, TextPart(Text(self.text)))] if self.text else []

    async def events_after(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, bytes]]:
        await self._stop()
        page = [row for row in self.rows if row[0] > cursor and row[0] >= self.oldest][:limit]
        await self._stop()
        return page

    async def bounds(self, workspace: WorkspaceId) -> tuple[int, int]:
        await self._stop()
        held = [number for number, _ in self.rows if number >= self.oldest]
        bounds = (held[0] if held else self.newest + 1, self.newest)
        await self._stop()
        return bounds

    async def _stop(self) -> None:
        """A stop of the log at which the caller waits while `at_stop` acts."""
        self.calls += 1
        if self.fails:
            raise StorageUnavailable
        if self.at_stop is not None:
            loop = asyncio.get_running_loop()
            gate: asyncio.Future[None] = loop.create_future()
            loop.call_soon(self._act, self.at_stop, self.calls, gate)
            await gate

    @staticmethod
    def _act(at_stop: Callable[[int], object], stop: int, gate: asyncio.Future[None]) -> None:
        at_stop(stop)
        if not gate.done():
            gate.set_result(None)


def ended(run: str) -> RunCompleteEvent:
    return RunCompleteEvent(Change("updated", RunComplete(SESSION, MESSAGE, RunId(run), "completed")))


async def read_by(subscription: Subscription, *, harness: BusHarness, limit: int = 512) -> FoldingReader:
    harness.bus.close()
    return await FoldingReader().read_all(subscription, limit)


async def settle(harness: BusHarness, readers: int) -> None:
    """Let tasks run until this many readers wait; a reader needs a few loop iterations."""
    for _ in range(1000):
        if harness.bus.waiting == readers:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{harness.bus.waiting} of {readers} readers wait")


async def test_the_bus_is_an_outlet() -> None:
    harness = BusHarness()
    outlet: Outlet = harness.bus
    outlet.publish([harness.commit()])
    assert harness.bus.newest == 1


async def test_hello_is_first_and_flat() -> None:
    harness = BusHarness(stored=3)
    [hello] = await harness.bus.subscribe(None).take()
    assert hello.event == HelloEvent(Hello(cursor=3, oldest=1, epoch=7))
    assert hello.body == b'{"type":"hello","payload":{"cursor":3,"oldest":1,"epoch":7}}'
    assert hello.number is None


@pytest.mark.parametrize("limit", [1, 3, 512])
@pytest.mark.parametrize("since", [0, 1, 4, 5])
async def test_replay_then_live(since: int, limit: int) -> None:
    harness = BusHarness(stored=5)
    subscription = harness.bus.subscribe(since)
    harness.publish(3)
    reader = await read_by(subscription, harness=harness, limit=limit)
    assert reader.numbers == list(range(since + 1, 9))
    assert harness.bus.newest == subscription.cursor == 8


async def test_subscription_without_a_cursor_gets_only_new_events() -> None:
    harness = BusHarness(stored=5)
    subscription = harness.bus.subscribe(None)
    harness.publish(2)
    assert (await read_by(subscription, harness=harness)).numbers == [6, 7]


@pytest.mark.parametrize("since", [None, 0, 1, 4])
@pytest.mark.parametrize("frames", [2, 4096])
@pytest.mark.parametrize("point", range(1, 18))
async def test_r6_replay_joins_the_live_events_at_every_point(point: int, frames: int, since: int | None) -> None:
    """Events are published at one stop of the log: before or after its read, at any page, and once more at the end."""
    harness = BusHarness(SlowReaderPolicy(frames=frames), stored=4)
    harness.begin()
    harness.grow("abc")

    def at_stop(number: int) -> None:
        if number == point:
            harness.grow("de")
            harness.publish(3)
            harness.grow("f")

    harness.at_stop = at_stop
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(FoldingReader().read_all(harness.bus.subscribe(since), limit=1))
        await settle(harness, 1)
        harness.publish()
        harness.grow("g")
        harness.bus.close()
    reader = reading.result()
    assert reader.numbers == list(range((5 if since is None else since) + 1, harness.newest + 1))
    assert reader.text == harness.text


async def test_backlog_that_advances_during_the_replay_does_not_cut() -> None:
    """The reader stays with the log until it can join, however often the backlog has passed it."""
    harness = BusHarness(SlowReaderPolicy(frames=4), stored=10)
    subscription = harness.bus.subscribe(0)
    reader = FoldingReader()
    for _ in range(12):
        reader.fold(await subscription.take(5))
        harness.publish(6 if len(reader.numbers) < 50 else 1)
    harness.bus.close()
    await reader.read_all(subscription)
    assert reader.numbers == list(range(1, harness.newest + 1))


@pytest.mark.parametrize(
    ("since", "gaps", "numbers"),
    [
        (0, 0, [5, 6, 7, 8, 9]),
        (1, 1, [9]),
        (3, 1, [9]),
        (4, 0, [5, 6, 7, 8, 9]),
        (8, 0, [9]),
        (9, 1, [9]),
        (99, 1, [9]),
    ],
)
async def test_unavailable_cursor_is_a_gap(since: int, gaps: int, numbers: list[int]) -> None:
    harness = BusHarness(stored=8)
    harness.oldest = 5
    subscription = harness.bus.subscribe(since)
    hello, *rest = await subscription.take()
    assert hello.event == HelloEvent(Hello(cursor=8, oldest=5, epoch=7))
    assert [frame.event for frame in rest] == [GapEvent(Gap(cursor=8, oldest=5, epoch=7))] * gaps
    harness.publish()
    assert (await read_by(subscription, harness=harness)).numbers == numbers


async def test_events_deleted_during_the_replay_are_a_gap() -> None:
    harness = BusHarness(stored=8)
    subscription = harness.bus.subscribe(0)
    reader = FoldingReader()
    for _ in range(2):
        reader.fold(await subscription.take(2))
    harness.oldest = 6
    harness.publish()
    reader.fold(await subscription.take(2))
    assert reader.events[-1] == GapEvent(Gap(cursor=9, oldest=6, epoch=7))
    harness.publish()
    assert (await read_by(subscription, harness=harness)).numbers == [10]


@pytest.mark.parametrize("limit", [1, 512])
async def test_jump_in_the_numbering_is_not_a_gap(limit: int) -> None:
    harness = BusHarness(stored=3, newest=10_003)
    subscription = harness.bus.subscribe(2)
    harness.publish()
    reader = await read_by(subscription, harness=harness, limit=limit)
    assert reader.numbers == [3, 10_004]
    assert GapEvent not in map(type, reader.events)


async def test_a_snapshot_taken_between_commit_and_publication_fits() -> None:
    """Its cursor is ahead of the published events; that is not a gap, and nothing up to it is sent again."""
    harness = BusHarness(stored=2)
    entries = [harness.commit(), harness.commit()]
    subscription = harness.bus.subscribe(3)
    [hello] = await subscription.take()
    assert hello.event == HelloEvent(Hello(cursor=3, oldest=1, epoch=7))
    harness.bus.publish(entries)
    harness.bus.publish(entries[:1])
    assert harness.bus.newest == 4
    assert (await read_by(subscription, harness=harness)).numbers == [4]


@pytest.mark.parametrize("stored", range(4))
@pytest.mark.parametrize("unpublished", range(3))
async def test_the_first_event_for_every_state_of_the_log(stored: int, unpublished: int) -> None:
    """What is committed, published and pruned when a reader subscribes, with every cursor."""
    newest = stored + unpublished
    for oldest in range(1, newest + 2):
        for since in (None, *range(newest + 3)):
            harness = BusHarness(stored=stored)
            entries = [harness.commit() for _ in range(unpublished)]
            harness.oldest = oldest
            subscription = harness.bus.subscribe(since)
            frames = await subscription.take()
            is_gap = since is not None and (0 < since < oldest - 1 or since > newest)
            assert [isinstance(frame.event, GapEvent) for frame in frames] == [False, True][: 1 + is_gap]
            harness.bus.publish(entries)
            harness.publish()
            numbers = (await read_by(subscription, harness=harness)).numbers
            first = stored + 1 if since is None or is_gap else since + 1
            expected = [number for number in range(first, newest + 2) if number > stored or number >= oldest]
            assert numbers == expected, (oldest, since)


async def test_c46_late_reader_receives_every_end() -> None:
    harness = BusHarness(SlowReaderPolicy(frames=4))
    harness.publish(50)
    reader = await read_by(harness.bus.subscribe(0), harness=harness)
    assert reader.events[1:] == [ended(f"r{number}") for number in range(1, 51)]


async def cancelled_take(harness: BusHarness, subscription: Subscription, stop: int) -> None:
    """Start to take, and cancel at a stop of the log."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(subscription.take())
        harness.calls = 0
        harness.at_stop = lambda number: task.cancel() if number == stop else None
    harness.at_stop = None
    assert task.cancelled()


async def test_a_cancelled_take_loses_nothing_and_leaves_nothing() -> None:
    harness = BusHarness(stored=3)
    subscription = harness.bus.subscribe(0)
    reader = FoldingReader()
    for _ in ("hello", "page"):
        for stop in (1, 2):
            await cancelled_take(harness, subscription, stop)
        reader.fold(await subscription.take())
    async with asyncio.TaskGroup() as group:
        task = group.create_task(subscription.take())
        await settle(harness, 1)
        task.cancel()
    assert harness.bus.waiting == 0
    harness.publish()
    harness.bus.close()
    await reader.read_all(subscription)
    assert reader.numbers == [1, 2, 3, 4]


async def test_r11_a_closed_subscription_leaves_nothing_behind() -> None:
    harness = BusHarness(stored=3)
    subscription = harness.bus.subscribe(0)
    gone = weakref.ref(subscription)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(FoldingReader().read_all(subscription))
        await settle(harness, 1)
        subscription.close()
    assert reading.result().numbers == [1, 2, 3]
    assert await subscription.take() == []
    del subscription, reading
    gc.collect()
    assert gone() is None
    assert harness.bus.waiting == 0
    harness.publish()


async def test_frames_are_held_for_readers_that_lack_them_and_for_no_others() -> None:
    harness = BusHarness()
    quick, slow = harness.bus.subscribe(None), harness.bus.subscribe(None)
    harness.publish()
    assert harness.bus.held == 1
    listening = TaskOwner().start(FoldingReader().read_all(quick), name="quick")
    await settle(harness, 1)
    harness.publish(3)
    await settle(harness, 1)
    quick.close()
    assert (await listening).numbers == [1, 2, 3, 4]
    assert harness.bus.held == 4, "the slow one lacks them"
    harness.bus.close()
    assert (await FoldingReader().read_all(slow)).numbers == [1, 2, 3, 4]
    slow.close()
    assert harness.bus.held == 0


async def test_closing_the_bus_ends_readers_after_published_events() -> None:
    harness = BusHarness(stored=3)
    replaying, greeted = harness.bus.subscribe(0), harness.bus.subscribe(1)
    await greeted.take()
    async with asyncio.TaskGroup() as group:
        live = group.create_task(FoldingReader().read_all(harness.bus.subscribe(2)))
        await settle(harness, 1)
        harness.publish(2)
        harness.bus.close()
        harness.bus.publish([harness.commit()])
        harness.grow()
    assert live.result().numbers == [3, 4, 5]
    assert (await FoldingReader().read_all(replaying)).numbers == [1, 2, 3, 4, 5]
    assert (await FoldingReader().read_all(greeted)).numbers == [2, 3, 4, 5]
    assert await greeted.take() == []


async def test_an_error_of_the_log_is_raised_and_take_can_be_repeated() -> None:
    harness = BusHarness(stored=3)
    subscription = harness.bus.subscribe(1)
    for _ in range(2):
        harness.fails = True
        with pytest.raises(StorageUnavailable):
            await subscription.take()
        harness.fails = False
        await subscription.take()
    assert subscription.cursor == 3


async def test_slow_reader_gets_no_content_of_a_deleted_session() -> None:
    """Frames held for it are redacted, numbered or live; ends stay, and so do the frames of other sessions."""
    harness = BusHarness()
    reader = harness.bus.subscribe(0)
    assert isinstance((await reader.take())[0].event, HelloEvent)
    text = Message((TextPart(Text("canary")),), MESSAGE, "assistant", SESSION, "", "", 1, 1)
    other = Message((TextPart(Text("other")),), MESSAGE, "assistant", SessionId("t"), "", "", 1, 1)
    end = RunComplete(SESSION, MESSAGE, RunId("r"), "failed", "canary", "canary")
    events = (
        MessageEvent(Change("created", text)),
        MessageEvent(Change("created", other)),
        RunCompleteEvent(Change("updated", end)),
    )
    for event in events:
        harness.bus.publish([harness.commit(event)])
    harness.bus.publish_live(MessageDeltaEvent(MessageDelta(SESSION, MESSAGE, 0, 0, "canary")))
    gone = SessionEvent(Change("deleted", redact_session(stored_session("s"))))
    harness.bus.publish([harness.commit(gone)])
    seen: list[object] = []
    while len([event for event in seen if isinstance(event, SessionEvent)]) == 0:
        seen += [frame.event for frame in await reader.take()]
    emptied = RunComplete(SESSION, MessageId(""), RunId("r"), "failed")
    assert seen[:3] == [RemovedEvent(Removed(SESSION)), events[1], RunCompleteEvent(Change("updated", emptied))]
    assert "canary" not in str(seen)
    reader.close()
