"""Cases of docs/cases.md, each by its id, through the real engine: acceptance and cancellation within one session."""

import asyncio

import pytest

from engine.gated_harness import echo, gated_model, slow_run_reads, wait_for_request
from holdfast.domain.errors import WorkspaceClosing
from holdfast.domain.ids import RunId
from holdfast.domain.store_operations import EndRun, Refusal
from holdfast.engine.run_lifecycle import Cancel, Head
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.testing.gates import GatedTool
from holdfast.testing.harness import Harness

# Acceptance and cancellation within one session.


async def test_c01_a_second_end_of_a_run_is_refused() -> None:
    """C-01: an end is final; however often an end is written, one is stored."""
    harness = await Harness.open(ScriptedModel(echo))
    await harness.prompt("hello", "r1")
    await harness.wait_until_idle()
    for _ in range(2):
        answer = await harness.workspace.engine.recorder.put(EndRun(RunId("r1"), "failed", 1))
        assert answer == Refusal("already_ended")
    assert harness.end_of("r1").outcome == "completed"
    assert (await harness.run("r1")).outcome == "completed"


async def test_c02_idle_cancel_leaves_nothing() -> None:
    """C-02: no event, no row, no lane."""
    harness = await Harness.open(ScriptedModel(echo))
    before = list(harness.published.events)
    assert await harness.cancel() == ()
    assert harness.published.events == before
    assert not harness.workspace.engine.is_busy(harness.session)
    assert list(await harness.ledger.open_runs(harness.workspace.record.id)) == []


async def test_c03_c04_c11_cancel_before_the_start_is_kept() -> None:
    """C-03, C-04, C-11: cancelled while accepted: no model call, a canceled turn, its own end."""
    model = ScriptedModel(echo)
    harness = await Harness.open(model)
    engine = harness.workspace.engine
    await harness.prompt("hello", "r1")
    assert engine.lane(harness.session).head == Head(RunId("r1"))
    engine.dispatch(harness.session, Cancel())
    kept = engine.lane(harness.session)
    engine.dispatch(harness.session, Cancel())
    assert kept == engine.lane(harness.session)
    assert kept.head == Head(RunId("r1"), "cancelling", "cancel")
    await harness.wait_until_idle()
    assert model.requests == []
    assert await harness.outline() == ["user:hello", "assistant:"]
    assert await harness.finishes() == ["canceled"]
    end = harness.end_of("r1")
    assert (end.outcome, end.cancelled, end.error) == ("cancelled", True, "")
    assert not engine.is_busy()


async def test_c03_c36_cancel_right_after_the_acceptance_is_not_lost() -> None:
    """C-03, C-36 at this level: a second cancel while the run is ending names the same run."""
    model = gated_model()
    ledger, gate = slow_run_reads()
    harness = await Harness.open(model, ledger=ledger)
    gate.shut()
    await harness.prompt("hello", "r1")
    assert await harness.cancel() == ("r1",)
    assert await harness.cancel() == ("r1",)
    gate.open()
    await harness.wait_until_idle()
    assert await harness.cancel() == ()
    assert model.requests == []
    assert await harness.finishes() == ["canceled"]


@pytest.mark.parametrize("after_start", [False, True])
async def test_c05_the_conversation_of_a_canceled_turn_is_repaired(after_start: bool) -> None:
    """C-05: both messages if the prompt is not stored yet, only the response if it is."""
    model = gated_model()
    harness = await Harness.open(model)
    await harness.prompt("hello", "r1")
    if after_start:
        await wait_for_request(model)
    await harness.cancel()
    await harness.wait_until_idle()
    created = [event.change.object.role for event in harness.message_events() if event.change.type == "created"]
    assert created == ["user", "assistant"]
    assert await harness.finishes() == ["canceled"]
    await harness.assert_valid()


