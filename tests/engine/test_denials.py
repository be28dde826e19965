"""Behaviour after a refused or interrupted step: summaries that do not fit, sessions being deleted, rules, titles."""

import asyncio

import pytest

from engine.helpers import PLAIN, fixed_tool, results_of, sleep_virtual, texts_of
from holdfast.domain.approvals import Verdict
from holdfast.domain.errors import NotWaiting, StorageUnavailable, UnknownSession
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.messages import text_of
from holdfast.domain.model_requests import ModelInfo, ModelRequest
from holdfast.domain.runs import Prompt
from holdfast.domain.sessions import SessionPatch, Todo
from holdfast.domain.store_operations import PatchSession, Redeliver, Reorder
from holdfast.domain.tools import TOOLS, TOOLS_WITHOUT_REQUESTS, Permit, SubagentTask, ToolContext, ToolOutcome
from holdfast.engine.run_context import SubagentType
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step
from holdfast.testing.gates import Gate, GatedLedger, SimpleTool, start, until
from holdfast.testing.harness import FixedModels, FixedTools, Harness
from holdfast.testing.seeded_loop import in_virtual_time

DONE = Step((Say("done"),))
TOO_LONG = Step((Say("half a summary"), Fail(trouble="overflow")))

# Summaries.


async def harness_with_turns(model: ScriptedModel, turns: int = 8) -> Harness:
    """Return a harness whose session has a conversation."""
    harness = await Harness.open(model)
    for number in range(turns):
        await harness.prompt(f"prompt {number} " + "x" * 3_000, f"r{number}")
        await harness.wait_until_idle()
    return harness


@pytest.mark.parametrize("failures", [0, 1, 2])
def test_summary_request_that_does_not_fit_is_repeated_with_less(failures: int) -> None:
    """The partial output of the first attempt is withdrawn; the last attempt is stored."""

    async def scenario() -> None:
        steps = [DONE] * 8 + [TOO_LONG] * failures + [Step((Say("in short"),))]
        model = ScriptedModel(steps, info=PLAIN)
        harness = await harness_with_turns(model)
        await harness.workspace.inputs.summarize(harness.session, "me")
        await harness.wait_until_idle()
        sizes = [sum(map(len, texts_of(request.messages, "user"))) for request in model.requests[8:]]
        assert sizes == sorted(sizes, reverse=True)
        assert len(set(sizes)) == failures + 1
        (summary,) = [item for item in await harness.messages() if item.is_summary_message]
        assert text_of(summary) == "in short"
        run = (await harness.ledger.runs(harness.workspace.record.id, None, 1, 0))[0]
        assert (run.kind, run.client_id, run.outcome, run.delivery) == ("summary", "me", "completed", "reject")
        await harness.close()

    in_virtual_time(scenario)


@pytest.mark.parametrize(("step", "requests"), [(Step((Fail(trouble="other"),)), 1), (Step((Say(" "),)), 1)])
def test_summary_that_fails_for_another_reason_is_not_repeated(step: Step, requests: int) -> None:
    async def scenario() -> None:
        model = ScriptedModel([DONE] * 8 + [step] * 9, info=PLAIN)
        harness = await harness_with_turns(model)
        await harness.workspace.inputs.summarize(harness.session)
        await harness.wait_until_idle()
        assert len(model.requests) == 8 + requests
        session = await harness.ledger.session(harness.workspace.record.id, harness.session)
        assert session is not None
        assert session.summary_message_id == ""
        assert harness.ends()[-1].outcome == "failed"
        await harness.close()

    in_virtual_time(scenario)


@pytest.mark.parametrize("turns", [1, 8])
def test_conversation_that_cannot_be_shortened_further_fails(turns: int) -> None:
    """With the provider's error, and without many requests."""

    async def scenario() -> None:
        model = ScriptedModel(lambda request: TOO_LONG if not request.tools else DONE, info=PLAIN)
        model.requests = []
        harness = await Harness.open(model, tools=[fixed_tool("tool")])
        for number in range(turns):
            await harness.prompt(f"prompt {number} " + "x" * 3_000, f"r{number}")
            await harness.wait_until_idle()
        await harness.workspace.inputs.summarize(harness.session)
        await harness.wait_until_idle()
        assert harness.ends()[-1].outcome == "failed"
        assert 1 <= len(model.requests) - turns <= 5
        await harness.close()

    in_virtual_time(scenario)


