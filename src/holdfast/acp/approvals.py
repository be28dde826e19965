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
from holdfast.acp.tool_calls import Json, call_locations, call_title, file_diffs, parse_object, text_block, tool_kind
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
    "elicitation_params",
    "form_answers",
    "permission_options",
    "permission_params",
    "question_call",
    "question_options",
]

_MAX_RULES = 60
_PERMISSION = "session/request_permission"
_log = logging.getLogger("holdfast.acp")


def permission_options(request: PermissionRequest) -> dict[str, tuple[str, str]]:
    """Return the options of a permission request: display name and kind by option id."""
    options = {
        "allow": ("Allow", "allow_once"),
        "allow_session": ("Allow for this session", "allow_always"),
        "deny": ("Reject", "reject_once"),
    }
    if request.rules:
        rules = ", ".join(request.rules)
        shown = rules if len(rules) <= _MAX_RULES else rules[: _MAX_RULES - 1] + "…"
        always = {"allow_always": (f"Always allow {shown}", "allow_always")}
        options = {
            "allow": options["allow"],
            "allow_session": options["allow_session"],
            **always,
            "deny": options["deny"],
        }
    return options


def permission_params(request: PermissionRequest, updates: SessionUpdates, directory: str) -> Json:
    """Return the parameters of `session/request_permission`."""
    call, name = updates.tool_call(request.tool_call_id)
    arguments = parse_object(call.input) if call is not None else dict(request.params)
    content = file_diffs(arguments, request.params, directory) if tool_kind(request.tool_name) == "edit" else []
    # Editors may truncate option names, so the complete rules are listed in the content.
    saved = "Always allow saves: " + ", ".join(f"`{rule}`" for rule in request.rules) if request.rules else ""
    reasons = [text for text in (request.description, request.why, saved) if text]
    if reasons:
        content.append(text_block("\n\n".join(reasons)))
    tool_call: Json = {
        "toolCallId": name,
        "title": call_title(request.tool_name, arguments, directory),
        "kind": tool_kind(request.tool_name),
        "status": "pending",
        "content": content,
        "rawInput": arguments,
    }
    if places := call_locations(arguments, directory):
        tool_call["locations"] = places
    options = [{"optionId": id, "name": name, "kind": kind} for id, (name, kind) in permission_options(request).items()]
    return {"sessionId": updates.session, "toolCall": tool_call, "options": options}


def question_call(batch: QuestionRequest, question: Question) -> Json:
    """Return a question as a tool call, for editors without forms."""
    about = [text for text in (question.description, *(_choice_descriptions(question))) if text]
    return {
        "toolCallId": batch.tool_call_id,
        "title": question.question,
        "kind": "other",
        "status": "pending",
        "content": [text_block("\n\n".join(about))] if about else [],
    }


def _choice_descriptions(question: Question) -> list[str]:
    return [f"**{choice.label}**: {choice.description}" for choice in question.choices if choice.description]


def question_options(question: Question) -> list[Json]:
    """Return the options of a question, including one to skip it."""
    if question.type == "yes_no":
        pairs = [("yes", "Yes"), ("no", "No")]
    else:
        pairs = [(choice.id, choice.label) for choice in question.choices]
    options = [{"optionId": id, "name": name, "kind": "allow_once"} for id, name in pairs]
    return [*options, {"optionId": "", "name": "Skip", "kind": "reject_once"}]


def elicitation_params(batch: QuestionRequest, session: SessionId) -> Json:
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


def form_answers(batch: QuestionRequest, content: dict[str, Any]) -> list[QuestionAnswer]:
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


class BridgeContext(Protocol):
    """The part of a workspace bridge that approvals and commands use.

    A protocol, because `workspace_bridge` imports the modules that use it.
    """

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

    def session_updates(self, session: SessionId) -> SessionUpdates | None:
        """Return the update source of a session, or None if the editor has not opened it."""

    def send_updates(self, session: SessionId, updates: list[Json]) -> None:
        """Send updates of a session to the editor."""


