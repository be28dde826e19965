"""Compaction: its threshold, the request and the stored summary, and the state after an interrupted summary."""

import pytest

from engine.helpers import PATIENT, fixed_tool, info, session_of, texts_of
from holdfast.domain.errors import SessionBusy
from holdfast.domain.events import MessageEvent
from holdfast.domain.messages import text_of
from holdfast.domain.sessions import SessionPatch, Todo
from holdfast.domain.store_operations import PatchSession
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.domain.usage import Price, Usage
from holdfast.engine.compaction import is_nearly_full
from holdfast.engine.run_context import text
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step
from holdfast.testing.gates import GatedModel, GatedTool, SimpleTool, until
from holdfast.testing.harness import Harness

FULL = Usage(input_tokens=700, output_tokens=100)
WORK = Step((Say("working"), Call("tool")), FULL)
SUMMARY = Step((Say("in short"),), Usage(input_tokens=10, output_tokens=5))
DONE = Step((Say("done"),), Usage(input_tokens=20, output_tokens=1))


def small_model(*steps: Step, window: int = 1000) -> ScriptedModel:
    """Return a model with a small context window: 800 tokens nearly fill it."""
    return ScriptedModel(steps, info=info(window, Price(input=1_000_000.0)))


class GateShuttingTool(SimpleTool):
    """A tool that shuts a gate of the model, so that the next request waits there."""

    def __init__(self, model: GatedModel, *, midway: bool = False) -> None:
        self.gate = model.midway if midway else model.before
        super().__init__("tool", self._shut)

    async def _shut(self, _: ToolContext, __: dict[str, object]) -> ToolOutcome:
        self.gate.reached.clear()
        self.gate.shut()
        return ToolOutcome("shut")

    async def holds(self) -> None:
        """Wait until a request waits at the gate."""
        await until(lambda: self.started == 1)
        await self.gate.reached.wait()


async def summaries(harness: Harness) -> list[str]:
    return [text_of(message) for message in await harness.messages() if message.is_summary_message]


# Threshold.


@pytest.mark.parametrize(
    ("window", "used", "is_full"),
    [
        (0, 10**9, False),
        (1_000, 799, False),
        (1_000, 800, True),
        (1_000, 2_000, True),
        (200_000, 159_999, False),
        (200_000, 160_000, True),
        (200_001, 180_000, False),
        (200_001, 180_001, True),
        (1_000_000, 979_999, False),
        (1_000_000, 980_000, True),
    ],
)
def test_thresholds(window: int, used: int, is_full: bool) -> None:
    assert is_nearly_full(window, used) == is_full


@pytest.mark.parametrize(
    ("usage", "count"),
    [
        (Usage(input_tokens=700, output_tokens=99), 2),
        (Usage(input_tokens=700, output_tokens=100), 3),
        (Usage(input_tokens=1, cache_read_tokens=699, output_tokens=100), 3),
        (Usage(input_tokens=1, cache_write_tokens=698, output_tokens=100), 2),
        (Usage(input_tokens=1, cache_write_tokens=699, output_tokens=100), 3),
    ],
)
async def test_token_counts_are_the_size_of_the_context(usage: Usage, count: int) -> None:
    model = small_model(Step((Call("tool"),), usage), SUMMARY if count == 3 else DONE, DONE)
    harness = await Harness.open(model, tools=[fixed_tool("tool")])
    await harness.prompt("go", "r1")
    await harness.wait_until_idle()
    assert len(model.requests) == count


async def test_compaction_can_be_disabled() -> None:
    settings = EngineSettings(titles=False, auto_summarize=False)
    harness = await Harness.open(small_model(WORK, DONE), tools=[fixed_tool("tool")], settings=settings)
    await harness.prompt("go", "r1")
    await harness.wait_until_idle()
    assert await summaries(harness) == []


# Inside a run.


async def test_a_summary_in_the_middle_of_a_run_keeps_the_run() -> None:
    """C-20: the run continues under its id, and only its actual end is published."""
    model = small_model(WORK, SUMMARY, DONE)
    harness = await Harness.open(model, tools=[fixed_tool("tool")])
    await harness.prompt("build a boat", "r1")
    await harness.wait_until_idle()
    end = harness.end_of("r1")
    assert (end.outcome, end.text) == ("completed", "done")
    assert len(harness.ends()) == 1
    assert {message.run_id for message in await harness.messages()} == {"r1"}
    assert await harness.finishes() == ["tool_use", "end_turn", "end_turn"]
    await harness.assert_valid(model.requests)


async def test_summary_request_has_no_tools_and_the_whole_conversation() -> None:
    model = small_model(WORK, SUMMARY, DONE)
    harness = await Harness.open(model, tools=[fixed_tool("tool")])
    await harness.prompt("build a boat", "r1")
    await harness.wait_until_idle()
    _, request, _ = model.requests
    assert request.tools == ()
    assert request.system == text("summary.md")
    assert [message.role for message in request.messages] == ["user", "assistant", "tool", "user"]
    assert texts_of(request.messages, "user")[0] == "build a boat"


