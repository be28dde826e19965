"""Contract of the engine: inputs are stored before they are answered. Time is virtual where it matters."""

import asyncio

import pytest

from engine.gated_harness import busy_harness
from engine.helpers import sleep_virtual
from holdfast.domain.errors import SessionBusy, StorageUnavailable, WorkspaceClosing
from holdfast.domain.events import RunEvent
from holdfast.domain.ids import RunId
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.store_operations import Admit, EndRun, FoldRun, RemoveRun, StartRun
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.engine.run_lifecycle import Accept, Cancel, Head, Lane, Refuse, Shutdown
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.testing.gates import Gate, GatedLedger, GatedModel, GatedTool, SimpleTool, settle_down, start, until
from holdfast.testing.harness import Harness
from holdfast.testing.seeded_loop import in_virtual_time


def echo(request: ModelRequest) -> Step:
    return Step((Say(f"answer {len(request.messages)}"),))


# Dispatch


async def test_dispatch_is_synchronous_and_returns_a_refusal() -> None:
    model = GatedModel(ScriptedModel(echo))
    model.before.shut()
    harness = await Harness.open(model)
    engine = harness.workspace.engine
    await harness.prompt("one", "r1")
    await model.before.reached.wait()
    assert engine.dispatch(harness.session, Cancel()) is None
    assert engine.lane(harness.session).head == Head(RunId("r1"), "cancelling", "cancel")
    task = engine._active[RunId("r1")].task
    assert task.cancelling() == 1, "the task is cancelled at once"
    engine.dispatch(harness.session, Shutdown())
    refusal = engine.dispatch(harness.session, Accept(RunId("x"), "queue"))
    assert isinstance(refusal, Refuse)
    await harness.wait_until_idle()


# Durable before the response


async def test_prompt_is_acknowledged_and_queued_after_it_is_stored() -> None:
    """R1: until the store has replied, neither the caller nor the lane knows the run."""
    ledger = GatedLedger()
    harness = await Harness.open(ScriptedModel(echo), ledger=ledger)
    ledger.hold()
    asking = start(harness.prompt("one", "r1"))
    await ledger.gate.reached.wait()
    await settle_down()
    assert not asking.done()
    assert not harness.workspace.engine.is_busy(harness.session)
    ledger.gate.open()
    assert (await asking).run_id == "r1"
    await harness.wait_until_idle()
    assert harness.end_of("r1").outcome == "completed"


async def test_a_refusable_prompt_is_refused_before_any_write() -> None:
    ledger = GatedLedger()
    harness, model = await busy_harness(ledger)
    written = len(ledger.seen)
    with pytest.raises(SessionBusy):
        await harness.prompt("two", "r2", delivery="reject")
    with pytest.raises(SessionBusy):
        await harness.workspace.inputs.summarize(harness.session)
    assert len(ledger.seen) == written
    model.before.open()
    await harness.wait_until_idle()


async def test_one_of_two_concurrent_reject_prompts_is_refused() -> None:
    """The store itself refuses the second one, so that a crash cannot leave it behind."""
    harness = await Harness.open(ScriptedModel(echo))
    results = await asyncio.gather(
        harness.prompt("one", "r1", delivery="reject"),
        harness.prompt("two", "r2", delivery="reject"),
        return_exceptions=True,
    )
    assert [type(result).__name__ for result in results] == ["Run", "SessionBusy"]
    assert await harness.ledger.run(harness.workspace.record.id, RunId("r2")) is None
    await harness.wait_until_idle()
    assert [end.run_id for end in harness.ends()] == ["r1"]


async def test_a_run_refused_after_it_was_stored_is_removed_before_the_answer() -> None:
    """The workspace started to close while the prompt was being written."""
    ledger = GatedLedger()
    harness = await Harness.open(ScriptedModel(echo), ledger=ledger)
    ledger.hold(Admit)
    asking = start(harness.prompt("one", "r1"))
    await ledger.gate.reached.wait()
    closing = start(harness.close())
    await settle_down()
    admission = ledger.gate
    ledger.hold(RemoveRun)
    admission.open()
    await ledger.gate.reached.wait()
    await settle_down()
    assert not asking.done(), "the row is still there"
    ledger.gate.open()
    with pytest.raises(WorkspaceClosing):
        await asking
    assert await ledger.run(harness.workspace.record.id, RunId("r1")) is None
    await closing
    kinds = [event.change.type for _, event in harness.published.events if isinstance(event, RunEvent)]
    assert kinds == ["created", "deleted"]


