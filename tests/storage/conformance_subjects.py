"""Our ledgers as subjects of the conformance suite: a template for tests of another ledger."""

import shutil
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import apsw

from holdfast.domain.errors import StorageError, StorageUnavailable, StorageUnknown
from holdfast.engine.ports import Ledger
from holdfast.storage.event_log import Retention
from holdfast.storage.postgres.apply_call import APPLY
from holdfast.storage.postgres.connection_pool import Pool, Row
from holdfast.storage.postgres.postgres_ledger import PostgresLedger
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.storage.workspace_table import UNCLEAN_GAP
from holdfast.testing.conformance import ManualClock, Subject
from holdfast.testing.memory_ledger import MemoryLedger
from postgres_server import new_database, shared_server
from storage.faulty_disk import FaultyDisk

__all__ = ["SHARED_SUBJECTS", "SUBJECTS", "FaultyPool", "Make", "PostgresSubject", "postgres"]

Make = Callable[[Path, Retention], AbstractAsyncContextManager[Subject]]


class MemorySubject:
    unclean_gap = 10_000

    def __init__(self, retention: Retention) -> None:
        self.clock = ManualClock()
        self._failures: list[Exception] = []
        self.ledger = MemoryLedger(retention=retention, now_ms=self.clock.now_ms, fail=self._fail)

    async def another(self) -> Ledger:
        return self.ledger

    async def crash(self) -> None:
        """A store whose memory outlives the server: nothing changes."""

    async def cut_power(self) -> None:
        self.ledger.lose_power()

    def fail_next(self) -> None:
        self._failures.append(StorageUnavailable())

    def lose_next_answer(self) -> None:
        self._failures.append(StorageUnknown())

    def _fail(self) -> Exception | None:
        return self._failures.pop(0) if self._failures else None


class SqliteSubject:
    """A crash is a second ledger on a copy of the files, taken while the first is still running."""

    unclean_gap = UNCLEAN_GAP

    def __init__(self, folder: Path, retention: Retention) -> None:
        self.clock = ManualClock()
        self._folder = folder
        self._retention = retention
        self._faults: dict[str, Exception] = {}
        self._disk = FaultyDisk(f"faulty-{folder.name}")
        self._opened: list[SqliteLedger] = []
        self.ledger = self._open()

    def _open(self) -> SqliteLedger:
        ledger = SqliteLedger(
            self._data_dir(),
            retention=self._retention,
            now_ms=self.clock.now_ms,
            probe=self._probe,
            vfs=self._disk.name,
        )
        self._opened.append(ledger)
        return ledger

    def _data_dir(self) -> Path:
        return self._folder / f"life-{len(self._opened)}"

    async def another(self) -> Ledger:
        return self.ledger

    async def crash(self) -> None:
        before = self._folder / f"life-{len(self._opened) - 1}"
        shutil.copytree(before, self._data_dir(), ignore=shutil.ignore_patterns("lock", "*-shm"))
        self.ledger = self._open()

    async def cut_power(self) -> None:
        data_dir = self._data_dir()
        data_dir.mkdir()
        for name in ("holdfast.db", "holdfast.db-wal"):
            (data_dir / name).write_bytes(self._disk.synced[name])
        self.ledger = self._open()

    def fail_next(self) -> None:
        self._faults["executed"] = apsw.FullError("no room")

    def lose_next_answer(self) -> None:
        self._faults["committed"] = RuntimeError("cut off")

    async def close(self) -> None:
        for ledger in self._opened:
            await ledger.close()

    def _probe(self, point: str) -> None:
        if point in self._faults:
            raise self._faults.pop(point)


TABLES = (
    *("workspaces", "sessions", "messages", "growth", "runs", "removed_runs", "requests"),
    *("events", "files", "contents", "read_marks"),
)


