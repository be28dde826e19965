"""A conversation as text. Pure."""

from collections.abc import Sequence

import msgspec

from holdfast.domain.messages import (
    BinaryPart,
    Message,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
    text_of,
)
from holdfast.domain.sessions import Session

__all__ = ["as_markdown", "as_text", "finish_notice", "last_output_lines", "main_argument"]


def as_text(messages: Sequence[Message]) -> str:
    """Return the conversation as text: prompts after `>`, tool calls in brackets, answers unchanged."""
    return "\n\n".join(text for message in messages if (text := _plain_text(message)))


def as_markdown(session: Session, messages: Sequence[Message]) -> str:
    """Return the conversation as Markdown."""
    blocks = [f"# {session.title}"]
    for message in messages:
        if message.role == "user":
            blocks.append(f"## You\n\n{text_of(message)}")
        elif message.role == "assistant" and (text := _plain_text(message)):
            blocks.append(f"## {message.model or 'Assistant'}\n\n{text}")
        elif message.role == "tool":
            blocks += [f"```\n{part.data.content}\n```" for part in message.parts if isinstance(part, ToolResultPart)]
    return "\n\n".join(blocks) + "\n"


def finish_notice(message: Message) -> str:
    """Return a notice for an answer that was cancelled or failed."""
    finish = message.finish
    if finish is None or finish.reason not in ("canceled", "error"):
        return ""
    return f"[{': '.join(word for word in (finish.message or finish.reason, finish.details) if word)}]"


_MAIN_ARGUMENTS = ("command", "file_path", "pattern", "url", "path", "prompt")
_MAX_ARGUMENT = 200
_MAX_OUTPUT_LINES = 8


def main_argument(call: ToolCall) -> str:
    """Return the main argument of a tool call in one line; empty if there is none."""
    try:
        arguments = msgspec.json.decode(call.input, type=dict[str, object])
    except msgspec.DecodeError:
        return ""
    words = " ".join(str(next((arguments[name] for name in _MAIN_ARGUMENTS if arguments.get(name)), "")).split())
    return words if len(words) <= _MAX_ARGUMENT else f"{words[: _MAX_ARGUMENT - 1]}…"


def last_output_lines(result: ToolResult) -> list[str]:
    """Return the last lines of a command's output."""
    lines = result.content.partition("\n<cwd>")[0].strip("\n").splitlines()
    return (
        lines
        if len(lines) <= _MAX_OUTPUT_LINES + 1
        else [f"… {len(lines) - _MAX_OUTPUT_LINES} earlier lines", *lines[-_MAX_OUTPUT_LINES:]]
    )


def _plain_text(message: Message) -> str:
    if message.role == "user":
        files = [f"[file {part.data.path}]" for part in message.parts if isinstance(part, BinaryPart)]
        return "\n".join([*("> " + line for line in text_of(message).splitlines()), *files])
    if message.role != "assistant":
        return ""
    lines: list[str] = []
    for part in message.parts:
        match part:
            case TextPart(data=data):
                lines.append(data.text)
            case ToolCallPart(data=call):
                lines.append(f"[tool {call.name}]")
            case _:
                pass
    return "\n".join(line for line in [*lines, finish_notice(message)] if line)
