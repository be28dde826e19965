"""The SQLite ledger: group commit, failures, closing."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any, cast

import apsw
import msgspec
import pytest

from holdfast.domain.errors import DatabaseDamaged, StorageUnavailable, StorageUnknown
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import Admit, CreateSession, EndRun, PatchSession, PutMessage, Receipt, Write
from holdfast.storage import database
from holdfast.storage.data_directory import WAL_PAGES, preallocate_wal
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.conformance import WorkspaceOwner, message, run, session
from storage.faulty_disk import FaultyDisk

PATCH = PatchSession(SessionPatch(SessionId("s"), 1))
SYNCED = Write((PATCH,))
UNSYNCED = Write((PATCH,), sync=False)


@asynccontextmanager
async def open_ledger(
    data_dir: Path, *, probe: Callable[[str], None] | None = None, vfs: str | None = None
) -> AsyncIterator[SqliteLedger]:
    ledger = SqliteLedger(data_dir, probe=probe, vfs=vfs)
    try:
        yield ledger
    finally:
        await ledger.close()


class Gate:
    """Holds the writer at a point until it is opened, and records the points it passes."""

    def __init__(self) -> None:
        self.points: list[str] = []
        self.reached = threading.Event()
        self._open = threading.Event()
        self._open.set()

    def __call__(self, point: str) -> None:
        self.points.append(point)
        if point == "before" and not self._open.is_set():
            self.reached.set()
            assert self._open.wait(20)

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def until_reached(self) -> None:
        assert await asyncio.to_thread(self.reached.wait, 20)


async def test_waiting_batches_are_committed_together(tmp_path: Path) -> None:
    gate = Gate()
    async with open_ledger(tmp_path, probe=gate) as ledger:
        owners = [await WorkspaceOwner.open(ledger, f"/{index}") for index in range(3)]
        for owner in owners:
            await owner.do(CreateSession(session("s")))
        gate.points.clear()
        gate.shut()
        first = asyncio.gather(owners[0].batch(SYNCED))
        await gate.until_reached()
        others = asyncio.gather(*(owner.batch(SYNCED) for owner in owners * 4))
        await asyncio.sleep(0)
        gate.open()
        answers = [*await first, *await others]
        assert gate.points == ["before", "executed", "committed"] * 2
        assert all(isinstance(answer, Receipt) for (answer,) in answers)
        assert [len(await owner.events()) for owner in owners] == [6, 5, 5]


async def test_only_groups_with_a_synced_write_are_synced(tmp_path: Path) -> None:
    disk = FaultyDisk("counting")
    gate = Gate()
    async with open_ledger(tmp_path, vfs=disk.name, probe=gate) as ledger:
        owner = await WorkspaceOwner.with_session(ledger)
        disk.syncs.clear()
        await owner.batch(UNSYNCED)
        assert disk.syncs == []
        await owner.batch(SYNCED)
        assert "holdfast.db-wal" in disk.syncs
        disk.syncs.clear()
        gate.shut()
        first = asyncio.gather(owner.batch(UNSYNCED))
        await gate.until_reached()
        rest = asyncio.gather(owner.batch(UNSYNCED), owner.batch(SYNCED), owner.batch(UNSYNCED))
        await asyncio.sleep(0)
        gate.open()
        await first
        await rest
        assert disk.syncs == ["holdfast.db-wal"]


async def test_the_threads_of_a_store_are_named_and_never_keep_a_process_alive(tmp_path: Path) -> None:
    before = {*threading.enumerate()}
    async with open_ledger(tmp_path):
        threads = {thread.name: thread.daemon for thread in {*threading.enumerate()} - before}
        kinds = {name.rstrip("0123456789"): is_daemon for name, is_daemon in threads.items() if "holdfast" in name}
        assert kinds == {"holdfast-writer": True, "holdfast-reader-": True}


async def test_only_the_writer_can_write(tmp_path: Path) -> None:
    async with open_ledger(tmp_path) as ledger:

        def is_readonly(connection: apsw.Connection) -> bool:
            return connection.readonly("main")

        assert await ledger.database.read(is_readonly)
        assert not await ledger.database.write(is_readonly, sync=False)


async def test_the_writer_sets_synchronous_for_each_group(tmp_path: Path) -> None:
    async with open_ledger(tmp_path) as ledger:

        def level(connection: apsw.Connection) -> object:
            return connection.pragma("synchronous")

        levels = [await ledger.database.write(level, sync=sync) for sync in (True, False, False, True)]
        assert levels == [2, 1, 1, 2]


async def test_unsynced_writes_are_lost_with_the_power(tmp_path: Path) -> None:
    """Shows that the power cut of the conformance suite has an effect."""
    disk = FaultyDisk("power")
    async with open_ledger(tmp_path / "before", vfs=disk.name) as ledger:
        owner = await WorkspaceOwner.with_session(ledger)
        await owner.batch(UNSYNCED)
        assert len(await owner.events()) == 2
        (tmp_path / "after").mkdir()
        for name in ("holdfast.db", "holdfast.db-wal"):
            (tmp_path / "after" / name).write_bytes(disk.synced[name])
    async with open_ledger(tmp_path / "after") as ledger:
        assert len(await ledger.events_after(owner.id, 0, 10)) == 1


async def test_the_database_refuses_a_second_end(tmp_path: Path) -> None:
    async with open_ledger(tmp_path) as ledger:
        owner = await WorkspaceOwner.with_session(ledger)
        await owner.admit("r1")
        await owner.do(EndRun(RunId("r1"), "completed", 9))
    with closing(apsw.Connection(str(tmp_path / "holdfast.db"))) as connection:
        for change in ("outcome = 'failed'", "outcome = NULL", "body = x'7b7d'"):
            with pytest.raises(apsw.ConstraintError, match="the run has ended"):
                connection.execute(f"UPDATE runs SET {change}")


async def test_one_batch_that_cannot_be_stored_does_not_harm_the_others(tmp_path: Path) -> None:
    gate = Gate()
    async with open_ledger(tmp_path, probe=gate) as ledger:
        owner, other = await WorkspaceOwner.with_session(ledger), await WorkspaceOwner.open(ledger, "/other")
        await other.do(CreateSession(session("s")))
        gate.shut()
        first = asyncio.gather(owner.batch(SYNCED))
        await gate.until_reached()
        unfit = Write((CreateSession(session("half")), Admit(run("r1", prompt="\udcff"), b"h")))
        rest = asyncio.gather(owner.batch(unfit), other.batch(SYNCED), return_exceptions=True)
        await asyncio.sleep(0)
        gate.open()
        await first
        bad, good = await rest
        assert isinstance(bad, StorageUnavailable)
        assert not isinstance(good, BaseException)
        assert (len(await owner.events()), len(await other.events())) == (2, 2)
        assert await ledger.session(owner.id, SessionId("half")) is None
        assert (await ledger.last_batch(owner.id, owner.epoch))[0] == owner.ticket - 1


async def test_failed_write_leaves_nothing_behind(tmp_path: Path) -> None:
    disk = FaultyDisk("refusing")
    async with open_ledger(tmp_path, vfs=disk.name) as ledger:
        owner = await WorkspaceOwner.with_session(ledger)
        before = await owner.all()

        def refuse(_name: str) -> None:
            raise apsw.FullError("no room")

        disk.on_write = refuse
        for _ in range(3):
            with pytest.raises(StorageUnavailable, match="disk is full") as caught:
                await owner.batch(SYNCED)
            _hides_sql(caught.value)
            assert await owner.all() == before
        disk.on_write = lambda _name: None
        await owner.batch(SYNCED)
        assert len(await owner.events()) == 2


async def test_interrupted_commit_is_unknown_and_can_be_queried(tmp_path: Path) -> None:
    disk = FaultyDisk("breaking")
    async with open_ledger(tmp_path, vfs=disk.name) as ledger:
        owner = await WorkspaceOwner.with_session(ledger)

        def break_(_name: str) -> None:
            raise apsw.IOError("broken")

        disk.on_sync = break_
        with pytest.raises(StorageUnknown) as caught:
            await owner.batch(SYNCED)
        _hides_sql(caught.value)
        disk.on_sync = lambda _name: None
        ticket, _ = await ledger.last_batch(owner.id, owner.epoch)
        assert ticket == owner.ticket - 1
        await ledger.commit(owner.id, owner.epoch, owner.ticket, [SYNCED])
        assert len(await owner.events()) == 2


async def test_a_damaged_row_is_reported_as_damage(tmp_path: Path) -> None:
    async with open_ledger(tmp_path) as ledger:
        owner = await WorkspaceOwner.with_session(ledger)
        await owner.put(message("m"))

        def spoil(connection: apsw.Connection) -> None:
            connection.execute("UPDATE messages SET body = x'00'")

        await ledger.database.write(spoil, sync=True)
        with pytest.raises(DatabaseDamaged) as caught:
            await ledger.messages(owner.id, SessionId("s"))
        _hides_sql(caught.value)


def _hides_sql(error: BaseException) -> None:
    assert (error.__cause__, error.__context__) == (None, None)
    assert not any(word in str(error) for word in ("SQL", "INSERT", "SELECT", "Traceback"))


async def test_closing_completes_submitted_work(tmp_path: Path) -> None:
    gate = Gate()
    ledger = SqliteLedger(tmp_path, probe=gate)
    owner = await WorkspaceOwner.with_session(ledger)
    gate.shut()
    first = asyncio.gather(owner.batch(UNSYNCED))
    await gate.until_reached()
    second = asyncio.gather(owner.batch(UNSYNCED))
    await asyncio.sleep(0)
    closing_ = asyncio.gather(ledger.close(), ledger.close())
    await asyncio.sleep(0)
    gate.open()
    await asyncio.gather(first, second, closing_)
    assert _names(tmp_path) == ["holdfast.db", "lock"]
    with pytest.raises(StorageUnavailable, match="closed"):
        await owner.batch(SYNCED)
    with pytest.raises(StorageUnavailable, match="closed"):
        await ledger.bounds(owner.id)
    async with open_ledger(tmp_path) as ledger:
        assert len(await ledger.events_after(owner.id, 0, 10)) == 3


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def test_write_ahead_log_is_bounded(tmp_path: Path) -> None:
    async with open_ledger(tmp_path) as ledger:
        owner = await WorkspaceOwner.with_session(ledger)
        for index in range(40):
            await owner.do(*[PATCH] * 250, sync=False)
            if index == 10:
                early = (tmp_path / "holdfast.db-wal").stat().st_size
        assert (tmp_path / "holdfast.db-wal").stat().st_size <= 2 * max(early, 4 << 20)
        assert (tmp_path / "holdfast.db").stat().st_size > 1 << 20


async def test_write_ahead_log_is_preallocated(tmp_path: Path) -> None:
    """A commit that extends the file also waits for file system metadata."""
    wal = tmp_path / "holdfast.db-wal"
    async with open_ledger(tmp_path) as ledger:
        owner = await WorkspaceOwner.with_session(ledger)
        room = wal.stat().st_size
        assert room >= WAL_PAGES * 4_096
        await owner.admit(*(f"r{index}" for index in range(5)))
        await owner.do(*[PATCH] * 250)
        assert wal.stat().st_size == room
    assert not wal.exists()


def test_only_an_existing_write_ahead_log_is_preallocated(tmp_path: Path) -> None:
    preallocate_wal(tmp_path / "some.db")
    assert _names(tmp_path) == []
    wal = tmp_path / "some.db-wal"
    wal.write_bytes(b"frames")
    preallocate_wal(tmp_path / "some.db")
    assert wal.read_bytes().rstrip(b"\0") == b"frames"
    size = wal.stat().st_size
    preallocate_wal(tmp_path / "some.db")
    assert wal.stat().st_size == size


async def test_replies_to_a_closed_event_loop_are_dropped(tmp_path: Path) -> None:
    """A loop that ended without waiting does not stop the writer for the others."""
    gate = Gate()
    async with open_ledger(tmp_path, probe=gate) as ledger:
        owner = await WorkspaceOwner.with_session(ledger)
        gate.shut()

        async def ask() -> None:
            unfinished.append(asyncio.gather(owner.batch(SYNCED)))
            await asyncio.sleep(0)

        unfinished: list[object] = []
        await asyncio.to_thread(asyncio.run, ask())
        gate.open()
        await owner.batch(SYNCED)
        assert len(await owner.events()) == 3


async def test_many_writers_lose_nothing(tmp_path: Path) -> None:
    async with open_ledger(tmp_path) as ledger:
        owners = [await WorkspaceOwner.open(ledger, f"/{index}") for index in range(4)]

        async def work(owner: WorkspaceOwner) -> None:
            await owner.do(CreateSession(session("s")))
            for index in range(25):
                await owner.do(Admit(run(f"r{index}"), b"h"), sync=index % 2 == 0)

        await asyncio.gather(*(work(owner) for owner in owners))
        for owner in owners:
            assert [number for number, _ in await owner.events()] == list(range(1, 27))
            assert len(await ledger.open_runs(owner.id)) == 25


async def test_interrupt_cancels_runs_accepted_in_the_same_batch(tmp_path: Path) -> None:
    async with open_ledger(tmp_path) as ledger:
        owner = await WorkspaceOwner.with_session(ledger)
        waiting = [Write((Admit(run(name), b"hash"),)) for name in ("r1", "r2")]
        last = msgspec.structs.replace(run("r3"), delivery="interrupt")
        answers = await owner.batch(*waiting, Write((Admit(last, b"hash"),)))
        assert all(isinstance(answer, Receipt) for answer in answers)
        found = {item.run_id: item.cancel_requested for item in await ledger.open_runs(owner.id)}
        assert found == {"r1": True, "r2": True, "r3": False}


async def test_a_message_that_changes_its_run_and_back_is_found_by_its_run(tmp_path: Path) -> None:
    async with open_ledger(tmp_path) as ledger:
        owner = await WorkspaceOwner.with_session(ledger)
        first = msgspec.structs.replace(message("m"), run_id=RunId("r1"))
        other = msgspec.structs.replace(first, run_id=RunId("r2"))
        await owner.do(PutMessage(first))
        await owner.do(PutMessage(other), PutMessage(first))
        assert [item.id for item in await ledger.messages_of_run(owner.id, RunId("r1"))] == ["m"]
        assert await ledger.messages_of_run(owner.id, RunId("r2")) == []


class StuckConnection:
    """A connection whose file reports an error when it is closed."""

    is_closed = False

    def close(self, force: bool = False) -> None:
        if not force:
            raise apsw.IOError
        self.is_closed = True


def test_a_connection_whose_file_fails_is_closed_by_force(caplog: pytest.LogCaptureFixture) -> None:
    stuck = StuckConnection()
    database._close(cast(Any, stuck))
    assert stuck.is_closed
    assert caplog.records


class LockedQueue:
    """Records for each job whether the lock was held while it was put."""

    def __init__(self, threads: Any) -> None:  # noqa: ANN401 - `Writer` or `Readers`
        self._lock, self._jobs = threads._submit_lock, threads._jobs
        self.was_locked: list[bool] = []

    def put(self, job: object) -> None:
        self.was_locked.append(self._lock.locked())
        self._jobs.put(job)

    def __getattr__(self, name: str) -> object:
        return getattr(self._jobs, name)


async def test_every_job_is_put_while_the_lock_is_held(tmp_path: Path) -> None:
    """Otherwise a job could be put after the one that stops the thread, and its caller would wait forever."""
    ledger = SqliteLedger(tmp_path)
    parts: list[Any] = [ledger.database._writer, ledger.database._readers]
    queues = [LockedQueue(part) for part in parts]
    for part, jobs in zip(parts, queues, strict=True):
        part._jobs = jobs
    await ledger.database.write(lambda _: None, sync=False)
    await ledger.database.read(lambda _: None)
    await ledger.close()
    assert [len(jobs.was_locked) > 1 and all(jobs.was_locked) for jobs in queues] == [True, True]
