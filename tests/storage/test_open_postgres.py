"""Opening the store on PostgreSQL: addresses, passwords, migrations, and each reason why it cannot be used."""

import asyncio
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import pytest

from holdfast.domain.errors import StorageUnavailable, StoreMisconfigured, StoreUnreachable
from holdfast.runtime.open_store import open_postgres, read_or_make_place
from holdfast.storage.postgres import open_store
from holdfast.storage.postgres.open_store import open_pool
from holdfast.storage.postgres.postgres_schema import newest_version
from holdfast.storage.postgres.store_address import StoreAddress, address_of, check_argument
from holdfast.storage.postgres.store_report import StoreReport, findings
from postgres_server import PostgresServer, new_database, pgbouncer, postgres_server, shared_server

SECRET = "sEcret-42"


@pytest.fixture
async def empty() -> AsyncIterator[str]:
    async with new_database(is_empty=True) as dsn:
        yield dsn


@pytest.fixture
async def migrated() -> AsyncIterator[str]:
    async with new_database() as dsn:
        yield dsn


async def _execute(dsn: str, *statements: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def _refusal(dsn: str, password_file: str = "") -> str:
    with pytest.raises(StoreMisconfigured) as refused:
        await open_pool(StoreAddress(dsn, password_file), 0)
    return str(refused.value)


async def test_several_servers_create_the_schema_at_once(empty: str) -> None:
    pools = await asyncio.gather(*(open_pool(StoreAddress(empty), 5) for _ in range(4)))
    rows = await pools[0].fetch("SELECT version FROM holdfast.schema_version")
    assert [row["version"] for row in rows] == [newest_version()]
    for pool in pools:
        await pool.close()


async def test_schema_of_a_newer_program_is_refused_and_left_alone(migrated: str) -> None:
    await _execute(migrated, "UPDATE holdfast.schema_version SET version = 999")
    assert "written by a newer Holdfast (schema 999" in await _refusal(migrated)


async def test_schema_without_a_version_is_refused_and_left_alone(migrated: str) -> None:
    await _execute(migrated, "DELETE FROM holdfast.schema_version")
    assert "is not complete" in await _refusal(migrated)


@pytest.mark.parametrize(
    "damage", ["DROP SCHEMA holdfast CASCADE", "DROP TABLE holdfast.schema_version, holdfast.runs"]
)
async def test_store_that_was_removed_later_refuses_calls_without_doubt(migrated: str, damage: str) -> None:
    pool = await open_pool(StoreAddress(migrated), 0)
    await pool.ping()
    await _execute(migrated, damage)
    calls: list[Callable[[], Awaitable[object]]] = [
        pool.ping,
        lambda: pool.fetch("SELECT FROM holdfast.runs"),
        lambda: pool.write("DELETE FROM holdfast.runs RETURNING 1"),
    ]
    for call in calls:
        # Not `StorageUnknown`, whose outcome would be looked up until the store is back.
        with pytest.raises(StorageUnavailable):
            await call()
    await pool.close()


async def test_missing_rights_are_named_and_nothing_is_changed(empty: str) -> None:
    role = f"limited_{abs(hash(empty)) % 10_000_000}"
    await _execute(empty, f"CREATE ROLE {role} LOGIN")
    limited = empty.replace("user=postgres", f"user={role}")
    assert "GRANT CREATE ON DATABASE" in await _refusal(limited)
    # The operator may create the schema instead.
    await _execute(empty, f"CREATE SCHEMA holdfast AUTHORIZATION {role}")
    pool = await open_pool(StoreAddress(limited), 0)
    await pool.close()
    # Tables of another role.
    other = f"{role}_b"
    await _execute(empty, f"CREATE ROLE {other} LOGIN")
    assert "lacks a right" in await _refusal(empty.replace("user=postgres", f"user={other}"))
    await _execute(empty, "DROP SCHEMA holdfast CASCADE", f"DROP ROLE {role}", f"DROP ROLE {other}")


async def test_unknown_database_and_user_are_named(empty: str) -> None:
    assert "does not exist" in await _refusal(empty.replace("/test_", "/none_"))
    assert "refused the user" in await _refusal(empty.replace("user=postgres", "user=nobody_here"))


async def test_database_in_another_encoding_is_refused() -> None:
    server = shared_server()
    name = server.new_name()
    await _execute(server.dsn(), f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' TEMPLATE template0")
    assert "UTF-8" in await _refusal(server.dsn(name))
    await _execute(server.dsn(), f"DROP DATABASE {name} WITH (FORCE)")


async def test_old_version_is_refused(empty: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_store, "MIN_VERSION", 99)
    assert "needs PostgreSQL 99 or newer" in await _refusal(empty)


@pytest.mark.parametrize(
    "url",
    ["mysql://host/db", "postgresql:", "holdfast", "postgresql://[broken", "/var/lib/holdfast.db"],
)
def test_address_that_is_no_url_of_postgresql_is_refused(url: str) -> None:
    with pytest.raises(StoreMisconfigured, match="postgresql://user@host:5432/database"):
        address_of(None, {"HOLDFAST_STORE": url}, "", "")


@pytest.mark.parametrize(
    "login", [f"user:1/{SECRET}", f"user:1#{SECRET}", f"user:1?{SECRET}", f"user:{SECRET}@1/{SECRET}"]
)
def test_address_whose_password_ends_early_is_refused_without_repeating_it(login: str) -> None:
    url = f"postgresql://{login}@host/database"
    for argument, environment, setting in ((url, {}, ""), (None, {"HOLDFAST_STORE": url}, ""), (None, {}, url)):
        with pytest.raises(StoreMisconfigured, match="/ as %2F") as refused:
            address_of(argument, environment, setting, "")
        assert SECRET not in str(refused.value)
    encoded = "postgresql:///d?host=%2Frun%2Fa%40b&user=ada&sslkey=/home/a@b"
    assert address_of(None, {}, encoded, "") == StoreAddress(encoded)


@pytest.mark.parametrize("name", ["~nobody-with-this-name/password", "missing"])
async def test_password_file_that_cannot_be_read_is_refused(empty: str, name: str) -> None:
    with pytest.raises(StoreMisconfigured, match=r"password file .* cannot be read"):
        await open_pool(StoreAddress(empty, name), 0)


@pytest.mark.parametrize("dsn", ["postgresql://user@host:port/database", "postgresql://h/d?sslmode=perhaps"])
async def test_address_with_malformed_options_is_refused(dsn: str) -> None:
    assert "is not valid" in await _refusal(dsn)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://user:{SECRET}@host/database",
        f"postgres://host/database?password={SECRET}",
        f"postgresql://host/database?user=a&sslpassword={SECRET}",
    ],
)
def test_password_on_the_command_line_is_refused_without_repeating_it(url: str) -> None:
    with pytest.raises(StoreMisconfigured) as refused:
        check_argument("--store", url)
    assert SECRET not in str(refused.value)
    for alternative in ("storage.password_file", "PGPASSFILE", "HOLDFAST_STORE"):
        assert alternative in str(refused.value)
    address = address_of(None, {"HOLDFAST_STORE": url}, "", "")
    assert address is not None
    assert SECRET not in f"{address!r} {address} {address.shown}"


