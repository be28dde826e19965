"""Interface between the checks and a store under test, and helpers for the checks."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

import msgspec

from holdfast.domain.events import DurableEvent, decode_event
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.messages import Message, Text, TextPart
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.domain.store_operations import (
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
from holdfast.engine.ports import Ledger
from holdfast.storage.event_log import Retention

__all__ = ["Check", "ManualClock", "Subject", "WorkspaceOwner", "message", "run", "session"]

PATH = "/home/ada/project"


class ManualClock:
    """Clock for the retention of events. It advances only when a check changes `ms`."""

    def __init__(self) -> None:
        self.ms = 1_700_000_000_000

    def now_ms(self) -> int:
        """Return the time."""
        return self.ms


class Subject(Protocol):
    """A store under test. An implementation of a store provides one of these in order to be checked."""

    @property
    def ledger(self) -> Ledger:
        """The store under test."""

    @property
    def clock(self) -> ManualClock:
        """The clock of the store."""

    @property
    def unclean_gap(self) -> int:
        """Event numbers that are skipped after an unclean end; 0 if every event is on disk before it is published."""

    async def another(self) -> Ledger:
        """Return a second server on the same data, or the same store if there can be only one."""

    async def crash(self) -> None:
        """Kill the server and start another one on its data. Everything acknowledged is kept."""

    async def cut_power(self) -> None:
        """Crash, and lose everything that was not synced."""

    def fail_next(self) -> None:
        """Let the next commit or input fail without writing."""

    def lose_next_answer(self) -> None:
        """Let the next commit or input write and report an unknown result."""


class Check(msgspec.Struct, frozen=True):
    """One statement of the contract. `run` raises `AssertionError` if it does not hold."""

    run: Callable[[Subject], Awaitable[None]]
    retention: Retention = Retention()

    @property
    def name(self) -> str:
        """The name of the check."""
        return self.run.__name__


def session(name: str, *, parent: str = "", updated_at: int = 100) -> Session:
    """Return a session for a check."""
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
    """Return a waiting run for a check."""
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
    """Return a message for a check."""
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


class WorkspaceOwner:
    """The owner of a workspace: opens it and numbers its batches."""

    def __init__(self, ledger: Ledger, record: WorkspaceRecord) -> None:
        self.ledger = ledger
        self.record = record
        self.id = record.id
        self.epoch = record.epoch
        self.ticket = 0

    @classmethod
    async def open(cls, ledger: Ledger, path: str = PATH) -> "WorkspaceOwner":
        """Open a workspace."""
        return cls(ledger, await ledger.open_workspace(path))

    @classmethod
    async def with_session(cls, ledger: Ledger, *names: str) -> "WorkspaceOwner":
        """Open a workspace and create sessions; "s" if none is named."""
        workspace_owner = await cls.open(ledger)
        await workspace_owner.do(*(CreateSession(session(name)) for name in names or ("s",)))
        return workspace_owner

    async def batch(self, *writes: Write) -> Sequence[Answer]:
        """Commit writes under the next ticket."""
        self.ticket += 1
        return await self.ledger.commit(self.id, self.epoch, self.ticket, writes)

    async def do(self, *operations: Operation, sync: bool = True) -> Receipt:
        """Commit one write, which must succeed."""
        (answer,) = await self.batch(Write(operations, sync=sync))
        assert isinstance(answer, Receipt), f"{operations} were refused: {answer}"
        return answer

    async def refused(self, *operations: Operation) -> RefusalReason:
        """Commit one write, which must be refused and must not change anything."""
        before = await self.all()
        (answer,) = await self.batch(Write(operations))
        assert isinstance(answer, Refusal), f"{operations} were not refused: {answer}"
        assert await self.all() == before, f"{operations} were refused and left a trace"
        return answer.reason

    async def admit(self, *names: str, session: str = "s") -> list[Run]:
        """Admit a run for each name, in separate writes."""
        return [(await self.do(Admit(run(name, session=session), b"hash"))).runs[0] for name in names]

    async def put(self, *messages: Message) -> Receipt:
        """Store messages."""
        return await self.do(*(PutMessage(item) for item in messages))

    async def get(self, name: str) -> Run:
        """Return a stored run."""
        record = await self.ledger.run(self.id, RunId(name))
        assert record is not None, f"there is no run {name}"
        return record.run

    async def events(self, after: int = 0) -> list[tuple[int, DurableEvent]]:
        """Return the stored events after a number."""
        rows = await self.ledger.events_after(self.id, after, 1_000_000)
        return [(number, _durable(body)) for number, body in rows]

    async def all(self) -> list[object]:
        """Return everything that can be read about the workspace."""
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
