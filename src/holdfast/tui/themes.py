"""Themes, and styles by meaning, which are derived from them. No other module names a colour."""

from collections.abc import Mapping
from functools import lru_cache

import msgspec
from rich.color import Color as RichColor
from rich.segment import Segment
from rich.style import Style
from textual.color import Color
from textual.filter import LineFilter
from textual.theme import Theme

__all__ = ["DARK", "LIGHT", "PLAIN", "THEMES", "NoColorFilter", "Palette", "default_theme", "derive_palette"]


_LIGHT = ("7", "15")
"""Colour numbers of white and bright white."""

THEMES = (
    Theme(
        name="harbour",
        primary="#7aa2f7",
        secondary="#bb9af7",
        accent="#7dcfff",
        warning="#e0af68",
        error="#f7768e",
        success="#9ece6a",
        foreground="#c8d0e8",
        background="#16171f",
        surface="#1d1f2b",
        panel="#252838",
        dark=True,
    ),
    Theme(
        name="paper",
        primary="#2e5bd7",
        secondary="#7a3fb8",
        accent="#0b7285",
        warning="#9a6700",
        error="#c4314b",
        success="#2f7d32",
        foreground="#23262f",
        background="#fbfaf7",
        surface="#f1efe9",
        panel="#e7e4db",
        dark=False,
    ),
    Theme(
        name="midnight",
        primary="#8be9c8",
        secondary="#c3a6ff",
        accent="#8be9c8",
        warning="#ffcb6b",
        error="#ff7a85",
        success="#a5e075",
        foreground="#e4e8f0",
        background="#000000",
        surface="#0e1013",
        panel="#181b20",
        dark=True,
    ),
)


def default_theme(environment: Mapping[str, str]) -> str:
    """Return the default theme: dark, unless the terminal reports a light background."""
    ground = environment.get("COLORFGBG", "").rpartition(";")[2]
    return THEMES[1 if ground in _LIGHT else 0].name


class Palette(msgspec.Struct, frozen=True):
    """Rich styles for the parts of a conversation."""

    accent: str
    muted: str
    faint: str
    error: str
    success: str
    warning: str
    added: str
    removed: str
    added_part: str
    removed_part: str
    code_theme: str
    marked: str
    found: str
    inline: str
    said: str = "bold"
    has_colours: bool = True


PLAIN = Palette(
    accent="bold",
    muted="",
    faint="dim",
    error="bold",
    success="",
    warning="bold",
    added="",
    removed="",
    added_part="bold",
    removed_part="bold",
    code_theme="ansi_dark",
    marked="reverse",
    found="reverse",
    inline="bold",
    has_colours=False,
)
"""Styles without colours, for NO_COLOR."""


_NAMES = ("background", "foreground", "primary", "accent", "error", "success", "warning")


def derive_palette(colours: Mapping[str, str], *, is_dark: bool) -> Palette:
    """Derive the styles from the colours of a theme. A theme that uses the terminal's colours gets our defaults."""
    known = {name: Color.parse(colours[name]) for name in _NAMES}
    if any(colour.ansi is not None for colour in known.values()):
        return DARK if is_dark else LIGHT
    paper, ink = known["background"], known["foreground"]

    def tinted(name: str, words: float, ground: float) -> str:
        return f"{known[name].blend(ink, words).hex6} on {paper.blend(known[name], ground).hex6}"

    return Palette(
        accent=known["primary"].hex6,
        muted=ink.blend(paper, 0.28).hex6,
        faint=ink.blend(paper, 0.42).hex6,
        error=known["error"].hex6,
        success=known["success"].hex6,
        warning=known["warning"].hex6,
        added=tinted("success", 0.4, 0.17),
        removed=tinted("error", 0.4, 0.19),
        added_part=f"bold {tinted('success', 0.7, 0.34)}",
        removed_part=f"bold {tinted('error', 0.7, 0.36)}",
        code_theme="github-dark" if is_dark else "friendly",
        marked=f"on {paper.blend(known['primary'], 0.12).hex6}",
        found=f"{paper.hex6} on {known['warning'].hex6}",
        inline=known["accent"].hex6,
    )


def _builtin_palette(theme: Theme) -> Palette:
    return derive_palette({name: getattr(theme, name) for name in _NAMES}, is_dark=theme.dark)


DARK, LIGHT = _builtin_palette(THEMES[0]), _builtin_palette(THEMES[1])


_MIN_CONTRAST = 0.12
"""Difference in brightness from which a background is meaningful: a selection, a button."""


class NoColorFilter(LineFilter):
    """The filter for NO_COLOR: removes every colour.

    A background with contrast becomes reverse, so that a selection stays visible.
    """

    def apply(self, segments: list[Segment], background: Color) -> list[Segment]:
        """Filter the segments of a line."""
        ground = background.brightness
        return [
            Segment(text, _monochrome(style, ground) if style else style, control) for text, style, control in segments
        ]


@lru_cache(4096)
def _monochrome(style: Style, ground: float) -> Style:
    bare = style.without_color
    if style.bgcolor is not None and _contrasts(style.bgcolor, ground):
        bare += Style(reverse=not style.reverse)
    return bare


def _contrasts(colour: RichColor, ground: float) -> bool:
    if colour.is_default:
        return False
    return abs(Color.from_rich_color(colour).brightness - ground) > _MIN_CONTRAST
