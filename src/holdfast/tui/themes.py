"""The themes that come with it."""

from textual.theme import Theme

__all__ = ["THEMES"]

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
)
