"""Built-in themes, in addition to those of Textual."""

from collections.abc import Mapping

from textual.theme import Theme

__all__ = ["THEMES", "first_theme"]

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


def first_theme(environment: Mapping[str, str]) -> str:
    """Return the default theme: dark, unless the terminal reports a light background."""
    ground = environment.get("COLORFGBG", "").rpartition(";")[2]
    return THEMES[1 if ground in _LIGHT else 0].name
