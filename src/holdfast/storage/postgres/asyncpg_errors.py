"""Classification of the errors of asyncpg, in one place.

A write has an *answer* only if PostgreSQL refused the statement itself: data (SQLSTATE class 22), integrity (23), a
missing schema (3F), syntax and rights (42). Everything else leaves an *unknown outcome*, because the server may have
committed before the error: asyncpg raises `InternalClientError` when a server ends during a call, and
`CannotConnectNowError` is not a connection error in its tree of exceptions. Errors before the statement was sent are
answers, too: nothing was written.

Texts of errors are logged, never shown to clients. They contain no password: asyncpg does not put it into messages, and
statements carry it nowhere.
"""

import asyncio
import logging

import asyncpg

from holdfast.domain.errors import StorageError, StorageUnavailable, StorageUnknown

__all__ = ["ERRORS", "OVERLOADED", "UNREACHABLE", "is_answer", "read_error", "unreachable", "write_error"]

ERRORS = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, asyncio.TimeoutError)
"""All errors of a call. `OSError` includes lost connections, names that do not resolve and TLS errors."""

UNREACHABLE = "PostgreSQL cannot be reached: nothing is stored until it answers again."
OVERLOADED = "PostgreSQL answers too slowly: all connections of this server are in use. Try again in a moment."

_ANSWER_CLASSES = ("22", "23", "3F", "42")
_log = logging.getLogger("holdfast.storage")


def is_answer(error: BaseException) -> bool:
    """Return True if PostgreSQL refused the statement itself, so that nothing was written."""
    state = error.sqlstate if isinstance(error, asyncpg.PostgresError) else None
    return isinstance(state, str) and state[:2] in _ANSWER_CLASSES


def write_error(error: BaseException) -> StorageError:
    """Return the error of a write whose statement was sent."""
    _log.warning("a write to PostgreSQL failed: %s: %s", type(error).__name__, error)
    return StorageUnavailable() if is_answer(error) else StorageUnknown()


def read_error(error: BaseException) -> StorageError:
    """Return the error of a read."""
    _log.warning("a read from PostgreSQL failed: %s: %s", type(error).__name__, error)
    return (
        StorageUnavailable("The database refused a read; the log of the server names the reason.")
        if is_answer(error)
        else unreachable()
    )


def unreachable() -> StorageError:
    """Return the error of a call for which there is no connection. Nothing was written."""
    return StorageUnavailable(UNREACHABLE)