async def test_disconnected_caller_does_not_affect_its_run() -> None:
    """C-34 at this level: the run belongs to the workspace as soon as its write is submitted."""
    ledger = GatedLedger()
    harness = await Harness.open(ScriptedModel(echo), ledger=ledger)
    ledger.hold()
    asking = start(harness.prompt("one", "r1"))
    await ledger.gate.reached.wait()
    asking.cancel()
    await settle_down()
    ledger.gate.open()
    await until(harness.ends)
    assert harness.end_of("r1").outcome == "completed"


async def test_cancel_is_acknowledged_after_it_is_stored() -> None:
    """R3: a server that is killed right after the response does not run the covered prompts."""
    ledger = GatedLedger()
    harness, model = await busy_harness(ledger)
    await harness.prompt("two", "r2")
    ledger.hold()
    stopping = start(harness.cancel())
    await ledger.gate.reached.wait()
    await settle_down()
    assert not stopping.done()
    assert harness.ends() == [], "no end is published either"
    ledger.gate.open()
    await stopping
    # Another server takes over from the state on disk at this moment.
    again = await Harness.open(ScriptedModel(echo), ledger=ledger, ids="later")
    await again.workspace.engine.wait_until_idle(harness.session)
    assert {run: (await again.run(run)).outcome for run in ("r1", "r2")} == {"r1": "cancelled", "r2": "cancelled"}
    assert model.requests == []


async def test_a_cancel_does_not_wait_for_the_disk_to_stop_a_run() -> None:
    """Runs in the lane were accepted before the cancel, so that no number is needed to stop them."""
    ledger = GatedLedger()
    harness, model = await busy_harness(ledger)
    await harness.prompt("two", "r2")
    ledger.hold()
    stopping = start(harness.cancel())
    await settle_down()
    assert harness.workspace.engine.lane(harness.session) == Lane()
    assert model.open_streams == 0
    ledger.gate.open()
    assert await stopping == ("r1", "r2")


async def test_a_cancel_and_the_end_that_follows_at_once_are_one_write() -> None:
    """One sync for both; the log has the cancel first, then the end."""
    ledger = GatedLedger()
    harness, _ = await busy_harness(ledger)
    await harness.prompt("two", "r2")
    before = len(ledger.batches)
    assert await harness.cancel() == ("r1", "r2")
    assert [harness.end_of(run).outcome for run in ("r1", "r2")] == ["cancelled", "cancelled"], "the ends came with it"
    (batch,) = ledger.batches[before:]
    assert [type(write.operations[-1]).__name__ for write in batch] == ["CancelSession", "EndRun"]


async def stubborn_harness(ledger: GatedLedger) -> tuple[Harness, Gate]:
    """Return a harness whose run `r1` is in a tool that stops only when the gate is opened."""
    at_work, gone = Gate(), Gate()

    async def stubborn(_context: ToolContext, _arguments: dict[str, object]) -> ToolOutcome:
        try:
            await at_work()
        finally:
            await gone()
        return ToolOutcome("")

    model, tool = ScriptedModel([Step((Call("stubborn"),))]), SimpleTool("stubborn", stubborn)
    harness = await Harness.open(model, ledger=ledger, tools=[tool])
    await harness.prompt("one", "r1")
    await at_work.reached.wait()
    return harness, gone


def test_a_slow_tool_delays_the_response_to_a_cancel_by_a_moment_only() -> None:
    """The cancel is stored without the end of the head, and with the ends of the waiting runs."""

    async def main() -> None:
        ledger = GatedLedger()
        harness, gone = await stubborn_harness(ledger)
        await harness.prompt("two", "r2")
        before, began = len(ledger.batches), asyncio.get_running_loop().time()
        assert await harness.cancel() == ("r1", "r2")
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.002, abs=0.001)
        (batch,) = ledger.batches[before:]
        assert [type(write.operations[-1]).__name__ for write in batch] == ["CancelSession", "EndRun"]
        assert [end.run_id for end in harness.ends()] == ["r2"]
        gone.open()
        await harness.wait_until_idle()
        assert harness.end_of("r1").outcome == "cancelled"

    in_virtual_time(main)


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancelled", "shut down"])
async def test_a_refused_interrupt_withdraws_only_its_own_cancels(is_cancelled: bool) -> None:
    """R3: the prompt that was to interrupt is refused because the workspace closes. It has marked the head and the run
    folded into it; the marks stay if another client cancelled them meanwhile.
    """
    ledger = GatedLedger()
    at_work, gone = Gate(), Gate()

    async def stubborn(_context: ToolContext, _arguments: dict[str, object]) -> ToolOutcome:
        try:
            await at_work()
        finally:
            await gone()
        return ToolOutcome("")

    first = GatedTool("first")
    model = ScriptedModel([Step((Call("first"),)), Step((Call("stubborn"),))])
    harness = await Harness.open(model, ledger=ledger, tools=[first, SimpleTool("stubborn", stubborn)])
    await harness.prompt("one", "r1")
    await first.gate.reached.wait()
    await harness.prompt("folded", "f1", delivery="steer")
    first.gate.open()
    await at_work.reached.wait()
    ledger.hold()
    asking = start(harness.prompt("instead", "r2", delivery="interrupt"))
    await ledger.gate.reached.wait()
    stopping = start(harness.cancel()) if is_cancelled else None
    closing = start(harness.close())
    await settle_down()
    ledger.gate.open()
    with pytest.raises(WorkspaceClosing):
        await asking
    if stopping is not None:
        assert await stopping == ("r1", "f1")
    marks = {name: (await harness.run(name)).cancel_requested for name in ("r1", "f1")}
    assert marks == {"r1": is_cancelled, "f1": is_cancelled}, "a server that is killed now leaves them so"
    gone.open()
    await closing
    assert harness.end_of("r1").outcome == ("cancelled" if is_cancelled else "interrupted")