@pytest.mark.parametrize("todos", [(), (Todo("mend it", "in_progress", "mending"), Todo("paint", "pending", ""))])
def test_a_summary_keeps_the_list_of_tasks(todos: tuple[Todo, ...]) -> None:
    async def scenario() -> None:
        model = ScriptedModel([DONE, Step((Say("in short"),))], info=PLAIN)
        harness = await harness_with_turns(model, 1)
        patch = SessionPatch(harness.session, 1, todos=todos)
        await harness.workspace.engine.recorder.put(PatchSession(patch))
        await harness.workspace.inputs.summarize(harness.session)
        await harness.wait_until_idle()
        requests = texts_of(model.requests[-1].messages, "user")[-1]
        assert ("to-do list" in requests) == bool(todos)
        assert all(f"[{todo.status}] {todo.content}" in requests for todo in todos)
        await harness.close()

    in_virtual_time(scenario)


def test_a_second_summary_begins_at_the_first() -> None:
    async def scenario() -> None:
        steps = [DONE, Step((Say("the first summary"),)), DONE, Step((Say("the second"),)), DONE]
        model = ScriptedModel(steps, info=PLAIN)
        harness = await harness_with_turns(model, 1)
        await harness.workspace.inputs.summarize(harness.session)
        await harness.wait_until_idle()
        await harness.prompt("between", "b")
        await harness.wait_until_idle()
        await harness.workspace.inputs.summarize(harness.session)
        await harness.wait_until_idle()
        await harness.prompt("after", "c")
        await harness.wait_until_idle()
        second, last = ("\n".join(texts_of(item.messages, "user")) for item in model.requests[3:])
        assert "the first summary" in second
        assert "between" in second
        assert "prompt 0" not in second
        assert last == "the second\nafter"
        await harness.close()

    in_virtual_time(scenario)


# Sessions and queues.


def test_a_session_that_is_being_deleted_accepts_nothing() -> None:
    """From the first moment; other sessions accept prompts, and so does this one if the deletion fails."""

    async def scenario() -> None:
        gate = Gate()

        async def clean_up(_: object) -> None:
            await gate()

        harness = await Harness.open(ScriptedModel(lambda _: DONE, info=PLAIN))
        other = (await harness.workspace.sessions.create()).id
        sessions = harness.workspace.sessions
        deleting = start(sessions.delete(harness.session, clean_up))
        await gate.reached.wait()
        with pytest.raises(UnknownSession, match="being deleted"):
            await harness.prompt("go", "r1")
        await harness.prompt("go", "r2", session=other)
        deleting.cancel()
        await asyncio.wait([deleting])
        await harness.prompt("go", "r3")
        await harness.wait_until_idle()
        assert harness.end_of("r3").outcome == "completed"
        gate.open()
        await sessions.delete(harness.session, clean_up)
        with pytest.raises(UnknownSession):
            await sessions.delete(harness.session)
        with pytest.raises(UnknownSession):
            await sessions.rename(harness.session, "x")
        await harness.close()

    in_virtual_time(scenario)


def test_session_is_deleted_with_its_descendants_only() -> None:
    async def scenario() -> None:
        cleaned: list[list[SessionId]] = []

        async def clean_up(family: object) -> None:
            cleaned.append(sorted(family))  # type: ignore[call-overload]

        harness = await Harness.open(ScriptedModel(lambda _: DONE, info=PLAIN))
        sessions = harness.workspace.sessions
        child = (await sessions.create(parent=harness.session)).id
        below = (await sessions.create(parent=child)).id
        other = (await sessions.create()).id
        niece = (await sessions.create(parent=other)).id
        await sessions.delete(harness.session, clean_up)
        assert cleaned == [sorted([harness.session, child, below])] * 2, "before and after"
        left = (await harness.ledger.snapshot(harness.workspace.record.id, None)).sessions
        assert {item.id for item in left} == {other, niece}
        await harness.close()

    in_virtual_time(scenario)


