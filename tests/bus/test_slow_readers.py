"""R6 for readers of every speed: their cost, their losses, and delivery of every end (C-46, C-50)."""

import asyncio
import sys
from collections.abc import Sequence
from types import FrameType

import pytest

from bus.folding_reader import FoldingReader
from holdfast.bus import frames as frames_module
from holdfast.bus.bus import Bus
from holdfast.bus.shared_backlog import ReaderCut, SlowReaderPolicy
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
from holdfast.domain.messages import Message, Text, TextPart
from holdfast.domain.store_operations import Entry, WorkspaceRecord

SESSION, MESSAGE = SessionId("s"), MessageId("m")


class SlowReaderHarness:
    """A workspace in which runs end and one message grows."""

    def __init__(self, policy: SlowReaderPolicy | None = None) -> None:
        self.rows: list[tuple[int, bytes]] = []
        self.text = ""
        self.bus = Bus(WorkspaceRecord(WorkspaceId("w"), "/w", 7, 1, 0), self, self.open_parts, policy)

    def publish(self, count: int = 1) -> None:
        for _ in range(count):
            self._publish(RunCompleteEvent(Change("updated", RunComplete(SESSION, MESSAGE, RunId("r"), "completed"))))

    def begin(self) -> None:
        message = Message((TextPart(Text("")),), MESSAGE, "assistant", SESSION, "", "", 0, 0)
        self._publish(MessageEvent(Change("created", message)))

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

    def _publish(self, event: MessageEvent | RunCompleteEvent) -> None:
        entry = Entry(len(self.rows) + 1, event, encode_event(event))
        self.rows.append((entry.number, entry.body))
        self.bus.publish([entry])


async def settle(harness: SlowReaderHarness, readers: int) -> None:
    """Let tasks run until this many readers wait; a reader needs a few loop iterations."""
    for _ in range(1000):
        if harness.bus.waiting == readers:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{harness.bus.waiting} of {readers} readers wait")


async def test_c46_stalled_reader_is_cut_and_receives_every_end_when_it_resumes() -> None:
    harness = SlowReaderHarness(SlowReaderPolicy(frames=8))
    stalled = harness.bus.subscribe(0)
    reader = FoldingReader()
    reader.fold(await stalled.take())
    harness.publish(2)
    reader.fold(await stalled.take())
    harness.publish(30)
    for _ in range(2):
        with pytest.raises(ReaderCut) as cut:
            await stalled.take()
        assert cut.value.cursor == stalled.cursor == 2
    harness.bus.close()
    await reader.read_all(harness.bus.subscribe(cut.value.cursor))
    assert reader.numbers == list(range(1, 33))


async def test_r6_slow_reader_loses_deltas_first_and_gets_the_full_part() -> None:
    harness = SlowReaderHarness(SlowReaderPolicy(frames=8))
    subscription = harness.bus.subscribe(0)
    await subscription.take()
    harness.begin()
    for _ in range(100):
        harness.grow()
    harness.publish(3)
    reader = FoldingReader()
    reader.fold(await subscription.take())
    assert [type(event) for event in reader.events[1:]] == [RunCompleteEvent] * 3 + [MessagePartEvent]
    harness.grow("end")
    harness.bus.close()
    await reader.read_all(subscription)
    assert reader.text == "x" * 100 + "end"
    assert reader.numbers == [1, 2, 3, 4]


async def test_waiting_reader_is_not_cut_by_a_burst() -> None:
    harness = SlowReaderHarness(SlowReaderPolicy(frames=4))
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(FoldingReader().read_all(harness.bus.subscribe(0)))
        await settle(harness, 1)
        harness.publish(50)
        harness.bus.close()
    assert reading.result().numbers == list(range(1, 51))


async def test_event_is_encoded_once_for_a_hundred_readers(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Event] = []

    def count(event: Event) -> bytes:
        encoded.append(event)
        return encode_event(event)

    monkeypatch.setattr(frames_module, "encode_event", count)
    harness = SlowReaderHarness()
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(FoldingReader().read_all(harness.bus.subscribe(0, merge=False))) for _ in range(100)]
        await settle(harness, 100)
        harness.begin()
        for _ in range(20):
            harness.grow()
        assert encoded == []
        await settle(harness, 100)
        assert len(encoded) == 20
        late = [group.create_task(FoldingReader().read_all(harness.bus.subscribe(0))) for _ in range(10)]
        await settle(harness, 110)
        assert encoded[20:] == [MessagePartEvent(harness.open_parts()[0])]
        harness.grow()
        late.append(group.create_task(FoldingReader().read_all(harness.bus.subscribe(0))))
        harness.bus.close()
    for task in (*tasks, *late):
        assert (task.result().numbers, task.result().text) == ([1], "x" * 21)


async def test_cost_of_publishing_is_independent_of_slow_readers() -> None:
    """Counted in function calls: the same with one reader and with a hundred stalled ones, fewer with none."""
    costs = []
    for readers in (1, 100, 0):
        harness = SlowReaderHarness(SlowReaderPolicy(frames=16))
        lagging = [harness.bus.subscribe(0) for _ in range(readers)]
        for subscription in lagging:
            await subscription.take()
        costs.append(calls_of(harness))
    assert costs[0] == costs[1] > costs[2]


def calls_of(harness: SlowReaderHarness) -> int:
    calls = 0

    def count(frame: FrameType, event: str, argument: object) -> None:
        nonlocal calls
        calls += event in {"call", "c_call"}

    sys.setprofile(count)
    for _ in range(50):
        harness.grow()
        harness.publish()
    sys.setprofile(None)
    return calls


@pytest.mark.parametrize("every", [1, 50, 10_000])
async def test_c50_bytes_per_reader_grow_with_the_answer(every: int) -> None:
    """Ten times the response is ten times the bytes, for a fast, a slow and a stalled reader."""
    sizes = []
    for tokens in (300, 3000):
        harness = SlowReaderHarness()
        subscription = harness.bus.subscribe(0)
        reader = FoldingReader()
        reader.fold(await subscription.take())
        harness.begin()
        for token in range(tokens):
            harness.grow("token ")
            if token % every == 0:
                reader.fold(await subscription.take())
        harness.bus.close()
        await reader.read_all(subscription)
        assert reader.text == harness.text
        sizes.append(reader.size)
    assert sizes[1] <= 10.5 * sizes[0]


async def test_text_streamed_without_readers_is_not_lost() -> None:
    """R6: the next reader receives the whole text, followed by matching deltas."""
    harness = SlowReaderHarness()
    harness.begin()
    harness.grow("seen ")
    first = harness.bus.subscribe(0)
    while harness.text not in str([frame.event for frame in await first.take()]):
        pass
    first.close()
    harness.grow("unseen ")
    second, reader = harness.bus.subscribe(0), FoldingReader()
    while "unseen" not in reader.text:
        reader.fold(await second.take())
    harness.grow("seen again")
    reader.fold(await second.take())
    assert reader.text == "seen unseen seen again"


async def test_dropped_subscription_holds_no_frames() -> None:
    """R11: closed, or only unreferenced, it costs nothing afterwards."""
    harness = SlowReaderHarness()
    kept = harness.bus.subscribe(0)
    harness.bus.subscribe(0)
    kept.close()
    kept.close()
    harness.grow()
    assert len(harness.bus._backlog) == 0
