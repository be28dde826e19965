"""What SQLite's errors mean to callers. The cause goes to the log; callers get a sentence without SQL."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

import apsw
import msgspec

from holdfast.domain.errors import DatabaseDamaged, StorageError, StorageUnavailable, StorageUnknown

__all__ = ["WHOLE_GROUP", "Reply", "at_commit", "closed", "deliver", "translated"]


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


# Replies of storage threads to the event loops of their callers.

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