def test_command_line_precedes_the_environment_and_the_settings() -> None:
    one, two, three = (f"postgresql://{name}/d" for name in ("one", "two", "three"))
    assert address_of(one, {"HOLDFAST_STORE": two}, three, "f") == StoreAddress(one, "f")
    assert address_of(None, {"HOLDFAST_STORE": two}, three, "") == StoreAddress(two)
    assert address_of("", {}, three, "") == StoreAddress(three)
    assert address_of(None, {}, "", "") is None
    assert StoreAddress("postgresql://ada@db1,db2:5433/work?sslmode=verify-full").shown == "work at db1,db2:5433"


@pytest.fixture(scope="module")
def tcp_server() -> Iterator[tuple[PostgresServer, int]]:
    """A server that asks for the password `secret`."""
    from stream_servers import reserve_port  # noqa: PLC0415

    with reserve_port() as port, postgres_server(port) as server:
        yield server, port


async def test_password_comes_from_a_file(
    tcp_server: tuple[PostgresServer, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, port = tcp_server
    dsn = f"postgresql://postgres@127.0.0.1:{port}/postgres"
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    assert "refused the password" in await _refusal(dsn.replace("postgres@", f"postgres:{SECRET}@"))
    right, wrong = tmp_path / "right", tmp_path / "wrong"
    right.write_text("secret\n")
    wrong.write_text(SECRET)
    assert "refused the password" in await _refusal(dsn, str(wrong))
    assert "cannot be read" in await _refusal(dsn, str(tmp_path / "missing"))
    await (await open_pool(StoreAddress(dsn, str(right)), 0)).close()
    (tmp_path / "pgpass").write_text(f"127.0.0.1:{port}:*:postgres:secret\n")
    (tmp_path / "pgpass").chmod(0o600)
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "pgpass"))
    await (await open_pool(StoreAddress(dsn), 0)).close()
    # Of several hosts the first one that can be written to is used.
    several = f"postgresql://postgres@127.0.0.1:1,127.0.0.1:{port}/postgres?target_session_attrs=read-write"
    monkeypatch.setenv("PGPASSFILE", str(tmp_path / "none"))
    await (await open_pool(StoreAddress(several, str(right)), 0)).close()
    # TLS as with libpq: this server has none.
    with pytest.raises((StoreUnreachable, StoreMisconfigured)):
        await open_pool(StoreAddress(f"{dsn}?sslmode=require", str(right)), 0)


