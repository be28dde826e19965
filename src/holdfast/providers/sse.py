"""Incremental parser for server-sent events. Pure."""

__all__ = ["EventParser"]

_MARK = b"\xef\xbb\xbf"


class EventParser:
    """Fed with bytes, returns the data of complete events. Names, ids and comments are ignored.

    The data lines of an event are joined by newlines. A long line split into many chunks is joined only once.
    """

    def __init__(self) -> None:
        self._tail: list[bytes] = []
        self._data: list[bytes] = []
        self._is_first = True

    def feed(self, data: bytes) -> list[bytes]:
        """Add bytes and return the data of the events that are now complete."""
        end = data.find(b"\n")
        is_one = end == len(data) - 2 and data.startswith(b"data: ") and data.endswith(b"\n")
        if is_one and not self._tail and not self._data:
            # Fast path: exactly one event, which is the common case.
            return [data[6:end]]
        if end < 0:
            if data:
                self._tail.append(data)
            return []
        if self._tail:
            self._tail.append(data)
            data = b"".join(self._tail)
        *lines, rest = data.split(b"\n")
        self._tail = [rest] if rest else []
        return self._read(lines)

    def end(self) -> list[bytes]:
        """Return the remaining event. Some servers omit the empty line after the last one."""
        lines, self._tail = [b"".join(self._tail)], []
        return self._read([*lines, b""])

    def _read(self, lines: list[bytes]) -> list[bytes]:
        if self._is_first:
            self._is_first = False
            lines[0] = lines[0].removeprefix(_MARK)
        events: list[bytes] = []
        data = self._data
        for line in lines:
            text = line[:-1] if line[-1:] == b"\r" else line
            if text[:5] == b"data:":
                data.append(text[6:] if text[5:6] == b" " else text[5:])
            elif not text and data:
                events.append(data[0] if len(data) == 1 else b"\n".join(data))
                data.clear()
            elif text[:6] == b"error:":
                # Not a standard field, but used by some servers for failures.
                events.append(b'{"error":%s}' % text[6:])
        return events
