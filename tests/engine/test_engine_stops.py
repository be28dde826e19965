"""Contract of the engine: cancels that meet pending writes and ends."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from engine.gated_worlds import busy_world, gated, slow_reads
from holdfast.domain.errors import RunFolded, StorageUnavailable, WorkspaceClosing
from holdfast.domain.hooks import Ruling
from holdfast.domain.ids import RunId, WorkspaceId
from holdfast.domain.ledger import Admit, Answer, CancelRun, CancelSession, EndRun, PatchSession, RemoveRun, Write
from holdfast.domain.runs import Run
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.engine.run_context import NoHooks
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.testing.gates import Gate, GatedLedger, GatedModel, SimpleTool, settle_down, start
from holdfast.testing.harness import World
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.testing.seeded_loop import in_virtual_time

_SHORT = EngineSettings(titles=False, grace=0.5, margin=0.1)


def talking() -> ScriptedModel:
    return ScriptedModel(lambda _: Step((Say("words"),)))


class SlowHooks(NoHooks):
    """Think about a prompt until they are let, and hear nothing meanwhile."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> Ruling:
        while not self.gate.passed:
            try:
                await self.gate()
            except asyncio.CancelledError:
                continue
        return Ruling()


class RefusingHooks(NoHooks):
    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> Ruling:
        return Ruling("deny")


# Prompts on their way


async def test_a_cancel_that_fails_stops_the_prompt_that_was_on_its_way() -> None:
    """Its answer says that runs are being stopped: so are those that came into the lane while it was being written."""
    ledger, model = GatedLedger(), gated()
    world = await World.open(model, ledger=ledger)
    ledger.hold(Admit)
    asking = start(world.prompt("one", "r1"))
    await ledger.gate.reached.wait()
    stopping = start(world.cancel())
    await settle_down()
    ledger.refused = (CancelSession,)
    # Nobody has to wait for it.
    stopping.cancel()
    ledger.gate.open()
    await asking
    await world.quiet()
    assert world.end_of("r1").outcome == "cancelled"
    assert model.requests == []


async def test_a_cancel_that_cannot_be_stored_spares_later_runs() -> None:
    """R3: also if the next batch is stored before its caller wakes."""
    ledger = GatedLedger()
    world = await World.open(talking(), ledger=ledger)
    ledger.hold(Admit)
    first = start(world.prompt("one", "r1"))
    await ledger.gate.reached.wait()
    stopping = start(world.cancel())
    await settle_down()
    ledger.refused = (CancelSession,)
    ledger.gate.open()
    with pytest.raises(StorageUnavailable):
        await stopping
    await world.prompt("two", "r2")
    await first
    await world.quiet()
    assert [(end.run_id, end.outcome) for end in world.ends()] == [("r1", "cancelled"), ("r2", "completed")]


class LateLedger(MemoryLedger):
    """Holds the answer to a prompt that steers, and the writing of a cancel of one run."""

    def __init__(self) -> None:
        super().__init__()
        self.after_steering = Gate()
        self.before_cancel = Gate()

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        operations = [operation for write in writes for operation in write.operations]
        if any(isinstance(operation, CancelRun) for operation in operations):
            await self.before_cancel()
        answers = await super().commit(workspace, epoch, ticket, writes)
        if any(isinstance(operation, Admit) and operation.run.delivery == "steer" for operation in operations):
            await self.after_steering()
        return answers


async def test_a_cancel_of_a_run_that_joins_a_turn_meanwhile_is_refused() -> None:
    """R3: it was stored, but not in its lane yet, when the cancel came. It shares its host's end, and that is said."""
    ledger, hooks = LateLedger(), SlowHooks()
    world = await World.open(talking(), ledger=ledger, hooks=hooks)
    await world.prompt("one", "r1")
    await hooks.gate.reached.wait()
    asking = start(world.prompt("by the way", "r2", delivery="steer"))
    await ledger.after_steering.reached.wait()
    stopping = start(world.workspace.inputs.cancel_run(RunId("r2")))
    await settle_down()
    ledger.after_steering.open()
    await asking
    await ledger.before_cancel.reached.wait()
    hooks.gate.open()
    await settle_down()
    assert world.workspace.engine.lane(world.session).folded == ("r2",)
    ledger.before_cancel.open()
    with pytest.raises(RunFolded) as caught:
        await stopping
    assert "r1" in str(caught.value)
    await world.quiet()
    assert world.end_of("r2").outcome == "completed"


STOPS: list[Callable[[World], Coroutine[Any, Any, object]]] = [
    lambda world: world.cancel(),
    lambda world: world.workspace.inputs.clear(world.session),
    lambda world: world.workspace.inputs.cancel_run(RunId("r3")),
]


@pytest.mark.parametrize("stop", STOPS)
async def test_a_cancel_of_a_parked_run_survives_the_removal_of_a_prompt(
    stop: Callable[[World], Coroutine[Any, Any, object]],
) -> None:
    """R3: the workspace closes, and the prompt that was to interrupt is refused. It had marked what is parked."""
    ledger = GatedLedger()
    world, _ = await busy_world(ledger)
    await world.prompt("three", "r3", delivery="queue")
    ledger.hold()
    asking = start(world.prompt("instead", "r2", delivery="interrupt"))
    await ledger.gate.reached.wait()
    closing = start(world.close())
    await settle_down()
    stopping = start(stop(world))
    await settle_down()
    ledger.gate.open()
    with pytest.raises(WorkspaceClosing):
        await asking
    await stopping
    await closing
    assert ledger.writes_of(RemoveRun)
    assert (await world.run("r3")).cancel_requested


