"""Commits of any size around checkpoints, including failed ones: none is mistaken for a write of another program."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import apsw
import pytest

from holdfast.domain.errors import StorageError
from holdfast.storage import writer_thread
from holdfast.storage.database import Database
from storage.failing_calls import FailingCall
from storage.test_failing_steps import in_the_writer

NOTHING, LITTLE, MUCH = 0, 10, 60_000
WORKLOADS = (
    ((NOTHING, False), (NOTHING, False)),
    ((LITTLE, True), (NOTHING, False)),
)
"""Sizes of the writes, and whether each is a deletion."""
STAT_CALLS = {"stat", "fstat", "pread"}
"""The calls that check the identity of the files. A failed check is unknown, not a difference."""
CHECKPOINT = {f"{deed} {name}" for deed in ("write", "truncate", "sync") for name in ("holdfast.db", "holdfast.db-wal")}


@pytest.fixture(autouse=True)
def _quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "holdfast.storage")


def store(size: int) -> writer_thread.Work[None]:
    """Replace one row by a row of this size; 0 writes nothing."""

    def work(connection: apsw.Connection) -> None:
        if size:
            connection.execute("INSERT OR REPLACE INTO upkeep (task) VALUES (?)", ("x" * size,))
            connection.execute("DELETE FROM upkeep WHERE length(task) <> ?", (size,))

    return work


@contextmanager
def open_database(data: Path, vfs: str) -> Iterator[Database]:
    database = Database.open(data, vfs=vfs)
    try:
        yield database
    finally:
        database.close()


async def attempt(database: Database, fault: FailingCall, at: int, workload: tuple[tuple[int, bool], ...]) -> None:
    """Calls are counted from the first commit: maintenance after an earlier one may still be running then."""

    def begin(connection: apsw.Connection) -> None:
        fault.at, fault.count, fault.calls, fault.is_armed = at, 0, [], True
        store(LITTLE + 1)(connection)

    async with asyncio.timeout(20):
        # The log is empty, then it has a few pages.
        await database.write(store(LITTLE), sync=False, erases=True)
        await database.write(store(LITTLE), sync=False)
        with fault.armed():
            fault.is_armed = False
            with suppress(StorageError):
                await database.write(begin, sync=False)
            for size, erases in workload:
                with suppress(StorageError):
                    await database.write(store(size), sync=False, erases=erases)
        for size in (MUCH, NOTHING, 2 * MUCH):
            await database.write(store(size), sync=False)


@pytest.mark.parametrize("log_pages", [1, 250])
async def test_one_failed_call_around_any_commit_has_no_lasting_effect(
    log_pages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call that checks the files, or that a checkpoint makes, fails once: a small and a large commit are stored
    afterwards in every case. With a log of one page a checkpoint follows every commit.
    """
    monkeypatch.setattr(writer_thread, "WAL_PAGES", log_pages)

    fault = FailingCall("frames", applies=in_the_writer)
    failed = set()
    with open_database(tmp_path / "data", fault.disk.name) as database:
        for workload in WORKLOADS:
            await attempt(database, fault, 0, workload)
            for at, (before, name) in enumerate(pairwise(["", *fault.calls]), 1):
                # After a read, the failing call is the erasure of a page, of which there are many.
                if name in STAT_CALLS | CHECKPOINT and before != "read holdfast.db":
                    await attempt(database, fault, at, workload)
                    failed.add(fault.failed)
    assert failed > {"pread", "truncate holdfast.db-wal"}
