"""Both stores return and contain the same after the same writes, even with the smallest limits of the SQLite store."""

import random
from pathlib import Path

import msgspec
import pytest

from holdfast.domain.approvals import PermissionRequest
from holdfast.domain.errors import StorageUnavailable
from holdfast.domain.events import Change, MessageDelta, MessagePart, PermissionRequestEvent, SessionEvent
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.messages import Message, Text, TextPart
from holdfast.domain.runs import Attachment, PromptExpansion
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import (
    AddFile,
    Admit,
    Announce,
    CancelRun,
    CancelSession,
    ClearQueue,
    CloseRequest,
    CreateSession,
    DeleteMessage,
    DeleteSession,
    EndRun,
    FoldRun,
    GrowMessage,
    MarkRead,
    Operation,
    PatchSession,
    PutMessage,
    Receipt,
    Redeliver,
    Refusal,
    RemoveRun,
    Reorder,
    StartRun,
    StepRun,
    Write,
)
from holdfast.engine.approvals import permission_notice
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.conformance import WorkspaceOwner, message, run, session
from holdfast.testing.memory_ledger import MemoryLedger

LOWEST = {
    "table_access._INLINE_PROMPT_LIMIT": 0,
    "table_access._CACHEABLE_BYTES": 0,
    "data_directory.WAL_PAGES": 1,
    "writer_thread.WAL_PAGES": 1,
    "vacuum.SPARE_PAGES": 0,
    "vacuum._PAGES_PER_STEP": 1,
    "database.WAL_SIZE_LIMIT": 1,
    "database._READERS": 1,
    "database._FULL_CHECK_LIMIT": 0,
}


def _home(message_id: str) -> SessionId:
    """A message never moves to another session."""
    return SessionId(("s", "s", "t", "child", "nowhere")[int(message_id[1:]) % 5])


def _message(message_id: str, text: str, *, run: str = "", updated_at: int = 100) -> Message:
    return message(message_id, text, session=_home(message_id), run=run, updated_at=updated_at)


def _asked(name: SessionId, id: str) -> PermissionRequest:
    return PermissionRequest(id, name, ToolCallId("c"), "bash", "run", "execute", {}, "/w")


def _request(name: SessionId, id: str) -> PermissionRequestEvent:
    return PermissionRequestEvent(Change("created", _asked(name, id)))


class WriteGenerator:
    """Draws writes that are mostly valid."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._count = 0

    def batch(self) -> list[Write]:
        if self._dice.random() < 0.3:
            # Prompts of one batch are looked up together.
            return [Write((self._admit(),), sync=False) for _ in range(self._dice.randint(2, 5))]
        some = [self._some() for _ in range(self._dice.choice((1, 1, 1, 2, 3)))]
        if any(isinstance(item, DeleteSession) for item in some):
            # The store in memory keeps the events of a session that one write creates and deletes.
            some = [item for item in some if not isinstance(item, CreateSession)]
        return [Write(tuple(some), sync=False)]

    def _name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count}" if self._dice.random() < 0.85 else f"{prefix}1"

    def _run(self) -> RunId:
        return RunId(f"r{self._dice.randint(1, self._count + 1)}")

    def _session(self) -> SessionId:
        return SessionId(self._dice.choice(("s", "s", "t", "child", "nowhere")))

    def _message(self) -> MessageId:
        return MessageId(f"m{self._dice.randint(1, self._count + 1)}")

    def _admit(self) -> Admit:
        dice, name = self._dice, self._name("r")
        asked = run(name, session=self._session(), prompt=dice.choice(("", "short", "x" * 3_000)))
        delivery = dice.choice(("queue", "queue", "steer", "reject", "interrupt"))
        files = (Attachment(b"data", "a", "a", "text/plain"),) if dice.random() < 0.2 else ()
        brief = PromptExpansion(text="more") if dice.random() < 0.2 else None
        return Admit(msgspec.structs.replace(asked, delivery=delivery), name.encode(), files, brief)

    def _some(self) -> Operation:
        dice = self._dice
        run_id, name, message_id = self._run(), self._session(), self._message()
        text = dice.choice(("", "text", "y" * 500))
        return dice.choice(
            (
                self._admit,
                lambda: StartRun(run_id, 5),
                lambda: StepRun(run_id, 2),
                lambda: FoldRun(run_id, self._run(), 6),
                lambda: EndRun(run_id, "completed", 9, text=text),
                lambda: EndRun(run_id, "failed", 9, error=text),
                lambda: RemoveRun(run_id, (self._run(),)),
                lambda: CancelRun(run_id, "a"),
                lambda: CancelSession(name, "b"),
                lambda: ClearQueue(name, (run_id,), "c"),
                lambda: Redeliver(run_id, "steer"),
                lambda: Reorder((run_id, self._run()), run_id),
                lambda: PutMessage(_message(self._name("m"), text, run=dice.choice(("", run_id)))),
                lambda: PutMessage(_message(message_id, text, updated_at=dice.randint(1, 300))),
                lambda: GrowMessage((MessageDelta(_home(message_id), message_id, 0, 0, text),)),
                lambda: GrowMessage((MessagePart(_home(message_id), message_id, 1, TextPart(Text(text))),)),
                lambda: DeleteMessage(message_id),
                lambda: PatchSession(SessionPatch(name, dice.randint(1, 300), title=text, add_cost=0.5)),
                lambda: CreateSession(session(dice.choice(("t", "child")), parent=dice.choice(("", "s")))),
                lambda: DeleteSession(SessionId(dice.choice(("t", "child")))),
                lambda: AddFile(FileVersion("f", name, dice.choice(("/a", "/b")), text, 0, 1, 1)),
                lambda: MarkRead(ReadMark(name, dice.choice(("/a", "/b")), dice.randint(1, 9), text)),
                lambda: Announce(_request(name, f"q{dice.randint(1, 5)}")),
                lambda: CloseRequest(
                    permission_notice(_asked(name, f"q{dice.randint(1, 5)}"), granted=True, denied=False)
                ),
            )
        )()


async def everything(owner: WorkspaceOwner) -> list[object]:
    found = await owner.all()
    for item in ("s", "t", "child"):
        for limit, before in ((1, 0), (3, 20), (99, 40)):
            found.append(await owner.ledger.runs(owner.id, SessionId(item), limit, before))
        found.append(await owner.ledger.session(owner.id, SessionId(item)))
        found += [await owner.ledger.read_mark(owner.id, SessionId(item), path) for path in ("/a", "/b")]
    for number in range(1, 40):
        found.append(await owner.ledger.briefing(owner.id, RunId(f"r{number}")))
        found.append(await owner.ledger.messages_of_run(owner.id, RunId(f"r{number}")))
    for cursor, limit in ((0, 1), (5, 2), (11, 0)):
        found.append([number for number, _ in await owner.ledger.events_after(owner.id, cursor, limit)])
    return [list(item) if isinstance(item, tuple) else item for item in found]


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
        await owner.do(Announce(_request(SessionId("t"), "q1")))
    before = await everything(two)
    await one.do(DeleteSession(SessionId("t")))
    assert await everything(two) == before
    closing = permission_notice(_asked(SessionId("t"), "q1"), granted=True, denied=False)
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
