"""Colours by what they mean. A theme gives them; nothing else names one."""

import msgspec

__all__ = ["DARK", "LIGHT", "PLAIN", "Look"]


class Look(msgspec.Struct, frozen=True):
    """Rich styles for the things a conversation is made of."""

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


DARK = Look(
    accent="#7aa2f7",
    muted="#98a0ba",
    faint="#646a84",
    error="#f7768e",
    success="#9ece6a",
    warning="#e0af68",
    added="#b9e2a0 on #1c2f1f",
    removed="#f2a6b0 on #3a1e24",
    added_part="bold #d3f5bd on #2f5233",
    removed_part="bold #ffc9cf on #66303a",
    code_theme="github-dark",
    marked="on #232739",
    found="#16171f on #e0af68",
    inline="#7dcfff",
)
LIGHT = Look(
    accent="#2e5bd7",
    muted="#5b6275",
    faint="#8a91a6",
    error="#c4314b",
    success="#2f7d32",
    warning="#8a5a00",
    added="#1f5a23 on #dff3df",
    removed="#8f1d2c on #fbe3e5",
    added_part="bold #0f4214 on #b4e2b4",
    removed_part="bold #6d0f1c on #f3bcc2",
    code_theme="friendly",
    marked="on #e9ecf7",
    found="#23262f on #ffd77a",
    inline="#0b7285",
)
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
    code_theme="bw",
    marked="reverse",
    found="reverse",
    inline="bold",
    has_colours=False,
)
"""Where there are no colours: NO_COLOR."""
