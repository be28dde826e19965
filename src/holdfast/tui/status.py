"""What is going on, in words: for the lines above and below the editor. Pure."""

import re
from collections.abc import Sequence

from holdfast.domain.events import AgentNotice
from holdfast.domain.messages import Message, ReasoningPart, TextPart, ToolCall, ToolCallPart
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session

__all__ = ["activity_of", "ago", "elapsed", "money", "thousands", "usage_of"]

_NAMED = re.compile(r'"(?:command|file_path|pattern|url|path|prompt)"\s*:\s*"((?:[^"\\]|\\.){1,200})')


def elapsed(milliseconds: int) -> str:
    seconds = max(0, milliseconds) // 1000
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes} min {seconds:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def ago(seconds: int) -> str:
    """How long ago something was, roughly."""
    if seconds < 60:
        return "now"
    for size, word in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {word} ago"
    return ""


def thousands(count: int) -> str:
    if count < 1_000:
        return str(count)
    return f"{count / 1_000:.1f}k" if count < 1_000_000 else f"{count / 1_000_000:.1f}M"


def money(dollars: float) -> str:
    return f"${dollars:.2f}" if dollars >= 0.005 or not dollars else f"${dollars:.4f}"


def activity_of(runs: Sequence[Run], last: Message | None, notice: AgentNotice | None = None) -> str:
    """What the session does now; empty when it is idle."""
    if not runs:
        return ""
    head = runs[0]
    if head.state == "cancelling" or head.cancel_requested:
        return "Stopping"
    if notice is not None and notice.error:
        return notice.error
    if head.kind == "summary":
        return "Summarising"
    if last is None or last.role != "assistant" or last.finish is not None:
        return "Waiting for the model" if head.started_at else "Starting"
    part = last.parts[-1] if last.parts else None
    match part:
        case ToolCallPart(data=call):
            return f"Running {_named(call)}" if call.finished else f"Preparing {call.name}"
        case ReasoningPart():
            return "Thinking"
        case TextPart():
            return "Writing"
        case _:
            return "Waiting for the model"


def _named(call: ToolCall) -> str:
    found = _NAMED.search(call.input)
    words = " ".join(found[1].replace("\\n", " ").split())[:60] if found else ""
    return f"{call.name}: {words}" if words else call.name


def usage_of(session: Session, window: int) -> str:
    """Tokens in the context, how full it is, what it cost."""
    tokens = session.prompt_tokens + session.completion_tokens
    parts = [f"{thousands(tokens)} tokens"] if tokens else []
    if tokens and window:
        parts[0] += f" ({100 * tokens // window} %)"
    if session.cost:
        parts.append(money(session.cost))
    return " · ".join(parts)
