"""What a run's events mean to the one who waits: C-29 and C-30, without a process."""

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


class Heard:
    def __init__(self) -> None:
        self.said = ""
        self.did: list[str] = []
        self.noted: list[str] = []

    def text(self, message: MessageId, piece: str) -> None:
        assert message == ANSWER
        self.said += piece

    def doing(self, what: str) -> None:
        self.did.append(what)

    def note(self, text: str) -> None:
        self.noted.append(text)

    def withdrawn(self) -> None:
        self.said += "|"


def _watched(*events: Event) -> tuple[RunEvents, Heard]:
    heard = Heard()
    watch = RunEvents(MINE, HERE, heard)
    for event in events:
        watch.take(StreamEvent(event))
    return watch, heard


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
def test_whose_error_it_is(run: RunId, session: SessionId, *, is_ours: bool) -> None:
    """C-29: the run id decides; without one the session; an empty or foreign one is ignored."""
    notice = AgentNotice("error", error="it broke", run_id=run, session_id=session)
    watch, heard = _watched(AgentEvent(Change("created", notice)))
    assert (watch.error, watch.is_doubtful) == (("it broke", True) if is_ours else ("", False))
    assert watch.end is None
    assert heard.noted == ([] if run or session else ["it broke"]), "what concerns everybody is told, and ends nothing"


def test_that_a_turn_is_over_is_no_error() -> None:
    notice = AgentNotice("agent_finished", run_id=MINE, session_id=HERE)
    watch, _ = _watched(AgentEvent(Change("created", notice)))
    assert (watch.error, watch.is_doubtful) == ("", False)


def test_only_its_own_end_counts() -> None:
    """C-30: another run of the same session ends first."""
    foreign = RunComplete(HERE, ANSWER, OTHER, "completed", text="theirs")
    own = RunComplete(HERE, ANSWER, MINE, "completed", text="ours")
    watch, _ = _watched(RunCompleteEvent(Change("updated", foreign)))
    assert watch.end is None
    watch.take(StreamEvent(RunCompleteEvent(Change("updated", own))))
    assert watch.end == own


def test_an_answer_that_is_asked_for_again_begins_anew() -> None:
    """C-30: nothing of the failed attempt stands in for the beginning of the next."""
    failed = [_message(), _part(_text("half an ")), _delta(8, "answer")]
    watch, heard = _watched(*failed, _message(created=False), _part(_text("a whole")), _delta(7, " one"))
    assert heard.said == "half an answer|a whole one"
    assert watch.said(_end("a whole one")) == 11
    watch, heard = _watched(*failed, _message(created=False), _part(_text("half")), _delta(4, " a loaf"))
    assert heard.said == "half an answer|half a loaf", "they begin alike"
    assert watch.said(_end("half a loaf")) == 11
    watch, heard = _watched(*failed, _message(created=False), _part(_text("half an ")), _delta(8, "answer, now whole"))
    assert heard.said == "half an answer, now whole", "what is the same is not said twice"
    thought = ReasoningPart(Reasoning("hm", ""))
    watch, heard = _watched(*failed, _message(created=False), _part(thought), _part(_text("a whole"), 1))
    assert heard.said == "half an answer|a whole", "the next thinks first"
    watch, heard = _watched(*failed, _message(created=False), _part(_text("half")))
    assert (watch.said(_end("half")), heard.said) == (0, "half an answer|"), "the next is shorter"


