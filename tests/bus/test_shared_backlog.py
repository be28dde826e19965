"""R6: for every sequence of events and speed of readers, numbered events arrive once, in order, and the text is
complete.
"""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.bus.frames import Frame
from holdfast.bus.shared_backlog import Backlog, Reader, ReaderCut, SlowReaderPolicy, merge_deltas
from holdfast.domain.events import (
    AgentEvent,
    AgentNotice,
    Change,
    ChangeKind,
    DurableEvent,
    LiveEvent,
    MessageDelta,
    MessageDeltaEvent,
    MessageEvent,
    MessagePart,
    MessagePartEvent,
    decode_event,
    encode_event,
)
from holdfast.domain.ids import MessageId, SessionId
from holdfast.domain.message_merge import grow, text_length
from holdfast.domain.messages import Message, Part, Text, TextPart
from holdfast.domain.store_operations import Entry

EMPTY = TextPart(Text(""))
NOTICE = AgentEvent(Change("created", AgentNotice("agent_finished")))


def delta(text: str, offset: int = 0, message: str = "m", part: int = 0) -> MessageDeltaEvent:
    return MessageDeltaEvent(MessageDelta(SessionId("s"), MessageId(message), part, offset, text))


def full_part(text: str) -> MessagePartEvent:
    return MessagePartEvent(MessagePart(SessionId("s"), MessageId("m"), 0, TextPart(Text(text))))


def no_parts() -> list[Frame]:
    return []


class MessageWriter:
    """Writes messages, one at a time in each of two sessions, and keeps their true content."""

    def __init__(self, policy: SlowReaderPolicy) -> None:
        self.backlog = Backlog(policy)
        self.log: list[Entry] = []
        self.messages: dict[MessageId, Message] = {}
        self.open: dict[int, MessageId] = {}

    def publish(self, event: DurableEvent) -> None:
        self.log.append(Entry(len(self.log) + 1, event, encode_event(event)))
        self.backlog.append(self.log[-1])

    def grow(self, session: int, text: str) -> None:
        if session not in self.open:
            self.open[session] = MessageId(f"m{len(self.messages)}")
            self._put("created", session, (EMPTY,))
        message = self.messages[self.open[session]]
        part = len(message.parts) - 1
        growth = MessageDelta(message.session_id, message.id, part, text_length(message.parts[part]) or 0, text)
        self.messages[message.id] = grow(message, [growth])
        self.backlog.append_live(MessageDeltaEvent(growth))

    def add_part(self, session: int) -> None:
        if session in self.open:
            self._put("updated", session, (*self.messages[self.open[session]].parts, EMPTY))

    def finish(self, session: int) -> None:
        if session in self.open:
            self._put("updated", session, self.messages[self.open[session]].parts)
            del self.open[session]

    def notice(self) -> None:
        self.backlog.append_live(NOTICE)

    def full_parts(self) -> Iterator[Frame]:
        for message_id in self.open.values():
            message = self.messages[message_id]
            last = len(message.parts) - 1
            yield Frame(event=MessagePartEvent(MessagePart(message.session_id, message.id, last, message.parts[last])))

    def _put(self, kind: ChangeKind, session: int, parts: tuple[Part, ...]) -> None:
        message = Message(parts, self.open[session], "assistant", SessionId(f"s{session}"), "", "", 0, 0)
        self.messages[message.id] = message
        self.publish(MessageEvent(Change(kind, message)))


class CheckingReader:
    """Folds the frames a reader takes; fails on a gap, a duplicate or a wrong order."""

    def __init__(self, author: MessageWriter, *, limit: int, merge: bool) -> None:
        self.author, self.limit, self.merge = author, limit, merge
        self.messages: dict[MessageId, Message] = {}
        self.numbers: list[int] = []
        self.reader: Reader = author.backlog.reader(0)

    def take(self) -> bool:
        """Take once, or resume after a cut; return true if there may be more."""
        try:
            frames = self.reader.take(self.limit, self.author.full_parts, merge=self.merge)
        except ReaderCut as cut:
            frames = [Frame(number=entry.number, body=entry.body) for entry in self.author.log[cut.cursor :]]
            self.reader = self.author.backlog.reader(len(self.author.log))
            self._fold(frames)
            return True
        self._fold(frames)
        return bool(frames)

    def _fold(self, frames: list[Frame]) -> None:
        for frame in frames:
            assert decode_event(frame.body) == frame.event
            if frame.number is not None:
                assert frame.number == len(self.numbers) + 1
                self.numbers.append(frame.number)
            match frame.event:
                case MessageEvent(change=change):
                    self.messages[change.object.id] = change.object
                case MessageDeltaEvent(payload=growth):
                    message = self.messages[growth.message_id]
                    assert growth.offset <= (text_length(message.parts[growth.part]) or 0), "a hole"
                    self.messages[message.id] = grow(message, [growth])
                case MessagePartEvent(payload=part):
                    self.messages[part.message_id] = grow(self.messages[part.message_id], [part])
                case _:
                    pass


