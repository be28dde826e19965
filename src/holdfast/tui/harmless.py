"""Text of others is text: nothing in it reaches the terminal as a command. Pure, but for the filter's place."""

import re

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

__all__ = ["Harmless", "without_codes"]

_BIDI = (*range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x200E, 0x200F, 0x61C)
_GONE = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0), *_BIDI))
"""What steers a terminal, or turns the order of what one reads."""
_CODES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # colours, and where to write
    r"|\x1b[\]PX^_].*?(?:\x1b\\|\x07|$)"  # titles, clipboards, and what else there is
    r"|\x1b[ -/]*[0-~]?"
)


class Harmless(LineFilter):
    """The last thing before the terminal, for all that is drawn: what has no width and no shape is left out."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        if all(segment.text.isprintable() for segment in segments):
            return segments
        return [
            Segment(text if control else text.translate(_GONE), style, control) for text, style, control in segments
        ]


def without_codes(line: str) -> str:
    """A line of a command's output as one would have read it: without colours, after all that overwrote it."""
    if "\x1b" in line:
        line = _CODES.sub("", line)
    return line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line
