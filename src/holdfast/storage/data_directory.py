"""The data directory: made for its owner alone, used by one server at a time."""

import errno
import fcntl
import hashlib
import os
import socket
import struct
import sys
import time
from contextlib import suppress
from pathlib import Path

from holdfast.domain.errors import DataDirectoryBusy, StorageUnavailable

__all__ = ["FRAME", "LOG_PAGES", "WAL_HEADER", "Claims", "DirectoryLock", "OpenFiles", "prepare", "reserve", "unusable"]


_ELSEWHERE = "Another data directory can be chosen with --data-dir or HOLDFAST_DATA_DIR."


def prepare(data_dir: Path) -> None:
    """Create the directory if it is missing. An existing directory keeps its mode, which the user may have chosen."""
    if not _is_utf8(str(data_dir)):
        raise StorageUnavailable(f"The name of the data directory {data_dir} is not valid UTF-8. {_ELSEWHERE}")
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unusable(data_dir, error) from None


class DirectoryLock:
    """Lock of the data directory, held while the server runs; the kernel releases it however the process ends.
    The file is never removed: otherwise two servers could lock two files of the same name.
    """

    def __init__(self, data_dir: Path) -> None:
        path = data_dir / "lock"
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable(path, error) from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            try:
                # The socket follows on the second line.
                owner = os.read(self._descriptor, 32).partition(b"\n")[0].decode("ascii", "replace").strip()
            finally:
                self.release()
            raise DataDirectoryBusy(
                f"The data directory {data_dir} is used by another Holdfast server (process {owner or 'unknown'}): "
                "connect to that one, stop it, or choose another data directory."
            ) from None
        try:
            os.ftruncate(self._descriptor, 0)
            os.write(self._descriptor, f"{os.getpid()}\n".encode())
        except OSError:
            # The server adds its socket when it listens. A full disk must not keep it from starting.
            return

    def release(self) -> None:
        """Release the lock. May be called twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def unusable(path: Path, error: OSError) -> StorageUnavailable:
    """Return the error for a path that is not accessible, for a reason other than a full disk."""
    return StorageUnavailable(f"{path} cannot be used: {error.strerror}. {_ELSEWHERE}")


def _is_utf8(name: str) -> bool:
    """Return True if the name is valid UTF-8; SQLite accepts no other."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


# Claims that keep a second server away from a data directory whose lock file is gone or was replaced.

_CREDENTIALS = struct.Struct("3i")


class Claims:
    """The claims of one server on one data directory."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._held: dict[bytes, socket.socket] = {}

    def claim_path(self) -> None:
        """Claim the path, before anything is created there. Raises `DataDirectoryBusy`."""
        place = (_lock_identity("/"), _lock_identity("/proc/self/ns/mnt"))
        for path in (os.path.abspath(self._data_dir), os.path.realpath(self._data_dir)):
            self._claim("path", place, path)

    def claim_file(self, path: Path) -> None:
        """Claim an existing directory or file, whatever its path. Raises `DataDirectoryBusy`."""
        self._claim("file", _lock_identity(path))

    def release(self) -> None:
        for held in self._held.values():
            held.close()
        self._held.clear()

    def _claim(self, *key: object) -> None:
        if sys.platform != "linux":
            return
        digest = hashlib.sha256(repr(key).encode("utf-8", "surrogateescape")).hexdigest()
        name = f"\0holdfast/{os.getuid()}/{digest}".encode()
        if name in self._held:
            return
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(name)
            claim.listen(8)
        except OSError:
            claim.close()
            self._refuse_unless_foreign(name)
        else:
            self._held[name] = claim

    def _refuse_unless_foreign(self, name: bytes) -> None:
        """A name that another user has bound says nothing about our servers."""
        owner, uid = _holder(name)
        if uid not in (None, os.getuid()):
            return
        raise DataDirectoryBusy(
            f"The data directory {self._data_dir} is used by another Holdfast server (process {owner}), although it is "
            "not locked: it was moved, made again or covered while that server ran. Stop that server first."
        )


def _lock_identity(path: str | Path) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def _holder(name: bytes) -> tuple[str, int | None]:
    """Process and user that have bound the name, as far as the kernel tells."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        probe.connect(name)
        process, uid, _ = _CREDENTIALS.unpack(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return str(process), uid
    return "unknown", None


# Room for the write-ahead log, taken before it is needed.

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


# Detects that the data directory's path no longer shows the files that this server has open.

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
