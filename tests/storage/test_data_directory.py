"""Opening a data directory: one server at a time, and foreign files are not changed."""

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.domain.errors import DatabaseDamaged, DatabaseTooNew, DataDirectoryBusy, StorageError, StorageUnavailable
from holdfast.storage.data_directory import preallocate_wal
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.conformance import WorkspaceOwner

HOLDER = """
import sys
from pathlib import Path
from holdfast.storage.sqlite_ledger import SqliteLedger
ledger = SqliteLedger(Path(sys.argv[1]))
print("open", flush=True)
sys.stdin.read()
"""


def _socket_owner(data_dir: Path) -> subprocess.Popen[bytes]:
    """Return another server process that owns the directory until it is killed."""
    command = [sys.executable, "-c", HOLDER, str(data_dir)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


async def _closed_database(data_dir: Path) -> Path:
    """Create a database with content and close it cleanly."""
    ledger = SqliteLedger(data_dir)
    owner = await WorkspaceOwner.with_session(ledger)
    await owner.admit(*(f"r{index}" for index in range(50)))
    await ledger.close()
    return data_dir / "holdfast.db"


async def test_files_are_private(tmp_path: Path) -> None:
    data_dir = tmp_path / "deep" / "data"
    ledger = SqliteLedger(data_dir)
    await WorkspaceOwner.with_session(ledger)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in data_dir.iterdir()}
    await ledger.close()
    assert stat.S_IMODE(data_dir.stat().st_mode) == 0o700
    assert set(modes) >= {"holdfast.db", "lock", "holdfast.db-wal"}
    assert set(modes.values()) == {0o600}


async def test_a_second_server_is_refused(tmp_path: Path) -> None:
    with _socket_owner(tmp_path) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"open\n"
        with pytest.raises(DataDirectoryBusy) as caught:
            SqliteLedger(tmp_path)
        assert str(holder.pid) in str(caught.value)
        assert str(tmp_path) in str(caught.value)
        holder.kill()
    await SqliteLedger(tmp_path).close()


async def test_second_open_in_the_same_process_is_refused(tmp_path: Path) -> None:
    first = SqliteLedger(tmp_path)
    with pytest.raises(DataDirectoryBusy, match=rf"\(process {os.getpid()}\)"):
        SqliteLedger(tmp_path)
    await first.close()
    await SqliteLedger(tmp_path).close()


async def test_directory_that_cannot_be_created_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageUnavailable, match="file"):
        SqliteLedger(tmp_path / "file")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EPERM, errno.EROFS])
def test_a_directory_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    """The log is shown to the user who starts the server."""

    def refused(path: Path, _: str | None) -> None:
        raise OSError(number, os.strerror(number), str(path))

    monkeypatch.setattr("holdfast.storage.schema.create", refused)
    with pytest.raises(StorageUnavailable, match=rf"{tmp_path} cannot be used: {os.strerror(number)}.*--data-dir"):
        SqliteLedger(tmp_path)
    assert caplog.text == ""


def test_directory_name_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match=r"not valid UTF-8.*--data-dir"):
        SqliteLedger(tmp_path / "a\udcff")
    assert list(tmp_path.iterdir()) == []


def _garbage(path: Path) -> None:
    path.write_bytes(b"These are my notes, not a database.\n" * 300)


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _cut_within_the_header(path: Path) -> None:
    os.truncate(path, 50)


def _overwritten(path: Path) -> None:
    body = bytearray(path.read_bytes())
    for start in range(4096, len(body), 4096):
        body[start + 3 : start + 200] = b"\xa5" * 197
    path.write_bytes(body)


def _foreign(path: Path) -> None:
    path.unlink()
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("CREATE TABLE theirs (a); PRAGMA application_id = 42; PRAGMA user_version = 1")


def _anonymous(path: Path) -> None:
    path.unlink()
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("CREATE TABLE theirs (a)")


