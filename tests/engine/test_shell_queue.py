"""The shell's contract: deliveries and the queue."""

import pytest

from engine.held import busy_world
from holdfast.domain.errors import (
    NotWaiting,
    RunFolded,
    UnknownRun,
)
from holdfast.domain.ids import RunId
from holdfast.domain.models import ModelRequest
from holdfast.providers.scripted import Call, Say, ScriptedModel, Step
from holdfast.testing.gates import GatedModel, GatedTool, until
from holdfast.testing.harness import World


def echo(request: ModelRequest) -> Step:
    return Step((Say(f"answer {len(request.messages)}"),))


# Deliveries and the queue


async def test_interrupt_cancels_what_is_there_and_then_runs() -> None:
    world, model = await busy_world()
    await world.prompt("two", "r2")
    await world.prompt("three", "r3", delivery="interrupt")
    # What it cancels is on disk with it: a crash right now takes up neither of them again.
    assert [(await world.run(run)).cancel_requested for run in ("r1", "r2", "r3")] == [True, True, False]
    model.before.open()
    await world.quiet()
    assert [world.end_of(run).outcome for run in ("r1", "r2", "r3")] == ["cancelled", "cancelled", "completed"]


async def test_the_queue_can_be_rearranged_while_it_waits() -> None:
    model = GatedModel(ScriptedModel(echo))
    model.before.shut()
    world = await World.open(model)
    inputs = world.workspace.inputs
    await world.prompt("one", "r1")
    await model.before.reached.wait()
    for name in ("r2", "r3", "r4"):
        await world.prompt(name, name)
    await inputs.move(RunId("r4"), 0)
    await inputs.redeliver(RunId("r3"), "steer")
    assert [(item.run, item.delivery) for item in world.workspace.engine.lane(world.session).queue] == [
        ("r4", "queue"),
        ("r2", "queue"),
        ("r3", "steer"),
    ]
    stored = [run.run_id for run in await world.ledger.open_runs(world.workspace.record.id)]
    assert stored == ["r1", "r4", "r2", "r3"]
    with pytest.raises(NotWaiting):
        await inputs.move(RunId("r1"), 0)
    with pytest.raises(UnknownRun):
        await inputs.redeliver(RunId("nobody"), "queue")
    model.before.open()
    await world.quiet()
    assert [end.run_id for end in world.ends()] == ["r1", "r4", "r3", "r2"]
    with pytest.raises(NotWaiting):
        await inputs.redeliver(RunId("r3"), "queue")


async def test_a_folded_run_cannot_be_cancelled_alone() -> None:
    tool = GatedTool("wait")
    model = ScriptedModel([Step((Call("wait"),)), Step((Call("wait"),)), Step((Say("done"),))])
    world = await World.open(model, tools=[tool])
    await world.prompt("one", "r1")
    await tool.gate.reached.wait()
    steering = await world.prompt("steer")
    tool.gate.open()
    tool.gate.reached.clear()
    tool.gate.shut()
    await tool.gate.reached.wait()
    await until(lambda: world.workspace.engine.lane(world.session).folded)
    with pytest.raises(RunFolded, match="r1"):
        await world.workspace.inputs.cancel_run(steering.run_id)
    tool.gate.open()
    await world.quiet()
    assert world.end_of(steering.run_id).text == world.end_of("r1").text == "done"


async def test_cancel_of_a_finished_run_answers_its_end() -> None:
    world = await World.open(ScriptedModel(echo))
    await world.prompt("one", "r1")
    await world.quiet()
    assert (await world.workspace.inputs.cancel_run(RunId("r1"))).outcome == "completed"
    with pytest.raises(UnknownRun):
        await world.workspace.inputs.cancel_run(RunId("nobody"))
