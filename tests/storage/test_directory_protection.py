"""Protection of a data directory: file modes, claims, identity; and sizes that select a branch."""

import logging
import os
import socket
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.domain.errors import DatabaseDamaged, DataDirectoryBusy, StorageDetached, StorageUnavailable
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import Admit, DeleteMessage, EndRun, PatchSession, StartRun, StepRun
from holdfast.lock_owner import LOCK_NAME, directory_id, read_owner, write_owner
from holdfast.storage import data_directory, event_log, vacuum
from holdfast.storage import data_directory as modes
from holdfast.storage import database as checks
from holdfast.storage.data_directory import find_exposed_files
from holdfast.storage.event_log import Retention
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.storage.sqlite_tables import is_cacheable
from holdfast.testing.conformance import ManualClock, WorkspaceOwner, message, run
from storage.faulty_disk import FaultyDisk
from trials.replaced_data_directory import DATABASE, WAL

BITS = [0o400, 0o200, 0o100, 0o040, 0o020, 0o010, 0o004, 0o002, 0o001]
LOCATIONS = {
    # Location of a file, and the mode bits refused there.
    "": 0o077,
    "holdfast.db": 0o077,
    "token": 0o077,
    "config.json": 0o077,
    "logs/server.log": 0o077,
    "workspaces/w/config.json": 0o077,
    "workspaces/w/output/1.txt": 0o002,
    "logs": 0o002,
    "workspaces/w": 0o002,
    "workspaces/w/logs/a": 0o077,
}


@pytest.mark.parametrize("name", LOCATIONS)
def test_each_mode_bit_is_checked(name: str, tmp_path: Path) -> None:
    """For group and others, each of read, write and execute, on files of each location."""
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    is_file = "." in name or name.endswith("/a") or name == "token"
    path = data / name
    (path.parent if is_file else path).mkdir(mode=0o700, parents=True, exist_ok=True)
    if is_file:
        path.touch(0o600)
    for folder in [item for item in data.rglob("*") if item.is_dir()]:
        folder.chmod(0o700)
    base = 0o600 if is_file else 0o700
    for bit in BITS:
        path.chmod(base | bit)
        found = find_exposed_files(data)
        expected = [(str(path), base | bit, base)] if bit & LOCATIONS[name] else []
        assert [(item.path, item.mode, item.wanted) for item in found] == expected, oct(bit)
        for item in found:
            assert ("may change it" if bit & 0o022 else "may read it") in item.description
            assert f"mode {base | bit:o}" in item.description


def test_links_are_not_followed_and_missing_files_are_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir(mode=0o700)
    (tmp_path / "loose").touch(0o666)
    (tmp_path / "loose").chmod(0o666)
    (data / "link").symlink_to(tmp_path / "loose")
    (data / "broken").symlink_to(tmp_path / "nothing")
    assert find_exposed_files(data) == []
    assert find_exposed_files(tmp_path / "missing") == []
    for number in range(5):
        (data / f"file{number}").touch()
        (data / f"file{number}").chmod(0o644)
    monkeypatch.setattr(modes, "_MAX_REPORTED", 3)
    assert [os.path.basename(item.path) for item in find_exposed_files(data)] == ["file0", "file1", "file2"]


