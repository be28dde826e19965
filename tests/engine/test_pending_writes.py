"""States between a decision and its commit: failing writes, ends that are not stored yet, nested runs."""

import asyncio
from collections.abc import Sequence

import pytest

from engine.helpers import PLAIN, fixed_tool, sleep_virtual
from engine.priced_models import Meter, MeteredModel, Part, priced_response
from holdfast.domain.errors import ProviderError, StorageUnavailable, StorageUnknown
from holdfast.domain.hooks import HookOutcome
from holdfast.domain.ids import RunId, WorkspaceId
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.runs import Prompt, Run
from holdfast.domain.store_operations import Answer, EndRun, PatchSession, Refusal, Write
from holdfast.domain.tools import SubagentTask, ToolContext, ToolOutcome
from holdfast.engine.ports import Model
from holdfast.engine.run_context import NoHooks, SubagentType
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.testing.gates import Gate, SimpleTool
from holdfast.testing.harness import FixedTools, Harness
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.testing.seeded_loop import in_virtual_time

DONE = Step((Say("done"),))


class FailingCostLedger(MemoryLedger):
    """Fails the first batches that add to a cost, as many as configured, or refuses their writes."""

    def __init__(self, failures: int, *, refuses: bool = False) -> None:
        super().__init__()
        self.failures = failures
        self.refuses = refuses

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        patches = [item.patch for write in writes for item in write.operations if isinstance(item, PatchSession)]
        if self.failures and any(patch.add_cost for patch in patches):
            self.failures -= 1
            if self.refuses:
                return [Refusal("unknown_session") for _ in writes]
            raise StorageUnavailable
        return await super().commit(workspace, epoch, ticket, writes)


@pytest.mark.parametrize(("failures", "refuses"), [(0, False), (1, False), (2, False), (5, False), (1, True)])
def test_a_cost_that_could_not_be_stored_is_stored_with_the_end(failures: int, refuses: bool) -> None:
    async def play() -> None:
        meter, ledger = Meter(), FailingCostLedger(failures, refuses=refuses)

        def script(request: ModelRequest) -> Sequence[Part]:
            return priced_response(5) if request.messages[-1].role == "tool" else priced_response(3, calls=["tool"])

        model = MeteredModel(meter, script)
        harness = await Harness.open(model, tools=[fixed_tool("tool")], ledger=ledger)
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        assert harness.end_of("r1").outcome == ("failed" if failures else "completed")
        session = await ledger.session(harness.workspace.record.id, harness.session)
        assert session is not None
        assert session.cost == meter.total > 0
        assert ledger.failures == 0
        await harness.close()

    in_virtual_time(play)


class UncertainLedger(MemoryLedger):
    """Loses the responses to commits and, as often as configured, the responses to the queries about them."""

    def __init__(self, error: type[Exception]) -> None:
        super().__init__()
        self.error = error
        self.left = 0

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        answers = await super().commit(workspace, epoch, ticket, writes)
        if any(isinstance(item, EndRun) for write in writes for item in write.operations):
            self.left = 3
            raise StorageUnknown
        return answers

    async def last_batch(self, workspace: WorkspaceId, epoch: int) -> tuple[int, Sequence[Answer]]:
        if self.left:
            self.left -= 1
            raise self.error
        return await super().last_batch(workspace, epoch)


@pytest.mark.parametrize("error", [StorageUnknown, StorageUnavailable])
def test_unknown_write_result_is_queried_until_it_is_known(error: type[Exception]) -> None:
    """Nothing is written twice, and every event is published."""

    async def play() -> None:
        ledger = UncertainLedger(error)
        harness = await Harness.open(ScriptedModel(lambda _: DONE), ledger=ledger)
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        assert harness.end_of("r1").outcome == "completed"
        assert ledger.left == 0
        assert (await harness.run("r1")).outcome == "completed"
        assert not harness.workspace.engine.storage_fails
        await harness.close()

    in_virtual_time(play)


