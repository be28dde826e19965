"""Splits Markdown into pieces that do not change while text is streamed, except for the last. Pure."""

import re

__all__ = ["chunks_of"]

_FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})")
_MARK = re.compile(r"^ {0,3}([-*+]( |$)|\d{1,9}([.)]( |$)|$)|>|\|)")
"""Matches the beginning, possibly incomplete, of a line of a list, a quote or a table."""


def chunks_of(text: str) -> list[str]:
    """Split the text at blank lines outside of code, lists, quotes and tables; each piece is valid on its own."""
    chunks: list[str] = []
    lines: list[str] = []
    fence = ""
    blank = False
    for line in text.split("\n"):
        if fence:
            lines.append(line)
            if line.strip().startswith(fence) and not line.strip(" `~"):
                fence = ""
            continue
        if blank and line.strip() and lines and not _goes_on(lines[0], line):
            chunks.append("\n".join(lines).strip("\n"))
            lines = []
        opening = _FENCE.match(line)
        if opening:
            fence = opening[1]
        blank = not line.strip()
        lines.append(line)
    if any(line.strip() for line in lines):
        chunks.append("\n".join(lines).strip("\n"))
    return chunks


def _goes_on(first: str, line: str) -> bool:
    """Return True if a line after a blank one belongs to the list or quote that the piece began with."""
    return bool(_MARK.match(first)) and (line.startswith(("  ", "\t")) or bool(_MARK.match(line)))
