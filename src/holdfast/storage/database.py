"""The database: exclusive access, checks before use, connections and threads.

`Database.open` acquires the data directory, checks the file, creates or migrates it, and starts one writer thread and
two reader threads. The file is checked before any byte of it is changed: a database that is damaged, incomplete, of
another program or of a newer version is refused and left as it is, so that a backup or a newer version can still use
it.
"""

import contextlib
import ctypes
import errno
import logging
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import apsw

from holdfast.domain.errors import DatabaseDamaged, DatabaseTooNew, StorageError, StorageUnavailable
from holdfast.storage import schema
from holdfast.storage.data_directory import (
    OpenFiles,
    acquire_directory,
    preallocate_wal,
    unusable_error,
)
from holdfast.storage.reader_threads import Readers
from holdfast.storage.schema import (
    APPLICATION_ID,
    finish_upgrade,
    newest_version,
    schema_parts,
    schema_parts_by_version,
)
from holdfast.storage.thread_replies import log_error, translate_error
from holdfast.storage.vacuum import WAL_SIZE_LIMIT
from holdfast.storage.writer_thread import Probe, Work, Writer

__all__ = ["DATABASE_NAME", "Database", "check", "check_absence", "check_links"]


_MAGIC = b"SQLite format 3\x00"
_FULL_CHECK_LIMIT = 64 * 1024 * 1024
"""Up to this size the whole file is checked at each start; a larger file only after an unclean end."""


