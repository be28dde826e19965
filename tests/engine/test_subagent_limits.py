"""Limits of sub-agents, exactly at their bounds: depth and number below one run, whatever sends them."""

import json

import msgspec
import pytest

from engine.helpers import PATIENT, results_of
from holdfast.domain.ids import is_subagent_session
from holdfast.domain.messages import text_of
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.tools import SubagentTask, ToolContext, ToolOutcome
from holdfast.engine.run_context import SubagentType
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.testing.gates import GatedTool, SimpleTool, settle_down, until
from holdfast.testing.harness import FixedModels, FixedTools, Harness

NESTED = "send one more"


async def send(context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
    return ToolOutcome(
        await context.run_subagent(SubagentTask(str(arguments.get("prompt", "look")), "A sub-agent", kind="task"))
    )


def _call(prompt: str) -> Call:
    return Call("agent", json.dumps({"prompt": prompt}))


class _Family:
    """A run that starts sub-agents in parallel; a sub-agent asked to nest starts some of its own, others wait."""

    def __init__(self, own: int, nested: int) -> None:
        self.own, self.nested = own, nested
        self.hold = GatedTool("hold", is_parallel=True)
        self.refusals: list[str] = []

    def __call__(self, request: ModelRequest) -> Step:
        last = request.messages[-1]
        if last.role == "tool":
            self.refusals += [result.content for result in results_of(request.messages) if result.is_error]
            return Step((Say("done"),))
        if not is_subagent_session(request.session_id):
            return Step(tuple(_call(NESTED if self.nested else "look") for _ in range(self.own)))
        if NESTED in text_of(last):
            return Step(tuple(_call("look") for _ in range(self.nested)))
        return Step((Call("hold"),))


async def refusals(family: _Family, **limits: int) -> list[str]:
    """Return the refusals of one run of the family; the sub-agents are under way at the same time."""
    agent = SimpleTool("agent", send, is_parallel=True)
    settings = msgspec.structs.replace(PATIENT, **limits)
    harness = await Harness.open(FixedModels(ScriptedModel(family)), tools=[agent], settings=settings)
    harness.workspace.engine.run_context.subagents.add("task", SubagentType(FixedTools((agent, family.hold))))
    await harness.prompt("find it", "r1")
    await family.hold.gate.reached.wait()
    await settle_down()
    family.hold.gate.open()
    await harness.wait_until_idle()
    await harness.close()
    return family.refusals


@pytest.mark.parametrize(("limit", "refused"), [(1, 2), (2, 1), (3, 0), (4, 0)])
async def test_the_number_of_sub_agents_at_once_is_exact(limit: int, refused: int) -> None:
    found = await refusals(_Family(3, 0), max_subagents=limit, subagent_depth=1)
    assert len(found) == refused
    assert all(f"{limit} sub-agents are running" in text for text in found)


@pytest.mark.parametrize(("limit", "refused"), [(2, 1), (3, 0)])
async def test_sub_agents_of_sub_agents_count_for_the_run_above_all_of_them(limit: int, refused: int) -> None:
    assert len(await refusals(_Family(1, 2), max_subagents=limit, subagent_depth=2)) == refused


async def test_the_sub_agents_of_another_session_do_not_count() -> None:
    agent = SimpleTool("agent", send, is_parallel=True)
    family = _Family(2, 0)
    settings = msgspec.structs.replace(PATIENT, max_subagents=2, subagent_depth=1)
    harness = await Harness.open(FixedModels(ScriptedModel(family)), tools=[agent], settings=settings)
    harness.workspace.engine.run_context.subagents.add("task", SubagentType(FixedTools((agent, family.hold))))
    other = await harness.workspace.sessions.create("Other")
    await harness.prompt("find it", "r1")
    await harness.prompt("find it", "r2", session=other.id)
    await until(lambda: family.hold.running == 4)
    family.hold.gate.open()
    await harness.wait_until_idle()
    await harness.workspace.engine.wait_until_idle(other.id)
    await harness.close()
    assert family.refusals == []


async def test_depth_of_two_allows_sub_agents_of_sub_agents() -> None:
    assert await refusals(_Family(1, 1), max_subagents=9, subagent_depth=2) == []