class FaultyPool(Pool):
    """Connections whose next write fails before it is sent, or whose answer is lost.

    Each batch of an owner is first applied with a stale epoch, which must change nothing.
    """

    def __init__(self, dsn: str) -> None:
        super().__init__({"dsn": dsn})
        self.faults: list[StorageError] = []
        self.fenced = 0

    async def write(self, statement: str, *arguments: object) -> Row | None:
        fault = self.faults.pop(0) if self.faults else None
        if isinstance(fault, StorageUnavailable):
            raise fault
        if statement == APPLY and arguments[1] is not None:
            await self._apply_with_stale_epoch(arguments)
        row = await super().write(statement, *arguments)
        if fault is not None:
            raise fault
        return row

    async def _apply_with_stale_epoch(self, arguments: Sequence[object]) -> None:
        """Apply the batch as an owner that was replaced after it loaded its rows: nothing may change."""
        key, *_ = arguments
        await super().write("UPDATE holdfast.workspaces SET epoch = epoch + 1 WHERE key = $1 RETURNING 0", key)
        before = await self.contents(key)
        row = await super().write(APPLY, *arguments)
        assert row is not None
        assert row[0] == 1, "a batch of a former owner was applied"
        changed = [table for table, digest in (await self.contents(key)).items() if digest != before[table]]
        assert not changed, f"a batch of a former owner changed {changed}"
        await super().write("UPDATE holdfast.workspaces SET epoch = epoch - 1 WHERE key = $1 RETURNING 0", key)
        self.fenced += 1

    async def contents(self, workspace: object) -> dict[str, str]:
        """Return a digest of the rows of a workspace in each table. Others may be written to meanwhile."""
        digest = "md5(coalesce(string_agg(t::text, '|' ORDER BY t::text), ''))"
        selects = (
            f"SELECT '{table}', {digest} FROM holdfast.{table} AS t"
            f" WHERE {'key' if table == 'workspaces' else 'workspace'} = $1"
            for table in TABLES
        )
        return {row[0]: row[1] for row in await self.fetch(" UNION ALL ".join(selects), workspace)}


class PostgresSubject:
    """A crash of the server cuts its connections; a power cut kills PostgreSQL."""

    unclean_gap = 0

    def __init__(self, dsn: str, retention: Retention) -> None:
        self.clock = ManualClock()
        self._dsn = dsn
        self._retention = retention
        self._opened: list[PostgresLedger] = []
        self._pool = FaultyPool(dsn)

    @property
    def ledger(self) -> PostgresLedger:
        return self._opened[-1]

    async def open(self) -> PostgresLedger:
        self._pool = FaultyPool(self._dsn)
        await self._pool.open()
        ledger = PostgresLedger(self._pool, "here", retention=self._retention, now_ms=self.clock.now_ms)
        self._opened.append(ledger)
        return ledger

    async def another(self) -> Ledger:
        return await self.open()

    async def crash(self) -> None:
        for ledger in self._opened:
            ledger.pool.terminate()
        await self.open()

    async def cut_power(self) -> None:
        shared_server().crash()
        await self.crash()

    def fail_next(self) -> None:
        self._pool.faults.append(StorageUnavailable())

    def lose_next_answer(self) -> None:
        self._pool.faults.append(StorageUnknown())

    async def close(self) -> None:
        for ledger in self._opened:
            await ledger.close()


@asynccontextmanager
async def postgres(_folder: Path, retention: Retention) -> AsyncIterator[Subject]:
    async with new_database() as dsn:
        subject = PostgresSubject(dsn, retention)
        await subject.open()
        try:
            yield subject
        finally:
            await subject.close()


@asynccontextmanager
async def memory(_folder: Path, retention: Retention) -> AsyncIterator[Subject]:
    yield MemorySubject(retention)


@asynccontextmanager
async def sqlite(folder: Path, retention: Retention) -> AsyncIterator[Subject]:
    subject = SqliteSubject(folder, retention)
    try:
        yield subject
    finally:
        await subject.close()


SUBJECTS: dict[str, Make] = {"memory": memory, "sqlite": sqlite, "postgres": postgres}
SHARED_SUBJECTS = ("memory", "postgres")
"""The kinds that implement `SharedLedger`."""