SESSIONS = st.sampled_from([0, 1])
TEXTS = st.sampled_from(["a", "bc", "é", "😀x", '"\n', "0123456789" * 5])
STEPS = st.one_of(
    st.tuples(st.just("grow"), SESSIONS, TEXTS),
    st.tuples(st.just("grow"), SESSIONS, TEXTS),
    st.tuples(st.just("part"), SESSIONS, st.just("")),
    st.tuples(st.just("finish"), SESSIONS, st.just("")),
    st.tuples(st.just("notice"), SESSIONS, st.just("")),
    st.tuples(st.just("take"), st.integers(0, 3), st.just("")),
    st.tuples(st.just("take"), st.integers(0, 3), st.just("")),
)


@settings(max_examples=300, deadline=None)
@given(steps=st.lists(STEPS, max_size=120), frames=st.integers(1, 16), size=st.sampled_from([400, 2000, 100_000]))
def test_r6_every_interleaving_delivers_everything_once_in_order(
    steps: list[tuple[str, int, str]], frames: int, size: int
) -> None:
    author = MessageWriter(SlowReaderPolicy(frames=frames, bytes=size))
    listeners = [
        CheckingReader(author, limit=limit, merge=merge)
        for limit, merge in ((1, False), (3, False), (7, True), (99, True))
    ]
    for action, which, text in steps:
        match action:
            case "grow":
                author.grow(which, text)
            case "part":
                author.add_part(which)
            case "finish":
                author.finish(which)
            case "notice":
                author.notice()
            case _:
                listeners[which].take()
        held = author.backlog
        assert len(held) == 1 or (len(held) <= frames and held.weight <= size)
    for listener in listeners:
        assert not all(listener.take() for _ in range(2 * len(steps) + 3)), "no end"
        assert listener.numbers == [entry.number for entry in author.log]
        assert listener.messages == author.messages


def entry(number: int, size: int = 0) -> Entry:
    event = MessageEvent(Change("created", Message((), MessageId("m"), "user", SessionId("s"), "x" * size, "", 0, 0)))
    return Entry(number, event, encode_event(event))


def test_deltas_are_dropped_before_numbered_events() -> None:
    backlog = Backlog(SlowReaderPolicy(frames=8))
    reader = backlog.reader(0)
    for place in range(6):
        backlog.append_live(delta("x", place))
    for number in range(1, 7):
        backlog.append(entry(number))
    frames = reader.take(99, lambda: [Frame(event=full_part("xxxxxx"))], merge=False)
    assert [frame.number for frame in frames] == [1, 2, 3, 4, 5, 6, None]
    assert frames[-1].event == full_part("xxxxxx")


@pytest.mark.parametrize("limit", [1, 2, 3, 99])
def test_numbered_and_live_frames_keep_their_order(limit: int) -> None:
    backlog = Backlog(SlowReaderPolicy())
    reader = backlog.reader(0)
    reader.take(99, no_parts, merge=False)
    for number in range(1, 6):
        backlog.append_live(delta("x", 2 * number))
        backlog.append_live(delta("x", 2 * number + 1))
        backlog.append(entry(number))
    taken = [frame for _ in range(15) for frame in reader.take(limit, no_parts, merge=False)]
    assert [frame.index for frame in taken] == list(range(1, 16))


def test_notices_are_kept_longer_than_deltas() -> None:
    backlog = Backlog(SlowReaderPolicy(frames=4))
    reader = backlog.reader(0)
    backlog.append_live(NOTICE)
    for place in range(20):
        backlog.append_live(delta("x", place))
    assert NOTICE in [frame.event for frame in reader.take(99, no_parts, merge=False)]


