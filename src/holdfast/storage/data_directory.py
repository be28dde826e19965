"""The data directory: creation, exclusive use by one server, and detection of its loss.

Theory of operation. Two servers that write to one database would corrupt it, and a server whose files were moved or
replaced would report commits that no later server can find. Three mechanisms prevent this, each where the one before
has a gap:

1. `DirectoryLock` locks the file `lock` with `flock`. It is useless if the lock file is deleted or the directory is
   moved and created again, because a second server then locks another file.
2. `Claims` binds abstract unix sockets whose names are derived from the path and from the identity (device and inode)
   of the directory and the database. The kernel releases them with the process, and no file has to exist. Linux only.
3. `OpenFiles` compares the open directory, database and write-ahead log (WAL) with their paths around each commit. It
   detects a directory that was moved, covered by a mount or restored from a backup while the server was running.

`preallocate_wal` keeps commits short by reserving the space of the WAL in advance. `find_exposed_files` serves the
warning at the start and `holdfast doctor`.
"""

import errno
import fcntl
import hashlib
import logging
import os
import socket
import stat
import struct
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from itertools import islice
from pathlib import Path

import msgspec

from holdfast.domain.errors import DataDirectoryBusy, StorageUnavailable

__all__ = [
    "FRAME_SIZE",
    "WAL_HEADER_SIZE",
    "WAL_PAGES",
    "Claims",
    "DirectoryLock",
    "ExposedFile",
    "OpenFiles",
    "acquire_directory",
    "create_directory",
    "find_exposed_files",
    "preallocate_wal",
    "unusable_error",
]


_log = logging.getLogger("holdfast.storage")

_DATA_DIR_HINT = "Another data directory can be chosen with --data-dir or HOLDFAST_DATA_DIR."


def create_directory(data_dir: Path) -> None:
    """Create the directory if it is missing. An existing directory keeps its mode, which the user may have chosen."""
    if not _is_utf8(str(data_dir)):
        raise StorageUnavailable(f"The name of the data directory {data_dir} is not valid UTF-8. {_DATA_DIR_HINT}")
    try:
        data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise unusable_error(data_dir, error) from None


class DirectoryLock:
    """Exclusive lock of the data directory, held while the server runs.

    The kernel releases it however the process ends. The file is never removed: otherwise two servers could lock two
    files of the same name.
    """

    def __init__(self, data_dir: Path) -> None:
        path = data_dir / "lock"
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise unusable_error(path, error) from None
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


def unusable_error(path: Path, error: OSError) -> StorageUnavailable:
    """Return the error for a path that is not accessible, for a reason other than a full disk."""
    return StorageUnavailable(f"{path} cannot be used: {error.strerror}. {_DATA_DIR_HINT}")


def _is_utf8(name: str) -> bool:
    """Return True if the name is valid UTF-8; SQLite accepts no other."""
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


_CREDENTIALS = struct.Struct("3i")
"""Process, user and group id: the kernel's `struct ucred`."""


