"""Names for identifiers, so that a session id is never passed where a run id is meant."""

import re
from typing import NewType

__all__ = [
    "MessageId",
    "NodeId",
    "RunId",
    "SessionId",
    "ToolCallId",
    "WorkspaceId",
    "is_subagent_session",
    "is_valid_run_id",
    "subagent_session",
]

WorkspaceId = NewType("WorkspaceId", str)
SessionId = NewType("SessionId", str)
RunId = NewType("RunId", str)
MessageId = NewType("MessageId", str)
ToolCallId = NewType("ToolCallId", str)
NodeId = NewType("NodeId", str)

_SENT_BY = "$$"
_RUN_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


def is_valid_run_id(text: str) -> bool:
    """Return True for 1 to 128 letters, digits, dots, underscores or dashes. Clients may choose run ids."""
    return _RUN_ID.fullmatch(text) is not None


def subagent_session(message: MessageId, call: ToolCallId) -> SessionId:
    """Return the id of a sub-agent's session. It contains the call that started it, for display in clients."""
    return SessionId(f"{message}{_SENT_BY}{call}")


def is_subagent_session(session: SessionId) -> bool:
    """Return True if the session belongs to a sub-agent."""
    return _SENT_BY in session
