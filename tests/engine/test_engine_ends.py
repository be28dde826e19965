"""Contract of the engine: tasks, ends and cleanup. Time is virtual where it matters."""

import asyncio
from collections.abc import AsyncGenerator, Iterable

import pytest

from engine.gated_harness import busy_harness
from holdfast.domain.errors import StorageUnavailable, WorkspaceClosing
from holdfast.domain.events import AgentEvent, MessageEvent, RunCompleteEvent, RunEvent, SessionEvent
from holdfast.domain.ids import RunId
from holdfast.domain.model_requests import ModelRequest, StreamPart
from holdfast.domain.store_operations import EndRun, Entry
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.engine.run_end import INTERRUPTED
from holdfast.engine.run_lifecycle import Cancel, Head
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step
from holdfast.testing.gates import Gate, GatedLedger, GatedModel, SimpleTool, settle_down, until
from holdfast.testing.harness import Harness
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.testing.seeded_loop import in_virtual_time


def echo(request: ModelRequest) -> Step:
    return Step((Say(f"answer {len(request.messages)}"),))


# Tasks


async def test_a_task_cancelled_before_its_first_step_still_ends_its_run() -> None:
    """`Finish` is dispatched by the done callback: such a task never enters its body."""
    harness = await Harness.open(ScriptedModel(echo))
    await harness.prompt("one", "r1")
    life = harness.workspace.engine._active.get(RunId("r1"))
    assert life is not None, "the task is there and has not run yet"
    life.task.cancel()
    await harness.wait_until_idle()
    assert harness.end_of("r1").outcome == "failed"
    await harness.prompt("two", "r2")
    await harness.wait_until_idle()
    assert harness.end_of("r2").outcome == "completed"


