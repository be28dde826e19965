"""Opens the store on PostgreSQL: connects, checks that it can be used, and migrates its schema.

Each reason why it cannot be used is one sentence with its remedy. While PostgreSQL cannot be reached, it is tried again
until a deadline.
"""

import asyncio
import logging
import os
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

import asyncpg

from holdfast.domain.errors import StoreMisconfigured, StoreUnreachable
from holdfast.storage.postgres.asyncpg_errors import ERRORS, read_error
from holdfast.storage.postgres.connection_pool import CONNECT_SECONDS, Connection, Pool
from holdfast.storage.postgres.postgres_schema import migrate
from holdfast.storage.postgres.store_address import StoreAddress
from holdfast.storage.postgres.store_report import StoreReport

__all__ = [
    "MIN_VERSION",
    "connect_options",
    "connected",
    "open_pool",
    "prepare_database",
    "raise_store_error",
    "report_of",
    "through_transaction_pooler",
]

MIN_VERSION = 15
_RETRY_SECONDS = 0.5
_POOLER = (
    "The address of the store leads to a connection pooler in transaction mode, which cannot be used: give the address "
    "of PostgreSQL itself, or of a pooler in session mode."
)
_GRANTS = (
    "The role of the store lacks a right in the database: let it create the schema holdfast (GRANT CREATE ON DATABASE "
    "name TO role), or create the schema with this role as its owner."
)
_REASONS: dict[str, str] = {
    "28000": "PostgreSQL refused the user of the store: check the user in the address and pg_hba.conf.",
    "28P01": "PostgreSQL refused the password of the store: check it in its file, in PGPASSFILE or in the address.",
    "3D000": "The database of the store does not exist: create it, or correct its name in the address.",
    "42501": _GRANTS,
    "26000": _POOLER,
    "42P05": _POOLER,
    "08P01": _POOLER,
}
"""Sentences by SQLSTATE. Texts of PostgreSQL are translated, so they are never compared."""
_TEMPORARY = ("08", "53", "57")
"""Classes of SQLSTATE that may pass: connection, resources, shutdown and start of the server."""
_REPORT = (
    "SELECT current_setting('server_version') AS version, current_setting('fsync') AS fsync,"
    # The value before the connection was prepared.
    " (SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit') AS synchronous_commit"
)
_STANDBYS = (
    "SELECT coalesce(nullif(application_name, ''), 'a standby') AS name, sync_state FROM pg_stat_replication"
    # A backup that is being made. The state is not visible to every role.
    " WHERE state IS DISTINCT FROM 'backup' ORDER BY 1"
)
_ROUND_TRIPS = 5
_WAKE_UP_SECONDS = 2.0
_log = logging.getLogger("holdfast.storage")


def connect_options(address: StoreAddress) -> dict[str, Any]:
    """Return the arguments of `asyncpg.connect`. Raises `StoreMisconfigured` for an unreadable password file."""
    options: dict[str, Any] = {"dsn": address.url}
    if address.password_file:
        try:
            options["password"] = Path(os.path.expanduser(address.password_file)).read_text("utf-8").strip()
        except (OSError, ValueError):
            raise StoreMisconfigured(
                f"The password file {address.password_file} cannot be read: check its path and its mode."
            ) from None
    return options


async def open_pool(address: StoreAddress, wait: float, application: str = "holdfast") -> Pool:
    """Return connections to a database that is ready for use; PostgreSQL shows them under the name `application`.
    Raises `StoreMisconfigured`, or `StoreUnreachable` if PostgreSQL did not answer within `wait` seconds.
    """
    options = connect_options(address) | {"server_settings": {"application_name": application}}
    await prepare_database(address, options, wait)
    pool = Pool(options, address.shown)
    try:
        await pool.open()
    except ERRORS as error:
        raise _unreachable(address, type(error).__name__) from None
    return pool


async def prepare_database(address: StoreAddress, options: dict[str, Any], wait: float) -> None:
    """Check the database and migrate its schema, as `open_pool` does."""
    deadline = asyncio.get_running_loop().time() + wait
    is_first = True
    while True:
        try:
            async with connected(options) as connection:
                await _check(connection, options)
                await migrate(connection)
            return
        except (*ERRORS, ValueError) as error:
            _raise_if_permanent(error)
            reason = type(error).__name__
        if asyncio.get_running_loop().time() >= deadline:
            raise _unreachable(address, reason)
        if is_first:
            _log.warning("PostgreSQL cannot be reached (%s, %s): trying for %g s", address.shown, reason, wait)
            is_first = False
        await asyncio.sleep(_RETRY_SECONDS)


def raise_store_error(address: StoreAddress, error: Exception) -> NoReturn:
    """Raise the sentence for an error of connecting: `StoreMisconfigured` or `StoreUnreachable`."""
    _raise_if_permanent(error)
    if not isinstance(error, ERRORS):
        raise error
    raise _unreachable(address, type(error).__name__) from None


def _unreachable(address: StoreAddress, reason: str) -> StoreUnreachable:
    return StoreUnreachable(
        f"PostgreSQL cannot be reached ({address.shown}, {reason}): check the address and that it runs, "
        "or wait longer with --wait."
    )


