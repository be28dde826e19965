"""The stream as stock clients know it: whole messages, in bytes that stay within bounds."""

import math

from holdfast.domain.events import (
    AgentEvent,
    AgentNotice,
    Change,
    Event,
    MessageDelta,
    MessageDeltaEvent,
    MessageEvent,
    MessagePart,
    MessagePartEvent,
    Removed,
    RemovedEvent,
    RunEvent,
    decode_event,
    encode_event,
)
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.messages import Finish, FinishPart, Message, Text, TextPart, text_of
from holdfast.domain.runs import Run
from holdfast.server.streams.crush_stream import FIRST_SECONDS, CrushStream

SESSION, MESSAGE = SessionId("s"), MessageId("m")


def message(text: str = "", *, is_finished: bool = False) -> Message:
    parts = (TextPart(Text(text)),) if text else ()
    finish = (FinishPart(Finish("end_turn", 1)),) if is_finished else ()
    return Message(parts + finish, MESSAGE, "assistant", SESSION, "", "", 1, 1)


class Reader:
    """What one stock client would get, on a clock the test moves."""

    def __init__(self) -> None:
        self.form = CrushStream()
        self.now = 0.0
        self.sent: list[bytes] = []

    def hear(self, event: Event) -> None:
        self.sent += self.form.feed(event, encode_event(event), self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.sent += self.form.due(self.now)

    @property
    def texts(self) -> list[str]:
        events = [decode_event(body) for body in self.sent]
        return [text_of(event.change.object) for event in events if isinstance(event, MessageEvent)]


def test_deltas_come_as_whole_messages_after_a_moment() -> None:
    reader = Reader()
    reader.hear(MessageEvent(Change("created", message())))
    reader.hear(MessagePartEvent(MessagePart(SESSION, MESSAGE, 0, TextPart(Text("Hello")))))
    reader.hear(MessageDeltaEvent(MessageDelta(SESSION, MESSAGE, 0, 5, " there")))
    assert len(reader.sent) == 1
    assert reader.form.next_due == FIRST_SECONDS
    reader.wait(FIRST_SECONDS)
    assert reader.texts == ["", "Hello there"]
    reader.hear(MessageEvent(Change("updated", message("Hello there.", is_finished=True))))
    assert reader.texts[-1] == "Hello there."
    assert reader.form.next_due is None


def test_bytes_stay_within_a_small_multiple_of_the_length() -> None:
    """C-50: O(n log n) at most in this form, however long the answer."""
    for words in (200, 2_000, 20_000):
        reader = Reader()
        reader.hear(MessageEvent(Change("created", message())))
        reader.hear(MessagePartEvent(MessagePart(SESSION, MESSAGE, 0, TextPart(Text("word ")))))
        for number in range(1, words):
            reader.hear(MessageDeltaEvent(MessageDelta(SESSION, MESSAGE, 0, 5 * number, "word ")))
            reader.wait(FIRST_SECONDS)
        length = 5 * words
        assert reader.texts[-1].startswith("word word")
        assert sum(map(len, reader.sent)) <= 15 * length + 400 * 11 * math.log(length, 1.1)


def test_what_stock_clients_do_not_know_is_not_sent() -> None:
    reader = Reader()
    run = Run(RunId("r"), SESSION, "active", "queue", 1)
    reader.hear(RunEvent(Change("updated", run)))
    assert reader.sent == []
    reader.hear(AgentEvent(Change("created", AgentNotice("agent_finished"))))
    assert len(reader.sent) == 1


def test_growth_of_a_message_nobody_announced_is_passed_over() -> None:
    """A reader that came in the middle hears of the message with its next whole update."""
    reader = Reader()
    reader.hear(MessageDeltaEvent(MessageDelta(SESSION, MESSAGE, 0, 5, " there")))
    reader.wait(1)
    assert reader.sent == []


def test_what_is_left_of_a_deleted_session_is_not_sent() -> None:
    reader = Reader()
    reader.hear(RemovedEvent(Removed(SESSION)))
    assert reader.sent == []
