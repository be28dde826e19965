"""What people are asked, and what they answer: permissions of tools, and questions of the model."""

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
"""Once; for what was shown, in this session; as a rule that is kept; no."""
QuestionKind: TypeAlias = Literal["yes_no", "single_choice", "multi_choice", "free_text"]
Via: TypeAlias = Literal["terminal", "page", "command", "editor", ""]
"""In which kind of client somebody answered; empty if it did not say."""


class Verdict(msgspec.Struct, frozen=True):
    """What the rules say of something a tool is about to do. `why` is a sentence for people and models.

    `saves` are the rules that would let it through from now on; none if no rule of that kind could. `insists`: a
    person has to agree, whatever was allowed before, also under yolo; where nobody can be asked it is refused.
    """

    decision: Decision
    why: str = ""
    saves: tuple[str, ...] = ()
    insists: bool = False


class PermissionRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool asks. `why` says what made it ask, `rules` what "always" would save. `insists`: no client may answer it
    by itself, whatever its user has allowed in general. `continues`: see `Permit`.
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
    """What became of an ask. Neither granted nor denied: it is open. `withdrawn`: nobody answered, its run ended or
    the time was up. `by` is the client that answered, `via` of which kind it is, `action` what it chose.
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


class Choice(msgspec.Struct, frozen=True, omit_defaults=True):
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
    """The answer to one question, which `request_id` names. Empty of everything: it was skipped."""

    request_id: str
    selected_ids: tuple[str, ...] | None = None
    fill_in_text: str = ""
    yes: bool | None = None
    notes: dict[str, str] | None = None


class QuestionNotification(msgspec.Struct, frozen=True, omit_defaults=True):
    """A batch is closed: answered, cancelled by somebody, or `withdrawn` with its run."""

    batch_id: str
    session_id: SessionId = SessionId("")
    by: str = ""
    cancelled: bool = False
    withdrawn: bool = False
    via: Via = ""


_PLACES: dict[Via, str] = {
    "terminal": "in a terminal app",
    "page": "in a page",
    "command": "on a command line",
    "editor": "in an editor",
    "": "on another screen",
}


def where_answered(notice: PermissionNotification | QuestionNotification) -> str:
    """For people: what kind of client it was, and which of that kind."""
    return _PLACES[notice.via] + (f" ({notice.by[:8]})" if notice.by else "")
