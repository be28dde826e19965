"""Both stores return and contain the same after the same writes, even with the smallest limits of the SQLite store."""

from pathlib import Path

import pytest

from holdfast.domain.errors import StorageUnavailable
from holdfast.domain.events import SessionEvent
from holdfast.domain.files import FileVersion
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.messages import Text, TextPart
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import (
    AddFile,
    Admit,
    Announce,
    CancelRun,
    CloseRequest,
    CreateSession,
    DeleteSession,
    EndRun,
    PatchSession,
    PutMessage,
    Receipt,
    Refusal,
    RemoveRun,
    Reorder,
    StartRun,
    Write,
)
from holdfast.engine.approvals import permission_notice
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.conformance import WorkspaceOwner, message, run, session
from holdfast.testing.memory_ledger import MemoryLedger
from storage.write_generator import WriteGenerator, everything, permission_request, request_event

LOWEST = {
    "sqlite_tables._INLINE_PROMPT_LIMIT": 0,
    "sqlite_tables._CACHEABLE_BYTES": 0,
    "data_directory.WAL_PAGES": 1,
    "writer_thread.WAL_PAGES": 1,
    "vacuum.SPARE_PAGES": 0,
    "vacuum._PAGES_PER_STEP": 1,
    "database.WAL_SIZE_LIMIT": 1,
    "database._READERS": 1,
    "database._FULL_CHECK_LIMIT": 0,
}


@pytest.mark.parametrize("lowest", [False, True])
@pytest.mark.parametrize("seed", range(4))
async def test_both_stores_reply_and_contain_the_same(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, lowest: bool
) -> None:
    for name, value in LOWEST.items() if lowest else ():
        monkeypatch.setattr(f"holdfast.storage.{name}", value)
    disk = SqliteLedger(tmp_path)
    owners = [await WorkspaceOwner.with_session(ledger) for ledger in (disk, MemoryLedger())]
    generator = WriteGenerator(seed)
    for _ in range(60):
        writes = generator.batch()
        answers = [await owner.batch(*writes) for owner in owners]
        assert list(answers[0]) == list(answers[1]), writes
        again = [await owner.ledger.commit(owner.id, owner.epoch, owner.ticket, []) for owner in owners]
        assert list(again[0]) == list(answers[0]), "the same ticket is answered the same"
        assert list(again[1]) == list(answers[1])
    one, two = [await everything(owner) for owner in owners]
    assert one == two
    await disk.close()
    again_disk = SqliteLedger(tmp_path)
    owners[0].ledger = again_disk
    assert await everything(owners[0]) == two
    await again_disk.close()


@pytest.mark.parametrize("seed", range(6))
async def test_workspaces_with_the_same_ids_do_not_meet(seed: int, tmp_path: Path) -> None:
    """One store holds two workspaces whose sessions, runs, messages, files and requests have the same ids. Each answers
    and holds the same as if it were alone.
    """
    disk = SqliteLedger(tmp_path)
    together = [await WorkspaceOwner.open(disk, path) for path in ("/one", "/two")]
    alone = [await WorkspaceOwner.open(MemoryLedger(), path) for path in ("/one", "/two")]
    for owner in (*together, *alone):
        await owner.do(CreateSession(session("s")))
    players = [WriteGenerator(2 * seed), WriteGenerator(2 * seed + 1)]
    for turn in range(120):
        place = turn % 2
        writes = players[place].batch()
        answers = [list(await owner.batch(*writes)) for owner in (together[place], alone[place])]
        assert answers[0] == answers[1], writes
        if turn % 10 < 2:
            here, there = [await everything(owner) for owner in (together[1 - place], alone[1 - place])]
            assert _anonymous(here) == _anonymous(there), writes
    for owner, other in zip(together, alone, strict=True):
        assert _anonymous(await everything(owner)) == _anonymous(await everything(other))
    await disk.close()


def _anonymous(found: list[object]) -> list[object]:
    """The contents, without the type of their sequences."""
    return [list(item) if isinstance(item, tuple) else item for item in found]


async def in_both_stores(tmp_path: Path) -> tuple[SqliteLedger, list[WorkspaceOwner]]:
    disk = SqliteLedger(tmp_path)
    return disk, [await WorkspaceOwner.with_session(ledger, "s", "t") for ledger in (disk, MemoryLedger())]