def check(path: Path) -> None:
    """Check that the file is an intact Holdfast database of a known version, and change nothing.

    Raises `DatabaseDamaged`, `DatabaseTooNew` or `StorageUnavailable`.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise StorageUnavailable(f"The database {path} cannot be read: {error.strerror}.") from None
    if magic != _MAGIC:
        raise _damaged(path, "is empty or cut short" if len(magic) < len(_MAGIC) else "is not a SQLite database")
    # Reading a database with a WAL creates the shared-memory file. Remove it again if the database is refused.
    shared_memory = Path(f"{path}-shm")
    had_shared_memory = shared_memory.exists()
    try:
        _check_contents(path)
    except BaseException:
        if not had_shared_memory:
            shared_memory.unlink(missing_ok=True)
        raise


def check_absence(path: Path) -> None:
    """Raise `DatabaseDamaged` if there is a write-ahead log without a database: SQLite would copy its pages into a
    new database of the same name.
    """
    wal = Path(f"{path}-wal")
    if wal.exists():
        raise DatabaseDamaged(
            f"The database {path} is missing, but {wal.name} is still there. It was left untouched: put the database "
            "back, or move that file away too to start with an empty one."
        )


def check_links(path: Path) -> None:
    """Raise `StorageUnavailable` if the database has a second hard link: another server could open it under that
    name, with a write-ahead log of its own.
    """
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
        with contextlib.closing(_open_readonly(path, with_wal=was_unclean)) as connection:
            application_id = connection.pragma("application_id")
            version = connection.pragma("user_version")
            if application_id != APPLICATION_ID:
                raise _damaged(path, "belongs to another program")
            if version > newest_version():
                raise _too_new(path, version)
            _check_schema(path, connection, version)
            is_thorough = was_unclean or path.stat().st_size <= _FULL_CHECK_LIMIT
            if is_thorough and connection.pragma("quick_check") != "ok":
                raise _damaged(path, "is damaged")
    except (apsw.CorruptError, apsw.NotADBError):
        raise _damaged(path, "is damaged or cut short") from None
    except apsw.Error:
        raise StorageUnavailable(f"The database {path} cannot be read.") from None


def _check_schema(path: Path, connection: apsw.Connection, version: int) -> None:
    """Compare tables, columns, indexes and triggers with those of the version in the header.

    A migration must run only on the tables that it was written for, and a missing table is to be reported now rather
    than by the first statement that needs it.
    """
    expected, found = schema_parts_by_version(), schema_parts(connection)
    if later := sorted(found & (expected[-1] - expected[max(0, version)])):
        fault = f"is marked as format {version}, but has parts of a later format ({later[0]}): its number was changed"
        raise _damaged(path, fault)
    if version < 1:
        raise _damaged(path, f"is marked as format {version}, which never existed")
    if missing := sorted(expected[version] - found, key=lambda part: (not part.startswith("table"), part)):
        more = f" and {len(missing) - 1} other parts" if len(missing) > 1 else ""
        raise _damaged(path, f"lacks the {missing[0]}{more}")


def _open_readonly(path: Path, *, with_wal: bool) -> apsw.Connection:
    """Open a connection that changes nothing.

    After a crash the WAL is part of the database and has to be read with it. Otherwise the file is opened as immutable,
    for which SQLite creates no other files.
    """
    flags = apsw.SQLITE_OPEN_READONLY | apsw.SQLITE_OPEN_URI
    options = "mode=ro" if with_wal else "mode=ro&immutable=1"
    connection = apsw.Connection(f"file:{quote(str(path.absolute()))}?{options}", flags=flags)
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    return connection


def _damaged(path: Path, fault: str) -> DatabaseDamaged:
    return DatabaseDamaged(
        f"The database {path} {fault}. It was left untouched: restore a backup, move it and the files "
        "named like it away to start with an empty one, or choose another data directory."
    )


def _too_new(path: Path, version: int) -> DatabaseTooNew:
    return DatabaseTooNew(
        f"The database {path} was written by a newer Holdfast (format {version}, this one knows {newest_version()}). "
        "It was left untouched: install that version, or choose another data directory."
    )


T = TypeVar("T")
DATABASE_NAME = "holdfast.db"
"""The file of the database in the data directory."""
_READERS = 2
CLOSE_TIMEOUT = 30.0
"""Maximum seconds to wait for each thread when closing. A thread on a disk that hangs never stops, but the server has
to.
"""
_log = logging.getLogger("holdfast.storage")


class Database:
    """An open database. Create it with `open`.

    Reads and writes are functions of a connection. They run in a storage thread, within a transaction.
    """

    def __init__(
        self,
        release: ExitStack,
        path: Path,
        connections: list[apsw.Connection],
        maintenance: Work[None],
        probe: Probe | None,
    ) -> None:
        self._release = release
        self._connections = connections
        self._is_closed = False
        self._close_lock = threading.Lock()
        files: list[OpenFiles] = []
        with ExitStack() as undo:
            undo.callback(_close_all, connections, files)
            self._files = OpenFiles(path.parent, path)
            files.append(self._files)
            self._writer = Writer(connections[0], self._files, partial(preallocate_wal, path), maintenance, probe)
            undo.callback(self._writer.close)
            self._readers = Readers(connections[1:])
            undo.pop_all()

    @classmethod
    def open(
        cls,
        data_dir: Path,
        *,
        maintenance: Work[None] = lambda _connection: None,
        probe: Probe | None = None,
        vfs: str | None = None,
    ) -> "Database":
        """Acquire the directory, check the database, create or migrate it, and start the threads. Blocks.

        `maintenance` runs in the writer thread between groups of jobs. `probe` is described at `Writer`. `vfs` names
        the SQLite file layer to use; tests inject faults through it. Raises `DataDirectoryBusy`, `DatabaseDamaged`,
        `DatabaseTooNew` or `StorageUnavailable`.
        """
        release = ExitStack()
        try:
            path = _acquire_database(data_dir, release, vfs)
            return cls(release, path, _open_connections(path, vfs), maintenance, probe)
        except BaseException as error:
            release.close()
            if isinstance(error, StorageError) or not isinstance(error, (apsw.Error, OSError)):
                raise
            if isinstance(error, OSError) and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                raise unusable_error(data_dir, error) from None
            raise translate_error(error) from None

    def problem(self) -> str:
        """Return why nothing can be stored although the disk works, or an empty string. Costs a few stat calls."""
        try:
            return self._files.problem()
        except OSError as error:
            return f"The data directory cannot be checked: {error.strerror}."

    async def read(self, work: Work[T]) -> T:
        """Run `work` in a read transaction that sees every write whose result was delivered before this call."""
        return await self._readers.read(work)

    async def write(self, work: Work[T], *, sync: bool, erases: bool = False) -> T:
        """Run `work` in the writer thread and return its result after the commit.

        With `sync`, the commit is on disk by then. With `erases`, the content that `work` deleted is in none of the
        files any more. Writes are executed in the order of the calls: the position is taken before the first await.
        """
        return await self._writer.submit(work, sync=sync, erases=erases).future

    def close(self) -> None:
        """Finish the submitted work, copy the WAL into the database, and release the directory. Blocks each caller.

        If a thread does not stop in time, files and directory stay locked, because the thread may still write; a later
        call tries again.
        """
        with self._close_lock:
            if self._is_closed:
                return
            has_ended = [self._writer.close(CLOSE_TIMEOUT), self._readers.close(CLOSE_TIMEOUT)]
            if all(has_ended):
                self._is_closed = True
                self._close_files()
            else:
                _log.error("the storage threads have not stopped after %g s: their files stay open", CLOSE_TIMEOUT)

    def _close_files(self) -> None:
        writer, *readers = self._connections
        try:
            for reader in readers:
                _close(reader)
            if self.problem():
                _keep_wal_on_close(writer)
            else:
                writer.pragma("synchronous", "FULL")
                writer.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error as error:
            log_error(error)
        finally:
            with self._release:
                _close_all([writer], [self._files])


def _acquire_database(data_dir: Path, release: ExitStack, vfs: str | None) -> Path:
    """Acquire the data directory exclusively, and create or check its database. Return the database's path.

    The order matters: the path is claimed before anything is created at it, and each file is claimed before it is read.
    `release` receives the calls that undo the acquisition.
    """
    claims = acquire_directory(data_dir, release)
    path = data_dir / DATABASE_NAME
    if path.exists():
        check_links(path)
        claims.claim_file(path)
        check(path)
    else:
        check_absence(path)
        schema.create(path, vfs)
        claims.claim_file(path)
    return path


def _close_all(connections: list[apsw.Connection], files: list[OpenFiles]) -> None:
    """Close the connections, the writing one last, and then the descriptors of their files.

    POSIX drops all locks of a process on a file when any of its descriptors is closed, so a descriptor that was closed
    earlier would take SQLite's locks away.
    """
    try:
        for connection in reversed(connections):
            _close(connection)
    finally:
        for opened in files:
            opened.close()


def _close(connection: apsw.Connection) -> None:
    """Close a connection, by force if its file reports an error."""
    try:
        connection.close()
    except apsw.Error as error:
        log_error(error)
        connection.close(force=True)


def _keep_wal_on_close(connection: apsw.Connection) -> None:
    """Let the connection close without a checkpoint and without deleting the WAL: the path may show the files of
    another database.
    """
    connection.config(apsw.SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, 1)
    is_kept = ctypes.c_int(1)
    connection.file_control("main", apsw.SQLITE_FCNTL_PERSIST_WAL, ctypes.addressof(is_kept))


def _open_connections(path: Path, vfs: str | None) -> list[apsw.Connection]:
    """Return the writing connection, followed by the reading ones, after all pending migrations."""
    opened: list[apsw.Connection] = []
    try:
        opened.append(_connect(path, apsw.SQLITE_OPEN_READWRITE, vfs))
        opened[0].pragma("journal_mode", "WAL")
        opened[0].pragma("journal_size_limit", WAL_SIZE_LIMIT)
        opened[0].pragma("foreign_keys", 1)
        opened[0].pragma("secure_delete", 1)
        schema.migrate(opened[0])
        finish_upgrade(opened[0], path.parent)
        for _ in range(_READERS):
            opened.append(_connect(path, apsw.SQLITE_OPEN_READONLY, vfs))
            # SQLite opens WAL and shared memory at the first read. Do it now: later the path may show other files.
            opened[-1].execute("SELECT count(*) FROM workspaces").fetchall()
    except BaseException:
        _close_all(opened, [])
        raise
    return opened


def _connect(path: Path, flags: int, vfs: str | None) -> apsw.Connection:
    return apsw.Connection(str(path), flags=flags, vfs=vfs)
