"""Converts stored messages to a conversation that every provider accepts. Pure.

Guaranteed whatever was interrupted, cancelled or deleted before: no empty turn, each tool call directly followed by
exactly one result, no result without its call, a user's message first, arguments that are JSON objects.
"""

from base64 import b64decode
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.domain.ids import MessageId, ToolCallId
from holdfast.domain.messages import (
    Binary,
    BinaryPart,
    Message,
    Part,
    ReasoningPart,
    ShellCommandPart,
    Text,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
    text_of,
)
from holdfast.domain.model_requests import ModelInfo

__all__ = ["conversation", "has_user_text", "shortened", "size_of"]

_LONG_RESULT = 2_000
_MIN_MESSAGES = 3

_LOST_RESULT = "No result: this call was interrupted. It may have had effects."
_IMAGE_FOLLOWS = "[The image is in the message after the results.]"
_IMAGES_LEFT_OUT = "[An image was attached, but this model cannot see images.]"


def conversation(
    messages: Sequence[Message],
    info: ModelInfo,
    *,
    summary: MessageId | None = None,
    note: str = "",
    beside: Mapping[MessageId, str] | None = None,
) -> tuple[Message, ...]:
    """Return the messages to send. With a summary the conversation begins there; `note` is added after it. `beside` has
    texts to send as a first part of a message of the user, so that the prompt itself stays last.
    """
    beside = beside or {}
    kept = _since_summary(messages, summary, note)
    out: list[Message] = []
    for index, message in enumerate(kept):
        if message.role == "user":
            first = (TextPart(Text(beside[message.id])),) if message.id in beside else ()
            _add_user(out, msgspec.structs.replace(message, parts=first + message.parts), info)
        elif message.role == "assistant" and out:
            _add_assistant(out, message, _results_of(kept, index), info)
    return tuple(out)


def has_user_text(messages: Iterable[Message]) -> bool:
    """Return whether a user message contains text."""
    return any(message.role == "user" and text_of(message).strip() for message in messages)


def size_of(messages: Iterable[Message]) -> int:
    """Return the number of characters that the model reads, to estimate tokens if the provider reports no usage."""
    return sum(_size(part) for message in messages for part in message.parts)