@asynccontextmanager
async def connected(options: dict[str, Any]) -> AsyncIterator[Connection]:
    """Yield a connection of its own. Raises the errors of asyncpg."""
    connection = await asyncpg.connect(
        **{"timeout": CONNECT_SECONDS, "command_timeout": 4 * CONNECT_SECONDS, **options}, statement_cache_size=0
    )
    try:
        yield connection
    finally:
        with suppress(*ERRORS):
            await connection.close(timeout=1)


def _raise_if_permanent(error: BaseException) -> None:
    """Raise the sentence for an error that waiting does not change."""
    state = error.sqlstate if isinstance(error, asyncpg.PostgresError) else None
    if isinstance(state, str) and state in _REASONS:
        raise StoreMisconfigured(_REASONS[state]) from None
    if isinstance(state, str) and not state.startswith(_TEMPORARY):
        refused = f"PostgreSQL refused the store (SQLSTATE {state}): the log of PostgreSQL names the reason."
        raise StoreMisconfigured(refused) from None
    if isinstance(error, asyncpg.TargetServerAttributeNotMatched):
        return
    # asyncpg reports a malformed address with these.
    if isinstance(error, asyncpg.ClientConfigurationError) or (
        isinstance(error, ValueError) and not isinstance(error, OSError)
    ):
        raise StoreMisconfigured(
            "The address of the store is not valid: write it as postgresql://user@host:5432/database, with the options "
            "of libpq (sslmode, target_session_attrs)."
        ) from None


async def _check(connection: Connection, options: dict[str, Any]) -> None:
    """Raise `StoreMisconfigured` if the server cannot be used, before anything is changed in it."""
    version = int(await connection.fetchval("SELECT current_setting('server_version_num')::integer / 10000"))
    if version < MIN_VERSION:
        raise StoreMisconfigured(
            f"The store needs PostgreSQL {MIN_VERSION} or newer, and this is {version}: upgrade it, or use another one."
        )
    if await connection.fetchval("SELECT current_setting('server_encoding') <> 'UTF8'"):
        raise StoreMisconfigured("The database of the store is not encoded in UTF-8: create one with ENCODING 'UTF8'.")
    if await connection.fetchval("SELECT pg_is_in_recovery()"):
        raise StoreMisconfigured(
            "The address of the store leads to a standby: name the primary, or several hosts with "
            "target_session_attrs=primary."
        )
    if await through_transaction_pooler(connection, options):
        raise StoreMisconfigured(_POOLER)


async def through_transaction_pooler(connection: Connection, options: dict[str, Any]) -> bool:
    """Return True if a pooler gives each transaction another connection to PostgreSQL.

    One connection sets a session variable. A second one occupies a connection to PostgreSQL with a transaction; behind
    a pooler this is the one that was just released. The first one then no longer sees its variable.
    """
    mark = secrets.token_hex(8)
    seen = "SELECT coalesce(current_setting('holdfast.probe', true), '')"
    await connection.execute(f"SELECT set_config('holdfast.probe', '{mark}', false)")
    async with connected(options) as other, other.transaction():
        if await other.fetchval(seen) == mark:
            return True
        return bool(await connection.fetchval(seen) != mark)


async def report_of(pool: Pool) -> StoreReport:
    """Return the state of the database behind the pool. Raises `StorageError`."""
    try:
        async with connected(pool.options) as connection:
            # In one transaction: a pooler could execute each statement on another connection.
            async with connection.transaction():
                (row,) = await connection.fetch(_REPORT)
                standbys = await connection.fetch(_STANDBYS)
                latency = await _latency(connection)
            return StoreReport(
                shown=pool.shown,
                version=row["version"],
                synchronous_commit=row["synchronous_commit"],
                is_fsync_on=row["fsync"] == "on",
                standbys=tuple((item["name"], item["sync_state"] or "") for item in standbys),
                latency_ms=1_000 * latency,
                has_transaction_pooler=await through_transaction_pooler(connection, pool.options),
                wake_up_ms=await _wake_up_ms(pool.options),
            )
    except ERRORS as error:
        raise read_error(error) from None


async def _latency(connection: Connection) -> float:
    """Return the median time of a round trip in seconds."""
    loop = asyncio.get_running_loop()
    times: list[float] = []
    for _ in range(_ROUND_TRIPS):
        began = loop.time()
        await connection.execute("SELECT 1")
        times.append(loop.time() - began)
    return sorted(times)[_ROUND_TRIPS // 2]


async def _wake_up_ms(options: dict[str, Any]) -> float | None:
    """Return the time until a notification arrives at another connection, None if it does not."""
    loop = asyncio.get_running_loop()
    channel, arrived = f"holdfast_{secrets.token_hex(8)}", asyncio.Event()
    listener: Any
    async with connected(options) as listener, connected(options) as sender:
        await listener.add_listener(channel, lambda *_: arrived.set())
        began = loop.time()
        await sender.execute(f"NOTIFY {channel}")
        with suppress(TimeoutError):
            async with asyncio.timeout(_WAKE_UP_SECONDS):
                await arrived.wait()
                return 1_000 * (loop.time() - began)
    return None
