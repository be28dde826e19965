"""Strips terminal control sequences from untrusted text. Pure, except for the filter."""

from rich.segment import Segment
from textual.color import Color
from textual.filter import LineFilter

from holdfast.client.terminal_text import BIDI, CONTROLS, strip_escapes

__all__ = ["Harmless", "without_codes"]

_GONE = dict.fromkeys((*CONTROLS, *BIDI))
"""Characters that control a terminal, or change the order of the text."""


class Harmless(LineFilter):
    """The last filter before the terminal, for everything that is drawn."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Filter the segments of a line."""
        if all(segment.text.isprintable() for segment in segments):
            return segments
        return [
            Segment(text if control else text.translate(_GONE), style, control) for text, style, control in segments
        ]


def without_codes(line: str) -> str:
    """Return a line of a command's output as a terminal would finally show it: without colours and overwritten text."""
    line = strip_escapes(line, kept="\r\t")
    return line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line
