"""Acknowledgements match the store: cases in which a kill, or a slow disk, could make a response wrong."""

import asyncio
from collections.abc import Sequence

from holdfast.domain.hooks import HookOutcome
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.runs import Run
from holdfast.domain.store_operations import Admit, Answer, ClearQueue, Write
from holdfast.engine.run_context import NoHooks
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.tasks import TaskOwner
from holdfast.testing.gates import Gate, GatedModel, GatedTool
from holdfast.testing.harness import Harness
from holdfast.testing.memory_ledger import MemoryLedger


class SlowLedger(MemoryLedger):
    """Holds the commit of steering prompts and of a clear."""

    def __init__(self) -> None:
        super().__init__()
        self.before_steering = Gate()
        self.before_clear = Gate()

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        operations = [operation for write in writes for operation in write.operations]
        if any(isinstance(operation, Admit) and operation.run.delivery == "steer" for operation in operations):
            await self.before_steering()
        if any(isinstance(operation, ClearQueue) for operation in operations):
            await self.before_clear()
        return await super().commit(workspace, epoch, ticket, writes)


class SlowHooks(NoHooks):
    """Hooks that block on a prompt until the test releases them."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> HookOutcome:
        await self.gate()
        return await super().before_prompt(run, prompt, is_first=is_first)


def one_call(request: ModelRequest) -> Step:
    has_result = any(message.role == "tool" for message in request.messages)
    return Step((Say("done"),)) if has_result else Step((Call("wait"),))


async def test_clear_does_not_name_a_run_folded_during_its_write() -> None:
    """R3: the runs named in the response are cancelled; a prompt folded meanwhile shares the end of its turn."""
    ledger, hooks = SlowLedger(), SlowHooks()
    harness = await Harness.open(ScriptedModel(lambda _: Step((Say("done"),))), ledger=ledger, hooks=hooks)
    tasks = TaskOwner()
    await harness.prompt("one", "r1")
    await hooks.gate.reached.wait()
    asking = tasks.start(harness.prompt("by the way"), name="steer")
    await ledger.before_steering.reached.wait()
    clearing = tasks.start(harness.workspace.inputs.clear(harness.session), name="clear")
    await asyncio.sleep(0)
    ledger.before_steering.open()
    steering = await asking
    await ledger.before_clear.reached.wait()
    hooks.gate.open()
    for _ in range(50):
        await asyncio.sleep(0)
    assert harness.workspace.engine.lane(harness.session).folded == (steering.run_id,)
    ledger.before_clear.open()
    assert await clearing == ()
    await harness.wait_until_idle()
    assert harness.end_of(steering.run_id).outcome == "completed"


async def test_clear_removes_waiting_runs_at_once() -> None:
    """R3: no waiting run can join a turn while the clear is being written."""
    ledger, tool = SlowLedger(), GatedTool("wait")
    ledger.before_steering.open()
    harness = await Harness.open(ScriptedModel(one_call), tools=[tool], ledger=ledger)
    await harness.prompt("one", "r1")
    await tool.gate.reached.wait()
    steering = await harness.prompt("by the way")
    clearing = TaskOwner().start(harness.workspace.inputs.clear(harness.session), name="clear")
    await ledger.before_clear.reached.wait()
    tool.gate.open()
    ledger.before_clear.open()
    assert await clearing == (steering.run_id,)
    await harness.wait_until_idle()
    assert [harness.end_of(run).outcome for run in ("r1", steering.run_id)] == ["completed", "cancelled"]


async def test_cancels_of_an_interrupt_are_stored_with_it() -> None:
    """R3: a server killed right after the response does not resume the runs that the interrupt cancelled."""
    model = GatedModel(ScriptedModel(one_call))
    model.before.shut()
    harness = await Harness.open(model)
    await harness.prompt("one", "r1")
    await model.before.reached.wait()
    await harness.prompt("two", "r2")
    await harness.prompt("three", "r3", delivery="interrupt")
    assert [(await harness.run(name)).cancel_requested for name in ("r1", "r2", "r3")] == [True, True, False]
    model.before.open()
    await harness.wait_until_idle()
