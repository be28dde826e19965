"""Our two ledgers as subjects of the conformance suite: a template for tests of another ledger."""

import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import apsw

from holdfast.domain.errors import StorageUnavailable, StorageUnknown
from holdfast.engine.ports import Ledger
from holdfast.storage.event_log import Retention
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.conformance import ManualClock, Subject
from holdfast.testing.memory_ledger import MemoryLedger
from storage.faulty_disk import FaultyDisk

__all__ = ["SHARED_SUBJECTS", "SUBJECTS", "Make"]

Make = Callable[[Path, Retention], AbstractAsyncContextManager[Subject]]


class MemorySubject:
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


SUBJECTS: dict[str, Make] = {"memory": memory, "sqlite": sqlite}
SHARED_SUBJECTS = ("memory",)
"""The kinds that implement `SharedLedger`."""
