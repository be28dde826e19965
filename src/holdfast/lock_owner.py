"""The lock file of a data directory: it names the server that holds the lock and the socket on which it listens.

Line 1 is the process id, line 2 the path of the unix socket. Earlier versions wrote line 1 only. The lock file survives
its server, so a client never trusts it alone: the server that listens on the socket has to name the same directory id.
"""

import os
from typing import NamedTuple

__all__ = ["LOCK_NAME", "LockOwner", "directory_id", "read_owner", "write_owner"]

LOCK_NAME = "lock"
_MAX_BYTES = 8 * 1024


class LockOwner(NamedTuple):
    """The last server that held the lock. `socket` is empty if that server was of an earlier version."""

    pid: int
    socket: str
    written_at: float
    """Seconds since the epoch."""


def read_owner(data_dir: str) -> LockOwner | None:
    """Read the lock file; None if there is none or its first line is not a process id."""
    try:
        descriptor = os.open(os.path.join(data_dir, LOCK_NAME), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            lines = os.read(descriptor, _MAX_BYTES).split(b"\n")
            written_at = os.fstat(descriptor).st_mtime
        finally:
            os.close(descriptor)
        pid = int(lines[0])
    except (OSError, ValueError):
        return None
    # Without its line break the path may be incomplete: the server is writing it.
    path = os.fsdecode(lines[1]) if len(lines) > 2 else ""
    return LockOwner(pid, path if path.startswith("/") else "", written_at)


def write_owner(data_dir: str | os.PathLike[str], socket: str) -> None:
    """Name this process and its socket in the lock file, which this process has locked.

    A full disk must not prevent the start, so errors are ignored: clients then try the default socket path.
    """
    content = b"%d\n%s\n" % (os.getpid(), os.fsencode(socket))
    try:
        descriptor = os.open(os.path.join(data_dir, LOCK_NAME), os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            # Overwriting in place needs no new block on a full disk.
            os.pwrite(descriptor, content, 0)
            os.ftruncate(descriptor, len(content))
        finally:
            os.close(descriptor)
    except OSError:
        return


def directory_id(data_dir: str | os.PathLike[str]) -> str:
    """Return device and inode of a data directory, or nothing if it does not exist.

    Every path to the directory gives the same id, bind mounts included, and another directory that was put at the same
    path gives another id. A file with a random id would be copied along with the directory.
    """
    try:
        found = os.stat(data_dir)
    except OSError:
        return ""
    return f"{found.st_dev:x}-{found.st_ino:x}"