async def test_after_a_summary_the_request_repeats_the_prompt() -> None:
    model = small_model(WORK, SUMMARY, DONE)
    harness = await Harness.open(model, tools=[fixed_tool("tool")])
    await harness.prompt("build a boat", "r1")
    await harness.wait_until_idle()
    (begin,) = model.requests[2].messages
    assert begin.role == "user"
    assert text_of(begin).startswith("in short")
    assert text_of(begin).endswith("build a boat")


async def test_second_summary_is_generated_from_the_first() -> None:
    """The content of the first summary is kept."""
    second = Step((Say("shorter still"),))
    model = small_model(WORK, SUMMARY, WORK, second, DONE)
    harness = await Harness.open(model, tools=[fixed_tool("tool")])
    await harness.prompt("build a boat", "r1")
    await harness.wait_until_idle()
    request = model.requests[3]
    assert texts_of(request.messages, "user")[0].startswith("in short")
    assert texts_of(request.messages, "assistant") == ["working"]
    assert await summaries(harness) == ["in short", "shorter still"]
    await harness.assert_valid(model.requests)


async def test_a_turn_that_is_over_is_summarised_and_ends() -> None:
    """It serves the next prompt; the answer of the run is its last response, not the summary."""
    model = small_model(Step((Say("that was long"),), FULL), SUMMARY, DONE)
    harness = await Harness.open(model)
    await harness.prompt("one", "r1")
    await harness.wait_until_idle()
    assert harness.end_of("r1").text == "that was long"
    await harness.prompt("two", "r2")
    await harness.wait_until_idle()
    assert texts_of(model.requests[2].messages, "user") == ["in short", "two"]
    await harness.assert_valid(model.requests)


async def test_prompts_that_steer_are_folded_after_a_summary() -> None:
    model = GatedModel(small_model(WORK, SUMMARY, DONE))
    shutter = GateShuttingTool(model)
    harness = await Harness.open(model, tools=[shutter])
    await harness.prompt("one", "r1")
    await shutter.holds()
    await harness.prompt("two")
    model.before.open()
    await harness.wait_until_idle()
    assert texts_of(model.requests[2].messages, "user")[-1] == "two"
    await harness.assert_valid(model.requests)


# Interrupted summaries.


@pytest.mark.parametrize("midway", [False, True])
async def test_a_cancel_during_a_summary_cancels_the_run(midway: bool) -> None:
    """C-44: it ends cancelled, and no summary is left."""
    model = GatedModel(small_model(WORK, SUMMARY, DONE), after=1)
    shutter = GateShuttingTool(model, midway=midway)
    harness = await Harness.open(model, tools=[shutter], settings=PATIENT)
    await harness.prompt("go", "r1")
    await shutter.holds()
    assert len(await summaries(harness)) == 1
    await harness.cancel()
    await harness.wait_until_idle()
    assert harness.end_of("r1").outcome == "cancelled"
    assert await harness.finishes() == ["tool_use", "canceled"]
    assert await summaries(harness) == []
    published = [(event.change.type, event.change.object.is_summary_message) for event in harness.message_events()]
    assert published.count(("deleted", True)) == 1
    assert (await session_of(harness)).summary_message_id == ""
    assert model.open_streams == 0
    await harness.assert_valid()


async def test_after_a_cancelled_summary_the_conversation_continues() -> None:
    """C-44."""
    model = GatedModel(small_model(WORK, DONE))
    shutter = GateShuttingTool(model)
    harness = await Harness.open(model, tools=[shutter], settings=PATIENT)
    await harness.prompt("one", "r1")
    await shutter.holds()
    await harness.cancel()
    await harness.wait_until_idle()
    model.before.open()
    await harness.prompt("two", "r2")
    await harness.wait_until_idle()
    assert harness.end_of("r2").text == "done"
    assert texts_of(model.requests[-1].messages, "user") == ["one", "two"]
    await harness.assert_valid(model.requests)


@pytest.mark.parametrize("broken", [Step((Say("in sh"), Fail("gone"))), Step((Say(" "),)), Step(())])
async def test_a_summary_that_fails_fails_the_run_and_is_not_used(broken: Step) -> None:
    model = small_model(WORK, broken, DONE)
    harness = await Harness.open(model, tools=[fixed_tool("tool")])
    await harness.prompt("one", "r1")
    await harness.wait_until_idle()
    assert harness.end_of("r1").outcome == "failed"
    assert await harness.finishes() == ["tool_use", "error"]
    assert (await session_of(harness)).summary_message_id == ""
    await harness.prompt("two", "r2")
    await harness.wait_until_idle()
    assert texts_of(model.requests[2].messages, "user") == ["one", "two"]
    await harness.assert_valid(model.requests)


# Summaries on request.


async def harness_with_history(*steps: Step) -> tuple[Harness, ScriptedModel]:
    """Return a harness whose session has a conversation."""
    model = ScriptedModel([Step((Say("hello"),), Usage(30, 3)), *steps], info=info(price=Price(output=1_000_000.0)))
    harness = await Harness.open(model, settings=PATIENT)
    await harness.prompt("one", "r1")
    await harness.wait_until_idle()
    return harness, model


