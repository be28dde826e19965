"""What is going on, in words: for the lines above and below the editor. Pure."""

from collections.abc import Sequence

from holdfast.domain.messages import Message, ReasoningPart, TextPart, ToolCallPart
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session

__all__ = ["activity_of", "elapsed", "money", "thousands", "usage_of"]


def elapsed(milliseconds: int) -> str:
    seconds = max(0, milliseconds) // 1000
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes} min {seconds:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def thousands(count: int) -> str:
    if count < 1_000:
        return str(count)
    return f"{count / 1_000:.1f}k" if count < 1_000_000 else f"{count / 1_000_000:.1f}M"


def money(dollars: float) -> str:
    return f"${dollars:.2f}" if dollars >= 0.005 or not dollars else f"${dollars:.4f}"


def activity_of(runs: Sequence[Run], last: Message | None) -> str:
    """What the session does now; empty when it is idle."""
    if not runs:
        return ""
    head = runs[0]
    if head.state == "cancelling" or head.cancel_requested:
        return "Stopping"
    if last is None or last.role != "assistant" or last.finish is not None:
        return "Waiting for the model" if head.started_at else "Starting"
    part = last.parts[-1] if last.parts else None
    match part:
        case ToolCallPart(data=call):
            return f"Running {call.name}" if call.finished else f"Preparing {call.name}"
        case ReasoningPart():
            return "Thinking"
        case TextPart():
            return "Writing"
        case _:
            return "Waiting for the model"


def usage_of(session: Session, window: int) -> str:
    """Tokens in the context, how full it is, what it cost."""
    tokens = session.prompt_tokens + session.completion_tokens
    parts = [f"{thousands(tokens)} tokens"] if tokens else []
    if tokens and window:
        parts[0] += f" ({100 * tokens // window} %)"
    if session.cost:
        parts.append(money(session.cost))
    return " · ".join(parts)
