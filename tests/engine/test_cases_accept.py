"""Cases of docs/cases.md, each by its id, through the real engine: accepting and cancelling inside one session."""

import asyncio

import pytest

from engine.gated_worlds import echo, gated, held, slow_reads
from holdfast.domain.errors import WorkspaceClosing
from holdfast.domain.ids import RunId
from holdfast.domain.ledger import EndRun, Refusal
from holdfast.engine.lifecycle import Cancel, Head
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.testing.gates import GatedTool
from holdfast.testing.harness import World

# Accepting and cancelling inside one session.


async def test_c01_a_second_end_of_a_run_is_refused() -> None:
    """C-01: ending is absorbing; however often an end is written, there is one."""
    world = await World.open(ScriptedModel(echo))
    await world.prompt("hello", "r1")
    await world.quiet()
    for _ in range(2):
        answer = await world.workspace.engine.recorder.put(EndRun(RunId("r1"), "failed", 1))
        assert answer == Refusal("already_ended")
    assert world.end_of("r1").outcome == "completed"
    assert (await world.run("r1")).outcome == "completed"


async def test_c02_cancel_when_idle_leaves_nothing() -> None:
    """C-02: an idle cancel does nothing: no event, no row, no lane."""
    world = await World.open(ScriptedModel(echo))
    before = list(world.tape.events)
    assert await world.cancel() == ()
    assert world.tape.events == before
    assert not world.workspace.engine.is_busy(world.session)
    assert list(await world.ledger.open_runs(world.workspace.record.id)) == []


async def test_c03_c04_c11_cancel_before_the_start_is_kept() -> None:
    """C-03, C-04, C-11: cancelled while accepted: no model call, a canceled turn, its own end."""
    model = ScriptedModel(echo)
    world = await World.open(model)
    engine = world.workspace.engine
    await world.prompt("hello", "r1")
    assert engine.lane(world.session).head == Head(RunId("r1"))
    engine.dispatch(world.session, Cancel())
    kept = engine.lane(world.session)
    engine.dispatch(world.session, Cancel())
    assert kept == engine.lane(world.session)
    assert kept.head == Head(RunId("r1"), "cancelling", "cancel")
    await world.quiet()
    assert model.requests == []
    assert await world.outline() == ["user:hello", "assistant:"]
    assert await world.finishes() == ["canceled"]
    end = world.end_of("r1")
    assert (end.outcome, end.cancelled, end.error) == ("cancelled", True, "")
    assert not engine.is_busy()


async def test_c03_c36_cancel_right_after_the_acceptance_is_not_lost() -> None:
    """C-03, C-36 at this level: asked again while the run is still ending, it names the same run."""
    model = gated()
    ledger, gate = slow_reads()
    world = await World.open(model, ledger=ledger)
    gate.shut()
    await world.prompt("hello", "r1")
    assert await world.cancel() == ("r1",)
    assert await world.cancel() == ("r1",)
    gate.open()
    await world.quiet()
    assert await world.cancel() == ()
    assert model.requests == []
    assert await world.finishes() == ["canceled"]


@pytest.mark.parametrize("after_start", [False, True])
async def test_c05_the_conversation_of_a_canceled_turn_is_repaired(after_start: bool) -> None:
    """C-05: both messages if the prompt is not there yet, only the answer if it is."""
    model = gated()
    world = await World.open(model)
    await world.prompt("hello", "r1")
    if after_start:
        await held(model)
    await world.cancel()
    await world.quiet()
    created = [event.change.object.role for event in world.message_events() if event.change.type == "created"]
    assert created == ["user", "assistant"]
    assert await world.finishes() == ["canceled"]
    await world.assert_valid()


async def test_c06_c27_the_last_writes_survive_the_shutdown() -> None:
    """C-06, C-27: shutdown refuses, cancels, waits, and the final states are stored before it is over."""
    model = gated()
    world = await World.open(model)
    await world.prompt("hello", "r1")
    await held(model)
    closing = asyncio.gather(world.close())
    await asyncio.sleep(0)
    with pytest.raises(WorkspaceClosing):
        await world.prompt("too late", "r2")
    await closing
    assert world.end_of("r1").outcome == "interrupted"
    assert await world.finishes() == ["error"]
    assert (await world.run("r1")).outcome == "interrupted"
    await world.assert_valid()
    assert await world.ledger.run(world.workspace.record.id, RunId("r2")) is None


async def test_c07_c08_c40_one_cancel_stops_the_active_run_and_the_follow_up() -> None:
    """C-07, C-08, and C-40 at this level: both end cancelled; the follow-up never starts."""
    model = gated()
    world = await World.open(model)
    await world.prompt("first", "r1")
    await held(model)
    await world.prompt("second", "r2")
    assert set(await world.cancel()) == {"r1", "r2"}
    model.before.open()
    await world.quiet()
    assert {end.run_id: end.outcome for end in world.ends()} == {"r1": "cancelled", "r2": "cancelled"}
    assert await world.outline() == ["user:first", "assistant:"]
    assert model.requests == []


async def test_c09_a_cancelled_follow_up_is_not_folded() -> None:
    """C-09: a steering prompt cancelled while it waits leaves no message in the running turn."""
    tool = GatedTool("wait")
    model = ScriptedModel([Step((Call("wait"),)), Step((Say("done"),))])
    world = await World.open(model, tools=[tool])
    await world.prompt("first", "r1")
    await tool.gate.reached.wait()
    steering = await world.prompt("and this")
    await world.workspace.inputs.cancel_run(steering.run_id)
    tool.gate.open()
    await world.quiet()
    assert [line for line in await world.outline() if line.startswith("user")] == ["user:first"]
    assert world.end_of(steering.run_id).outcome == "cancelled"
    assert world.end_of("r1").outcome == "completed"


async def test_c10_c13_c37_no_cancel_is_left_behind() -> None:
    """C-10, C-13, and C-37 at this level: neither a finished turn nor an idle cancel spoils the next prompt."""
    world = await World.open(ScriptedModel(echo))
    await world.cancel()
    await world.prompt("one", "r1")
    await world.quiet()
    await world.cancel()
    await world.prompt("two", "r2")
    await world.quiet()
    assert await world.finishes() == ["end_turn", "end_turn"]
    assert [end.outcome for end in world.ends()] == ["completed", "completed"]


async def test_c12_two_accepted_one_cancel() -> None:
    """C-12: both end cancelled; the head leaves its turn, the waiting one keeps its prompt in its record."""
    ledger, gate = slow_reads()
    world = await World.open(ScriptedModel(echo), ledger=ledger)
    gate.shut()
    await world.prompt("first", "r1")
    await world.prompt("second", "r2")
    await world.cancel()
    gate.open()
    await world.quiet()
    assert {end.run_id: end.outcome for end in world.ends()} == {"r1": "cancelled", "r2": "cancelled"}
    assert await world.outline() == ["user:first", "assistant:"]
    assert (await world.run("r2")).prompt == "second"


async def test_c14_a_prompt_after_the_cancel_is_not_hit() -> None:
    """C-14: A and B accepted, cancel, then C: C runs normally."""
    ledger, gate = slow_reads()
    world = await World.open(ScriptedModel(echo), ledger=ledger)
    gate.shut()
    await world.prompt("a", "A")
    await world.prompt("b", "B")
    await world.cancel()
    await world.prompt("c", "C")
    gate.open()
    await world.quiet()
    assert [world.end_of(run).outcome for run in "ABC"] == ["cancelled", "cancelled", "completed"]
    assert (await world.finishes())[-1] == "end_turn"