async def test_requested_summary_is_a_run() -> None:
    harness, model = await harness_with_history(SUMMARY, DONE)
    run = await harness.workspace.inputs.summarize(harness.session)
    assert run.kind == "summary"
    await harness.wait_until_idle()
    end = harness.end_of(run.run_id)
    assert (end.outcome, end.text) == ("completed", "in short")
    assert texts_of(model.requests[1].messages, "user")[0] == "one"
    await harness.prompt("two", "r2")
    await harness.wait_until_idle()
    assert texts_of(model.requests[2].messages, "user") == ["in short", "two"]
    assert (await harness.outline())[:2] == ["user:one", "assistant:hello"]
    await harness.assert_valid(model.requests)


async def test_a_summary_replaces_the_counters_and_adds_its_cost() -> None:
    harness, _ = await harness_with_history(SUMMARY)
    before = await session_of(harness)
    await harness.workspace.inputs.summarize(harness.session)
    await harness.wait_until_idle()
    after = await session_of(harness)
    assert (before.prompt_tokens, before.completion_tokens, before.cost) == (30, 3, 3.0)
    assert (after.prompt_tokens, after.completion_tokens, after.cost) == (0, 5, 8.0)
    assert not after.estimated_usage
    assert after.summary_message_id == (await harness.messages())[-1].id


async def test_a_summary_without_reported_usage_is_estimated_and_costs_nothing() -> None:
    harness, _ = await harness_with_history(Step((Say("twelve chars"),)))
    await harness.workspace.inputs.summarize(harness.session)
    await harness.wait_until_idle()
    after = await session_of(harness)
    assert (after.completion_tokens, after.cost, after.estimated_usage) == (3, 3.0, True)


async def test_a_busy_session_is_not_summarised() -> None:
    tool = GatedTool("tool")
    harness = await Harness.open(ScriptedModel([Step((Call("tool"),)), DONE]), tools=[tool], settings=PATIENT)
    await harness.prompt("go", "r1")
    await tool.gate.reached.wait()
    with pytest.raises(SessionBusy):
        await harness.workspace.inputs.summarize(harness.session)
    tool.gate.open()
    await harness.wait_until_idle()
    assert await summaries(harness) == []
    assert len(harness.ends()) == 1


async def test_an_empty_session_needs_no_summary() -> None:
    model = ScriptedModel([])
    harness = await Harness.open(model)
    run = await harness.workspace.inputs.summarize(harness.session)
    await harness.wait_until_idle()
    assert harness.end_of(run.run_id).outcome == "completed"
    assert (model.requests, await harness.messages()) == ([], [])


async def test_summary_contains_the_todos() -> None:
    harness, model = await harness_with_history(SUMMARY)
    todos = (Todo("saw planks", "completed", "sawing"), Todo("caulk", "in_progress", "caulking"))
    await harness.workspace.engine.recorder.put(PatchSession(SessionPatch(harness.session, 1, todos=todos)))
    await harness.workspace.inputs.summarize(harness.session)
    await harness.wait_until_idle()
    ask = texts_of(model.requests[1].messages, "user")[-1]
    assert "[completed] saw planks" in ask
    assert "[in_progress] caulk" in ask


async def test_requested_summary_can_be_cancelled() -> None:
    model = GatedModel(ScriptedModel([Step((Say("hello"),)), SUMMARY]), after=0)
    harness = await Harness.open(model, settings=PATIENT)
    await harness.prompt("one", "r1")
    await harness.wait_until_idle()
    model.before.shut()
    model.before.reached.clear()
    run = await harness.workspace.inputs.summarize(harness.session)
    await model.before.reached.wait()
    await harness.cancel()
    await harness.wait_until_idle()
    assert harness.end_of(run.run_id).outcome == "cancelled"
    assert await summaries(harness) == []
    assert (await session_of(harness)).summary_message_id == ""
    await harness.assert_valid()


async def test_a_prompt_during_a_summary_gets_its_own_turn() -> None:
    """Nothing is folded into a summary."""
    model = GatedModel(ScriptedModel([Step((Say("hello"),)), SUMMARY, DONE]))
    harness = await Harness.open(model, settings=PATIENT)
    await harness.prompt("one", "r1")
    await harness.wait_until_idle()
    model.before.shut()
    model.before.reached.clear()
    await harness.workspace.inputs.summarize(harness.session)
    await model.before.reached.wait()
    run = await harness.prompt("two", delivery="steer")
    model.before.open()
    await harness.wait_until_idle()
    assert harness.end_of(run.run_id).folded_into == ""
    assert texts_of(model.requests[2].messages, "user") == ["in short", "two"]


async def test_the_summary_message_is_marked_from_its_first_event() -> None:
    harness, _ = await harness_with_history(SUMMARY)
    await harness.workspace.inputs.summarize(harness.session)
    await harness.wait_until_idle()
    last = (await harness.messages())[-1].id
    events: list[MessageEvent] = [event for event in harness.message_events() if event.change.object.id == last]
    assert [event.change.type for event in events] == ["created", "updated"]
    assert all(event.change.object.is_summary_message for event in events)
