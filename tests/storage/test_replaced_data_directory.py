"""A data directory that is moved, removed, replaced or mounted over while a server runs: no write is acknowledged."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.domain.errors import DataDirectoryBusy, StorageDetached, StorageUnavailable
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.conformance import WorkspaceOwner
from trials.replaced_data_directory import DATABASE, FORMS, WAL, Form, copy_over, data_dir_for, stored_runs, try_detach

MOMENTS = ["idle", "before", "executed", "committed"]
LOSE_EARLIER = {"removed", "database_unlinked", "database_overwritten", "wal_emptied", "wal_cut"}
"""Earlier acknowledged writes are destroyed with the file; nothing can restore them."""


class DirectoryChange:
    """A change of the directory that happens once, at a given point of a commit."""

    def __init__(self, form: Form, data: Path, moment: str) -> None:
        self._form, self._data, self.moment = form, data, moment
        self.is_armed = False

    def __call__(self, moment: str) -> None:
        if self.is_armed and moment == self.moment:
            self.is_armed = False
            self._form(self._data)


@pytest.mark.parametrize("form", FORMS)
async def test_no_write_is_acknowledged_after_the_change(form: str, tmp_path: Path) -> None:
    for moment in MOMENTS:
        root = tmp_path / moment
        data = data_dir_for(form, root)
        deed = DirectoryChange(FORMS[form], data, moment)
        ledger = SqliteLedger(data, probe=deed)
        owner = await WorkspaceOwner.with_session(ledger)
        await owner.admit("before-1", "before-2")
        deed.is_armed = True
        deed("idle")
        for run in ("after-1", "after-2"):
            with pytest.raises(StorageDetached):
                await owner.admit(run)
        assert await ledger.problem() != ""
        with pytest.raises(DataDirectoryBusy, match=str(os.getpid())):
            SqliteLedger(data)
        await ledger.close()
        if form == "database_moved":
            (data / "moved.db").rename(data / DATABASE)
        if form not in LOSE_EARLIER:
            assert stored_runs(root) >= {"before-1", "before-2"}, moment


@pytest.mark.parametrize("seed", range(3))
def test_killed_process_has_lost_no_acknowledged_write(seed: int) -> None:
    """A few cases here, many in scripts/long."""
    assert try_detach(seed) > 0


async def test_server_continues_when_the_directory_is_restored(tmp_path: Path) -> None:
    """Nothing was committed meanwhile, so nothing has to be discarded."""
    data = tmp_path / "parent" / "data"
    ledger = SqliteLedger(data)
    owner = await WorkspaceOwner.with_session(ledger)
    FORMS["moved"](data)
    with pytest.raises(StorageDetached, match="is gone"):
        await owner.admit("r1")
    data.with_name("elsewhere").rename(data)
    assert await ledger.problem() == ""
    await owner.admit("r1")
    await ledger.close()
    assert stored_runs(data) == {"r1"}


async def test_commit_with_an_unknown_location_ends_all_writing(tmp_path: Path) -> None:
    """It may be found at the next start; a later commit could not be distinguished from it."""
    data = tmp_path / "parent" / "data"
    deed = DirectoryChange(FORMS["moved"], data, "committed")
    ledger = SqliteLedger(data, probe=deed)
    owner = await WorkspaceOwner.with_session(ledger)
    deed.is_armed = True
    with pytest.raises(StorageDetached):
        await owner.admit("r1")
    data.with_name("elsewhere").rename(data)
    with pytest.raises(StorageDetached):
        await owner.admit("r2")
    await ledger.close()


async def test_times_and_modes_may_change(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path)
    owner = await WorkspaceOwner.with_session(ledger)
    for name in (DATABASE, WAL):
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / "a file of somebody").touch()
    (tmp_path / "a directory").mkdir()
    await owner.admit("r1")
    await ledger.close()


async def test_closing_leaves_the_files_of_another_database_alone(tmp_path: Path) -> None:
    data = tmp_path / "parent" / "data"
    ledger = SqliteLedger(data)
    await WorkspaceOwner.with_session(ledger)
    FORMS["replaced_by_a_copy"](data)
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    await ledger.close()
    assert {path.name: path.read_bytes() for path in data.iterdir()} == before


def lock_removed(data: Path) -> Path:
    (data / "lock").unlink()
    return data


def lock_replaced(data: Path) -> Path:
    copy_over(data / "lock")
    return data


def moved_without_its_lock(data: Path) -> Path:
    FORMS["moved"](data)
    (data.with_name("elsewhere") / "lock").unlink()
    return data.with_name("elsewhere")


def moved_with_other_files(data: Path) -> Path:
    """Of the files that the first server has open, only the directory itself remains."""
    place = moved_without_its_lock(data)
    copy_over(place / DATABASE)
    copy_over(place / WAL)
    return place


def database_moved_away(data: Path) -> Path:
    other = data.with_name("other")
    other.mkdir()
    for name in (DATABASE, WAL):
        (data / name).rename(other / name)
    return other


def directory_removed(data: Path) -> Path:
    FORMS["removed"](data)
    return data


@pytest.mark.parametrize(
    "form",
    [
        lock_removed,
        lock_replaced,
        moved_without_its_lock,
        moved_with_other_files,
        database_moved_away,
        directory_removed,
    ],
    ids=lambda form: form.__name__,
)
async def test_no_second_server_starts_while_the_first_runs(form: Callable[[Path], Path], tmp_path: Path) -> None:
    data = tmp_path / "parent" / "data"
    ledger = SqliteLedger(data)
    place = form(data)
    was_there = place.exists()
    with pytest.raises(DataDirectoryBusy, match=f"process {os.getpid()}"):
        SqliteLedger(place)
    assert place.exists() == was_there
    await ledger.close()
    await SqliteLedger(place).close()


async def test_a_database_with_two_names_is_not_opened(tmp_path: Path) -> None:
    await SqliteLedger(tmp_path / "one").close()
    shutil.copytree(tmp_path / "one", tmp_path / "two", copy_function=os.link)
    with pytest.raises(StorageUnavailable, match="2 hard links"):
        SqliteLedger(tmp_path / "two")


async def test_an_older_copy_of_the_wal_undoes_nothing(tmp_path: Path) -> None:
    """Writes acknowledged after the copy was made are found at the next start, and the copy is kept."""
    ledger = SqliteLedger(tmp_path)
    owner = await WorkspaceOwner.with_session(ledger)
    await owner.admit("before")
    copy = tmp_path / "copy"
    shutil.copy2(tmp_path / WAL, copy)
    await owner.admit("between")
    copy.rename(tmp_path / WAL)
    with pytest.raises(StorageDetached, match="replaced"):
        await owner.admit("after")
    # As after kill -9: nothing is closed cleanly.
    killed = tmp_path / "killed"
    killed.mkdir()
    for name in os.listdir(tmp_path):
        if name.startswith(DATABASE):
            shutil.copy2(tmp_path / name, killed)
    await ledger.close()
    assert stored_runs(killed) == {"before", "between"}
    assert stored_runs(tmp_path) == {"before", "between"}
    assert sum(".replaced-" in name for name in os.listdir(tmp_path)) == 1
