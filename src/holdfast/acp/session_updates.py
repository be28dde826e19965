"""Converts events of a session to ACP session updates. Pure.

An editor appends updates and never removes them, so each piece of content is sent once: of a text the new part, of a
tool call the changes. A snapshot followed by later events produces the same updates as the complete event stream.
"""

from base64 import b64encode

import msgspec

from holdfast.acp.tool_calls import (
    Json,
    call_locations,
    call_title,
    file_diffs,
    parse_object,
    plan_update,
    result_update,
    text_block,
    tool_kind,
)
from holdfast.client.text_once import StreamedText
from holdfast.domain.events import MessageDelta, MessagePart, ToolOutput
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.messages import (
    Binary,
    BinaryPart,
    FinishPart,
    Message,
    Part,
    ReasoningPart,
    ShellCommand,
    ShellCommandPart,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
)
from holdfast.domain.sessions import Session, Todo

__all__ = ["SessionUpdates", "note"]

_RETRY_NOTE = "The provider failed; the request is repeated."
_MAX_OUTPUT = 4_000
_MAX_STEPS = 12


class _Call(msgspec.Struct, frozen=True):
    """A tool call that was sent: its message, its id for the editor, and its status there."""

    call: ToolCall
    message: MessageId
    name: str
    status: str


class _MessageState(msgspec.Struct):
    """State of one message."""

    message: Message
    texts: dict[tuple[int, str], StreamedText] = {}
    parts: set[int] = set()
    """Parts that are sent as a whole and were sent."""


