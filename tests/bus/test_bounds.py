"""Content of the backlog, to the frame and to the byte, compared with a model in plain lists."""

import random
from collections.abc import Callable
from typing import Literal

import pytest

from holdfast.bus.frames import Frame
from holdfast.bus.shared_backlog import Backlog, ReaderCut, SlowReaderPolicy, _Ring
from holdfast.domain.events import (
    AgentEvent,
    AgentNotice,
    Change,
    LiveEvent,
    MessageDelta,
    MessageDeltaEvent,
    MessageEvent,
    MessagePart,
    MessagePartEvent,
    RemovedEvent,
    ToolOutput,
    ToolOutputEvent,
    encode_event,
)
from holdfast.domain.ids import MessageId, SessionId, ToolCallId
from holdfast.domain.messages import Message, Text, TextPart
from holdfast.domain.store_operations import Entry

SESSION, MESSAGE = SessionId("s"), MessageId("m")
ENVELOPE = 160
Ring = Literal["kept", "growth"]


def numbered(number: int, size: int = 0, session: str = "s") -> Entry:
    event = MessageEvent(Change("created", Message((), MESSAGE, "user", SessionId(session), "x" * size, "", 0, 0)))
    return Entry(number, event, encode_event(event))


def delta(text: str, session: str = "s") -> MessageDeltaEvent:
    return MessageDeltaEvent(MessageDelta(SessionId(session), MESSAGE, 0, 0, text))


def part(text: str, session: str = "s") -> MessagePartEvent:
    return MessagePartEvent(MessagePart(SessionId(session), MESSAGE, 0, TextPart(Text(text))))


def output(text: str, session: str = "s") -> ToolOutputEvent:
    return ToolOutputEvent(ToolOutput(SessionId(session), MESSAGE, ToolCallId("c"), 0, text))


def notice(text: str, session: str = "s") -> AgentEvent:
    return AgentEvent(Change("created", AgentNotice("error", session_id=SessionId(session), error=text)))


LIVE: dict[str, Ring] = {"delta": "growth", "part": "growth", "output": "growth", "notice": "kept"}
MAKERS: dict[str, Callable[..., LiveEvent]] = {"delta": delta, "part": part, "output": output, "notice": notice}


def weight_of(event: LiveEvent) -> int:
    if isinstance(event, MessageDeltaEvent):
        text = event.payload.text
        return ENVELOPE + (len(text) if text.isascii() else 4 * len(text))
    return len(encode_event(event))


