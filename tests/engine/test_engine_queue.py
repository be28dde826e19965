"""Contract of the engine: deliveries and the queue."""

import pytest

from engine.gated_harness import busy_harness
from holdfast.domain.errors import NotWaiting, RunFolded, UnknownRun
from holdfast.domain.ids import RunId
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.store_operations import Redeliver, Reorder
from holdfast.engine.run_lifecycle import members
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.testing.gates import GatedLedger, GatedModel, GatedTool, start, until
from holdfast.testing.harness import Harness


def echo(request: ModelRequest) -> Step:
    return Step((Say(f"answer {len(request.messages)}"),))


# Deliveries and the queue


async def test_interrupt_cancels_the_lane_and_then_runs() -> None:
    harness, model = await busy_harness()
    await harness.prompt("two", "r2")
    await harness.prompt("three", "r3", delivery="interrupt")
    # Its cancel is stored with it: recovery after a crash at this moment requeues neither of them.
    assert [(await harness.run(run)).cancel_requested for run in ("r1", "r2", "r3")] == [True, True, False]
    model.before.open()
    await harness.wait_until_idle()
    assert [harness.end_of(run).outcome for run in ("r1", "r2", "r3")] == ["cancelled", "cancelled", "completed"]


async def test_the_queue_can_be_rearranged_while_it_waits() -> None:
    model = GatedModel(ScriptedModel(echo))
    model.before.shut()
    harness = await Harness.open(model)
    inputs = harness.workspace.inputs
    await harness.prompt("one", "r1")
    await model.before.reached.wait()
    for name in ("r2", "r3", "r4"):
        await harness.prompt(name, name)
    await inputs.move(RunId("r4"), 0)
    await inputs.redeliver(RunId("r3"), "steer")
    assert [(item.run, item.delivery) for item in harness.workspace.engine.lane(harness.session).queue] == [
        ("r4", "queue"),
        ("r2", "queue"),
        ("r3", "steer"),
    ]
    stored = [run.run_id for run in await harness.ledger.open_runs(harness.workspace.record.id)]
    assert stored == ["r1", "r4", "r2", "r3"]
    with pytest.raises(NotWaiting):
        await inputs.move(RunId("r1"), 0)
    with pytest.raises(UnknownRun):
        await inputs.redeliver(RunId("unknown"), "queue")
    model.before.open()
    await harness.wait_until_idle()
    assert [end.run_id for end in harness.ends()] == ["r1", "r4", "r3", "r2"]
    with pytest.raises(NotWaiting):
        await inputs.redeliver(RunId("r3"), "queue")


async def busy_with_slow_moves() -> tuple[Harness, GatedModel, GatedLedger]:
    """Return a harness with one active run and three waiting ones, and a ledger that delays changes of their order."""
    ledger = GatedLedger()
    harness, model = await busy_harness(ledger)
    for name in ("r2", "r3", "r4"):
        await harness.prompt(name, name)
    ledger.hold(Reorder, Redeliver)
    return harness, model, ledger


async def start_next(harness: Harness, model: GatedModel, ledger: GatedLedger) -> None:
    """Let the first waiting run get the lane while the change is being written."""
    await ledger.gate.reached.wait()
    model.before.open()
    await until(lambda: "r2" in members(harness.workspace.engine.lane(harness.session))[:1])
    ledger.gate.open()


async def test_moving_a_run_that_was_started_meanwhile_is_refused() -> None:
    harness, model, ledger = await busy_with_slow_moves()
    moving = start(harness.workspace.inputs.move(RunId("r2"), 2))
    await start_next(harness, model, ledger)
    with pytest.raises(NotWaiting):
        await moving
    await harness.wait_until_idle()
    assert [end.run_id for end in harness.ends()] == ["r1", "r2", "r3", "r4"]


async def test_redelivering_a_run_that_was_started_meanwhile_is_refused() -> None:
    harness, model, ledger = await busy_with_slow_moves()
    changing = start(harness.workspace.inputs.redeliver(RunId("r2"), "steer"))
    await start_next(harness, model, ledger)
    with pytest.raises(NotWaiting):
        await changing
    await harness.wait_until_idle()
    assert [end.run_id for end in harness.ends()] == ["r1", "r2", "r3", "r4"]


async def test_the_lane_continues_in_the_stored_order() -> None:
    """Also if a run leaves the queue meanwhile: a crash right after the move continues in the same order."""
    harness, model, ledger = await busy_with_slow_moves()
    moving = start(harness.workspace.inputs.move(RunId("r4"), 1))
    await start_next(harness, model, ledger)
    await moving
    stored = [run.run_id for run in await ledger.open_runs(harness.workspace.record.id)]
    waiting = [item.run for item in harness.workspace.engine.lane(harness.session).queue]
    assert [run for run in stored if run in waiting] == waiting
    await harness.wait_until_idle()
    assert [end.run_id for end in harness.ends()] == ["r1", "r2", "r4", "r3"]


async def test_a_folded_run_cannot_be_cancelled_alone() -> None:
    tool = GatedTool("wait")
    model = ScriptedModel([Step((Call("wait"),)), Step((Call("wait"),)), Step((Say("done"),))])
    harness = await Harness.open(model, tools=[tool])
    await harness.prompt("one", "r1")
    await tool.gate.reached.wait()
    steering = await harness.prompt("steer")
    tool.gate.open()
    tool.gate.reached.clear()
    tool.gate.shut()
    await tool.gate.reached.wait()
    await until(lambda: harness.workspace.engine.lane(harness.session).folded)
    with pytest.raises(RunFolded, match="r1"):
        await harness.workspace.inputs.cancel_run(steering.run_id)
    tool.gate.open()
    await harness.wait_until_idle()
    assert harness.end_of(steering.run_id).text == harness.end_of("r1").text == "done"


async def test_cancel_of_a_finished_run_returns_its_outcome() -> None:
    harness = await Harness.open(ScriptedModel(echo))
    await harness.prompt("one", "r1")
    await harness.wait_until_idle()
    assert (await harness.workspace.inputs.cancel_run(RunId("r1"))).outcome == "completed"
    with pytest.raises(UnknownRun):
        await harness.workspace.inputs.cancel_run(RunId("unknown"))
