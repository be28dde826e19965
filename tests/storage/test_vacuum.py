"""R11: space of deleted content is released in the background."""

import asyncio
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import cast

import apsw
import pytest

from holdfast.domain.ids import SessionId
from holdfast.domain.store_operations import CreateSession, DeleteMessage, DeleteSession, PutMessage
from holdfast.storage import vacuum
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.storage.vacuum import WAL_SIZE_LIMIT, IncrementalVacuum
from holdfast.testing.conformance import WorkspaceOwner, message, session
from storage.faulty_disk import FaultyDisk

SPARE_PAGES = 100
TIMEOUT = 20.0
LONG = "x" * 200_000


@pytest.fixture(autouse=True)
def _small_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vacuum, "SPARE_PAGES", SPARE_PAGES)


@pytest.fixture
async def ledger(tmp_path: Path) -> AsyncIterator[SqliteLedger]:
    ledger = SqliteLedger(tmp_path)
    yield ledger
    await ledger.close()


async def filled_ledger(ledger: SqliteLedger) -> WorkspaceOwner:
    """One session that stays, between two that are deleted; each message takes the same space in the event log."""
    owner = await WorkspaceOwner.with_session(ledger)
    for name in ("early", "stays", "late"):
        await owner.do(CreateSession(session(name)))
        for number in range(20):
            await owner.do(PutMessage(message(f"{name}{number}", LONG, session=name)), sync=False)
    return owner


async def empty(owner: WorkspaceOwner) -> None:
    for name in ("early", "late"):
        await owner.do(DeleteSession(SessionId(name)))


def pages(connection: apsw.Connection) -> tuple[int, int]:
    """Return the number of all pages and of free pages."""
    return connection.pragma("page_count"), connection.pragma("freelist_count")


async def test_r11_file_shrinks_after_sessions_are_deleted(ledger: SqliteLedger, tmp_path: Path) -> None:
    owner = await filled_ledger(ledger)
    kept = await ledger.messages(owner.id, SessionId("stays"))
    before, _ = await ledger.database.read(pages)
    await empty(owner)
    async with asyncio.timeout(TIMEOUT):
        while (await ledger.database.read(pages))[1] > SPARE_PAGES:
            pass
    after, _ = await ledger.database.read(pages)
    assert before - after > 40 * len(LONG) // 4_096 - SPARE_PAGES
    assert await ledger.messages(owner.id, SessionId("stays")) == kept
    await ledger.close()
    assert (tmp_path / "holdfast.db").stat().st_size == after * 4_096


