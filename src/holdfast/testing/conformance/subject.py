"""What a check gets: a ledger, ways to hurt it, and a desk to work at."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from holdfast.domain.events import DurableEvent, decode_event
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.ledger import (
    Admit,
    Answer,
    CreateSession,
    Operation,
    PutMessage,
    Receipt,
    Refusal,
    RefusalReason,
    WorkspaceRecord,
    Write,
)
from holdfast.domain.messages import Message, Text, TextPart
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.engine.ports import Ledger
from holdfast.storage.event_log import Retention

__all__ = ["Check", "Desk", "ManualClock", "Subject", "message", "run", "session"]

PATH = "/home/ada/project"


class ManualClock:
    """Time for the retention: it stands still until a check moves it."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.ms


class Subject(Protocol):
    """A ledger under test. A new implementation provides one of these, and nothing else, to be checked."""

    @property
    def ledger(self) -> Ledger: ...

    @property
    def clock(self) -> ManualClock: ...

    async def another(self) -> Ledger:
        """A second server on the same data; the same ledger, if there can be but one."""

    async def crash(self) -> None:
        """The server is killed and another one starts on its data. All that was answered is still there."""

    async def cut_power(self) -> None:
        """As `crash`, but all that was not synced is lost."""

    def fail_next(self) -> None:
        """The next commit cannot write and says so."""

    def lose_next_answer(self) -> None:
        """The next commit writes, but whoever asked is told that this is unknown."""


class Check(msgspec.Struct, frozen=True):
    """One sentence of the contract. `run` raises `AssertionError` if it is broken."""

    run: Callable[[Subject], Awaitable[None]]
    retention: Retention = Retention()

    @property
    def name(self) -> str:
        return self.run.__name__


def session(name: str, *, parent: str = "", updated_at: int = 100) -> Session:
    return Session(
        id=SessionId(name),
        parent_session_id=SessionId(parent),
        title=f"Title of {name}",
        message_count=0,
        prompt_tokens=0,
        completion_tokens=0,
        summary_message_id=MessageId(""),
        cost=0.0,
        created_at=100,
        updated_at=updated_at,
        is_busy=False,
        attached_clients=0,
    )


def run(name: str, *, session: str = "s", prompt: str = "Say hello.") -> Run:
    return Run(
        run_id=RunId(name),
        session_id=SessionId(session),
        state="waiting",
        delivery="queue",
        accepted_at=5,
        prompt=prompt,
        client_id="c1",
    )


def message(name: str, text: str = "", *, session: str = "s", run: str = "", updated_at: int = 100) -> Message:
    return Message(
        parts=(TextPart(Text(text)),),
        id=MessageId(name),
        role="assistant",
        session_id=SessionId(session),
        model="m",
        provider="p",
        created_at=100,
        updated_at=updated_at,
        run_id=RunId(run),
    )


class Desk:
    """The owner of a workspace, who counts the tickets."""

    def __init__(self, ledger: Ledger, record: WorkspaceRecord) -> None:
        self.ledger = ledger
        self.record = record
        self.id = record.id
        self.epoch = record.epoch
        self.ticket = 0

    @classmethod
    async def open(cls, ledger: Ledger, path: str = PATH) -> "Desk":
        return cls(ledger, await ledger.open_workspace(path))

    @classmethod
    async def with_session(cls, ledger: Ledger, *names: str) -> "Desk":
        """A desk with sessions; "s" if none is named."""
        desk = await cls.open(ledger)
        await desk.do(*(CreateSession(session(name)) for name in names or ("s",)))
        return desk

    async def batch(self, *writes: Write) -> Sequence[Answer]:
        self.ticket += 1
        return await self.ledger.commit(self.id, self.epoch, self.ticket, writes)

    async def do(self, *operations: Operation, sync: bool = True) -> Receipt:
        """One write, which has to succeed."""
        (answer,) = await self.batch(Write(operations, sync=sync))
        assert isinstance(answer, Receipt), f"{operations} were refused: {answer}"
        return answer

    async def refused(self, *operations: Operation) -> RefusalReason:
        """One write, which has to be refused and to leave no trace."""
        before = await self.all()
        (answer,) = await self.batch(Write(operations))
        assert isinstance(answer, Refusal), f"{operations} were not refused: {answer}"
        assert await self.all() == before, f"{operations} were refused and left a trace"
        return answer.reason

    async def admit(self, *names: str, session: str = "s") -> list[Run]:
        """A run for each name, one write each."""
        return [(await self.do(Admit(run(name, session=session), b"hash"))).runs[0] for name in names]

    async def put(self, *messages: Message) -> Receipt:
        return await self.do(*(PutMessage(item) for item in messages))

    async def get(self, name: str) -> Run:
        record = await self.ledger.run(self.id, RunId(name))
        assert record is not None, f"there is no run {name}"
        return record.run

    async def events(self, after: int = 0) -> list[tuple[int, DurableEvent]]:
        rows = await self.ledger.events_after(self.id, after, 1_000_000)
        return [(number, _durable(body)) for number, body in rows]

    async def all(self) -> list[object]:
        """Everything that can be seen of the workspace."""
        snapshot = await self.ledger.snapshot(self.id, None)
        found: list[object] = [snapshot, await self.ledger.bounds(self.id), await self.events()]
        for name in [item.id for item in snapshot.sessions]:
            found += [await self.ledger.messages(self.id, name), await self.ledger.files(self.id, name)]
            found.append(await self.ledger.read_marks(self.id, name))
        runs = await self.ledger.runs(self.id, None, 1_000_000, 0)
        found += [await self.ledger.run(self.id, item.run_id) for item in runs]
        return [*found, await self.ledger.open_runs(self.id)]


def _durable(body: bytes) -> DurableEvent:
    event = decode_event(body)
    assert isinstance(event, DurableEvent), f"{event} must not be numbered"
    return event
