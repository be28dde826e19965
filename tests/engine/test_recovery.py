"""Recovery of runs that had no end when the server stopped: R9."""

import msgspec
import pytest

from engine.gated_harness import busy_harness
from holdfast.domain.events import RunComplete
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.runs import Run
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.engine.recovery import plan_recovery
from holdfast.engine.run_context import NoHooks
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.runtime.workspace import FixedServices, Workspace, WorkspaceEvents
from holdfast.testing.gates import Gate, GatedModel, GatedTool, SimpleTool
from holdfast.testing.harness import FixedModels, FixedTools, Harness
from holdfast.testing.memory_ledger import MemoryLedger


def echo(request: ModelRequest) -> Step:
    return Step((Say(f"answer {len(request.messages)}"),))


def run(name: str, **fields: object) -> Run:
    waiting = Run(RunId(name), SessionId("s"), "waiting", "queue", 1)
    return msgspec.structs.replace(waiting, **fields)


def outcomes(*runs: Run, hosts: dict[RunId, Run] | None = None) -> dict[str, str]:
    decided = plan_recovery(runs, hosts or {})
    return {item.run_id: outcome for item, outcome in decided.ends} | {
        item.run_id: "again" for item in decided.requeued
    }


def test_recovery_plan_for_each_state_of_a_run() -> None:
    assert outcomes(run("a")) == {"a": "again"}
    assert outcomes(run("a", started_at=5)) == {"a": "interrupted"}
    assert outcomes(run("a", cancel_requested=True)) == {"a": "cancelled"}
    assert outcomes(run("a", started_at=5, cancel_requested=True)) == {"a": "cancelled"}
    assert outcomes(run("a", kind="summary")) == {"a": "interrupted"}


def test_folded_runs_follow_their_host() -> None:
    folded = run("b", folded_into="a", started_at=5)
    assert outcomes(folded, run("a", started_at=5)) == {"a": "interrupted", "b": "interrupted"}
    assert outcomes(folded, run("a", started_at=5, cancel_requested=True)) == {"a": "cancelled", "b": "cancelled"}
    marked = run("b", folded_into="a", started_at=5, cancel_requested=True)
    assert outcomes(marked, run("a", started_at=5)) == {"a": "interrupted", "b": "interrupted"}
    ended = run("a", outcome="completed")
    assert outcomes(folded, hosts={RunId("a"): ended}) == {"b": "completed"}


def test_a_sub_agents_run_ends_with_its_parent() -> None:
    child = run("c", parent_run_id="p")
    assert outcomes(child, run("p", started_at=5)) == {"p": "interrupted", "c": "interrupted"}
    assert outcomes(child, run("p", started_at=5, cancel_requested=True)) == {"p": "cancelled", "c": "cancelled"}
    assert outcomes(child) == {"c": "interrupted"}


def test_requeued_runs_keep_their_order() -> None:
    decided = plan_recovery([run("a", started_at=5), run("b"), run("c", cancel_requested=True), run("d")], {})
    assert [item.run_id for item in decided.requeued] == ["b", "d"]


async def crashed_harness(ledger: MemoryLedger) -> tuple[Harness, GatedTool]:
    """Return a harness that stops in the middle of a tool, with one prompt folded, one waiting and one cancelled."""
    first, second = GatedTool("first"), GatedTool("second")
    first.gate.open()
    model = ScriptedModel([Step((Say("Let me see."), Call("first"))), Step((Say("Now this."), Call("second")))])
    harness = await Harness.open(model, ledger=ledger, tools=[first, second])
    await harness.prompt("one", "r1")
    await first.gate.reached.wait()
    await harness.prompt("steer", "r2", delivery="steer")
    await second.gate.reached.wait()
    await harness.prompt("three", "r3")
    await harness.prompt("four", "r4")
    await harness.workspace.inputs.cancel_run(RunId("r4"))
    return harness, second


async def test_a_crash_ends_started_runs_and_requeues_waiting_ones() -> None:
    """R9: no tool is run again, the conversation is repaired, the waiting prompt runs; R2: one end each."""
    ledger = MemoryLedger()
    harness, tool = await crashed_harness(ledger)
    again = await Harness.open(ScriptedModel(echo), ledger=ledger, tools=[tool], ids="later")
    await again.workspace.engine.wait_until_idle(harness.session)
    ended = {name: (await again.run(name)).outcome for name in ("r1", "r2", "r3", "r4")}
    assert ended == {"r1": "interrupted", "r2": "interrupted", "r3": "completed", "r4": "cancelled"}
    assert tool.started == 1
    assert again.end_of("r2").folded_into == "r1"
    assert again.end_of("r1").text == "Now this."
    assert again.end_of("r1").error
    messages = await again.messages(harness.session)
    result = next(item for message in messages for item in message.tool_results if item.name == "second")
    assert result.is_error
    assert "may have had effects" in result.content
    finish = next(message.finish for message in messages if message.id == again.end_of("r1").message_id)
    assert finish is not None
    assert (finish.reason, finish.message) == ("error", "Interrupted")
    again.session = harness.session
    await again.assert_valid()
    await harness.close()


