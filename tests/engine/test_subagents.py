"""Sub-agents: runs that a tool starts and that end with the parent run."""

import asyncio

import msgspec
import pytest

from engine.helpers import PATIENT, results_of, texts_of
from holdfast.domain.errors import StorageUnavailable, SubagentSession
from holdfast.domain.events import RunCompleteEvent
from holdfast.domain.ids import RunId, SessionId, is_subagent_session, subagent_session
from holdfast.domain.model_requests import ModelInfo, ModelRequest
from holdfast.domain.store_operations import Admit, CancelSession
from holdfast.domain.tools import SubagentTask, ToolContext, ToolOutcome
from holdfast.domain.usage import Price, Usage
from holdfast.engine.run_context import SubagentType
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step
from holdfast.testing.gates import Gate, GatedLedger, GatedTool, SimpleTool, settle_down, until
from holdfast.testing.harness import FixedModels, FixedTools, Harness
from holdfast.testing.seeded_loop import in_virtual_time

TASK = SubagentTask("look for it", "A helper's session")


async def start_subagent(context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
    return ToolOutcome(
        await context.run_subagent(msgspec.structs.replace(TASK, kind=str(arguments.get("kind", "task"))))
    )


def agent_tool() -> SimpleTool:
    return SimpleTool("agent", start_subagent, is_parallel=True)


def subagent_model(subagent: Step, *, calls: int = 1) -> ScriptedModel:
    """Start sub-agents, then repeat their results; a sub-agent plays its own step."""

    def script(request: ModelRequest) -> Step:
        if is_subagent_session(request.session_id):
            return subagent
        if request.messages[-1].role == "tool":
            return Step((Say("results: " + " and ".join(r.content for r in results_of(request.messages))),))
        return Step(tuple(Call("agent") for _ in range(calls)))

    return ScriptedModel(script, info=ModelInfo("test", "m", price=Price(output=1_000_000.0)))


async def open_harness(model: ScriptedModel, *helper_tools: SimpleTool, small: ScriptedModel | None = None) -> Harness:
    tools = FixedTools(helper_tools)
    harness = await Harness.open(FixedModels(model, small), tools=[agent_tool()], settings=PATIENT)
    harness.workspace.engine.run_context.subagents.add("task", SubagentType(tools))
    harness.workspace.engine.run_context.subagents.add("fetch", SubagentType(tools, "small", "fetch.md"))
    return harness


async def children(harness: Harness) -> list[SessionId]:
    runs = await harness.ledger.runs(harness.workspace.record.id, None, 100, 0)
    return [run.session_id for run in runs if run.parent_run_id]


async def test_a_sub_agent_runs_in_a_child_session() -> None:
    model = subagent_model(Step((Say("it is in a.py"),)))
    harness = await open_harness(model)
    await harness.prompt("find it", "r1")
    await harness.wait_until_idle()
    assert harness.end_of("r1").text == "results: it is in a.py"
    answer = (await harness.messages())[1]
    child = subagent_session(answer.id, answer.tool_calls[0].id)
    assert await children(harness) == [child]
    stored = await harness.ledger.session(harness.workspace.record.id, child)
    assert stored is not None
    assert (stored.parent_session_id, stored.title) == (harness.session, "A helper's session")
    assert texts_of(await harness.messages(child), "user") == ["look for it"]
    await harness.close()


async def test_a_sub_agent_has_its_own_tools_and_prompt() -> None:
    model = subagent_model(Step((Say("found"),)))
    harness = await open_harness(model, SimpleTool("view", start_subagent))
    await harness.prompt("find it", "r1")
    await harness.wait_until_idle()
    first, subagent, _ = model.requests
    assert [spec.name for spec in first.tools] == ["agent"]
    assert [spec.name for spec in subagent.tools] == ["view"]
    assert first.system != subagent.system
    assert "helper of Holdfast" in subagent.system
    await harness.close()


async def test_sub_agent_type_may_use_the_small_model() -> None:
    small = ScriptedModel([Step((Say("from the small one"),))])
    steps = [Step((Call("agent", '{"kind":"fetch"}'),)), Step((Say("done"),))]
    harness = await open_harness(ScriptedModel(steps), small=small)
    await harness.prompt("find it", "r1")
    await harness.wait_until_idle()
    assert [result.content for result in results_of(await harness.messages())] == ["from the small one"]
    assert "on the web" in small.requests[0].system
    await harness.close()


async def test_parallel_sub_agents_end_once_each() -> None:
    gate = Gate()

    async def wait(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
        await gate()
        return ToolOutcome("seen")

    def script(request: ModelRequest) -> Step:
        if is_subagent_session(request.session_id):
            return Step((Say("yes"),)) if request.messages[-1].role == "tool" else Step((Call("look"),))
        return Step((Say("done"),)) if request.messages[-1].role == "tool" else Step((Call("agent"), Call("agent")))

    harness = await open_harness(ScriptedModel(script), SimpleTool("look", wait))
    await harness.prompt("find it", "r1")
    await gate.reached.wait()
    gate.open()
    await harness.wait_until_idle()
    assert len(set(await children(harness))) == 2
    assert len([end for end in harness.ends() if end.run_id != "r1"]) == 2
    assert harness.ends()[-1].run_id == "r1"
    await harness.close()


async def test_a_sub_agent_is_cancelled_with_its_parent() -> None:
    tool = GatedTool("look")
    harness = await open_harness(subagent_model(Step((Call("look"),))), tool)
    await harness.prompt("find it", "r1")
    await tool.gate.reached.wait()
    await harness.cancel()
    await harness.wait_until_idle()
    assert [(end.outcome, end.run_id == "r1") for end in harness.ends()] == [("cancelled", False), ("cancelled", True)]
    assert tool.running == 0
    await harness.assert_valid()
    await harness.close()


@pytest.mark.parametrize("is_parallel", [True, False])
def test_a_sub_agent_of_an_abandoned_run_is_cancelled(is_parallel: bool) -> None:
    """Storing the sub-agent takes longer than the grace of its parent run."""

    async def main() -> None:
        ledger, tool, agent = (
            GatedLedger(),
            GatedTool("look"),
            SimpleTool("agent", start_subagent, is_parallel=is_parallel),
        )
        model = subagent_model(Step((Call("look"),)))
        harness = await Harness.open(FixedModels(model), tools=[agent], ledger=ledger)
        harness.workspace.engine.run_context.subagents.add("task", SubagentType(FixedTools([tool])))
        await harness.prompt("find it", "r1")
        await until(lambda: model.requests)
        ledger.hold(Admit)
        await ledger.gate.reached.wait()
        with pytest.raises(StorageUnavailable):
            await harness.cancel()
        await asyncio.sleep(2 * EngineSettings().grace)
        assert harness.workspace.engine.lane(harness.session).head is None, "it was given up"
        ledger.gate.open()
        await harness.wait_until_idle()
        (child,) = await children(harness)
        await harness.workspace.engine.wait_until_idle(child)
        assert {end.outcome for end in harness.ends()} == {"cancelled"}
        assert (len(model.requests), tool.started) == (1, 0)
        await harness.close()

    in_virtual_time(main)


async def test_a_sub_agent_ends_before_its_parent_even_if_its_cancel_cannot_be_stored() -> None:
    """R4: the disk fails for a moment, and the sub-agent's tool stops slowly."""
    ledger, at_work, gone = GatedLedger(), Gate(), Gate()

    async def slow(_context: ToolContext, _arguments: dict[str, object]) -> ToolOutcome:
        try:
            await at_work()
        finally:
            await gone()
        return ToolOutcome("")

    harness = await Harness.open(
        subagent_model(Step((Call("look"),))), tools=[agent_tool()], settings=PATIENT, ledger=ledger
    )
    harness.workspace.engine.run_context.subagents.add("task", SubagentType(FixedTools([SimpleTool("look", slow)])))
    await harness.prompt("find it", "r1")
    await at_work.reached.wait()
    ledger.refused = (CancelSession,)
    with pytest.raises(StorageUnavailable):
        await harness.cancel()
    await gone.reached.wait()
    await settle_down()
    gone.open()
    await harness.wait_until_idle()
    assert [(end.outcome, end.run_id == "r1") for end in harness.ends()] == [("cancelled", False), ("cancelled", True)]


async def test_the_failure_of_a_sub_agent_is_a_result() -> None:
    harness = await open_harness(subagent_model(Step((Fail("no such model"),))))
    await harness.prompt("find it", "r1")
    await harness.wait_until_idle()
    (result,) = results_of(await harness.messages())
    assert result.is_error
    assert "no such model" in result.content
    assert harness.end_of("r1").outcome == "completed"
    await harness.close()


@pytest.mark.parametrize("acts", [(), (Say("   "),)], ids=["nothing", "spaces"])
async def test_a_sub_agent_without_text_is_an_error_result(acts: tuple[Say, ...]) -> None:
    harness = await open_harness(subagent_model(Step(acts)))
    await harness.prompt("find it", "r1")
    await harness.wait_until_idle()
    (result,) = results_of(await harness.messages())
    assert (result.is_error, "without a text" in result.content) == (True, True)
    await harness.close()


async def test_the_cost_of_a_sub_agent_is_added_to_the_session() -> None:
    harness = await open_harness(subagent_model(Step((Say("found"),), usage=Usage(input_tokens=1, output_tokens=3))))
    await harness.prompt("find it", "r1")
    await harness.wait_until_idle()
    session = await harness.ledger.session(harness.workspace.record.id, harness.session)
    assert session is not None
    assert session.cost == pytest.approx(3.0)
    await harness.close()


async def test_a_session_of_a_sub_agent_accepts_no_prompts() -> None:
    harness = await open_harness(subagent_model(Step((Say("found"),))))
    await harness.prompt("find it", "r1")
    await harness.wait_until_idle()
    (child,) = await children(harness)
    with pytest.raises(SubagentSession):
        await harness.prompt("you there?", session=child)
    await harness.close()


async def test_an_unknown_type_of_sub_agent_is_an_error_result() -> None:
    harness = await Harness.open(subagent_model(Step((Say("never"),))), tools=[agent_tool()], settings=PATIENT)
    await harness.prompt("find it", "r1")
    await harness.wait_until_idle()
    (result,) = results_of(await harness.messages())
    assert result.is_error
    assert not await children(harness)
    await harness.close()


async def test_shutdown_ends_parent_and_sub_agent() -> None:
    tool = GatedTool("look")
    harness = await open_harness(subagent_model(Step((Call("look"),))), tool)
    await harness.prompt("find it", "r1")
    await tool.gate.reached.wait()
    await harness.close()
    published = [event.change.object for _, event in harness.published.events if isinstance(event, RunCompleteEvent)]
    assert sorted((end.outcome, end.run_id == RunId("r1")) for end in published) == [
        ("interrupted", False),
        ("interrupted", True),
    ]
