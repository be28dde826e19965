"""Text of the status lines: activity, durations, usage. Pure."""

from collections.abc import Sequence

from holdfast.domain.events import AgentNotice
from holdfast.domain.messages import Message, ReasoningPart, TextPart, ToolCall, ToolCallPart
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.tui.cards import facts_of

__all__ = ["activity_of", "ago", "elapsed", "money", "price", "thousands", "usage_of", "written"]

_LONGEST = 60
_FAR = 200
"""Maximum number of characters of an argument that are examined."""
_LETTERS = 4
"""Average number of characters of a token."""
_NAMES = ("command", "file_path", "pattern", "url", "path", "prompt")


def elapsed(milliseconds: int) -> str:
    """Format a duration."""
    seconds = max(0, milliseconds) // 1000
    if seconds < 60:
        return f"{seconds} s"
    minutes, seconds = divmod(seconds, 60)
    return f"{minutes} min {seconds:02} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02} min"


def ago(seconds: int) -> str:
    """Format an age roughly."""
    if seconds < 60:
        return "now"
    for size, word in ((86_400, "d"), (3_600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {word} ago"
    return ""


def thousands(count: int) -> str:
    """Format a count with a unit."""
    if count < 1_000:
        return str(count)
    number, unit = (count / 1_000, "k") if count < 1_000_000 else (count / 1_000_000, "M")
    return f"{number:.1f}".removesuffix(".0") + unit


def money(dollars: float) -> str:
    """Format an amount of money."""
    return f"${dollars:.2f}" if dollars >= 0.005 or not dollars else f"${dollars:.4f}"


def price(dollars: float) -> str:
    """Format a small price with as many digits as it needs."""
    return f"${dollars:.3g}"


def activity_of(runs: Sequence[Run], last: Message | None, notice: AgentNotice | None = None) -> str:
    """Return what the session does now; empty if it is idle."""
    if not runs:
        return ""
    head = runs[0]
    if head.state == "cancelling" or head.cancel_requested:
        return "Stopping"
    if notice is not None and notice.error:
        return _first_when(notice.error)
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


def _first_when(text: str) -> str:
    """Move the time of the next attempt before the reason, because the line may be too short for both."""
    why, again, when = text.rpartition("Trying again")
    return f"{again}{when.rstrip('.')}: {why.strip()}" if again else text


def _named(call: ToolCall) -> str:
    asked = facts_of(call.input)
    found = next((asked[name] for name in _NAMES if isinstance(asked.get(name), str)), "")
    words = " ".join(found[:_FAR].split())
    if len(words) > _LONGEST:
        words = f"{words[: _LONGEST - 1].rstrip()}…"
    return f"{call.name}: {words}" if words else call.name


def written(last: Message | None) -> int:
    """Estimate the tokens of the current answer; the exact number is known only at its end."""
    if last is None or last.role != "assistant" or last.finish is not None:
        return 0
    letters = 0
    for part in last.parts:
        match part:
            case TextPart(data=text):
                letters += len(text.text)
            case ReasoningPart(data=thought):
                letters += len(thought.thinking)
            case ToolCallPart(data=call):
                letters += len(call.input)
            case _:
                pass
    return letters // _LETTERS


def usage_of(session: Session, window: int, *, is_short: bool = False) -> str:
    """Format the tokens in the context, its usage and the cost."""
    tokens = session.prompt_tokens + session.completion_tokens
    parts = [f"{thousands(tokens)} tokens"] if tokens else []
    if tokens and window:
        share = f"{100 * tokens // window} %"
        parts = [share] if is_short else [f"{parts[0]} ({share})"]
    if session.cost:
        parts.append(money(session.cost))
    return " · ".join(parts)