class SessionUpdates:
    """Update source of one session. Paths are displayed relative to `directory`, the workspace directory."""

    def __init__(self, session: SessionId, directory: str) -> None:
        self.session = session
        self._directory = directory
        self._messages: dict[MessageId, _MessageState] = {}
        self._calls: dict[ToolCallId, _Call] = {}
        """Sent tool calls, the latest for each id."""
        self._call_count = 0
        self._outputs: dict[ToolCallId, str] = {}
        self._steps: dict[ToolCallId, list[str]] = {}
        self._todos: tuple[Todo, ...] = ()
        self._title = ""
        self._size: tuple[int, float] = (0, 0.0)
        self.own_runs: set[RunId] = set()
        """Runs of the editor's own prompts, which it displays already."""

    # Durable events

    def message(self, message: Message, *, is_replay: bool = False) -> list[Json]:
        """Return updates for the new content of a message."""
        state = self._messages.get(message.id)
        if state is None:
            state = self._messages[message.id] = _MessageState(message, {}, set())
        state.message = message
        updates: list[Json] = []
        for index, part in enumerate(message.parts):
            updates += self._part(state, index, part, is_replay=is_replay)
        return updates

    def session_state(self, session: Session, window: int = 0) -> list[Json]:
        """Return updates for the plan, the title and the context usage, where they have changed."""
        updates: list[Json] = []
        if session.todos != self._todos:
            self._todos = session.todos
            updates.append(plan_update(session.todos))
        if session.title != self._title:
            self._title = session.title
            updates.append({"sessionUpdate": "session_info_update", "title": session.title})
        size = (session.prompt_tokens + session.completion_tokens, session.cost)
        if window and size != self._size:
            self._size = size
            cost = {"amount": round(session.cost, 6), "currency": "USD"}
            updates.append({"sessionUpdate": "usage_update", "used": size[0], "size": window, "cost": cost})
        return updates

    def run_ended(self, outcome: str) -> list[Json]:
        """Return updates for the open tool calls of an ended run, which receive no result any more."""
        word = "completed" if outcome == "completed" else "failed"
        return [update for id in tuple(self._calls) for update in self._status(id, word)]

    # Live events

    def delta(self, delta: MessageDelta) -> list[Json]:
        """Return updates for a text delta."""
        state = self._messages.get(delta.message_id)
        if state is None or delta.part >= len(state.message.parts):
            return []
        kind = _chunk_kind(state.message.parts[delta.part])
        return self._text_updates(state, (delta.part, kind), delta.offset, delta.text) if kind else []

    def part(self, part: MessagePart) -> list[Json]:
        """Return updates for a complete part."""
        state = self._messages.get(part.message_id)
        if state is None or part.part > len(state.message.parts):
            return []
        parts = list(state.message.parts)
        parts[part.part : part.part + 1] = [part.content]
        state.message = msgspec.structs.replace(state.message, parts=tuple(parts))
        return self._part(state, part.part, part.content)

    def output(self, output: ToolOutput) -> list[Json]:
        """Return an update with the latest output of a running tool."""
        if output.tool_call_id not in self._calls:
            return []
        text = (self._outputs.get(output.tool_call_id, "") + output.text)[-_MAX_OUTPUT:]
        self._outputs[output.tool_call_id] = text
        name = self._calls[output.tool_call_id].name
        return [_progress(name, content=[text_block(f"```\n{text}\n```")])]

    def subagent_steps(self, call: ToolCallId, message: Message) -> list[Json]:
        """Return an update with the steps of a sub-agent, attached to the tool call that started it."""
        if call not in self._calls:
            return []
        steps = self._steps.setdefault(call, [])
        before = len(steps)
        for item in message.tool_calls:
            title = call_title(item.name, parse_object(item.input), self._directory)
            line = title if title.startswith(item.name) else f"{item.name}: {title}"
            if item.finished and line not in steps:
                steps.append(line)
        if len(steps) == before:
            return []
        lines = "\n".join(f"- {step}" for step in steps[-_MAX_STEPS:])
        return [_progress(self._calls[call].name, content=[text_block(lines)])]

    def permission_status(self, call: ToolCallId, *, is_open: bool) -> list[Json]:
        """Return an update for a call that waits for permission, or no longer waits."""
        return self._status(call, "pending" if is_open else "in_progress")

    def tool_call(self, call: ToolCallId) -> tuple[ToolCall | None, str]:
        """Return a sent tool call and its id for the editor."""
        known = self._calls.get(call)
        return (known.call, known.name) if known else (None, call)

    # Parts

    def _part(self, state: _MessageState, index: int, part: Part, *, is_replay: bool = False) -> list[Json]:
        message = state.message
        match part:
            case TextPart() | ReasoningPart():
                return self._text(state, index, part, is_replay=is_replay)
            case ToolCallPart(data=call):
                return self._call(message.id, call)
            case ToolResultPart(data=result):
                return self._result(result)
            case BinaryPart(data=file) if self._is_first(state, index) and self._is_shown(message, is_replay=is_replay):
                return [_image_chunk(file)] if file.mime_type.startswith("image/") else []
            case ShellCommandPart(data=shell) if self._is_first(state, index):
                return [_shell_call(f"{message.id}-{index}", shell)]
            case FinishPart(data=finish) if finish.reason == "error" and self._is_first(state, index):
                # The sender of the prompt receives the error in the response to it.
                is_reported = message.run_id in self.own_runs and not is_replay
                return (
                    []
                    if is_reported
                    else [
                        _chunk("agent_message_chunk", f"\n\n**Failed:** {finish.details or finish.message or 'error'}")
                    ]
                )
            case _:
                return []

    def _text(self, state: _MessageState, index: int, part: Part, *, is_replay: bool) -> list[Json]:
        kind = "user_message_chunk" if state.message.role == "user" else _chunk_kind(part)
        updates = self._text_updates(state, (index, kind), 0, _text_of(part))
        return updates if self._is_shown(state.message, is_replay=is_replay) else []

    def _text_updates(self, state: _MessageState, place: tuple[int, str], offset: int, text: str) -> list[Json]:
        new_part, is_restart = state.texts.setdefault(place, StreamedText()).add(offset, text)
        notice = [note(_RETRY_NOTE)] if is_restart else []
        return [*notice, _chunk(place[1], new_part)] if new_part else notice

    def _is_shown(self, message: Message, *, is_replay: bool) -> bool:
        return message.role != "user" or is_replay or message.run_id not in self.own_runs

    def _is_first(self, state: _MessageState, index: int) -> bool:
        is_first = index not in state.parts
        state.parts.add(index)
        return is_first

    def _call(self, message: MessageId, call: ToolCall) -> list[Json]:
        known = self._calls.get(call.id)
        if known is not None and known.message != message:
            # Some models reuse call ids in each response; an editor requires unique ids.
            known = None
        if known is not None and known.call.finished:
            return []
        if known is None:
            self._call_count += 1
        name = known.name if known else call.id if call.id not in self._calls else f"{call.id}-{self._call_count}"
        status = "in_progress" if call.finished else "pending"
        self._calls[call.id] = _Call(call, message, name, status)
        arguments = parse_object(call.input)
        update: Json = {
            "sessionUpdate": "tool_call" if known is None else "tool_call_update",
            "toolCallId": name,
            "title": call_title(call.name, arguments, self._directory),
            "kind": tool_kind(call.name),
            "status": status,
        }
        if call.finished:
            diffs = file_diffs(arguments, {}, self._directory) if tool_kind(call.name) == "edit" else []
            locations = call_locations(arguments, self._directory)
            update |= {"rawInput": arguments, **({"locations": locations} if locations else {})}
            update |= {"content": diffs} if diffs else {}
        return [update]

    def _result(self, result: ToolResult) -> list[Json]:
        known = self._calls.get(result.tool_call_id)
        if known is None:
            return []
        update = result_update(known.call, result, self._directory)
        if known.status == update["status"]:
            return []
        self._calls[result.tool_call_id] = msgspec.structs.replace(known, status=update["status"])
        self._outputs.pop(result.tool_call_id, None)
        self._steps.pop(result.tool_call_id, None)
        return [{"sessionUpdate": "tool_call_update", "toolCallId": known.name, **update}]

    def _status(self, id: ToolCallId, status: str) -> list[Json]:
        known = self._calls.get(id)
        if known is None or known.status == status or known.status in ("completed", "failed"):
            return []
        self._calls[id] = msgspec.structs.replace(known, status=status)
        return [_progress(known.name, status=status)]


def _chunk_kind(part: Part) -> str:
    match part:
        case TextPart():
            return "agent_message_chunk"
        case ReasoningPart():
            return "agent_thought_chunk"
        case _:
            return ""


def _text_of(part: Part) -> str:
    match part:
        case TextPart(data=data):
            return data.text
        case ReasoningPart(data=data):
            return data.thinking
        case _:
            return ""


def _chunk(kind: str, text: str) -> Json:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": text}}


def note(text: str) -> Json:
    """Return an update with a note beside the answer."""
    return _chunk("agent_thought_chunk", f"\n\n*{text}*\n\n")


def _progress(call: str, **more: object) -> Json:
    return {"sessionUpdate": "tool_call_update", "toolCallId": call, **more}


def _image_chunk(file: Binary) -> Json:
    content = {"type": "image", "data": b64encode(file.data).decode(), "mimeType": file.mime_type}
    return {"sessionUpdate": "user_message_chunk", "content": content}


def _shell_call(name: str, shell: ShellCommand) -> Json:
    """Return a tool call for a shell command of the user."""
    return {
        "sessionUpdate": "tool_call",
        "toolCallId": name,
        "title": f"$ {shell.command}",
        "kind": "execute",
        "status": "completed" if shell.exit_code == 0 else "failed",
        "content": [text_block(f"```\n{shell.output}\n```")],
    }
