"""Work that follows an upgrade: content of sessions that earlier versions deleted is removed from log and files."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from holdfast.domain.events import RemovedEvent
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.store_operations import Admit, CreateSession, EndRun, PutMessage, Refusal, StartRun, Write
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.conformance import WorkspaceOwner, message, run, session

SECRET = "content of a deleted session"
NAMES = ("0123abcd-1-out.txt", "0123abcd-1-err.txt", "0123abcd-12-out.txt")


def output(data_dir: Path, owner: WorkspaceOwner, name: str) -> Path:
    return data_dir / "workspaces" / owner.id / "output" / name


async def as_left_by_an_earlier_version(data_dir: Path) -> list[WorkspaceOwner]:
    """Store two workspaces with a session that was deleted, but not its events and its output files."""
    ledger = SqliteLedger(data_dir)
    owners = [await WorkspaceOwner.open(ledger, path) for path in ("/one", "/two")]
    for owner, kept in zip(owners, (NAMES[:2], NAMES[2:]), strict=True):
        await owner.do(*(CreateSession(session(name)) for name in ("kept", "gone")))
        for name in ("kept", "gone"):
            await owner.do(Admit(run(f"run of {name}", session=name), b"hash"))
            await owner.do(StartRun(RunId(f"run of {name}"), 5))
            await owner.do(EndRun(RunId(f"run of {name}"), "completed", 9, text=f"end of {name}"))
        mentioned = " ".join(f"/data/output/{name}" for name in kept)
        await owner.do(PutMessage(message("m1", f"see {mentioned}", session="kept")))
        await owner.do(PutMessage(message("m2", SECRET, session="gone")))
        for name in NAMES:
            output(data_dir, owner, name).parent.mkdir(parents=True, exist_ok=True)
            output(data_dir, owner, name).write_text("output")
        await ledger.close_workspace(owner.id, owner.epoch)
    await ledger.close()
    with closing(apsw.Connection(str(data_dir / "holdfast.db"))) as connection:
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("DELETE FROM runs WHERE session = 'gone'")
        connection.execute("DELETE FROM sessions WHERE id = 'gone'")
        connection.execute("INSERT INTO upkeep (task) VALUES ('remove content')")
    return owners


async def opened(data_dir: Path, owners: Sequence[WorkspaceOwner]) -> tuple[SqliteLedger, list[WorkspaceOwner]]:
    ledger = SqliteLedger(data_dir)
    return ledger, [await WorkspaceOwner.open(ledger, owner.record.path) for owner in owners]


def tasks(data_dir: Path) -> list[object]:
    with closing(apsw.Connection(str(data_dir / "holdfast.db"))) as connection:
        return [task for (task,) in connection.execute("SELECT task FROM upkeep")]


@pytest.mark.parametrize("blocked", [False, True], ids=["removable", "not removable"])
async def test_content_of_deleted_sessions_is_removed_once(tmp_path: Path, *, blocked: bool) -> None:
    """A file that cannot be removed does not keep the server from starting, nor the rest from being removed."""
    owners = await as_left_by_an_earlier_version(tmp_path)
    stuck = output(tmp_path, owners[0], "a-directory.txt")
    if blocked:
        stuck.mkdir()
    ledger, again = await opened(tmp_path, owners)
    for owner, kept in zip(again, (NAMES[:2], NAMES[2:]), strict=True):
        events = [event for _, event in await owner.events()]
        removed = [event for event in events if isinstance(event, RemovedEvent)]
        assert {event.payload.session_id for event in removed} == {SessionId("gone")}
        assert SECRET not in str(events)
        assert "end of kept" in str(events)
        assert [item.id for item in (await ledger.snapshot(owner.id, None)).sessions] == ["kept"]
        (taken,) = await owner.batch(Write((Admit(run("run of gone", session="kept"), b"other"),)))
        assert taken == Refusal("run_exists"), "the id of a run that has ended is never used again"
        assert [name for name in NAMES if output(tmp_path, owner, name).exists()] == sorted(kept, reverse=True)
    assert stuck.exists() == blocked
    await ledger.close()
    assert SECRET.encode() not in (tmp_path / "holdfast.db").read_bytes()
    assert tasks(tmp_path) == []


async def test_a_removal_that_fails_is_repeated_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owners = await as_left_by_an_earlier_version(tmp_path)

    def broken(*_: object) -> None:
        raise apsw.FullError

    with monkeypatch.context() as patch:
        patch.setattr("holdfast.storage.schema._remove_orphaned_outputs", broken)
        ledger, _ = await opened(tmp_path, owners)
        await ledger.close()
    assert tasks(tmp_path) == ["remove content"]
    ledger, _ = await opened(tmp_path, owners)
    await ledger.close()
    assert tasks(tmp_path) == []
    assert not output(tmp_path, owners[0], NAMES[2]).exists()


async def test_a_new_database_has_no_work_left(tmp_path: Path) -> None:
    await SqliteLedger(tmp_path).close()
    assert tasks(tmp_path) == []
