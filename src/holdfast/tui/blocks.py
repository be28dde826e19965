"""A conversation as blocks, independent of the width. Pure.

A block has a kind and data; `paint.py` gives it lines. Equal blocks have equal lines, so unchanged blocks need not be
drawn again.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec

from holdfast.domain.ids import MessageId, RunId, ToolCallId
from holdfast.domain.messages import (
    BinaryPart,
    Finish,
    FinishPart,
    Message,
    ReasoningPart,
    ShellCommandPart,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
)
from holdfast.tui.chunks import chunks_of

__all__ = ["Block", "Card", "CardState", "Closing", "Note", "Prose", "Saying", "Scene", "Thought", "blocks_of"]

CardState = Literal["called", "running", "done", "failed"]


class Saying(msgspec.Struct, frozen=True):
    """A prompt, and its time in Unix seconds."""

    text: str
    files: tuple[str, ...] = ()
    at: int = 0


class Prose(msgspec.Struct, frozen=True):
    """A piece of an answer. `is_open`: it may grow."""

    text: str
    is_open: bool = False


class Thought(msgspec.Struct, frozen=True):
    """Reasoning of the model, folded by default."""

    text: str
    seconds: int = 0
    is_open: bool = False


class Card(msgspec.Struct, frozen=True):
    """A tool call, with its result if there is one. `steps` are the tool calls of the sub-agent that it
    started.

    `is_own`: the user typed the command.
    """

    name: str
    input: str
    state: CardState
    content: str = ""
    metadata: str = ""
    output: str = ""
    call: ToolCallId = ToolCallId("")
    steps: tuple["Card", ...] = ()
    is_own: bool = False


class Note(msgspec.Struct, frozen=True):
    """A notice about the turn: cancelled, failed, summarized."""

    kind: Literal["error", "cancelled", "summary", "info"]
    title: str
    text: str = ""


class Closing(msgspec.Struct, frozen=True):
    """The last line of a turn: the model, and the duration in seconds."""

    model: str
    seconds: int
    at: int = 0


Block: TypeAlias = Saying | Prose | Thought | Card | Note | Closing


def _nobody(_: MessageId, __: ToolCallId) -> Sequence[Message]:
    return ()


def _unknown(_: RunId) -> int:
    return 0


class Scene(msgspec.Struct, frozen=True):
    """The context of a message: results and live output of calls, messages of sub-agents, start times of runs."""

    results: Mapping[ToolCallId, ToolResult] = {}
    outputs: Mapping[ToolCallId, str] = {}
    helped: Callable[[MessageId, ToolCallId], Sequence[Message]] = _nobody
    asked_at: Callable[[RunId], int] = _unknown


def blocks_of(message: Message, scene: Scene) -> Iterator[Block]:
    """Yield the blocks of one message. Results belong to their calls, so messages of tools have no blocks."""
    if message.role == "user":
        yield from _asked(message)
    elif message.role == "assistant":
        yield from _answered(message, scene)


def _asked(message: Message) -> Iterator[Block]:
    text = "\n".join(part.data.text for part in message.parts if isinstance(part, TextPart))
    files = tuple(part.data.path for part in message.parts if isinstance(part, BinaryPart))
    if text.strip() or files:
        yield Saying(text.strip("\n"), files, message.created_at)
    for part in message.parts:
        if isinstance(part, ShellCommandPart):
            asked = msgspec.json.encode({"command": part.data.command}).decode()
            code = part.data.exit_code
            ended = msgspec.json.encode({"exit_code": code}).decode()
            yield Card("shell", asked, "failed" if code else "done", part.data.output, ended, is_own=True)


def _answered(message: Message, scene: Scene) -> Iterator[Block]:
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
                yield _card(
                    call, scene.results.get(call.id), scene.outputs.get(call.id, ""), _steps(message, call, scene)
                )
            case FinishPart(data=finish):
                yield from _ending(finish)
                yield from _closing(message, finish, scene)
            case _:
                pass


def _closing(message: Message, finish: Finish, scene: Scene) -> Iterator[Closing]:
    asked = scene.asked_at(message.run_id)
    if asked and finish.time and finish.reason != "tool_use":
        yield Closing(message.model, max(0, finish.time - asked), finish.time)


def _card(call: ToolCall, result: ToolResult | None, output: str = "", steps: tuple[Card, ...] = ()) -> Card:
    if result is None:
        state: CardState = "running" if call.finished else "called"
        return Card(call.name, call.input, state, output=output, call=call.id, steps=steps)
    state = "failed" if result.is_error else "done"
    return Card(call.name, call.input, state, result.content, result.metadata, call=call.id, steps=steps)


def _steps(message: Message, call: ToolCall, scene: Scene) -> tuple[Card, ...]:
    """Return the tool calls of the sub-agent that a call started."""
    said = scene.helped(message.id, call.id)
    results = {result.tool_call_id: result for item in said for result in item.tool_results}
    return tuple(_card(used, results.get(used.id)) for item in said for used in item.tool_calls)


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
