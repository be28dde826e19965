"""R6 for readers of every speed: what they cost, what they may lose, and that they learn every end (C-46, C-50)."""

import asyncio
import sys
from collections.abc import Sequence
from types import FrameType

import pytest

from bus.subscribers import Ear
from holdfast.bus import frames as frames_module
from holdfast.bus.backlog import ReaderCut, SlowReaderPolicy
from holdfast.bus.bus import Bus
from holdfast.domain.events import (
    Change,
    Event,
    MessageDelta,
    MessageDeltaEvent,
    MessageEvent,
    MessagePart,
    MessagePartEvent,
    RunComplete,
    RunCompleteEvent,
    encode_event,
)
from holdfast.domain.ids import MessageId, RunId, SessionId, WorkspaceId
from holdfast.domain.ledger import Entry, WorkspaceRecord
from holdfast.domain.messages import Message, Text, TextPart

SESSION, MESSAGE = SessionId("s"), MessageId("m")


class Stage:
    """A workspace in which runs end and one message grows."""

    def __init__(self, policy: SlowReaderPolicy | None = None) -> None:
        self.rows: list[tuple[int, bytes]] = []
        self.text = ""
        self.bus = Bus(WorkspaceRecord(WorkspaceId("w"), "/w", 7, 1, 0), self, self.open_parts, policy)

    def publish(self, count: int = 1) -> None:
        for _ in range(count):
            self._say(RunCompleteEvent(Change("updated", RunComplete(SESSION, MESSAGE, RunId("r"), "completed"))))

    def begin(self) -> None:
        message = Message((TextPart(Text("")),), MESSAGE, "assistant", SESSION, "", "", 0, 0)
        self._say(MessageEvent(Change("created", message)))

    def grow(self, text: str = "x") -> None:
        offset = len(self.text)
        self.text += text
        self.bus.publish_live(MessageDeltaEvent(MessageDelta(SESSION, MESSAGE, 0, offset, text)))

    def open_parts(self) -> list[MessagePart]:
        return [MessagePart(SESSION, MESSAGE, 0, TextPart(Text(self.text)))] if self.text else []

    async def events_after(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, bytes]]:
        return self.rows[cursor : cursor + limit]

    async def bounds(self, workspace: WorkspaceId) -> tuple[int, int]:
        return 1, len(self.rows)

    def _say(self, event: MessageEvent | RunCompleteEvent) -> None:
        entry = Entry(len(self.rows) + 1, event, encode_event(event))
        self.rows.append((entry.number, entry.body))
        self.bus.publish([entry])


async def settle(stage: Stage, readers: int) -> None:
    """Let tasks run until so many readers wait; a reader needs a few loop iterations."""
    for _ in range(1000):
        if stage.bus.waiting == readers:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{stage.bus.waiting} of {readers} readers wait")


async def test_c46_a_reader_that_stalls_is_cut_and_learns_every_end_when_it_resumes() -> None:
    stage = Stage(SlowReaderPolicy(frames=8))
    stalled = stage.bus.subscribe(0)
    ear = Ear()
    ear.hear(await stalled.take())
    stage.publish(2)
    ear.hear(await stalled.take())
    stage.publish(30)
    for _ in range(2):
        with pytest.raises(ReaderCut) as cut:
            await stalled.take()
        assert cut.value.cursor == stalled.cursor == 2
    stage.bus.close()
    await ear.listen(stage.bus.subscribe(cut.value.cursor))
    assert ear.numbers == list(range(1, 33))


async def test_r6_a_slow_reader_loses_deltas_first_and_gets_the_whole_part() -> None:
    stage = Stage(SlowReaderPolicy(frames=8))
    subscription = stage.bus.subscribe(0)
    await subscription.take()
    stage.begin()
    for _ in range(100):
        stage.grow()
    stage.publish(3)
    ear = Ear()
    ear.hear(await subscription.take())
    assert [type(event) for event in ear.events[1:]] == [RunCompleteEvent] * 3 + [MessagePartEvent]
    stage.grow("end")
    stage.bus.close()
    await ear.listen(subscription)
    assert ear.text == "x" * 100 + "end"
    assert ear.numbers == [1, 2, 3, 4]