def test_a_reader_that_keeps_up_streams_from_a_backlog_full_of_numbered_frames() -> None:
    backlog = Backlog(SlowReaderPolicy(frames=8))
    for number in range(1, 20):
        backlog.append(entry(number))
    reader = backlog.reader(19)
    reader.take(99, no_parts, merge=False)
    for place in range(50):
        event = delta("x", place)
        backlog.append_live(event)
        assert [frame.event for frame in reader.take(99, no_parts, merge=False)] == [event]


def test_a_lost_number_cuts_the_reader_with_its_cursor() -> None:
    backlog = Backlog(SlowReaderPolicy(frames=4))
    reader = backlog.reader(0)
    backlog.append(entry(1))
    assert [frame.number for frame in reader.take(99, no_parts, merge=False)] == [1]
    for number in range(2, 7):
        backlog.append(entry(number))
    assert reader.is_lost
    for _ in range(2):
        with pytest.raises(ReaderCut) as cut:
            reader.take(99, no_parts, merge=False)
        assert cut.value.cursor == 1


def test_a_frame_heavier_than_the_bound_is_held_alone() -> None:
    backlog = Backlog(SlowReaderPolicy(bytes=1000))
    reader = backlog.reader(0)
    backlog.append_live(delta("x"))
    backlog.append(entry(1, size=5000))
    assert len(backlog) == 1
    assert [frame.number for frame in reader.take(99, no_parts, merge=False)] == [1]
    backlog.append(entry(2))
    assert (len(backlog), backlog.weight) == (1, len(entry(2).body))


def test_a_backlog_without_readers_stays_bounded() -> None:
    """R11."""
    policy = SlowReaderPolicy(frames=64, bytes=16_000)
    backlog = Backlog(policy)
    for number in range(1, 2000):
        backlog.append(entry(number))
        backlog.append_live(delta("text" * 20))
        backlog.append_live(full_part("text"))
        assert len(backlog) <= policy.frames
        assert backlog.weight <= policy.bytes


def test_numbers_the_reader_has_are_not_sent_again() -> None:
    backlog = Backlog(SlowReaderPolicy())
    reader = backlog.reader(0)
    for number in range(1, 6):
        backlog.append(entry(number))
    reader.cursor = 4
    assert [frame.number for frame in reader.take(2, no_parts, merge=False)] == [5]
    assert reader.take(2, no_parts, merge=False) == []


def events_of(frames: list[Frame]) -> list[object]:
    return [frame.event for frame in frames]


def frames_of(*events: LiveEvent) -> list[Frame]:
    return [Frame(place, event=event) for place, event in enumerate(events, 1)]


def test_deltas_of_interleaved_parts_are_merged() -> None:
    frames = frames_of(delta("é"), delta("x", 7, "n"), delta("b", 1), delta("c", 2), delta("y", 8, "n"))
    assert events_of(merge_deltas(frames)) == [delta("ébc"), delta("xy", 7, "n")]


@pytest.mark.parametrize("between", [NOTICE, full_part("ab"), delta("z", 9)])
def test_deltas_are_not_merged_across_other_events(between: LiveEvent) -> None:
    frames = frames_of(delta("a"), between, delta("b", 1))
    assert merge_deltas(frames) == frames


def test_readers_share_the_published_event() -> None:
    """It is not decoded again from its bytes."""
    writer = MessageWriter(SlowReaderPolicy())
    readers = [writer.backlog.reader(0) for _ in range(2)]
    writer.grow(0, "a")
    entry = writer.log[0]
    for reader in readers:
        frame = reader.take(1, no_parts, merge=False)[0]
        assert (frame.event is entry.event, frame.body is entry.body) == (True, True)


def test_a_few_frames_are_not_merged() -> None:
    backlog = Backlog(SlowReaderPolicy())
    reader = backlog.reader(0)
    reader.take(99, no_parts, merge=True)
    for place in range(4):
        backlog.append_live(delta("x", place))
    assert len(reader.take(99, no_parts, merge=True)) == 4
    for place in range(4, 9):
        backlog.append_live(delta("x", place))
    assert events_of(reader.take(99, no_parts, merge=True)) == [delta("xxxxx", 4)]
    for place in range(9, 14):
        backlog.append_live(delta("x", place))
    assert len(reader.take(99, no_parts, merge=False)) == 5
