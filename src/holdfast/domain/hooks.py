"""What hooks are asked, and what they say together: commands of people that are run when something happens."""

from typing import Any, Literal

import msgspec

from holdfast.domain.ids import RunId, SessionId, ToolCallId

__all__ = ["HOOK_EVENTS", "HookDecision", "HookEvent", "Ruling", "ToolUse"]

HookEvent = Literal["PreToolUse", "PostToolUse", "UserPromptSubmit", "RunEnd", "SessionStart"]
"""When hooks are run: around a tool, before a prompt reaches a model, after a run's end, when a session begins."""

HOOK_EVENTS: tuple[HookEvent, ...] = ("PreToolUse", "PostToolUse", "UserPromptSubmit", "RunEnd", "SessionStart")

HookDecision = Literal["", "allow", "ask", "deny"]
"""Empty: no opinion."""


class ToolUse(msgspec.Struct, frozen=True):
    """A tool call, as hooks see it."""

    session_id: SessionId
    run_id: RunId
    tool_call_id: ToolCallId
    name: str
    input: dict[str, object]


class Ruling(msgspec.Struct, frozen=True):
    """What all hooks of an event said together: the strictest counts.

    `allow` spares somebody the question, and outdoes no rule that denies. `halts` ends the turn. `context` is for the
    model. `input` is the call's new input, whole. `report` is for screens, and empty if no hook was run.
    """

    decision: HookDecision = ""
    halts: bool = False
    reason: str = ""
    context: str = ""
    input: dict[str, object] | None = None
    report: dict[str, Any] = {}
