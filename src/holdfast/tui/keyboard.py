"""Keys as terminals of every age send them. Textual knows only the newest way to say that Enter was not alone."""

from enum import Enum

from textual._ansi_sequences import ANSI_SEQUENCES_KEYS

__all__ = ["NEWLINES", "QUEUES", "learn_keys"]

QUEUES = ("alt+enter", "\r", "ctrl+q")
NEWLINES = ("shift+enter", "shift+\r", "ctrl+j")
"""With `\r` in the name: what Textual makes of the way in which xterm and tmux keep keys apart."""


class _Keys(Enum):
    ALT_ENTER = "alt+enter"


def learn_keys() -> None:
    """An Escape and an Enter are Alt-Enter. Else most terminals would steer where one wants to queue."""
    ANSI_SEQUENCES_KEYS["\x1b\r"] = (_Keys.ALT_ENTER,)  # type: ignore[index]
