"""A data directory that is moved, removed, replaced or covered under a running server: nothing is acknowledged."""

import os
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.domain.errors import DataDirectoryBusy, StorageDetached, StorageUnavailable
from holdfast.storage.ledger import SqliteLedger
from holdfast.testing.conformance import Desk

DATABASE, WAL = "holdfast.db", "holdfast.db-wal"


def moved(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))


def removed(data: Path) -> None:
    shutil.rmtree(data)


def made_again(data: Path) -> None:
    moved(data)
    data.mkdir()


def replaced_by_a_copy(data: Path) -> None:
    moved(data)
    shutil.copytree(data.with_name("elsewhere"), data)


def parent_moved(data: Path) -> None:
    data.parent.rename(data.parent.with_name("other parent"))


def link_changed(data: Path) -> None:
    """The server was given a link to the directory."""
    target = data.with_name("target of the link")
    shutil.copytree(data.resolve(), target)
    data.unlink()
    data.symlink_to(target)


def copied_over(path: Path) -> None:
    """As `cp` and `mv` do: another file under the same name."""
    copy = path.with_name("copy")
    shutil.copy2(path, copy)
    copy.rename(path)


def database_unlinked(data: Path) -> None:
    (data / DATABASE).unlink()


def database_replaced(data: Path) -> None:
    copied_over(data / DATABASE)


def database_moved(data: Path) -> None:
    (data / DATABASE).rename(data / "moved.db")


def database_linked(data: Path) -> None:
    os.link(data / DATABASE, data / "second name")


def database_overwritten(data: Path) -> None:
    """In place, by an older state: inode and link count stay."""
    body = bytearray((data / DATABASE).read_bytes())
    body[24:28] = b"\0\0\0\1"
    (data / DATABASE).write_bytes(body)


def wal_unlinked(data: Path) -> None:
    (data / WAL).unlink()


def wal_replaced(data: Path) -> None:
    copied_over(data / WAL)


def wal_linked(data: Path) -> None:
    os.link(data / WAL, data / "second name")


def wal_emptied(data: Path) -> None:
    os.truncate(data / WAL, 0)


def wal_cut(data: Path) -> None:
    os.truncate(data / WAL, 32 + 4120)


FORMS = [
    moved, removed, made_again, replaced_by_a_copy, parent_moved, link_changed, database_unlinked, database_replaced,
    database_moved, database_linked, database_overwritten, wal_unlinked, wal_replaced, wal_linked, wal_emptied, wal_cut,
]  # fmt: skip
MOMENTS = ["idle", "before", "executed", "committed"]
LOSE_EARLIER = {removed, database_unlinked, database_overwritten, wal_emptied, wal_cut}
"""What was acknowledged before is destroyed with the file; nothing can bring it back."""


def stored_runs(place: Path) -> set[str]:
    """The runs that a new server would find at this place."""
    found: set[str] = set()
    for path in (item for item in place.rglob("*.db") if item.name != "copy"):
        with closing(apsw.Connection(str(path))) as connection:
            found |= {str(run) for (run,) in connection.execute("SELECT run_id FROM runs")}
    return found


class Deed:
    """Happens once, at a moment of a commit."""

    def __init__(self, form: Callable[[Path], None], data: Path, moment: str) -> None:
        self._form, self._data, self.moment = form, data, moment
        self.is_armed = False

    def __call__(self, moment: str) -> None:
        if self.is_armed and moment == self.moment:
            self.is_armed = False
            self._form(self._data)


def data_dir_for(form: Callable[[Path], None], root: Path) -> Path:
    data = root / "parent" / "data"
    if form is link_changed:
        (root / "real").mkdir(parents=True)
        data.parent.mkdir()
        data.symlink_to(root / "real")
    return data


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
async def test_nothing_is_acknowledged_afterwards(form: Callable[[Path], None], tmp_path: Path) -> None:
    for moment in MOMENTS:
        root = tmp_path / moment
        data = data_dir_for(form, root)
        deed = Deed(form, data, moment)
        ledger = SqliteLedger(data, probe=deed)
        desk = await Desk.with_session(ledger)
        await desk.admit("before-1", "before-2")
        deed.is_armed = True
        deed("idle")
        for run in ("after-1", "after-2"):
            with pytest.raises(StorageDetached):
                await desk.admit(run)
        assert await ledger.problem() != ""
        with pytest.raises(DataDirectoryBusy, match=str(os.getpid())):
            SqliteLedger(data)
        await ledger.close()
        if form is database_moved:
            (data / "moved.db").rename(data / DATABASE)
        if form not in LOSE_EARLIER:
            assert stored_runs(root) >= {"before-1", "before-2"}, moment


