"""Server-sent events: the incremental reader of clients, and the frames of the server. Pure, and fast to import."""

from typing import NamedTuple

__all__ = ["HEARTBEAT", "QUIET_HEARTBEAT", "SseEvent", "SseReader", "frame"]


_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class SseEvent(NamedTuple):
    """One received event. `number` is its id if that is a number, as for durable events of a Holdfast server."""

    data: bytes
    number: int | None = None


# Creates a named tuple without the interpreted constructor, which would take longer than parsing a token.
_new_event = tuple.__new__


class SseReader:
    """Parses bytes, split anywhere, into complete events. An incomplete event is kept for the next call.

    The data lines of an event are joined by newlines. Event names, retry times and comments are ignored: neither
    Holdfast nor the model APIs that are read here need them.
    """

    def __init__(self) -> None:
        # Pieces of an incomplete line. A long line that arrives in many pieces is joined once, when it is complete.
        self._tail: list[bytes] = []
        self._data: list[bytes] = []
        self._number: int | None = None
        self._is_first_line = True

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events that are complete after this chunk."""
        end = chunk.find(b"\n")
        if end < 0:
            if chunk:
                self._tail.append(chunk)
            return []
        if self._tail:
            self._tail.append(chunk)
            chunk = b"".join(self._tail)
        elif end == len(chunk) - 2 and not self._data and chunk[:6] == b"data: " and chunk[-1:] == b"\n":
            # Fast path: exactly one event of one line, the common case of a model's token.
            number, self._number = self._number, None
            return [_new_event(SseEvent, (chunk[6:end], number))]
        if b"\r" in chunk:
            chunk = chunk.replace(b"\r\n", b"\n")
        lines = chunk.split(b"\n")
        rest = lines.pop()
        self._tail = [rest] if rest else []
        return self._parse(lines)

    def end(self) -> list[SseEvent]:
        """Return the last event if only its empty line is missing. Some model servers omit it."""
        lines, self._tail = [b"".join(self._tail).removesuffix(b"\r"), b""], []
        return self._parse(lines)

    def _parse(self, lines: list[bytes]) -> list[SseEvent]:
        if self._is_first_line:
            self._is_first_line = False
            lines[0] = lines[0].removeprefix(_BYTE_ORDER_MARK)
        events: list[SseEvent] = []
        data = self._data
        for line in lines:
            if line[:6] == b"data: ":
                data.append(line[6:])
            elif not line:
                if data:
                    joined = data[0] if len(data) == 1 else b"\n".join(data)
                    events.append(_new_event(SseEvent, (joined, self._number)))
                    data.clear()
                self._number = None
            elif line[:3] == b"id:":
                value = line[3:].removeprefix(b" ")
                if value.isdigit():
                    self._number = int(value)
            elif line[:5] == b"data:":
                data.append(line[5:])
            elif line[:6] == b"error:":
                # Not a standard field, but some model servers report failures with it.
                events.append(SseEvent(b'{"error":%s}' % line[6:]))
        return events


HEARTBEAT = b": still here\n\n"
"""A comment as keep-alive, for readers of the resumable form."""

QUIET_HEARTBEAT = b"\n"
"""A blank line as keep-alive, which stock clients ignore."""


def frame(body: bytes, number: int | None = None) -> bytes:
    """Return one event in the wire format."""
    if number is None:
        return b"data: " + body + b"\n\n"
    return b"id: %d\ndata: " % number + body + b"\n\n"
