"""Every field of a prompt, an answer and a notice reaches the place where it takes effect."""

import asyncio
from itertools import pairwise
from typing import Any

import msgspec
import pytest

from engine.helpers import PLAIN, fixed_tool, sleep_virtual, texts_of
from holdfast.domain.approvals import Question, QuestionAnswer, Verdict
from holdfast.domain.errors import ProviderError
from holdfast.domain.events import (
    AgentEvent,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
)
from holdfast.domain.ids import RunId, SessionId, ToolCallId
from holdfast.domain.messages import ShellCommand
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.runs import Attachment, AttachmentInfo, Prompt, PromptExpansion
from holdfast.domain.tools import Permit, QuestionBatch, ToolContext, ToolOutcome
from holdfast.engine.inputs import body_hash
from holdfast.engine.retries import RetryPolicy
from holdfast.engine.settings import EngineSettings
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step
from holdfast.testing.gates import SimpleTool, start, until
from holdfast.testing.harness import FixedModels, Harness
from holdfast.testing.seeded_loop import in_virtual_time

FILE = Attachment(b"12345", "/tmp/a.txt", "a.txt", "text/plain")

PROMPTS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "session_id": ({}, {"session_id": "id-1"}),
    "prompt": ({"prompt": "other words"}, {"prompt": "other words"}),
    "attachments": ({"attachments": (FILE,)}, {"attachments": (AttachmentInfo("a.txt", "text/plain", 5),)}),
    "run_id": ({"run_id": RunId("r9")}, {"run_id": "r9", "delivery": "queue", "interactive": False}),
    "delivery": ({"delivery": "interrupt"}, {"delivery": "interrupt"}),
    "client_id": ({"client_id": "me"}, {"client_id": "me"}),
    "interactive": ({"interactive": False}, {"interactive": False}),
    "kind": ({"kind": "summary", "prompt": ""}, {"kind": "summary", "prompt": ""}),
    "parent_run_id": ({"parent_run_id": RunId("p")}, {"parent_run_id": "p"}),
    "yolo": ({"yolo": True}, {"yolo": True}),
    "require_model": ({"require_model": True}, {"require_model": True}),
    "brief": ({"brief": PromptExpansion("meant", "fix", "small", ("rule",))}, {}),
}
SMALLEST = {
    "session_id": "id-1",
    "prompt": "go",
    "attachments": (),
    "delivery": "steer",
    "client_id": "",
    "interactive": True,
    "kind": "prompt",
    "parent_run_id": "",
    "yolo": False,
    "require_model": False,
}


def test_every_field_of_a_prompt_has_a_row() -> None:
    assert set(PROMPTS) == set(Prompt.__struct_fields__)


@pytest.mark.parametrize("field", PROMPTS)
async def test_a_field_of_a_prompt_reaches_the_stored_run_and_changes_no_other(field: str) -> None:
    given, expected = PROMPTS[field]
    harness = await Harness.open(ScriptedModel(lambda _: Step((Say("done"),)), info=PLAIN))
    fields: dict[str, object] = {"session_id": harness.session, "prompt": "go"} | given
    run = await harness.workspace.inputs.submit(Prompt(**fields))  # type: ignore[arg-type]
    await harness.wait_until_idle()
    record = await harness.ledger.run(harness.workspace.record.id, run.run_id)
    assert record is not None
    for stored in (run, record.run):
        assert {name: getattr(stored, name) for name in SMALLEST} == SMALLEST | {
            name: value for name, value in expected.items() if name in SMALLEST
        }
    assert run.run_id == expected.get("run_id", run.run_id)
    assert record.attachments == given.get("attachments", ())
    assert record.brief == given.get("brief")
    await harness.close()


SAME: dict[str, object] = {
    "session_id": SessionId("other"),
    "prompt": "other",
    "attachments": (FILE,),
    "delivery": "queue",
    "kind": "summary",
}


def test_the_fields_that_identify_a_request() -> None:
    """The body counts; the client and its way of following the run do not."""
    plain = Prompt(SessionId("s"), "go", delivery="steer")
    for name, (given, _) in PROMPTS.items():
        value = SAME.get(name, given.get(name, plain.session_id))
        other = msgspec.structs.replace(plain, **{name: value})
        assert (body_hash(other) != body_hash(plain)) == (name in SAME), name
    files = [FILE, *(msgspec.structs.replace(FILE, **change) for change in ({"content": b"x"}, {"mime_type": "a/b"}))]
    files.append(msgspec.structs.replace(FILE, file_path="/b"))
    assert len({body_hash(msgspec.structs.replace(plain, attachments=(item,))) for item in files}) == 4
    assert body_hash(Prompt(SessionId("s"), "go")) == body_hash(plain), "the delivery that it has by itself"


