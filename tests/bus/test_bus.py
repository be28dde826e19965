"""R6 on the bus: hello, replay, live events. No reader misses a wake-up, and no publisher blocks."""

import asyncio
import gc
import weakref
from collections.abc import Callable, Sequence

import pytest

from bus.subscribers import Ear
from holdfast.bus.backlog import SlowReaderPolicy
from holdfast.bus.bus import Bus, Subscription
from holdfast.bus.frames import Gap, GapEvent, Hello, HelloEvent
from holdfast.domain.errors import StorageUnavailable
from holdfast.domain.event_redaction import redact_session
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
from holdfast.domain.ledger import Entry, WorkspaceRecord
from holdfast.domain.messages import Message, Text, TextPart
from holdfast.engine.ports import Outlet
from holdfast.tasks import TaskOwner
from holdfast.testing.conformance import session as stored_session

SESSION, MESSAGE = SessionId("s"), MessageId("m")


class Stage:
    """A workspace with one message that grows, its log, and its bus."""

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
        await self._pass()
        page = [row for row in self.rows if row[0] > cursor and row[0] >= self.oldest][:limit]
        await self._pass()
        return page

    async def bounds(self, workspace: WorkspaceId) -> tuple[int, int]:
        await self._pass()
        held = [number for number, _ in self.rows if number >= self.oldest]
        bounds = (held[0] if held else self.newest + 1, self.newest)
        await self._pass()
        return bounds

    async def _pass(self) -> None:
        """Where the log stops its caller, and lets `at_stop` act meanwhile."""
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


async def heard_by(subscription: Subscription, *, stage: Stage, limit: int = 512) -> Ear:
    stage.bus.close()
    return await Ear().listen(subscription, limit)


async def settle(stage: Stage, readers: int) -> None:
    """Let tasks run until so many readers wait; a reader needs a few loop iterations."""
    for _ in range(1000):
        if stage.bus.waiting == readers:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{stage.bus.waiting} of {readers} readers wait")


async def test_the_bus_is_an_outlet() -> None:
    stage = Stage()
    outlet: Outlet = stage.bus
    outlet.publish([stage.commit()])
    assert stage.bus.newest == 1


async def test_hello_is_first_and_flat() -> None:
    stage = Stage(stored=3)
    [hello] = await stage.bus.subscribe(None).take()
    assert hello.event == HelloEvent(Hello(cursor=3, oldest=1, epoch=7))
    assert hello.body == b'{"type":"hello","payload":{"cursor":3,"oldest":1,"epoch":7}}'
    assert hello.number is None


@pytest.mark.parametrize("limit", [1, 3, 512])
@pytest.mark.parametrize("since", [0, 1, 4, 5])
async def test_replay_then_live(since: int, limit: int) -> None:
    stage = Stage(stored=5)
    subscription = stage.bus.subscribe(since)
    stage.publish(3)
    ear = await heard_by(subscription, stage=stage, limit=limit)
    assert ear.numbers == list(range(since + 1, 9))
    assert stage.bus.newest == subscription.cursor == 8


async def test_without_a_number_only_new_events() -> None:
    stage = Stage(stored=5)
    subscription = stage.bus.subscribe(None)
    stage.publish(2)
    assert (await heard_by(subscription, stage=stage)).numbers == [6, 7]


@pytest.mark.parametrize("since", [None, 0, 1, 4])
@pytest.mark.parametrize("frames", [2, 4096])
@pytest.mark.parametrize("point", range(1, 18))
async def test_r6_a_join_at_every_point_of_the_replay(point: int, frames: int, since: int | None) -> None:
    """Events are published at one stop of the log: before or after it looked, at any page, and once more at the end."""
    stage = Stage(SlowReaderPolicy(frames=frames), stored=4)
    stage.begin()
    stage.grow("abc")

    def at_stop(number: int) -> None:
        if number == point:
            stage.grow("de")
            stage.publish(3)
            stage.grow("f")

    stage.at_stop = at_stop
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(Ear().listen(stage.bus.subscribe(since), limit=1))
        await settle(stage, 1)
        stage.publish()
        stage.grow("g")
        stage.bus.close()
    ear = reading.result()
    assert ear.numbers == list(range((5 if since is None else since) + 1, stage.newest + 1))
    assert ear.text == stage.text


