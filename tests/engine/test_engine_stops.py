"""Contract of the engine: cancels concurrent with pending writes and ends."""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest

from engine.gated_harness import busy_harness, gated_model, slow_run_reads
from holdfast.domain.errors import RunFolded, StorageUnavailable, WorkspaceClosing
from holdfast.domain.hooks import HookOutcome
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.runs import Run
from holdfast.domain.store_operations import (
    Admit,
    Answer,
    CancelRun,
    CancelSession,
    EndRun,
    PatchSession,
    RemoveRun,
    Write,
)
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.engine.run_context import NoHooks
from holdfast.engine.run_lifecycle import Shutdown
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.testing.gates import Gate, GatedLedger, GatedModel, SimpleTool, settle_down, start
from holdfast.testing.harness import Harness
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.testing.seeded_loop import in_virtual_time

_SHORT = EngineSettings(titles=False, grace=0.5, margin=0.1)


def streaming_model() -> ScriptedModel:
    return ScriptedModel(lambda _: Step((Say("words"),)))


class SlowHooks(NoHooks):
    """Hooks that block on a prompt until the test releases them, and ignore cancellation."""

    def __init__(self) -> None:
        self.gate = Gate()

    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> HookOutcome:
        while not self.gate.passed:
            try:
                await self.gate()
            except asyncio.CancelledError:
                continue
        return HookOutcome()


class RefusingHooks(NoHooks):
    async def before_prompt(self, run: Run, prompt: str, *, is_first: bool) -> HookOutcome:
        return HookOutcome("deny")


# Pending prompts


async def test_failed_cancel_stops_the_prompt_that_was_being_written() -> None:
    """Its response says that runs are being stopped: this includes runs that entered the lane during its write."""
    ledger, model = GatedLedger(), gated_model()
    harness = await Harness.open(model, ledger=ledger)
    ledger.hold(Admit)
    asking = start(harness.prompt("one", "r1"))
    await ledger.gate.reached.wait()
    stopping = start(harness.cancel())
    await settle_down()
    ledger.refused = (CancelSession,)
    # The gate is never waited for.
    stopping.cancel()
    ledger.gate.open()
    await asking
    await harness.wait_until_idle()
    assert harness.end_of("r1").outcome == "cancelled"
    assert model.requests == []


async def test_a_cancel_that_cannot_be_stored_spares_later_runs() -> None:
    """R3: even if the next batch is stored before its caller resumes."""
    ledger = GatedLedger()
    harness = await Harness.open(streaming_model(), ledger=ledger)
    ledger.hold(Admit)
    first = start(harness.prompt("one", "r1"))
    await ledger.gate.reached.wait()
    stopping = start(harness.cancel())
    await settle_down()
    ledger.refused = (CancelSession,)
    ledger.gate.open()
    with pytest.raises(StorageUnavailable):
        await stopping
    await harness.prompt("two", "r2")
    await first
    await harness.wait_until_idle()
    assert [(end.run_id, end.outcome) for end in harness.ends()] == [("r1", "cancelled"), ("r2", "completed")]


class LateLedger(MemoryLedger):
    """Holds the result of a steering prompt, and the commit of the cancel of one run."""

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
    """R3: it was stored, but not in its lane yet, when the cancel arrived. It shares its host's end; the refusal says
    so.
    """
    ledger, hooks = LateLedger(), SlowHooks()
    harness = await Harness.open(streaming_model(), ledger=ledger, hooks=hooks)
    await harness.prompt("one", "r1")
    await hooks.gate.reached.wait()
    asking = start(harness.prompt("by the way", "r2", delivery="steer"))
    await ledger.after_steering.reached.wait()
    stopping = start(harness.workspace.inputs.cancel_run(RunId("r2")))
    await settle_down()
    ledger.after_steering.open()
    await asking
    await ledger.before_cancel.reached.wait()
    hooks.gate.open()
    await settle_down()
    assert harness.workspace.engine.lane(harness.session).folded == ("r2",)
    ledger.before_cancel.open()
    with pytest.raises(RunFolded) as caught:
        await stopping
    assert "r1" in str(caught.value)
    await harness.wait_until_idle()
    assert harness.end_of("r2").outcome == "completed"


STOPS: list[Callable[[Harness], Coroutine[Any, Any, object]]] = [
    lambda harness: harness.cancel(),
    lambda harness: harness.workspace.inputs.clear(harness.session),
    lambda harness: harness.workspace.inputs.cancel_run(RunId("r3")),
]


@pytest.mark.parametrize("stop", STOPS)
async def test_a_cancel_of_a_parked_run_survives_the_removal_of_a_prompt(
    stop: Callable[[Harness], Coroutine[Any, Any, object]],
) -> None:
    """R3: the workspace closes, and the interrupting prompt is refused after it had marked the parked run."""
    ledger = GatedLedger()
    harness, _ = await busy_harness(ledger)
    await harness.prompt("three", "r3", delivery="queue")
    ledger.hold()
    asking = start(harness.prompt("instead", "r2", delivery="interrupt"))
    await ledger.gate.reached.wait()
    closing = start(harness.close())
    await settle_down()
    stopping = start(stop(harness))
    await settle_down()
    ledger.gate.open()
    with pytest.raises(WorkspaceClosing):
        await asking
    await stopping
    await closing
    assert ledger.writes_of(RemoveRun)
    assert (await harness.run("r3")).cancel_requested