class Claims:
    """Exclusive claims of one server on one data directory, independent of its lock file.

    A claim is an abstract unix socket: a name without a file, which only one process can bind at a time.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._sockets: dict[bytes, socket.socket] = {}

    def claim_path(self) -> None:
        """Claim the path, before anything is created there. Raises `DataDirectoryBusy`."""
        # Abstract sockets belong to the network namespace, which containers with different files may share. The root
        # directory and the mount namespace distinguish equal paths of two containers.
        view = (_path_id("/"), _path_id("/proc/self/ns/mnt"))
        for path in (os.path.abspath(self._data_dir), os.path.realpath(self._data_dir)):
            self._claim("path", view, path)

    def claim_file(self, path: Path) -> None:
        """Claim an existing directory or file, whatever its path. Raises `DataDirectoryBusy`."""
        self._claim("file", _path_id(path))

    def release(self) -> None:
        """Release all claims. May be called twice."""
        for claim in self._sockets.values():
            claim.close()
        self._sockets.clear()

    def _claim(self, *key: object) -> None:
        if sys.platform != "linux":
            return
        digest = hashlib.sha256(repr(key).encode("utf-8", "surrogateescape")).hexdigest()
        name = f"\0holdfast/{os.getuid()}/{digest}".encode()
        if name in self._sockets:
            # The absolute path is often the real path too.
            return
        claim = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            claim.bind(name)
            claim.listen(8)
        except OSError:
            claim.close()
            self._refuse_unless_foreign(name)
        else:
            self._sockets[name] = claim

    def _refuse_unless_foreign(self, name: bytes) -> None:
        """Raise `DataDirectoryBusy`, unless the name is bound by another user: any user can bind any name, so
        such a claim proves nothing about the servers of this user.
        """
        owner, uid = _socket_owner(name)
        if uid not in (None, os.getuid()):
            return
        raise DataDirectoryBusy(
            f"The data directory {self._data_dir} is used by another Holdfast server (process {owner}), although it is "
            "not locked: it was moved, replaced or covered by a mount while that server ran. Stop that server first."
        )


def _path_id(path: str | Path) -> tuple[int, int]:
    """Return device and inode of a path, or zeros if it does not exist."""
    try:
        found = os.stat(path)
    except OSError:
        return 0, 0
    return found.st_dev, found.st_ino


def _socket_owner(name: bytes) -> tuple[str, int | None]:
    """Return the process and the user that have bound the name, as far as the kernel reveals them."""
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        probe.connect(name)
        process, uid, _ = _CREDENTIALS.unpack(probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return str(process), uid
    return "unknown", None


WAL_PAGES = 250
"""Length of the WAL, in pages, at which a checkpoint copies it into the database so that SQLite can reuse it."""

FRAME_SIZE = 4_096 + 24
"""Bytes of one frame of the WAL: a page and its header."""

WAL_HEADER_SIZE = 32


def preallocate_wal(database: Path) -> None:
    """Extend the WAL with zeros, which SQLite ignores, to its usual length.

    A commit within the file syncs only data. A commit that extends the file also syncs metadata of the file system and
    takes half as long again. Must be called by the writer thread, between transactions.
    """
    try:
        descriptor = os.open(f"{database}-wal", os.O_WRONLY | os.O_CLOEXEC)
    except OSError:
        return
    try:
        size = os.fstat(descriptor).st_size
        missing = WAL_PAGES * FRAME_SIZE - size
        if missing > 0:
            os.pwrite(descriptor, bytes(missing), size)
            os.fdatasync(descriptor)
    except OSError:
        # The disk is full. The WAL then grows with each commit, as far as it can.
        return
    finally:
        os.close(descriptor)


_DATABASE_HEADER_SIZE = 100
_FRAME_HEADER_SIZE = 24
_GONE_ERRNOS = {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EACCES, errno.ESTALE, errno.ENOTCONN}
"""Errors that mean that the path no longer leads to the file. After any other error the state is unknown until
the next check.
"""
_REMEDY = "No write is accepted until it is back. Restore it, or stop the server and start it again."


class OpenFiles:
    """Data directory, database and WAL as they were opened, compared with what their paths show now.

    The identity (device and inode) reveals files that were moved, deleted or replaced. The content reveals writes of
    other programs: the header of the database changes only with our own checkpoints, and the last frame of the WAL
    does not change before SQLite begins the WAL anew. Created and used by the writer thread; `problem` may be
    called by any thread.
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
            self._ids = tuple(_file_id(os.fstat(descriptor)) for descriptor in self._descriptors)
            self._database_state: tuple[int, int, bytes] | None = self._read_database_state()
        except OSError:
            self.close()
            raise
        self._frames = 0
        self._last_frame: tuple[int, bytes] | None = None
        """Offset and header of the last frame of the WAL whose commit was confirmed."""
        self._failure = ""

    def close(self) -> None:
        """Close the descriptors. Call it only after SQLite's connections are closed."""
        for descriptor in self._descriptors:
            os.close(descriptor)
        self._descriptors = []

    @property
    def database_descriptor(self) -> int:
        """A descriptor of the database file."""
        return self._descriptors[1]

    @property
    def is_wal_empty(self) -> bool:
        """True if the WAL has no content."""
        return os.fstat(self._descriptors[2]).st_size == 0

    def problem(self) -> str:
        """Return the reason why commits would be lost, with a remedy, or an empty string. Raises `OSError` if
        the state cannot be determined now.
        """
        if self._failure:
            return self._failure
        try:
            shown = os.stat(self._directory)
        except OSError as error:
            if error.errno not in _GONE_ERRNOS:
                raise
            return f"The data directory {self._directory} is gone ({error.strerror}). {_REMEDY}"
        if _file_id(shown) != self._ids[0]:
            change = "is another directory now: it was moved and created again, or covered by a mount"
            return f"The data directory {self._directory} {change}. {_REMEDY}"
        return self._database_problem() or self._wal_problem()

    def fail(self, problem: str) -> None:
        """Report this problem from now on, so that all further commits are refused.

        Called after a commit that may be in files which no path shows. Even if the files return, a later check could
        not determine whether they contain it.
        """
        self._failure = self._failure or problem

    def note_commit(self, frames: int) -> None:
        """Store the number of frames in the WAL. It shrinks when SQLite begins the WAL anew."""
        if frames <= self._frames:
            self._last_frame = None
        self._frames = frames

    def confirm(self) -> None:
        """Store the header of the last frame, after a commit whose files were checked."""
        if self._frames:
            offset = WAL_HEADER_SIZE + (self._frames - 1) * FRAME_SIZE
            self._last_frame = (offset, os.pread(self._descriptors[2], _FRAME_HEADER_SIZE, offset))

    def note_checkpoint(self, *, is_complete: bool) -> None:
        """Store the state of the database file: only our own checkpoints write to it."""
        if is_complete:
            # SQLite may overwrite the WAL from its beginning with the next commit. A commit that writes nothing must
            # not use one of its old frames as the last one.
            self._last_frame = None
            self._frames = 0
        # If the file cannot be read now, the next check accepts the state that it finds.
        self._database_state = None
        with suppress(OSError):
            self._database_state = self._read_database_state()

    @property
    def is_only_wal_lost(self) -> bool:
        """True if a checkpoint into the database would preserve all commits: only the WAL is missing, or its
        path shows another file.
        """
        try:
            if _file_id(os.stat(self._directory)) != self._ids[0] or self._database_problem():
                return False
            return not os.path.lexists(self._wal) or _file_id(os.stat(self._wal)) != self._ids[2]
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
        known = self._database_state
        if known is not None and (found.st_size, found.st_mtime_ns) == known[:2]:
            return ""
        now = self._read_database_state()
        if known is None or (now[2] == known[2] and found.st_size == known[0]):
            # Only the modification time has changed: `touch`, or a backup program.
            self._database_state = now
            return ""
        return f"{self._database} was written to by another program. {_REMEDY}"

    def _wal_problem(self) -> str:
        problem, _ = _file_problem(self._wal, self._ids[2])
        if problem or self._last_frame is None:
            return problem
        offset, header = self._last_frame
        if os.pread(self._descriptors[2], _FRAME_HEADER_SIZE, offset) != header:
            return f"{self._wal} was cut short or overwritten by another program. {_REMEDY}"
        return ""

    def _read_database_state(self) -> tuple[int, int, bytes]:
        """Return size, modification time and header. SQLite's header contains a change counter."""
        found = os.fstat(self._descriptors[1])
        return found.st_size, found.st_mtime_ns, os.pread(self._descriptors[1], _DATABASE_HEADER_SIZE, 0)


