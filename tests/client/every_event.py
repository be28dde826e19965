"""One event of every type, about the session `here` where it is about one."""

from typing import Any, get_args

import msgspec

from holdfast.client.events import StreamEvent
from holdfast.domain.events import StreamedEvent
from holdfast.domain.ids import SessionId

__all__ = ["ABOUT_A_SESSION", "TYPES", "event_of"]

Json = dict[str, Any]
MESSAGE: Json = {
    "parts": [{"type": "text", "data": {"text": "words of an answer"}}],
    "id": "m",
    "role": "assistant",
    "model": "x",
    "provider": "y",
    "created_at": 1,
    "updated_at": 1,
    "run_id": "r",
}
CHANGES: dict[str, Json] = {
    "message": {"session_id": "{s}", **MESSAGE},
    "session": {
        "id": "{s}",
        "parent_session_id": "",
        "title": "A title",
        "message_count": 0,
        "prompt_tokens": 0,
        "completion_tokens": 0,
        "summary_message_id": "",
        "cost": 0.0,
        "created_at": 1,
        "updated_at": 1,
        "is_busy": False,
        "attached_clients": 0,
    },
    "file": {
        "id": "f",
        "session_id": "{s}",
        "path": "/p",
        "content": "c",
        "version": 1,
        "created_at": 1,
        "updated_at": 1,
    },
    "run": {
        "run_id": "r",
        "session_id": "{s}",
        "state": "active",
        "delivery": "queue",
        "accepted_at": 1,
        "prompt": "p",
    },
    "run_complete": {"session_id": "{s}", "message_id": "m", "run_id": "r", "outcome": "completed", "text": "t"},
    "permission_request": {
        "id": "ask",
        "session_id": "{s}",
        "tool_call_id": "c",
        "tool_name": "write",
        "description": "Write it",
        "action": "write",
        "params": {},
        "path": "/p",
        "run_id": "r",
    },
    "permission_notification": {
        "id": "ask",
        "session_id": "{s}",
        "tool_call_id": "c",
        "granted": True,
        "denied": False,
    },
    "question_batch_request": {
        "id": "batch",
        "session_id": "{s}",
        "tool_call_id": "c",
        "run_id": "r",
        "questions": [{"id": "q", "type": "yes_no", "question": "Shall I?", "label": "l", "description": "d"}],
    },
    "question_batch_notification": {"batch_id": "batch", "session_id": "{s}", "tool_call_id": "c"},
    "agent_event": {"type": "fallback", "error": "another model is asked", "run_id": "r", "session_id": "{s}"},
    "config_changed": {"workspace_id": "w"},
    "attached": {"session_id": "{s}", "clients": 3},
    "lsp_event": {"type": "state_changed", "name": "tongue", "state": 2, "diagnostic_count": 4},
    "mcp_event": {"type": "state_changed", "name": "tools", "state": "connected", "tool_count": 5},
    "skills_event": {"states": []},
}
PLAIN: dict[str, Json] = {
    "removed": {"session_id": "{s}"},
    "message_delta": {"session_id": "{s}", "message_id": "m", "part": 0, "offset": 18, "text": " and more"},
    "message_part": {
        "session_id": "{s}",
        "message_id": "m",
        "part": 0,
        "content": {"type": "text", "data": {"text": "a whole part"}},
    },
    "tool_output": {
        "session_id": "{s}",
        "message_id": "m",
        "tool_call_id": "c",
        "run_id": "r",
        "offset": 0,
        "text": "printed",
    },
    "hello": {"cursor": 1, "oldest": 1, "epoch": 1},
    "gap": {"cursor": 1, "oldest": 1, "epoch": 1},
}
TYPES = tuple(sorted(kind.__struct_config__.tag for kind in get_args(StreamedEvent)))
ABOUT_A_SESSION = frozenset(
    name for name, tree in {**CHANGES, **PLAIN}.items() if "session_id" in tree or name == "session"
)


def event_of(name: str, session: SessionId, number: int | None = None, change: str = "created") -> StreamEvent:
    """Build the event of a type as a stream returns it."""
    tree = CHANGES.get(name) or PLAIN[name]
    filled = {key: session if value == "{s}" else value for key, value in tree.items()}
    payload: Json = {"type": change, "payload": filled} if name in CHANGES else filled
    event: Any = msgspec.convert({"type": name, "payload": payload}, StreamedEvent)
    return StreamEvent(event, number)
