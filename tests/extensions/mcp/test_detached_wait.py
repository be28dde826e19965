"""Waits for MCP servers in virtual time, elicitation round by round, and bounds of messages."""

import asyncio
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from holdfast.domain.approvals import QuestionAnswer
from holdfast.domain.errors import HoldfastError, ToolError
from holdfast.domain.tools import QuestionBatch, ToolContext
from holdfast.extensions.mcp import bounded_waits as module
from holdfast.extensions.mcp.bounded_waits import DetachedWait, RateLimit, StartLimiter
from holdfast.extensions.mcp.elicitation import elicit, form_content, form_fields
from holdfast.extensions.mcp.mcp_tools import _InactivityTimer
from holdfast.extensions.mcp.mcp_types import error_message
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import elapse, in_virtual_time

Json = dict[str, Any]


def now() -> float:
    return asyncio.get_running_loop().time()


async def _slow_to_cancel(seconds: float) -> None:
    """Sleep, and take this long to end after a cancel."""
    try:
        await elapse(100)
    finally:
        await elapse(seconds)


@pytest.mark.parametrize(
    ("limits", "ends_at"),
    [
        (3.0, 3.0),
        (0.5, 0.5),
        ([2.0, 1.0, 0.0], 3.0),
        ([2.0, -1.0], 2.0),
        ([0.25, 0.5, 0.25, 0.0], 1.0),
    ],
)
def test_wait_never_exceeds_limit(limits: float | list[float], ends_at: float) -> None:
    """A limit that is a function is read again whenever it expires."""

    async def main() -> None:
        patience = DetachedWait()
        left = limits if isinstance(limits, float) else cast("Callable[[], float]", list(reversed(limits)).pop)
        with pytest.raises(TimeoutError):
            await patience.wait(elapse(100), left, name="x")
        assert now() == ends_at
        await patience.drain()

    in_virtual_time(main)


def test_no_limit_waits_forever_and_passes_results_and_errors() -> None:
    async def fails() -> None:
        await elapse(50)
        raise HoldfastError("planned")

    async def answers() -> str:
        await elapse(1)
        return "answer"

    async def main() -> None:
        patience = DetachedWait()
        assert await patience.wait(answers(), lambda: None, name="x") == "answer"
        assert await patience.wait(answers(), 1.5, name="x") == "answer"
        with pytest.raises(HoldfastError, match="planned"):
            await patience.wait(fails(), lambda: None, name="x")
        assert now() == 52.0

    in_virtual_time(main)


@pytest.mark.parametrize(("seconds", "ends_at"), [(0.05, 1.05), (60.0, 1.1)])
def test_abandoned_request_is_detached_after_grace(seconds: float, ends_at: float) -> None:
    async def main() -> None:
        patience = DetachedWait()
        with pytest.raises(TimeoutError):
            await patience.wait(_slow_to_cancel(seconds), 1.0, name="x")
        assert now() == pytest.approx(ends_at)
        waiting = start(patience.wait(elapse(100), 50.0, name="y"))
        await elapse(1)
        patience.cancel_all()
        await asyncio.wait({waiting})
        assert waiting.cancelled()
        await patience.drain()
        assert now() == pytest.approx(ends_at + 1)

    in_virtual_time(main)


def test_start_slots_are_limited_and_hanging_start_yields_once() -> None:
    async def main() -> None:
        limiter = StartLimiter(2, 3.0)
        entered: list[tuple[str, float]] = []

        async def visit(name: str, stays: float) -> None:
            async with limiter.slot():
                entered.append((name, now()))
                await elapse(stays)

        tasks = [start(visit(name, stays)) for name, stays in (("a", 1), ("b", 10), ("c", 10), ("d", 1), ("e", 1))]
        await elapse(20)
        assert entered == [("a", 0), ("b", 0), ("c", 1), ("d", 3), ("e", 4)]
        assert all(task.done() for task in tasks)
        # A holder that was displaced and then left has freed one slot, not two; no timer is left that frees another.
        assert limiter._slots._value == 2
        await elapse(20)
        assert limiter._slots._value == 2

    in_virtual_time(main)


