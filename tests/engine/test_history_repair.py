"""R7: a turn that was cut off anywhere is repaired, and a second repair changes nothing."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.helpers import (
    PLAIN,
    RUN,
    SESSION,
    call_part,
    finish_part,
    message,
    reasoning_part,
    request_of,
    result_part,
    text_part,
)
from holdfast.domain.messages import Finish, Message, ReasoningPart
from holdfast.domain.runs import Outcome
from holdfast.engine.history import conversation
from holdfast.engine.history_repair import RepairedTurn, TurnEnd, finish_for, repair
from holdfast.engine.message_factory import MessageFactory
from holdfast.testing.conversation_validity import problems_of_request, problems_of_session
from holdfast.testing.harness import counting_ids

USER = message("user", text_part("hi"), finish_part("stop"), id="u")
ENDINGS = [
    TurnEnd("cancelled"),
    TurnEnd("interrupted", "Interrupted", "It stopped."),
    TurnEnd("failed", "Oh", "It broke."),
]
REASONS = {"cancelled": "canceled", "interrupted": "error", "failed": "error"}


def answer(*parts: object, id: str = "a1", is_summary: bool = False) -> Message:
    return msgspec.structs.replace(message("assistant", id=id, is_summary=is_summary), parts=parts)


def result(id: str, of: str = "t1") -> Message:
    return message("tool", result_part(id), finish_part("stop"), id=of)


STEP = [answer(call_part("c0"), finish_part("tool_use"), id="a0"), result("c0", "t0")]
CUTS: dict[str, list[Message]] = {
    "nothing": [],
    "no answer yet": [USER],
    "empty answer": [USER, answer()],
    "open text": [USER, answer(text_part("hel"))],
    "open reasoning": [USER, answer(reasoning_part("hm"))],
    "closed reasoning and text": [USER, answer(reasoning_part("hm", finished_at=7), text_part("x"))],
    "open call": [USER, answer(text_part("x"), call_part("c1", "", finished=False))],
    "a complete call and an open one": [USER, answer(call_part("c1", '{"a":1}'), call_part("c2", "", finished=False))],
    "complete calls without results": [USER, answer(call_part("c1"), call_part("c2"))],
    "some results": [USER, answer(call_part("c1"), call_part("c2"), call_part("c3")), result("c2")],
    "all results, answer open": [USER, answer(call_part("c1")), result("c1")],
    "after a step": [USER, *STEP],
    "second answer open": [USER, *STEP, answer(text_part("x"))],
    "second answer with calls": [USER, *STEP, answer(call_part("c1"), call_part("c2")), result("c1")],
    "a folded prompt last": [USER, *STEP, message("user", text_part("also"), finish_part("stop"), id="u2")],
    "a summary open": [USER, *STEP, answer(text_part("in sh"), is_summary=True)],
    "an empty summary": [USER, *STEP, answer(is_summary=True)],
    "a summary by hand": [answer(reasoning_part("hm"), text_part("in sh"), is_summary=True)],
    "a summary done": [USER, *STEP, answer(text_part("in short"), finish_part(), is_summary=True)],
    "an answer after a summary": [
        USER,
        *STEP,
        answer(text_part("s"), finish_part(), id="s", is_summary=True),
        answer(text_part("x")),
    ],
    "everything done": [USER, answer(text_part("bye"), finish_part("end_turn"))],
}


def author() -> MessageFactory:
    return MessageFactory(SESSION, RUN, 9, counting_ids("new"))


def apply_repair(messages: list[Message], settled: RepairedTurn) -> list[Message]:
    """Return the conversation as stored after the repair: messages changed, appended and deleted."""
    put = {item.id: item for item in settled.put}
    kept = [put.pop(item.id, item) for item in messages if item.id not in settled.delete]
    return [*kept, *put.values()]


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.outcome)
@pytest.mark.parametrize("cut", CUTS)
def test_a_repaired_conversation_is_valid(cut: str, ending: TurnEnd) -> None:
    """R7, C-05: only missing parts are written."""
    before = CUTS[cut]
    settled = repair(author(), before, ending)
    after = apply_repair(before, settled)
    assert problems_of_session(after) == []
    assert repair(author(), after, ending) == RepairedTurn(), "settled once is settled"
    assert not any(isinstance(part, ReasoningPart) and not part.data.finished_at for m in after for part in m.parts)
    untouched = [item for item in before if item.role != "assistant" or item.finish]
    assert [item for item in after if item in untouched] == untouched
    following = conversation((*after, message("user", text_part("next"))), PLAIN)
    assert problems_of_request(request_of(following)) == []


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda ending: ending.outcome)
@pytest.mark.parametrize("cut", [cut for cut in CUTS if cut not in ("everything done", "a summary done")])
def test_the_last_message_has_the_finish_reason(cut: str, ending: TurnEnd) -> None:
    after = apply_repair(CUTS[cut], repair(author(), CUTS[cut], ending))
    last = [item for item in after if item.role == "assistant"][-1]
    assert last.finish == finish_for(ending, 9)
    assert last.finish.reason == REASONS[ending.outcome]


@pytest.mark.parametrize("cut", ["no answer yet", "nothing", "after a step", "a folded prompt last"])
def test_a_cut_before_the_response_adds_a_message_with_the_finish_reason(cut: str) -> None:
    """C-05, C-38: the user's message is not written again."""
    (last,) = repair(author(), CUTS[cut], TurnEnd("cancelled")).put
    assert last.role == "assistant"
    assert [type(part).__name__ for part in last.parts] == ["FinishPart"]
    assert (last.session_id, last.run_id, last.created_at) == (SESSION, RUN, 9)