async def test_who_waits_is_not_slow_and_not_cut_by_a_burst() -> None:
    stage = Stage(SlowReaderPolicy(frames=4))
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(Ear().listen(stage.bus.subscribe(0)))
        await settle(stage, 1)
        stage.publish(50)
        stage.bus.close()
    assert reading.result().numbers == list(range(1, 51))


async def test_one_encoding_for_a_hundred_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Event] = []

    def count(event: Event) -> bytes:
        encoded.append(event)
        return encode_event(event)

    monkeypatch.setattr(frames_module, "encode_event", count)
    stage = Stage()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(Ear().listen(stage.bus.subscribe(0, merge=False))) for _ in range(100)]
        await settle(stage, 100)
        stage.begin()
        for _ in range(20):
            stage.grow()
        assert encoded == []
        await settle(stage, 100)
        assert len(encoded) == 20
        late = [group.create_task(Ear().listen(stage.bus.subscribe(0))) for _ in range(10)]
        await settle(stage, 110)
        assert encoded[20:] == [MessagePartEvent(stage.open_parts()[0])]
        stage.grow()
        late.append(group.create_task(Ear().listen(stage.bus.subscribe(0))))
        stage.bus.close()
    for task in (*tasks, *late):
        assert (task.result().numbers, task.result().text) == ([1], "x" * 21)


async def test_publishing_costs_the_same_with_slow_readers() -> None:
    """Counted in function calls: the same with one reader and with a hundred stalled ones, less with none."""
    costs = []
    for readers in (1, 100, 0):
        stage = Stage(SlowReaderPolicy(frames=16))
        lagging = [stage.bus.subscribe(0) for _ in range(readers)]
        for subscription in lagging:
            await subscription.take()
        costs.append(calls_of(stage))
    assert costs[0] == costs[1] > costs[2]


def calls_of(stage: Stage) -> int:
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    for _ in range(50):
        stage.grow()
        stage.publish()
    sys.setprofile(None)
    return calls


@pytest.mark.parametrize("every", [1, 50, 10_000])
async def test_c50_bytes_per_reader_grow_with_the_answer(every: int) -> None:
    """Ten times the answer is ten times the bytes, for a fast, a slow and a stalled reader."""
    sizes = []
    for tokens in (300, 3000):
        stage = Stage()
        subscription = stage.bus.subscribe(0)
        ear = Ear()
        ear.hear(await subscription.take())
        stage.begin()
        for token in range(tokens):
            stage.grow("token ")
            if token % every == 0:
                ear.hear(await subscription.take())
        stage.bus.close()
        await ear.listen(subscription)
        assert ear.text == stage.text
        sizes.append(ear.size)
    assert sizes[1] <= 10.5 * sizes[0]


async def test_text_streamed_without_readers_is_not_lost() -> None:
    """R6: the next reader receives the whole text, followed by matching deltas."""
    stage = Stage()
    stage.begin()
    stage.grow("seen ")
    first = stage.bus.subscribe(0)
    while stage.text not in str([frame.event for frame in await first.take()]):
        pass
    first.close()
    stage.grow("unseen ")
    second, ear = stage.bus.subscribe(0), Ear()
    while "unseen" not in ear.text:
        ear.hear(await second.take())
    stage.grow("seen again")
    ear.hear(await second.take())
    assert ear.text == "seen unseen seen again"


async def test_a_subscription_that_is_dropped_counts_no_more() -> None:
    """R11: closed, or only forgotten, it costs nothing afterwards."""
    stage = Stage()
    kept = stage.bus.subscribe(0)
    stage.bus.subscribe(0)
    kept.close()
    kept.close()
    stage.grow()
    assert len(stage.bus._backlog) == 0