def test_defaults_of_start_slots_and_pace() -> None:
    async def main() -> None:
        assert (StartLimiter()._slots._value, StartLimiter()._seconds) == (3, 3.0)
        pace = RateLimit()
        for _ in range(63):
            await pace.step()
        assert now() == 0.0
        await pace.step()
        assert now() == module._BURST_PAUSE == 0.05
        for _ in range(63):
            await pace.step()
        assert now() == 0.05
        await pace.step()
        assert now() == 0.1

    in_virtual_time(main)


def test_call_timeout_with_progress_and_questions() -> None:
    """Progress extends it before it is passed on; a question suspends it, and its answer extends it."""

    async def main() -> None:
        left: list[float | None] = []
        gate = asyncio.Event()

        async def report_progress(progress: float, total: float | None, message: str | None) -> None:
            assert (progress, total, message) == (1.0, 2.0, "m")
            left.append(life.remaining())

        async def ask(wanted: Mapping[str, Any]) -> Json:
            await gate.wait()
            return dict(wanted)

        life = _InactivityTimer(10.0, report_progress, ask)
        await elapse(4)
        assert life.remaining() == 6.0
        await life.on_progress(1.0, 2.0, "m")
        assert left == [10.0]
        question = start(life.on_elicitation({"a": 1}))
        await elapse(60)
        assert life.remaining() == 10.0
        gate.set()
        assert await question == {"a": 1}
        await elapse(1)
        assert life.remaining() == 9.0
        gate.clear()
        question = start(life.on_elicitation({}))
        await elapse(1)
        await life.close()
        assert len(life._elicitations) == 0, "it ends after its questions"
        assert await question == {"action": "cancel"}
        assert _InactivityTimer(0.0, report_progress, ask).remaining() is None

    in_virtual_time(main)


# Elicitation


def form(required: tuple[str, ...] = (), **properties: object) -> Json:
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"message": "Who?", "requestedSchema": schema}


def answer_with(**given: Any) -> QuestionAnswer:  # noqa: ANN401
    return QuestionAnswer("q", **given)


def run_elicitation(wanted: Json, *rounds: Any) -> tuple[Json, list[QuestionBatch]]:  # noqa: ANN401
    inquiries: list[QuestionBatch] = []
    script = list(rounds)

    async def ask_questions(batch: QuestionBatch) -> Any:  # noqa: ANN401
        inquiries.append(batch)
        given = script.pop(0)
        if isinstance(given, Exception):
            raise given
        return given

    context = cast("ToolContext", SimpleNamespace(ask_questions=ask_questions))
    return in_virtual_time(lambda: elicit(context, "s", wanted)), inquiries


NUMBER, NAME = {"type": "number"}, {"type": "string"}
ODD, ONE = answer_with(fill_in_text="odd"), answer_with(fill_in_text="1")


@pytest.mark.parametrize(
    ("wanted", "rounds", "expected"),
    [
        (form(n=NUMBER), [[ONE]], {"action": "accept", "content": {"n": 1}}),
        (form(n=NUMBER), [[ODD], [ONE]], {"action": "accept", "content": {"n": 1}}),
        (form(n=NUMBER), [[ODD], [ODD], [ONE]], {"action": "accept", "content": {"n": 1}}),
        (form(n=NUMBER), [[ODD], [ODD], [ODD]], {"action": "cancel"}),
        (form(n=NUMBER), [None], {"action": "decline"}),
        (form(n=NUMBER), [[ODD], None], {"action": "decline"}),
        (form(n=NUMBER), [ToolError("nobody")], {"action": "cancel"}),
        ({"message": "Go?"}, [[answer_with(yes=True)]], {"action": "accept"}),
        ({"message": "Go?"}, [[answer_with(yes=False)]], {"action": "decline"}),
        ({"message": "Go?"}, [[answer_with()]], {"action": "decline"}),
        (form((), **{f"f{number}": NAME for number in range(25)}), [], {"action": "cancel"}),
    ],
)
def test_rounds_of_a_question(wanted: Json, rounds: list[Any], expected: Json) -> None:
    answer, inquiries = run_elicitation(wanted, *rounds)
    assert answer == expected
    assert len(inquiries) == len(rounds)


