"""Logs of language servers: recent output in memory, and an optional trace file of all messages."""

import logging
from collections import deque
from logging.handlers import RotatingFileHandler
from pathlib import Path

__all__ = ["Journal", "Trace"]

_MOST_BYTES = 5 << 20
_LONGEST = 4_000
_MOST_LINES = 500
_LONGEST_LINE = 1_000


class Journal:
    """The last lines of a server's output and of its state changes."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)

    def write(self, text: str) -> None:
        """Append text."""
        self._lines.extend(line[:_LONGEST_LINE] for line in text.splitlines()[-_MOST_LINES:])

    @property
    def text(self) -> str:
        """The stored lines."""
        return "\n".join(self._lines)


class Trace:
    """Writes all messages to a rotating file. Long messages are cut."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._log = logging.Logger("holdfast.lsp")
        self._file = RotatingFileHandler(path, maxBytes=_MOST_BYTES, backupCount=1, encoding="utf-8", delay=True)
        self._file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._log.addHandler(self._file)

    def write(self, what: str, text: str) -> None:
        """Write a message with its label."""
        shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
        self._log.debug("%s %s", what, shown.rstrip())

    def close(self) -> None:
        """Close the file."""
        self._file.close()
