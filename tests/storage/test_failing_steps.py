"""Every system call of opening, committing, deleting and closing fails once: nothing leaks, and later requests are
answered.
"""

import asyncio
import logging
import os
import shutil
import socket
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.domain.errors import DataDirectoryBusy, HoldfastError, StorageError, StorageUnavailable
from holdfast.domain.ids import SessionId
from holdfast.domain.store_operations import CreateSession, DeleteSession
from holdfast.runtime.server_services import ServerServices
from holdfast.server.serve import ServerOptions, serve
from holdfast.storage import database, schema
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.conformance import WorkspaceOwner, session
from storage.failing_calls import FailingCall, call_numbers, held_resources, holds_more_than


@pytest.fixture(autouse=True)
def _quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "holdfast.storage")


def absent(data: Path, vfs: str) -> None:
    """No data directory exists yet."""


def present(data: Path, vfs: str) -> None:
    SqliteLedger(data, vfs=vfs).database.close()


def crashed(data: Path, vfs: str) -> None:
    """The log contains data that the database does not: copied while a server was running.

    All attempts of a test start with the same copy. Two copies may differ, because the writer works meanwhile.
    """
    copy = data.parents[1] / "copy"
    if not copy.exists():
        ledger = SqliteLedger(copy.with_name("first"), vfs=vfs)
        copy.mkdir()
        for name in ("holdfast.db", "holdfast.db-wal"):
            (copy / name).write_bytes((copy.with_name("first") / name).read_bytes())
        ledger.database.close()
    shutil.copytree(copy, data)


def earlier(data: Path, vfs: str) -> None:
    """A database of the first version, which has to be migrated."""
    data.mkdir(mode=0o700)
    with closing(apsw.Connection(str(data / "holdfast.db"), vfs=vfs)) as connection:
        number, script = schema._migrations()[0]
        connection.execute(script)
        connection.pragma("user_version", number)
        connection.pragma("journal_mode", "WAL")


def in_this_thread() -> Callable[[], bool]:
    me = threading.get_ident()
    return lambda: threading.get_ident() == me


def in_the_writer() -> bool:
    return threading.current_thread().name == "holdfast-writer"


@pytest.mark.parametrize("before", [absent, present, crashed, earlier], ids=lambda before: before.__name__)
def test_failed_opening_leaves_nothing_open(before: Callable[[Path, str], None], tmp_path: Path) -> None:
    def attempt(at: int) -> FailingCall:
        data = tmp_path / str(at) / "data"
        data.parent.mkdir()
        fault = FailingCall(f"opening-{at}", at, in_this_thread())
        before(data, fault.disk.name)
        empty = held_resources()
        with fault.armed():
            try:
                ledger: SqliteLedger | None = SqliteLedger(data, vfs=fault.disk.name)
            except (StorageError, RuntimeError):
                ledger = None
        if ledger is not None:
            ledger.database.close()
        assert not holds_more_than(empty), f"after {fault.failed} (call {at})"
        names = os.listdir(data) if data.exists() else []
        assert not [name for name in names if ".new" in name], f"after {fault.failed} (call {at})"
        SqliteLedger(data, vfs=fault.disk.name).database.close()
        return fault

    calls = attempt(0).calls
    failed = {attempt(at).failed for at in call_numbers(calls)}
    assert failed == set(calls)
    assert {"open", "thread", "listen", "fstat", "pread"} <= failed


async def test_writer_continues_after_any_failed_call(tmp_path: Path) -> None:
    """Each request is answered, with a result or an error, and a later one is stored."""

    async def attempt(at: int) -> FailingCall:
        fault = FailingCall(f"writing-{at}", at, in_the_writer)
        ledger = SqliteLedger(tmp_path / str(at), vfs=fault.disk.name)
        async with asyncio.timeout(20):
            await work(ledger, fault)
            owner = await WorkspaceOwner.open(ledger, "/other")
            await owner.do(CreateSession(session("s")))
            await ledger.close()
        return fault

    calls = (await attempt(0)).calls
    failed = {(await attempt(at)).failed for at in call_numbers(calls)}
    assert {"stat", "pread", "sync holdfast.db-wal", "write holdfast.db-wal", "truncate holdfast.db-wal"} <= failed


async def work(ledger: SqliteLedger, fault: FailingCall) -> None:
    """Exercise the writer: a commit, a deletion, and the maintenance between them."""
    owner = await WorkspaceOwner.with_session(ledger, "s", "gone")
    with fault.armed():
        for deed in (lambda: owner.admit("r1"), lambda: owner.do(DeleteSession(SessionId("gone")))):
            try:
                await deed()
            except StorageError:
                owner.ticket = (await ledger.last_batch(owner.id, owner.epoch))[0]


