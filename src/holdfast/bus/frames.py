"""Frames: an event with its number and its single encoding. Pure."""

import msgspec

from holdfast.domain.events import Gap, GapEvent, Hello, HelloEvent, StreamedEvent, decode_event, encode_event

__all__ = ["Frame", "Gap", "GapEvent", "Hello", "HelloEvent", "StreamedEvent"]

_encoder = msgspec.json.Encoder()


def _encode(event: StreamedEvent) -> bytes:
    if isinstance(event, HelloEvent | GapEvent):
        return _encoder.encode(event)
    return encode_event(event)


class Frame:
    """One event for all its readers. `index` is its position in the backlog, 0 if it was made for one reader.

    A frame is created from the event or from its bytes. The other form is computed on first use and then
    shared.
    """

    __slots__ = ("_body", "_event", "index", "number")

    def __init__(
        self, index: int = 0, *, number: int | None = None, event: StreamedEvent | None = None, body: bytes = b""
    ) -> None:
        self.index = index
        self.number = number
        self._event = event
        self._body = body

    @property
    def event(self) -> StreamedEvent:
        """The decoded event."""
        event = self._event
        if event is None:
            event = self._event = decode_event(self._body)
        return event

    @property
    def body(self) -> bytes:
        """The JSON that is sent: `{"type": T, "payload": P}`."""
        body = self._body
        if not body:
            body = self._body = _encode(self.event)
        return body
