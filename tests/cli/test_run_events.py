"""`RunEvents`: the interpretation of the events of one run (C-29, C-30), without a process."""

from collections.abc import Iterable

import pytest

from holdfast.cli.run_client.run_events import RunEvents
from holdfast.client.events import StreamEvent
from holdfast.domain.events import (
    AgentEvent,
    AgentNotice,
    Change,
    Event,
    Gap,
    GapEvent,
    MessageDelta,
    MessageDeltaEvent,
    MessageEvent,
    MessagePart,
    MessagePartEvent,
    RunComplete,
    RunCompleteEvent,
    RunEvent,
)
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.messages import Message, Part, Reasoning, ReasoningPart, Text, TextPart, ToolCall, ToolCallPart
from holdfast.domain.runs import Run, RunState

MINE, OTHER = RunId("mine"), RunId("other")
HERE, THERE = SessionId("here"), SessionId("there")
ANSWER = MessageId("answer")


class SinkRecorder:
    """Records the calls of a `RunEventSink`; `|` in the text marks a retraction."""

    def __init__(self) -> None:
        self.text = ""
        self.activities: list[str] = []
        self.notices: list[str] = []

    def write_piece(self, message: MessageId, piece: str) -> None:
        assert message == ANSWER
        self.text += piece

    def set_activity(self, activity: str) -> None:
        self.activities.append(activity)

    def print_notice(self, text: str) -> None:
        self.notices.append(text)

    def retract(self) -> None:
        self.text += "|"


def _process(*stream: Event) -> tuple[RunEvents, SinkRecorder]:
    sink = SinkRecorder()
    events = RunEvents(MINE, HERE, sink)
    for event in stream:
        events.process(StreamEvent(event))
    return events, sink


def _message(*parts: Part, run: RunId = MINE, created: bool = True) -> Event:
    message = Message(parts, ANSWER, "assistant", HERE, "tour", "demo", 0, 0, run_id=run)
    return MessageEvent(Change("created" if created else "updated", message))


def _delta(offset: int, text: str, part: int = 0) -> Event:
    return MessageDeltaEvent(MessageDelta(HERE, ANSWER, part, offset, text))


def _part(content: Part, part: int = 0) -> Event:
    return MessagePartEvent(MessagePart(HERE, ANSWER, part, content))


def _end(text: str) -> RunComplete:
    return RunComplete(HERE, ANSWER, MINE, "completed", text=text)


def _text(text: str) -> TextPart:
    return TextPart(Text(text))


@pytest.mark.parametrize(
    ("run", "session", "is_ours"),
    [
        (OTHER, THERE, False),
        (OTHER, HERE, False),
        (MINE, HERE, True),
        (MINE, SessionId(""), True),
        (RunId(""), HERE, True),
        (RunId(""), THERE, False),
        (RunId(""), SessionId(""), False),
    ],
)
def test_errors_are_matched_by_run_id_then_by_session(run: RunId, session: SessionId, *, is_ours: bool) -> None:
    """C-29: the run id decides; without one the session; an error of another session is ignored."""
    notice = AgentNotice("error", error="it broke", run_id=run, session_id=session)
    events, sink = _process(AgentEvent(Change("created", notice)))
    assert (events.error, events.needs_refetch) == (("it broke", True) if is_ours else ("", False))
    assert events.end is None
    assert sink.notices == ([] if run or session else ["it broke"]), (
        "a server notice is printed, and does not end the run"
    )


def test_the_end_of_a_turn_is_not_an_error() -> None:
    notice = AgentNotice("agent_finished", run_id=MINE, session_id=HERE)
    events, _ = _process(AgentEvent(Change("created", notice)))
    assert (events.error, events.needs_refetch) == ("", False)


def test_the_end_of_another_run_is_ignored() -> None:
    """C-30: another run of the same session ends first."""
    foreign = RunComplete(HERE, ANSWER, OTHER, "completed", text="theirs")
    own = RunComplete(HERE, ANSWER, MINE, "completed", text="ours")
    events, _ = _process(RunCompleteEvent(Change("updated", foreign)))
    assert events.end is None
    events.process(StreamEvent(RunCompleteEvent(Change("updated", own))))
    assert events.end == own


