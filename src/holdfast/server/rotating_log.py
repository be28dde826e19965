"""Rotating log file of a server that a client started with its stderr redirected to a file."""

import logging
import os
import sys
from typing import TextIO

__all__ = ["FILE_COUNT", "MAX_BYTES", "RotatingLog"]

MAX_BYTES = 10_000_000
"""Maximum size of one file in bytes."""
FILE_COUNT = 5
"""Number of files: `server.log`, then `server.log.1` and so on; the oldest has the highest number."""


class RotatingLog(logging.StreamHandler[TextIO]):
    """Logs to stderr and rotates its file, so that any other output of the process is in the same file."""

    def __init__(self, path: str) -> None:
        super().__init__(sys.stderr)
        self._path = path

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, after rotating the file if it is too large."""
        try:
            here = os.fstat(2)
            if here.st_size >= MAX_BYTES and os.path.samestat(here, os.stat(self._path)):
                self._rotate()
        except OSError:
            # A log that is too large is better than none.
            pass
        super().emit(record)

    def _rotate(self) -> None:
        for number in range(FILE_COUNT - 2, 0, -1):
            if os.path.exists(f"{self._path}.{number}"):
                os.replace(f"{self._path}.{number}", f"{self._path}.{number + 1}")
        os.replace(self._path, f"{self._path}.1")
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        os.close(descriptor)
