"""What a command has said, within bounds: its beginning and its end are kept, the middle is counted (pure).

Feeding costs time in proportion to what is fed, and memory never grows beyond the bounds. Bytes may be cut
anywhere: a character is decoded when all of it is there, and what is not UTF-8 becomes a replacement character.
"""

import codecs
from collections import deque

__all__ = ["SHOWN", "Output", "shorten"]

SHOWN = 30_000
"""How many characters of an output a model is shown at most."""
_HELD = 65_536


class Output:
    """One stream. Holds the first and the last `held` characters."""

    def __init__(self, held: int = _HELD) -> None:
        self._held = held
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head: list[str] = []
        self._head_size = 0
        self._tail: deque[str] = deque()
        self._tail_size = 0
        self._lines = 0
        self.size = 0
        """Characters so far, held or not."""

    def feed(self, data: bytes) -> str:
        """Take more bytes. Answers the text that is complete by now."""
        return self._take(self._decoder.decode(data))

    def finish(self) -> str:
        """There is no more: what was cut in the middle of a character is replaced. May be called twice."""
        return self._take(self._decoder.decode(b"", final=True))

    @property
    def is_whole(self) -> bool:
        """Whether everything is held."""
        return self.size == self._head_size + self._tail_size

    @property
    def held(self) -> str:
        """All that is held; only if it is whole, this is what was said."""
        return "".join((*self._head, *self._tail))

    def shown(self, most: int = SHOWN) -> str:
        """What a model is shown: everything, or the first and the last half with a line between them."""
        if self.is_whole:
            return shorten(self.held, most)
        half = min(most // 2, self._held)
        return _joined("".join(self._head)[:half], "".join(self._tail)[-half:], self._lines)

    def _take(self, text: str) -> str:
        self.size += len(text)
        self._lines += text.count("\n")
        room = self._held - self._head_size
        if room > 0:
            self._head.append(text[:room])
            self._head_size += len(self._head[-1])
        rest = text[max(room, 0) :]
        if rest:
            self._tail.append(rest[-self._held :])
            self._tail_size += len(self._tail[-1])
            self._trim()
        return text

    def _trim(self) -> None:
        while self._tail_size - len(self._tail[0]) >= self._held:
            self._tail_size -= len(self._tail.popleft())
        # Small pieces are joined, so that the number of pieces stays small too.
        if len(self._tail) > 1_024:
            joined = "".join(self._tail)[-self._held :]
            self._tail = deque([joined])
            self._tail_size = len(joined)


def shorten(text: str, most: int = SHOWN) -> str:
    """The first and the last half of a text that is too long, with a line between them that says what is missing."""
    if len(text) <= most:
        return text
    half = most // 2
    return _joined(text[:half], text[len(text) - half :], text.count("\n"))


def _joined(first: str, last: str, lines: int) -> str:
    missing = max(1, lines - first.count("\n") - last.count("\n"))
    return f"{first}\n\n... [{missing} lines truncated] ...\n\n{last}"