class EditorApprovals:
    """Forwards the requests of sessions that the editor has open, each as its own JSON-RPC request."""

    def __init__(self, bridge: BridgeContext, editor: EditorConnection) -> None:
        self._bridge = bridge
        self._editor = editor
        self._tasks = TaskOwner()
        self._open: dict[str, asyncio.Task[None]] = {}
        self._permissions: dict[str, PermissionRequest] = {}
        """The open permission requests."""
        self.supports_forms = False
        """True if the editor supports elicitation forms."""

    async def close(self) -> None:
        """Cancel all open requests."""
        self._tasks.cancel_all()
        await self._tasks.drain()

    def on_event(self, event: object) -> None:
        """Handle an approval or question event. Other events are ignored."""
        match event:
            case PermissionRequestEvent(change=request):
                self.forward_permission(request.object)
            case PermissionNotificationEvent(change=notice):
                self._on_permission_notification(notice.object)
            case QuestionRequestEvent(change=batch):
                self.forward_question(batch.object)
            case QuestionNotificationEvent(change=closed):
                self._close_request(closed.object.batch_id)
            case _:
                pass

    def retain(self, names: Iterable[str]) -> None:
        """Cancel all requests except these, because notices of the others were missed."""
        for name in self._open.keys() - set(names):
            self._close_request(name)

    # Permissions

    def forward_permission(self, request: PermissionRequest) -> None:
        """Forward a permission request, or grant it in `yolo` mode."""
        updates = self._bridge.session_updates(request.session_id)
        if updates is None or request.id in self._open:
            return
        is_yolo = self._bridge.modes.get(updates.session) == "yolo" and request.run_id in updates.own_runs
        if is_yolo and not request.insists:
            # The mode was changed to `yolo` while the run was active.
            self._start(request.id, self._grant(request, "allow"))
            return
        self._bridge.send_updates(updates.session, updates.permission_status(request.tool_call_id, is_open=True))
        self._permissions[request.id] = request
        self._start(request.id, self._request_permission(request, updates))

    def _on_permission_notification(self, notice: PermissionNotification) -> None:
        """Close a resolved request. The first notice of a request only announces it."""
        if not (notice.granted or notice.denied or notice.withdrawn):
            return
        updates = self._bridge.session_updates(notice.session_id)
        if updates is not None and notice.granted:
            self._bridge.send_updates(updates.session, updates.permission_status(notice.tool_call_id, is_open=False))
        self._close_request(notice.id)

    def allow_all(self, session: SessionId) -> None:
        """Grant the open permission requests of the editor's own runs, except those that always require an answer."""
        for request in tuple(self._permissions.values()):
            updates = self._bridge.session_updates(request.session_id)
            if request.insists or updates is None:
                continue
            if updates.session == session and request.run_id in updates.own_runs:
                self._close_request(request.id)
                self._start(request.id, self._grant(request, "allow"))

    def _close_request(self, name: str) -> None:
        self._permissions.pop(name, None)
        task = self._open.pop(name, None)
        if task is not None:
            task.cancel()

    async def _request_permission(self, request: PermissionRequest, updates: SessionUpdates) -> None:
        params = permission_params(request, updates, self._bridge.directory)
        outcome = (await self._editor.request(request.id, _PERMISSION, params)).get("outcome") or {}
        if outcome.get("outcome") != "selected":
            # The protocol uses this outcome for a turn that was cancelled while the request was open.
            await self._bridge.client.cancel_run(self._bridge.workspace, request.run_id)
            return
        chosen = str(outcome.get("optionId"))
        await self._grant(request, chosen if chosen in permission_options(request) else "deny")

    async def _grant(self, request: PermissionRequest, action: str) -> None:
        answer: dict[str, Any] = {"permission": {"id": request.id, "params": request.params}, "action": action}
        await self._bridge.client.grant(self._bridge.workspace, answer)

    # Questions

    def forward_question(self, batch: QuestionRequest) -> None:
        """Forward a batch of questions."""
        updates = self._bridge.session_updates(batch.session_id)
        if updates is not None and batch.id not in self._open:
            self._start(batch.id, self._request_answers(batch, updates.session))

    async def _request_answers(self, batch: QuestionRequest, session: SessionId) -> None:
        answers = await (self._request_form if self.supports_forms else self._request_one_by_one)(batch, session)
        client, workspace = self._bridge.client, self._bridge.workspace
        if answers is None:
            await client.cancel_question(workspace, batch.id)
            return
        body = {"batch_request_id": batch.id, "responses": msgspec.to_builtins(answers)}
        await client.answer_question(workspace, body)

    async def _request_form(self, batch: QuestionRequest, session: SessionId) -> list[QuestionAnswer] | None:
        answer = await self._editor.request(batch.id, "elicitation/create", elicitation_params(batch, session))
        if answer.get("action") != "accept":
            return None
        return form_answers(batch, answer.get("content") or {})

    async def _request_one_by_one(self, batch: QuestionRequest, session: SessionId) -> list[QuestionAnswer] | None:
        """Ask the questions one by one as permission requests, for editors without forms. Free-text questions can only
        be skipped.
        """
        answers: list[QuestionAnswer] = []
        for question in batch.questions:
            options = question_options(question)
            params = {"sessionId": session, "toolCall": question_call(batch, question), "options": options}
            outcome = (await self._editor.request(batch.id, _PERMISSION, params)).get("outcome") or {}
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
                self._permissions.pop(name, None)
            if not task.cancelled() and (error := task.exception()) is not None:
                # If the editor cannot show the request, other clients can still answer it.
                _log.warning("a request could not be sent to the editor: %s", error)

        self._open[name] = self._tasks.start(work, name=f"ask {name}", done=ended)