def _newer(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("PRAGMA user_version = 9999")


def _without_a_table(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("DROP TABLE growth")


def _without_a_column(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("ALTER TABLE inputs DROP COLUMN brief")


def _without_a_trigger(path: Path) -> None:
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("DROP TRIGGER runs_end_once")


def _lowered(version: int) -> Callable[[Path], None]:
    def spoil(path: Path) -> None:
        with closing(apsw.Connection(str(path))) as connection:
            connection.pragma("user_version", version)

    return spoil


@pytest.mark.parametrize(
    ("spoil", "output"),
    [
        (_without_a_table, "lacks the table growth and 4 other parts"),
        (_without_a_column, "lacks the column inputs.brief"),
        (_without_a_trigger, "lacks the trigger runs_end_once"),
        *((_lowered(version), f"format {version}, but has parts of a later format") for version in (-1, 0, 1, 2, 3)),
    ],
)
async def test_a_database_with_other_tables_than_its_format_is_refused(
    spoil: Callable[[Path], None], output: str, tmp_path: Path
) -> None:
    path = await _closed_database(tmp_path)
    spoil(path)
    before = _contents(tmp_path)
    with pytest.raises(DatabaseDamaged, match=output):
        SqliteLedger(tmp_path)
    assert _contents(tmp_path) == before


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (_garbage, DatabaseDamaged),
        (_empty, DatabaseDamaged),
        (_cut, DatabaseDamaged),
        (_cut_within_the_header, DatabaseDamaged),
        (_overwritten, DatabaseDamaged),
        (_foreign, DatabaseDamaged),
        (_anonymous, DatabaseDamaged),
        (_newer, DatabaseTooNew),
    ],
)
async def test_foreign_files_are_not_changed(
    spoil: Callable[[Path], None], error: type[StorageError], tmp_path: Path
) -> None:
    path = await _closed_database(tmp_path)
    spoil(path)
    before = _contents(tmp_path)
    for _ in range(2):
        with pytest.raises(error) as caught:
            SqliteLedger(tmp_path)
        assert str(path) in str(caught.value)
        assert "left untouched" in str(caught.value)
    assert _contents(tmp_path) == before


async def test_a_newer_database_with_unfinished_writes_is_left_untouched(tmp_path: Path) -> None:
    """After a crash the version may be in the write-ahead log only."""
    path = await _closed_database(tmp_path / "first")
    with closing(apsw.Connection(str(path))) as connection:
        connection.execute("PRAGMA user_version = 9999")
        wal = path.with_name("holdfast.db-wal").read_bytes()
        body = path.read_bytes()
    assert wal
    data_dir = tmp_path / "second"
    data_dir.mkdir()
    (data_dir / "holdfast.db").write_bytes(body)
    (data_dir / "holdfast.db-wal").write_bytes(wal)
    before = _contents(data_dir)
    with pytest.raises(DatabaseTooNew):
        SqliteLedger(data_dir)
    assert _contents(data_dir) == before


def _contents(data_dir: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in data_dir.iterdir() if path.name != "lock"}


async def test_write_ahead_log_is_not_applied_to_another_database(tmp_path: Path) -> None:
    path = await _closed_database(tmp_path)
    path.rename(tmp_path / "away")
    path.with_name("holdfast.db-wal").write_bytes(b"of the old one")
    before = _contents(tmp_path)
    with pytest.raises(DatabaseDamaged, match=r"holdfast\.db-wal"):
        SqliteLedger(tmp_path)
    assert _contents(tmp_path) == before


async def test_unfinished_creation_is_started_again(tmp_path: Path) -> None:
    (tmp_path / "holdfast.db.new").write_bytes(b"half a")
    path = await _closed_database(tmp_path)
    assert path.exists()
    assert not (tmp_path / "holdfast.db.new").exists()


async def test_refused_directory_can_be_used_after_a_repair(tmp_path: Path) -> None:
    path = await _closed_database(tmp_path)
    good = path.read_bytes()
    _garbage(path)
    with pytest.raises(DatabaseDamaged):
        SqliteLedger(tmp_path)
    path.write_bytes(good)
    ledger = SqliteLedger(tmp_path)
    assert len(await ledger.open_runs((await ledger.open_workspace("/home/ada/project")).id)) == 50
    await ledger.close()


def test_a_full_disk_leaves_no_descriptor_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    (tmp_path / "holdfast.db-wal").touch()
    monkeypatch.setattr(os, "pwrite", full)
    before = os.listdir("/proc/self/fd")
    preallocate_wal(tmp_path / "holdfast.db")
    assert os.listdir("/proc/self/fd") == before
