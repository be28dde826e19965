"""Key sequences of older terminals. Textual knows only the newest encoding of modified Enter keys."""

from enum import Enum

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS

__all__ = ["NEWLINES", "QUEUES", "learn_keys"]

QUEUES = ("alt+enter", "\r", "ctrl+q")
NEWLINES = ("shift+enter", "shift+\r", "ctrl+j")
"""Names with `\\r` result from Textual's parsing of the encoding that xterm and tmux use."""


class _Keys(Enum):
    ALT_ENTER = "alt+enter"


def learn_keys() -> None:
    """Map Escape and Enter to Alt-Enter. Otherwise most terminals would steer instead of queue."""
    ANSI_SEQUENCES_KEYS["\x1b\r"] = (_Keys.ALT_ENTER,)  # type: ignore[index]
