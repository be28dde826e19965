"""Room for the write-ahead log, taken before it is needed."""

import os
from pathlib import Path

__all__ = ["FRAME", "LOG_PAGES", "WAL_HEADER", "reserve"]

LOG_PAGES = 250
"""How long the log grows in ordinary use; then its pages go into the database and it begins anew."""

FRAME = 4_096 + 24
WAL_HEADER = 32


def reserve(database: Path) -> None:
    """Lengthen the log with zeros, which mean nothing in it.

    A commit that finds its place in the file only has to sync what it wrote; one that lengthens the file waits for
    the file system's books as well, and takes half as long again. For the thread that writes, before it writes.
    """
    try:
        descriptor = os.open(f"{database}-wal", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        size = os.fstat(descriptor).st_size
        missing = LOG_PAGES * FRAME - size
        if missing > 0:
            os.pwrite(descriptor, bytes(missing), size)
            os.fdatasync(descriptor)
    except OSError:
        # A full disk: the log grows as far as it can when there is something to write.
        return
    finally:
        os.close(descriptor)