def test_streamed_text_is_kept() -> None:
    (closed,) = repair(author(), CUTS["closed reasoning and text"], TurnEnd("cancelled")).put
    assert closed.id == "a1"
    assert closed.parts[:2] == (reasoning_part("hm", finished_at=7), text_part("x"))


def test_open_reasoning_is_closed_now() -> None:
    (closed,) = repair(author(), CUTS["open reasoning"], TurnEnd("cancelled")).put
    assert closed.parts[0] == reasoning_part("hm", finished_at=9)


def test_an_open_call_is_closed_with_empty_arguments() -> None:
    closed, first, second = repair(author(), CUTS["a complete call and an open one"], TurnEnd("cancelled")).put
    assert closed.parts[:2] == (call_part("c1", '{"a":1}'), call_part("c2", "{}"))
    assert [item.tool_results[0].tool_call_id for item in (first, second)] == ["c1", "c2"]


def test_each_call_gets_exactly_one_result() -> None:
    put = repair(author(), CUTS["some results"], TurnEnd("cancelled")).put
    results = [given for item in put for given in item.tool_results]
    assert [given.tool_call_id for given in results] == ["c1", "c3"]
    assert all(given.is_error and given.name == "tool" for given in results)
    assert put[0].id == "a1", "the answer comes before the results of its calls"


def test_missing_result_is_replaced_by_its_reason() -> None:
    texts = set()
    for ending in ENDINGS:
        put = repair(author(), CUTS["complete calls without results"], ending).put
        texts.add(put[1].tool_results[0].content)
    assert len(texts) == 3


@pytest.mark.parametrize(("outcome", "is_kept"), [("cancelled", False), ("interrupted", False), ("failed", True)])
def test_an_incomplete_summary_is_kept_only_with_an_error(outcome: Outcome, is_kept: bool) -> None:
    """C-44 in part: a cancelled summary leaves no message."""
    settled = repair(author(), CUTS["a summary open"], TurnEnd(outcome, "Oh", "It broke."))
    assert settled.delete == (() if is_kept else ("a1",))
    after = apply_repair(CUTS["a summary open"], settled)
    assert any(item.is_summary_message for item in after) == is_kept


def test_finished_turn_is_unchanged() -> None:
    for ending in ENDINGS:
        assert repair(author(), CUTS["everything done"], ending) == RepairedTurn()


def test_finish_texts() -> None:
    assert finish_for(TurnEnd("cancelled", "x", "y"), 5) == Finish("canceled", 5, "Cancelled")
    interrupted = finish_for(TurnEnd("interrupted"), 5)
    assert (interrupted.reason, interrupted.message) == ("error", "Interrupted")
    assert finish_for(TurnEnd("failed", "Oh", "It broke."), 5) == Finish("error", 5, "Oh", "It broke.")


@st.composite
def _turns(draw: st.DrawFn) -> list[Message]:
    """Draw a turn of some steps, cut anywhere: the last response open or closed, each of its results present or
    missing.
    """
    out = [USER]
    steps = draw(st.integers(0, 4))
    for number in range(steps):
        is_last = number == steps - 1
        ids = [f"c{number}-{place}" for place in range(draw(st.integers(0 if is_last else 1, 3)))]
        is_open = is_last and draw(st.booleans())
        done = [not is_open or draw(st.booleans()) for _ in ids]
        calls = [
            call_part(id, "{}" if is_done else "", finished=is_done) for id, is_done in zip(ids, done, strict=True)
        ]
        texts = draw(st.lists(st.sampled_from([text_part("x"), reasoning_part("y")]), max_size=2))
        end = [] if is_open else [finish_part("tool_use" if ids else "end_turn")]
        out.append(answer(*texts, *calls, *end, id=f"a{number}"))
        given = [id for id, is_done in zip(ids, done, strict=True) if is_done and (not is_last or draw(st.booleans()))]
        out += [result(id, f"t-{id}") for id in draw(st.permutations(given))]
    return out


@settings(deadline=None)
@given(_turns(), st.sampled_from(ENDINGS))
def test_a_conversation_cut_anywhere_is_repaired(turn: list[Message], ending: TurnEnd) -> None:
    after = apply_repair(turn, repair(author(), turn, ending))
    assert problems_of_session(after) == []
    assert repair(author(), after, ending) == RepairedTurn()
    assert problems_of_request(request_of(conversation((*after, message("user", text_part("next"))), PLAIN))) == []