@pytest.mark.parametrize("fallback", ["", "No key is set."])
@pytest.mark.parametrize("required", [True, False])
async def test_a_run_that_requires_a_model_is_not_answered_by_a_script(fallback: str, *, required: bool) -> None:
    info = msgspec.structs.replace(PLAIN, fallback_reason=fallback)
    model = ScriptedModel(lambda _: Step((Say("scripted"),)), info=info)
    harness = await Harness.open(model)
    prompt = Prompt(harness.session, "go", run_id=RunId("r1"), require_model=required)
    await harness.workspace.inputs.submit(prompt)
    await harness.wait_until_idle()
    end = harness.end_of("r1")
    if fallback and required:
        assert (end.outcome, end.error, model.requests) == ("failed", fallback, [])
        assert not end.model_unreachable
    else:
        assert (end.outcome, end.text) == ("completed", "scripted")
    await harness.close()


@pytest.mark.parametrize(
    ("trouble", "unreachable"),
    [("connection", True), ("not_running", True), ("loading", True), ("busy", False), ("refused", False)],
)
@pytest.mark.parametrize("step", [1, 2])
def test_unreachable_model_is_named_only_for_a_first_request(trouble: str, step: int, *, unreachable: bool) -> None:
    async def scenario() -> None:
        fail = Step((Fail(trouble=trouble),))  # type: ignore[arg-type]
        model = ScriptedModel([*[Step((Call("tool"),))] * (step - 1), fail, fail], info=PLAIN)
        settings = EngineSettings(titles=False, retries=RetryPolicy(most=0, loading_timeout=0.0))
        harness = await Harness.open(model, tools=[fixed_tool("tool")], settings=settings)
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        end = harness.end_of("r1")
        assert end.outcome == "failed"
        assert end.model_unreachable == (unreachable and step == 1)
        assert (await harness.run("r1")).model_unreachable == end.model_unreachable
        finish = (await harness.messages())[-1].finish
        assert finish is not None
        assert (finish.reason, finish.message, finish.details) == ("error", "Scripted failure", end.error)
        await harness.close()

    in_virtual_time(scenario)


def test_the_ids_of_calls_are_never_used_twice_in_a_session() -> None:
    """Some models restart their numbering in every turn; results are matched by id."""

    async def scenario() -> None:
        def script(request: ModelRequest) -> Step:
            call = Call("tool", id=ToolCallId("call_1"))
            return Step((call, call)) if request.messages[-1].role == "user" else Step((Say("done"),))

        harness = await Harness.open(ScriptedModel(script, info=PLAIN), tools=[fixed_tool("tool")])
        for number in (1, 2, 3):
            await harness.prompt("go", f"r{number}")
            await harness.wait_until_idle()
        calls = [call.id for message in await harness.messages() for call in message.tool_calls]
        results = [result.tool_call_id for message in await harness.messages() for result in message.tool_results]
        assert len(set(calls)) == 6
        assert results == calls
        await harness.close()

    in_virtual_time(scenario)


# Requests and their answers.


