"""What became of a language server and what it printed, in memory; all that is said, in a file, on request."""

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
    """The last lines of what a server has printed, and of what has become of it."""

    def __init__(self) -> None:
        self._lines: deque[str] = deque(maxlen=_MOST_LINES)

    def write(self, text: str) -> None:
        self._lines.extend(line[:_LONGEST_LINE] for line in text.splitlines()[-_MOST_LINES:])

    @property
    def text(self) -> str:
        return "\n".join(self._lines)


class Trace:
    """Writes what is said to a file that stays small; long messages are cut."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._log = logging.Logger("holdfast.lsp")
        self._file = RotatingFileHandler(path, maxBytes=_MOST_BYTES, backupCount=1, encoding="utf-8", delay=True)
        self._file.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
        self._log.addHandler(self._file)

    def write(self, what: str, text: str) -> None:
        shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text)} characters)"
        self._log.debug("%s %s", what, shown.rstrip())

    def close(self) -> None:
        self._file.close()
