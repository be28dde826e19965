"""Decoded stream events with their numbers. Pure.

`CursorFilter` is the part of a resumable reader that needs no socket: it tracks the last number and drops duplicates.
"""

from typing import TypeAlias

import msgspec

from holdfast.domain.events import GapEvent, HelloEvent, StreamedEvent, decode_streamed_event
from holdfast.http11.sse import SseEvent

__all__ = ["CursorFilter", "StreamEvent", "UnknownEvent", "decode_event"]


class UnknownEvent(msgspec.Struct, frozen=True):
    """An event of an unknown type, for example of a newer server. `type` is empty if the event cannot be decoded."""

    type: str
    payload: object = None


ReceivedEvent: TypeAlias = StreamedEvent | UnknownEvent


class StreamEvent(msgspec.Struct, frozen=True):
    """One event of a stream. Durable events have a number."""

    event: ReceivedEvent
    number: int | None = None


_other_decoder = msgspec.json.Decoder(UnknownEvent)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)


def decode_event(raw: SseEvent) -> StreamEvent:
    """Decode an event. Never raises: an event that cannot be decoded keeps its number, and the stream continues."""
    event: ReceivedEvent
    try:
        event = decode_streamed_event(raw.data)
    except _UNREADABLE:
        try:
            event = _other_decoder.decode(raw.data)
        except _UNREADABLE:
            event = UnknownEvent("")
    return StreamEvent(event, raw.number)


class CursorFilter:
    """Position of a reader in the numbered log. `since` is the last number received; 0 requests all stored events."""

    def __init__(self, since: int) -> None:
        self.since = since

    def accept(self, item: StreamEvent) -> bool:
        """Return whether the event is new. After a gap the stream continues at the cursor of the gap event."""
        if isinstance(item.event, GapEvent):
            self.since = item.event.payload.cursor
        elif item.number is not None and not isinstance(item.event, HelloEvent):
            if item.number <= self.since:
                return False
            self.since = item.number
        return True
