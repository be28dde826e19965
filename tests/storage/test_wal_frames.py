"""Commits of any size around checkpoints, also failed ones: none is taken for the work of another program."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import apsw
import pytest

from holdfast.domain.errors import StorageError
from holdfast.storage import writer
from holdfast.storage.database import Database
from storage.faults import Fault
from storage.test_failing_steps import in_the_writer

NOTHING, LITTLE, MUCH = 0, 10, 60_000
DEEDS = (
    ((NOTHING, False), (NOTHING, False)),
    ((LITTLE, True), (NOTHING, False)),
)
"""Sizes of what is written, and whether it is a deletion."""
LOOKS = {"stat", "fstat", "pread"}
"""What is called to see that the files are the same. If it fails, it is not known, which is no difference yet."""
CHECKPOINT = {f"{deed} {name}" for deed in ("write", "truncate", "sync") for name in ("holdfast.db", "holdfast.db-wal")}


@pytest.fixture(autouse=True)
def _quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "holdfast.storage")


def store(size: int) -> writer.Work[None]:
    """Replace one row by one of this size; nothing is written for 0."""

    def work(connection: apsw.Connection) -> None:
        if size:
            connection.execute("INSERT OR REPLACE INTO upkeep (task) VALUES (?)", ("x" * size,))
            connection.execute("DELETE FROM upkeep WHERE length(task) <> ?", (size,))

    return work


@contextmanager
def opened(data: Path, vfs: str) -> Iterator[Database]:
    database = Database.open(data, vfs=vfs)
    try:
        yield database
    finally:
        database.close()


async def attempt(database: Database, fault: Fault, at: int, deeds: tuple[tuple[int, bool], ...]) -> None:
    """The calls are counted from the first commit on: what follows an earlier one is not always over by then."""

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
            for size, erases in deeds:
                with suppress(StorageError):
                    await database.write(store(size), sync=False, erases=erases)
        for size in (MUCH, NOTHING, 2 * MUCH):
            await database.write(store(size), sync=False)


@pytest.mark.parametrize("log_pages", [1, 250])
async def test_one_failed_call_around_commits_of_any_size_stops_nothing_for_good(
    log_pages: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each call that looks at the files, or that a checkpoint makes, fails once: a small and a large commit are stored
    afterwards, whatever came before. With a log of one page there is a checkpoint after every commit.
    """
    monkeypatch.setattr(writer, "WAL_PAGES", log_pages)

    fault = Fault("frames", applies=in_the_writer)
    failed = set()
    with opened(tmp_path / "data", fault.disk.name) as database:
        for deeds in DEEDS:
            await attempt(database, fault, 0, deeds)
            for at, (before, name) in enumerate(pairwise(["", *fault.calls]), 1):
                # After a read, it is the erasing of a page, of which there are many.
                if name in LOOKS | CHECKPOINT and before != "read holdfast.db":
                    await attempt(database, fault, at, deeds)
                    failed.add(fault.failed)
    assert failed > {"pread", "truncate holdfast.db-wal"}
