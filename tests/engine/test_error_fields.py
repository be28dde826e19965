"""Each field of the errors and notices that a user sees: a table of all ways a run fails and a request closes."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from engine.helpers import PLAIN, call_part, fixed_tool, message, sleep_virtual, text_part
from holdfast.domain.approvals import (
    PermissionNotification,
    Question,
    QuestionAnswer,
    QuestionNotification,
    QuestionRequest,
    Verdict,
)
from holdfast.domain.errors import StorageUnavailable
from holdfast.domain.events import AgentNotice, PermissionNotificationEvent, QuestionNotificationEvent
from holdfast.domain.ids import RunId, SessionId, ToolCallId
from holdfast.domain.messages import Binary, BinaryPart, Message, ToolResult, ToolResultPart
from holdfast.domain.model_requests import ModelInfo
from holdfast.domain.runs import Prompt
from holdfast.domain.store_operations import EndRun
from holdfast.domain.tools import Permit, QuestionBatch
from holdfast.domain.usage import Usage
from holdfast.engine import compaction
from holdfast.engine.approvals import Approvals
from holdfast.engine.history import conversation, shortened
from holdfast.engine.settings import EngineSettings, Limits
from holdfast.providers.scripted_model import Call, Fail, Say, ScriptedModel, Step
from holdfast.testing.gates import GatedLedger, GatedModel, start, until
from holdfast.testing.harness import Harness
from holdfast.testing.seeded_loop import in_virtual_time

PERMIT = Permit("bash", "execute", "/project", "run", {"command": "make"}, "make")
BATCH = QuestionBatch((Question("", "yes_no", "?"),), "Sure?", "This cannot be undone.")
SHORT = EngineSettings(titles=False, retries=msgspec.structs.replace(EngineSettings().retries, most=0))
OVERFLOW = Step((Fail("too many tokens", trouble="overflow"),))
FULL = Step((Say("working"), Call("tool")), Usage(input_tokens=900, output_tokens=1))

FAILURES: dict[str, tuple[list[Step], dict[str, Any], str, str]] = {
    "no model": ([], {"fallback_reason": "No key is set."}, "No usable model", "No key is set."),
    "refused": ([Step((Fail("no", trouble="refused"),))], {}, "Scripted failure", "no"),
    "overflow": (
        [OVERFLOW],
        {},
        "Context overflow",
        "The conversation exceeds the context window of the model: too many tokens "
        "Shorten the prompt, start a new session, or choose a model with a larger context.",
    ),
    "empty summary": (
        [FULL, Step((Say(" "),))],
        {"context_window": 1_000},
        "Summary failed",
        "The model wrote an empty summary.",
    ),
    "long summary": (
        [FULL, OVERFLOW],
        {"context_window": 1_000},
        "Summary failed",
        "The conversation is too long even for its summary.",
    ),
    "cut off": (
        [Step((Say("wor"), Fail(hangs_up=True)))],
        {},
        "Answer cut off",
        "The provider's response ended before it was complete.",
    ),
    "limit": ([FULL] * 3, {}, "Error", "limit: the run made 2 steps, which is its limit."),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_error_of_a_failed_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps, facts, title, details = FAILURES[name]
    monkeypatch.setattr(compaction, "_MAX_CUTS", 1)
    model = ScriptedModel(steps, info=msgspec.structs.replace(PLAIN, **facts))
    settings = msgspec.structs.replace(SHORT, limits=Limits(steps=2))
    harness = await Harness.open(model, tools=[fixed_tool("tool", "x" * 20_000)], settings=settings)
    prompt = Prompt(harness.session, "go", run_id=RunId("r1"), require_model=True)
    await harness.workspace.inputs.submit(prompt)
    await harness.wait_until_idle()
    end = harness.end_of("r1")
    assert (end.outcome, end.error) == ("failed", details)
    finish = (await harness.messages())[-1].finish
    assert finish is not None
    assert (finish.reason, finish.message, finish.details) == ("error", title, details)
    await harness.close()


@pytest.mark.parametrize("act", [Fail("no"), Say("words")], ids=["fails", "is cancelled"])
async def test_a_summary_that_fails_adds_no_response(act: Fail | Say) -> None:
    model = GatedModel(ScriptedModel([Step((Say("done"),)), Step((act,))]))
    harness = await Harness.open(model)
    await harness.prompt("go", "r1")
    await harness.wait_until_idle()
    before = await harness.messages()
    model.before.shut()
    model.before.reached.clear()
    await harness.workspace.inputs.summarize(harness.session)
    await model.before.reached.wait()
    if isinstance(act, Say):
        await harness.cancel()
    model.before.open()
    await harness.wait_until_idle()
    assert harness.ends()[-1].outcome == ("cancelled" if isinstance(act, Say) else "failed")
    added = (await harness.messages())[len(before) :]
    assert all(message.is_summary_message for message in added)
    assert not isinstance(act, Say) or not added
    await harness.close()


def test_reason_of_a_storage_failure_is_published_once() -> None:
    async def main() -> None:
        ledger = GatedLedger()
        harness = await Harness.open(ScriptedModel([Step((Say("done"),))]), ledger=ledger)
        ledger.refused = (EndRun,)
        await harness.prompt("go", "r1")
        await until(lambda: harness.workspace.engine.storage_fails)
        await sleep_virtual(10)
        error = harness.workspace.engine.retries.error
        assert [notice for notice in harness.notices() if notice.type == "error"] == [
            AgentNotice("error", error=str(error))
        ]
        assert str(error)
        ledger.refused = ()
        await harness.wait_until_idle()

    in_virtual_time(main)


# Closed requests.


class Context:
    """Context of the call that makes the request."""

    def __init__(self, session: SessionId) -> None:
        self.session_id = session
        self.run_id = RunId("r1")
        self.tool_call_id = ToolCallId("call")


async def allow(asks: Approvals, _: asyncio.Task[object]) -> None:
    await asks.grant(asks.permissions[0].id, "allow", by="Ann", via="page")


async def allow_session(asks: Approvals, _: asyncio.Task[object]) -> None:
    await asks.grant(asks.permissions[0].id, "allow_session", by="Ann", via="page")


async def allow_always(asks: Approvals, _: asyncio.Task[object]) -> None:
    await asks.grant(asks.permissions[0].id, "allow_always", by="Ann", via="page")


async def deny(asks: Approvals, _: asyncio.Task[object]) -> None:
    await asks.grant(asks.permissions[0].id, "deny", by="Ann", via="page")


async def answer(asks: Approvals, _: asyncio.Task[object]) -> None:
    request = asks.questions[0]
    await asks.answer(request.id, [QuestionAnswer(request.questions[0].id, yes=True)], by="Ann", via="page")


async def dismiss(asks: Approvals, _: asyncio.Task[object]) -> None:
    await asks.dismiss(asks.questions[0].id, by="Ann", via="page")


async def end_call(_: Approvals, task: asyncio.Task[object]) -> None:
    task.cancel()


async def expire(asks: Approvals, _: asyncio.Task[object]) -> None:
    asks.client_attached()
    asks.client_detached()


Closing = Callable[[Approvals, "asyncio.Task[object]"], Awaitable[None]]
ANN: dict[str, Any] = {"by": "Ann", "via": "page"}
CLOSED_PERMISSIONS: list[tuple[Closing, dict[str, Any]]] = [
    (allow, {"granted": True, "denied": False, "action": "allow", **ANN}),
    (allow_session, {"granted": True, "denied": False, "action": "allow_session", **ANN}),
    (allow_always, {"granted": True, "denied": False, "action": "allow_always", **ANN}),
    (deny, {"granted": False, "denied": True, "action": "deny", **ANN}),
    (end_call, {"granted": False, "denied": True, "withdrawn": True}),
    (expire, {"granted": False, "denied": True, "withdrawn": True}),
]
CLOSED_QUESTIONS: list[tuple[Closing, dict[str, Any]]] = [
    (answer, ANN),
    (dismiss, {"cancelled": True, **ANN}),
    (end_call, {"withdrawn": True}),
    (expire, {"withdrawn": True}),
]


async def closed_request(close: Closing, *, is_question: bool) -> tuple[object, list[object]]:
    """Return a request, and the notifications that were published for it."""
    harness = await Harness.open(ScriptedModel([], info=PLAIN))
    asks = harness.workspace.approvals
    asks.judge = lambda _: Verdict("ask", "No rule.", ("bash(make)",))
    asks.timeout = lambda: 1.0
    context: Any = Context(harness.session)
    asking: Any = asks.ask_questions(context, BATCH) if is_question else asks.permit(context, PERMIT, interactive=True)
    task: asyncio.Task[object] = start(asking)
    await until(lambda: asks.questions or asks.permissions)
    request = (*asks.questions, *asks.permissions)[0]
    await close(asks, task)
    await asyncio.wait([task])
    await harness.close()
    events = [event for _, event in harness.published.events]
    notices: list[object] = [
        event.change.object
        for event in events
        if isinstance(event, PermissionNotificationEvent | QuestionNotificationEvent)
    ]
    return request, notices


@pytest.mark.parametrize(("close", "fields"), CLOSED_PERMISSIONS, ids=lambda row: getattr(row, "__name__", ""))
def test_notification_of_a_closed_permission_request(close: Closing, fields: dict[str, Any]) -> None:
    async def main() -> None:
        request, notices = await closed_request(close, is_question=False)
        ids: dict[str, Any] = {"id": request.id, "session_id": request.session_id}  # type: ignore[attr-defined]
        assert notices == [
            PermissionNotification(ToolCallId("call"), granted=False, denied=False, **ids),
            PermissionNotification(ToolCallId("call"), **ids, **fields),
        ]

    in_virtual_time(main)


@pytest.mark.parametrize(("close", "fields"), CLOSED_QUESTIONS, ids=lambda row: getattr(row, "__name__", ""))
def test_notification_of_a_closed_batch_of_questions(close: Closing, fields: dict[str, Any]) -> None:
    async def main() -> None:
        request, notices = await closed_request(close, is_question=True)
        assert isinstance(request, QuestionRequest)
        assert notices == [QuestionNotification(request.id, request.session_id, **fields)]
        assert (request.confirm_title, request.confirm_description) == ("Sure?", "This cannot be undone.")
        assert (request.run_id, request.tool_call_id) == ("r1", "call")

    in_virtual_time(main)


# Images of results.


def result_with_image(text: str) -> Message:
    part = ToolResultPart(
        ToolResult(ToolCallId("c1"), "tool", text, "", is_error=False, data="eA==", mime_type="image/png")
    )
    return message("tool", part, id="t1")


def test_image_of_a_shortened_result_is_left_out() -> None:
    (shorter,) = shortened([result_with_image("x" * 50_000)])
    assert [(item.data, item.mime_type) for item in shorter.tool_results] == [("", "")]


def test_image_of_a_result_follows_it() -> None:
    model = ModelInfo("test", "seeing", supports_images=True)
    messages = (message("user", text_part("go")), message("assistant", call_part("c1"), id="a1"))
    *_, result, pictures = conversation((*messages, result_with_image("seen")), model)
    (sent,) = result.tool_results
    assert (sent.data, sent.mime_type) == ("", "")
    assert sent.content == "seen\n[The image is in the message after the results.]"
    assert pictures.parts == (BinaryPart(Binary("tool-c1", "image/png", b"x")),)


def test_image_of_a_result_is_left_out_for_a_model_that_cannot_see() -> None:
    messages = (message("user", text_part("go")), message("assistant", call_part("c1"), id="a1"))
    (sent,) = conversation((*messages, result_with_image("seen")), PLAIN)[-1].tool_results
    assert (sent.data, sent.mime_type) == ("", "")
    assert sent.content == "seen\n[An image was attached, but this model cannot see images.]"


def test_call_that_was_cut_off_is_sent_as_finished() -> None:
    call = call_part("c1", '{"a":', finished=False)
    sent = conversation((message("user", text_part("go")), message("assistant", call, id="a1")), PLAIN)[1]
    assert [(item.input, item.finished) for item in sent.tool_calls] == [("{}", True)]


def test_a_response_whose_end_cannot_be_stored_is_in_the_snapshot_once() -> None:
    """It belongs to the messages of the ended turn; it is not streamed any more."""

    async def main() -> None:
        ledger = GatedLedger()
        model = GatedModel(ScriptedModel([Step((Say("one two"),))]))
        model.midway.shut()
        harness = await Harness.open(model, ledger=ledger)
        await harness.prompt("go", "r1")
        await model.midway.reached.wait()
        engine = harness.workspace.engine
        assert len(engine.open_messages(harness.session)) == 1
        ledger.refused = (EndRun,)
        with pytest.raises(StorageUnavailable):
            await harness.cancel()
        await until(lambda: engine.storage_fails)
        assert engine.open_messages(harness.session) == []
        ledger.refused = ()
        await harness.wait_until_idle()

    in_virtual_time(main)