def test_insecure_modes_are_reported_at_the_start(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    SqliteLedger(tmp_path).database.close()
    tmp_path.chmod(0o750)
    (tmp_path / DATABASE).chmod(0o620)
    with caplog.at_level(logging.WARNING, "holdfast.storage"):
        SqliteLedger(tmp_path).database.close()
    output = [record.getMessage() for record in caplog.records]
    assert [f"chmod 700 {tmp_path}" in output[0], f"chmod 600 {tmp_path / DATABASE}" in output[1]] == [True, True]
    assert len(output) == 2


OWNERS: list[tuple[bytes, tuple[int, str] | None]] = [
    (b"", None),
    (b"nobody\n/run/socket\n", None),
    (b"12", (12, "")),
    (b"12\n", (12, "")),
    (b"12\n/run/sock", (12, "")),
    (b"12\n/run/socket\n", (12, "/run/socket")),
    (b"12\nrun/socket\n", (12, "")),
    (b"12\n/with \xff byte\n", (12, "/with \udcff byte")),
    (b"12\n/run/socket\nmore\n", (12, "/run/socket")),
]


@pytest.mark.parametrize(("content", "owner"), OWNERS)
def test_a_lock_file_names_process_and_socket(content: bytes, owner: tuple[int, str] | None, tmp_path: Path) -> None:
    (tmp_path / LOCK_NAME).write_bytes(content)
    os.utime(tmp_path / LOCK_NAME, (7, 7))
    found = read_owner(str(tmp_path))
    assert found == (None if owner is None else (*owner, 7.0))


def test_lock_file_must_be_a_regular_file(tmp_path: Path) -> None:
    write_owner(tmp_path, "/run/socket")
    assert read_owner(str(tmp_path)) is None, "it is not created"
    target = tmp_path / "target"
    target.write_bytes(b"12\n/x\n")
    (tmp_path / LOCK_NAME).symlink_to(target)
    write_owner(tmp_path, "/run/socket")
    assert read_owner(str(tmp_path)) is None
    assert target.read_bytes() == b"12\n/x\n"
    (tmp_path / LOCK_NAME).unlink()
    (tmp_path / LOCK_NAME).write_bytes(b"99999999\n/a much longer path than the new one\n")
    before = os.listdir("/proc/self/fd")
    write_owner(tmp_path, "/run/é")
    found = read_owner(str(tmp_path))
    assert found is not None
    assert (found.pid, found.socket) == (os.getpid(), "/run/é")
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_directory_is_identified_by_its_inode(tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (tmp_path / "link").symlink_to(one)
    assert directory_id(one) == directory_id(str(tmp_path / "link")) == directory_id(one / ".." / "one")
    assert directory_id(one) != directory_id(two)
    assert directory_id(tmp_path / "missing") == ""
    found = one.stat()
    assert directory_id(one) == f"{found.st_dev:x}-{found.st_ino:x}"


# Claims: without the lock file each of them alone refuses a second server.


def _unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoLock:
        def __init__(self, _: Path) -> None:
            pass

        def release(self) -> None:
            pass

    monkeypatch.setattr("holdfast.storage.data_directory.DirectoryLock", NoLock)


def same_path(data: Path) -> Path:
    data.rename(data.with_name("moved"))
    data.mkdir()
    return data


def same_path_through_a_link(data: Path) -> Path:
    """Only the resolved path is the same, and another directory is there."""
    data.rename(data.with_name("moved"))
    data.mkdir()
    data.with_name("link").symlink_to(data)
    return data.with_name("link")


def same_directory(data: Path) -> Path:
    data.rename(data.with_name("moved"))
    for name in (DATABASE, WAL, f"{DATABASE}-shm"):
        (data.with_name("moved") / name).unlink()
    return data.with_name("moved")


def same_database(data: Path) -> Path:
    other = data.with_name("other")
    other.mkdir()
    (data / DATABASE).rename(other / DATABASE)
    return other


@pytest.mark.parametrize(
    "form", [same_path, same_path_through_a_link, same_directory, same_database], ids=lambda form: form.__name__
)
def test_each_claim_alone_refuses_a_second_server(
    form: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _unlocked(monkeypatch)
    ledger = SqliteLedger(tmp_path / "data")
    place = form(tmp_path / "data")
    with pytest.raises(DataDirectoryBusy, match=rf"process {os.getpid()}.*not locked"):
        SqliteLedger(place)
    ledger.database.close()
    SqliteLedger(place).database.close()


def test_claim_of_another_user_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user may bind the name; only this user's servers count. An unknown owner counts as this user."""
    me = os.getuid()
    first = data_directory.Claims(tmp_path)
    first.claim_file(tmp_path)
    for holder, is_refused in ((("1", me + 1), False), (("1", me), True), (("unknown", None), True)):
        monkeypatch.setattr(data_directory, "_socket_owner", lambda _, holder=holder: holder)
        second = data_directory.Claims(tmp_path)
        if is_refused:
            with pytest.raises(DataDirectoryBusy, match=f"process {holder[0]}"):
                second.claim_file(tmp_path)
        else:
            second.claim_file(tmp_path)
    first.release()
    monkeypatch.undo()
    again = data_directory.Claims(tmp_path)
    again.claim_file(tmp_path)
    again.claim_file(tmp_path)
    again.release()


def test_holder_of_a_claim_is_read_from_the_kernel() -> None:
    name = f"\0holdfast-test/{os.getpid()}".encode()
    assert data_directory._socket_owner(name) == ("unknown", None)
    with socket.socket(socket.AF_UNIX) as held:
        held.bind(name)
        held.listen(1)
        assert data_directory._socket_owner(name) == (str(os.getpid()), os.getuid())


# The path shows files other than the open ones: one test per clause.


def _grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(bytes(4096))


def _touch_header(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(30)
        file.write(b"\xff")


def _touch_content(path: Path) -> None:
    """Changes neither size nor header: a changed time proves nothing, since copies and backups change it too."""
    os.utime(path, (1, 1))


@pytest.mark.parametrize(("spoil", "is_noticed"), [(_grow, True), (_touch_header, True), (_touch_content, False)])
async def test_writes_of_another_program_are_detected(
    spoil: Callable[[Path], None], tmp_path: Path, *, is_noticed: bool
) -> None:
    ledger = SqliteLedger(tmp_path)
    workspace_owner = await WorkspaceOwner.with_session(ledger)
    spoil(tmp_path / DATABASE)
    if is_noticed:
        with pytest.raises(StorageDetached, match="written to by another program"):
            await workspace_owner.admit("r1")
        assert "written to by another program" in await ledger.problem()
    else:
        await workspace_owner.admit("r1")
        assert await ledger.problem() == ""
        await workspace_owner.admit("r2")
    await ledger.close()


async def test_overwritten_log_is_detected_until_the_next_full_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a full checkpoint SQLite restarts the log: its last frame may then change."""
    ledger = SqliteLedger(tmp_path)
    workspace_owner = await WorkspaceOwner.with_session(ledger)
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.storage.writer_thread.WAL_PAGES", 1)
        await workspace_owner.admit("r1")
        # Completed when the maintenance between groups is.
        await ledger.database.write(lambda _: None, sync=False)
    for number in range(2, 6):
        await workspace_owner.admit(f"r{number}")
    assert await ledger.problem() == ""
    with (tmp_path / WAL).open("r+b") as file:
        file.seek(32)
        file.write(bytes(4120 * 100))
    with pytest.raises(StorageDetached, match="cut short or overwritten"):
        await workspace_owner.admit("r6")
    await ledger.close()


# Sizes that select a branch.


def _last_page_of_events(path: Path) -> int:
    with closing(apsw.Connection(str(path))) as connection:
        query = "SELECT max(pageno) FROM dbstat WHERE name = 'events' AND pagetype = 'leaf'"
        return int(str(connection.execute(query).get))


@pytest.mark.parametrize(("limit", "is_unclean", "is_found"), [(0, False, True), (-1, False, False), (-1, True, True)])
async def test_small_or_unclean_database_is_checked_completely(
    limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_unclean: bool, is_found: bool
) -> None:
    """`limit` is compared with the file size; the damage is in the last pages, which nothing else reads."""
    first, data = tmp_path / "first", tmp_path / "data"
    ledger = SqliteLedger(first)
    workspace_owner = await WorkspaceOwner.with_session(ledger)
    await workspace_owner.put(message("m", "x" * 40_000))
    await ledger.close()
    place = (_last_page_of_events(first / DATABASE) - 1) * 4096
    ledger = SqliteLedger(first)
    await WorkspaceOwner.open(ledger, "/other")
    data.mkdir(mode=0o700)
    for name in (DATABASE, WAL) if is_unclean else (DATABASE,):
        (data / name).write_bytes((first / name).read_bytes())
    await ledger.close()
    body = bytearray((data / DATABASE).read_bytes())
    body[place + 1 : place + 8] = b"\xa5" * 7
    (data / DATABASE).write_bytes(body)
    monkeypatch.setattr(checks, "_FULL_CHECK_LIMIT", len(body) + limit)
    if is_found:
        with pytest.raises(DatabaseDamaged):
            SqliteLedger(data)
    else:
        SqliteLedger(data).database.close()


@pytest.mark.parametrize("sizes", [(0,), (1,), (2,), (1, 2), (2, 1), (1, 1)])
def test_value_at_the_bound_is_large(sizes: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.storage.sqlite_tables._CACHEABLE_BYTES", 2)
    assert is_cacheable(*("x" * size for size in sizes)) == (max(sizes) < 2)


PATCH = PatchSession(SessionPatch(SessionId("s"), 1))
DAY_MS = 86_400_000


@pytest.mark.parametrize("size", [1, 2, 5])
@pytest.mark.parametrize("kept", [0, 1, 7])
async def test_pruning_keeps_up_in_bounded_steps(
    size: int, kept: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After every `size` numbers at most twice as many events are removed, down to the number to be kept."""
    for module in (event_log,):
        monkeypatch.setattr(module, "PRUNE_INTERVAL", size)
    ledger = SqliteLedger(tmp_path, retention=Retention(events=kept))
    workspace_owner = await WorkspaceOwner.with_session(ledger)
    held = 1
    for count in (1, 1, 9, 1, 1, 1, 1, 1, 1, 1):
        before = (await ledger.bounds(workspace_owner.id))[1]
        await workspace_owner.do(*[PATCH] * count, sync=False)
        # Pruned before the next reply.
        await ledger.database.write(lambda _: None, sync=False)
        held += count
        if before // size != (before + count) // size:
            held -= min(2 * size, max(0, held - kept))
        oldest, newest = await ledger.bounds(workspace_owner.id)
        assert newest - oldest + 1 == held
        assert len(await workspace_owner.events()) == held
    await ledger.close()


async def test_pruning_that_fails_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (event_log,):
        monkeypatch.setattr(module, "PRUNE_INTERVAL", 4)
    ledger = SqliteLedger(tmp_path, retention=Retention(events=1))
    workspace_owner = await WorkspaceOwner.with_session(ledger)
    prune = event_log.EventLog.prune

    def fail(*_: object) -> None:
        raise apsw.FullError("no room")

    monkeypatch.setattr(event_log.EventLog, "prune", fail)
    await workspace_owner.do(*[PATCH] * 4, sync=False)
    await ledger.database.write(lambda _: None, sync=False)
    assert len(await workspace_owner.events()) == 5
    monkeypatch.setattr(event_log.EventLog, "prune", prune)
    # Any group will do.
    await ledger.database.write(lambda _: None, sync=False)
    await ledger.database.write(lambda _: None, sync=False)
    assert len(await workspace_owner.events()) == 1
    await ledger.close()


@pytest.mark.parametrize(("days", "ages", "held"), [(1, (2, 1, 0), 2), (0.5, (2, 1, 0), 1), (3, (2, 1, 0), 3)])
async def test_events_are_kept_by_age_and_number(days: float, ages: tuple[int, ...], held: int, tmp_path: Path) -> None:
    """An event exactly at the age limit is kept."""
    clock = ManualClock()
    now = clock.ms
    ledger = SqliteLedger(tmp_path, retention=Retention(days=days), now_ms=clock.now_ms)
    clock.ms = now - ages[0] * DAY_MS
    workspace_owner = await WorkspaceOwner.with_session(ledger)
    for age in ages[1:]:
        clock.ms = now - age * DAY_MS
        await workspace_owner.do(PATCH)
    await ledger.open_workspace("/home/ada/project")
    await ledger.database.write(lambda _: None, sync=False)
    assert len(await workspace_owner.events()) == held
    await ledger.close()


@pytest.mark.parametrize("length", [0, 1, 2])
async def test_prompt_of_any_length_is_returned_by_every_read(
    length: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long prompts are stored in a table of their own; the row is rewritten at each step."""
    monkeypatch.setattr("holdfast.storage.sqlite_tables._INLINE_PROMPT_LIMIT", 1)
    ledger = SqliteLedger(tmp_path)
    workspace_owner = await WorkspaceOwner.with_session(ledger)
    prompt = "x" * length
    await workspace_owner.do(Admit(run("r", prompt=prompt), b""))
    for step in (StartRun(RunId("r"), 1), StepRun(RunId("r"), 2), EndRun(RunId("r"), "completed", 3)):
        await workspace_owner.do(step)
        briefing = await ledger.briefing(workspace_owner.id, RunId("r"))
        assert briefing is not None
        found = [
            *await ledger.runs(workspace_owner.id, None, 9, 0),
            *await ledger.runs(workspace_owner.id, SessionId("s"), 9, 0),
            *(await ledger.snapshot(workspace_owner.id, None)).runs,
            briefing.record.run,
            await workspace_owner.get("r"),
        ]
        assert {item.prompt for item in found} == {prompt}
        assert len(found) == 5
    await ledger.close()
    with closing(apsw.Connection(str(tmp_path / DATABASE))) as connection:
        assert connection.execute("SELECT count(*) FROM inputs").fetchall() == [(int(length > 1),)]


async def test_free_pages_are_released_in_steps_down_to_the_reserve(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With no reserve and steps of one page, every free page is released."""
    monkeypatch.setattr(vacuum, "SPARE_PAGES", 0)
    monkeypatch.setattr(vacuum, "_PAGES_PER_STEP", 1)
    monkeypatch.setattr("holdfast.storage.writer_thread._IDLE_SECONDS", 0.001)
    ledger = SqliteLedger(tmp_path)
    workspace_owner = await WorkspaceOwner.with_session(ledger)
    await workspace_owner.put(message("m", "x" * 100_000))
    await workspace_owner.do(DeleteMessage(message("m").id))

    def free(connection: apsw.Connection) -> int:
        return int(connection.pragma("freelist_count"))

    while await ledger.database.read(free):
        pass
    await ledger.close()


async def test_interrupted_first_start_is_repeated(tmp_path: Path) -> None:
    disk = FaultyDisk("cut off")

    def fail(_: str) -> None:
        raise apsw.FullError("no room")

    disk.on_write = fail
    with pytest.raises(StorageUnavailable, match="disk is full"):
        SqliteLedger(tmp_path, vfs=disk.name)
    assert os.listdir(tmp_path) == [LOCK_NAME]
    SqliteLedger(tmp_path).database.close()
