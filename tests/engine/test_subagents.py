"""Sub-agents: runs that a tool starts and that end with the parent run."""

import asyncio

import msgspec
import pytest

from engine.helpers import PATIENT, results_of, texts_of
from holdfast.domain.errors import StorageUnavailable, SubagentSession
from holdfast.domain.events import RunCompleteEvent
from holdfast.domain.ids import RunId, SessionId, is_subagent_session, subagent_session
from holdfast.domain.ledger import Admit, CancelSession
from holdfast.domain.models import ModelInfo, ModelRequest
from holdfast.domain.tools import SubagentTask, ToolContext, ToolOutcome
from holdfast.domain.usage import Price, Usage
from holdfast.engine.run_context import SubagentType
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step
from holdfast.testing.gates import Gate, GatedLedger, GatedTool, SimpleTool, settle_down, until
from holdfast.testing.harness import FixedModels, FixedTools, World
from holdfast.testing.seeded_loop import in_virtual_time

TASK = SubagentTask("look for it", "A helper's session")


async def send(context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
    return ToolOutcome(
        await context.run_subagent(msgspec.structs.replace(TASK, kind=str(arguments.get("kind", "task"))))
    )


def sender() -> SimpleTool:
    return SimpleTool("agent", send, is_parallel=True)


def scripted(helper: Step, *, calls: int = 1) -> ScriptedModel:
    """Sends helpers, then says what they said; a helper plays its own step."""

    def script(request: ModelRequest) -> Step:
        if is_subagent_session(request.session_id):
            return helper
        if request.messages[-1].role == "tool":
            return Step((Say("they said: " + " and ".join(r.content for r in results_of(request.messages))),))
        return Step(tuple(Call("agent") for _ in range(calls)))

    return ScriptedModel(script, info=ModelInfo("test", "m", price=Price(output=1_000_000.0)))


async def opened(model: ScriptedModel, *helper_tools: SimpleTool, small: ScriptedModel | None = None) -> World:
    tools = FixedTools(helper_tools)
    world = await World.open(FixedModels(model, small), tools=[sender()], settings=PATIENT)
    world.workspace.engine.run_context.subagents.add("task", SubagentType(tools))
    world.workspace.engine.run_context.subagents.add("fetch", SubagentType(tools, "small", "fetch.md"))
    return world


async def children(world: World) -> list[SessionId]:
    runs = await world.ledger.runs(world.workspace.record.id, None, 100, 0)
    return [run.session_id for run in runs if run.parent_run_id]


async def test_a_sub_agent_runs_in_a_child_session() -> None:
    model = scripted(Step((Say("it is in a.py"),)))
    world = await opened(model)
    await world.prompt("find it", "r1")
    await world.quiet()
    assert world.end_of("r1").text == "they said: it is in a.py"
    answer = (await world.messages())[1]
    child = subagent_session(answer.id, answer.tool_calls[0].id)
    assert await children(world) == [child]
    stored = await world.ledger.session(world.workspace.record.id, child)
    assert stored is not None
    assert (stored.parent_session_id, stored.title) == (world.session, "A helper's session")
    assert texts_of(await world.messages(child), "user") == ["look for it"]
    await world.close()


async def test_a_sub_agent_has_its_own_tools_and_prompt() -> None:
    model = scripted(Step((Say("found"),)))
    world = await opened(model, SimpleTool("view", send))
    await world.prompt("find it", "r1")
    await world.quiet()
    first, helper, _ = model.requests
    assert [spec.name for spec in first.tools] == ["agent"]
    assert [spec.name for spec in helper.tools] == ["view"]
    assert first.system != helper.system
    assert "helper of Holdfast" in helper.system
    await world.close()


async def test_a_crew_may_use_the_small_model() -> None:
    small = ScriptedModel([Step((Say("from the small one"),))])
    steps = [Step((Call("agent", '{"kind":"fetch"}'),)), Step((Say("done"),))]
    world = await opened(ScriptedModel(steps), small=small)
    await world.prompt("find it", "r1")
    await world.quiet()
    assert [result.content for result in results_of(await world.messages())] == ["from the small one"]
    assert "on the web" in small.requests[0].system
    await world.close()


async def test_parallel_sub_agents_end_once_each() -> None:
    gate = Gate()

    async def wait(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
        await gate()
        return ToolOutcome("seen")

    def script(request: ModelRequest) -> Step:
        if is_subagent_session(request.session_id):
            return Step((Say("yes"),)) if request.messages[-1].role == "tool" else Step((Call("look"),))
        return Step((Say("done"),)) if request.messages[-1].role == "tool" else Step((Call("agent"), Call("agent")))

    world = await opened(ScriptedModel(script), SimpleTool("look", wait))
    await world.prompt("find it", "r1")
    await gate.reached.wait()
    gate.open()
    await world.quiet()
    assert len(set(await children(world))) == 2
    assert len([end for end in world.ends() if end.run_id != "r1"]) == 2
    assert world.ends()[-1].run_id == "r1"
    await world.close()


async def test_a_sub_agent_is_cancelled_with_its_parent() -> None:
    tool = GatedTool("look")
    world = await opened(scripted(Step((Call("look"),))), tool)
    await world.prompt("find it", "r1")
    await tool.gate.reached.wait()
    await world.cancel()
    await world.quiet()
    assert [(end.outcome, end.run_id == "r1") for end in world.ends()] == [("cancelled", False), ("cancelled", True)]
    assert tool.running == 0
    await world.assert_valid()
    await world.close()


@pytest.mark.parametrize("is_parallel", [True, False])
def test_a_sub_agent_of_an_abandoned_run_is_cancelled(is_parallel: bool) -> None:
    """The disk takes longer to store the helper than the run that sends it may take to stop."""

    async def main() -> None:
        ledger, tool, agent = GatedLedger(), GatedTool("look"), SimpleTool("agent", send, is_parallel=is_parallel)
        model = scripted(Step((Call("look"),)))
        world = await World.open(FixedModels(model), tools=[agent], ledger=ledger)
        world.workspace.engine.run_context.subagents.add("task", SubagentType(FixedTools([tool])))
        await world.prompt("find it", "r1")
        await until(lambda: model.requests)
        ledger.hold(Admit)
        await ledger.gate.reached.wait()
        with pytest.raises(StorageUnavailable):
            await world.cancel()
        await asyncio.sleep(2 * EngineSettings().grace)
        assert world.workspace.engine.lane(world.session).head is None, "it was given up"
        ledger.gate.open()
        await world.quiet()
        (child,) = await children(world)
        await world.workspace.engine.wait_until_idle(child)
        assert {end.outcome for end in world.ends()} == {"cancelled"}
        assert (len(model.requests), tool.started) == (1, 0)
        await world.close()

    in_virtual_time(main)


async def test_a_sub_agent_ends_before_its_parent_even_if_its_cancel_cannot_be_stored() -> None:
    """R4: the disk fails for a moment, and the helper's tool takes its time."""
    ledger, at_work, gone = GatedLedger(), Gate(), Gate()

    async def slow(_context: ToolContext, _arguments: dict[str, object]) -> ToolOutcome:
        try:
            await at_work()
        finally:
            await gone()
        return ToolOutcome("")

    world = await World.open(scripted(Step((Call("look"),))), tools=[sender()], settings=PATIENT, ledger=ledger)
    world.workspace.engine.run_context.subagents.add("task", SubagentType(FixedTools([SimpleTool("look", slow)])))
    await world.prompt("find it", "r1")
    await at_work.reached.wait()
    ledger.refused = (CancelSession,)
    with pytest.raises(StorageUnavailable):
        await world.cancel()
    await gone.reached.wait()
    await settle_down()
    gone.open()
    await world.quiet()
    assert [(end.outcome, end.run_id == "r1") for end in world.ends()] == [("cancelled", False), ("cancelled", True)]


async def test_the_failure_of_a_sub_agent_is_a_result() -> None:
    world = await opened(scripted(Step((Fail("no such model"),))))
    await world.prompt("find it", "r1")
    await world.quiet()
    (result,) = results_of(await world.messages())
    assert result.is_error
    assert "no such model" in result.content
    assert world.end_of("r1").outcome == "completed"
    await world.close()


async def test_a_sub_agent_without_text_is_an_error_result() -> None:
    world = await opened(scripted(Step(())))
    await world.prompt("find it", "r1")
    await world.quiet()
    (result,) = results_of(await world.messages())
    assert (result.is_error, "without a text" in result.content) == (True, True)
    await world.close()


async def test_the_cost_of_a_sub_agent_is_added_to_the_session() -> None:
    world = await opened(scripted(Step((Say("found"),), usage=Usage(input_tokens=1, output_tokens=3))))
    await world.prompt("find it", "r1")
    await world.quiet()
    session = await world.ledger.session(world.workspace.record.id, world.session)
    assert session is not None
    assert session.cost == pytest.approx(3.0)
    await world.close()


async def test_a_session_of_a_sub_agent_accepts_no_prompts() -> None:
    world = await opened(scripted(Step((Say("found"),))))
    await world.prompt("find it", "r1")
    await world.quiet()
    (child,) = await children(world)
    with pytest.raises(SubagentSession):
        await world.prompt("you there?", session=child)
    await world.close()


async def test_an_unknown_type_of_sub_agent_is_an_error_result() -> None:
    world = await World.open(scripted(Step((Say("never"),))), tools=[sender()], settings=PATIENT)
    await world.prompt("find it", "r1")
    await world.quiet()
    (result,) = results_of(await world.messages())
    assert result.is_error
    assert not await children(world)
    await world.close()


async def test_a_shutdown_ends_both() -> None:
    tool = GatedTool("look")
    world = await opened(scripted(Step((Call("look"),))), tool)
    await world.prompt("find it", "r1")
    await tool.gate.reached.wait()
    await world.close()
    told = [event.change.object for _, event in world.tape.events if isinstance(event, RunCompleteEvent)]
    assert sorted((end.outcome, end.run_id == RunId("r1")) for end in told) == [
        ("interrupted", False),
        ("interrupted", True),
    ]