class SlowLedger(MemoryLedger):
    """Commits ends when the test allows it."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = Gate(is_open=False)

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        if any(isinstance(item, EndRun) for write in writes for item in write.operations):
            await self.gate()
        return await super().commit(workspace, epoch, ticket, writes)


async def test_a_cancel_does_not_cover_a_run_that_has_completed() -> None:
    """Its end is decided but not stored yet."""
    ledger = SlowLedger()
    harness = await Harness.open(ScriptedModel(lambda _: DONE), ledger=ledger)
    await harness.prompt("go", "r1")
    await ledger.gate.reached.wait()
    asyncio.get_running_loop().call_soon(ledger.gate.open)
    assert await harness.cancel() == ()
    await harness.wait_until_idle()
    assert harness.end_of("r1").outcome == "completed"


def test_sub_agents_of_sub_agents_count_for_the_run_above_all() -> None:
    async def play() -> None:
        gate = asyncio.Event()

        async def wait(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
            await gate.wait()
            return ToolOutcome("done")

        async def send(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
            return ToolOutcome(await context.run_subagent(SubagentTask("look", "A sub-agent")))

        async def later(context: ToolContext, given: dict[str, object]) -> ToolOutcome:
            await sleep_virtual(10)
            return await send(context, given)

        below = [SimpleTool("below", send), SimpleTool("wait", wait)]

        def tools_of(request: ModelRequest) -> Step:
            names = {spec.name for spec in request.tools}
            if request.messages[-1].role == "tool":
                return DONE
            if "agent" in names:
                return Step((Call("agent"), Call("later")))
            is_first = len(started) == 0
            started.append(request.session_id)
            return Step((Call("below"),)) if is_first else Step((Call("wait"),))

        started: list[str] = []
        tools = [SimpleTool("agent", send, is_parallel=True), SimpleTool("later", later, is_parallel=True)]
        settings = EngineSettings(titles=False, max_subagents=2, subagent_depth=2)
        harness = await Harness.open(ScriptedModel(tools_of, info=PLAIN), tools=tools, settings=settings)
        harness.workspace.engine.run_context.subagents.add("task", SubagentType(FixedTools(below)))
        await harness.prompt("go", "r1")
        await sleep_virtual(20)
        assert len(started) == 2, "one below the run, and one below that"
        gate.set()
        await harness.wait_until_idle()
        results = [result for message in await harness.messages() for result in message.tool_results]
        assert sorted(result.is_error for result in results) == [False, True]
        assert any("2 sub-agents are running" in result.content for result in results)
        await harness.close()

    in_virtual_time(play)


class RecordingHooks(NoHooks):
    """Records the prompts passed to hooks."""

    def __init__(self) -> None:
        self.prompts: list[tuple[str, bool]] = []

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> HookOutcome:
        self.prompts.append((prompt, is_first))
        return HookOutcome()


@pytest.mark.parametrize("insists", [False, True])
async def test_settings_and_errors_pass_between_sub_agent_and_parent(insists: bool) -> None:
    """A sub-agent requires a model as its parent does; prompt hooks run for users' prompts only; the notice about a
    replaced model is delivered with the sub-agent's text.
    """
    hooks = RecordingHooks()

    async def unusable(_: str) -> Model:
        raise ProviderError("It has no key.", trouble="credentials")

    async def send(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        return ToolOutcome(await context.run_subagent(SubagentTask("look", "A sub-agent")))

    def script(request: ModelRequest) -> Step:
        return Step((Call("agent"),)) if request.tools and request.messages[-1].role == "user" else DONE

    model = ScriptedModel(script, info=PLAIN)
    harness = await Harness.open(model, tools=[SimpleTool("agent", send)], hooks=hooks, named_model=unusable)
    harness.workspace.engine.run_context.subagents.add("task", SubagentType(FixedTools([]), "acme/none"))
    prompt = Prompt(harness.session, "go", run_id=RunId("r1"), require_model=insists, yolo=not insists)
    await harness.workspace.inputs.submit(prompt)
    await harness.wait_until_idle()
    assert hooks.prompts == [("go", True)]
    runs = await harness.ledger.runs(harness.workspace.record.id, None, 9, 0)
    (below,) = [run for run in runs if run.parent_run_id == "r1"]
    assert (below.require_model, below.yolo, below.interactive, below.prompt) == (insists, not insists, False, "look")
    (result,) = [result for message in await harness.messages() for result in message.tool_results]
    assert result.content == "done\n\n(It has no key. test/plain is used instead.)"
    await harness.close()