async def open_harness() -> Harness:
    async def ask(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        await context.permit(Permit("bash", "execute", "/there", "run it", {"command": "make"}, "make"))
        return ToolOutcome("ran")

    async def ask_questions(context: ToolContext, _: dict[str, object]) -> ToolOutcome:
        questions = (Question("", "yes_no", "Really?"), Question("", "yes_no", "And this?"))
        answers = await context.ask_questions(QuestionBatch(questions, "Sure", "About this"))
        return ToolOutcome(str([item.yes for item in answers or ()]))

    tools = [SimpleTool("bash", ask, is_parallel=True), SimpleTool("ask_questions", ask_questions, is_parallel=True)]
    steps = [
        Step((Call("bash", id=ToolCallId("c1")), Call("ask_questions", id=ToolCallId("c2")))),
        Step((Say("done"),)),
    ]
    harness = await Harness.open(ScriptedModel(steps, info=PLAIN), tools=tools)
    harness.workspace.approvals.judge = lambda _: Verdict("ask", "A rule says so.", saves=("Bash(make)",))
    prompt = Prompt(harness.session, "go", run_id=RunId("r1"), interactive=True)
    await harness.workspace.inputs.submit(prompt)
    asks = harness.workspace.approvals
    await until(lambda: asks.permissions and asks.questions)
    return harness


def payloads_of(harness: Harness, kind: type) -> list[dict[str, object]]:
    """Return the payloads of all events of a kind."""
    events: list[Any] = [event for _, event in harness.published.events if isinstance(event, kind)]
    return [msgspec.structs.asdict(event.change.object) for event in events]


async def test_a_request_contains_every_field() -> None:
    harness = await open_harness()
    (permission,) = payloads_of(harness, PermissionRequestEvent)
    assert {name: permission[name] for name in permission if name != "id"} == {
        "session_id": harness.session,
        "tool_call_id": "c1",
        "tool_name": "bash",
        "description": "run it",
        "action": "execute",
        "params": {"command": "make"},
        "path": "/there",
        "run_id": "r1",
        "why": "A rule says so.",
        "rules": ("Bash(make)",),
        "insists": False,
        "continues": False,
    }
    (batch,) = payloads_of(harness, QuestionRequestEvent)
    assert (batch["session_id"], batch["tool_call_id"], batch["run_id"]) == (harness.session, "c2", "r1")
    assert "Sure" in batch.values()
    assert "About this" in batch.values()
    questions = harness.workspace.approvals.questions[0].questions
    assert [item.question for item in questions] == ["Really?", "And this?"]
    assert len({item.id for item in questions}) == 2
    await harness.cancel()
    await harness.close()


@pytest.mark.parametrize("action", ["allow", "allow_session", "allow_always", "deny"])
async def test_a_notification_names_client_and_action(action: str) -> None:
    harness = await open_harness()
    asks = harness.workspace.approvals
    (request,) = asks.permissions
    assert await asks.grant(request.id, action, reason="so", by="me", via="terminal")  # type: ignore[arg-type]
    assert not await asks.grant(request.id, "deny", by="another"), "the first answer counts"
    pending, answer = payloads_of(harness, PermissionNotificationEvent)
    assert not pending["granted"]
    assert not pending["denied"]
    expected = {"granted": action != "deny", "denied": action == "deny", "action": action, "withdrawn": False}
    expected |= {"id": request.id, "tool_call_id": "c1", "session_id": harness.session, "via": "terminal"}
    assert {name: answer[name] for name in expected} == expected
    assert "me" in answer.values()
    (batch,) = asks.questions
    answers = [QuestionAnswer(batch.questions[1].id, yes=False), QuestionAnswer(batch.questions[0].id, yes=True)]
    assert await asks.answer("", answers, by="you", via="page")
    (closed,) = payloads_of(harness, QuestionNotificationEvent)
    expected = {
        "batch_id": batch.id,
        "session_id": harness.session,
        "cancelled": False,
        "withdrawn": False,
        "via": "page",
    }
    assert {name: closed[name] for name in expected} == expected
    assert "you" in closed.values()
    await harness.wait_until_idle()
    results = [result.content for message in await harness.messages() for result in message.tool_results]
    assert "[True, False]" in results, "in the order of the questions"
    await harness.close()


async def test_a_dismissal_names_the_client() -> None:
    harness = await open_harness()
    asks = harness.workspace.approvals
    (batch,) = asks.questions
    assert not await asks.dismiss("another")
    assert await asks.dismiss(batch.id, by="me", via="editor")
    (closed,) = payloads_of(harness, QuestionNotificationEvent)
    assert (closed["cancelled"], closed["withdrawn"], closed["via"]) == (True, False, "editor")
    assert "me" in closed.values()
    await harness.cancel()
    await harness.close()


# Notices of a run.


def test_notices_name_their_run() -> None:
    """Retries, renewed credentials, a model other than the selected one, failures."""

    async def scenario() -> None:
        async def model_named(name: str) -> ScriptedModel:
            raise ProviderError(f"{name} is gone.")

        steps = [Step((Fail(trouble="busy"),)), Step((Fail(trouble="credentials"),))]
        harness = await Harness.open(ScriptedModel(steps, info=PLAIN), named_model=model_named)
        prompt = Prompt(harness.session, "go", run_id=RunId("r1"), brief=PromptExpansion("go", model="a/b"))
        await harness.workspace.inputs.submit(prompt)
        await harness.wait_until_idle()
        notices = [event.change.object for _, event in harness.published.events if isinstance(event, AgentEvent)]
        kinds = [notice.type for notice in notices]
        assert kinds == ["fallback", "retrying", "re_authenticate", "error", "agent_finished"]
        assert {(notice.run_id, notice.session_id) for notice in notices[:-1]} == {("r1", harness.session)}
        assert (notices[-1].session_id, notices[-1].session_title) == (harness.session, "Test")
        assert all(notice.error for notice in notices[:-1])
        assert "a/b is gone. test/plain is used instead." in notices[0].error
        assert "in 1 s (1 of 5)" in notices[1].error
        await harness.close()

    in_virtual_time(scenario)


def test_new_credentials_restart_the_count_and_are_fetched_once_per_response() -> None:
    async def scenario() -> None:
        request_times: list[float] = []
        loop = asyncio.get_running_loop()
        troubles = ["busy", "credentials", "busy", "busy", ""]

        def script(_: ModelRequest) -> Step:
            request_times.append(round(loop.time(), 3))
            trouble = troubles.pop(0)
            return Step((Fail(trouble=trouble),) if trouble else (Say("done"),))  # type: ignore[arg-type]

        old, new = ScriptedModel(script, info=PLAIN), ScriptedModel(script, info=PLAIN)
        settings = EngineSettings(titles=False, retries=RetryPolicy(most=2))
        harness = await Harness.open(FixedModels(old, renewed=new), settings=settings)
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        assert (len(old.requests), len(new.requests)) == (2, 3)
        assert [after - before for before, after in pairwise(request_times)] == [1, 0, 1, 2]
        assert harness.end_of("r1").outcome == "completed"
        troubles[:] = ["credentials", "credentials"]
        await harness.prompt("go", "r2")
        await harness.wait_until_idle()
        assert troubles == []
        assert harness.end_of("r2").outcome == "failed"
        assert [notice.type for notice in harness.notices()].count("re_authenticate") == 0
        await harness.close()

    in_virtual_time(scenario)


def test_a_generated_title_does_not_replace_a_manual_one() -> None:
    async def scenario() -> None:
        slow = ScriptedModel(lambda _: Step((Say("A late title"),)), pause=lambda: 5.0)
        models = FixedModels(ScriptedModel(lambda _: Step((Say("done"),)), info=PLAIN), slow)
        harness = await Harness.open(models, settings=EngineSettings(titles=True))
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        session = await harness.workspace.sessions.rename(harness.session, "Mine")
        assert (session.id, session.title) == (harness.session, "Mine")
        await sleep_virtual(100)
        stored = await harness.ledger.session(harness.workspace.record.id, harness.session)
        assert stored is not None
        assert stored.title == "Mine"
        await harness.close()

    in_virtual_time(scenario)


def test_a_shell_command_of_the_user_is_sent_with_the_next_step() -> None:
    """Or with the next run, if none is active."""

    async def scenario() -> None:
        model = ScriptedModel(lambda _: Step((Say("done"),)), info=PLAIN)
        harness = await Harness.open(model)
        sessions = harness.workspace.sessions
        await sessions.note_shell(harness.session, ShellCommand("make", "made", 2))
        await sessions.note_shell(SessionId("nowhere"), ShellCommand("ls", "", 0))
        await harness.prompt("go", "r1")
        await harness.wait_until_idle()
        assert texts_of(model.requests[0].messages, "user") == ["$ make\nmade\n(exit code 2)", "go"]
        assert len(await harness.messages()) == 3
        await harness.close()

    in_virtual_time(scenario)


def test_runs_name_the_client_that_cancelled_them() -> None:
    async def scenario() -> None:
        model = ScriptedModel(lambda _: Step((Say("many words " * 9),)), info=PLAIN, pause=lambda: 1.0)
        harness = await Harness.open(model)
        inputs = harness.workspace.inputs
        stops = {
            "a": lambda: inputs.cancel(harness.session, by="ann"),
            "b": lambda: inputs.cancel_run(RunId("b"), by="ben"),
            "c": lambda: inputs.cancel_run(RunId("c"), by="cid"),
        }
        for name, stop in stops.items():
            await harness.prompt("go", name)
            await sleep_virtual(2)
            await stop()  # type: ignore[no-untyped-call]
            await harness.wait_until_idle()
        await harness.prompt("go", "d")
        await harness.prompt("wait", "e")
        await inputs.clear(harness.session, by="eve")
        await sleep_virtual(1)
        runs = {name: await harness.run(name) for name in "abcde"}
        by = {name: run.cancelled_by for name, run in runs.items()}
        assert by == {"a": "ann", "b": "ben", "c": "cid", "d": "", "e": "eve"}
        await start(inputs.cancel(harness.session))
        await harness.close()

    in_virtual_time(scenario)
