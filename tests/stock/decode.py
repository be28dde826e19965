"""Decoding as strict as in stock clients: a missing key is zero, an unknown one is skipped, a wrong type is fatal."""

import json
from collections.abc import Mapping
from typing import Any

from stock.wire import ClientFailure

__all__ = ["EVENTS", "decode", "decode_event"]

_MODEL = {
    "id": str, "name": str, "cost_per_1m_in": float, "cost_per_1m_out": float, "cost_per_1m_in_cached": float,
    "cost_per_1m_out_cached": float, "context_window": int, "default_max_tokens": int, "can_reason": bool,
    "reasoning_levels": [str], "default_reasoning_effort": str, "supports_attachments": bool,
}  # fmt: skip
_CHOICE = {"model": str, "provider": str, "reasoning_effort": str, "think": bool, "max_tokens": int}
_TOKEN = {"access_token": str, "refresh_token": str, "expires_in": int, "expires_at": int}
_PROVIDER = {
    "id": str, "name": str, "base_url": str, "type": str, "api_key": str, "disable": bool, "models": [_MODEL],
    "extra_headers": {"*": str}, "discover_models": bool, "system_prompt_prefix": str,
    "oauth": _TOKEN,
}  # fmt: skip
_TUI = {"compact_mode": bool, "diff_mode": str, "transparent": bool, "scrollbar": str}
_OPTIONS = {
    "context_paths": [str], "tui": _TUI, "data_directory": str, "initialize_as": str, "disable_metrics": bool,
    "disabled_tools": [str], "progress": bool, "notifications": str, "debug": bool, "skills_paths": [str],
    "global_context_paths": [str], "disabled_skills": [str], "auto_lsp": bool, "debug_lsp": bool,
    "disable_auto_summarize": bool, "disable_provider_auto_update": bool, "disable_default_providers": bool,
    "attribution": {"trailer_style": str, "co_authored_by": bool, "generated_with": bool},
}  # fmt: skip
_CONFIG = {"models": {"*": _CHOICE}, "providers": {"*": _PROVIDER}, "options": _OPTIONS, "mcp": {"*": {"type": str}}}
_SESSION = {
    "id": str, "parent_session_id": str, "title": str, "message_count": int, "prompt_tokens": int,
    "completion_tokens": int, "summary_message_id": str, "cost": float, "created_at": int, "updated_at": int,
    "is_busy": bool, "attached_clients": int, "todos": [{"content": str, "status": str, "active_form": str}],
}  # fmt: skip
_MESSAGE = {
    "id": str, "role": str, "session_id": str, "model": str, "provider": str, "created_at": int, "updated_at": int,
    "is_summary_message": bool,
}  # fmt: skip
_PARTS: Mapping[str, Mapping[str, object]] = {
    "text": {"text": str},
    "reasoning": {"thinking": str, "signature": str, "started_at": int, "finished_at": int},
    "image_url": {"url": str, "detail": str},
    "binary": {"Path": str, "MIMEType": str, "Data": str},
    "tool_call": {"id": str, "name": str, "input": str, "type": str, "finished": bool},
    "tool_result": {
        "tool_call_id": str, "name": str, "content": str, "metadata": str, "is_error": bool, "data": str,
        "mime_type": str,
    },
    "finish": {"reason": str, "time": int, "message": str, "details": str},
    "shell_command": {"command": str, "output": str, "exit_code": int},
}  # fmt: skip
_FILE = {
    "id": str,
    "session_id": str,
    "path": str,
    "content": str,
    "version": int,
    "created_at": int,
    "updated_at": int,
}
_MCP_STATE = {"name": str, "state": "mcp", "error": str, "tool_count": int, "connected_at": str}
_LSP_STATE = {"name": str, "state": int, "error": str, "diagnostic_count": int, "connected_at": str}

_TYPES: Mapping[str, object] = {
    "version": {"version": str, "commit": str, "build_id": str, "go_version": str, "platform": str},
    "workspace": {
        "id": str, "path": str, "yolo": bool, "debug": bool, "data_dir": str, "version": str, "config": _CONFIG,
        "env": [str], "channels": [str], "skills": [{"name": str, "path": str, "state": int, "error": str}],
    },
    "config": _CONFIG,
    "choice": _CHOICE,
    "agent": {"is_busy": bool, "is_ready": bool, "model": _MODEL, "model_cfg": _CHOICE},
    "session": _SESSION,
    "sessions": [_SESSION],
    "message": "message",
    "messages": ["message"],
    "files": [_FILE],
    "paths": [str],
    "skip": {"skip": bool},
    "resolved": {"resolved": bool},
    "shell": {"output": str, "exit_code": int},
    "needs_init": {"needs_init": bool},
    "skills": [{"id": str, "name": str, "description": str, "label": str, "source": str, "user_invocable": bool}],
    "lsps": {"*": _LSP_STATE},
    "mcps": {"*": _MCP_STATE},
    "logins": [{"name": str, "url": str}],
}  # fmt: skip

