"""Hooks: user-defined commands that run on events of a session, and their combined result."""

import re
from typing import Any, Literal

import msgspec

from holdfast.domain.ids import RunId, SessionId, ToolCallId
from holdfast.domain.tools import CLAUDE_NAMES, TOOLS

__all__ = ["HOOK_EVENTS", "HookDecision", "HookEvent", "HookOutcome", "ToolUse", "event_of", "matcher_trouble"]

HookEvent = Literal["PreToolUse", "PostToolUse", "UserPromptSubmit", "RunEnd", "SessionStart"]
"""The events on which hooks run: before and after a tool call, before a prompt reaches a model, after a run has ended,
when a session begins.
"""

HOOK_EVENTS: tuple[HookEvent, ...] = ("PreToolUse", "PostToolUse", "UserPromptSubmit", "RunEnd", "SessionStart")

_EVENTS: dict[str, HookEvent] = {event.lower(): event for event in HOOK_EVENTS} | {"stop": "RunEnd"}
_TOOL_EVENTS = frozenset({"PreToolUse", "PostToolUse"})
_SOURCES = ("startup", "resume", "clear", "compact")
"""The ways in which a session may begin, here and in Claude Code."""

HookDecision = Literal["", "allow", "ask", "deny"]
"""Empty: no decision."""


class ToolUse(msgspec.Struct, frozen=True):
    """A tool call, as passed to hooks."""

    session_id: SessionId
    run_id: RunId
    tool_call_id: ToolCallId
    name: str
    input: dict[str, object]


class HookOutcome(msgspec.Struct, frozen=True):
    """The combined result of all hooks of an event; the strictest decision wins.

    `allow` replaces a permission request, but does not override a rule that denies. `halts` ends the turn. `context` is
    for the model. `input` is the complete new input of the call. `report` is for clients; it is empty if no hook ran.
    """

    decision: HookDecision = ""
    halts: bool = False
    reason: str = ""
    context: str = ""
    input: dict[str, object] | None = None
    report: dict[str, Any] = {}


def event_of(name: str) -> HookEvent | None:
    """Return the event of this name, however it is spelled: `pre_tool_use` is `PreToolUse`."""
    return _EVENTS.get(name.replace("_", "").replace("-", "").lower())


def matcher_trouble(event: HookEvent | None, matcher: str) -> str:
    """Return why a matcher can never match; empty if it can, or if its event has nothing to match."""
    if matcher in ("", "*") or event not in (*_TOOL_EVENTS, "SessionStart"):
        return ""
    try:
        pattern = re.compile(matcher)
    except (re.error, RecursionError, OverflowError) as error:
        return f"the matcher is not a regular expression: {error}. The hook is not run."
    if event == "SessionStart":
        known: tuple[str, ...] = _SOURCES
    else:
        known = (*TOOLS, *CLAUDE_NAMES)
    if "mcp" in matcher or any(pattern.search(name) for name in known):
        return ""
    what = "way in which a session begins" if event == "SessionStart" else "tool"
    return f"the matcher matches no {what}. The hook is never run."
