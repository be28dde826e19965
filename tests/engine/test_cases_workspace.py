"""Cases of docs/cases.md, each by its id, through the real engine: the workspace, and places where others fail."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from engine.gated_worlds import busy_world, echo, gated, held
from holdfast.domain.errors import (
    EmptyPrompt,
    InvalidRunId,
    ProviderError,
    RunIdTaken,
    UnknownSession,
    WorkspaceClosing,
)
from holdfast.domain.events import Change, RunCompleteEvent, encode_event
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.models import ModelRequest, StreamPart, TextDelta
from holdfast.domain.runs import Attachment, Prompt
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step
from holdfast.testing.gates import Gate, GatedModel, GatedTool
from holdfast.testing.harness import FixedModels, World
from holdfast.testing.memory_ledger import MemoryLedger

# The workspace.


async def test_c22_a_failure_before_the_first_step_still_ends_the_run() -> None:
    """C-22: the model cannot be had: run_complete with the run id and the error, not cancelled."""
    world = await World.open(FixedModels(ProviderError("No model is set up.")))
    await world.prompt("hello", "r1")
    await world.quiet()
    end = world.end_of("r1")
    assert (end.outcome, end.error, end.cancelled) == ("failed", "No model is set up.", False)
    assert [notice.run_id for notice in world.notices() if notice.type == "error"] == ["r1"]
    assert await world.finishes() == ["error"]


async def test_c23_one_end_per_run_whatever_happens() -> None:
    """C-23: completed, failed, cancelled, folded: one terminal event each, the last with its run id."""
    tool = GatedTool("wait")
    steps = [Step((Call("wait"),)), Step((Say("a"),)), Step((Fail(),)), Step((Say("c"),))]
    world = await World.open(ScriptedModel(steps), tools=[tool])
    runs = [await world.prompt("one", "r1")]
    await tool.gate.reached.wait()
    runs += [await world.prompt("steer"), await world.prompt("two", "r2"), await world.prompt("three", "r3")]
    tool.gate.open()
    await world.quiet()
    for run in runs:
        end = world.end_of(run.run_id)
        mark = f'"run_id":"{run.run_id}"'
        carrying = [event for number, event in world.tape.events if number and mark in encode_event(event).decode()]
        assert carrying[-1] == RunCompleteEvent(Change("updated", end))


async def test_c24_a_cancel_is_no_error() -> None:
    """C-24: no error event, no error text."""
    world, _ = await busy_world()
    await world.cancel()
    await world.quiet()
    assert [notice.type for notice in world.notices()] == ["agent_finished"]
    assert world.end_of("r1").error == ""
    assert (await world.run("r1")).error == ""


async def test_c25_refused_at_once_and_nothing_stored() -> None:
    """C-25, at this level: empty prompt, bad id, missing session, closing workspace: an error and no trace."""
    ledger = MemoryLedger()
    world = await World.open(ScriptedModel(echo), ledger=ledger)
    before = list(world.tape.events)
    with pytest.raises(EmptyPrompt):
        await world.prompt("  ")
    with pytest.raises(InvalidRunId):
        await world.prompt("hello", "no spaces please")
    with pytest.raises(UnknownSession):
        await world.prompt("hello", "r1", session=SessionId("nobody"))
    image = Attachment(b"x", "/a.png", "a.png", "image/png")
    with pytest.raises(EmptyPrompt):
        await world.workspace.inputs.submit(Prompt(world.session, "", (image,)))
    assert world.tape.events == before
    await world.close()
    with pytest.raises(WorkspaceClosing):
        await world.prompt("hello", "r2")
    assert list(await ledger.runs(world.workspace.record.id, None, 10, 0)) == []


async def test_c25_a_text_file_may_stand_for_a_prompt() -> None:
    model = ScriptedModel(echo)
    world = await World.open(model)
    note = Attachment(b"what is in here", "/p/note.txt", "note.txt", "text/plain")
    await world.workspace.inputs.submit(Prompt(world.session, "", (note,), run_id=RunId("r1")))
    await world.quiet()
    assert world.end_of("r1").outcome == "completed"
    assert "what is in here" in str(model.requests[0].messages[0].parts)
    assert [item.size for item in (await world.run("r1")).attachments] == [15]


async def test_c26_shutdown_waits_for_accepted_runs() -> None:
    """C-26: a prompt accepted a moment ago is parked by a shutdown, and runs at the next start."""
    ledger = MemoryLedger()
    world, _ = await busy_world(ledger)
    await world.prompt("two", "r2")
    await world.close()
    assert world.end_of("r1").outcome == "interrupted"
    assert [run.run_id for run in await ledger.open_runs(world.workspace.record.id)] == ["r2"]
    again = await World.open(ScriptedModel(echo), ledger=ledger, ids="later")
    await again.workspace.engine.wait_until_idle(world.session)
    assert again.end_of("r2").outcome == "completed"


# Places where others fail.


async def test_c41_changing_models_disturbs_no_lane() -> None:
    """C-41: models are looked up by each run; runs that are going stay visible and cancellable."""
    model = gated()
    models = FixedModels(model)
    world = await World.open(models)
    await world.prompt("one", "r1")
    await held(model)
    models._large = ScriptedModel(echo)
    await world.prompt("two", "r2")
    assert world.workspace.engine.is_busy(world.session)
    assert set(await world.cancel()) == {"r1", "r2"}
    await world.quiet()
    await world.prompt("three", "r3")
    await world.quiet()
    assert world.end_of("r3").outcome == "completed"


async def test_c42_a_prompt_right_after_a_cancel_runs() -> None:
    """C-42: it waits while the first cleans up, then runs; it is not cancelled."""
    cleaning = Gate()

    asked = asyncio.Event()

    class Stubborn(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
            try:
                asked.set()
                await asyncio.Event().wait()
                yield TextDelta("never said")
            finally:
                await cleaning()

    first = Stubborn([])
    models = FixedModels(first)
    world = await World.open(models)
    await world.prompt("one", "r1")
    await asked.wait()
    await world.cancel()
    await cleaning.reached.wait()
    models._large = ScriptedModel(echo)
    late = await world.prompt("two", "r2")
    assert late.position == 1
    cleaning.open()
    await world.quiet()
    assert [(end.run_id, end.outcome) for end in world.ends()] == [("r1", "cancelled"), ("r2", "completed")]


async def test_c43_a_provider_error_does_not_strand_the_queue() -> None:
    """C-43: the next prompt runs after a failed one."""
    model = GatedModel(ScriptedModel([Step((Fail("down"),)), Step((Say("up again"),))]))
    model.before.shut()
    world = await World.open(model)
    await world.prompt("one", "r1")
    await held(model)
    await world.prompt("two", "r2")
    model.before.open()
    await world.quiet()
    assert [(end.outcome, end.text) for end in world.ends()] == [("failed", ""), ("completed", "up again")]


async def test_c52_prompts_posted_one_after_the_other_run_in_that_order() -> None:
    """C-52: sixty of them, each after the acceptance of the one before."""
    world = await World.open(ScriptedModel(echo), settings=EngineSettings(titles=False))
    names = [f"run-{number}" for number in range(60)]
    for name in names:
        await world.prompt(name, name)
    await world.quiet()
    assert [end.run_id for end in world.ends()] == names


async def test_c51_prompts_posted_at_the_same_moment() -> None:
    """C-51, at this level: a hundred in a hundred sessions and twenty in one; all are accepted, all end."""
    world = await World.open(ScriptedModel(echo))
    sessions = [await world.workspace.sessions.create() for _ in range(100)]
    await asyncio.gather(*(world.prompt("x", f"s{n}", session=item.id) for n, item in enumerate(sessions)))
    await asyncio.gather(*(world.prompt("y", f"q{n}") for n in range(20)))
    for item in sessions:
        await world.workspace.engine.wait_until_idle(item.id)
    await world.quiet()
    assert len(world.ends()) == 120
    assert {end.outcome for end in world.ends()} == {"completed"}


async def test_a_retried_request_gets_the_same_answer_and_starts_nothing() -> None:
    """The same run id with the same body answers the same, while it runs and after; another body is refused."""
    model = gated()
    world = await World.open(model)
    await world.prompt("zero", "r0")
    first = await world.prompt("one", "r1", delivery="queue")
    again = await world.prompt("one", "r1", delivery="queue")
    assert (first.position, again.position) == (1, 1)
    with pytest.raises(RunIdTaken):
        await world.prompt("something else", "r1")
    model.before.open()
    await world.quiet()
    assert (await world.prompt("one", "r1")).outcome == "completed"
    assert [end.run_id for end in world.ends()] == ["r0", "r1"]
