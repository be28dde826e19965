"""Cases of docs/cases.md, each by its id, with the real engine: the workspace, and failures of other agents."""

import asyncio
from collections.abc import AsyncGenerator

import pytest

from engine.gated_harness import busy_harness, echo, gated_model, wait_for_request
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
from holdfast.domain.model_requests import ModelRequest, StreamPart, TextDelta
from holdfast.domain.runs import Attachment, Prompt
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step
from holdfast.testing.gates import Gate, GatedModel, GatedTool
from holdfast.testing.harness import FixedModels, Harness
from holdfast.testing.memory_ledger import MemoryLedger

# The workspace.


async def test_c22_a_failure_before_the_first_step_still_ends_the_run() -> None:
    """C-22: no model is available: run_complete with the run id and the error, not cancelled."""
    harness = await Harness.open(FixedModels(ProviderError("No model is set up.")))
    await harness.prompt("hello", "r1")
    await harness.wait_until_idle()
    end = harness.end_of("r1")
    assert (end.outcome, end.error, end.cancelled) == ("failed", "No model is set up.", False)
    assert [notice.run_id for notice in harness.notices() if notice.type == "error"] == ["r1"]
    assert await harness.finishes() == ["error"]


async def test_c23_one_end_per_run_whatever_happens() -> None:
    """C-23: completed, failed, cancelled, folded: one terminal event each, the last with its run id."""
    tool = GatedTool("wait")
    steps = [Step((Call("wait"),)), Step((Say("a"),)), Step((Fail(),)), Step((Say("c"),))]
    harness = await Harness.open(ScriptedModel(steps), tools=[tool])
    runs = [await harness.prompt("one", "r1")]
    await tool.gate.reached.wait()
    runs += [await harness.prompt("steer"), await harness.prompt("two", "r2"), await harness.prompt("three", "r3")]
    tool.gate.open()
    await harness.wait_until_idle()
    for run in runs:
        end = harness.end_of(run.run_id)
        mark = f'"run_id":"{run.run_id}"'
        carrying = [
            event for number, event in harness.published.events if number and mark in encode_event(event).decode()
        ]
        assert carrying[-1] == RunCompleteEvent(Change("updated", end))


async def test_c24_cancel_is_not_an_error() -> None:
    """C-24: no error event, no error text."""
    harness, _ = await busy_harness()
    await harness.cancel()
    await harness.wait_until_idle()
    assert [notice.type for notice in harness.notices()] == ["agent_finished"]
    assert harness.end_of("r1").error == ""
    assert (await harness.run("r1")).error == ""


async def test_c25_refused_at_once_and_nothing_stored() -> None:
    """C-25 at this level: empty prompt, invalid id, missing session, closing workspace: an error, nothing stored."""
    ledger = MemoryLedger()
    harness = await Harness.open(ScriptedModel(echo), ledger=ledger)
    before = list(harness.published.events)
    with pytest.raises(EmptyPrompt):
        await harness.prompt("  ")
    with pytest.raises(InvalidRunId):
        await harness.prompt("hello", "no spaces please")
    with pytest.raises(UnknownSession):
        await harness.prompt("hello", "r1", session=SessionId("unknown"))
    image = Attachment(b"x", "/a.png", "a.png", "image/png")
    with pytest.raises(EmptyPrompt):
        await harness.workspace.inputs.submit(Prompt(harness.session, "", (image,)))
    assert harness.published.events == before
    await harness.close()
    with pytest.raises(WorkspaceClosing):
        await harness.prompt("hello", "r2")
    assert list(await ledger.runs(harness.workspace.record.id, None, 10, 0)) == []


async def test_c25_text_attachment_without_a_prompt_is_accepted() -> None:
    model = ScriptedModel(echo)
    harness = await Harness.open(model)
    note = Attachment(b"what is in here", "/p/note.txt", "note.txt", "text/plain")
    await harness.workspace.inputs.submit(Prompt(harness.session, "", (note,), run_id=RunId("r1")))
    await harness.wait_until_idle()
    assert harness.end_of("r1").outcome == "completed"
    assert "what is in here" in str(model.requests[0].messages[0].parts)
    assert [item.size for item in (await harness.run("r1")).attachments] == [15]