@pytest.mark.parametrize("change", ["move", "redeliver"])
@pytest.mark.parametrize("state", ["running", "ended", "folded", "unstorable"])
def test_only_a_waiting_run_can_be_rearranged(state: str, change: str) -> None:
    """Neither lane nor store changes if the run does not wait or the change cannot be stored."""

    async def scenario() -> None:
        ledger, gate = GatedLedger(), Gate()

        async def act(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
            await gate()
            return ToolOutcome("done")

        def script(request: ModelRequest) -> Step:
            return Step((Call("tool"),)) if request.messages[-1].role == "user" else DONE

        harness = await Harness.open(ScriptedModel(script, info=PLAIN), tools=[SimpleTool("tool", act)], ledger=ledger)
        inputs = harness.workspace.inputs
        if state == "ended":
            gate.open()
            await harness.prompt("go", "r1")
            await harness.wait_until_idle()
            gate.shut()
            await harness.prompt("go", "r0")
        else:
            await harness.prompt("go", "r1")
        await until(gate.reached.is_set)
        for name in ("a", "b", "c"):
            await harness.prompt("wait", name, delivery="queue")
        wanted = RunId("r1")
        if state == "folded":
            await harness.prompt("join", "f", delivery="steer")
            wanted = RunId("f")
            gate.open()
            await until(lambda: "f" in harness.workspace.engine.lane(harness.session).folded)
            gate.shut()
        if state == "unstorable":
            wanted = RunId("c")
            ledger.refused = (Reorder, Redeliver)
        before = harness.workspace.engine.lane(harness.session).queue
        with pytest.raises(StorageUnavailable if state == "unstorable" else NotWaiting):
            await (inputs.move(wanted, 0) if change == "move" else inputs.redeliver(wanted, "steer"))
        assert harness.workspace.engine.lane(harness.session).queue == before
        ledger.refused = ()
        await harness.cancel()
        await harness.wait_until_idle()
        await harness.close()

    in_virtual_time(scenario)


def test_clear_keeps_the_active_turn_and_its_folded_prompts() -> None:
    async def scenario() -> None:
        gate = Gate()

        async def act(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
            await gate()
            return ToolOutcome("done")

        steps = [Step((Call("tool"),)), Step((Call("tool", '{"n":2}'),)), DONE]
        tool = SimpleTool("tool", act)
        harness = await Harness.open(ScriptedModel(steps, info=PLAIN), tools=[tool])
        await harness.prompt("go", "r1")
        await gate.reached.wait()
        await harness.prompt("join", "f", delivery="steer")
        gate.open()
        await until(lambda: "f" in harness.workspace.engine.lane(harness.session).folded)
        gate.shut()
        await until(lambda: tool.started == 2)
        await harness.prompt("wait", "q", delivery="queue")
        assert await harness.workspace.inputs.clear(harness.session) == ("q",)
        gate.open()
        await harness.wait_until_idle()
        assert {end.run_id: end.outcome for end in harness.ends()} == {
            "r1": "completed",
            "f": "completed",
            "q": "cancelled",
        }
        assert await harness.workspace.inputs.clear(harness.session) == ()
        await harness.close()

    in_virtual_time(scenario)


# Tools.


@pytest.mark.parametrize("name", [*sorted(TOOLS_WITHOUT_REQUESTS), "tool"])
@pytest.mark.parametrize("decision", ["allow", "deny"])
async def test_rules_are_consulted_for_tools_that_never_ask(name: str, decision: str) -> None:
    seen: list[Permit] = []

    def judge(permit: Permit) -> Verdict:
        seen.append(permit)
        return Verdict(decision, "A rule.")  # type: ignore[arg-type]

    tool = fixed_tool(name)
    harness = await Harness.open(ScriptedModel([Step((Call(name, '{"n":3}'),)), DONE], info=PLAIN), tools=[tool])
    harness.workspace.approvals.judge = judge
    # Questions are offered only in interactive use.
    prompt = Prompt(harness.session, "go", run_id=RunId("r1"), interactive=True)
    await harness.workspace.inputs.submit(prompt)
    await harness.wait_until_idle()
    is_asked = name in TOOLS_WITHOUT_REQUESTS
    assert tool.started == (0 if is_asked and decision == "deny" else 1)
    if is_asked:
        (permit,) = seen
        assert (permit.tool, permit.action, permit.params) == (name, TOOLS[name][0], {"n": 3})
        assert permit.is_agreed
    else:
        assert seen == []
    (result,) = results_of(await harness.messages())
    assert ("A rule." in result.content) == (is_asked and decision == "deny")
    await harness.close()


async def test_every_field_of_a_tool_result_is_stored() -> None:
    outcome = ToolOutcome("text", is_error=True, metadata='{"a":1}', data="aGk=", mime_type="image/png")

    async def act(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
        return outcome

    model = ScriptedModel([Step((Call("tool"),)), DONE], info=PLAIN)
    harness = await Harness.open(model, tools=[SimpleTool("tool", act)])
    await harness.prompt("go", "r1")
    await harness.wait_until_idle()
    (result,) = results_of(await harness.messages())
    stored = {name: getattr(result, name) for name in ("content", "is_error", "metadata", "data", "mime_type", "name")}
    assert stored == {name: getattr(outcome, name) for name in stored if name != "name"} | {"name": "tool"}
    await harness.close()


@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_calls_of_an_answer_that_was_cut_off_are_not_run(finish: str) -> None:
    tool = fixed_tool("tool")
    step = Step((Call("tool"), Call("tool", '{"n":1}')), finish=finish)  # type: ignore[arg-type]
    harness = await Harness.open(ScriptedModel([step], info=PLAIN), tools=[tool])
    await harness.prompt("go", "r1")
    await harness.wait_until_idle()
    assert tool.started == 0
    results = results_of(await harness.messages())
    assert len(results) == 2
    assert all(item.is_error and "Not run" in item.content and "cut off" in item.content for item in results)
    assert harness.end_of("r1").outcome == "completed"
    await harness.assert_valid()
    await harness.close()


async def test_calls_after_one_that_stops_the_turn_are_not_run() -> None:
    async def act(_: ToolContext, __: dict[str, object]) -> ToolOutcome:
        return ToolOutcome("stop", stops_turn=True)

    after = fixed_tool("after")
    model = ScriptedModel([Step((Call("stop"), Call("after"), Call("after", '{"n":1}')))], info=PLAIN)
    harness = await Harness.open(model, tools=[SimpleTool("stop", act), after])
    await harness.prompt("go", "r1")
    await harness.wait_until_idle()
    assert after.started == 0
    contents = [item.content for item in results_of(await harness.messages())]
    assert contents[0] == "stop"
    assert all("Not run: the turn was stopped" in content for content in contents[1:])
    assert len(model.requests) == 1
    await harness.assert_valid()
    await harness.close()


# Titles.


def test_a_title_that_cannot_be_stored_is_ignored() -> None:
    async def scenario() -> None:
        ledger = GatedLedger()
        slow = ScriptedModel(lambda _: Step((Say("A title"),)), pause=lambda: 5.0)
        models = FixedModels(ScriptedModel(lambda _: DONE, info=PLAIN), slow)
        harness = await Harness.open(models, settings=EngineSettings(titles=True), ledger=ledger)
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        ledger.refused = (PatchSession,)
        await sleep_virtual(100)
        ledger.refused = ()
        assert harness.end_of("r1").outcome == "completed"
        await harness.prompt("go", "r2")
        await harness.wait_until_idle()
        await harness.close()

    in_virtual_time(scenario)


def test_sub_agents_get_no_titles() -> None:
    async def scenario() -> None:
        async def send(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
            return ToolOutcome(await context.run_subagent(SubagentTask("look", "Its own title")))

        small = ScriptedModel(lambda _: Step((Say("A title"),)))
        large = ScriptedModel([Step((Call("agent"),)), DONE, DONE], info=ModelInfo("test", "m"))
        harness = await Harness.open(
            FixedModels(large, small), tools=[SimpleTool("agent", send)], settings=EngineSettings(titles=True)
        )
        harness.workspace.engine.run_context.subagents.add("task", SubagentType(FixedTools()))
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        await sleep_virtual(10)
        sessions = (await harness.ledger.snapshot(harness.workspace.record.id, None)).sessions
        assert {item.title for item in sessions} == {"A title", "Its own title"}
        assert len(small.requests) == 1
        await harness.close()

    in_virtual_time(scenario)
