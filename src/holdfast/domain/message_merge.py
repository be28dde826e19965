"""Growth of messages: the single fold of deltas and whole parts into a message. Pure.

Used by the stores when they read a message, and by the view of every client.
"""

from collections.abc import Iterable

import msgspec

from holdfast.domain.events import MessageDelta, MessagePart
from holdfast.domain.messages import Message, Part, ReasoningPart, TextPart

__all__ = ["grow", "text_length"]


def text_length(part: Part) -> int | None:
    """Return the length of a growing part in code points, or None for a part that does not grow."""
    match part:
        case TextPart(data=data):
            return len(data.text)
        case ReasoningPart(data=data):
            return len(data.thinking)
        case _:
            return None


def grow(message: Message, growth: Iterable[MessageDelta | MessagePart]) -> Message:
    """Return the message after `growth`. Overlapping text is dropped; a delta that would leave a gap is ignored."""
    parts = list(message.parts)
    pieces: dict[int, list[str]] = {}
    lengths: dict[int, int] = {}
    for item in growth:
        if isinstance(item, MessagePart):
            pieces.pop(item.part, None)
            lengths.pop(item.part, None)
            if item.part < len(parts):
                parts[item.part] = item.content
            elif item.part == len(parts):
                parts.append(item.content)
            continue
        if item.part >= len(parts):
            continue
        length = lengths.get(item.part)
        if length is None:
            length = text_length(parts[item.part])
        if length is None or item.offset > length:
            continue
        fresh = item.text[length - item.offset :]
        pieces.setdefault(item.part, []).append(fresh)
        lengths[item.part] = length + len(fresh)
    for index, texts in pieces.items():
        parts[index] = _append_text(parts[index], "".join(texts))
    return msgspec.structs.replace(message, parts=tuple(parts))


def _append_text(part: Part, text: str) -> Part:
    match part:
        case TextPart(data=data):
            return TextPart(msgspec.structs.replace(data, text=data.text + text))
        case ReasoningPart(data=data):
            return ReasoningPart(msgspec.structs.replace(data, thinking=data.thinking + text))
        case _:
            return part