class BacklogModel:
    """The rule: over the bound, the oldest delta is dropped while deltas have more than a quarter, or nothing else can
    be dropped; then the oldest of the rest. One frame always stays.
    """

    def __init__(self, policy: SlowReaderPolicy) -> None:
        self.policy = policy
        self.rings: dict[Ring, list[tuple[object, int]]] = {"kept": [], "growth": []}

    def weight(self, *rings: Ring) -> int:
        return sum(weight for ring in rings or ("kept", "growth") for _, weight in self.rings[ring])

    def __len__(self) -> int:
        return sum(map(len, self.rings.values()))

    def add(self, ring: Ring, event: object, weight: int) -> None:
        self.rings[ring].append((event, weight))
        while len(self) > 1 and (len(self) > self.policy.frames or self.weight() > self.policy.bytes):
            is_growth = (
                4 * len(self.rings["growth"]) >= 4 * (self.policy.frames // 4) + 4
                or self.weight("growth") >= self.policy.bytes // 4 + 1
                or len(self.rings["kept"]) < 2
            )
            self.rings["growth" if is_growth else "kept"].pop(0)


@pytest.mark.parametrize("seed", range(40))
def test_the_backlog_agrees_with_the_reference_model(seed: int) -> None:
    """Compared for two readers that start at the same position: one that keeps up, one that the bound has cut."""
    rng = random.Random(seed)
    policy = SlowReaderPolicy(rng.choice((1, 2, 4, 5, 8, 16, 99)), rng.choice((600, 1_000, 2_000, 100_000)))
    backlog, model, number = Backlog(policy), BacklogModel(policy), 0
    reader = backlog.reader(0)
    reader.take(99, list, merge=False)
    for _ in range(60):
        kind = rng.choice(("numbered", "numbered", *LIVE))
        text = rng.choice(("", "x", "x" * 40, "é" * 20, "x" * 150))
        if kind == "numbered":
            number += 1
            entry = numbered(number, len(text))
            backlog.append(entry)
            model.add("kept", entry.event, len(entry.body))
        else:
            event = MAKERS[kind](text)
            backlog.append_live(event)
            model.add(LIVE[kind], event, weight_of(event))
        assert (len(backlog), backlog.weight) == (len(model), model.weight())
    rings: dict[Ring, _Ring] = {"kept": backlog.kept, "growth": backlog.growth}
    for ring, held in rings.items():
        assert (len(held), held.weight) == (len(model.rings[ring]), model.weight(ring))
        frames = held.slice(held.first, 99) if len(held) else []
        assert [frame.event for frame in frames] == [event for event, _ in model.rings[ring]]
    backlog.clear()
    assert (len(backlog), backlog.weight, len(backlog.kept), len(backlog.growth)) == (0, 0, 0, 0)
    assert (backlog.kept.weight, backlog.growth.weight) == (0, 0)


@pytest.mark.parametrize("kind", LIVE)
def test_lost_deltas_are_replaced_by_open_parts_and_other_losses_cut_the_reader(kind: str) -> None:
    """A lost frame cuts the reader, unless the open parts replace it."""
    backlog = Backlog(SlowReaderPolicy(frames=1))
    reader = backlog.reader(0)
    reader.take(9, list, merge=False)
    backlog.append_live(MAKERS[kind]("lost"))
    backlog.append(numbered(1))
    if LIVE[kind] == "kept":
        with pytest.raises(ReaderCut, match="since 0") as cut:
            reader.take(9, list, merge=False)
        assert cut.value.cursor == 0
        return
    whole = Frame(event=part("whole"))
    assert [frame.event for frame in reader.take(9, lambda: [whole], merge=False)] == [numbered(1).event, whole.event]


def test_full_part_follows_the_last_kept_frame_after_lost_deltas() -> None:
    """Not before it; later deltas are sent unchanged."""
    backlog = Backlog(SlowReaderPolicy(frames=4))
    reader = backlog.reader(0)
    reader.take(9, list, merge=False)
    for _ in range(3):
        backlog.append_live(delta("x"))
    for number in (1, 2, 3):
        backlog.append(numbered(number))
    whole = Frame(event=part("xxx"))
    taken = [frame for _ in range(4) for frame in reader.take(1, lambda: [whole], merge=False)]
    assert [frame.number for frame in taken] == [1, 2, 3, None]
    backlog.append_live(delta("y"))
    assert [frame.event for frame in reader.take(9, lambda: [whole], merge=False)] == [delta("y")]


def test_frames_that_all_readers_have_are_released() -> None:
    """A cleared backlog keeps no frame, and readers at its end continue."""
    backlog = Backlog(SlowReaderPolicy())
    reader = backlog.reader(0)
    backlog.append(numbered(1))
    backlog.append_live(delta("x"))
    while reader.take(9, list, merge=False):
        pass
    backlog.clear()
    assert not backlog.kept._frames
    assert not backlog.growth._frames
    assert not reader.is_lost
    assert reader.take(9, list, merge=False) == []
    backlog.append(numbered(2))
    backlog.append_live(delta("y"))
    frames = reader.take(9, list, merge=False)
    assert [(frame.number, frame.event) for frame in frames] == [(2, numbered(2).event), (None, delta("y"))]


def test_a_late_reader_of_a_cleared_backlog_is_cut() -> None:
    backlog = Backlog(SlowReaderPolicy())
    reader = backlog.reader(0)
    backlog.append(numbered(1))
    backlog.clear()
    assert reader.is_lost
    with pytest.raises(ReaderCut):
        reader.take(9, list, merge=False)


@pytest.mark.parametrize("kind", ["numbered", *LIVE])
def test_held_events_of_a_deleted_session_are_redacted(kind: str) -> None:
    """In both rings, keeping number and position; other sessions keep theirs."""
    backlog = Backlog(SlowReaderPolicy())
    reader = backlog.reader(0)
    reader.take(9, list, merge=False)
    for number, session in ((7, "s"), (8, "t")):
        if kind == "numbered":
            backlog.append(numbered(number, 9, session))
        else:
            backlog.append_live(MAKERS[kind]("canary", session))
    before = (len(backlog), backlog.weight)
    backlog.empty("s")
    first, second = reader.take(9, list, merge=False)
    assert isinstance(first.event, RemovedEvent)
    assert b"canary" not in first.body
    assert first.body == encode_event(first.event)
    assert (first.index, second.index) == (1, 2)
    assert (first.number, second.number) == ((7, 8) if kind == "numbered" else (None, None))
    assert second.event == (numbered(8, 9, "t").event if kind == "numbered" else MAKERS[kind]("canary", "t"))
    assert (len(backlog), backlog.weight) == before


@pytest.mark.parametrize("count", [1, 4, 5])
def test_deltas_are_joined_only_for_a_reader_that_does_not_keep_up(count: int) -> None:
    backlog = Backlog(SlowReaderPolicy())
    reader = backlog.reader(0)
    reader.take(9, list, merge=True)
    for place in range(count):
        event = MessageDeltaEvent(MessageDelta(SESSION, MESSAGE, 0, place, "x"))
        backlog.append_live(event)
    assert len(reader.take(99, list, merge=True)) == (count if count <= 4 else 1)