async def test_failed_closing_releases_everything(tmp_path: Path) -> None:
    async def attempt(at: int) -> FailingCall:
        data = tmp_path / str(at)
        fault = FailingCall(f"closing-{at}", at)
        empty = held_resources()
        ledger = SqliteLedger(data, vfs=fault.disk.name)
        owner = await WorkspaceOwner.with_session(ledger)
        await owner.admit("r1")
        with fault.armed():
            ledger.database.close()
        assert not holds_more_than(empty), f"after {fault.failed} (call {at})"
        again = SqliteLedger(data, vfs=fault.disk.name)
        assert [run.run_id for run in await again.open_runs(owner.id)] == ["r1"]
        again.database.close()
        return fault

    calls = (await attempt(0)).calls
    failed = {(await attempt(at)).failed for at in call_numbers(calls)}
    assert {"stat", "sync holdfast.db", "write holdfast.db"} <= failed


class HeldWork:
    """Work of a storage thread that does not end before the test releases it."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go_on = threading.Event()

    def __call__(self, _: apsw.Connection) -> str:
        self.reached.set()
        assert self.go_on.wait(20)
        return "done"


async def write_until_refused(ledger: SqliteLedger) -> None:
    """Submit writes without waiting; the accepted ones are answered when the thread continues."""
    while True:
        asked = asyncio.gather(ledger.database.write(lambda _: None, sync=False))
        for _ in range(5):
            await asyncio.sleep(0)
        if asked.done():
            asked.result()


@pytest.mark.parametrize("writes", [True, False])
async def test_closing_waits_for_a_thread_that_is_at_work(tmp_path: Path, *, writes: bool) -> None:
    """Until the thread has ended, no work is accepted and no other server starts; then everything is released."""
    empty = held_resources()
    ledger, job = SqliteLedger(tmp_path), HeldWork()
    working = asyncio.gather(ledger.database.write(job, sync=True) if writes else ledger.database.read(job))
    assert await asyncio.to_thread(job.reached.wait, 20)
    closer = threading.Thread(target=ledger.database.close)
    closer.start()
    with pytest.raises(StorageUnavailable, match="closed"):
        await write_until_refused(ledger)
    with pytest.raises(DataDirectoryBusy):
        SqliteLedger(tmp_path)
    assert closer.is_alive()
    job.go_on.set()
    assert [*await working] == ["done"]
    await asyncio.to_thread(closer.join)
    assert not holds_more_than(empty)
    SqliteLedger(tmp_path).database.close()


@pytest.mark.parametrize("writes", [True, False])
async def test_closing_does_not_wait_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, writes: bool
) -> None:
    """A thread that does not end keeps the files, and no other server starts; the close itself returns."""
    empty = held_resources()
    caplog.set_level(logging.ERROR, "holdfast.storage")
    monkeypatch.setattr(database, "CLOSE_TIMEOUT", 0.01)
    ledger, job = SqliteLedger(tmp_path), HeldWork()
    working = asyncio.gather(ledger.database.write(job, sync=True) if writes else ledger.database.read(job))
    assert await asyncio.to_thread(job.reached.wait, 20)
    async with asyncio.timeout(20):
        await ledger.close()
    assert [record.getMessage() for record in caplog.records] == [
        "the storage threads have not stopped after 0.01 s: their files stay open"
    ]
    with pytest.raises(StorageUnavailable, match="closed"):
        await ledger.database.read(lambda _: None)
    with pytest.raises(DataDirectoryBusy):
        SqliteLedger(tmp_path)
    job.go_on.set()
    assert [*await working] == ["done"]
    monkeypatch.undo()
    await ledger.close()
    assert not holds_more_than(empty)
    SqliteLedger(tmp_path).database.close()


async def test_every_reader_has_its_files_open_from_the_start(tmp_path: Path) -> None:
    """A directory that is moved later does not fail the first read of an idle thread."""
    ledger = SqliteLedger(tmp_path / "data")
    owner = await WorkspaceOwner.with_session(ledger)
    (tmp_path / "data").rename(tmp_path / "away")
    together = threading.Barrier(2, timeout=20)

    def read_files(connection: apsw.Connection) -> object:
        together.wait()
        return connection.execute("SELECT count(*) FROM sessions").fetchall()

    found = await asyncio.gather(ledger.database.read(read_files), ledger.database.read(read_files))
    assert [*found] == [[(1,)], [(1,)]]
    (tmp_path / "away").rename(tmp_path / "data")
    await owner.admit("r1")
    await ledger.close()


def test_services_that_cannot_be_constructed_release_the_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise RuntimeError("no web")

    monkeypatch.setattr("holdfast.runtime.server_services.WebClient", refuse)
    empty = held_resources()
    with pytest.raises(RuntimeError, match="no web"):
        ServerServices(tmp_path)
    assert not holds_more_than(empty)


async def test_server_whose_port_is_in_use_releases_store_and_sockets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.server.serve.deny_tracing", lambda: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        options = ServerOptions(tmp_path / "data", tmp_path / "run" / "socket", tcp=taken.getsockname())
        await asyncio.to_thread(int)
        empty = held_resources()
        with pytest.raises(HoldfastError):
            await serve(options)
        assert not [name for name in held_resources()[0] if str(tmp_path) in name]
        assert len(held_resources()[0]) <= len(empty[0])
    SqliteLedger(tmp_path / "data").database.close()