async def test_c06_c27_the_last_writes_survive_the_shutdown() -> None:
    """C-06, C-27: shutdown refuses, cancels, waits, and returns after the final states are stored."""
    model = gated_model()
    harness = await Harness.open(model)
    await harness.prompt("hello", "r1")
    await wait_for_request(model)
    closing = asyncio.gather(harness.close())
    await asyncio.sleep(0)
    with pytest.raises(WorkspaceClosing):
        await harness.prompt("too late", "r2")
    await closing
    assert harness.end_of("r1").outcome == "interrupted"
    assert await harness.finishes() == ["error"]
    assert (await harness.run("r1")).outcome == "interrupted"
    await harness.assert_valid()
    assert await harness.ledger.run(harness.workspace.record.id, RunId("r2")) is None


async def test_c07_c08_c40_one_cancel_stops_the_active_run_and_the_follow_up() -> None:
    """C-07, C-08, and C-40 at this level: both end cancelled; the follow-up never starts."""
    model = gated_model()
    harness = await Harness.open(model)
    await harness.prompt("first", "r1")
    await wait_for_request(model)
    await harness.prompt("second", "r2")
    assert set(await harness.cancel()) == {"r1", "r2"}
    model.before.open()
    await harness.wait_until_idle()
    assert {end.run_id: end.outcome for end in harness.ends()} == {"r1": "cancelled", "r2": "cancelled"}
    assert await harness.outline() == ["user:first", "assistant:"]
    assert model.requests == []


async def test_c09_a_cancelled_follow_up_is_not_folded() -> None:
    """C-09: a steering prompt cancelled while it waits leaves no message in the running turn."""
    tool = GatedTool("wait")
    model = ScriptedModel([Step((Call("wait"),)), Step((Say("done"),))])
    harness = await Harness.open(model, tools=[tool])
    await harness.prompt("first", "r1")
    await tool.gate.reached.wait()
    steering = await harness.prompt("and this")
    await harness.workspace.inputs.cancel_run(steering.run_id)
    tool.gate.open()
    await harness.wait_until_idle()
    assert [line for line in await harness.outline() if line.startswith("user")] == ["user:first"]
    assert harness.end_of(steering.run_id).outcome == "cancelled"
    assert harness.end_of("r1").outcome == "completed"


async def test_c10_c13_c37_cancel_does_not_affect_the_next_prompt() -> None:
    """C-10, C-13, and C-37 at this level: neither after a finished turn nor after an idle cancel."""
    harness = await Harness.open(ScriptedModel(echo))
    await harness.cancel()
    await harness.prompt("one", "r1")
    await harness.wait_until_idle()
    await harness.cancel()
    await harness.prompt("two", "r2")
    await harness.wait_until_idle()
    assert await harness.finishes() == ["end_turn", "end_turn"]
    assert [end.outcome for end in harness.ends()] == ["completed", "completed"]


async def test_c12_one_cancel_ends_two_accepted_runs() -> None:
    """C-12: the head stores a canceled turn, the waiting run keeps its prompt in its record."""
    ledger, gate = slow_run_reads()
    harness = await Harness.open(ScriptedModel(echo), ledger=ledger)
    gate.shut()
    await harness.prompt("first", "r1")
    await harness.prompt("second", "r2")
    await harness.cancel()
    gate.open()
    await harness.wait_until_idle()
    assert {end.run_id: end.outcome for end in harness.ends()} == {"r1": "cancelled", "r2": "cancelled"}
    assert await harness.outline() == ["user:first", "assistant:"]
    assert (await harness.run("r2")).prompt == "second"


async def test_c14_prompt_after_the_cancel_is_not_cancelled() -> None:
    """C-14: A and B accepted, cancel, then C: C runs normally."""
    ledger, gate = slow_run_reads()
    harness = await Harness.open(ScriptedModel(echo), ledger=ledger)
    gate.shut()
    await harness.prompt("a", "A")
    await harness.prompt("b", "B")
    await harness.cancel()
    await harness.prompt("c", "C")
    gate.open()
    await harness.wait_until_idle()
    assert [harness.end_of(run).outcome for run in "ABC"] == ["cancelled", "cancelled", "completed"]
    assert (await harness.finishes())[-1] == "end_turn"