@pytest.mark.parametrize(
    "events",
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
def test_text_is_said_once_however_it_comes(events: Iterable[Event]) -> None:
    """C-30: deltas, whole parts, whole messages, twice or with holes."""
    watch, heard = _watched(*events)
    assert heard.said == "one two"
    assert watch.said(_end("one two")) == 7


def test_text_of_other_runs_is_not_said() -> None:
    _, heard = _watched(_message(run=OTHER), _part(_text("theirs")), _delta(6, " too"))
    assert heard.said == ""


def test_what_it_does_is_told() -> None:
    call = ToolCallPart(ToolCall(ToolCallId("c"), "ls", "{}"))
    thought = ReasoningPart(Reasoning("hm", ""))
    _, heard = _watched(_message(), _part(thought), _part(call, 1), _message(thought, call, created=False))
    assert heard.did == ["thinking", "tool ls"]


@pytest.mark.parametrize(
    ("state", "what"),
    [
        ("waiting", "waiting for its turn"),
        ("active", "working"),
        ("cancelling", "stopping"),
        ("folded", "part of run other"),
    ],
)
def test_the_state_of_a_run_is_told(state: RunState, what: str) -> None:
    run = Run(MINE, HERE, state, "queue", 0, folded_into=OTHER)
    watch, heard = _watched(RunEvent(Change("updated", run)))
    assert (heard.did, watch.is_refused) == ([what], False)


def test_a_run_that_is_taken_back_was_refused() -> None:
    run = Run(MINE, HERE, "waiting", "queue", 0)
    watch, _ = _watched(RunEvent(Change("deleted", run)))
    assert watch.is_refused


def test_that_a_provider_is_asked_again_is_told_and_no_failure() -> None:
    notices = [AgentNotice("retrying", f"again: {run}", run, HERE) for run in (OTHER, MINE)]
    watch, heard = _watched(*(AgentEvent(Change("created", notice)) for notice in notices))
    assert heard.noted == ["again: mine"]
    assert not watch.error


def test_a_gap_is_reason_to_ask() -> None:
    watch = RunEvents(MINE, HERE, Heard())
    watch.take(StreamEvent(GapEvent(Gap(7, 3, 1))))
    assert watch.is_doubtful


def test_a_conversation_that_is_read_again_says_what_was_missed_of_this_run_only() -> None:
    watch, heard = _watched()
    own = Message((TextPart(Text("mine")),), ANSWER, "assistant", HERE, "", "", 0, 0, run_id=MINE)
    other = Message((TextPart(Text("not mine")),), MessageId("x"), "assistant", HERE, "", "", 0, 0, run_id=OTHER)
    prompt = Message((TextPart(Text("asked")),), MessageId("u"), "user", HERE, "", "", 0, 0, run_id=MINE)
    watch.catch_up([prompt, other, own])
    watch.catch_up([own])
    assert heard.said == "mine"
    assert heard.did == ["answering"]


def test_a_step_is_told_when_it_begins_and_not_again() -> None:
    _, heard = _watched(
        *(
            MessageEvent(Change("updated", _with(ToolCallPart(ToolCall(ToolCallId("1"), "bash", "{}", finished=done)))))
            for done in (False, True)
        )
    )
    assert heard.did == ["tool bash"]
    _, heard = _watched(
        *(MessageEvent(Change("updated", _with(ReasoningPart(Reasoning(text, ""))))) for text in ("a", "ab"))
    )
    assert heard.did == ["thinking"]


def _with(part: Part) -> Message:
    return Message((part,), ANSWER, "assistant", HERE, "", "", 0, 0, run_id=MINE)


def test_the_text_of_several_answers_is_counted_apart() -> None:
    heard: list[tuple[str, str]] = []

    class Ears(Heard):
        def text(self, message: MessageId, piece: str) -> None:
            heard.append((message, piece))

    watch = RunEvents(MINE, HERE, Ears())
    for name, text in (("a", "one"), ("answer", "two")):
        message = Message((TextPart(Text(text)),), MessageId(name), "assistant", HERE, "", "", 0, 0, run_id=MINE)
        watch.take(StreamEvent(MessageEvent(Change("updated", message))))
    assert heard == [("a", "one"), ("answer", "two")]
    assert watch.said(RunComplete(HERE, ANSWER, MINE, "completed", text="two more")) == 3


@pytest.mark.parametrize("kind", ["error", "retrying"])
@pytest.mark.parametrize(("run", "session"), [("", ""), ("", "there"), ("other", "")])
def test_what_concerns_everybody_is_told_and_ends_nothing(kind: str, run: str, session: str) -> None:
    notice = AgentNotice(kind, "The disk is full.", session_id=SessionId(session), run_id=RunId(run))  # type: ignore[arg-type]
    watch, heard = _watched(AgentEvent(Change("updated", notice)))
    is_everybodys = kind == "error" and not run and not session
    assert heard.noted == ["The disk is full."] * is_everybodys
    assert (watch.error, watch.is_doubtful, watch.end) == ("", False, None)


def test_an_error_without_words_is_an_error() -> None:
    watch, heard = _watched(AgentEvent(Change("updated", AgentNotice("error", "", session_id=HERE, run_id=MINE))))
    assert (watch.error, watch.is_doubtful) == ("The run failed.", True)
    watch, heard = _watched(AgentEvent(Change("updated", AgentNotice("error", ""))))
    assert (heard.noted, watch.error) == ([], "")


def test_other_runs_change_nothing() -> None:
    run = Run(OTHER, HERE, "active", "queue", 1)
    watch, heard = _watched(RunEvent(Change("updated", run)), RunEvent(Change("deleted", run)))
    assert (heard.did, watch.is_refused) == ([], False)
