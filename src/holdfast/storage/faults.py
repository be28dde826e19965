"""What SQLite's errors mean to callers. The cause goes to the log; callers get a sentence without SQL."""

import logging

import apsw
import msgspec

from holdfast.domain.errors import DatabaseDamaged, StorageError, StorageUnavailable, StorageUnknown

__all__ = ["WHOLE_GROUP", "at_commit", "closed", "translated"]

WHOLE_GROUP = (
    apsw.FullError,
    apsw.IOError,
    apsw.ReadOnlyError,
    apsw.CorruptError,
    apsw.NotADBError,
    apsw.NoMemError,
    apsw.CantOpenError,
    apsw.BusyError,
    apsw.LockedError,
    apsw.ProtocolError,
)
"""Errors of the file, not of one statement: whatever is in the same transaction fails with it."""

_log = logging.getLogger("holdfast.storage")


def translated(error: Exception) -> StorageError:
    """For an error before the commit: nothing was written."""
    if isinstance(error, StorageError):
        return error
    # A full disk is tried again and again, and where it was noticed explains nothing.
    _log.error("the storage failed: %s", type(error).__name__, exc_info=None if _is_full(error) else error)
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError, msgspec.MsgspecError)):
        return DatabaseDamaged(
            "The database is damaged: stop the server, keep a copy of its data directory and restore a backup."
        )
    if _is_full(error):
        return StorageUnavailable("The disk is full. Nothing was stored; free some space, then try again.")
    return StorageUnavailable()


def at_commit(error: Exception) -> StorageError:
    """For an error of the commit itself.

    A full disk refuses a frame before the one that makes the commit valid, or that one itself: nothing
    counts. After any other I/O error the frames may be on the disk or not.
    """
    if isinstance(error, apsw.IOError):
        _log.error("the storage failed while committing", exc_info=error)
        return StorageUnknown()
    return translated(error)


def _is_full(error: Exception) -> bool:
    return isinstance(error, apsw.FullError)


def closed() -> StorageUnavailable:
    return StorageUnavailable("The storage is closed. Nothing was stored.")
