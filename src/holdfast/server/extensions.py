"""Asks, skills, language servers, MCP: the routes are there; what they speak of is not yet."""

from typing import Any

from holdfast.protocol.bodies import Resolved, Skip
from holdfast.server.calls import Call

__all__ = [
    "answer_question",
    "cancel_question",
    "get_skip",
    "grant",
    "list_jobs",
    "list_lsps",
    "list_skills",
    "mcp_pending_auth",
    "mcp_prompts",
    "mcp_refresh_prompts",
    "mcp_refresh_resources",
    "mcp_refresh_tools",
    "mcp_states",
    "pending_permissions",
    "pending_questions",
    "set_skip",
    "start_lsps",
    "stop_lsps",
]


async def get_skip(call: Call) -> Skip:
    return Skip(call.desk.yolo)


async def set_skip(call: Call) -> None:
    call.desk.yolo = call.body.skip


async def grant(_: Call) -> Resolved:
    """No tool asks yet, so nothing is open that could be answered."""
    return Resolved(resolved=False)


answer_question = cancel_question = grant


async def _none(_: Call) -> list[Any]:
    return []


async def _nothing(_: Call) -> dict[str, Any]:
    return {}


async def _done(_: Call) -> None:
    return None


pending_permissions = pending_questions = list_jobs = list_skills = mcp_pending_auth = mcp_prompts = _none
list_lsps = mcp_states = _nothing
start_lsps = stop_lsps = mcp_refresh_tools = mcp_refresh_prompts = mcp_refresh_resources = _done
