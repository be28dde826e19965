"""Permission requests of tools, questions of the model, and the answers to both."""

from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.domain.ids import RunId, SessionId, ToolCallId

__all__ = [
    "Choice",
    "Decision",
    "GrantAction",
    "PermissionNotification",
    "PermissionRequest",
    "Question",
    "QuestionAnswer",
    "QuestionKind",
    "QuestionNotification",
    "QuestionRequest",
    "Verdict",
    "Via",
    "where_answered",
]

Decision: TypeAlias = Literal["allow", "ask", "deny"]
GrantAction: TypeAlias = Literal["allow", "allow_session", "allow_always", "deny"]
"""Allow once; allow the same call for the rest of the session; allow and save a rule; deny."""
QuestionKind: TypeAlias = Literal["yes_no", "single_choice", "multi_choice", "free_text"]
Via: TypeAlias = Literal["terminal", "page", "command", "editor", ""]
"""The kind of client that sent the answer; empty if the client did not report it."""


class Verdict(msgspec.Struct, frozen=True):
    """The result of the permission rules for one tool call. `why` is a sentence for people and models.

    `saves` are the rules that would allow the call in future; empty if no rule could. `insists`: a person has to agree
    even if the call was allowed before and under yolo; without a client that can answer, the call is refused.
    """

    decision: Decision
    why: str = ""
    saves: tuple[str, ...] = ()
    insists: bool = False


class PermissionRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool requests permission. `why` is the reason for the request, `rules` are the rules that "always" would save.
    `insists`: clients must not answer automatically, even if their user has allowed everything. `continues`: see
    `Permit`.
    """

    id: str
    session_id: SessionId
    tool_call_id: ToolCallId
    tool_name: str
    description: str
    action: str
    params: dict[str, Any]
    path: str
    run_id: RunId = RunId("")
    why: str = ""
    rules: tuple[str, ...] = ()
    insists: bool = False
    continues: bool = False


class PermissionNotification(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of a permission request. Neither granted nor denied: it is open. `withdrawn`: it was closed without an
    answer, because its run ended or its timeout expired. `by` is the client that answered, `via` the kind of that
    client, `action` its choice. `reason`: see `QuestionNotification.answers`.
    """

    tool_call_id: ToolCallId
    granted: bool
    denied: bool
    id: str = ""
    session_id: SessionId = SessionId("")
    by: str = ""
    action: str = ""
    withdrawn: bool = False
    via: Via = ""
    reason: str = ""


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
    """One option of a single-choice or multiple-choice question."""

    id: str
    label: str
    description: str = ""


class Question(msgspec.Struct, frozen=True, omit_defaults=True):
    """One question of a batch. `label` is a short heading, `description` Markdown."""

    id: str
    type: QuestionKind
    question: str
    label: str = ""
    description: str = ""
    choices: tuple[Choice, ...] = ()


class QuestionRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch of questions that are answered together."""

    id: str
    session_id: SessionId
    tool_call_id: ToolCallId
    questions: tuple[Question, ...]
    confirm_title: str = ""
    confirm_description: str = ""
    run_id: RunId = RunId("")


class QuestionAnswer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to the question named by `request_id`. If all other fields are empty, the question was skipped."""

    request_id: str
    selected_ids: tuple[str, ...] | None = None
    fill_in_text: str = ""
    yes: bool | None = None
    notes: dict[str, str] | None = None


class QuestionNotification(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch is closed: answered, cancelled by a client, or `withdrawn` with its run.

    `answers` is set if the answer was accepted by a node that does not own the workspace: the owner resolves the batch
    from the stored event. Stock clients do not receive it.
    """

    batch_id: str
    session_id: SessionId = SessionId("")
    by: str = ""
    cancelled: bool = False
    withdrawn: bool = False
    via: Via = ""
    answers: tuple[QuestionAnswer, ...] = ()


_PLACES: dict[Via, str] = {
    "terminal": "in a terminal app",
    "page": "in a page",
    "command": "on a command line",
    "editor": "in an editor",
    "": "on another screen",
}
"""Descriptions of the client kinds, for display."""


def where_answered(notice: PermissionNotification | QuestionNotification) -> str:
    """Return the kind and the abbreviated id of the client that answered, for display."""
    return _PLACES[notice.via] + (f" ({notice.by[:8]})" if notice.by else "")
