"""Every way in which a group of writes can end: no transaction stays open, the next write is stored, and an erasure
prevented by a kill is repeated.
"""

import asyncio
import logging
import shutil
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.domain.errors import StorageError, StorageUnavailable, StorageUnknown
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import CreateSession, DeleteSession, PatchSession, PutMessage, Write
from holdfast.storage.database import Database
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.conformance import WorkspaceOwner, message, session
from holdfast.testing.gates import until
from storage.faulty_disk import FaultyDisk

LOG = "holdfast.db-wal"
TABLE = "CREATE TABLE noted (name TEXT PRIMARY KEY, other REFERENCES noted(name) DEFERRABLE INITIALLY DEFERRED)"
ADD = "INSERT INTO noted (name, other) VALUES (?, ?)"


@pytest.fixture(autouse=True)
def _quiet_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL, "holdfast.storage")


class Gate:
    """Holds the writer before a group, so that work submitted meanwhile becomes the next group."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        self._open = threading.Event()
        self._open.set()

    def pass_through(self) -> None:
        if not self._open.is_set():
            self._reached.set()
            assert self._open.wait(20)

    def shut(self) -> None:
        self._open.clear()

    def open(self) -> None:
        self._open.set()

    async def until_reached(self) -> None:
        assert await asyncio.to_thread(self._reached.wait, 20)


class ObstructedDatabase:
    """A database whose next group meets one obstacle. `open_after` records for each group whether it left a transaction
    open.
    """

    def __init__(self, data: Path, obstacle: str) -> None:
        self.obstacle = obstacle
        self.gate = Gate()
        self.failing_point = ""
        self.failing_write: Exception | None = None
        self.other: apsw.Connection | None = None
        self.open_after: list[bool] = []
        self.path = data / "holdfast.db"
        disk = FaultyDisk(f"ends-{obstacle}", self._on_operation)
        self.database = Database.open(data, maintenance=self._maintenance, probe=self._probe, vfs=disk.name)

    def _probe(self, point: str) -> None:
        is_failing = point == self.failing_point
        if point == "before":
            self.gate.pass_through()
            if is_failing and self.obstacle == "locked":
                self.other = apsw.Connection(str(self.path))
                self.other.execute("BEGIN IMMEDIATE")
                self.failing_point = ""
                return
        if is_failing:
            self.failing_point = ""
            raise RuntimeError(f"{point} fails")

    def _on_operation(self, operation: str, name: str) -> None:
        if (operation, name) == ("write", LOG) and self.failing_write is not None:
            error, self.failing_write = self.failing_write, None
            raise error

    def _maintenance(self, connection: apsw.Connection) -> None:
        self.open_after.append(connection.in_transaction)
        if self.other is not None:
            self.other.close()
            self.other = None

    def arm(self) -> None:
        """Install an obstacle that must be present before the group starts."""
        if self.obstacle in ("before", "locked"):
            self.failing_point = "before"

    def failing(self, connection: apsw.Connection) -> None:
        """Work of the group's last job: store something and meet the obstacle, or install it."""
        connection.execute(ADD, ("last", "nobody" if self.obstacle == "constraint" else None))
        match self.obstacle:
            case "work":
                raise apsw.IOError("a page cannot be read")
            case "executed" | "committed":
                self.failing_point = self.obstacle
            case "full":
                self.failing_write = apsw.FullError("the disk is full")
            case "broken":
                self.failing_write = apsw.IOError("the disk is broken")
            case "refused":
                connection.authorizer = self._refusing(connection)
            case _:
                pass

    @staticmethod
    def _refusing(connection: apsw.Connection) -> Callable[..., int]:
        def judge(operation: int, first: str | None, *_: object) -> int:
            if operation != apsw.SQLITE_TRANSACTION or first != "COMMIT":
                return apsw.SQLITE_OK
            connection.authorizer = None
            return apsw.SQLITE_DENY

        return judge


def adding(name: str) -> Callable[[apsw.Connection], str]:
    def work(connection: apsw.Connection) -> str:
        connection.execute(ADD, (name, None))
        return name

    return work