async def test_the_server_goes_on_when_the_directory_is_back(tmp_path: Path) -> None:
    """Nothing was committed meanwhile, so nothing has to be forgotten."""
    data = tmp_path / "parent" / "data"
    ledger = SqliteLedger(data)
    desk = await Desk.with_session(ledger)
    moved(data)
    with pytest.raises(StorageDetached, match="is gone"):
        await desk.admit("r1")
    data.with_name("elsewhere").rename(data)
    assert await ledger.problem() == ""
    await desk.admit("r1")
    await ledger.close()
    assert stored_runs(data) == {"r1"}


async def test_a_commit_whose_place_is_unknown_ends_all_writing(tmp_path: Path) -> None:
    """It may be found at the next start; until then no later one may be told from it."""
    data = tmp_path / "parent" / "data"
    deed = Deed(moved, data, "committed")
    ledger = SqliteLedger(data, probe=deed)
    desk = await Desk.with_session(ledger)
    deed.is_armed = True
    with pytest.raises(StorageDetached):
        await desk.admit("r1")
    data.with_name("elsewhere").rename(data)
    with pytest.raises(StorageDetached):
        await desk.admit("r2")
    await ledger.close()


async def test_times_and_modes_may_change(tmp_path: Path) -> None:
    ledger = SqliteLedger(tmp_path)
    desk = await Desk.with_session(ledger)
    for name in (DATABASE, WAL):
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / "a file of somebody").touch()
    (tmp_path / "a directory").mkdir()
    await desk.admit("r1")
    await ledger.close()


async def test_closing_leaves_the_files_of_another_database_alone(tmp_path: Path) -> None:
    data = tmp_path / "parent" / "data"
    ledger = SqliteLedger(data)
    await Desk.with_session(ledger)
    replaced_by_a_copy(data)
    before = {path.name: path.read_bytes() for path in data.iterdir()}
    await ledger.close()
    assert {path.name: path.read_bytes() for path in data.iterdir()} == before


def lock_removed(data: Path) -> Path:
    (data / "lock").unlink()
    return data


def lock_replaced(data: Path) -> Path:
    copied_over(data / "lock")
    return data


def moved_without_its_lock(data: Path) -> Path:
    moved(data)
    (data.with_name("elsewhere") / "lock").unlink()
    return data.with_name("elsewhere")


def database_moved_away(data: Path) -> Path:
    other = data.with_name("other")
    other.mkdir()
    for name in (DATABASE, WAL):
        (data / name).rename(other / name)
    return other


def directory_removed(data: Path) -> Path:
    removed(data)
    return data


@pytest.mark.parametrize(
    "form",
    [lock_removed, lock_replaced, moved_without_its_lock, database_moved_away, directory_removed],
    ids=lambda form: form.__name__,
)
async def test_no_second_server_starts_while_the_first_lives(form: Callable[[Path], Path], tmp_path: Path) -> None:
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
    """What was acknowledged after the copy was made is found at the next start, and the copy is kept."""
    ledger = SqliteLedger(tmp_path)
    desk = await Desk.with_session(ledger)
    await desk.admit("before")
    copy = tmp_path / "copy"
    shutil.copy2(tmp_path / WAL, copy)
    await desk.admit("between")
    copy.rename(tmp_path / WAL)
    with pytest.raises(StorageDetached, match="replaced"):
        await desk.admit("after")
    # As after kill -9: nothing is closed in good order.
    killed = tmp_path / "killed"
    killed.mkdir()
    for name in os.listdir(tmp_path):
        if name.startswith(DATABASE):
            shutil.copy2(tmp_path / name, killed)
    await ledger.close()
    assert stored_runs(killed) == {"before", "between"}
    assert stored_runs(tmp_path) == {"before", "between"}
    assert sum(".replaced-" in name for name in os.listdir(tmp_path)) == 1