def shortened(messages: Sequence[Message]) -> Sequence[Message]:
    """Return about half of a conversation: long results are cut first; if that is not enough, the older half of the
    messages is dropped, except the first one.

    Returns the same conversation if it cannot be shortened.
    """
    cut = [msgspec.structs.replace(message, parts=tuple(map(_cut_result, message.parts))) for message in messages]
    if size_of(cut) <= size_of(messages) // 2 or len(messages) <= _MIN_MESSAGES:
        return cut if cut != list(messages) else messages
    return [cut[0], *cut[len(cut) // 2 :]]


def _cut_result(part: Part) -> Part:
    match part:
        case ToolResultPart(data=result) if len(result.content) > _LONG_RESULT:
            half = _LONG_RESULT // 2
            kept = f"{result.content[:half]}\n[…]\n{result.content[-half:]}"
            return ToolResultPart(msgspec.structs.replace(result, content=kept, data="", mime_type=""))
        case _:
            return part


def _size(part: Part) -> int:
    match part:
        case TextPart(data=text):
            return len(text.meant or text.text)
        case ReasoningPart(data=reasoning):
            return len(reasoning.thinking)
        case ToolCallPart(data=call):
            return len(call.name) + len(call.input)
        case ToolResultPart(data=result):
            return len(result.content)
        case _:
            return 0


def _since_summary(messages: Sequence[Message], summary: MessageId | None, note: str) -> list[Message]:
    start = next((i for i, message in enumerate(messages) if message.id == summary), None) if summary else None
    rest = messages if start is None else messages[start + 1 :]
    kept = [message for message in rest if not message.is_summary_message]
    if start is None:
        return kept
    text = "\n\n".join(piece for piece in (text_of(messages[start]), note) if piece)
    # From here on it is a user's message like any other: what was built can be built into a conversation again.
    begin = msgspec.structs.replace(
        messages[start], role="user", parts=(TextPart(Text(text)),), is_summary_message=False
    )
    return [begin, *kept]


def _results_of(messages: Sequence[Message], index: int) -> dict[ToolCallId, ToolResult]:
    """Return the first result of each call of this message, found before the next response: some providers use
    the same call ids in every message.
    """
    found: dict[ToolCallId, ToolResult] = {}
    for position in range(index + 1, len(messages)):
        message = messages[position]
        if message.role == "assistant":
            break
        for result in message.tool_results:
            found.setdefault(result.tool_call_id, result)
    return found


def _add_user(out: list[Message], message: Message, info: ModelInfo) -> None:
    parts = tuple(_user_parts(message, info))
    if not parts:
        return
    if out and out[-1].role == "user":
        # A turn that left no answer is followed by the next prompt: many providers want roles to alternate.
        out[-1] = msgspec.structs.replace(out[-1], parts=out[-1].parts + parts)
    else:
        out.append(msgspec.structs.replace(message, parts=parts))


def _user_parts(message: Message, info: ModelInfo) -> Iterable[Part]:
    for part in message.parts:
        match part:
            case TextPart(data=data) if data.meant or data.text.strip():
                yield TextPart(Text(data.meant)) if data.meant else part
            case ShellCommandPart(data=shell):
                yield TextPart(Text(f"$ {shell.command}\n{shell.output}\n(exit code {shell.exit_code})"))
            case BinaryPart(data=data) if data.mime_type.startswith("text/"):
                content = data.data.decode("utf-8", "replace")
                yield TextPart(Text(f'<file path="{data.path}">\n{content}\n</file>'))
            case BinaryPart(data=data):
                yield part if info.supports_images else TextPart(Text(_left_out(data.path)))
            case _:
                pass


def _left_out(path: str) -> str:
    return f"[{path} was attached, but this model cannot see images.]" if path else _IMAGES_LEFT_OUT


def _add_assistant(
    out: list[Message], message: Message, results: dict[ToolCallId, ToolResult], info: ModelInfo
) -> None:
    parts = tuple(_assistant_parts(message, info))
    if not any(isinstance(part, TextPart | ToolCallPart) for part in parts):
        return
    if out[-1].role == "assistant":
        # The prompt between two answers may be gone, or had nothing to send.
        out[-1] = msgspec.structs.replace(out[-1], parts=out[-1].parts + parts)
    else:
        out.append(msgspec.structs.replace(message, parts=parts))
    answer = out[-1]
    images: list[Part] = []
    for part in parts:
        if isinstance(part, ToolCallPart):
            call = part.data
            result = results.get(call.id) or ToolResult(call.id, call.name, _LOST_RESULT, "", is_error=True)
            if result.data and info.supports_images and not info.takes_media_in_results:
                images.append(_image_message(result))
                result = msgspec.structs.replace(
                    result, data="", mime_type="", content=f"{result.content}\n{_IMAGE_FOLLOWS}"
                )
            out.append(_answer(answer, result, info))
    if images:
        id = MessageId(f"{answer.id}:pictures")
        out.append(msgspec.structs.replace(answer, role="user", id=id, parts=tuple(images)))


def _image_message(result: ToolResult) -> Part:
    """Send an image of a tool result in a user message after it, because most providers accept none in a result."""
    try:
        return BinaryPart(Binary(f"{result.name}-{result.tool_call_id}", result.mime_type, b64decode(result.data)))
    except ValueError:
        return TextPart(Text("[The image of this result is damaged.]"))


def _assistant_parts(message: Message, info: ModelInfo) -> Iterable[Part]:
    is_own = (message.provider, message.model) == (info.provider, info.model)
    seen: set[ToolCallId] = set()
    for part in message.parts:
        match part:
            case TextPart(data=data) if data.text.strip():
                yield part
            case ReasoningPart(data=thought):
                # A signature is valid for the model that made it; others refuse the request.
                yield part if is_own else ReasoningPart(msgspec.structs.replace(thought, signature="", redacted=()))
            case ToolCallPart(data=data) if data.id not in seen:
                seen.add(data.id)
                yield ToolCallPart(_sendable(data))
            case _:
                pass


def _sendable(call: ToolCall) -> ToolCall:
    try:
        msgspec.json.decode(call.input, type=dict[str, object])
    except (msgspec.DecodeError, RecursionError):
        return msgspec.structs.replace(call, input="{}", finished=True)
    return call


def _answer(call_message: Message, result: ToolResult, info: ModelInfo) -> Message:
    content = result.content.strip() and result.content
    shown = msgspec.structs.replace(result, content=content or "(no output)", metadata="")
    if result.data and not info.supports_images:
        shown = msgspec.structs.replace(shown, data="", mime_type="", content=f"{shown.content}\n{_IMAGES_LEFT_OUT}")
    return msgspec.structs.replace(
        call_message,
        role="tool",
        id=MessageId(f"{call_message.id}:{result.tool_call_id}"),
        parts=(ToolResultPart(shown),),
    )
