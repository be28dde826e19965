"""Standard streams that are closed or not writable: an error message and an exit code, never a traceback."""

import os
import sys
from io import TextIOWrapper

from holdfast.cli.console.run_output import BROKEN_PIPE, print_stderr

__all__ = ["escape_unencodable", "handle_write_error", "replace_closed_streams"]


def replace_closed_streams() -> None:
    """Replace standard streams that were closed before this process began.

    Otherwise the next opened files would get their descriptors. Reading from a replacement ends at once; writing to it
    still fails.
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


def escape_unencodable() -> None:
    """Write characters that the terminal's encoding lacks as escapes instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")


def handle_write_error(error: OSError) -> int:
    """Return the exit code after a failed write, and discard buffered output."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    if isinstance(error, BrokenPipeError):
        return BROKEN_PIPE
    subject = error.filename if isinstance(error.filename, str) else "The output could not be written"
    print_stderr(f"holdfast: {subject}: {error.strerror or error}.")
    return 1