async def test_server_that_starts_later_is_waited_for(
    tcp_server: tuple[PostgresServer, int],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server, port = tcp_server
    (tmp_path / "password").write_text("secret")
    address = StoreAddress(f"postgresql://postgres@127.0.0.1:{port}/postgres", str(tmp_path / "password"))
    server.stop()
    try:
        with pytest.raises(StoreUnreachable, match=f"127.0.0.1:{port}.*--wait"):
            await open_pool(address, 0)
        seen = asyncio.Event()
        logged = logging.Handler()
        monkeypatch.setattr(logged, "emit", lambda _: seen.set())
        logging.getLogger("holdfast.storage").addHandler(logged)
        opening = asyncio.gather(open_pool(address, 30))
        await seen.wait()
        logging.getLogger("holdfast.storage").removeHandler(logged)
    finally:
        server.start()
    (pool,) = await opening
    await pool.close()
    assert "cannot be reached" in caplog.text
    assert "secret" not in caplog.text


@pytest.mark.parametrize("mode", ["transaction", "session"])
async def test_pooler_is_accepted_in_session_mode_only(migrated: str, mode: str) -> None:
    with pgbouncer(shared_server(), mode) as directory:
        name = migrated.partition("///")[2].partition("?")[0]
        dsn = f"postgresql:///{name}?host={directory}&port=6432&user=postgres"
        if mode == "transaction":
            for _ in range(3):
                assert "pooler in transaction mode" in await _refusal(dsn)
        else:
            await (await open_pool(StoreAddress(dsn), 0)).close()


async def test_data_directory_is_locked_and_keeps_its_place(migrated: str, tmp_path: Path) -> None:
    address = StoreAddress(migrated)
    ledger = await open_postgres(tmp_path, address, 0)
    with pytest.raises(Exception, match="used by another Holdfast server"):
        await open_postgres(tmp_path, address, 0)
    first = await ledger.open_workspace("/w")
    await ledger.close()
    again = await open_postgres(tmp_path, address, 0)
    second = await again.open_workspace("/w")
    assert (second.id, second.epoch) == (first.id, first.epoch + 1)
    await again.close()
    assert len(read_or_make_place(tmp_path)) == 32
    assert not (tmp_path / "holdfast.db").exists()


def test_asyncpg_is_imported_only_with_an_address() -> None:
    """Importing it takes longer than opening a database of SQLite."""
    script = (
        "import sys; import holdfast.cli.serve, holdfast.server.serve, holdfast.runtime.server_services,"
        " holdfast.runtime.open_store; print('asyncpg' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


async def test_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "asyncpg", None)
    with pytest.raises(StoreMisconfigured, match=r"pip install 'holdfast-agent\[postgres\]'"):
        await open_postgres(tmp_path, StoreAddress("postgresql://h/d"), 0)


GOOD = StoreReport(
    "d at h", "15.1", "on", is_fsync_on=True, standbys=(), latency_ms=0.4, has_transaction_pooler=False, wake_up_ms=0.9
)


@pytest.mark.parametrize(
    ("changes", "severity", "text"),
    [
        ({"is_fsync_on": False}, "error", "fsync is off"),
        ({"synchronous_commit": "off"}, "note", "synchronous_commit is off"),
        ({"standbys": (("one", "async"), ("two", "sync"))}, "warning", "asynchronous standby (one): a failover"),
        ({"standbys": (("one", "potential"), ("two", "sync"))}, "warning", "asynchronous standby (one): a failover"),
        ({"standbys": (("one", "sync"),), "synchronous_commit": "local"}, "warning", "synchronous_commit is local"),
        ({"standbys": (("one", ""),)}, "note", "cannot see whether"),
        ({"has_transaction_pooler": True, "wake_up_ms": None}, "error", "transaction mode"),
        ({"wake_up_ms": None}, "error", "a notification did not arrive"),
        ({"latency_ms": 9.0}, "warning", "a round trip takes 9.0 ms"),
        ({}, "", ""),
        ({"standbys": (("one", "sync"), ("two", "quorum"))}, "", ""),
        ({"synchronous_commit": "local"}, "", ""),
    ],
)
def test_doctor_reports_the_state_of_the_store(changes: dict[str, Any], severity: str, text: str) -> None:
    summary, *problems = findings(msgspec.structs.replace(GOOD, **changes))
    assert summary.severity == "ok"
    assert summary.what.startswith("PostgreSQL 15.1, d at h; synchronous_commit is ")
    assert [item.severity for item in problems] == ([severity] if severity else [])
    assert all(text in item.what and item.what_to_do for item in problems)


def test_the_summary_names_standbys_and_times() -> None:
    summary, *_ = findings(msgspec.structs.replace(GOOD, standbys=(("one", "sync"), ("two", "async"))))
    assert summary.what == (
        "PostgreSQL 15.1, d at h; synchronous_commit is on; synchronous standby: one; a round trip takes 0.4 ms; "
        "a wake-up of another server 0.9 ms."
    )


async def test_writes_are_synced_although_the_role_is_set_up_otherwise(migrated: str) -> None:
    name = migrated.partition("///")[2].partition("?")[0]
    await _execute(migrated, f"ALTER DATABASE {name} SET synchronous_commit = off")
    pool = await open_pool(StoreAddress(migrated), 0)
    assert (await pool.fetch("SHOW synchronous_commit"))[0][0] == "on"
    assert (await open_store.report_of(pool)).synchronous_commit == "off"
    await pool.close()
