"""Approvals and questions of a workspace, forwarded to the editor. The first answer from any client is used.

When another client has answered, or the run has ended, the request to the editor is cancelled.
"""

import asyncio
import logging
from collections.abc import Coroutine, Iterable
from typing import Any, Protocol

import msgspec

from holdfast.acp.editor_connection import EditorConnection
from holdfast.acp.session_updates import SessionUpdates
from holdfast.acp.tool_calls import Json, change_of, facts_of, kind_of, places_of, text_block, title_of
from holdfast.client.client import Client
from holdfast.domain.approvals import (
    PermissionNotification,
    PermissionRequest,
    Question,
    QuestionAnswer,
    QuestionRequest,
)
from holdfast.domain.events import (
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
)
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.tasks import TaskOwner

__all__ = [
    "BridgeContext",
    "EditorApprovals",
    "answer_in",
    "form_of",
    "options_of",
    "question_call",
    "question_options",
    "request_of",
]


# Conversion of permission requests and questions to the protocol's requests and forms. Pure.

_LONGEST = 60


def options_of(ask: PermissionRequest) -> dict[str, tuple[str, str]]:
    """Return the options of a permission request: display name and kind by option id."""
    options = {
        "allow": ("Allow", "allow_once"),
        "allow_session": ("Allow for this session", "allow_always"),
        "deny": ("Reject", "reject_once"),
    }
    if ask.rules:
        rules = ", ".join(ask.rules)
        shown = rules if len(rules) <= _LONGEST else rules[: _LONGEST - 1] + "…"
        always = {"allow_always": (f"Always allow {shown}", "allow_always")}
        options = {
            "allow": options["allow"],
            "allow_session": options["allow_session"],
            **always,
            "deny": options["deny"],
        }
    return options


def request_of(ask: PermissionRequest, narrator: SessionUpdates, directory: str) -> Json:
    """Return the parameters of `session/request_permission`."""
    call, name = narrator.call(ask.tool_call_id)
    asked = facts_of(call.input) if call is not None else dict(ask.params)
    content = change_of(asked, ask.params, directory) if kind_of(ask.tool_name) == "edit" else []
    # Editors may truncate option names, so the complete rules are listed in the content.
    saved = "Always allow saves: " + ", ".join(f"`{rule}`" for rule in ask.rules) if ask.rules else ""
    reasons = [text for text in (ask.description, ask.why, saved) if text]
    if reasons:
        content.append(text_block("\n\n".join(reasons)))
    told: Json = {
        "toolCallId": name,
        "title": title_of(ask.tool_name, asked, directory),
        "kind": kind_of(ask.tool_name),
        "status": "pending",
        "content": content,
        "rawInput": asked,
    }
    if places := places_of(asked, directory):
        told["locations"] = places
    options = [{"optionId": id, "name": name, "kind": kind} for id, (name, kind) in options_of(ask).items()]
    return {"sessionId": narrator.session, "toolCall": told, "options": options}


# Questions


def question_call(batch: QuestionRequest, question: Question) -> Json:
    """Return a question as a tool call, for editors without forms."""
    about = [text for text in (question.description, *(_described(question))) if text]
    return {
        "toolCallId": batch.tool_call_id,
        "title": question.question,
        "kind": "other",
        "status": "pending",
        "content": [text_block("\n\n".join(about))] if about else [],
    }


def _described(question: Question) -> list[str]:
    return [f"**{choice.label}**: {choice.description}" for choice in question.choices if choice.description]


def question_options(question: Question) -> list[Json]:
    """Return the options of a question, including one to skip it."""
    if question.type == "yes_no":
        pairs = [("yes", "Yes"), ("no", "No")]
    else:
        pairs = [(choice.id, choice.label) for choice in question.choices]
    options = [{"optionId": id, "name": name, "kind": "allow_once"} for id, name in pairs]
    return [*options, {"optionId": "", "name": "Skip", "kind": "reject_once"}]


def form_of(batch: QuestionRequest, session: SessionId) -> Json:
    """Return the parameters of `elicitation/create` for a batch of questions."""
    properties = {question.id: _field(question) for question in batch.questions}
    message = batch.confirm_title or (batch.questions[0].question if len(batch.questions) == 1 else "Some questions")
    schema = {"type": "object", "properties": properties}
    scope = {"sessionId": session, "toolCallId": batch.tool_call_id}
    return {**scope, "mode": "form", "message": message, "requestedSchema": schema}