async def test_a_refused_write_has_no_effect_on_the_next_one_of_its_batch(tmp_path: Path) -> None:
    """It has put a message twice, and deleted a session after an event."""
    disk, owners = await in_both_stores(tmp_path)
    refused = StartRun(RunId("unknown"), 5)
    title = SessionPatch(SessionId("t"), 200, title="new")
    for owner in owners:
        twice = [PutMessage(message("m1", "one")), PutMessage(message("m1", "two"))]
        first, second = await owner.batch(Write((*twice, refused)), Write((PutMessage(message("m1", "three")),)))
        assert (type(first), type(second)) == (Refusal, Receipt)
        assert [item.parts for item in await owner.ledger.messages(owner.id, SessionId("s"))] == [
            (TextPart(Text("three")),)
        ]
        rename = PatchSession(SessionPatch(SessionId("s"), 200, title="other"))
        deletion = Write((rename, DeleteSession(SessionId("t")), refused))
        first, second = await owner.batch(deletion, Write((PatchSession(title),)))
        assert (type(first), type(second)) == (Refusal, Receipt)
        _, event = (await owner.events())[-1]
        assert isinstance(event, SessionEvent)
        assert event.change.object.title == "new"
    assert await everything(owners[0]) == await everything(owners[1])
    await disk.close()


async def test_a_removed_prompt_leaves_the_cancel_of_a_run_that_has_ended(tmp_path: Path) -> None:
    disk, owners = await in_both_stores(tmp_path)
    for owner in owners:
        await owner.admit("r1", "r2")
        await owner.do(CancelRun(RunId("r1"), "a client"))
        await owner.do(StartRun(RunId("r1"), 5), EndRun(RunId("r1"), "cancelled", 9))
        await owner.do(RemoveRun(RunId("r2"), (RunId("r1"),)))
        assert ((await owner.get("r1")).cancel_requested, (await owner.get("r1")).cancelled_by) == (True, "a client")
    await disk.close()


async def test_deleting_a_session_leaves_equal_ids_of_another_workspace(tmp_path: Path) -> None:
    """Runs, open requests, file contents and reserved run ids belong to one workspace."""
    disk = SqliteLedger(tmp_path)
    one, two = [await WorkspaceOwner.open(disk, path) for path in ("/one", "/two")]
    for owner in (one, two):
        await owner.do(CreateSession(session("s")), CreateSession(session("t")))
        await owner.admit("r1", "r2", session="t")
        for name in ("r1", "r2"):
            await owner.do(StartRun(RunId(name), 5), EndRun(RunId(name), "completed", 9))
        await owner.do(AddFile(FileVersion("f", SessionId("t"), "/a", "content", 0, 1, 1)))
        await owner.do(Announce(request_event(SessionId("t"), "q1")))
    before = await everything(two)
    await one.do(DeleteSession(SessionId("t")))
    assert await everything(two) == before
    closing = permission_notice(permission_request(SessionId("t"), "q1"), granted=True, denied=False)
    await two.do(CloseRequest(closing))
    await two.do(DeleteSession(SessionId("t")))
    await one.do(CreateSession(session("t")))
    # Reserved in the other workspace only, alone and together.
    await two.do(CreateSession(session("u")))
    await two.admit("r8", "r9", session="u")
    for name in ("r8", "r9"):
        await two.do(StartRun(RunId(name), 5), EndRun(RunId(name), "completed", 9))
    await two.do(DeleteSession(SessionId("u")))
    admits = [Write((Admit(run(name, session="t"), b"hash"),)) for name in ("r8", "r9")]
    assert [type(answer) for answer in await one.batch(*admits)] == [Receipt, Receipt]
    # The ranks of equal ids differ.
    await one.admit("x", "y", session="s")
    await two.admit("y", "z", "x", session="s")
    await two.do(Reorder((RunId("x"), RunId("y")), RunId("x")))
    assert [item.run_id for item in await disk.open_runs(two.id)] == ["x", "z", "y"]
    assert [item.run_id for item in await disk.open_runs(one.id)] == ["r8", "r9", "x", "y"]
    await disk.close()


async def test_a_read_that_fails_leaves_its_reader_usable(tmp_path: Path) -> None:
    disk = SqliteLedger(tmp_path)
    owner = await WorkspaceOwner.with_session(disk)

    def broken(_: object) -> None:
        raise ZeroDivisionError

    for _ in range(4):
        with pytest.raises(StorageUnavailable):
            await disk.database.read(broken)
    await owner.do(CreateSession(session("new")))
    for _ in range(4):
        assert await disk.session(owner.id, SessionId("new")) is not None
    await disk.close()
