"""The database file: opened by one server, checked before use, written by one thread."""

import errno
import threading
from functools import partial
from pathlib import Path
from typing import TypeVar

import apsw

from holdfast.domain.errors import StorageError
from holdfast.storage import checks, schema
from holdfast.storage.datadir import DirectoryLock, prepare, unusable
from holdfast.storage.faults import translated
from holdfast.storage.readers import Readers
from holdfast.storage.reserve import reserve
from holdfast.storage.shrink import LOG_BYTES
from holdfast.storage.writer import Probe, Work, Writer

__all__ = ["Database"]

T = TypeVar("T")
_FILE = "holdfast.db"
_READERS = 2


class Database:
    """Use `open`. Reads and writes are functions of a connection; they run in threads, within a transaction."""

    def __init__(
        self,
        lock: DirectoryLock,
        path: Path,
        connections: list[apsw.Connection],
        tidy: Work[None],
        probe: Probe | None,
    ) -> None:
        self._lock = lock
        self._connections = connections
        self._writer = Writer(connections[0], partial(reserve, path), tidy, probe)
        self._readers = Readers(connections[1:])
        self._is_closed = False
        self._end = threading.Lock()

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
        prepare(data_dir)
        lock = DirectoryLock(data_dir)
        try:
            path = data_dir / _FILE
            return cls(lock, path, _connections(path, vfs), tidy, probe)
        except BaseException as error:
            lock.release()
            if isinstance(error, StorageError) or not isinstance(error, (apsw.Error, OSError)):
                raise
            if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise unusable(data_dir, error) from None
            raise translated(error) from None

    async def read(self, work: Work[T]) -> T:
        """Sees every write answered before this call."""
        return await self._readers.read(work)

    async def write(self, work: Work[T], *, sync: bool) -> T:
        """With `sync`, on the disk before this returns. Takes its place in the order before the first await."""
        return await self._writer.submit(work, sync=sync).future

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
                reader.close()
            writer.pragma("synchronous", "FULL")
            writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as error:
            translated(error)
        finally:
            writer.close()
            self._lock.release()


def _connections(path: Path, vfs: str | None) -> list[apsw.Connection]:
    """The writing connection, then the reading ones."""
    if path.exists():
        checks.check(path)
    else:
        checks.check_absence(path)
        schema.create(path, vfs)
    opened: list[apsw.Connection] = []
    try:
        opened.append(_connect(path, apsw.SQLITE_OPEN_READWRITE, vfs))
        opened[0].pragma("journal_mode", "WAL")
        opened[0].pragma("journal_size_limit", LOG_BYTES)
        opened[0].pragma("foreign_keys", 1)
        schema.migrate(opened[0])
        opened.extend(_connect(path, apsw.SQLITE_OPEN_READONLY, vfs) for _ in range(_READERS))
    except BaseException:
        for connection in opened:
            connection.close()
        raise
    return opened


def _connect(path: Path, flags: int, vfs: str | None) -> apsw.Connection:
    return apsw.Connection(str(path), flags=flags, vfs=vfs)
