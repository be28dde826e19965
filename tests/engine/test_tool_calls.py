"""The tool calls of a step: sequential or parallel, each with exactly one result, none after a cancel."""

import asyncio
import os
from pathlib import Path

import pytest

from engine.helpers import (
    PATIENT,
    RecordingLedger,
    calls,
    fixed_tool,
    results_of,
    run_other_tasks,
    run_to_end,
)
from holdfast.domain.errors import StorageUnavailable, ToolError
from holdfast.domain.ids import RunId, ToolCallId
from holdfast.domain.messages import ToolResult
from holdfast.domain.model_requests import StepFinish
from holdfast.domain.runs import Prompt
from holdfast.domain.store_operations import PutMessage
from holdfast.domain.tools import QuestionBatch, ToolContext, ToolOutcome
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.testing.gates import GatedTool, SimpleTool, until
from holdfast.testing.harness import Harness
from holdfast.tools.write import WriteTool

DONE = Step((Say("done"),))


async def results(harness: Harness) -> list[ToolResult]:
    return results_of(await harness.messages())


def failing(error: BaseException, *, is_parallel: bool = False) -> SimpleTool:
    async def act(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
        raise error

    return SimpleTool("tool", act, is_parallel=is_parallel)


async def result_of(tool: SimpleTool) -> tuple[Harness, ToolResult]:
    """Return the result of one call in a run that continues after it."""
    harness = await run_to_end(ScriptedModel([Step((Call("tool"),)), DONE]), tool)
    assert harness.end_of("r1").outcome == "completed"
    assert harness.end_of("r1").text == "done"
    (result,) = await results(harness)
    return harness, result


# Order.


async def test_calls_run_one_after_the_other() -> None:
    tool = GatedTool("tool")
    harness = await Harness.open(ScriptedModel([Step(calls("tool", 3)), DONE]), tools=[tool])
    await harness.prompt("go", "r1")
    await tool.gate.reached.wait()
    await run_other_tasks()
    assert tool.started == 1
    tool.gate.open()
    await harness.wait_until_idle()
    assert tool.most_at_once == 1
    assert [result.content for result in await results(harness)] == ["tool done 0", "tool done 1", "tool done 2"]


@pytest.mark.parametrize(("settings", "most"), [(None, 5), (EngineSettings(titles=False, parallel_tools=2), 2)])
async def test_parallel_calls_run_together_up_to_their_limit(settings: EngineSettings | None, most: int) -> None:
    tool = GatedTool("tool", is_parallel=True)
    harness = await Harness.open(ScriptedModel([Step(calls("tool", 8)), DONE]), tools=[tool], settings=settings)
    await harness.prompt("go", "r1")
    await until(lambda: tool.running == most)
    await run_other_tasks()
    assert tool.started == most
    tool.gate.open()
    await harness.wait_until_idle()
    assert tool.most_at_once == most
    assert sorted(result.content for result in await results(harness)) == [f"tool done {n}" for n in range(8)]
    await harness.assert_valid()


async def test_a_call_that_is_not_parallel_waits_for_all_before_it() -> None:
    log: list[str] = []

    async def act(_: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        log.append(f"+{arguments['n']}")
        await run_other_tasks()
        log.append(f"-{arguments['n']}")
        return ToolOutcome("ok")

    order = ["side", "side", "alone", "alone", "side", "side"]
    step = Step(tuple(Call(name, f'{{"n":{n}}}') for n, name in enumerate(order)))
    side, alone = SimpleTool("side", act, is_parallel=True), SimpleTool("alone", act)
    await run_to_end(ScriptedModel([step, DONE]), side, alone)
    assert log == ["+0", "+1", "-0", "-1", "+2", "-2", "+3", "-3", "+4", "+5", "-4", "-5"]


async def test_results_are_sent_in_the_order_of_the_calls() -> None:
    """In whatever order they complete."""
    first = asyncio.Event()

    async def act(_: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        if arguments["n"] == 0:
            await first.wait()
        first.set()
        return ToolOutcome(f"{arguments['n']}")

    model = ScriptedModel([Step(calls("tool", 2)), DONE])
    harness = await run_to_end(model, SimpleTool("tool", act, is_parallel=True))
    assert [result.content for result in await results(harness)] == ["1", "0"]
    assert [result.content for result in results_of(model.requests[1].messages)] == ["0", "1"]


@pytest.mark.parametrize("is_parallel", [False, True])
async def test_each_call_has_exactly_one_result(is_parallel: bool) -> None:
    """Stored once, not merely found once: every write that reaches the store is checked."""
    ledger = RecordingLedger()
    await run_to_end(
        ScriptedModel([Step(calls("tool", 7)), DONE]), fixed_tool("tool", is_parallel=is_parallel), ledger=ledger
    )
    puts = [item.message for item in ledger.operations if isinstance(item, PutMessage)]
    written = [result.tool_call_id for result in results_of(puts)]
    assert len(written) == len(set(written)) == 7


# Failures of a call.


async def test_an_unknown_tool_is_explained() -> None:
    harness = await run_to_end(ScriptedModel([Step((Call("nope"),)), DONE]), fixed_tool("ls"), fixed_tool("view"))
    (result,) = await results(harness)
    assert result.is_error
    assert "nope" in result.content
    assert "ls, view" in result.content
    assert harness.end_of("r1").outcome == "completed"


NESTED = '{"n":' + "[" * 5000 + "]" * 5000 + "}"
"""Valid, but deeper than any decoder reads. Models that repeat themselves write it."""


@pytest.mark.parametrize(
    "arguments", ['{"n":', "[1]", "nonsense", NESTED], ids=["open", "list", "no JSON", "nested too deeply"]
)
async def test_malformed_arguments_are_explained_and_nothing_is_run(arguments: str) -> None:
    tool = fixed_tool("tool")
    harness = await run_to_end(ScriptedModel([Step((Call("tool", arguments), Call("tool"))), DONE]), tool)
    bad, good = await results(harness)
    assert (bad.is_error, "JSON" in bad.content, good.is_error) == (True, True, False)
    assert tool.started == 1
    assert [call.input for message in await harness.messages() for call in message.tool_calls] == ["{}", "{}"]


async def test_malformed_arguments_of_calls_with_one_id_are_not_run() -> None:
    tool = fixed_tool("tool")
    id = ToolCallId("same")
    harness = await run_to_end(ScriptedModel([Step((Call("tool", "{", id), Call("tool", '{"n":1}', id))), DONE]), tool)
    assert tool.started == 1
    assert [result.is_error for result in await results(harness)] == [True, False]


@pytest.mark.parametrize("is_parallel", [False, True])
async def test_a_store_that_fails_during_a_call_fails_the_run(is_parallel: bool) -> None:
    """It is no failure of the tool: the result could not be stored either."""
    tool = failing(StorageUnavailable(), is_parallel=is_parallel)
    harness = await Harness.open(ScriptedModel([Step((Call("tool"),)), DONE]), tools=[tool])
    await harness.prompt("go", "r1")
    await harness.wait_until_idle()
    assert (harness.end_of("r1").outcome, harness.end_of("r1").error) == ("failed", str(StorageUnavailable()))


async def test_the_error_of_a_tool_is_a_result() -> None:
    _, result = await result_of(failing(ToolError("no such file")))
    assert (result.content, result.is_error) == ("no such file", True)


@pytest.mark.parametrize("is_parallel", [False, True])
async def test_exception_of_a_tool_is_a_result(is_parallel: bool) -> None:
    _, result = await result_of(failing(ZeroDivisionError("by nought"), is_parallel=is_parallel))
    assert result.is_error
    assert "ZeroDivisionError: by nought" in result.content


@pytest.mark.parametrize("is_parallel", [False, True])
async def test_tool_that_cancels_itself_cancels_nothing_else(is_parallel: bool) -> None:
    harness, result = await result_of(failing(asyncio.CancelledError(), is_parallel=is_parallel))
    assert result.is_error
    assert await harness.finishes() == ["tool_use", "end_turn"]


async def test_a_tool_may_stop_the_turn() -> None:
    """The user denied it: later calls of the step are not run, and no model request follows."""

    async def refuse(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
        return ToolOutcome("denied", is_error=True, stops_turn=True)

    model = ScriptedModel([Step((Call("ask"), Call("tool"), Call("side")))])
    tool, side = fixed_tool("tool"), fixed_tool("side", is_parallel=True)
    harness = await run_to_end(model, SimpleTool("ask", refuse), tool, side)
    assert harness.end_of("r1").outcome == "completed"
    assert await harness.finishes() == ["end_turn"]
    assert len(model.requests) == 1
    assert (tool.started, side.started) == (0, 0)
    assert [result.is_error for result in await results(harness)] == [True, True, True]


@pytest.mark.parametrize(("finish", "reason"), [("length", "max_tokens"), ("content_filter", "content_filter")])
async def test_calls_of_an_answer_that_was_cut_off_are_not_run(finish: StepFinish, reason: str) -> None:
    tool = fixed_tool("tool")
    model = ScriptedModel([Step((Say("x"), *calls("tool", 2)), finish=finish)])
    harness = await run_to_end(model, tool)
    assert tool.started == 0
    assert await harness.finishes() == [reason]
    assert [result.is_error for result in await results(harness)] == [True, True]
    assert len(model.requests) == 1


async def test_tool_context_names_session_run_and_call() -> None:
    seen: list[ToolContext] = []

    async def act(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        seen.append(context)
        return ToolOutcome("ok", '{"for":"screens"}')

    harness = await run_to_end(
        ScriptedModel([Step((Call("tool", id=ToolCallId("c7")),)), DONE]), SimpleTool("tool", act)
    )
    (context,) = seen
    assistant = (await harness.messages())[1]
    assert (context.run_id, context.session_id, context.tool_call_id) == ("r1", harness.session, "c7")
    assert (context.message_id, context.workspace_path) == (assistant.id, "/project")
    assert (await results(harness))[0].metadata == '{"for":"screens"}'


# Cancelling.


@pytest.mark.parametrize("is_parallel", [False, True])
@pytest.mark.parametrize(
    ("how", "texts"),
    [
        ("cancel", ["What this call had done by then was not undone.", "This call was not run."]),
        ("close", ["It may have had effects.", "before this call was run."]),
    ],
)
async def test_a_call_that_was_cut_off_is_reported_as_run_or_not(how: str, texts: list[str], is_parallel: bool) -> None:
    """A call that requests no permission runs at once; one that has no place yet has had no effects."""
    tool = GatedTool("tool", is_parallel=is_parallel)
    settings = EngineSettings(titles=False, parallel_tools=1)
    harness = await Harness.open(ScriptedModel([Step(calls("tool", 2))]), tools=[tool], settings=settings)
    await harness.prompt("go", "r1")
    await tool.gate.reached.wait()
    if how == "cancel":
        await harness.cancel()
        await harness.wait_until_idle()
    await harness.close()
    found = [result.content for result in await results(harness)]
    assert [text.endswith(end) for text, end in zip(found, texts, strict=True)] == [True, True], found


async def test_a_question_in_a_run_without_a_user_is_explained() -> None:
    """The tool is not offered; a model that knows it from earlier turns learns why it cannot be used."""

    async def ask(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        assert await context.ask_questions(QuestionBatch(())) is None
        return ToolOutcome("asked")

    model = ScriptedModel([Step((Call("question"),)), DONE])
    harness = await Harness.open(model, tools=[SimpleTool("question", ask)])
    await harness.workspace.inputs.submit(Prompt(harness.session, "go", run_id=RunId("r1"), interactive=False))
    await harness.wait_until_idle()
    assert model.requests[0].tools == ()
    (result,) = await results(harness)
    assert (result.is_error, result.content.startswith("Questions cannot be answered in this run")) == (True, True)


async def test_no_tool_is_started_after_a_cancel() -> None:
    """C-45: calls that had not started never start, and each has a result all the same."""
    held, after, side = GatedTool("held"), fixed_tool("after"), fixed_tool("side", is_parallel=True)
    model = ScriptedModel([Step((Call("held"), Call("after"), Call("side"), Call("side")))])
    harness = await Harness.open(model, tools=[held, after, side], settings=PATIENT)
    await harness.prompt("go", "r1")
    await held.gate.reached.wait()
    await harness.cancel()
    await harness.wait_until_idle()
    assert (held.running, after.started, side.started) == (0, 0, 0)
    assert harness.end_of("r1").outcome == "cancelled"
    assert len(await results(harness)) == 4
    await harness.assert_valid()


async def test_parallel_calls_waiting_for_a_slot_never_start_after_a_cancel() -> None:
    """C-45."""
    tool = GatedTool("tool", is_parallel=True)
    harness = await Harness.open(ScriptedModel([Step(calls("tool", 9))]), tools=[tool], settings=PATIENT)
    await harness.prompt("go", "r1")
    await until(lambda: tool.running == 5)
    await harness.cancel()
    await harness.wait_until_idle()
    assert (tool.started, tool.running) == (5, 0)
    await harness.assert_valid()


@pytest.mark.parametrize("is_parallel", [False, True])
@pytest.mark.parametrize("raises", [False, True])
@pytest.mark.parametrize("followed", [(), (Call("after"),)])
async def test_a_tool_that_suppresses_its_cancellation_does_not_save_its_run(
    is_parallel: bool, raises: bool, followed: tuple[Call, ...]
) -> None:
    """C-45: its result is stored; no tool and no request follow."""
    reached = asyncio.Event()

    async def act(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
        reached.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if raises:
                raise ToolError("stopped in the middle") from None
        return ToolOutcome("stopped in the middle")

    after = fixed_tool("after")
    model = ScriptedModel([Step((Call("stubborn"), *followed)), DONE])
    harness = await Harness.open(
        model, tools=[SimpleTool("stubborn", act, is_parallel=is_parallel), after], settings=PATIENT
    )
    await harness.prompt("go", "r1")
    await reached.wait()
    await harness.cancel()
    await harness.wait_until_idle()
    assert after.started == 0
    assert len(model.requests) == 1
    assert (await results(harness))[0].content == "stopped in the middle"
    assert await harness.finishes() == ["canceled"]
    await harness.assert_valid()


async def test_a_write_after_a_cancelled_call_has_no_effect(tmp_path: Path) -> None:
    """C-54: in the same step."""
    held = GatedTool("held")
    write = Call("write", '{"file_path":"a.txt","content":"x"}')
    harness = await Harness.open(
        ScriptedModel([Step((Call("held"), write))]), tools=[held, WriteTool()], settings=PATIENT, path=str(tmp_path)
    )
    await harness.prompt("go", "r1")
    await held.gate.reached.wait()
    await harness.cancel()
    held.gate.open()
    await harness.wait_until_idle()
    assert os.listdir(tmp_path) == []
    assert await harness.ledger.files(harness.workspace.record.id, harness.session) == []
    await harness.assert_valid()


async def test_operations_of_a_tool_after_the_end_of_its_run_are_not_recorded() -> None:
    """A tool that does not stop is abandoned at the end of the grace."""
    freed, kept = asyncio.Event(), asyncio.Event()
    outcome: list[str] = []

    async def act(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        kept.set()
        while not freed.is_set():
            try:
                await freed.wait()
            except asyncio.CancelledError:
                continue
        try:
            await context.record()
        except Exception as error:
            outcome.append(type(error).__name__)
        return ToolOutcome("too late")

    settings = type(PATIENT)(titles=False, grace=0.0, margin=0.0)
    harness = await Harness.open(
        ScriptedModel([Step((Call("tool"),))]), tools=[SimpleTool("tool", act)], settings=settings
    )
    await harness.prompt("go", "r1")
    await kept.wait()
    await harness.cancel()
    await harness.wait_until_idle()
    published = len(harness.published.events)
    freed.set()
    await until(lambda: bool(outcome))
    await run_other_tasks()
    assert outcome == ["TurnClosed"]
    assert len(harness.published.events) == published
    await harness.assert_valid()