EVENTS: Mapping[str, object] = {
    "message": "message",
    "session": _SESSION,
    "file": _FILE,
    "permission_request": {"id": str, "session_id": str, "tool_call_id": str, "tool_name": str, "path": str},
    "permission_notification": {"tool_call_id": str, "granted": bool, "denied": bool},
    "question_batch_request": {"id": str, "session_id": str, "tool_call_id": str},
    "question_batch_notification": {"batch_id": str},
    "agent_event": {
        "type": str, "error": str, "run_id": str, "session_id": str, "session_title": str, "progress": str,
        "done": bool, "message": "message",
    },
    "run_complete": {
        "session_id": str, "run_id": str, "message_id": str, "text": str, "error": str, "cancelled": bool,
    },
    "config_changed": {"workspace_id": str},
    "lsp_event": {"type": str, "name": str, "state": int},
    "mcp_event": {"type": str, "name": str, "state": "mcp"},
    "skills_event": {},
    "update_available": {},
}  # fmt: skip
_CRASHING = {"message", "agent_event", "permission_request", "lsp_event", "mcp_event"}
_MCP_WORDS = {"disabled", "starting", "connected", "error", "needs auth"}


def decode(name: str, value: Any) -> Any:  # noqa: ANN401 - any JSON
    """Return the value; raise `ClientFailure` if a stock client could not decode it."""
    _check(_TYPES[name], value, name)
    return value


def decode_event(event: Any) -> tuple[str, str, dict[str, Any]]:  # noqa: ANN401 - any JSON
    """Return the type, the change and the object of an event."""
    kind, change = event["type"], event["payload"]
    if kind not in EVENTS:
        raise ClientFailure(f"an event of an unknown type: {kind}")
    if change["type"] not in ("created", "updated", "deleted"):
        raise ClientFailure(f"nothing is known to be {change['type']}")
    if change["payload"] is None and kind in _CRASHING:
        raise ClientFailure(f"a {kind} that is null is a crash")
    _check(EVENTS[kind], change["payload"], kind)
    return kind, change["type"], change["payload"]


def _check(kind: object, value: Any, place: str) -> None:  # noqa: ANN401 - any JSON
    if kind == "message":
        _check_message(value, place)
    elif kind == "mcp":
        if value not in _MCP_WORDS:
            raise ClientFailure(f"{place}: {value!r} is no state of an MCP server")
    elif value is None:
        return
    elif isinstance(kind, list):
        _check_type(list, value, place)
        for index, item in enumerate(value):
            _check(kind[0], item, f"{place}[{index}]")
    elif isinstance(kind, Mapping):
        _check_type(dict, value, place)
        for key, item in value.items():
            below = kind.get(key, kind.get("*"))
            if below is not None:
                _check(below, item, f"{place}.{key}")
    else:
        _check_type(kind, value, place)


def _check_type(kind: object, value: Any, place: str) -> None:  # noqa: ANN401 - any JSON
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    fits = is_number if kind is float else type(value) is kind
    if not fits:
        raise ClientFailure(f"{place}: {value!r} is not {kind}")


def _check_message(value: Any, place: str) -> None:  # noqa: ANN401 - any JSON
    if value is None:
        raise ClientFailure(f"{place}: a message that is null is a crash")
    _check(_MESSAGE, value, place)
    if "parts" not in value:
        raise ClientFailure(f"{place}: a message without parts cannot be decoded")
    for part in value["parts"] or ():
        if part is None:
            continue
        if part["type"] not in _PARTS:
            raise ClientFailure(f"{place}: a part of an unknown type, {part['type']}, spoils the whole message")
        _check(_PARTS[part["type"]], part.get("data"), f"{place}.{part['type']}")
        for key in ("input", "metadata"):
            _check_json((part.get("data") or {}).get(key), f"{place}.{key}")


def _check_json(text: object, place: str) -> None:
    """Check that arguments and metadata are empty or text with JSON."""
    if isinstance(text, str) and text:
        try:
            json.loads(text)
        except ValueError:
            raise ClientFailure(f"{place}: {text!r} is not JSON") from None