async def test_prompts_that_waited_keep_their_delivery_after_a_crash() -> None:
    ledger = MemoryLedger()
    harness, _ = await busy_harness(ledger)
    await harness.prompt("two", "r2", delivery="queue")
    await harness.prompt("three", "r3", delivery="queue")
    await harness.prompt("four", "r4", delivery="steer")
    again = await Harness.open(ScriptedModel(echo), ledger=ledger, ids="later")
    await again.workspace.engine.wait_until_idle(harness.session)
    assert {end.run_id: end.folded_into for end in again.ends()} == {"r1": "", "r2": "", "r3": "", "r4": "r2"}
    await harness.close()


@pytest.mark.parametrize("resume", [True, False])
async def test_hooks_are_notified_of_the_ends_of_a_recovery(resume: bool) -> None:
    """Without `resume`, prompts that had not begun stay stored for a later server."""

    class Hooks(NoHooks):
        def after_run(self, end: RunComplete) -> None:
            seen.append((end.run_id, end.outcome))

    seen: list[tuple[str, str]] = []
    ledger = MemoryLedger()
    harness, _ = await crashed_harness(ledger)
    record = await ledger.open_workspace("/project")
    services = FixedServices(ledger, FixedModels(ScriptedModel(echo)), FixedTools(), hooks=Hooks())
    workspace = Workspace(record, services, WorkspaceEvents(record, ledger))
    await workspace.recover(resume=resume)
    await workspace.engine.wait_until_idle(harness.session)
    assert seen == [("r1", "interrupted"), ("r2", "interrupted"), *([("r3", "completed")] if resume else [])]
    assert [run.run_id for run in await ledger.open_runs(record.id)] == ([] if resume else ["r3"])
    await workspace.close()
    await harness.close()


async def test_recovering_twice_changes_nothing() -> None:
    ledger = MemoryLedger()
    harness, tool = await crashed_harness(ledger)
    held = GatedModel(ScriptedModel(echo))
    held.before.shut()
    second = await Harness.open(held, ledger=ledger, tools=[tool], ids="second")
    await held.before.reached.wait()
    published = {end.run_id for end in second.ends()}
    # It is killed again, now with r3 started, and restarted twice more.
    third = await Harness.open(ScriptedModel(echo), ledger=ledger, ids="third")
    await third.workspace.engine.wait_until_idle(harness.session)
    fourth = await Harness.open(ScriptedModel(echo), ledger=ledger, ids="fourth")
    await fourth.workspace.engine.wait_until_idle(harness.session)
    assert published == {"r1", "r2"}
    assert [end.run_id for end in third.ends()] == ["r3"]
    assert fourth.ends() == []
    assert fourth.workspace.recovered.ends == ()
    for old in (harness, second, third):
        await old.close()


async def test_writes_of_a_previous_owner_are_refused() -> None:
    """Epochs: the last server that opened the workspace owns it; the store refuses writes of earlier owners."""
    ledger = MemoryLedger()
    harness, tool = await crashed_harness(ledger)
    again = await Harness.open(ScriptedModel(echo), ledger=ledger, tools=[tool], ids="later")
    await again.workspace.engine.wait_until_idle(harness.session)
    before = list(await again.messages(harness.session))
    tool.gate.open()
    await harness.wait_until_idle()
    assert harness.ends() == [] or {end.run_id for end in harness.ends()} == {"r4"}
    assert list(await again.messages(harness.session)) == before
    await harness.close()


async def test_numbers_are_never_used_twice() -> None:
    """After an unclean end the numbering jumps; after a clean one it continues."""
    ledger = MemoryLedger()
    harness = await Harness.open(ScriptedModel(echo), ledger=ledger)
    newest = harness.workspace.bus.newest
    again = await Harness.open(ScriptedModel(echo), ledger=ledger, ids="later")
    assert again.workspace.record.newest == newest + 10_000
    await again.close()
    third = await Harness.open(ScriptedModel(echo), ledger=ledger, ids="third")
    assert third.workspace.record.newest == again.workspace.bus.newest


async def test_interrupt_is_not_repeated_after_a_crash() -> None:
    """The prompt waits like the others: its cancel has already happened."""
    ledger = MemoryLedger()
    working, cleaning = Gate(), Gate()

    async def slow_to_stop(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
        try:
            await working()
        finally:
            await cleaning()
        return ToolOutcome("done")

    model = ScriptedModel([Step((Call("slow"),))])
    harness = await Harness.open(model, ledger=ledger, tools=[SimpleTool("slow", slow_to_stop)])
    await harness.prompt("one", "r1")
    await working.reached.wait()
    await harness.prompt("two", "r2", delivery="interrupt")
    await cleaning.reached.wait()
    await harness.prompt("three", "r3")
    await harness.workspace.inputs.move(RunId("r3"), 0)
    again = await Harness.open(ScriptedModel(echo), ledger=ledger, ids="later")
    await again.workspace.engine.wait_until_idle(harness.session)
    ended = [(end.run_id, end.outcome) for end in again.ends()]
    assert ended == [("r1", "cancelled"), ("r3", "completed"), ("r2", "completed")]
    cleaning.open()
    await harness.close()
