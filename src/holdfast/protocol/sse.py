"""Server-sent events, both ways: frames for the wire, and a reader that takes them apart again. Pure.

A frame is `[id: N\\n]data: <one line of JSON>\\n\\n`. The resumable form numbers its durable events; the form
stock clients know has `data:` lines only.
"""

from typing import NamedTuple

__all__ = ["HEARTBEAT", "QUIET_HEARTBEAT", "SseEvent", "SseReader", "frame"]

HEARTBEAT = b": still here\n\n"
"""A comment as keep-alive, for readers of the resumable form."""

QUIET_HEARTBEAT = b"\n"
"""A blank line as keep-alive, which stock clients ignore."""


def frame(body: bytes, number: int | None = None) -> bytes:
    """Return one event in the wire format."""
    if number is None:
        return b"data: " + body + b"\n\n"
    return b"id: %d\ndata: " % number + body + b"\n\n"


class SseEvent(NamedTuple):
    """One received event. `number` is set for durable events of the resumable form."""

    data: bytes
    number: int | None = None


class SseReader:
    """Parses bytes, split anywhere, into whole events. An incomplete event is kept for the next call."""

    def __init__(self) -> None:
        self._rest: list[bytes] = []
        self._data: list[bytes] = []
        self._number: int | None = None

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that are complete after this chunk."""
        self._rest.append(chunk)
        if b"\n" not in chunk:
            # A long line that arrives in many pieces is joined once, when it is complete.
            return []
        *lines, rest = b"".join(self._rest).split(b"\n")
        self._rest = [rest]
        events: list[SseEvent] = []
        for line in lines:
            event = self._line(line.removesuffix(b"\r"))
            if event is not None:
                events.append(event)
        return events

    def _line(self, line: bytes) -> SseEvent | None:
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data.append(value)
        elif name == b"id" and value.isdigit():
            self._number = int(value)
        return None

    def _dispatch(self) -> SseEvent | None:
        data, self._data = self._data, []
        number, self._number = self._number, None
        return SseEvent(b"\n".join(data), number) if data else None