def test_a_slow_disk_does_not_prevent_a_cancel() -> None:
    """The lane is stopped at once; after 250 ms the response reports that the cancel is not stored."""

    async def main() -> None:
        ledger = GatedLedger()
        model = GatedModel(ScriptedModel(echo))
        model.before.shut()
        harness = await Harness.open(model, ledger=ledger, settings=EngineSettings(titles=False))
        await harness.prompt("one", "r1")
        await model.before.reached.wait()
        ledger.hold()
        began = asyncio.get_running_loop().time()
        with pytest.raises(StorageUnavailable, match="being stopped"):
            await harness.cancel()
        assert asyncio.get_running_loop().time() - began == pytest.approx(0.25)
        assert harness.workspace.engine.lane(harness.session).head in (Head(RunId("r1"), "cancelling", "cancel"), None)
        waiting = start(harness.prompt("two", "r2"))
        await settle_down()
        ledger.gate.open()
        await waiting
        model.before.open()
        await harness.wait_until_idle()
        # A run accepted after the cancel is not affected by its late write.
        assert [harness.end_of(run).outcome for run in ("r1", "r2")] == ["cancelled", "completed"]

    in_virtual_time(main)


async def test_a_full_disk_does_not_prevent_a_cancel() -> None:
    ledger = GatedLedger()
    model = GatedModel(ScriptedModel(echo))
    model.before.shut()
    harness = await Harness.open(model, ledger=ledger, settings=EngineSettings(titles=False, retry_first=0.001))
    await harness.prompt("one", "r1")
    await model.before.reached.wait()
    ledger.error = StorageUnavailable()
    with pytest.raises(StorageUnavailable, match="being stopped"):
        await harness.cancel()
    await settle_down()
    assert model.open_streams == 0
    ledger.error = None
    await harness.wait_until_idle()
    assert harness.end_of("r1").outcome == "cancelled"


# Starts and folds are stored first


async def test_the_model_is_called_after_the_start_is_stored() -> None:
    ledger = GatedLedger()
    model = ScriptedModel(echo)
    harness = await Harness.open(model, ledger=ledger)
    ledger.hold(StartRun)
    await harness.prompt("one", "r1")
    await ledger.gate.reached.wait()
    await settle_down()
    assert model.requests == []
    ledger.gate.open()
    await harness.wait_until_idle()
    started = ledger.writes_of(StartRun)
    assert [write.sync for write in started] == [True]
    assert [type(item).__name__ for item in started[0].operations][:2] == ["StartRun", "PutMessage"]


async def test_a_step_boundary_waits_until_its_folds_are_stored() -> None:
    ledger = GatedLedger()
    tool = GatedTool("wait")
    model = ScriptedModel([Step((Call("wait"),)), Step((Say("done"),))])
    harness = await Harness.open(model, ledger=ledger, tools=[tool])
    await harness.prompt("one", "r1")
    await tool.gate.reached.wait()
    await harness.prompt("steer")
    ledger.hold(FoldRun)
    tool.gate.open()
    await ledger.gate.reached.wait()
    await settle_down()
    assert len(model.requests) == 1
    ledger.gate.open()
    await harness.wait_until_idle()
    assert "steer" in str(model.requests[1].messages[-1].parts)
    folds = ledger.writes_of(FoldRun)
    assert [write.sync for write in folds] == [True]


