"""What an answer promises is what is stored: places where a kill, or a slow disk, could make a liar of the server."""

import asyncio
from collections.abc import Sequence

from holdfast.domain.ids import WorkspaceId
from holdfast.domain.ledger import Answer, ClearQueue, Operation, PatchSession, Write
from holdfast.domain.models import ModelRequest
from holdfast.providers.scripted import Call, Say, ScriptedModel, Step
from holdfast.tasks import TaskOwner
from holdfast.testing.gates import Gate, GatedModel, GatedTool
from holdfast.testing.harness import World
from holdfast.testing.memory import MemoryLedger


class SlowLedger(MemoryLedger):
    """Holds the answer to the end of a step, and the writing of a clear."""

    def __init__(self) -> None:
        super().__init__()
        self.after_step = Gate()
        self.before_clear = Gate()

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        if _holds(writes, ClearQueue):
            await self.before_clear()
        answers = await super().commit(workspace, epoch, ticket, writes)
        if _holds(writes, PatchSession):
            await self.after_step()
        return answers


def _holds(writes: Sequence[Write], kind: type[Operation]) -> bool:
    return any(isinstance(operation, kind) for write in writes for operation in write.operations)


def one_call(request: ModelRequest) -> Step:
    has_result = any(message.role == "tool" for message in request.messages)
    return Step((Say("done"),)) if has_result else Step((Call("wait"),))


async def test_a_clear_names_no_run_that_joined_a_turn_while_it_was_written() -> None:
    """R3: what the clear's answer names is cancelled; a prompt folded in meanwhile shares the turn's end."""
    ledger, tool = SlowLedger(), GatedTool("wait")
    world = await World.open(ScriptedModel(one_call), tools=[tool], ledger=ledger)
    await world.prompt("one", "r1")
    await tool.gate.reached.wait()
    steering = await world.prompt("by the way")
    tool.gate.open()
    await ledger.after_step.reached.wait()
    clearing = TaskOwner().start(world.workspace.inputs.clear(world.session), name="clear")
    await asyncio.sleep(0)
    ledger.after_step.open()
    await ledger.before_clear.reached.wait()
    for _ in range(50):
        await asyncio.sleep(0)
    assert world.workspace.engine.lane(world.session).folded == (steering.run_id,)
    ledger.before_clear.open()
    assert await clearing == ()
    await world.quiet()
    assert world.end_of(steering.run_id).outcome == "completed"


async def test_what_an_interrupt_cancels_is_stored_with_it() -> None:
    """R3: a server killed right after the answer does not take up what the interrupt cancelled."""
    model = GatedModel(ScriptedModel(one_call))
    model.before.shut()
    world = await World.open(model)
    await world.prompt("one", "r1")
    await model.before.reached.wait()
    await world.prompt("two", "r2")
    await world.prompt("three", "r3", delivery="interrupt")
    assert [(await world.run(name)).cancel_requested for name in ("r1", "r2", "r3")] == [True, True, False]
    model.before.open()
    await world.quiet()
