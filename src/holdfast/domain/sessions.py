"""Sessions: a conversation with a title, token counts and costs."""

from typing import Literal

import msgspec

from holdfast.domain.ids import MessageId, SessionId

__all__ = ["Session", "SessionPatch", "Todo", "apply_patch"]


class Todo(msgspec.Struct, frozen=True):
    """One entry of the model's task list."""

    content: str
    status: Literal["pending", "in_progress", "completed"]
    active_form: str


class Session(msgspec.Struct, frozen=True, omit_defaults=True):
    """A conversation. `prompt_tokens + completion_tokens` is the size of its context now, not a sum."""

    id: SessionId
    parent_session_id: SessionId
    title: str
    message_count: int
    prompt_tokens: int
    completion_tokens: int
    summary_message_id: MessageId
    cost: float
    created_at: int
    updated_at: int
    is_busy: bool
    attached_clients: int
    todos: tuple[Todo, ...] = ()
    estimated_usage: bool = False


class SessionPatch(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of a session that cannot undo another one made at the same time: set fields replace, costs add."""

    session_id: SessionId
    updated_at: int
    title: str | None = None
    only_if_title: str | None = None
    """Change the title only if it still equals this value, so that a late generated title does not replace a user's
    choice.
    """
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    estimated_usage: bool | None = None
    summary_message_id: MessageId | None = None
    todos: tuple[Todo, ...] | None = None
    add_cost: float = 0.0
    add_messages: int = 0


def apply_patch(session: Session, patch: SessionPatch) -> Session:
    """Return the session after the patch. Every store uses this function."""
    fields = ("title", "prompt_tokens", "completion_tokens", "estimated_usage", "summary_message_id", "todos")
    changed = {name: value for name in fields if (value := getattr(patch, name)) is not None}
    if patch.only_if_title is not None and session.title != patch.only_if_title:
        changed.pop("title", None)
    return msgspec.structs.replace(
        session,
        **changed,
        cost=session.cost + patch.add_cost,
        message_count=session.message_count + patch.add_messages,
        updated_at=max(session.updated_at, patch.updated_at),
    )
