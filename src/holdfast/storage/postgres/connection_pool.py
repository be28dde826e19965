"""The connections to PostgreSQL of one server."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Protocol, TypeVar

import asyncpg

from holdfast.domain.errors import StorageError, StorageUnavailable
from holdfast.storage.postgres.asyncpg_errors import ERRORS, OVERLOADED, is_answer, read_error, unreachable, write_error

__all__ = ["CONNECTIONS", "CONNECT_SECONDS", "Connection", "Pool", "Row"]

CONNECTIONS = 5
"""Connections for statements. LISTEN and the heartbeat of a cluster use one more each."""
CONNECT_SECONDS = 5.0
"""Maximum time to connect, or to wait for a free connection."""
_STATEMENT_SECONDS = 10.0
"""Maximum time of a statement. A connection that was cut off without notice is given up after it."""

_OUTAGE_SECONDS = 3.0
"""Time for which a read is repeated while PostgreSQL cannot be reached."""
_RETRY_SECONDS = 0.1
_log = logging.getLogger("holdfast.storage")

Row = Mapping[int | str, Any]
T = TypeVar("T")


class Connection(Protocol):
    """The methods of an asyncpg connection that are used here: the package has no complete types."""

    async def fetch(self, statement: str, *arguments: object) -> list[Row]:
        """Execute a query and return its rows."""

    async def fetchrow(self, statement: str, *arguments: object) -> Row | None:
        """Execute a query and return its first row, or None."""

    async def fetchval(self, statement: str, *arguments: object) -> Any:  # noqa: ANN401
        """Execute a query and return the first value of its first row."""

    async def execute(self, statement: str, *arguments: object) -> str:
        """Execute a statement and return its status."""

    async def copy_records_to_table(
        self, table: str, *, schema_name: str, columns: Sequence[str], records: Sequence[tuple[Any, ...]]
    ) -> str:
        """Append rows with COPY."""

    def transaction(self) -> AbstractAsyncContextManager[object]:
        """Return a context manager that runs a transaction."""

    async def close(self) -> None:
        """Close the connection after the current query."""

    def terminate(self) -> None:
        """Close the connection immediately."""


_PREPARE = (
    # Arrays of keys are short: one plan for all of them is as good as one for each and costs no planning. It must not
    # scan a table that was small when the plan was made.
    "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET jit = off;"
    " SET max_parallel_workers_per_gather = 0;"
    " SELECT set_config('synchronous_commit', 'on', false) WHERE current_setting('synchronous_commit') = 'off'"
)


_PING = "SELECT version FROM holdfast.schema_version"
"""Fails also if the schema was removed, or the rights of the role."""


class _Connection(asyncpg.Connection):  # type: ignore[misc]
    """A connection that keeps its settings when it returns to the pool, which saves a round trip."""

    def get_reset_query(self) -> str:
        return ""


class Pool:
    """Connections that are opened when they are needed. `options` are arguments of `asyncpg.connect`, `shown` names the
    database in messages.
    """

    def __init__(self, options: Mapping[str, Any], shown: str = "") -> None:
        self.options = dict(options)
        self.shown = shown
        self._pool: Any = None
        self._is_closed = False
        self.waiting = 0
        """The number of calls that wait for a connection."""
        self._is_out = False

    async def open(self) -> None:
        """Open the first connection. Raises the errors of asyncpg."""
        self._pool = await asyncpg.create_pool(
            **{"timeout": CONNECT_SECONDS, **self.options},
            # A larger minimum starts a task that connects in the background.
            min_size=0,
            max_size=CONNECTIONS,
            connection_class=_Connection,
            command_timeout=_STATEMENT_SECONDS,
            init=_prepare,
        )
        async with self._pool.acquire():
            pass

    @property
    def usage(self) -> tuple[int, int]:
        """The numbers of connections in use and of idle ones."""
        if self._pool is None:
            return 0, 0
        idle = self._pool.get_idle_size()
        return self._pool.get_size() - idle, idle

    async def close(self) -> None:
        """Close all connections; those that are still in use are terminated after a moment."""
        self._is_closed = True
        if self._pool is None:
            return
        with suppress(*ERRORS):
            try:
                await asyncio.wait_for(self._pool.close(), _STATEMENT_SECONDS)
            except TimeoutError:
                self._pool.terminate()

    def terminate(self) -> None:
        """Close all connections at once, as the end of the process does."""
        self._is_closed = True
        if self._pool is not None:
            self._pool.terminate()

    async def fetch(self, statement: str, *arguments: object) -> list[Row]:
        """Return the rows of a read. If the connection is lost it is repeated for a moment, so that streams continue
        after a restart of PostgreSQL.
        """
        deadline = asyncio.get_running_loop().time() + _OUTAGE_SECONDS
        while True:
            try:
                return await self._use(lambda connection: connection.fetch(statement, *arguments), read_error)
            except _Lost as lost:
                if self._is_closed or asyncio.get_running_loop().time() >= deadline:
                    raise lost.error from None
            await asyncio.sleep(_RETRY_SECONDS)

    async def ping(self) -> None:
        """Raise `StorageUnavailable` if the store does not answer now."""
        try:
            await self._use(lambda connection: connection.fetch(_PING), read_error)
        except _Lost as lost:
            raise lost.error from None

    async def write(self, statement: str, *arguments: object) -> Row | None:
        """Execute a writing statement and return its first row. Raises `StorageUnavailable` if nothing was written,
        and `StorageUnknown` if it is unknown.
        """
        try:
            return await self._use(lambda connection: connection.fetchrow(statement, *arguments), write_error)
        except _Lost as lost:
            raise lost.error from None

    async def _use(
        self, work: Callable[[Connection], Awaitable[T]], failure: Callable[[BaseException], StorageError]
    ) -> T:
        if self._pool is None or self._is_closed:
            raise _Lost(unreachable())
        self.waiting += 1
        try:
            connection = await self._pool.acquire(timeout=CONNECT_SECONDS)
        except ERRORS as error:
            if isinstance(error, TimeoutError) and self._pool.get_size() == CONNECTIONS:
                # Connected, but each connection executes a statement.
                _log.warning("no connection to PostgreSQL became free in %g s", CONNECT_SECONDS)
                raise _Lost(StorageUnavailable(OVERLOADED)) from None
            self._note_outage(error)
            raise _Lost(unreachable()) from None
        finally:
            self.waiting -= 1
        self._note_outage(None)
        try:
            return await work(connection)
        except ERRORS as error:
            failed = failure(error)
            if is_answer(error):
                raise failed from None
            # The state of the connection is unknown: it must not serve another call.
            with suppress(*ERRORS):
                connection.terminate()
            raise _Lost(failed) from None
        finally:
            with suppress(*ERRORS):
                await self._pool.release(connection)

    def _note_outage(self, error: BaseException | None) -> None:
        """Log the begin and the end of an outage, not each call during it."""
        if error is not None and not self._is_out:
            _log.error("PostgreSQL cannot be reached: %s: %s", type(error).__name__, error)
        if error is None and self._is_out:
            _log.warning("PostgreSQL can be reached again")
        self._is_out = error is not None


class _Lost(Exception):
    """The connection failed during a call."""

    def __init__(self, error: StorageError) -> None:
        super().__init__()
        self.error = error


async def _prepare(connection: Connection) -> None:
    await connection.execute(_PREPARE)