async def test_a_backlog_that_moves_on_during_the_replay_does_not_cut() -> None:
    """The reader keeps to the log until it can join, however often the backlog has passed it by."""
    stage = Stage(SlowReaderPolicy(frames=4), stored=10)
    subscription = stage.bus.subscribe(0)
    ear = Ear()
    for _ in range(12):
        ear.hear(await subscription.take(5))
        stage.publish(6 if len(ear.numbers) < 50 else 1)
    stage.bus.close()
    await ear.listen(subscription)
    assert ear.numbers == list(range(1, stage.newest + 1))


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
async def test_a_number_that_is_not_held_is_a_gap(since: int, gaps: int, numbers: list[int]) -> None:
    stage = Stage(stored=8)
    stage.oldest = 5
    subscription = stage.bus.subscribe(since)
    hello, *rest = await subscription.take()
    assert hello.event == HelloEvent(Hello(cursor=8, oldest=5, epoch=7))
    assert [frame.event for frame in rest] == [GapEvent(Gap(cursor=8, oldest=5, epoch=7))] * gaps
    stage.publish()
    assert (await heard_by(subscription, stage=stage)).numbers == numbers


async def test_events_deleted_during_the_replay_are_a_gap() -> None:
    stage = Stage(stored=8)
    subscription = stage.bus.subscribe(0)
    ear = Ear()
    for _ in range(2):
        ear.hear(await subscription.take(2))
    stage.oldest = 6
    stage.publish()
    ear.hear(await subscription.take(2))
    assert ear.events[-1] == GapEvent(Gap(cursor=9, oldest=6, epoch=7))
    stage.publish()
    assert (await heard_by(subscription, stage=stage)).numbers == [10]


@pytest.mark.parametrize("limit", [1, 512])
async def test_a_jump_of_the_numbering_is_no_gap(limit: int) -> None:
    stage = Stage(stored=3, newest=10_003)
    subscription = stage.bus.subscribe(2)
    stage.publish()
    ear = await heard_by(subscription, stage=stage, limit=limit)
    assert ear.numbers == [3, 10_004]
    assert GapEvent not in map(type, ear.events)


async def test_a_snapshot_taken_between_commit_and_publication_fits() -> None:
    """Its cursor is ahead of what was published; that is no gap, and nothing up to it is sent again."""
    stage = Stage(stored=2)
    entries = [stage.commit(), stage.commit()]
    subscription = stage.bus.subscribe(3)
    [hello] = await subscription.take()
    assert hello.event == HelloEvent(Hello(cursor=3, oldest=1, epoch=7))
    stage.bus.publish(entries)
    stage.bus.publish(entries[:1])
    assert stage.bus.newest == 4
    assert (await heard_by(subscription, stage=stage)).numbers == [4]


async def test_c46_a_reader_that_connects_late_learns_every_end() -> None:
    stage = Stage(SlowReaderPolicy(frames=4))
    stage.publish(50)
    ear = await heard_by(stage.bus.subscribe(0), stage=stage)
    assert ear.events[1:] == [ended(f"r{number}") for number in range(1, 51)]


async def cancelled_take(stage: Stage, subscription: Subscription, stop: int) -> None:
    """Begin to take, and give up at a stop of the log."""
    async with asyncio.TaskGroup() as group:
        task = group.create_task(subscription.take())
        stage.calls = 0
        stage.at_stop = lambda number: task.cancel() if number == stop else None
    stage.at_stop = None
    assert task.cancelled()