async def test_a_log_that_is_pruned_and_grows_keeps_its_pages(
    ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_examined = threading.Event()
    has_work = IncrementalVacuum.has_work

    def noted(shrinker: IncrementalVacuum, connection: apsw.Connection) -> bool:
        found = has_work(shrinker, connection)
        is_examined.set()
        return found

    owner = await WorkspaceOwner.with_session(ledger)
    for number in range(3):
        await owner.put(message(f"m{number}", LONG))
    before, _ = await ledger.database.read(pages)
    for number in range(3):
        await owner.do(DeleteMessage(message(f"m{number}").id))
    monkeypatch.setattr(IncrementalVacuum, "has_work", noted)
    assert await asyncio.to_thread(is_examined.wait, TIMEOUT), "after a quiet moment"
    # Written when all maintenance in between is done.
    await ledger.database.write(lambda _: None, sync=False)
    after, free = await ledger.database.read(pages)
    assert free > SPARE_PAGES
    assert after >= before


@pytest.mark.parametrize("maps", ["NONE", "FULL", "INCREMENTAL"])
@pytest.mark.parametrize("free", [SPARE_PAGES, SPARE_PAGES + 1, 2 * SPARE_PAGES, 2 * SPARE_PAGES + 1])
def test_when_the_vacuum_begins_and_ends(maps: str, free: int) -> None:
    """Only with pointer maps: without them a step releases nothing, and the writer would repeat it for ever."""

    class Pages:
        def pragma(self, name: str) -> int:
            return {"freelist_count": self.free, "auto_vacuum": ("NONE", "FULL", "INCREMENTAL").index(maps)}[name]

        free = 2 * SPARE_PAGES + 1

    connection, steps = Pages(), IncrementalVacuum()
    has_maps = maps == "INCREMENTAL"
    assert steps.has_work(cast(apsw.Connection, connection)) is has_maps
    connection.free = free
    assert steps.has_work(cast(apsw.Connection, connection)) is (has_maps and free > SPARE_PAGES)
    connection.free = SPARE_PAGES
    assert not steps.has_work(cast(apsw.Connection, connection))
    connection.free = free
    assert steps.has_work(cast(apsw.Connection, connection)) is (has_maps and free > 2 * SPARE_PAGES)


async def test_a_job_waits_for_one_vacuum_step_at_most(ledger: SqliteLedger, monkeypatch: pytest.MonkeyPatch) -> None:
    reached, go_on = threading.Event(), threading.Event()
    reported: list[str] = []
    step = IncrementalVacuum.step

    def held(shrinker: IncrementalVacuum, connection: apsw.Connection) -> None:
        reached.set()
        assert go_on.wait(TIMEOUT)
        step(shrinker, connection)
        reported.append("step")

    owner = await filled_ledger(ledger)
    monkeypatch.setattr(IncrementalVacuum, "step", held)
    deleting = asyncio.gather(empty(owner))
    assert await asyncio.to_thread(reached.wait, TIMEOUT)
    writing = asyncio.gather(ledger.database.write(lambda _: reported.append("write"), sync=True))
    await asyncio.sleep(0)
    go_on.set()
    await writing
    await deleting
    assert reported[:2] == ["step", "write"]


async def test_a_power_cut_at_any_vacuum_step_loses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """C-55, R11: each step is a transaction without new content."""
    disk = FaultyDisk("shrinking")
    ledger = SqliteLedger(tmp_path / "before", vfs=disk.name)
    states: list[dict[str, bytes]] = []
    step = IncrementalVacuum.step

    def seen(shrinker: IncrementalVacuum, connection: apsw.Connection) -> None:
        step(shrinker, connection)
        if len(states) < 40 and connection.pragma("freelist_count") % 5 == 0:
            states.append({name: bytes(data) for name, data in disk.synced.items()})

    monkeypatch.setattr(IncrementalVacuum, "step", seen)
    owner = await filled_ledger(ledger)
    kept = await ledger.messages(owner.id, SessionId("stays"))
    await empty(owner)
    async with asyncio.timeout(TIMEOUT):
        while (await ledger.database.read(pages))[1] > SPARE_PAGES:
            pass
    await ledger.close()
    assert states
    for number, state in enumerate(states):
        place = tmp_path / f"after-{number}"
        place.mkdir()
        for name in ("holdfast.db", "holdfast.db-wal"):
            (place / name).write_bytes(state[name])
        again = SqliteLedger(place)
        assert await again.messages(owner.id, SessionId("stays")) == kept
        await again.close()


async def test_r11_log_is_truncated_after_a_huge_write(ledger: SqliteLedger, tmp_path: Path) -> None:
    owner = await WorkspaceOwner.with_session(ledger)
    await owner.put(message("huge", "x" * 30_000_000))
    assert (tmp_path / "holdfast.db-wal").stat().st_size > 30_000_000
    # The log restarts with the first write after a full checkpoint.
    for number in range(3):
        await owner.put(message(f"m{number}"))
    assert (tmp_path / "holdfast.db-wal").stat().st_size <= WAL_SIZE_LIMIT


async def test_interrupted_deletion_is_completed_after_the_next_start(
    ledger: SqliteLedger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program reads the log, so that it cannot be erased; then the server is killed."""
    monkeypatch.setattr("holdfast.storage.writer_thread._ERASE_TIMEOUT_MS", 0)
    owner = await WorkspaceOwner.with_session(ledger)
    await owner.do(CreateSession(session("gone")))
    for number in range(20):
        await owner.do(PutMessage(message(f"m{number}", f"canary {number}", session="gone")), sync=False)
    killed = tmp_path / "killed"
    killed.mkdir()
    with closing(apsw.Connection(str(tmp_path / "holdfast.db"))) as reader, reader:
        reader.execute("SELECT count(*) FROM messages").fetchall()
        await owner.do(DeleteSession(SessionId("gone")))
        for name in ("holdfast.db", "holdfast.db-wal"):
            shutil.copy2(tmp_path / name, killed)

    def found() -> bool:
        return any(b"canary" in path.read_bytes() for path in killed.iterdir())

    assert found()
    again = SqliteLedger(killed)
    async with asyncio.timeout(TIMEOUT):
        while found():
            await asyncio.to_thread(list, killed.iterdir())
    await again.close()
