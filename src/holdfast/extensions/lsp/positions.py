"""Conversion between LSP positions and Python string indices. Pure.

Most servers count UTF-16 code units, so an emoji counts as two. Some negotiate bytes or code points.
"""

import re
from collections.abc import Iterable
from typing import Literal

from holdfast.extensions.lsp.lsp_types import Position, TextEdit

__all__ = ["ENCODINGS", "Encoding", "TextLines", "apply_edits"]

Encoding = Literal["utf-16", "utf-32", "utf-8"]
ENCODINGS: tuple[Encoding, ...] = ("utf-16", "utf-32", "utf-8")
"""Supported position encodings in order of preference. Every server supports the first."""

_LINE_END = re.compile(r"\r\n|\n|\r")


class TextLines:
    """A text split into lines, for one position encoding. Lines end with LF, CRLF or CR, as the protocol specifies."""

    def __init__(self, text: str, encoding: str = "utf-16") -> None:
        self.text = text
        self._encoding = encoding
        self._starts = [0, *(found.end() for found in _LINE_END.finditer(text))]

    def line(self, number: int) -> str:
        """Return a line without its terminator, or an empty string beyond the last line."""
        if not 0 <= number < len(self._starts):
            return ""
        end = self._starts[number + 1] if number + 1 < len(self._starts) else len(self.text)
        return self.text[self._starts[number] : end].rstrip("\r\n")

    def index(self, position: Position) -> int:
        """Return the string index of a position. A position beyond the end of a line is clamped to its end."""
        if position.line >= len(self._starts):
            return len(self.text)
        line = self.line(position.line)
        return self._starts[position.line] + _count_code_points(line, position.character, self._encoding)

    def position(self, line: int, column: int) -> Position:
        """Convert a line and a column in code points, both from 0."""
        return Position(line, _count_units(self.line(line)[:column], self._encoding))

    def column(self, position: Position) -> int:
        """Return the column in code points, from 0."""
        return self.index(position) - self._starts[min(position.line, len(self._starts) - 1)]


def apply_edits(text: str, edits: Iterable[TextEdit], encoding: str = "utf-16") -> str:
    """Apply the edits, whose positions all refer to the original text. Raises `ValueError` if they overlap."""
    lines = TextLines(text, encoding)
    replacements = sorted(((lines.index(edit.range.start), lines.index(edit.range.end)), number, edit.new_text)
                    for number, edit in enumerate(edits))  # fmt: skip
    pieces: list[str] = []
    copied_to = 0
    for (start, end), _, new in replacements:
        if start < copied_to or end < start:
            raise ValueError("edits overlap")
        pieces += [text[copied_to:start], new]
        copied_to = end
    return "".join([*pieces, text[copied_to:]])


def _count_units(text: str, encoding: str) -> int:
    if encoding == "utf-32" or text.isascii():
        return len(text)
    if encoding == "utf-8":
        return len(text.encode("utf-8", "surrogatepass"))
    return len(text) + sum(character > "\uffff" for character in text)


def _count_code_points(line: str, units: int, encoding: str) -> int:
    """Return the number of whole code points in `units` code units."""
    if encoding == "utf-32" or line.isascii():
        return min(max(0, units), len(line))
    left = units
    for place, character in enumerate(line):
        left -= _count_units(character, encoding)
        if left < 0:
            return place
    return len(line)
