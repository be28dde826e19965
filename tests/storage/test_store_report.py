"""The report of `holdfast doctor` about a real PostgreSQL: each row with its cause."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import asyncpg
import pytest

from holdfast.storage.postgres.connection_pool import Pool
from holdfast.storage.postgres.open_store import report_of
from holdfast.storage.postgres.store_report import StoreReport, findings
from holdfast.testing.gates import start
from postgres_server import PostgresServer, binaries, new_database, pgbouncer, postgres_server, shared_server
from scratch import memory_directory


@asynccontextmanager
async def _connected(dsn: str) -> AsyncIterator[asyncpg.Connection]:
    connection = await asyncpg.connect(dsn)
    try:
        yield connection
    finally:
        await connection.close()


async def _report(dsn: str) -> StoreReport:
    return await report_of(Pool({"dsn": dsn}, "shown"))


def _problems(report: StoreReport) -> list[tuple[str, str]]:
    """Return severity and text of each problem but that of the latency, which depends on the load of the machine."""
    return [(item.severity, item.what) for item in findings(report)[1:] if "round trip" not in item.what]


@pytest.fixture(scope="module")
def replicated() -> Iterator[PostgresServer]:
    """A server to which standbys can connect, and which does not sync."""
    with postgres_server(wal_level="replica", max_wal_senders="4", fsync="off") as server:
        yield server


async def _configure(server: PostgresServer, **settings: str) -> None:
    async with _connected(server.dsn()) as connection:
        for name, value in settings.items():
            await connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
        await connection.execute("SELECT pg_reload_conf()")
    are_read = False
    while not are_read:
        async with _connected(server.dsn()) as connection:
            are_read = [await connection.fetchval(f"SHOW {name}") for name in settings] == list(settings.values())


def _about_standbys(report: StoreReport) -> list[tuple[str, str]]:
    return [problem for problem in _problems(report) if "fsync" not in problem[1]]


@contextmanager
def _standby(server: PostgresServer, name: str) -> Iterator[None]:
    """Receive the write-ahead log as a standby does, and confirm it."""
    with memory_directory() as directory:
        server.give(directory)
        source = f"host={server.directory} user=postgres application_name={name}"
        command = [str(binaries() / "pg_receivewal"), "--synchronous", "--no-loop", "-D", str(directory), "-d", source]
        process = subprocess.Popen(
            [*server.privileges(), "--pdeathsig", "KILL", *command], stderr=subprocess.DEVNULL, cwd=directory
        )
        try:
            yield
        finally:
            process.kill()
            process.wait()


async def _states(server: PostgresServer, expected: dict[str, str]) -> None:
    """Return when the standbys have these states."""
    async with _connected(server.dsn()) as connection:
        while True:
            rows = await connection.fetch(
                "SELECT application_name, sync_state FROM pg_stat_replication WHERE state = 'streaming'"
            )
            if {row[0]: row[1] for row in rows} == expected:
                return


async def test_each_state_of_a_standby_is_reported(replicated: PostgresServer) -> None:
    dsn = replicated.dsn()
    assert (await _report(dsn)).standbys == ()
    with ExitStack() as stack:
        for name in ("one", "two"):
            stack.enter_context(_standby(replicated, name))
        await _states(replicated, {"one": "async", "two": "async"})
        report = await _report(dsn)
        assert report.standbys == (("one", "async"), ("two", "async"))
        assert _about_standbys(report) == [
            ("warning", "asynchronous standby (one, two): a failover to it may lose the latest prompts.")
        ]
        await _configure(replicated, synchronous_standby_names="FIRST 1 (one, two)")
        await _states(replicated, {"one": "sync", "two": "potential"})
        report = await _report(dsn)
        assert "synchronous standby: one;" in findings(report)[0].what
        assert _about_standbys(report) == [
            ("warning", "asynchronous standby (two): a failover to it may lose the latest prompts.")
        ]
        await _configure(replicated, synchronous_standby_names="FIRST 2 (one, two)")
        await _states(replicated, {"one": "sync", "two": "sync"})
        assert _about_standbys(await _report(dsn)) == []
        await _configure(replicated, synchronous_commit="local")
        assert [severity for severity, _ in _about_standbys(await _report(dsn))] == ["warning"]
        # A role without the right sees that there are standbys, and no more.
        async with _connected(dsn) as connection:
            await connection.execute("SET synchronous_commit = local; CREATE ROLE limited LOGIN")
        report = await _report(replicated.dsn(user="limited"))
        assert ("note", "this role cannot see whether the standby is synchronous (one, two).") in _about_standbys(
            report
        )
        await _configure(replicated, synchronous_standby_names="", synchronous_commit="on")


async def test_settings_that_lose_data_are_reported(replicated: PostgresServer) -> None:
    await _configure(replicated, synchronous_commit="off")
    report = await _report(replicated.dsn())
    assert (report.is_fsync_on, report.synchronous_commit) == (False, "off")
    assert [severity for severity, _ in _problems(report)] == ["error", "note"]
    await _configure(replicated, synchronous_commit="on")
    assert [severity for severity, _ in _problems(await _report(replicated.dsn()))] == ["error"]


@pytest.mark.parametrize("mode", ["transaction", "session"])
async def test_notifications_through_a_pooler(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server refuses a pooler in transaction mode at its start; its mode may change later."""
    monkeypatch.setattr("holdfast.storage.postgres.open_store._WAKE_UP_SECONDS", 0.5)
    async with new_database() as migrated:
        with pgbouncer(shared_server(), mode) as directory:
            name = migrated.partition("///")[2].partition("?")[0]
            report = await _report(f"postgresql:///{name}?host={directory}&port=6432&user=postgres")
    assert report.has_transaction_pooler == (mode == "transaction")
    if mode == "transaction":
        assert report.wake_up_ms is None
        assert [severity for severity, _ in _problems(report)] == ["error"]
    else:
        assert report.wake_up_ms is not None
        assert _problems(report) == []


class _DelayedSocket:
    """A Unix socket that passes everything to another one after a delay."""

    def __init__(self, target: Path, delay: float) -> None:
        self._target = target
        self._delay = delay
        self._passing: set[asyncio.Task[None]] = set()

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(str(self._target))
        for source, sink in ((reader, far_writer), (far_reader, writer)):
            task = start(self._pass(source, sink))
            self._passing.add(task)
            task.add_done_callback(self._passing.discard)

    async def _pass(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        while data := await source.read(65_536):
            loop.call_later(self._delay, sink.write, data)
        loop.call_later(self._delay, sink.close)


async def test_a_distant_database_is_reported() -> None:
    async with new_database() as migrated:
        with memory_directory() as directory:
            far = _DelayedSocket(shared_server().directory / ".s.PGSQL.5432", 0.004)
            async with await asyncio.start_unix_server(far.accept, directory / ".s.PGSQL.5432"):
                near = await _report(migrated)
                name = migrated.partition("///")[2].partition("?")[0]
                report = await _report(f"postgresql:///{name}?host={directory}&user=postgres")
    assert 0 < near.latency_ms < report.latency_ms
    assert report.latency_ms >= 8
    assert [(item.severity, item.what[:18]) for item in findings(report)[1:]] == [("warning", "a round trip takes")]


async def test_the_report_names_version_and_times() -> None:
    async with new_database() as migrated:
        report = await _report(migrated)
        async with _connected(migrated) as connection:
            version = await connection.fetchval("SHOW server_version")
    assert report.version == version
    assert (report.synchronous_commit, report.is_fsync_on, report.standbys) == ("on", True, ())
    assert report.wake_up_ms is not None
    assert report.wake_up_ms > 0
    assert _problems(report) == []