def test_a_repeated_attempt_replaces_the_text_of_the_failed_one() -> None:
    """C-30: no text of the failed attempt is kept as the beginning of the next."""
    failed = [_message(), _part(_text("half an ")), _delta(8, "answer")]
    events, sink = _process(*failed, _message(created=False), _part(_text("a whole")), _delta(7, " one"))
    assert sink.text == "half an answer|a whole one"
    assert events.shown_length(_end("a whole one")) == 11
    events, sink = _process(*failed, _message(created=False), _part(_text("half")), _delta(4, " a loaf"))
    assert sink.text == "half an answer|half a loaf", "with a common beginning"
    assert events.shown_length(_end("half a loaf")) == 11
    events, sink = _process(*failed, _message(created=False), _part(_text("half an ")), _delta(8, "answer, now whole"))
    assert sink.text == "half an answer, now whole", "equal text is not repeated"
    thought = ReasoningPart(Reasoning("hm", ""))
    events, sink = _process(*failed, _message(created=False), _part(thought), _part(_text("a whole"), 1))
    assert sink.text == "half an answer|a whole", "the next attempt begins with reasoning"
    events, sink = _process(*failed, _message(created=False), _part(_text("half")))
    assert (events.shown_length(_end("half")), sink.text) == (0, "half an answer|"), "the next attempt is shorter"


@pytest.mark.parametrize(
    "stream",
    [
        [_message(), _part(_text("")), _delta(0, "one "), _delta(4, "two")],
        [_message(), _part(_text("one ")), _delta(4, "two"), _message(_text("one two"), created=False)],
        [_message(_text("one two"), created=False)],
        [_message(), _part(_text("one ")), _part(_text("one t")), _delta(5, "wo")],
        [_message(), _part(_text("one ")), _delta(2, "e two"), _delta(2, "e two")],
        [_message(), _part(_text("one ")), _delta(6, "o"), _part(_text("one two"))],
        [_message(), _part(ReasoningPart(Reasoning("hm", ""))), _delta(2, "m"), _part(_text("one two"), 1)],
        [_delta(0, "lost"), _message(), _delta(0, "lost too"), _part(_text("one two"))],
    ],
)
def test_text_is_written_once_in_any_form_of_delivery(stream: Iterable[Event]) -> None:
    """C-30: deltas, whole parts, whole messages, repeated or with gaps."""
    events, sink = _process(*stream)
    assert sink.text == "one two"
    assert events.shown_length(_end("one two")) == 7


def test_text_of_other_runs_is_not_written() -> None:
    _, sink = _process(_message(run=OTHER), _part(_text("theirs")), _delta(6, " too"))
    assert sink.text == ""


def test_reasoning_and_tool_calls_set_the_activity() -> None:
    call = ToolCallPart(ToolCall(ToolCallId("c"), "ls", "{}"))
    thought = ReasoningPart(Reasoning("hm", ""))
    _, sink = _process(_message(), _part(thought), _part(call, 1), _message(thought, call, created=False))
    assert sink.activities == ["thinking", "tool ls"]


@pytest.mark.parametrize(
    ("state", "what"),
    [
        ("waiting", "waiting for its turn"),
        ("active", "working"),
        ("cancelling", "stopping"),
        ("folded", "part of run other"),
    ],
)
def test_the_run_state_sets_the_activity(state: RunState, what: str) -> None:
    run = Run(MINE, HERE, state, "queue", 0, folded_into=OTHER)
    events, sink = _process(RunEvent(Change("updated", run)))
    assert (sink.activities, events.is_refused) == ([what], False)


def test_a_deleted_run_was_refused() -> None:
    run = Run(MINE, HERE, "waiting", "queue", 0)
    events, _ = _process(RunEvent(Change("deleted", run)))
    assert events.is_refused


