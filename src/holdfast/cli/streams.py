"""Standard streams that are closed, or cannot be written: a sentence and an exit code, never a traceback."""

import os
import sys
from io import TextIOWrapper

from holdfast.cli.speak import BROKEN_PIPE, complain

__all__ = ["accept_all", "replace_closed", "unwritten"]


def replace_closed() -> None:
    """Put something in the place of streams that were closed before this process began.

    Their numbers would go to the next files that are opened. What cannot be read has no end to wait for; what cannot
    be written still fails when somebody writes.
    """
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY)
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        os.open(os.devnull, os.O_RDONLY)
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        os.open(os.devnull, os.O_WRONLY)
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def accept_all() -> None:
    """A letter that the terminal's encoding has not is written as its number: better than nothing at all."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def unwritten(error: OSError) -> int:
    """The exit code after a command could not write. What is left in a buffer goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    what = error.filename if isinstance(error.filename, str) else "What was to be said could not be written"
    complain(f"holdfast: {what}: {error.strerror or error}.")
    return 1
