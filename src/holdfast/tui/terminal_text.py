"""Strips terminal control sequences from untrusted text. Pure, except for the filter."""

from rich.segment import Segment
from rich.text import Text
from textual.color import Color
from textual.filter import LineFilter

from holdfast.client.terminal_text import BIDI, CONTROLS, strip_escapes

__all__ = ["SanitizeFilter", "escaped_text", "final_line"]


_GONE = dict.fromkeys((*CONTROLS, *BIDI))
"""Characters that control a terminal, or change the order of the text."""


class SanitizeFilter(LineFilter):
    """The last filter before the terminal, for everything that is drawn."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Filter the segments of a line."""
        if all(segment.text.isprintable() for segment in segments):
            return segments
        return [
            Segment(text if control else text.translate(_GONE), style, control) for text, style, control in segments
        ]


def final_line(line: str) -> str:
    """Return a line of a command's output as a terminal would finally show it: without colours and overwritten text."""
    line = strip_escapes(line, kept="\r\t")
    return line.rstrip("\r").rpartition("\r")[2] if "\r" in line else line


# Text with every invisible character made visible.

_HIDDEN = frozenset(map(chr, (*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x2060, 0x2070), 0xFEFF, 0xAD)))


def escaped_text(text: str) -> Text:
    """Escape control characters and invisible ones: the displayed text is exactly what would be executed."""
    shown = Text()
    for character in text:
        if character == "\n" or (character.isprintable() and character not in _HIDDEN):
            shown.append(character)
        else:
            shown.append(character.encode("unicode_escape").decode(), style="reverse")
    return shown