def test_a_retry_of_this_run_is_a_notice_and_not_an_error() -> None:
    notices = [AgentNotice("retrying", f"again: {run}", run, HERE) for run in (OTHER, MINE)]
    events, sink = _process(*(AgentEvent(Change("created", notice)) for notice in notices))
    assert sink.notices == ["again: mine"]
    assert not events.error


def test_a_gap_requires_a_refetch() -> None:
    events = RunEvents(MINE, HERE, SinkRecorder())
    events.process(StreamEvent(GapEvent(Gap(7, 3, 1))))
    assert events.needs_refetch


def test_fetched_messages_add_the_missing_text_of_this_run_only() -> None:
    events, sink = _process()
    own = Message((TextPart(Text("mine")),), ANSWER, "assistant", HERE, "", "", 0, 0, run_id=MINE)
    other = Message((TextPart(Text("not mine")),), MessageId("x"), "assistant", HERE, "", "", 0, 0, run_id=OTHER)
    prompt = Message((TextPart(Text("asked")),), MessageId("u"), "user", HERE, "", "", 0, 0, run_id=MINE)
    events.process_messages([prompt, other, own])
    events.process_messages([own])
    assert sink.text == "mine"
    assert sink.activities == ["answering"]


def test_an_activity_is_set_once_per_part() -> None:
    _, sink = _process(
        *(
            MessageEvent(Change("updated", _with(ToolCallPart(ToolCall(ToolCallId("1"), "bash", "{}", finished=done)))))
            for done in (False, True)
        )
    )
    assert sink.activities == ["tool bash"]
    _, sink = _process(
        *(MessageEvent(Change("updated", _with(ReasoningPart(Reasoning(text, ""))))) for text in ("a", "ab"))
    )
    assert sink.activities == ["thinking"]


def _with(part: Part) -> Message:
    return Message((part,), ANSWER, "assistant", HERE, "", "", 0, 0, run_id=MINE)


def test_the_text_of_each_message_is_counted_separately() -> None:
    pieces: list[tuple[str, str]] = []

    class PieceRecorder(SinkRecorder):
        def write_piece(self, message: MessageId, piece: str) -> None:
            pieces.append((message, piece))

    events = RunEvents(MINE, HERE, PieceRecorder())
    for name, text in (("a", "one"), ("answer", "two")):
        message = Message((TextPart(Text(text)),), MessageId(name), "assistant", HERE, "", "", 0, 0, run_id=MINE)
        events.process(StreamEvent(MessageEvent(Change("updated", message))))
    assert pieces == [("a", "one"), ("answer", "two")]
    assert events.shown_length(RunComplete(HERE, ANSWER, MINE, "completed", text="two more")) == 3


@pytest.mark.parametrize("kind", ["error", "retrying"])
@pytest.mark.parametrize(("run", "session"), [("", ""), ("", "there"), ("other", "")])
def test_a_server_notice_is_printed_and_does_not_end_the_run(kind: str, run: str, session: str) -> None:
    notice = AgentNotice(kind, "The disk is full.", session_id=SessionId(session), run_id=RunId(run))  # type: ignore[arg-type]
    events, sink = _process(AgentEvent(Change("updated", notice)))
    is_server_notice = kind == "error" and not run and not session
    assert sink.notices == ["The disk is full."] * is_server_notice
    assert (events.error, events.needs_refetch, events.end) == ("", False, None)


def test_an_error_without_a_message_is_an_error() -> None:
    events, sink = _process(AgentEvent(Change("updated", AgentNotice("error", "", session_id=HERE, run_id=MINE))))
    assert (events.error, events.needs_refetch) == ("The run failed.", True)
    events, sink = _process(AgentEvent(Change("updated", AgentNotice("error", ""))))
    assert (sink.notices, events.error) == ([], "")


def test_events_of_other_runs_are_ignored() -> None:
    run = Run(OTHER, HERE, "active", "queue", 1)
    events, sink = _process(RunEvent(Change("updated", run)), RunEvent(Change("deleted", run)))
    assert (sink.activities, events.is_refused) == ([], False)
