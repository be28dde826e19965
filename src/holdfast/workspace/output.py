"""Bounded buffer for command output: keeps the beginning and the end, counts the middle. Pure.

The cost of feeding is proportional to the input, and memory is bounded. Input may be split anywhere: a character is
decoded when it is complete, and invalid UTF-8 becomes a replacement character.
"""

import codecs
from collections import deque

__all__ = ["SHOWN", "Output", "shorten"]

SHOWN = 30_000
"""Maximum number of output characters shown to a model."""
_HELD = 65_536


class Output:
    """One stream. Keeps the first and the last `held` characters."""

    def __init__(self, held: int = _HELD) -> None:
        self._held = held
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._head: list[str] = []
        self._head_size = 0
        self._tail: deque[str] = deque()
        self._tail_size = 0
        self._lines = 0
        self.size = 0
        """Total number of characters, kept or not."""

    def feed(self, data: bytes) -> str:
        """Add bytes. Returns the newly completed text."""
        return self._take(self._decoder.decode(data))

    def finish(self) -> str:
        """Flush the decoder: an incomplete character is replaced. Idempotent."""
        return self._take(self._decoder.decode(b"", final=True))

    @property
    def is_whole(self) -> bool:
        """True if the buffer contains the complete output."""
        return self.size == self._head_size + self._tail_size

    @property
    def held(self) -> str:
        """The buffered text; equal to the output only if `is_whole`."""
        return "".join((*self._head, *self._tail))

    def shown(self, most: int = SHOWN) -> str:
        """Return the text for a model: everything, or the first and last half with a note between them."""
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
        # Merge small pieces to bound their number.
        if len(self._tail) > 1_024:
            joined = "".join(self._tail)[-self._held :]
            self._tail = deque([joined])
            self._tail_size = len(joined)


def shorten(text: str, most: int = SHOWN) -> str:
    """Return a long text as its first and last half, with a note about the omitted lines between them."""
    if len(text) <= most:
        return text
    half = most // 2
    return _joined(text[:half], text[len(text) - half :], text.count("\n"))


def _joined(first: str, last: str, lines: int) -> str:
    missing = max(1, lines - first.count("\n") - last.count("\n"))
    return f"{first}\n\n... [{missing} lines truncated] ...\n\n{last}"
