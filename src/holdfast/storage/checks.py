"""Is this file a database of ours, whole, and not from the future? Asked before anything is written to it."""

import contextlib
from pathlib import Path
from urllib.parse import quote

import apsw

from holdfast.domain.errors import DatabaseDamaged, DatabaseTooNew, StorageUnavailable
from holdfast.storage.schema import APPLICATION_ID, newest_version, parts_by_version, parts_of

__all__ = ["check", "check_absence", "check_links"]

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
