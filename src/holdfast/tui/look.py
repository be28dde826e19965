"""Colours by what they mean. A theme gives them; nothing else names one."""

import msgspec

__all__ = ["DARK", "LIGHT", "Look"]


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
    code_theme: str
    said: str = "bold"


DARK = Look(
    accent="#7aa2f7",
    muted="#8a91a8",
    faint="#5b6078",
    error="#f7768e",
    success="#9ece6a",
    warning="#e0af68",
    added="#b9e2a0 on #1c2f1f",
    removed="#f2a6b0 on #3a1e24",
    code_theme="github-dark",
)
LIGHT = Look(
    accent="#2e5bd7",
    muted="#646b80",
    faint="#9aa0b4",
    error="#c4314b",
    success="#2f7d32",
    warning="#9a6700",
    added="#1f5a23 on #dff3df",
    removed="#8f1d2c on #fbe3e5",
    code_theme="friendly",
)