def test_only_wrong_answers_are_requested_again() -> None:
    wanted = form(a=NUMBER, b=NAME, c=NUMBER)
    text = answer_with(fill_in_text="text")
    answer, inquiries = run_elicitation(wanted, [ODD, text, ODD], [ONE, ODD], [ONE])
    assert answer == {"action": "accept", "content": {"a": 1, "b": "text", "c": 1}}
    assert [[question.question for question in one.questions] for one in inquiries] == [
        ["a?", "b?", "c?"],
        ["a?", "c?"],
        ["c?"],
    ]
    assert [bool(one.confirm_title) for one in inquiries] == [True, True, False], "one question is not confirmed"
    assert inquiries[0].confirm_description == "They are sent to the MCP server s together."
    again = [
        question.description.startswith("That answer is not valid; try again. ") for question in inquiries[1].questions
    ]
    assert again == [True, True]
    assert not inquiries[0].questions[0].description.startswith("That")


CHOICE = {"type": "string", "oneOf": [{"const": "x", "title": "Ex"}, {"const": "y", "title": "X"}]}


@pytest.mark.parametrize(
    ("schema", "answer", "value"),
    [
        (CHOICE, answer_with(fill_in_text="EX"), "x"),
        (CHOICE, answer_with(fill_in_text="X"), "x"),
        (CHOICE, answer_with(fill_in_text="Y"), "y"),
        (CHOICE, answer_with(fill_in_text="z"), "wrong"),
        (CHOICE, answer_with(selected_ids=("y",), fill_in_text="x"), "y"),
        ({"type": "integer"}, answer_with(fill_in_text="1,5"), "wrong"),
        ({"type": "integer"}, answer_with(fill_in_text="2,0"), 2),
        (NUMBER, answer_with(fill_in_text="1,5"), 1.5),
        (NUMBER, answer_with(fill_in_text="inf"), "wrong"),
        (NUMBER, answer_with(fill_in_text=" "), "absent"),
        (NUMBER | {"default": 7}, answer_with(), 7),
        (NUMBER | {"default": 7}, answer_with(fill_in_text="0"), 0),
        ({"type": "boolean"}, answer_with(yes=False), False),
        ({"type": "array", "items": {"enum": ["p", "q"]}}, answer_with(fill_in_text="P"), ["p"]),
    ],
)
def test_values_of_answers(schema: Json, answer: QuestionAnswer, value: object) -> None:
    for is_required in (False, True):
        fields = form_fields("s", form(("n",) if is_required else (), n=schema))
        content, wrong = form_content(fields, [answer])
        is_wrong = value == "wrong" or (value == "absent" and is_required)
        assert wrong == (("n",) if is_wrong else ())
        assert content == ({} if value in ("wrong", "absent") else {"n": value})


@pytest.mark.parametrize(
    ("count", "kind"), [(1, "free_text"), (2, "single_choice"), (12, "single_choice"), (13, "free_text")]
)
def test_bounds_of_a_choice(count: int, kind: str) -> None:
    (field,) = form_fields("s", form(n={"enum": [f"v{number}" for number in range(count)]}))
    assert field.question.type == kind


@pytest.mark.parametrize(("length", "is_cut"), [(1_998, False), (1_999, True)])
def test_bounds_of_a_description(length: int, is_cut: bool) -> None:
    head = len("The MCP server s asks: ")
    (field,) = form_fields("s", {"message": "x" * (length + 2 - head)})
    assert len(field.question.description) == 2_000
    assert field.question.description.endswith("…") == is_cut


def test_bounds_of_a_sentence() -> None:
    limit = len(error_message(HoldfastError("x" * 10_000)))
    assert error_message(HoldfastError("x" * limit)) == "x" * limit
    assert error_message(HoldfastError("x" * (limit + 1))) == "x" * (limit - 1) + "…"
    assert error_message(ValueError(" a \n b ")) == "ValueError: a b"
    assert error_message(ValueError()) == "ValueError"
    failed = ValueError("words")
    failed.response = SimpleNamespace(status_code=502)  # type: ignore[attr-defined]
    assert error_message(failed) == "It answered with status 502."


def test_answer_defaults() -> None:
    assert msgspec.to_builtins(answer_with()) == {"request_id": "q"}