def _file_id(found: os.stat_result) -> tuple[int, int]:
    return found.st_dev, found.st_ino


def _file_problem(path: str, opened: tuple[int, int]) -> tuple[str, os.stat_result | None]:
    """Compare the file at the path with the open file. A second hard link would let another server open the file
    under another name, with a WAL of its own.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        if error.errno not in _GONE_ERRNOS:
            raise
        return f"{path} is gone ({error.strerror}). {_REMEDY}", None
    if _file_id(found) != opened:
        return f"{path} was replaced by another file. {_REMEDY}", found
    if found.st_nlink != 1:
        return f"{path} has {found.st_nlink} hard links: remove the others. {_REMEDY}", found
    return "", found


def acquire_directory(data_dir: Path, release: ExitStack) -> Claims:
    """Acquire the data directory exclusively, and create it if it is missing. Return its claims.

    `release` receives the calls that undo the acquisition. Raises `DataDirectoryBusy` or `StorageUnavailable`.
    """
    claims = Claims(data_dir)
    release.callback(claims.release)
    claims.claim_path()
    create_directory(data_dir)
    for item in find_exposed_files(data_dir):
        _log.warning("%s: %s Use: chmod %o %s", item.path, item.description, item.wanted, item.path)
    release.callback(DirectoryLock(data_dir).release)
    claims.claim_file(data_dir)
    return claims


_MAX_REPORTED = 20
"""Maximum number of exposed files to report. One `chmod` corrects them all."""


class ExposedFile(msgspec.Struct, frozen=True):
    """A path that other users may read or change. `wanted` is the mode that it should have."""

    path: str
    mode: int
    wanted: int

    @property
    def description(self) -> str:
        """The problem as the second half of a sentence that begins with the path."""
        access = "change" if self.mode & 0o022 else "read"
        return f"other users may {access} it (mode {self.mode:o}), and it contains conversations and keys."


def find_exposed_files(data_dir: Path) -> list[ExposedFile]:
    """Return the paths of the data directory that group or others may access, at most `_MAX_REPORTED`."""
    return list(islice(_iter_exposed(str(data_dir)), _MAX_REPORTED))


def _iter_exposed(data_dir: str) -> Iterator[ExposedFile]:
    for directory, names, files in os.walk(data_dir, onerror=lambda _: None):
        names.sort()
        is_private = directory == data_dir or os.path.basename(directory) == "logs"
        yield from _exposed(directory, 0o700, 0o077 if directory == data_dir else 0o002)
        for name in sorted(files):
            # Files of deeper directories have the modes that commands gave them. They are protected by the mode of the
            # data directory, so only those that every user may write are reported.
            refused = 0o077 if is_private or name == "config.json" else 0o002
            yield from _exposed(os.path.join(directory, name), 0o600, refused)


def _exposed(path: str, wanted: int, refused: int) -> Iterator[ExposedFile]:
    """Yield the path if its mode has one of the `refused` bits. A symbolic link has no mode of its own."""
    try:
        found = os.lstat(path)
    except OSError:
        return
    mode = stat.S_IMODE(found.st_mode)
    if mode & refused and not stat.S_ISLNK(found.st_mode):
        yield ExposedFile(path, mode, wanted)
