"""Deduplication of streamed text: each piece of a growing part is returned exactly once. Pure.

A part of a message arrives as deltas with offsets, and again in full whenever the message is stored or fetched. A
client that appends its output, such as a command or an editor, must print every piece once.
"""

from typing import NamedTuple

__all__ = ["NewText", "StreamedText"]


class NewText(NamedTuple):
    """Text to be appended to the output. `is_restart`: the text before it is no longer part of the answer."""

    text: str
    is_restart: bool = False


class StreamedText:
    """The text of one part that has been returned so far."""

    def __init__(self) -> None:
        # Joined on demand only: joining for every delta would make the cost quadratic.
        self._pieces: list[str] = []
        self._length = 0

    @property
    def text(self) -> str:
        """The current text of the part."""
        self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def add(self, offset: int, text: str) -> NewText:
        """Return the new end of a text that begins at `offset`.

        A failed attempt is replaced by another one. Where its text differs from the known text, the known text after
        `offset` is dropped and the result is a restart. A delta that would leave a gap returns nothing: the complete
        part arrives later.
        """
        if offset > self._length:
            return NewText("")
        if offset == self._length:
            return NewText(self._append(text))
        known = self.text
        common = min(len(text), self._length - offset)
        if known[offset : offset + common] == text[:common]:
            return NewText(self._append(text[common:]))
        self._pieces, self._length = [known[:offset]], offset
        return NewText(self._append(text), is_restart=True)

    def _append(self, text: str) -> str:
        self._pieces.append(text)
        self._length += len(text)
        return text