async def test_a_fold_that_cannot_be_stored_ends_both_runs() -> None:
    """No run is left without an end: the host fails, and the prompts to be folded end with it."""
    ledger = GatedLedger()
    tool = GatedTool("wait")
    settings = EngineSettings(titles=False, retry_first=0.001)
    harness = await Harness.open(ScriptedModel([Step((Call("wait"),))]), ledger=ledger, tools=[tool], settings=settings)
    await harness.prompt("one", "r1")
    await tool.gate.reached.wait()
    steering = await harness.prompt("steer")
    ledger.hold(FoldRun)
    tool.gate.open()
    await ledger.gate.reached.wait()
    ledger.error = StorageUnavailable()
    ledger.gate.open()
    await until(lambda: harness.workspace.engine.storage_fails)
    ledger.error = None
    await harness.wait_until_idle()
    assert harness.end_of("r1").outcome == "failed"
    assert harness.end_of(steering.run_id).folded_into == "r1"
    await harness.assert_valid()
    assert "user:steer" in await harness.outline(), "the prompt is stored with the end"


def test_a_cancel_covers_prompts_that_were_being_written() -> None:
    """The prompt was submitted before the cancel: it has the smaller number, so it is covered."""

    async def main() -> None:
        ledger = GatedLedger()
        harness = await Harness.open(ScriptedModel(echo), ledger=ledger)
        ledger.hold()
        asking = start(harness.prompt("one", "r1"))
        await ledger.gate.reached.wait()
        with pytest.raises(StorageUnavailable):
            await harness.cancel()
        assert not harness.workspace.engine.is_busy(), "the lane handled the cancel before it knew the run"
        ledger.gate.open()
        await asking
        await harness.wait_until_idle()
        assert harness.end_of("r1").outcome == "cancelled"

    in_virtual_time(main)


async def test_an_interrupt_refused_while_closing_stops_no_run() -> None:
    """Runs that it had marked continue at the next start, as if there had been no interrupt."""
    ledger = GatedLedger()
    harness, _ = await busy_harness(ledger)
    await harness.prompt("two", "r2")
    ledger.hold(Admit)
    asking = start(harness.prompt("three", "r3", delivery="interrupt"))
    await ledger.gate.reached.wait()
    closing = start(harness.close())
    await settle_down()
    ledger.gate.open()
    with pytest.raises(WorkspaceClosing):
        await asking
    await closing
    again = await Harness.open(ScriptedModel(echo), ledger=ledger, ids="later")
    await again.workspace.engine.wait_until_idle(harness.session)
    assert (await again.run("r2")).outcome == "completed"


async def test_cancel_of_a_run_that_has_just_finished_returns_its_outcome() -> None:
    """Its end is decided but not stored yet: the response waits for it and contains the actual outcome."""
    ledger = GatedLedger()
    harness = await Harness.open(ScriptedModel(echo), ledger=ledger)
    ledger.hold(EndRun)
    await harness.prompt("one", "r1")
    await ledger.gate.reached.wait()
    stopping = start(harness.workspace.inputs.cancel_run(RunId("r1")))
    await settle_down()
    assert not stopping.done()
    ledger.gate.open()
    assert (await stopping).outcome == "completed"


@pytest.mark.parametrize("leaves", [False, True], ids=["waits", "leaves"])
def test_a_caller_waits_for_an_end_that_is_retried(leaves: bool) -> None:
    """The run has finished by itself and its end could not be stored yet. The end does not depend on the caller."""

    async def main() -> None:
        ledger = GatedLedger()
        settings = EngineSettings(titles=False, retry_first=60.0, retry_longest=60.0)
        harness = await Harness.open(ScriptedModel(echo), ledger=ledger, settings=settings)
        ledger.refused = (EndRun,)
        await harness.prompt("one", "r1")
        await until(lambda: harness.workspace.engine.storage_fails)
        stopping = start(harness.workspace.inputs.cancel_run(RunId("r1")))
        await sleep_virtual(1)
        assert not stopping.done()
        if leaves:
            stopping.cancel()
        ledger.refused = ()
        await harness.wait_until_idle()
        assert harness.end_of("r1").outcome == "completed"
        if not leaves:
            assert (await stopping).outcome == "completed"

    in_virtual_time(main)


def test_a_cancel_is_answered_although_the_end_cannot_be_stored() -> None:
    """The run was cancelled before; its end is retried until the disk has space."""

    async def main() -> None:
        ledger = GatedLedger()
        settings = EngineSettings(titles=False, retry_first=60.0, retry_longest=60.0)
        model = GatedModel(ScriptedModel(echo))
        model.before.shut()
        harness = await Harness.open(model, ledger=ledger, settings=settings)
        await harness.prompt("one", "r1")
        await model.before.reached.wait()
        ledger.refused = (EndRun,)
        with pytest.raises(StorageUnavailable):
            await harness.cancel()
        async with asyncio.timeout(1):
            answered = await harness.workspace.inputs.cancel_run(RunId("r1"))
        assert (answered.outcome, answered.cancel_requested) == (None, True)
        ledger.refused = ()
        await harness.wait_until_idle()
        assert harness.end_of("r1").outcome == "cancelled"

    in_virtual_time(main)
