"""The stream for stock clients: whole messages, in a bounded number of bytes."""

import math

import msgspec
import pytest

from holdfast.domain.approvals import (
    PermissionNotification,
    PermissionRequest,
    QuestionAnswer,
    QuestionNotification,
    QuestionRequest,
)
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
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
    Removed,
    RemovedEvent,
    RunEvent,
    decode_event,
    encode_event,
)
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.messages import Finish, FinishPart, Message, Text, TextPart, text_of
from holdfast.domain.runs import Run
from holdfast.server.streams.crush_stream import FIRST_SECONDS, CrushStream

SESSION, MESSAGE = SessionId("s"), MessageId("m")


def message(text: str = "", *, is_finished: bool = False) -> Message:
    parts = (TextPart(Text(text)),) if text else ()
    finish = (FinishPart(Finish("end_turn", 1)),) if is_finished else ()
    return Message(parts + finish, MESSAGE, "assistant", SESSION, "", "", 1, 1)


class Reader:
    """The output for one stock client, on a clock moved by the test."""

    def __init__(self) -> None:
        self.form = CrushStream()
        self.now = 0.0
        self.sent: list[bytes] = []

    def receive(self, event: Event) -> None:
        self.sent += self.form.feed(event, encode_event(event), self.now)

    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.sent += self.form.due(self.now)

    @property
    def texts(self) -> list[str]:
        events = [decode_event(body) for body in self.sent]
        return [text_of(event.change.object) for event in events if isinstance(event, MessageEvent)]


def test_deltas_are_merged_into_whole_messages() -> None:
    reader = Reader()
    reader.receive(MessageEvent(Change("created", message())))
    reader.receive(MessagePartEvent(MessagePart(SESSION, MESSAGE, 0, TextPart(Text("Hello")))))
    reader.receive(MessageDeltaEvent(MessageDelta(SESSION, MESSAGE, 0, 5, " there")))
    assert len(reader.sent) == 1
    assert reader.form.next_due == FIRST_SECONDS
    reader.wait(FIRST_SECONDS)
    assert reader.texts == ["", "Hello there"]
    reader.receive(MessageEvent(Change("updated", message("Hello there.", is_finished=True))))
    assert reader.texts[-1] == "Hello there."
    assert reader.form.next_due is None


def test_c50_bytes_are_small_multiple_of_length() -> None:
    """C-50: O(n log n) at most in this form, for responses of any length."""
    for words in (200, 2_000, 20_000):
        reader = Reader()
        reader.receive(MessageEvent(Change("created", message())))
        reader.receive(MessagePartEvent(MessagePart(SESSION, MESSAGE, 0, TextPart(Text("word ")))))
        for number in range(1, words):
            reader.receive(MessageDeltaEvent(MessageDelta(SESSION, MESSAGE, 0, 5 * number, "word ")))
            reader.wait(FIRST_SECONDS)
        length = 5 * words
        assert reader.texts[-1].startswith("word word")
        assert sum(map(len, reader.sent)) <= 15 * length + 400 * 11 * math.log(length, 1.1)


def test_unknown_event_types_are_not_sent_to_stock_clients() -> None:
    reader = Reader()
    run = Run(RunId("r"), SESSION, "active", "queue", 1)
    reader.receive(RunEvent(Change("updated", run)))
    assert reader.sent == []
    reader.receive(AgentEvent(Change("created", AgentNotice("agent_finished"))))
    assert len(reader.sent) == 1


def test_answers_are_not_sent_to_stock_clients() -> None:
    """The content of an answer that another node accepted is for the owner of the workspace."""
    reader = Reader()
    call = ToolCallId("c")
    reader.receive(PermissionRequestEvent(Change("created", PermissionRequest("p", SESSION, call, "", "", "", {}, ""))))
    reader.receive(QuestionRequestEvent(Change("created", QuestionRequest("b", SESSION, call, ()))))
    reader.wait(10)
    reader.sent.clear()
    denied = PermissionNotification(call, granted=False, denied=True, id="p", by="c1")
    closed = QuestionNotification("b", SESSION, "c1")
    reader.receive(PermissionNotificationEvent(Change("created", msgspec.structs.replace(denied, reason="no"))))
    answers = (QuestionAnswer("q", fill_in_text="a secret"),)
    reader.receive(QuestionNotificationEvent(Change("created", msgspec.structs.replace(closed, answers=answers))))
    assert reader.sent == [
        encode_event(PermissionNotificationEvent(Change("created", denied))),
        encode_event(QuestionNotificationEvent(Change("created", closed))),
    ]


@pytest.mark.parametrize("has_more", [False, True])
def test_a_message_that_is_being_streamed_is_sent_to_a_late_reader(*, has_more: bool) -> None:
    """After the first growth that the reader sees, even if it was the last one for a long time."""
    reader = Reader()
    reader.form = CrushStream(lambda *_: message("Hello there"))
    reader.receive(MessageDeltaEvent(MessageDelta(SESSION, MESSAGE, 0, 5, " there")))
    assert (reader.sent, reader.form.next_due) == ([], FIRST_SECONDS)
    if has_more:
        reader.receive(MessageDeltaEvent(MessageDelta(SESSION, MESSAGE, 0, 11, ", reader")))
    reader.wait(FIRST_SECONDS)
    assert reader.texts == ["Hello there, reader" if has_more else "Hello there"]
    reader.receive(MessageDeltaEvent(MessageDelta(SESSION, MESSAGE, 0, 19 if has_more else 11, "!")))
    reader.wait(FIRST_SECONDS)
    assert reader.texts[1:] == [f"{reader.texts[0]}!"]


def test_delta_of_unannounced_message_is_skipped() -> None:
    """A reader that subscribed mid-message receives it with the next whole update."""
    reader = Reader()
    reader.receive(MessageDeltaEvent(MessageDelta(SESSION, MESSAGE, 0, 5, " there")))
    reader.wait(1)
    assert reader.sent == []


def test_pending_updates_of_deleted_session_are_not_sent() -> None:
    reader = Reader()
    reader.receive(RemovedEvent(Removed(SESSION)))
    assert reader.sent == []
