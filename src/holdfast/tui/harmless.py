"""Text of others is text: nothing in it reaches the terminal as a command. Pure, but for the filter's place."""

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from holdfast.client.terminal_text import BIDI, CONTROLS, strip_escapes

__all__ = ["Harmless", "without_codes"]

_GONE = dict.fromkeys((*CONTROLS, *BIDI))
"""What steers a terminal, or turns the order of what one reads."""


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
    line = strip_escapes(line, kept="\r\t")
    return line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line