async def test_c26_shutdown_waits_for_accepted_runs() -> None:
    """C-26: a prompt accepted a moment ago is parked by a shutdown, and runs at the next start."""
    ledger = MemoryLedger()
    harness, _ = await busy_harness(ledger)
    await harness.prompt("two", "r2")
    await harness.close()
    assert harness.end_of("r1").outcome == "interrupted"
    assert [run.run_id for run in await ledger.open_runs(harness.workspace.record.id)] == ["r2"]
    again = await Harness.open(ScriptedModel(echo), ledger=ledger, ids="later")
    await again.workspace.engine.wait_until_idle(harness.session)
    assert again.end_of("r2").outcome == "completed"


# Failures known from other agents.


async def test_c41_changing_models_disturbs_no_lane() -> None:
    """C-41: each run looks up its model; active runs stay visible and cancellable."""
    model = gated_model()
    models = FixedModels(model)
    harness = await Harness.open(models)
    await harness.prompt("one", "r1")
    await wait_for_request(model)
    models._large = ScriptedModel(echo)
    await harness.prompt("two", "r2")
    assert harness.workspace.engine.is_busy(harness.session)
    assert set(await harness.cancel()) == {"r1", "r2"}
    await harness.wait_until_idle()
    await harness.prompt("three", "r3")
    await harness.wait_until_idle()
    assert harness.end_of("r3").outcome == "completed"


async def test_c42_a_prompt_right_after_a_cancel_runs() -> None:
    """C-42: it waits while the first cleans up, then runs; it is not cancelled."""
    cleaning = Gate()

    requested = asyncio.Event()

    class Stubborn(ScriptedModel):
        async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
            try:
                requested.set()
                await asyncio.Event().wait()
                yield TextDelta("never said")
            finally:
                await cleaning()

    first = Stubborn([])
    models = FixedModels(first)
    harness = await Harness.open(models)
    await harness.prompt("one", "r1")
    await requested.wait()
    await harness.cancel()
    await cleaning.reached.wait()
    models._large = ScriptedModel(echo)
    late = await harness.prompt("two", "r2")
    assert late.position == 1
    cleaning.open()
    await harness.wait_until_idle()
    assert [(end.run_id, end.outcome) for end in harness.ends()] == [("r1", "cancelled"), ("r2", "completed")]


async def test_c43_a_provider_error_does_not_strand_the_queue() -> None:
    """C-43: the next prompt runs after a failed one."""
    model = GatedModel(ScriptedModel([Step((Fail("down"),)), Step((Say("up again"),))]))
    model.before.shut()
    harness = await Harness.open(model)
    await harness.prompt("one", "r1")
    await wait_for_request(model)
    await harness.prompt("two", "r2")
    model.before.open()
    await harness.wait_until_idle()
    assert [(end.outcome, end.text) for end in harness.ends()] == [("failed", ""), ("completed", "up again")]


async def test_c52_prompts_posted_one_after_the_other_run_in_that_order() -> None:
    """C-52: sixty of them, each after the acceptance of the one before."""
    harness = await Harness.open(ScriptedModel(echo), settings=EngineSettings(titles=False))
    names = [f"run-{number}" for number in range(60)]
    for name in names:
        await harness.prompt(name, name)
    await harness.wait_until_idle()
    assert [end.run_id for end in harness.ends()] == names


async def test_c51_concurrent_prompts_are_all_accepted_and_end() -> None:
    """C-51 at this level: a hundred in a hundred sessions and twenty in one."""
    harness = await Harness.open(ScriptedModel(echo))
    sessions = [await harness.workspace.sessions.create() for _ in range(100)]
    await asyncio.gather(*(harness.prompt("x", f"s{n}", session=item.id) for n, item in enumerate(sessions)))
    await asyncio.gather(*(harness.prompt("y", f"q{n}") for n in range(20)))
    for item in sessions:
        await harness.workspace.engine.wait_until_idle(item.id)
    await harness.wait_until_idle()
    assert len(harness.ends()) == 120
    assert {end.outcome for end in harness.ends()} == {"completed"}


async def test_a_retried_request_gets_the_same_answer_and_starts_nothing() -> None:
    """The same run id with the same body gets the same response, during and after the run; another body is refused."""
    model = gated_model()
    harness = await Harness.open(model)
    await harness.prompt("zero", "r0")
    first = await harness.prompt("one", "r1", delivery="queue")
    again = await harness.prompt("one", "r1", delivery="queue")
    assert (first.position, again.position) == (1, 1)
    with pytest.raises(RunIdTaken):
        await harness.prompt("something else", "r1")
    model.before.open()
    await harness.wait_until_idle()
    assert (await harness.prompt("one", "r1")).outcome == "completed"
    assert [end.run_id for end in harness.ends()] == ["r0", "r1"]
