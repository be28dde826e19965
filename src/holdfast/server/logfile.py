"""The log of a server that a client started: the file its stderr was given, turned over before it grows too long."""

import logging
import os
import sys
from typing import TextIO

__all__ = ["KEPT", "LONGEST", "TurningLog"]

LONGEST = 10_000_000
"""Bytes of one file."""
KEPT = 5
"""So many files: `server.log`, then `server.log.1` and on, the oldest with the highest number."""


class TurningLog(logging.StreamHandler[TextIO]):
    """Writes to stderr. What else this process says there goes the same way."""

    def __init__(self, path: str) -> None:
        super().__init__(sys.stderr)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        try:
            here = os.fstat(2)
            if here.st_size >= LONGEST and os.path.samestat(here, os.stat(self._path)):
                self._turn_over()
        except OSError:
            # Better a log that is too long than none.
            pass
        super().emit(record)

    def _turn_over(self) -> None:
        for number in range(KEPT - 2, 0, -1):
            if os.path.exists(f"{self._path}.{number}"):
                os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
        os.replace(self._path, f"{self._path}.1")
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
