"""What a conversation looks like before it has a width: one block for each thing a person sees. Pure.

A block says what it is and carries the facts; `paint.py` gives it lines. Equal blocks have equal lines, so what
did not change need not be drawn again.
"""

from collections.abc import Iterator, Mapping
from typing import Literal, TypeAlias

import msgspec

from holdfast.domain.ids import ToolCallId
from holdfast.domain.messages import (
    BinaryPart,
    Finish,
    FinishPart,
    Message,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResult,
)
from holdfast.tui.chunks import chunks_of

__all__ = ["Block", "Card", "Note", "Prose", "Saying", "Thought", "blocks_of"]


class Saying(msgspec.Struct, frozen=True):
    """What a person asked."""

    text: str
    files: tuple[str, ...] = ()


class Prose(msgspec.Struct, frozen=True):
    """A piece of an answer. `is_open`: it may grow."""

    text: str
    is_open: bool = False


class Thought(msgspec.Struct, frozen=True):
    """What the model thought, folded unless somebody wants to see it."""

    text: str
    seconds: int = 0
    is_open: bool = False


class Card(msgspec.Struct, frozen=True):
    """A tool at work, or its result."""

    name: str
    input: str
    state: Literal["called", "running", "done", "failed"]
    content: str = ""
    metadata: str = ""
    output: str = ""
    call: ToolCallId = ToolCallId("")


class Note(msgspec.Struct, frozen=True):
    """A word about the turn itself: that it was cancelled, that it failed and what to do."""

    kind: Literal["error", "cancelled", "summary", "info"]
    title: str
    text: str = ""


Block: TypeAlias = Saying | Prose | Thought | Card | Note


def blocks_of(
    message: Message, results: Mapping[ToolCallId, ToolResult], outputs: Mapping[ToolCallId, str]
) -> Iterator[Block]:
    """The blocks of one message. Results stand with their calls, so messages of tools have none of their own."""
    if message.role == "user":
        yield from _asked(message)
    elif message.role == "assistant":
        yield from _answered(message, results, outputs)


def _asked(message: Message) -> Iterator[Block]:
    text = "\n".join(part.data.text for part in message.parts if isinstance(part, TextPart))
    files = tuple(part.data.path for part in message.parts if isinstance(part, BinaryPart))
    if text.strip() or files:
        yield Saying(text.strip("\n"), files)


def _answered(
    message: Message, results: Mapping[ToolCallId, ToolResult], outputs: Mapping[ToolCallId, str]
) -> Iterator[Block]:
    is_open = message.finish is None
    if message.is_summary_message:
        yield Note("summary", "The conversation so far, in short")
    for part in message.parts:
        match part:
            case TextPart(data=text):
                pieces = chunks_of(text.text)
                yield from (Prose(piece) for piece in pieces[:-1])
                yield from (Prose(piece, is_open) for piece in pieces[-1:])
            case ReasoningPart(data=thought) if thought.thinking.strip() or not thought.finished_at:
                seconds = max(0, thought.finished_at - thought.started_at) if thought.finished_at else 0
                yield Thought(thought.thinking.strip(), seconds, is_open and not thought.finished_at)
            case ToolCallPart(data=call):
                result = results.get(call.id)
                yield _card(call.name, call.input, call.id, result, outputs.get(call.id, ""), is_ready=call.finished)
            case FinishPart(data=finish):
                yield from _ending(finish)
            case _:
                pass


def _card(name: str, input: str, call: ToolCallId, result: ToolResult | None, output: str, *, is_ready: bool) -> Card:
    if result is None:
        return Card(name, input, "running" if is_ready else "called", output=output, call=call)
    state: Literal["done", "failed"] = "failed" if result.is_error else "done"
    return Card(name, input, state, result.content, result.metadata, call=call)


def _ending(finish: Finish) -> Iterator[Note]:
    match finish.reason:
        case "canceled":
            yield Note("cancelled", "Cancelled")
        case "error":
            yield Note("error", finish.message or "It failed", finish.details)
        case "max_tokens":
            yield Note("info", "The answer was cut off", "It reached the most that the model may write at once.")
        case "content_filter":
            yield Note("info", "The provider withheld the rest of the answer")
        case _:
            pass
