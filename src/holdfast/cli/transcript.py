"""A conversation as text. Pure."""

from collections.abc import Sequence

from holdfast.domain.messages import BinaryPart, Message, TextPart, ToolCallPart, ToolResultPart, text_of
from holdfast.domain.sessions import Session

__all__ = ["as_markdown", "as_text", "ending_of"]


def as_text(messages: Sequence[Message]) -> str:
    """Prompts behind `>`, tools in brackets, answers as they are."""
    return "\n\n".join(text for message in messages if (text := _plain(message)))


def as_markdown(session: Session, messages: Sequence[Message]) -> str:
    blocks = [f"# {session.title}"]
    for message in messages:
        if message.role == "user":
            blocks.append(f"## You\n\n{text_of(message)}")
        elif message.role == "assistant" and (text := _plain(message)):
            blocks.append(f"## {message.model or 'Assistant'}\n\n{text}")
        elif message.role == "tool":
            blocks += [f"```\n{part.data.content}\n```" for part in message.parts if isinstance(part, ToolResultPart)]
    return "\n\n".join(blocks) + "\n"


def ending_of(message: Message) -> str:
    """A word for an answer that did not end well."""
    finish = message.finish
    if finish is None or finish.reason not in ("canceled", "error"):
        return ""
    return f"[{finish.message or finish.reason}]"


def _plain(message: Message) -> str:
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
    return "\n".join(line for line in [*lines, ending_of(message)] if line)
