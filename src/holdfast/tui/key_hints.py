"""Key hints, and key sequences that Textual does not know."""

from enum import Enum

from rich.text import Text
from textual._ansi_sequences import ANSI_SEQUENCES_KEYS

__all__ = ["NEWLINE_KEYS", "QUEUE_KEYS", "key_hints", "register_key_sequences"]


def key_hints(*pairs: tuple[str, str]) -> Text:
    """Format the pairs of key and description in one line, with the keys in bold; a pair without a key is a remark."""
    line = Text(no_wrap=True, overflow="ellipsis")
    for key, what in pairs:
        line.append(" · " if line else "", style="dim")
        line.append(f"{key} " if key else "", style="bold")
        line.append(what)
    return line


QUEUE_KEYS = ("alt+enter", "\r", "ctrl+q")
NEWLINE_KEYS = ("shift+enter", "shift+\r", "ctrl+j")
"""Modified Enter keys. Textual knows only their newest encoding; names with `\\r` result from its parsing of the one
that xterm and tmux use.
"""


class _Keys(Enum):
    ALT_ENTER = "alt+enter"


def register_key_sequences() -> None:
    """Map Escape and Enter to Alt-Enter. Otherwise most terminals would steer instead of queue."""
    ANSI_SEQUENCES_KEYS["\x1b\r"] = (_Keys.ALT_ENTER,)  # type: ignore[index]