def test_run_ends_within_the_grace_although_a_tool_does_not_stop() -> None:
    """R5: a tool that does not stop is abandoned after the grace; its later effects are discarded."""

    async def main() -> None:
        release = Gate()

        async def stubborn(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
            while not release.passed:
                try:
                    await release()
                except asyncio.CancelledError:
                    continue
            return ToolOutcome("too late")

        tool = SimpleTool("stubborn", stubborn)
        model = ScriptedModel([Step((Call("stubborn"),)), Step((Say("next"),))])
        harness = await Harness.open(model, tools=[tool])
        await harness.prompt("one", "r1")
        await release.reached.wait()
        began = asyncio.get_running_loop().time()
        await harness.cancel()
        await harness.wait_until_idle()
        assert asyncio.get_running_loop().time() - began <= 2.0 + 0.25
        assert harness.end_of("r1").outcome == "cancelled"
        published = len(harness.published.events)
        release.open()
        await settle_down()
        assert len(harness.published.events) == published, "an abandoned run published an event"
        await harness.assert_valid()
        await harness.prompt("two", "r2")
        await harness.wait_until_idle()
        assert harness.end_of("r2").outcome == "completed"

    in_virtual_time(main)


# The end


async def test_the_order_of_events_at_an_end() -> None:
    """Last message, session, error, run_complete, agent_finished; the session is idle before the last three."""
    harness = await Harness.open(ScriptedModel([Step((Say("well"), Fail("broken")))]))
    await harness.prompt("one", "r1")
    await harness.wait_until_idle()
    kinds = [type(event) for _, event in harness.published.events][-5:]
    assert kinds == [MessageEvent, SessionEvent, AgentEvent, RunCompleteEvent, AgentEvent]
    assert [notice.type for notice in harness.notices()] == ["error", "agent_finished"]
    assert (harness.notices()[0].run_id, harness.notices()[0].session_id) == ("r1", harness.session)
    assert harness.end_of("r1").text == "well"


async def test_a_session_is_no_longer_busy_when_its_end_is_published() -> None:
    harness = await Harness.open(ScriptedModel(echo))
    engine = harness.workspace.engine
    seen: list[bool] = []
    publish = harness.published.publish

    def listen(entries: Iterable[Entry]) -> None:
        batch = list(entries)
        seen.extend(engine.is_busy(harness.session) for item in batch if isinstance(item.event, RunCompleteEvent))
        publish(batch)

    harness.published.publish = listen  # type: ignore[method-assign]
    await harness.prompt("one", "r1")
    await harness.wait_until_idle()
    assert seen == [False]


async def test_an_end_is_one_transaction_and_published_after_it_is_stored() -> None:
    ledger = GatedLedger()
    harness = await Harness.open(ScriptedModel([Step((Fail("broken"),))]), ledger=ledger)
    ledger.hold(EndRun)
    await harness.prompt("one", "r1")
    await ledger.gate.reached.wait()
    await settle_down()
    assert harness.ends() == []
    assert harness.notices() == []
    ledger.gate.open()
    await harness.wait_until_idle()
    write = ledger.writes_of(EndRun)[0]
    assert write.sync
    assert [type(item).__name__ for item in write.operations] == ["PutMessage", "PatchSession", "EndRun"]


def test_end_that_cannot_be_stored_is_retried_until_it_is_stored() -> None:
    """Meanwhile one storage error is published, and new prompts are refused."""

    async def main() -> None:
        ledger = GatedLedger()
        model = GatedModel(ScriptedModel(echo))
        model.before.shut()
        harness = await Harness.open(model, ledger=ledger)
        await harness.prompt("one", "r1")
        await model.before.reached.wait()
        ledger.error = StorageUnavailable()
        model.before.open()
        await until(lambda: harness.workspace.engine.storage_fails)
        for _ in range(3):
            ledger.asked.clear()
            await ledger.asked.wait()
            with pytest.raises(StorageUnavailable):
                await harness.prompt("two", "r2")
        assert [notice.type for notice in harness.notices()] == ["error"]
        assert harness.ends() == []
        ledger.error = None
        await harness.wait_until_idle()
        assert harness.end_of("r1").outcome == "completed", "its text is not lost"
        await harness.prompt("three", "r3")
        await harness.wait_until_idle()
        assert harness.end_of("r3").outcome == "completed"
        await harness.assert_valid()

    in_virtual_time(main)


# Shutdown and restart


async def test_graceful_shutdown_parks_waiting_runs() -> None:
    """Waiting runs, and runs accepted a moment ago, are parked and continue at the next start, in order."""
    ledger = MemoryLedger()
    harness, _ = await busy_harness(ledger)
    for name in ("r2", "r3"):
        await harness.prompt(name, name)
    other = await harness.workspace.sessions.create()
    await harness.prompt("four", "r4", session=other.id)
    assert harness.workspace.engine.lane(other.id).head == Head(RunId("r4"))
    await harness.close()
    assert [(end.run_id, end.outcome, end.error) for end in harness.ends()] == [("r1", "interrupted", INTERRUPTED)]
    with pytest.raises(WorkspaceClosing):
        await harness.prompt("late", "r5")
    again = await Harness.open(ScriptedModel(echo), ledger=ledger, ids="later")
    for session in (harness.session, other.id):
        await again.workspace.engine.wait_until_idle(session)
    assert {end.run_id for end in again.ends()} == {"r2", "r3", "r4"}
    assert [end.run_id for end in again.ends() if end.run_id != "r4"] == ["r2", "r3"]


async def test_a_session_that_is_deleted_while_busy_is_cancelled_first() -> None:
    harness, _ = await busy_harness()
    await harness.workspace.sessions.delete(harness.session)
    assert harness.end_of("r1").outcome == "cancelled"
    last = harness.published.events[-1][1]
    assert isinstance(last, SessionEvent)
    assert last.change.type == "deleted"
    assert list(await harness.messages()) == []


async def test_idle_session_holds_no_resources() -> None:
    """R11: a session whose runs have ended leaves no lane, no outbox, no task behind."""
    harness = await Harness.open(ScriptedModel(echo))
    engine = harness.workspace.engine
    for number in range(50):
        session = await harness.workspace.sessions.create()
        await harness.prompt("x", f"r{number}", session=session.id)
        await engine.wait_until_idle(session.id)
    await settle_down()
    for name in ("_lanes", "_active", "_outboxes", "_folds", "_idle_waiters", "_ends", "_tasks", "_writing"):
        assert len(getattr(engine, name)) == 0, name


async def test_an_internal_error_is_shown_without_a_traceback() -> None:
    class Broken(ScriptedModel):
        def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
            raise ZeroDivisionError("secret detail")

    harness = await Harness.open(Broken([]))
    await harness.prompt("one", "r1")
    await harness.wait_until_idle()
    assert harness.end_of("r1").outcome == "failed"
    assert "secret detail" not in harness.end_of("r1").error
    assert "ZeroDivisionError" in harness.end_of("r1").error


async def test_a_provider_error_is_shown_verbatim() -> None:
    harness = await Harness.open(ScriptedModel([Step((Fail("Quota used up."),))]))
    await harness.prompt("one", "r1")
    await harness.wait_until_idle()
    finish = (await harness.messages())[-1].finish
    assert finish is not None
    assert (finish.reason, finish.message, finish.details) == ("error", "Scripted failure", "Quota used up.")


def test_prompts_are_refused_while_an_end_cannot_be_stored() -> None:
    """Even if the disk could store the prompt: it could not store its end. The refusal follows the attempt at once."""

    async def main() -> None:
        ledger = GatedLedger()
        settings = EngineSettings(titles=False, retry_first=60.0, retry_longest=60.0)
        harness = await Harness.open(ScriptedModel(echo), ledger=ledger, settings=settings)
        ledger.refused = (EndRun,)
        await harness.prompt("one", "r1")
        await until(lambda: harness.workspace.engine.storage_fails)
        began = asyncio.get_running_loop().time()
        with pytest.raises(StorageUnavailable):
            await harness.prompt("two", "r2")
        assert asyncio.get_running_loop().time() - began < 0.1
        ledger.refused = ()
        await harness.wait_until_idle()
        assert [end.run_id for end in harness.ends()] == ["r1"]

    in_virtual_time(main)


async def test_the_first_prompt_after_the_storage_works_again_is_accepted_at_once() -> None:
    """Independently of the next scheduled attempt to store the end."""
    ledger = GatedLedger()
    settings = EngineSettings(titles=False, retry_first=1_000.0, retry_longest=1_000.0)
    harness = await Harness.open(ScriptedModel(echo), ledger=ledger, settings=settings)
    ledger.refused = (EndRun,)
    await harness.prompt("one", "r1")
    await until(lambda: harness.workspace.engine.storage_fails)
    ledger.refused = ()
    await harness.prompt("two", "r2")
    await harness.wait_until_idle()
    assert [end.run_id for end in harness.ends()] == ["r1", "r2"]


async def test_a_run_is_in_its_lane_before_its_event_is_published() -> None:
    harness = await Harness.open(ScriptedModel(echo))
    known: list[bool] = []
    publish = harness.published.publish

    def listen(entries: Iterable[Entry]) -> None:
        batch = list(entries)
        created = [item.event.change for item in batch if isinstance(item.event, RunEvent)]
        head = harness.workspace.engine.lane(harness.session).head
        known.extend(
            head is not None and head.run == change.object.run_id for change in created if change.type == "created"
        )
        publish(batch)

    harness.published.publish = listen  # type: ignore[method-assign]
    await harness.prompt("one", "r1")
    await harness.wait_until_idle()
    assert known == [True]


async def test_a_run_cancelled_before_its_start_has_started_and_ended() -> None:
    """It stores a turn, so its row has a start time."""
    harness = await Harness.open(ScriptedModel(echo))
    await harness.prompt("one", "r1")
    harness.workspace.engine.dispatch(harness.session, Cancel())
    await harness.wait_until_idle()
    run = await harness.run("r1")
    assert run.started_at
    assert run.ended_at >= run.started_at
