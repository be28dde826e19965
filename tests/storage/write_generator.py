"""Random batches of writes, and everything that can be read after them, to compare stores."""

import random

import msgspec

from holdfast.domain.approvals import PermissionRequest
from holdfast.domain.events import Change, MessageDelta, MessagePart, PermissionRequestEvent
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
    Redeliver,
    RemoveRun,
    Reorder,
    StartRun,
    StepRun,
    Write,
)
from holdfast.engine.approvals import permission_notice
from holdfast.testing.conformance import WorkspaceOwner, message, run, session

__all__ = ["WriteGenerator", "everything", "permission_request", "request_event"]


def _home(message_id: str) -> SessionId:
    """A message never moves to another session."""
    return SessionId(("s", "s", "t", "child", "nowhere")[int(message_id[1:]) % 5])


def _message(message_id: str, text: str, *, run: str = "", updated_at: int = 100) -> Message:
    return message(message_id, text, session=_home(message_id), run=run, updated_at=updated_at)


def permission_request(name: SessionId, id: str) -> PermissionRequest:
    return PermissionRequest(id, name, ToolCallId("c"), "bash", "run", "execute", {}, "/w")


def request_event(name: SessionId, id: str) -> PermissionRequestEvent:
    return PermissionRequestEvent(Change("created", permission_request(name, id)))


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
                lambda: Announce(request_event(name, f"q{dice.randint(1, 5)}")),
                lambda: CloseRequest(
                    permission_notice(permission_request(name, f"q{dice.randint(1, 5)}"), granted=True, denied=False)
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
