"""A conversation as blocks, independent of the width. Pure.

A block has a kind and data; `block_render.py` gives it lines. Equal blocks have equal lines, so unchanged blocks need
not be rendered again. For this reason a streamed answer is split into pieces (`split_markdown`): all but the last stay
equal while the text grows.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, TypeAlias

import msgspec

from holdfast.client.terminal_text import final_line
from holdfast.domain.ids import MessageId, RunId, ToolCallId
from holdfast.domain.line_diff import DiffLine, diff_lines, parse_unified_diff
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

__all__ = [
    "AnswerBlock",
    "Block",
    "LineKind",
    "MessageContext",
    "NoticeBlock",
    "OutputLine",
    "PromptBlock",
    "ReasoningBlock",
    "ToolBlock",
    "ToolState",
    "TurnEndBlock",
    "block_headline",
    "blocks_of",
    "change_lines",
    "decode_object",
    "output_lines",
    "question_lines",
    "split_markdown",
]

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_MARK = re.compile(r"^ {0,3}([-*+]( |$)|\d{1,9}([.)]( |$)|$)|>|\|)")
"""Matches the beginning, possibly incomplete, of a line of a list, a quote or a table."""
_MAX_LINES = 2_000
_CHANGES = frozenset({"write", "edit", "multiedit"})
_QUESTION_LINE = re.compile(r"Q(\d{1,3}): (.*)")
_ANSWERED = re.compile(r"^(User answered|User provided|Note): ")
_SELECTED = "User selected: "
_SKIPPED = "User skipped this question"
"""Wording of the result that the model receives; the card shows the labels of the choices instead."""


def split_markdown(text: str) -> list[str]:
    """Split the text at blank lines outside of code, lists, quotes and tables; each piece is valid on its own."""
    chunks: list[str] = []
    lines: list[str] = []
    fence = ""
    blank = False
    for line in text.split("\n"):
        if fence:
            lines.append(line)
            if line.strip().startswith(fence) and not line.strip(" `~"):
                fence = ""
            continue
        if blank and line.strip() and lines and not _continues(lines[0], line):
            chunks.append("\n".join(lines).strip("\n"))
            lines = []
        opening = _FENCE.match(line)
        if opening:
            fence = opening[1]
        blank = not line.strip()
        lines.append(line)
    if any(line.strip() for line in lines):
        chunks.append("\n".join(lines).strip("\n"))
    return chunks


def _continues(first: str, line: str) -> bool:
    """Return True if a line after a blank one belongs to the list or quote that the piece began with."""
    return bool(_MARK.match(first)) and (line.startswith(("  ", "\t")) or bool(_MARK.match(line)))


ToolState = Literal["called", "running", "done", "failed"]


class PromptBlock(msgspec.Struct, frozen=True):
    """A prompt, and its time in Unix seconds."""

    text: str
    files: tuple[str, ...] = ()
    at: int = 0


class AnswerBlock(msgspec.Struct, frozen=True):
    """A piece of an answer. `is_open`: it may grow."""

    text: str
    is_open: bool = False


class ReasoningBlock(msgspec.Struct, frozen=True):
    """Reasoning of the model, folded by default."""

    text: str
    seconds: int = 0
    is_open: bool = False


class ToolBlock(msgspec.Struct, frozen=True):
    """A tool call, with its result if there is one. `steps` are the tool calls of the sub-agent that it
    started.

    `is_own`: the user typed the command.
    """

    name: str
    input: str
    state: ToolState
    content: str = ""
    metadata: str = ""
    output: str = ""
    call: ToolCallId = ToolCallId("")
    steps: tuple["ToolBlock", ...] = ()
    is_own: bool = False


class NoticeBlock(msgspec.Struct, frozen=True):
    """A notice about the turn: cancelled, failed, summarized."""

    kind: Literal["error", "cancelled", "summary", "info"]
    title: str
    text: str = ""


class TurnEndBlock(msgspec.Struct, frozen=True):
    """The last line of a turn: the model, and the duration in seconds."""

    model: str
    seconds: int
    at: int = 0


Block: TypeAlias = PromptBlock | AnswerBlock | ReasoningBlock | ToolBlock | NoticeBlock | TurnEndBlock


def _no_messages(_: MessageId, __: ToolCallId) -> Sequence[Message]:
    return ()


def _unknown_time(_: RunId) -> int:
    return 0


class MessageContext(msgspec.Struct, frozen=True):
    """The context of a message: results and live output of calls, messages of sub-agents, start times of runs."""

    results: Mapping[ToolCallId, ToolResult] = {}
    outputs: Mapping[ToolCallId, str] = {}
    subagent_messages: Callable[[MessageId, ToolCallId], Sequence[Message]] = _no_messages
    run_prompted_at: Callable[[RunId], int] = _unknown_time


def blocks_of(message: Message, context: MessageContext) -> Iterator[Block]:
    """Yield the blocks of one message. Results belong to their calls, so messages of tools have no blocks."""
    if message.role == "user":
        yield from _prompt_blocks(message)
    elif message.role == "assistant":
        yield from _response_blocks(message, context)


def _prompt_blocks(message: Message) -> Iterator[Block]:
    text = "\n".join(part.data.text for part in message.parts if isinstance(part, TextPart))
    files = tuple(part.data.path for part in message.parts if isinstance(part, BinaryPart))
    if text.strip() or files:
        yield PromptBlock(text.strip("\n"), files, message.created_at)
    for part in message.parts:
        if isinstance(part, ShellCommandPart):
            arguments = msgspec.json.encode({"command": part.data.command}).decode()
            code = part.data.exit_code
            ended = msgspec.json.encode({"exit_code": code}).decode()
            yield ToolBlock("shell", arguments, "failed" if code else "done", part.data.output, ended, is_own=True)


def _response_blocks(message: Message, context: MessageContext) -> Iterator[Block]:
    is_open = message.finish is None
    if message.is_summary_message:
        yield NoticeBlock("summary", "Summary of the conversation so far")
    for part in message.parts:
        match part:
            case TextPart(data=text):
                pieces = split_markdown(text.text)
                yield from (AnswerBlock(piece) for piece in pieces[:-1])
                yield from (AnswerBlock(piece, is_open) for piece in pieces[-1:])
            case ReasoningPart(data=thought) if thought.thinking.strip() or not thought.finished_at:
                seconds = max(0, thought.finished_at - thought.started_at) if thought.finished_at else 0
                yield ReasoningBlock(thought.thinking.strip(), seconds, is_open and not thought.finished_at)
            case ToolCallPart(data=call):
                yield _card(
                    call, context.results.get(call.id), context.outputs.get(call.id, ""), _steps(message, call, context)
                )
            case FinishPart(data=finish):
                yield from _finish_notices(finish)
                yield from _turn_end_blocks(message, finish, context)
            case _:
                pass


def _turn_end_blocks(message: Message, finish: Finish, context: MessageContext) -> Iterator[TurnEndBlock]:
    arguments = context.run_prompted_at(message.run_id)
    if arguments and finish.time and finish.reason != "tool_use":
        yield TurnEndBlock(message.model, max(0, finish.time - arguments), finish.time)


def _card(call: ToolCall, result: ToolResult | None, output: str = "", steps: tuple[ToolBlock, ...] = ()) -> ToolBlock:
    if result is None:
        state: ToolState = "running" if call.finished else "called"
        return ToolBlock(call.name, call.input, state, output=output, call=call.id, steps=steps)
    state = "failed" if result.is_error else "done"
    return ToolBlock(call.name, call.input, state, result.content, result.metadata, call=call.id, steps=steps)


def _steps(message: Message, call: ToolCall, context: MessageContext) -> tuple[ToolBlock, ...]:
    """Return the tool calls of the sub-agent that a call started."""
    subagent = context.subagent_messages(message.id, call.id)
    results = {result.tool_call_id: result for item in subagent for result in item.tool_results}
    return tuple(_card(used, results.get(used.id)) for item in subagent for used in item.tool_calls)


def _finish_notices(finish: Finish) -> Iterator[NoticeBlock]:
    match finish.reason:
        case "canceled":
            yield NoticeBlock("cancelled", "Cancelled")
        case "error":
            yield NoticeBlock("error", finish.message or "The run failed", finish.details)
        case "max_tokens":
            yield NoticeBlock("info", "The answer was cut off", "It reached the output limit of the model.")
        case "content_filter":
            yield NoticeBlock("info", "The provider withheld the rest of the answer")
        case _:
            pass


LineKind = Literal["plain", "done", "doing", "todo", "error", "arguments"]
OutputLine: TypeAlias = tuple[LineKind, str]


def decode_object(text: str) -> dict[str, Any]:
    """Decode a JSON object; empty if it is invalid, as for a call that is still being streamed."""
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return {}


def block_headline(card: ToolBlock, directory: str = "") -> str:
    """Return the main argument of the call in one line."""
    arguments = decode_object(card.input)
    for key in ("command", "file_path", "pattern", "url", "path", "prompt", "query", "shell_id"):
        value = arguments.get(key)
        if isinstance(value, str) and value.strip():
            return _argument_text(value, directory) + _extra_arguments(card.name, arguments)
    if card.name == "todos":
        return _progress(decode_object(card.metadata) or arguments)
    if card.name == "question":
        questions = arguments.get("questions")
        return f"{len(questions)} questions" if isinstance(questions, list) and len(questions) > 1 else ""
    return ""


def _argument_text(value: str, directory: str) -> str:
    first, _, rest = value.strip().partition("\n")
    first = first.removeprefix(directory + "/") if directory else first
    return f"{first} …" if rest.strip() else first


def _extra_arguments(name: str, arguments: Mapping[str, Any]) -> str:
    match name:
        case "grep" | "glob" if arguments.get("path"):
            return f"  in {arguments['path']}"
        case "view" if arguments.get("offset"):
            return f"  from line {arguments['offset']}"
        case "bash" if arguments.get("run_in_background"):
            return "  (in the background)"
        case _:
            return ""


def _progress(facts: Mapping[str, Any]) -> str:
    todos = facts.get("todos")
    if not isinstance(todos, list) or not todos:
        return ""
    done = sum(isinstance(todo, dict) and todo.get("status") == "completed" for todo in todos)
    return f"{done} of {len(todos)} done"


def output_lines(card: ToolBlock) -> list[OutputLine]:
    """Return the lines below the headline, up to a limit."""
    if card.state == "failed":
        return [("error", line) for line in islice(_lines(card.content), _MAX_LINES)]
    draw = _BODIES.get(card.name, _plain_lines)
    return list(islice(draw(card), _MAX_LINES))


def _lines(text: str) -> Iterator[str]:
    if shown := text.strip("\n"):
        yield from (final_line(line).expandtabs(4) for line in shown.split("\n"))


def _plain_lines(card: ToolBlock) -> Iterator[OutputLine]:
    yield from (("plain", line) for line in _lines(card.content or card.output))


def _shell(card: ToolBlock) -> Iterator[OutputLine]:
    text = str(decode_object(card.metadata).get("output", "") or card.content or card.output)
    yield from (("plain", line) for line in _lines(text.partition("\n<cwd>")[0]))


def _no_lines(_: ToolBlock) -> Iterator[OutputLine]:
    yield from ()


def change_lines(card: ToolBlock) -> list[DiffLine]:
    """Return the change of a tool that edits files, done or planned."""
    if card.name not in _CHANGES or card.state == "failed":
        return []
    facts = decode_object(card.metadata)
    diff, old, new = facts.get("diff"), facts.get("old_content"), facts.get("new_content")
    if isinstance(diff, str):
        return parse_unified_diff(diff)[:_MAX_LINES]
    if isinstance(new, str):
        return diff_lines(old if isinstance(old, str) else "", new)[:_MAX_LINES]
    arguments = decode_object(card.input)
    if isinstance(arguments.get("content"), str):
        return diff_lines("", arguments["content"])[:_MAX_LINES]
    if isinstance(arguments.get("new_string"), str):
        return diff_lines(str(arguments.get("old_string", "")), arguments["new_string"])[:_MAX_LINES]
    return []


def question_lines(card: ToolBlock) -> Iterator[OutputLine]:
    """Yield the questions, each followed by the user's answer."""
    found = decode_object(card.input).get("questions")
    questions = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
    if not card.content:
        yield from (("arguments", str(item["question"])) for item in questions if item.get("question"))
    labels: dict[str, str] = {}
    for line in _lines(card.content):
        if arguments := _QUESTION_LINE.match(line):
            labels = _labels(questions[int(arguments[1]) - 1]) if 0 < int(arguments[1]) <= len(questions) else {}
            yield "arguments", arguments[2]
        elif line.startswith(_SELECTED):
            yield "plain", f"→ {', '.join(labels.get(name, name) for name in _names(line.removeprefix(_SELECTED)))}"
        elif line == _SKIPPED:
            yield "plain", "→ skipped"
        elif line.strip():
            yield "plain", f"→ {_ANSWERED.sub('', line)}"


def _labels(question: Mapping[str, Any]) -> dict[str, str]:
    """Return the labels of a question's choices by their ids."""
    choices = question.get("choices") or question.get("options")
    known = [item for item in choices if isinstance(item, dict)] if isinstance(choices, list) else []
    return {str(item.get("id")): str(item.get("label") or item.get("id")) for item in known}


def _names(text: str) -> list[str]:
    try:
        return msgspec.json.decode(text, type=list[str])
    except msgspec.DecodeError:
        return [text]


def _todos(card: ToolBlock) -> Iterator[OutputLine]:
    todos = (decode_object(card.metadata) or decode_object(card.input)).get("todos")
    kinds: dict[str, LineKind] = {"completed": "done", "in_progress": "doing"}
    for todo in todos if isinstance(todos, list) else ():
        if isinstance(todo, dict):
            yield kinds.get(str(todo.get("status")), "todo"), str(todo.get("content", ""))


_BODIES: Mapping[str, Callable[[ToolBlock], Iterator[OutputLine]]] = {
    "bash": _shell,
    "job_output": _plain_lines,
    "view": _no_lines,
    "write": _no_lines,
    "edit": _no_lines,
    "multiedit": _no_lines,
    "todos": _todos,
    "question": question_lines,
}
