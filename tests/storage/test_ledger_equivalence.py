"""Both stores return and contain the same after the same writes, even with the smallest limits of the SQLite store."""

import random
from pathlib import Path

import msgspec
import pytest

from holdfast.domain.events import MessageDelta, MessagePart
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.ledger import (
    AddFile,
    Admit,
    CancelRun,
    CancelSession,
    ClearQueue,
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
    Redeliver,
    RemoveRun,
    Reorder,
    StartRun,
    StepRun,
    Write,
)
from holdfast.domain.messages import Text, TextPart
from holdfast.domain.runs import Attachment, PromptExpansion
from holdfast.domain.sessions import SessionPatch
from holdfast.storage.ledger import SqliteLedger
from holdfast.testing.conformance import WorkspaceOwner, message, run, session
from holdfast.testing.memory_ledger import MemoryLedger

LOWEST = {
    "tables._INLINE_PROMPT_LIMIT": 0,
    "tables._CACHEABLE_BYTES": 0,
    "data_directory.WAL_PAGES": 1,
    "writer.WAL_PAGES": 1,
    "vacuum.SPARE_PAGES": 0,
    "vacuum._PAGES_PER_STEP": 1,
    "database.WAL_SIZE_LIMIT": 1,
    "database._READERS": 1,
    "database._FULL_CHECK_LIMIT": 0,
}


class WriteGenerator:
    """Draws writes that are mostly valid."""

    def __init__(self, seed: int) -> None:
        self._dice = random.Random(seed)
        self._count = 0

    def batch(self) -> list[Write]:
        if self._dice.random() < 0.3:
            # Prompts of one batch are looked up together.
            return [Write((self._admit(),), sync=False) for _ in range(self._dice.randint(2, 5))]
        return [Write(tuple(self._some() for _ in range(self._dice.choice((1, 1, 1, 2, 3)))), sync=False)]

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
                lambda: PutMessage(message(self._name("m"), text, session=name, run=dice.choice(("", run_id)))),
                lambda: PutMessage(message(message_id, text, session=name, updated_at=dice.randint(1, 300))),
                lambda: GrowMessage((MessageDelta(name, message_id, 0, 0, text),)),
                lambda: GrowMessage((MessagePart(name, message_id, 1, TextPart(Text(text))),)),
                lambda: DeleteMessage(message_id),
                lambda: PatchSession(SessionPatch(name, dice.randint(1, 300), title=text, add_cost=0.5)),
                lambda: CreateSession(session(dice.choice(("t", "child")), parent=dice.choice(("", "s")))),
                lambda: DeleteSession(SessionId(dice.choice(("t", "child")))),
                lambda: AddFile(FileVersion("f", name, dice.choice(("/a", "/b")), text, 0, 1, 1)),
                lambda: MarkRead(ReadMark(name, dice.choice(("/a", "/b")), dice.randint(1, 9))),
            )
        )()


async def everything(owner: WorkspaceOwner) -> list[object]:
    found = await owner.all()
    for item in ("s", "t", "child"):
        for limit, before in ((1, 0), (3, 20), (99, 40)):
            found.append(await owner.ledger.runs(owner.id, SessionId(item), limit, before))
        found.append(await owner.ledger.session(owner.id, SessionId(item)))
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
