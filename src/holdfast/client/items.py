"""What a stream hands to its reader: events, decoded once, with their numbers. Pure.

A `Follower` is the part of a resumable reader that has no socket: it knows the last number, and keeps what was
shown from being shown again.
"""

from typing import TypeAlias

import msgspec

from holdfast.domain.events import GapEvent, HelloEvent, Spoken, decode_spoken
from holdfast.protocol.sse import SseEvent

__all__ = ["Follower", "Item", "Other", "decode_item"]


class Other(msgspec.Struct, frozen=True):
    """An event this client has no type for: the server may be newer. `type` is empty if it cannot be read."""

    type: str
    payload: object = None


Said: TypeAlias = Spoken | Other


class Item(msgspec.Struct, frozen=True):
    """One event of a stream. Durable ones have a number."""

    event: Said
    number: int | None = None


_other_decoder = msgspec.json.Decoder(Other)
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)


def decode_item(raw: SseEvent) -> Item:
    """Never fails: an event that cannot be understood still has its number, and the stream goes on behind it."""
    event: Said
    try:
        event = decode_spoken(raw.data)
    except _UNREADABLE:
        try:
            event = _other_decoder.decode(raw.data)
        except _UNREADABLE:
            event = Other("")
    return Item(event, raw.number)


class Follower:
    """Where a reader stands in a numbered log. `since` is the last number it has; 0 asks for all that is held."""

    def __init__(self, since: int) -> None:
        self.since = since

    def accept(self, item: Item) -> bool:
        """Whether the reader is to see this. After a gap the stream goes on at the gap's cursor, wherever that is."""
        if isinstance(item.event, GapEvent):
            self.since = item.event.payload.cursor
        elif item.number is not None and not isinstance(item.event, HelloEvent):
            if item.number <= self.since:
                return False
            self.since = item.number
        return True
