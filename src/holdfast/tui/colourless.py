"""NO_COLOR: removes all colours and marks highlighted parts by other means."""

from functools import lru_cache

from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter

__all__ = ["Colourless"]

_STANDS_OUT = 0.12
"""Difference in brightness from which a background is meaningful: a selection, a button."""


class Colourless(LineFilter):
    """Removes every colour. A background with contrast becomes reverse, so that a selection stays visible."""

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Filter the segments of a line."""
        ground = background.brightness
        return [Segment(text, _bare(style, ground) if style else style, control) for text, style, control in segments]


@lru_cache(4096)
def _bare(style: Style, ground: float) -> Style:
    bare = style.without_color
    if style.bgcolor is not None and _differs(style.bgcolor, ground):
        bare += Style(reverse=not style.reverse)
    return bare


def _differs(colour: RichColor, ground: float) -> bool:
    if colour.is_default:
        return False
    return abs(Color.from_rich_color(colour).brightness - ground) > _STANDS_OUT
