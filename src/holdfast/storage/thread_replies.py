"""Results of the storage threads: translation of SQLite's errors, and delivery to the event loops of the callers.

The cause of an error is logged. Callers get a `StorageError` with a sentence for users, without SQL.
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import apsw
import msgspec

from holdfast.domain.errors import DatabaseDamaged, StorageError, StorageUnavailable, StorageUnknown

__all__ = ["FILE_ERRORS", "Reply", "closed_error", "commit_error", "deliver", "log_error", "translate_error"]


FILE_ERRORS = (
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
"""Errors of the file rather than of one statement: all jobs of the transaction fail with it."""

_log = logging.getLogger("holdfast.storage")


def translate_error(error: Exception) -> StorageError:
    """Log an error that occurred before the commit, and return the error for the caller: nothing was stored."""
    log_error(error)
    if isinstance(error, StorageError):
        return error
    if isinstance(error, (apsw.CorruptError, apsw.NotADBError, msgspec.MsgspecError)):
        return DatabaseDamaged(
            "The database is damaged: stop the server, keep a copy of its data directory and restore a backup."
        )
    if _is_full(error):
        return StorageUnavailable("The disk is full. Nothing was stored; free some space, then try again.")
    return StorageUnavailable()


def log_error(error: Exception) -> None:
    """Log an error of SQLite or of the operating system. A `StorageError` was logged when it was created."""
    if isinstance(error, StorageError):
        return
    # Writes to a full disk are repeated for as long as it is full, and a traceback would not explain anything.
    _log.error("the storage failed: %s", type(error).__name__, exc_info=None if _is_full(error) else error)


def commit_error(error: Exception) -> StorageError:
    """Log an error of the commit itself, and return the error for the caller.

    If the disk is full, the last frame, which makes the commit valid, was not written: nothing was stored. After any
    other I/O error the frames may be on disk or not.
    """
    if isinstance(error, apsw.IOError):
        _log.error("the storage failed while committing", exc_info=error)
        return StorageUnknown()
    return translate_error(error)


def _is_full(error: Exception) -> bool:
    return isinstance(error, apsw.FullError)


def closed_error() -> StorageUnavailable:
    """Return the error for a call after the storage was closed."""
    return StorageUnavailable("The storage is closed. Nothing was stored.")


T = TypeVar("T")


class Reply(Generic[T]):
    """A future that is created in the caller's loop and settled in it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()

    def settle(self, result: T | StorageError) -> None:
        """Set the result or exception. Runs in the loop. The caller may have stopped waiting; the work is done
        all the same.
        """
        if self.future.done():
            return
        if isinstance(result, StorageError):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


def deliver(answers: Iterable[tuple[Reply[Any], Any]]) -> None:
    """Settle replies from any thread. A group of replies wakes each loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Reply[Any], Any]]] = {}
    for reply, result in answers:
        by_loop.setdefault(reply.loop, []).append((reply, result))
    for loop, batch in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, batch)
        except RuntimeError:
            # The loop is closed, so there is no waiter left.
            continue


def _settle(answers: Iterable[tuple[Reply[Any], Any]]) -> None:
    for reply, result in answers:
        reply.settle(result)