OBSTACLES: dict[str, tuple[type[StorageError], bool]] = {
    # The results for the callers, and whether the group is stored nevertheless.
    "before": (StorageUnavailable, False),
    "locked": (StorageUnavailable, False),
    "work": (StorageUnavailable, False),
    "executed": (StorageUnavailable, False),
    # The commit itself: SQLite rolls back by itself after file errors, but not after the others.
    "full": (StorageUnavailable, False),
    "broken": (StorageUnknown, False),
    "constraint": (StorageUnavailable, False),
    "refused": (StorageUnavailable, False),
    "committed": (StorageUnknown, True),
}


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "group"])
@pytest.mark.parametrize("obstacle", OBSTACLES)
async def test_no_end_of_a_group_leaves_a_transaction_open(obstacle: str, *, alone: bool, tmp_path: Path) -> None:
    error, is_stored = OBSTACLES[obstacle]
    database = ObstructedDatabase(tmp_path, obstacle)
    write = database.database.write
    await write(lambda connection: connection.execute(TABLE).fetchall(), sync=True)
    database.gate.shut()
    first = asyncio.gather(write(adding("first"), sync=True))
    await database.gate.until_reached()
    database.arm()
    works = [database.failing] if alone else [adding("a"), adding("b"), database.failing]
    group = asyncio.gather(*(write(work, sync=True) for work in works), return_exceptions=True)
    await asyncio.sleep(0)
    database.gate.open()
    await first
    assert [type(answer) for answer in await group] == [error] * len(works)
    # The very next write is stored, without anything of the failed group.
    assert await write(adding("next"), sync=True) == "next"
    await asyncio.to_thread(database.database.close)
    assert database.open_after == [False] * 4
    with closing(apsw.Connection(str(database.path))) as connection:
        found = {name for (name,) in connection.execute("SELECT name FROM noted")}
    stored = {"last"} if alone else {"a", "b", "last"}
    assert found == {"first", "next"} | (stored if is_stored else set())


@pytest.mark.parametrize("erasing", [{0}, {1}, {2}, {0, 2}, {0, 1, 2}, set()], ids=str)
async def test_erasure_prevented_by_a_kill_is_repeated(
    erasing: set[int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many jobs of the group erase, and whichever. The files are as a kill after the commit leaves them."""
    monkeypatch.setattr("holdfast.storage.writer_thread._IDLE_SECONDS", 0.01)
    gate, is_copied, killed = Gate(), list[bool](), tmp_path / "killed"

    def probe(point: str) -> None:
        if point == "before":
            gate.pass_through()
        elif point == "committed" and is_copied and is_copied.pop(0):
            killed.mkdir(mode=0o700)
            for name in ("holdfast.db", LOG):
                shutil.copy(tmp_path / "data" / name, killed / name)

    ledger = SqliteLedger(tmp_path / "data", probe=probe)
    owners = [await WorkspaceOwner.open(ledger, f"/{number}") for number in range(3)]
    for number, owner in enumerate(owners):
        await owner.do(CreateSession(session("s")), PutMessage(message("m", f"canary-{number}-")))
    gate.shut()
    patch = PatchSession(SessionPatch(SessionId("s"), 1))
    first = asyncio.gather(owners[0].do(patch))
    await gate.until_reached()
    is_copied += [False, True]
    deletion = Write((DeleteSession(SessionId("s")),))
    group = asyncio.gather(
        *(owner.batch(deletion if number in erasing else Write((patch,))) for number, owner in enumerate(owners))
    )
    await asyncio.sleep(0)
    gate.open()
    await first
    await group
    await ledger.close()
    assert is_copied == []
    with closing(apsw.Connection(str(killed / "holdfast.db"), flags=apsw.SQLITE_OPEN_READONLY)) as connection:
        tasks = connection.execute("SELECT task FROM upkeep").fetchall()
    assert len(tasks) == bool(erasing)
    canaries = [f"canary-{number}-".encode() for number in range(3)]
    assert [canary for canary in canaries if canary not in contents(killed)] == []
    again = SqliteLedger(killed)
    gone = [canaries[number] for number in sorted(erasing)]
    await until(lambda: not any(canary in contents(killed) for canary in gone))
    assert all(canary in contents(killed) for canary in canaries if canary not in gone)
    await again.close()


def contents(data: Path) -> bytes:
    return b"".join((data / name).read_bytes() for name in ("holdfast.db", LOG))
