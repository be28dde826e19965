"""Starts a server process for a client: detached, with its own log."""

import os
from collections.abc import Sequence

from holdfast.client.errors import StartFailed

__all__ = ["exit_code", "last_lines", "prepare", "spawn"]

_ELSEWHERE = "Another place can be chosen with --data-dir or HOLDFAST_DATA_DIR."
_LAST_LINES = 12
_MOST_OF_LOG = 16 * 1024


def prepare(data_dir: str, log: str) -> None:
    """Create the data and log directories. Without a log the server could not report why it does not start."""
    try:
        for directory in (data_dir, os.path.dirname(log)):
            os.makedirs(directory, mode=0o700, exist_ok=True)
    except OSError as error:
        why = "it is not a directory" if isinstance(error, FileExistsError) else error.strerror
        raise StartFailed(f"The data directory {data_dir} cannot be used: {why}. {_ELSEWHERE}") from None


def spawn(command: Sequence[str], log: str) -> tuple[int, int]:
    """Start the process. Returns its id, and the offset in the log at which its output begins."""
    try:
        begin = os.path.getsize(log) if os.path.exists(log) else 0
        if begin and not os.access(log, os.W_OK):
            raise StartFailed(f"The server's log {log} cannot be written: make it yours, or remove it.")
        return _spawn(command, log), begin
    except OSError as error:
        raise StartFailed(f"The server could not be started: {error.strerror or error}.") from None


def _spawn(command: Sequence[str], log: str) -> int:
    """Start detached: in a new session, inheriting only the environment."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    return os.posix_spawn(
        command[0],
        list(command),
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, log, flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=(),
    )


def exit_code(process: int) -> int | None:
    """Return the exit code of a child, or None while it runs."""
    try:
        found, status = os.waitpid(process, os.WNOHANG)
    except ChildProcessError:
        # Another part of this process reaps its children; rely on the deadline.
        return None
    return os.waitstatus_to_exitcode(status) if found else None


def last_lines(log: str, begin: int) -> str:
    """Return the last log lines of this start, for an error message."""
    try:
        with open(log, "rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(begin if begin <= size else 0, size - _MOST_OF_LOG))
            lines = file.read(_MOST_OF_LOG).decode("utf-8", "replace").strip().splitlines()
        is_full = not os.statvfs(os.path.dirname(log)).f_bavail
    except OSError:
        lines, is_full = [], False
    if not lines and is_full:
        return f" The disk of {log} is full: free some space. {_ELSEWHERE}"
    if not lines:
        return f" It said nothing; {log} has no more."
    return " Its last lines:\n" + "\n".join(lines[-_LAST_LINES:])
