"""Cases of docs/cases.md, each by its id, through the real engine: waiting prompts."""

import pytest

from engine.gated_worlds import busy_world, held
from holdfast.domain.events import Change, MessageEvent, RunCompleteEvent
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step
from holdfast.testing.gates import GatedModel, GatedTool
from holdfast.testing.harness import World

# Waiting prompts.


async def test_c15_a_prompt_with_a_run_id_gets_its_own_turn() -> None:
    """C-15: it is not folded; two turns, two ends, two texts."""
    tool = GatedTool("wait")
    model = ScriptedModel([Step((Call("wait"),)), Step((Say("first answer"),)), Step((Say("second answer"),))])
    world = await World.open(model, tools=[tool])
    await world.prompt("one", "r1")
    await tool.gate.reached.wait()
    await world.prompt("two", "r2")
    tool.gate.open()
    await world.quiet()
    assert [(end.run_id, end.text) for end in world.ends()] == [("r1", "first answer"), ("r2", "second answer")]
    assert world.end_of("r1").message_id != world.end_of("r2").message_id


async def test_c16_a_step_boundary_folds_steering_prompts_only() -> None:
    """C-16: cancelled ones are gone, steering ones are folded, those with a run id stay in order."""
    tool = GatedTool("wait")
    answers = [Step((Call("wait"),)), *(Step((Say(f"answer {n}"),)) for n in range(4))]
    model = ScriptedModel(answers)
    world = await World.open(model, tools=[tool])
    await world.prompt("host", "r1")
    await tool.gate.reached.wait()
    dropped = await world.prompt("dropped")
    own = await world.prompt("own turn", "r2")
    folded = await world.prompt("folded")
    await world.prompt("last", "r3")
    await world.workspace.inputs.cancel_run(dropped.run_id)
    tool.gate.open()
    await world.quiet()
    lines = [line for line in await world.outline() if line.startswith("user")]
    assert lines == ["user:host", "user:folded", "user:own turn", "user:last"]
    assert world.end_of(folded.run_id).folded_into == "r1"
    assert [end.run_id for end in world.ends()] == [dropped.run_id, "r1", folded.run_id, own.run_id, "r3"]
    await world.assert_valid(model.requests)


@pytest.mark.parametrize("run_id", ["r2", ""])
async def test_c17_a_waiting_prompt_that_is_cancelled_ends_once(run_id: str) -> None:
    """C-17: with a run id or without, exactly one end, cancelled."""
    world, model = await busy_world()
    waiting = await world.prompt("two", run_id)
    answer = await world.workspace.inputs.cancel_run(waiting.run_id)
    assert answer.cancel_requested
    assert (await world.workspace.inputs.cancel_run(waiting.run_id)).run_id == waiting.run_id
    model.before.open()
    await world.quiet()
    end = world.end_of(waiting.run_id)
    assert (end.cancelled, end.message_id, end.text) == (True, "", "")
    assert world.end_of("r1").outcome == "completed"


async def test_c18_clearing_the_queue_ends_the_waiting_runs() -> None:
    """C-18: every cleared prompt ends cancelled, once; the head goes on."""
    world, model = await busy_world()
    await world.prompt("two", "r2")
    steering = await world.prompt("three")
    assert await world.workspace.inputs.clear(world.session) == ("r2", steering.run_id)
    model.before.open()
    await world.quiet()
    assert world.end_of("r2").cancelled
    assert world.end_of(steering.run_id).cancelled
    assert world.end_of("r1").outcome == "completed"
    assert await world.workspace.inputs.clear(world.session) == ()


async def test_c19_each_end_is_published_when_its_run_ends_with_its_own_error() -> None:
    """C-19: the first run's end precedes the second run's start; the second one's error is its own."""
    model = ScriptedModel([Step((Say("fine"),)), Step((Fail("broken"),))])
    held_model = GatedModel(model)
    held_model.before.shut()
    world = await World.open(held_model)
    await world.prompt("one", "r1")
    await held(held_model)
    await world.prompt("two", "r2")
    held_model.before.open()
    await world.quiet()
    first, second = world.end_of("r1"), world.end_of("r2")
    assert (first.outcome, first.text, first.error) == ("completed", "fine", "")
    assert (second.outcome, second.error) == ("failed", "broken")
    told = [event for _, event in world.tape.events]
    end = told.index(RunCompleteEvent(Change("updated", first)))
    user = [
        place
        for place, event in enumerate(told)
        if isinstance(event, MessageEvent) and event.change.object.role == "user"
    ]
    assert user[0] < end < user[1]