async def test_a_clear_names_nothing_that_has_come_to_its_end_by_itself() -> None:
    """R3: it failed before it had begun, and its end is not stored yet: in the store it looks as if it waited."""
    gate = Gate()

    async def cleanup(_: RunId) -> None:
        await gate()

    hooks = RefusingHooks()
    world = await World.open(talking(), cleanup=cleanup, hooks=hooks)
    await world.prompt("one", "r1")
    await gate.reached.wait()
    assert await world.workspace.inputs.clear(world.session) == ()
    gate.open()
    await world.quiet()
    assert world.end_of("r1").outcome == "failed"


async def test_a_clear_names_nothing_that_was_refused() -> None:
    """The workspace closes while the prompt is on its way: its row is there for a moment only."""
    ledger = GatedLedger()
    world = await World.open(talking(), ledger=ledger)
    ledger.hold(Admit)
    asking = start(world.prompt("one", "r1"))
    await ledger.gate.reached.wait()
    clearing = start(world.workspace.inputs.clear(world.session))
    closing = start(world.close())
    await settle_down()
    ledger.gate.open()
    with pytest.raises(WorkspaceClosing):
        await asking
    assert await clearing == ()
    await closing


# Turns on their way to their ends


def test_output_of_an_abandoned_tool_is_not_part_of_the_end() -> None:
    """R7: the disk fails, so the end is made again. The call's result is not what nobody has stored."""

    async def main() -> None:
        ledger, at_work = GatedLedger(), Gate()

        async def stubborn(_context: ToolContext, _arguments: dict[str, object]) -> ToolOutcome:
            while not at_work.passed:
                try:
                    await at_work()
                except asyncio.CancelledError:
                    continue
            return ToolOutcome("too late")

        tools = [SimpleTool("stubborn", stubborn)]
        model = ScriptedModel([Step((Call("stubborn"),))])
        world = await World.open(model, tools=tools, ledger=ledger, settings=_SHORT)
        await world.prompt("one", "r1")
        await at_work.reached.wait()
        await world.cancel()
        ledger.refused = (EndRun,)
        ledger.asked.clear()
        await ledger.asked.wait()
        at_work.open()
        await settle_down()
        ledger.refused = ()
        await world.quiet()
        await world.assert_valid()
        assert "too late" not in " ".join(await world.outline())

    in_virtual_time(main)


def test_a_prompt_is_stored_once() -> None:
    """A hook that was given up lets its prompt through while the end is being made, which brings the prompt too."""

    async def main() -> None:
        (ledger, reading), hooks = slow_reads(), SlowHooks()
        world = await World.open(talking(), ledger=ledger, settings=_SHORT, hooks=hooks)
        await world.prompt("one", "r1")
        await hooks.gate.reached.wait()
        await world.cancel()
        reading.shut()
        reading.reached.clear()
        await reading.reached.wait()
        hooks.gate.open()
        await settle_down()
        reading.open()
        await world.quiet()
        assert await world.outline() == ["user:one", "assistant:"]

    in_virtual_time(main)


async def test_a_complete_summary_survives_a_cancel() -> None:
    """It is being stored: the session does not begin with a message that was taken away again."""
    ledger = GatedLedger()
    world = await World.open(talking(), ledger=ledger)
    await world.prompt("one", "r1")
    await world.quiet()
    ledger.hold(PatchSession)
    run = await world.workspace.inputs.summarize(world.session)
    await ledger.gate.reached.wait()
    stopping = start(world.cancel())
    await settle_down()
    ledger.gate.open()
    assert await stopping == (run.run_id,)
    await world.quiet()
    session = await ledger.session(world.workspace.record.id, world.session)
    assert session is not None
    assert session.summary_message_id == (await world.messages())[-1].id
    assert world.end_of(run.run_id).outcome == "cancelled"


# Many at once


async def test_a_batch_is_written_when_all_of_its_holds_are_done() -> None:
    """A write that is put meanwhile belongs to the same batch."""
    ledger = GatedLedger()
    world = await World.open(talking(), ledger=ledger)
    recorder = world.workspace.engine.recorder
    holds = [asyncio.get_running_loop().create_future() for _ in range(2)]
    before = len(ledger.batches)
    writes = [recorder.put(hold=hold) for hold in holds]
    await settle_down()
    holds[1].set_result(None)
    writes.append(recorder.put())
    await settle_down()
    assert len(ledger.batches) == before
    holds[0].set_result(None)
    await asyncio.gather(*writes)
    (batch,) = ledger.batches[before:]
    assert len(batch) == 3


async def test_many_cancels_do_not_wait_for_each_others_ends() -> None:
    """They share a sync as it is. What a hundred runs still have to do would only keep all answers back."""
    ledger = GatedLedger()
    model = GatedModel(talking())
    model.before.shut()
    # A busy machine takes longer for a hundred than the limit for one is.
    settings = EngineSettings(titles=False, cancel_write=30.0)
    world = await World.open(model, ledger=ledger, settings=settings)
    sessions = [(await world.workspace.sessions.create()).id for _ in range(100)]
    await asyncio.gather(*(world.prompt("go", f"r{place}", session=session) for place, session in enumerate(sessions)))
    await settle_down()
    before = len(ledger.batches)
    covered = await asyncio.gather(*(world.workspace.inputs.cancel(session) for session in sessions))
    assert [len(runs) for runs in covered] == [1] * 100
    (batch, *_) = ledger.batches[before:]
    assert {type(operation) for write in batch for operation in write.operations} == {CancelSession}
    for session in sessions:
        await world.workspace.engine.wait_until_idle(session)
    assert {end.outcome for end in world.ends()} == {"cancelled"}
