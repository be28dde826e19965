"""The terminal sanitiser (`client/terminal_text.py`) applied to what Textual and Rich draw."""

from rich.segment import Segment
from rich.text import Text
from textual.color import Color
from textual.filter import LineFilter

from holdfast.client.terminal_text import printable, strip_controls

__all__ = ["SanitizeFilter", "escaped_text"]


class SanitizeFilter(LineFilter):
    """The last filter before the terminal, for everything that is drawn.

    Widgets show text of models and tools in many places. Here no place can be forgotten; Textual's own control segments
    are marked as such and pass.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Filter the segments of a line."""
        if all(segment.text.isprintable() for segment in segments):
            return segments
        return [Segment(text if control else strip_controls(text), style, control) for text, style, control in segments]


def escaped_text(text: str) -> Text:
    """Escape control characters and invisible ones: the displayed text is exactly what would be executed."""
    escaped = Text()
    for character in text:
        is_plain = character == "\n" or character.isprintable()
        escaped.append(character if is_plain else printable(character), style="" if is_plain else "reverse")
    return escaped