def _field(question: Question) -> Json:
    about: Json = {"title": question.question}
    if question.description:
        about["description"] = question.description
    choices = [{"const": choice.id, "title": choice.label} for choice in question.choices]
    match question.type:
        case "yes_no":
            return {"type": "boolean", **about}
        case "single_choice":
            return {"type": "string", "oneOf": choices, **about}
        case "multi_choice":
            return {"type": "array", "items": {"anyOf": choices}, **about}
        case _:
            return {"type": "string", **about}


def answer_in(batch: QuestionRequest, content: dict[str, Any]) -> list[QuestionAnswer]:
    """Convert the form content to answers."""
    return [_answer(question, content.get(question.id)) for question in batch.questions]


def _answer(question: Question, value: object) -> QuestionAnswer:
    match value:
        case bool() if question.type == "yes_no":
            return QuestionAnswer(question.id, yes=value)
        case str() if question.type == "single_choice":
            return QuestionAnswer(question.id, selected_ids=(value,))
        case list() if question.type == "multi_choice":
            return QuestionAnswer(question.id, selected_ids=tuple(map(str, value)))
        case str() if value:
            return QuestionAnswer(question.id, fill_in_text=value)
        case _:
            return QuestionAnswer(question.id)


# Approvals and questions of a workspace, forwarded to the editor. The first answer from any client is used.

_PERMISSION = "session/request_permission"
_log = logging.getLogger("holdfast.acp")


class BridgeContext(Protocol):
    """The workspace properties that approvals require."""

    @property
    def client(self) -> Client:
        """The client of the server."""

    @property
    def workspace(self) -> WorkspaceId:
        """The open workspace."""

    @property
    def directory(self) -> str:
        """The workspace directory."""

    @property
    def modes(self) -> dict[SessionId, str]:
        """The approval mode of each session."""

    def narrator(self, session: SessionId) -> SessionUpdates | None:
        """Return the update source of a session, or None if the editor has not opened it."""

    def tell(self, session: SessionId, updates: list[Json]) -> None:
        """Send updates of a session to the editor."""


