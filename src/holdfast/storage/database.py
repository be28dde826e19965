"""The database file: opened by one server, checked before use, written by one thread."""

import contextlib
import ctypes
import errno
import logging
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import apsw
import msgspec

from holdfast.domain.errors import DatabaseDamaged, DatabaseTooNew, StorageError, StorageUnavailable
from holdfast.storage import schema
from holdfast.storage.data_directory import Claims, DirectoryLock, OpenFiles, prepare, reserve, unusable
from holdfast.storage.readers import Readers
from holdfast.storage.schema import APPLICATION_ID, finish_upgrade, newest_version, parts_by_version, parts_of
from holdfast.storage.thread_replies import translated
from holdfast.storage.vacuum import LOG_BYTES
from holdfast.storage.writer import Probe, Work, Writer

__all__ = ["Database", "ExposedFile", "check", "check_absence", "check_links", "open_to_others"]


# Is this file a database of ours, whole, and not from the future? Asked before anything is written to it.

_MAGIC = b"SQLite format 3\x00"
_SMALL = 64 * 1024 * 1024
"""Up to this size the whole file is read at every start; a larger one only after an unclean end."""


def check(path: Path) -> None:
    """Raises `DatabaseDamaged` or `DatabaseTooNew` and leaves the files as they were."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise StorageUnavailable(f"The database {path} cannot be read: {error.strerror}.") from None
    if magic != _MAGIC:
        raise _damaged(path, "is empty or cut short" if len(magic) < len(_MAGIC) else "is not a SQLite database")
    scratch = Path(f"{path}-shm")
    had_scratch = scratch.exists()
    try:
        _check_contents(path)
    except BaseException:
        if not had_scratch:
            scratch.unlink(missing_ok=True)
        raise


def check_absence(path: Path) -> None:
    """A write-ahead log without its database must not meet a new one: it would be written into it."""
    wal = Path(f"{path}-wal")
    if wal.exists():
        raise DatabaseDamaged(
            f"The database {path} is missing, but {wal.name} is still there. It was left untouched: put the database "
            "back, or move that file away too to start with an empty one."
        )


def check_links(path: Path) -> None:
    """A second name of the database would let another server open it, with a write-ahead log of its own."""
    links = path.stat().st_nlink
    if links > 1:
        raise StorageUnavailable(
            f"The database {path} has {links} hard links: another server could open it under its other name. "
            "Remove the other name, or copy the file instead of linking it."
        )


def _check_contents(path: Path) -> None:
    wal = Path(f"{path}-wal")
    was_unclean = wal.exists() and wal.stat().st_size > 0
    try:
        with contextlib.closing(_look(path, with_wal=was_unclean)) as connection:
            application_id = connection.pragma("application_id")
            version = connection.pragma("user_version")
            if application_id != APPLICATION_ID:
                raise _damaged(path, "belongs to another program")
            if version > newest_version():
                raise _too_new(path, version)
            _check_schema(path, connection, version)
            is_thorough = was_unclean or path.stat().st_size <= _SMALL
            if is_thorough and connection.pragma("quick_check") != "ok":
                raise _damaged(path, "is damaged")
    except (apsw.CorruptError, apsw.NotADBError):
        raise _damaged(path, "is damaged or cut short") from None
    except apsw.Error:
        raise StorageUnavailable(f"The database {path} cannot be read.") from None


def _check_schema(path: Path, connection: apsw.Connection, version: int) -> None:
    """A migration meets only the tables it was written for, and the server only tables that are all there."""
    expected, found = parts_by_version(), parts_of(connection)
    if later := sorted(found & (expected[-1] - expected[max(0, version)])):
        what = f"says that it has format {version}, but has parts of a later one ({later[0]}): its number was changed"
        raise _damaged(path, what)
    if version < 1:
        raise _damaged(path, f"says that it has format {version}, which there never was")
    if missing := sorted(expected[version] - found, key=lambda part: (not part.startswith("table"), part)):
        more = f" and {len(missing) - 1} other parts" if len(missing) > 1 else ""
        raise _damaged(path, f"lacks the {missing[0]}{more}")


def _look(path: Path, *, with_wal: bool) -> apsw.Connection:
    """A connection that changes nothing. After a crash the write-ahead log belongs to the database and has to be
    read with it; otherwise the file is opened as if it could not change, which needs no files beside it.
    """
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    options = "mode=ro" if with_wal else "mode=ro&immutable=1"
    connection = apsw.Connection(f"file:{quote(str(path.absolute()))}?{options}", flags=flags)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    return connection


def _damaged(path: Path, what: str) -> DatabaseDamaged:
    return DatabaseDamaged(
        f"The database {path} {what}. It was left untouched: restore a backup, move it and the files "
        "named like it away to start with an empty one, or choose another data directory."
    )


def _too_new(path: Path, version: int) -> DatabaseTooNew:
    return DatabaseTooNew(
        f"The database {path} was written by a newer Holdfast (format {version}, this one knows {newest_version()}). "
        "It was left untouched: install that version, or choose another data directory."
    )


# Finds files and directories of the data directory that other users may read or write.

_MOST = 20
"""So many are reported: one command mends them all."""


class ExposedFile(msgspec.Struct, frozen=True):
    """A path with loose permissions. `wanted` is the mode it should have."""

    path: str
    mode: int
    wanted: int

    @property
    def what(self) -> str:
        deed = "change" if self.mode & 0o022 else "read"
        return f"other users may {deed} it (mode {self.mode:o}): conversations and keys are there."


def open_to_others(data_dir: Path) -> list[ExposedFile]:
    """The data directory and everything in it that is open to group or others, the first few of them."""
    return list(islice(_loose(str(data_dir)), _MOST))


def _loose(data_dir: str) -> Iterator[ExposedFile]:
    for directory, names, files in os.walk(data_dir, onerror=lambda _: None):
        names.sort()
        is_private = directory == data_dir or os.path.basename(directory) == "logs"
        yield from _checked(directory, 0o700, 0o077 if directory == data_dir else 0o002)
        for name in sorted(files):
            # Other files below have the modes that commands gave them: the data directory keeps others out.
            refused = 0o077 if is_private or name == "config.json" else 0o002
            yield from _checked(os.path.join(directory, name), 0o600, refused)


def _checked(path: str, wanted: int, refused: int) -> Iterator[ExposedFile]:
    try:
        found = os.lstat(path)
    except OSError:
        return
    mode = stat.S_IMODE(found.st_mode)
    if mode & refused and not stat.S_ISLNK(found.st_mode):
        yield ExposedFile(path, mode, wanted)


# The database file: opened by one server, checked before use, written by one thread.

T = TypeVar("T")
_FILE = "holdfast.db"
_READERS = 2
CLOSE_SECONDS = 30.0
"""How long closing waits for each thread. One on a disk that hangs never ends, and the server has to."""
_log = logging.getLogger("holdfast.storage")


class Database:
    """Use `open`. Reads and writes are functions of a connection; they run in threads, within a transaction."""

    def __init__(
        self,
        release: ExitStack,
        path: Path,
        connections: list[apsw.Connection],
        tidy: Work[None],
        probe: Probe | None,
    ) -> None:
        self._release = release
        self._connections = connections
        self._is_closed = False
        self._end = threading.Lock()
        files: list[OpenFiles] = []
        with ExitStack() as undo:
            undo.callback(_let_go, connections, files)
            self._files = OpenFiles(path.parent, path)
            files.append(self._files)
            self._writer = Writer(connections[0], self._files, partial(reserve, path), tidy, probe)
            undo.callback(self._writer.close)
            self._readers = Readers(connections[1:])
            undo.pop_all()

    @classmethod
    def open(
        cls,
        data_dir: Path,
        *,
        tidy: Work[None] = lambda _connection: None,
        probe: Probe | None = None,
        vfs: str | None = None,
    ) -> "Database":
        """Lock the directory, check the database, make or migrate it, start the threads.

        Raises `DataDirectoryBusy`, `DatabaseDamaged`, `DatabaseTooNew` or `StorageUnavailable`. `vfs` names
        the SQLite file layer to write through; tests use it to let files fail.
        """
        release = ExitStack()
        try:
            path = _owned(data_dir, release, vfs)
            return cls(release, path, _connections(path, vfs), tidy, probe)
        except BaseException as error:
            release.close()
            if isinstance(error, StorageError) or not isinstance(error, (apsw.Error, OSError)):
                raise
            if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise unusable(data_dir, error) from None
            raise translated(error) from None

    def problem(self) -> str:
        """Return why nothing can be stored although the disk works, or an empty string. Costs a few stat calls."""
        try:
            return self._files.problem()
        except OSError as error:
            return f"The data directory cannot be checked: {error.strerror}."

    async def read(self, work: Work[T]) -> T:
        """Sees every write answered before this call."""
        return await self._readers.read(work)

    async def write(self, work: Work[T], *, sync: bool, erases: bool = False) -> T:
        """With `sync`, on the disk before this returns; with `erases`, what it deleted is in no file any more. Takes
        its place in the order before the first await.
        """
        return await self._writer.submit(work, sync=sync, erases=erases).future

    def close(self) -> None:
        """Do what was asked for, put everything into the one file, let go of the directory. Blocks each caller.

        A thread that does not end keeps files and directory, for it may still write: until the process ends, or until
        this is called once more.
        """
        with self._end:
            if self._is_closed:
                return
            has_ended = [self._writer.close(CLOSE_SECONDS), self._readers.close(CLOSE_SECONDS)]
            if all(has_ended):
                self._is_closed = True
                self._close_files()
            else:
                _log.error("the storage is still at work after %g s: its files stay open", CLOSE_SECONDS)

    def _close_files(self) -> None:
        writer, *readers = self._connections
        try:
            for reader in readers:
                _close(reader)
            if self.problem():
                _keep_paths(writer)
            else:
                writer.pragma("synchronous", "FULL")
                writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as error:
            translated(error)
        finally:
            with self._release:
                _let_go([writer], [self._files])


def _owned(data_dir: Path, release: ExitStack, vfs: str | None) -> Path:
    """Take the data directory, with everything that keeps other servers away, and make sure there is a database."""
    claims = Claims(data_dir)
    release.callback(claims.release)
    claims.claim_path()
    prepare(data_dir)
    for item in open_to_others(data_dir):
        _log.warning("%s: %s Use: chmod %o %s", item.path, item.what, item.wanted, item.path)
    release.callback(DirectoryLock(data_dir).release)
    claims.claim_file(data_dir)
    path = data_dir / _FILE
    if path.exists():
        check_links(path)
        claims.claim_file(path)
        check(path)
    else:
        check_absence(path)
        schema.create(path, vfs)
        claims.claim_file(path)
    return path


def _let_go(connections: list[apsw.Connection], files: list[OpenFiles]) -> None:
    """Close everything that was opened, the writing connection last. Descriptors of the database are closed after its
    connections.
    """
    try:
        for connection in reversed(connections):
            _close(connection)
    finally:
        for opened in files:
            opened.close()


def _close(connection: apsw.Connection) -> None:
    """Close it, whatever its file says."""
    try:
        connection.close()
    except apsw.Error as error:
        translated(error)
        connection.close(force=True)


def _keep_paths(connection: apsw.Connection) -> None:
    """Close without a checkpoint and without removing the WAL: the path may show the files of another database."""
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    is_kept = ctypes.c_int(1)
    connection.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(is_kept))


def _connections(path: Path, vfs: str | None) -> list[apsw.Connection]:
    """The writing connection, then the reading ones."""
    opened: list[apsw.Connection] = []
    try:
        opened.append(_connect(path, apsw.SQLITE_OPEN_READWRITE, vfs))
        opened[0].pragma("journal_mode", "WAL")
        opened[0].pragma("journal_size_limit", LOG_BYTES)
        opened[0].pragma("foreign_keys", 1)
        opened[0].pragma("secure_delete", 1)
        schema.migrate(opened[0])
        finish_upgrade(opened[0], path.parent)
        for _ in range(_READERS):
            opened.append(_connect(path, apsw.SQLITE_OPEN_READONLY, vfs))
            # SQLite opens the files beside the database at the first read. The path must not be needed later.
            opened[-1].execute("SELECT count(*) FROM workspaces").fetchall()
    except BaseException:
        _let_go(opened, [])
        raise
    return opened


def _connect(path: Path, flags: int, vfs: str | None) -> apsw.Connection:
    return apsw.Connection(str(path), flags=flags, vfs=vfs)