async def test_a_cancelled_take_loses_nothing_and_leaves_nothing() -> None:
    stage = Stage(stored=3)
    subscription = stage.bus.subscribe(0)
    ear = Ear()
    for _ in ("hello", "page"):
        for stop in (1, 2):
            await cancelled_take(stage, subscription, stop)
        ear.hear(await subscription.take())
    async with asyncio.TaskGroup() as group:
        task = group.create_task(subscription.take())
        await settle(stage, 1)
        task.cancel()
    assert stage.bus.waiting == 0
    stage.publish()
    stage.bus.close()
    await ear.listen(subscription)
    assert ear.numbers == [1, 2, 3, 4]


async def test_r11_a_closed_subscription_leaves_nothing_behind() -> None:
    stage = Stage(stored=3)
    subscription = stage.bus.subscribe(0)
    gone = weakref.ref(subscription)
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(Ear().listen(subscription))
        await settle(stage, 1)
        subscription.close()
    assert reading.result().numbers == [1, 2, 3]
    assert await subscription.take() == []
    del subscription, reading
    gc.collect()
    assert gone() is None
    assert stage.bus.waiting == 0
    stage.publish()


async def test_frames_are_held_for_readers_that_lack_them_and_for_no_others() -> None:
    stage = Stage()
    quick, slow = stage.bus.subscribe(None), stage.bus.subscribe(None)
    stage.publish()
    assert stage.bus.held == 1
    listening = TaskOwner().start(Ear().listen(quick), name="quick")
    await settle(stage, 1)
    stage.publish(3)
    await settle(stage, 1)
    quick.close()
    assert (await listening).numbers == [1, 2, 3, 4]
    assert stage.bus.held == 4, "the slow one lacks them"
    stage.bus.close()
    assert (await Ear().listen(slow)).numbers == [1, 2, 3, 4]
    slow.close()
    assert stage.bus.held == 0


async def test_closing_the_bus_ends_readers_after_published_events() -> None:
    stage = Stage(stored=3)
    replaying, greeted = stage.bus.subscribe(0), stage.bus.subscribe(1)
    await greeted.take()
    async with asyncio.TaskGroup() as group:
        live = group.create_task(Ear().listen(stage.bus.subscribe(2)))
        await settle(stage, 1)
        stage.publish(2)
        stage.bus.close()
        stage.bus.publish([stage.commit()])
        stage.grow()
    assert live.result().numbers == [3, 4, 5]
    assert (await Ear().listen(replaying)).numbers == [1, 2, 3, 4, 5]
    assert (await Ear().listen(greeted)).numbers == [2, 3, 4, 5]
    assert await greeted.take() == []


async def test_an_error_of_the_log_is_raised_and_take_can_be_repeated() -> None:
    stage = Stage(stored=3)
    subscription = stage.bus.subscribe(1)
    for _ in range(2):
        stage.fails = True
        with pytest.raises(StorageUnavailable):
            await subscription.take()
        stage.fails = False
        await subscription.take()
    assert subscription.cursor == 3


async def test_a_reader_that_is_behind_gets_nothing_of_a_deleted_session() -> None:
    """What is held for it is emptied, numbered or live; ends stay, and so does what belongs to other sessions."""
    stage = Stage()
    reader = stage.bus.subscribe(0)
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
        stage.bus.publish([stage.commit(event)])
    stage.bus.publish_live(MessageDeltaEvent(MessageDelta(SESSION, MESSAGE, 0, 0, "canary")))
    gone = SessionEvent(Change("deleted", redact_session(stored_session("s"))))
    stage.bus.publish([stage.commit(gone)])
    seen: list[object] = []
    while len([event for event in seen if isinstance(event, SessionEvent)]) == 0:
        seen += [frame.event for frame in await reader.take()]
    emptied = RunComplete(SESSION, MessageId(""), RunId("r"), "failed")
    assert seen[:3] == [RemovedEvent(Removed(SESSION)), events[1], RunCompleteEvent(Change("updated", emptied))]
    assert "canary" not in str(seen)
    reader.close()