class EditorApprovals:
    """Forwards the requests of sessions that the editor has open, each as its own JSON-RPC request."""

    def __init__(self, ground: BridgeContext, editor: EditorConnection) -> None:
        self._ground = ground
        self._editor = editor
        self._tasks = TaskOwner()
        self._open: dict[str, asyncio.Task[None]] = {}
        self._asks: dict[str, PermissionRequest] = {}
        """The open permission requests."""
        self.has_forms = False
        """True if the editor supports elicitation forms."""

    async def close(self) -> None:
        """Cancel all open requests."""
        self._tasks.cancel_all()
        await self._tasks.drain()

    def take(self, event: object) -> None:
        """Handle an approval or question event. Other events are ignored."""
        match event:
            case PermissionRequestEvent(change=ask):
                self.permission(ask.object)
            case PermissionNotificationEvent(change=notice):
                self._answered(notice.object)
            case QuestionRequestEvent(change=batch):
                self.question(batch.object)
            case QuestionNotificationEvent(change=closed):
                self._closed(closed.object.batch_id)
            case _:
                pass

    def retain(self, names: Iterable[str]) -> None:
        """Cancel all requests except these, because notices of the others were missed."""
        for name in self._open.keys() - set(names):
            self._closed(name)

    # Permissions

    def permission(self, ask: PermissionRequest) -> None:
        """Forward a permission request, or grant it in `yolo` mode."""
        narrator = self._ground.narrator(ask.session_id)
        if narrator is None or ask.id in self._open:
            return
        is_relaxed = self._ground.modes.get(narrator.session) == "yolo" and ask.run_id in narrator.own
        if is_relaxed and not ask.insists:
            # The mode was changed to `yolo` while the run was active.
            self._start(ask.id, self._grant(ask, "allow"))
            return
        self._ground.tell(narrator.session, narrator.waiting(ask.tool_call_id, is_open=True))
        self._asks[ask.id] = ask
        self._start(ask.id, self._permit(ask, narrator))

    def _answered(self, notice: PermissionNotification) -> None:
        """Close a resolved request. The first notice of a request only announces it."""
        if not (notice.granted or notice.denied or notice.withdrawn):
            return
        narrator = self._ground.narrator(notice.session_id)
        if narrator is not None and notice.granted:
            self._ground.tell(narrator.session, narrator.waiting(notice.tool_call_id, is_open=False))
        self._closed(notice.id)

    def relax(self, session: SessionId) -> None:
        """Grant the open permission requests of the editor's own runs, except those that always require an answer."""
        for ask in tuple(self._asks.values()):
            narrator = self._ground.narrator(ask.session_id)
            if ask.insists or narrator is None:
                continue
            if narrator.session == session and ask.run_id in narrator.own:
                self._closed(ask.id)
                self._start(ask.id, self._grant(ask, "allow"))

    def _closed(self, name: str) -> None:
        self._asks.pop(name, None)
        task = self._open.pop(name, None)
        if task is not None:
            task.cancel()

    async def _permit(self, ask: PermissionRequest, narrator: SessionUpdates) -> None:
        params = request_of(ask, narrator, self._ground.directory)
        outcome = (await self._editor.ask(ask.id, _PERMISSION, params)).get("outcome") or {}
        if outcome.get("outcome") != "selected":
            # The protocol uses this outcome for a turn that was cancelled while the request was open.
            await self._ground.client.cancel_run(self._ground.workspace, ask.run_id)
            return
        chosen = str(outcome.get("optionId"))
        await self._grant(ask, chosen if chosen in options_of(ask) else "deny")

    async def _grant(self, ask: PermissionRequest, action: str) -> None:
        answer: dict[str, Any] = {"permission": {"id": ask.id, "params": ask.params}, "action": action}
        await self._ground.client.grant(self._ground.workspace, answer)

    # Questions

    def question(self, batch: QuestionRequest) -> None:
        """Forward a batch of questions."""
        narrator = self._ground.narrator(batch.session_id)
        if narrator is not None and batch.id not in self._open:
            self._start(batch.id, self._inquire(batch, narrator.session))

    async def _inquire(self, batch: QuestionRequest, session: SessionId) -> None:
        answers = await (self._by_form if self.has_forms else self._one_by_one)(batch, session)
        client, workspace = self._ground.client, self._ground.workspace
        if answers is None:
            await client.cancel_question(workspace, batch.id)
            return
        body = {"batch_request_id": batch.id, "responses": msgspec.to_builtins(answers)}
        await client.answer_question(workspace, body)

    async def _by_form(self, batch: QuestionRequest, session: SessionId) -> list[QuestionAnswer] | None:
        answer = await self._editor.ask(batch.id, "elicitation/create", form_of(batch, session))
        if answer.get("action") != "accept":
            return None
        return answer_in(batch, answer.get("content") or {})

    async def _one_by_one(self, batch: QuestionRequest, session: SessionId) -> list[QuestionAnswer] | None:
        """Ask the questions one by one as permission requests, for editors without forms. Free-text questions can only
        be skipped.
        """
        answers: list[QuestionAnswer] = []
        for question in batch.questions:
            options = question_options(question)
            params = {"sessionId": session, "toolCall": question_call(batch, question), "options": options}
            outcome = (await self._editor.ask(batch.id, _PERMISSION, params)).get("outcome") or {}
            if outcome.get("outcome") != "selected":
                return None
            chosen = str(outcome.get("optionId"))
            if question.type == "yes_no" and chosen in ("yes", "no"):
                answers.append(QuestionAnswer(question.id, yes=chosen == "yes"))
            elif any(choice.id == chosen for choice in question.choices):
                answers.append(QuestionAnswer(question.id, selected_ids=(chosen,)))
            else:
                answers.append(QuestionAnswer(question.id))
        return answers

    def _start(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        def ended(task: asyncio.Task[None]) -> None:
            if self._open.get(name) is task:
                del self._open[name]
                self._asks.pop(name, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                # If the editor cannot show the request, other clients can still answer it.
                _log.warning("an ask could not be put to the editor: %s", error)

        self._open[name] = self._tasks.start(work, name=f"ask {name}", done=ended)
