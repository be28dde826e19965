"""Detects that the data directory's path no longer shows the files that this server has open.

SQLite keeps writing to its open descriptors when the directory is moved, removed or covered by a mount, or when the
database or its write-ahead log (WAL) is unlinked or replaced. Such commits succeed and are lost. Therefore device,
inode and link count, as the path shows them, are compared with the open files around every commit.

The descriptors kept here are closed only after SQLite's connections: closing any descriptor of the database would
release the POSIX locks that SQLite holds on it.
"""

import errno
import os
import time
from contextlib import suppress
from pathlib import Path

from holdfast.storage.reserve import FRAME, WAL_HEADER

__all__ = ["OpenFiles"]

_DATABASE_HEADER = 100
_FRAME_HEADER = 24
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.ESTALE, errno.ENOTCONN}
"""Errors that mean that the path no longer leads to the file. After any other error the state is unknown until
the next check.
"""
_REMEDY = "Nothing is accepted until it is back. Restore it, or stop the server and start it again."


class OpenFiles:
    """Data directory, database and WAL, as they were when they were opened.

    Created and used by the writer thread; `problem` may be called by any thread.
    """

    def __init__(self, directory: Path, database: Path) -> None:
        self._directory = str(directory)
        self._database = str(database)
        # SQLite follows a link to the database, and keeps the WAL beside the file itself.
        self._wal = f"{os.path.realpath(database)}-wal"
        self._descriptors: list[int] = []
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC
            self._descriptors.append(os.open(self._directory, flags | os.O_DIRECTORY))
            self._descriptors.append(os.open(self._database, os.O_RDWR | os.O_CLOEXEC))
            self._descriptors.append(os.open(self._wal, flags))
            self._ids = tuple(_identity(os.fstat(descriptor)) for descriptor in self._descriptors)
            self._written: tuple[int, int, bytes] | None = self._content_state()
        except OSError:
            self.close()
            raise
        self._frames = 0
        self._last_frame: tuple[int, bytes] | None = None
        """Offset and header of the last frame in the WAL whose place was confirmed."""
        self._lost = ""

    def close(self) -> None:
        """Close the descriptors. Call it only after SQLite's connections are closed."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    @property
    def database(self) -> int:
        """A descriptor of the database file."""
        return self._descriptors[1]

    @property
    def is_log_empty(self) -> bool:
        """True if the WAL has no content."""
        return os.fstat(self._descriptors[2]).st_size == 0

    def problem(self) -> str:
        """Return the reason why commits would be lost, with a remedy, or an empty string. Raises `OSError` if
        the state cannot be determined now.
        """
        if self._lost:
            return self._lost
        try:
            shown = os.stat(self._directory)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            return f"The data directory {self._directory} is gone ({error.strerror}). {_REMEDY}"
        if _identity(shown) != self._ids[0]:
            what = "is another directory now: it was moved and made again, or covered by a mount"
            return f"The data directory {self._directory} {what}. {_REMEDY}"
        return self._database_problem() or self._wal_problem()

    def fail(self, problem: str) -> None:
        """Refuse all further commits: one was made whose place could not be confirmed afterwards."""
        self._lost = self._lost or problem

    def committed(self, frames: int) -> None:
        """Note the number of frames in the WAL. It shrinks when SQLite begins the WAL anew."""
        if frames <= self._frames:
            self._last_frame = None
        self._frames = frames

    def confirm(self) -> None:
        """Remember the end of the WAL, after a commit whose place was checked."""
        if self._frames:
            offset = WAL_HEADER + (self._frames - 1) * FRAME
            self._last_frame = (offset, os.pread(self._descriptors[2], _FRAME_HEADER, offset))

    def checkpointed(self, *, is_complete: bool) -> None:
        """Note the state of the database file: only our own checkpoints write to it."""
        if is_complete:
            # The WAL is needed no longer, and the next commit may overwrite it. A commit that writes nothing in between
            # must not take a frame of it for the last one.
            self._last_frame = None
            self._frames = 0
        # If it cannot be read now, the next check accepts the state that it finds.
        self._written = None
        with suppress(OSError):
            self._written = self._content_state()

    @property
    def is_only_wal_lost(self) -> bool:
        """True if a checkpoint into the database would preserve all commits: only the WAL is missing, or its
        path shows another file.
        """
        try:
            if _identity(os.stat(self._directory)) != self._ids[0] or self._database_problem():
                return False
            return not os.path.lexists(self._wal) or _identity(os.stat(self._wal)) != self._ids[2]
        except OSError:
            return False

    def set_wal_aside(self) -> None:
        """Rename a file that has replaced the WAL, after a checkpoint: at the next start, SQLite would write an older
        copy of the WAL over the newer pages of the database.
        """
        with suppress(FileNotFoundError):
            os.rename(self._wal, f"{self._wal}.replaced-{time.time_ns()}")

    def _database_problem(self) -> str:
        problem, found = _file_problem(self._database, self._ids[1])
        if problem or found is None:
            return problem
        written = self._written
        if written is not None and (found.st_size, found.st_mtime_ns) == written[:2]:
            return ""
        now = self._content_state()
        if written is None or (now[2] == written[2] and found.st_size == written[0]):
            # Only its time was changed.
            self._written = now
            return ""
        return f"{self._database} was written to by another program. {_REMEDY}"

    def _wal_problem(self) -> str:
        problem, _ = _file_problem(self._wal, self._ids[2])
        if problem or self._last_frame is None:
            return problem
        offset, header = self._last_frame
        if os.pread(self._descriptors[2], _FRAME_HEADER, offset) != header:
            return f"{self._wal} was cut short or overwritten by another program. {_REMEDY}"
        return ""

    def _content_state(self) -> tuple[int, int, bytes]:
        found = os.fstat(self._descriptors[1])
        return found.st_size, found.st_mtime_ns, os.pread(self._descriptors[1], _DATABASE_HEADER, 0)


def _identity(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _file_problem(path: str, opened: tuple[int, int]) -> tuple[str, os.stat_result | None]:
    """Compare what the path shows with the open file. More than one link lets another server open the same file."""
    try:
        found = os.stat(path)
    except OSError as error:
        if error.errno not in _GONE:
            raise
        return f"{path} is gone ({error.strerror}). {_REMEDY}", None
    if _identity(found) != opened:
        return f"{path} was replaced by another file. {_REMEDY}", found
    if found.st_nlink != 1:
        return f"{path} has {found.st_nlink} hard links: remove the others. {_REMEDY}", found
    return "", found
