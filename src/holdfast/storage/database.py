"""The database file: opened by one server, checked before use, written by one thread."""

import ctypes
import errno
import logging
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw

from holdfast.domain.errors import StorageError
from holdfast.storage import checks, schema
from holdfast.storage.datadir import DirectoryLock, prepare, unusable
from holdfast.storage.faults import translated
from holdfast.storage.identity import OpenFiles
from holdfast.storage.modes import open_to_others
from holdfast.storage.ownership import Claims
from holdfast.storage.readers import Readers
from holdfast.storage.reserve import reserve
from holdfast.storage.shrink import LOG_BYTES
from holdfast.storage.upgrade import finish_upgrade
from holdfast.storage.writer import Probe, Work, Writer

__all__ = ["Database"]

T = TypeVar("T")
_FILE = "holdfast.db"
_READERS = 2
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
        """Do what was asked for, put everything into the one file, let go of the directory. Blocks each caller."""
        with self._end:
            if not self._is_closed:
                self._is_closed = True
                self._writer.close()
                self._readers.close()
                self._close_files()

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
        checks.check_links(path)
        claims.claim_file(path)
        checks.check(path)
    else:
        checks.check_absence(path)
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
