"""Cases of docs/cases.md, each by its id, through the real engine: waiting prompts."""

import pytest

from engine.gated_harness import busy_harness, wait_for_request
from holdfast.domain.events import Change, MessageEvent, RunCompleteEvent
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step
from holdfast.testing.gates import GatedModel, GatedTool
from holdfast.testing.harness import Harness

# Waiting prompts.


async def test_c15_a_prompt_with_a_run_id_gets_its_own_turn() -> None:
    """C-15: it is not folded; two turns, two ends, two texts."""
    tool = GatedTool("wait")
    model = ScriptedModel([Step((Call("wait"),)), Step((Say("first answer"),)), Step((Say("second answer"),))])
    harness = await Harness.open(model, tools=[tool])
    await harness.prompt("one", "r1")
    await tool.gate.reached.wait()
    await harness.prompt("two", "r2")
    tool.gate.open()
    await harness.wait_until_idle()
    assert [(end.run_id, end.text) for end in harness.ends()] == [("r1", "first answer"), ("r2", "second answer")]
    assert harness.end_of("r1").message_id != harness.end_of("r2").message_id


async def test_c16_a_step_boundary_folds_steering_prompts_only() -> None:
    """C-16: cancelled prompts are removed, steering prompts are folded, prompts with a run id stay in order."""
    tool = GatedTool("wait")
    answers = [Step((Call("wait"),)), *(Step((Say(f"answer {n}"),)) for n in range(4))]
    model = ScriptedModel(answers)
    harness = await Harness.open(model, tools=[tool])
    await harness.prompt("host", "r1")
    await tool.gate.reached.wait()
    dropped = await harness.prompt("dropped")
    own = await harness.prompt("own turn", "r2")
    folded = await harness.prompt("folded")
    await harness.prompt("last", "r3")
    await harness.workspace.inputs.cancel_run(dropped.run_id)
    tool.gate.open()
    await harness.wait_until_idle()
    lines = [line for line in await harness.outline() if line.startswith("user")]
    assert lines == ["user:host", "user:folded", "user:own turn", "user:last"]
    assert harness.end_of(folded.run_id).folded_into == "r1"
    assert [end.run_id for end in harness.ends()] == [dropped.run_id, "r1", folded.run_id, own.run_id, "r3"]
    await harness.assert_valid(model.requests)


@pytest.mark.parametrize("run_id", ["r2", ""])
async def test_c17_a_waiting_prompt_that_is_cancelled_ends_once(run_id: str) -> None:
    """C-17: with a run id or without, exactly one end, cancelled."""
    harness, model = await busy_harness()
    waiting = await harness.prompt("two", run_id)
    answer = await harness.workspace.inputs.cancel_run(waiting.run_id)
    assert answer.cancel_requested
    assert (await harness.workspace.inputs.cancel_run(waiting.run_id)).run_id == waiting.run_id
    model.before.open()
    await harness.wait_until_idle()
    end = harness.end_of(waiting.run_id)
    assert (end.cancelled, end.message_id, end.text) == (True, "", "")
    assert harness.end_of("r1").outcome == "completed"


async def test_c18_clearing_the_queue_ends_the_waiting_runs() -> None:
    """C-18: every cleared prompt ends cancelled, once; the head continues."""
    harness, model = await busy_harness()
    await harness.prompt("two", "r2")
    steering = await harness.prompt("three")
    assert await harness.workspace.inputs.clear(harness.session) == ("r2", steering.run_id)
    model.before.open()
    await harness.wait_until_idle()
    assert harness.end_of("r2").cancelled
    assert harness.end_of(steering.run_id).cancelled
    assert harness.end_of("r1").outcome == "completed"
    assert await harness.workspace.inputs.clear(harness.session) == ()


async def test_c19_each_end_is_published_when_its_run_ends_with_its_own_error() -> None:
    """C-19: the first run's end precedes the second run's start; the second one's error is its own."""
    model = ScriptedModel([Step((Say("fine"),)), Step((Fail("broken"),))])
    held_model = GatedModel(model)
    held_model.before.shut()
    harness = await Harness.open(held_model)
    await harness.prompt("one", "r1")
    await wait_for_request(held_model)
    await harness.prompt("two", "r2")
    held_model.before.open()
    await harness.wait_until_idle()
    first, second = harness.end_of("r1"), harness.end_of("r2")
    assert (first.outcome, first.text, first.error) == ("completed", "fine", "")
    assert (second.outcome, second.error) == ("failed", "broken")
    published = [event for _, event in harness.published.events]
    end = published.index(RunCompleteEvent(Change("updated", first)))
    user = [
        place
        for place, event in enumerate(published)
        if isinstance(event, MessageEvent) and event.change.object.role == "user"
    ]
    assert user[0] < end < user[1]
