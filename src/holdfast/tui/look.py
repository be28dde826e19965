"""Styles by meaning. They are derived from the theme; no other module names a colour."""

from collections.abc import Mapping

import msgspec
from textual.color import Color
from textual.theme import Theme

from holdfast.tui.themes import THEMES

__all__ = ["DARK", "LIGHT", "PLAIN", "Look", "look_of"]


class Look(msgspec.Struct, frozen=True):
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


PLAIN = Look(
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


def look_of(colours: Mapping[str, str], *, is_dark: bool) -> Look:
    """Derive the styles from the colours of a theme. A theme that uses the terminal's colours gets our defaults."""
    known = {name: Color.parse(colours[name]) for name in _NAMES}
    if any(colour.ansi is not None for colour in known.values()):
        return DARK if is_dark else LIGHT
    paper, ink = known["background"], known["foreground"]

    def tinted(name: str, words: float, ground: float) -> str:
        return f"{known[name].blend(ink, words).hex6} on {paper.blend(known[name], ground).hex6}"

    return Look(
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


def _own(theme: Theme) -> Look:
    return look_of({name: getattr(theme, name) for name in _NAMES}, is_dark=theme.dark)


DARK, LIGHT = _own(THEMES[0]), _own(THEMES[1])