async def test_clear_does_not_name_a_run_that_has_already_failed() -> None:
    """R3: it failed before it started, and its end is not stored yet: in the store it still looks queued."""
    gate = Gate()

    async def cleanup(_: RunId) -> None:
        await gate()

    hooks = RefusingHooks()
    harness = await Harness.open(streaming_model(), cleanup=cleanup, hooks=hooks)
    await harness.prompt("one", "r1")
    await gate.reached.wait()
    assert await harness.workspace.inputs.clear(harness.session) == ()
    gate.open()
    await harness.wait_until_idle()
    assert harness.end_of("r1").outcome == "failed"


async def test_clear_does_not_name_a_refused_prompt() -> None:
    """The workspace closes during the write of the prompt: its row exists for a moment only."""
    ledger = GatedLedger()
    harness = await Harness.open(streaming_model(), ledger=ledger)
    ledger.hold(Admit)
    asking = start(harness.prompt("one", "r1"))
    await ledger.gate.reached.wait()
    clearing = start(harness.workspace.inputs.clear(harness.session))
    closing = start(harness.close())
    await settle_down()
    ledger.gate.open()
    with pytest.raises(WorkspaceClosing):
        await asking
    assert await clearing == ()
    await closing


# Turns that are about to end


def test_output_of_an_abandoned_tool_is_not_part_of_the_end() -> None:
    """R7: the disk fails, so the end is built again. The result of the call does not contain output that was not
    stored.
    """

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
        harness = await Harness.open(model, tools=tools, ledger=ledger, settings=_SHORT)
        await harness.prompt("one", "r1")
        await at_work.reached.wait()
        await harness.cancel()
        ledger.refused = (EndRun,)
        ledger.asked.clear()
        await ledger.asked.wait()
        at_work.open()
        await settle_down()
        ledger.refused = ()
        await harness.wait_until_idle()
        await harness.assert_valid()
        assert "too late" not in " ".join(await harness.outline())

    in_virtual_time(main)


def test_a_prompt_is_stored_once() -> None:
    """An abandoned hook releases its prompt while the end is being built, which stores the prompt too."""

    async def main() -> None:
        (ledger, reading), hooks = slow_run_reads(), SlowHooks()
        harness = await Harness.open(streaming_model(), ledger=ledger, settings=_SHORT, hooks=hooks)
        await harness.prompt("one", "r1")
        await hooks.gate.reached.wait()
        await harness.cancel()
        reading.shut()
        reading.reached.clear()
        await reading.reached.wait()
        hooks.gate.open()
        await settle_down()
        reading.open()
        await harness.wait_until_idle()
        assert await harness.outline() == ["user:one", "assistant:"]

    in_virtual_time(main)


async def test_a_complete_summary_survives_a_cancel() -> None:
    """It is being stored: the session does not start with a message that was removed again."""
    ledger = GatedLedger()
    harness = await Harness.open(streaming_model(), ledger=ledger)
    await harness.prompt("one", "r1")
    await harness.wait_until_idle()
    ledger.hold(PatchSession)
    run = await harness.workspace.inputs.summarize(harness.session)
    await ledger.gate.reached.wait()
    stopping = start(harness.cancel())
    await settle_down()
    ledger.gate.open()
    assert await stopping == (run.run_id,)
    await harness.wait_until_idle()
    session = await ledger.session(harness.workspace.record.id, harness.session)
    assert session is not None
    assert session.summary_message_id == (await harness.messages())[-1].id
    assert harness.end_of(run.run_id).outcome == "cancelled"


# Many cancels


async def test_a_batch_is_written_when_all_of_its_holds_are_done() -> None:
    """A write submitted meanwhile belongs to the same batch."""
    ledger = GatedLedger()
    harness = await Harness.open(streaming_model(), ledger=ledger)
    recorder = harness.workspace.engine.recorder
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
    """They share one sync. Waiting for the remaining work of a hundred runs would only delay all responses."""
    ledger = GatedLedger()
    model = GatedModel(streaming_model())
    model.before.shut()
    # For a hundred runs a busy machine takes longer than the limit for one.
    settings = EngineSettings(titles=False, cancel_write=30.0)
    harness = await Harness.open(model, ledger=ledger, settings=settings)
    sessions = [(await harness.workspace.sessions.create()).id for _ in range(100)]
    await asyncio.gather(
        *(harness.prompt("go", f"r{place}", session=session) for place, session in enumerate(sessions))
    )
    await settle_down()
    before = len(ledger.batches)
    covered = await asyncio.gather(*(harness.workspace.inputs.cancel(session) for session in sessions))
    assert [len(runs) for runs in covered] == [1] * 100
    (batch, *_) = ledger.batches[before:]
    assert {type(operation) for write in batch for operation in write.operations} == {CancelSession}
    for session in sessions:
        await harness.workspace.engine.wait_until_idle(session)
    assert {end.outcome for end in harness.ends()} == {"cancelled"}


async def test_a_waiter_for_an_idle_session_returns_if_its_only_run_is_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has a task, which has not entered: parking it writes nothing."""
    harness = await Harness.open(streaming_model())
    engine = harness.workspace.engine
    spawn, waiting = engine._spawn, list[asyncio.Task[None]]()

    def spawn_after_a_shutdown(session: SessionId, run: RunId) -> None:
        waiting.append(start(engine.wait_until_idle(session)))
        asyncio.get_running_loop().call_soon(engine.dispatch, session, Shutdown())
        spawn(session, run)

    monkeypatch.setattr(engine, "_spawn", spawn_after_a_shutdown)
    await harness.prompt("one", "r1")
    await settle_down()
    assert [task.done() for task in waiting] == [True]
    await harness.close()
