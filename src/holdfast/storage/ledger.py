"""The ledger on SQLite. Its contract is the engine's `Ledger` port."""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TypeVar, assert_never

import apsw
import msgspec

from holdfast.domain.errors import OwnerChanged, StorageError, StorageUnknown
from holdfast.domain.events import DurableEvent, RunEvent
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.ledger import (
    Admit,
    Answer,
    Briefing,
    DeleteSession,
    Entry,
    Receipt,
    Refusal,
    RefusalReason,
    RunRecord,
    Snapshot,
    WorkspaceRecord,
    Write,
)
from holdfast.domain.messages import Message
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.domain.usage import Stats
from holdfast.storage import workspace_table
from holdfast.storage.database import Database
from holdfast.storage.event_log import EventLog, Retention
from holdfast.storage.operations import execute
from holdfast.storage.stats import counted
from holdfast.storage.tables import FileTable, MessageTable, RequestTable, RunTable, SessionTable
from holdfast.storage.writer import Probe

__all__ = ["Batch", "Committed", "SqliteLedger", "WorkspaceTables", "commit_batch", "pack", "unpack"]


# What the last batch was answered, kept small: events stand in the log, and most receipts follow from them.


class _Done(msgspec.Struct, frozen=True, tag="done", omit_defaults=True):
    """A receipt that names other runs than those it created."""

    count: int = 0
    runs: tuple[Run, ...] = ()


class _Refused(msgspec.Struct, frozen=True, tag="refused"):
    reason: RefusalReason


_encoder = msgspec.json.Encoder()
# A number is a receipt with so many entries, which names the runs that they created.
_decoder = msgspec.json.Decoder(tuple[int | _Done | _Refused, ...])
_event_decoder: msgspec.json.Decoder[DurableEvent] = msgspec.json.Decoder(DurableEvent)


def pack(answers: Iterable[Answer]) -> bytes:
    return _encoder.encode([_packed(answer) for answer in answers])


def _packed(answer: Answer) -> int | _Done | _Refused:
    match answer:
        case Receipt(entries=entries, runs=runs):
            if runs == _created(entries):
                return len(entries)
            return _Done(len(entries), tuple(msgspec.structs.replace(run, prompt="") for run in runs))
        case Refusal(reason=reason):
            return _Refused(reason)
        case _:
            assert_never(answer)


def _created(entries: Iterable[Entry]) -> tuple[Run, ...]:
    events = [entry.event for entry in entries]
    return tuple(
        [event.change.object for event in events if type(event) is RunEvent and event.change.type == "created"]
    )


def unpack(packed: bytes, newest: int, log: EventLog, runs: RunTable) -> Sequence[Answer]:
    """The answers as they were given. `newest` is the number that the batch had come to."""
    items = _decoder.decode(packed) if packed else ()
    counts = [0 if isinstance(item, _Refused) else item if isinstance(item, int) else item.count for item in items]
    answers: list[Answer] = []
    before = newest - sum(counts)
    for item, count in zip(items, counts, strict=True):
        if isinstance(item, _Refused):
            answers.append(Refusal(item.reason))
        else:
            answers.append(_receipt(item, _entries(log, before, count), runs))
        before += count
    return answers


def _entries(log: EventLog, before: int, count: int) -> tuple[Entry, ...]:
    rows = log.after(before, count) if count else []
    return tuple(Entry(number, _event_decoder.decode(body), body) for number, body in rows)


def _receipt(item: int | _Done, entries: tuple[Entry, ...], table: RunTable) -> Receipt:
    if isinstance(item, int):
        return Receipt(entries, _created(entries))
    return Receipt(entries, tuple(_with_prompt(run, entries, table) for run in item.runs))


def _with_prompt(run: Run, entries: Iterable[Entry], table: RunTable) -> Run:
    return msgspec.structs.replace(run, prompt=_prompt(run.run_id, entries, table))


def _prompt(run_id: RunId, entries: Iterable[Entry], table: RunTable) -> str:
    """From the event that admitted the run, if the batch did that: a later write may have removed the row."""
    for created in _created(entries):
        if created.run_id == run_id:
            return created.prompt
    run = table.get(run_id)
    return run.prompt if run is not None else ""


# All tables of one workspace over one connection; what the operations call `Tables`.


class WorkspaceTables:
    """Cheap to make: one for every batch and every read. What it has looked up it knows until it is told to forget."""

    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self.runs = RunTable(connection, workspace)
        self.messages = MessageTable(connection, workspace)
        self.sessions = SessionTable(connection, workspace, self.runs, self.messages)
        self.files = FileTable(connection, workspace)
        self.requests = RequestTable(connection, workspace)
        self.log = EventLog(connection, workspace)
        self.admission = self.runs.admission

    def forget(self) -> None:
        """Something was undone."""
        self.runs.forget()
        self.sessions.forget()
        self.messages.forget()
        self.log.forget()


# A batch of writes, carried out within the writer's transaction.


class Batch(msgspec.Struct, frozen=True):
    workspace: WorkspaceId
    epoch: int
    ticket: int
    writes: tuple[Write, ...]


class Committed(msgspec.Struct, frozen=True):
    """What a batch was answered, and how far it took the numbering of the workspace with this key."""

    answers: Sequence[Answer]
    key: int
    before: int
    newest: int


def commit_batch(connection: apsw.Connection, batch: Batch, at: int) -> Committed:
    """Do the batch, or answer again what was answered when this ticket came first.

    A workspace that was closed in good order is no longer owned: a write that is not synced could be lost with its
    numbers, and the next owner would not know that they were seen.
    """
    row = workspace_table.owned(connection, batch.workspace, batch.epoch)
    if row.clean:
        raise OwnerChanged("The workspace was closed: open it again before writing to it.")
    rows = WorkspaceTables(connection, row.key)
    if batch.ticket == row.ticket:
        packed = workspace_table.answers(connection, row)
        return Committed(unpack(packed, row.newest, rows.log, rows.runs), row.key, row.newest, row.newest)
    if batch.ticket < row.ticket:
        raise StorageUnknown("A later batch was written already; what became of this one is no longer known.")
    answers = _carry_out(connection, batch.writes, rows, row.newest)
    receipts = [answer for answer in answers if isinstance(answer, Receipt)]
    entries = [entry for receipt in receipts for entry in receipt.entries]
    rows.log.append(entries, at)
    workspace_table.advance(connection, row, said=len(entries), ticket=batch.ticket, answers=pack(answers))
    return Committed(answers, row.key, row.newest, row.newest + len(entries))


def _carry_out(
    connection: apsw.Connection, writes: Sequence[Write], rows: WorkspaceTables, newest: int
) -> list[Answer]:
    """Each write in its turn. Accepts that follow upon each other share what they have to look up."""
    answers: list[Answer] = []
    for are_accepts, stretch in groupby(writes, _is_plain_accept):
        alike = list(stretch)
        if are_accepts and len(alike) > 1:
            rows.runs.foresee([admit for write in alike for admit in write.operations if isinstance(admit, Admit)])
        for write in alike:
            answer = _perform(connection, write, rows, newest)
            if isinstance(answer, Receipt):
                newest += len(answer.entries)
            answers.append(answer)
        rows.runs.settle()
    return answers


def _is_plain_accept(write: Write) -> bool:
    """An accept that changes no other run."""
    if len(write.operations) != 1:
        return False
    operation = write.operations[0]
    return isinstance(operation, Admit) and operation.run.delivery != "interrupt"


def _perform(connection: apsw.Connection, write: Write, rows: WorkspaceTables, newest: int) -> Answer:
    """A refused operation has stored nothing itself, so only what came before it in the same write is undone.

    A savepoint costs a copy of every page that is changed after it: one for each of many writes is dear.
    """
    if len(write.operations) < 2:
        return execute(write, rows, newest)
    connection.execute("SAVEPOINT write")
    answer = execute(write, rows, newest)
    if isinstance(answer, Refusal):
        connection.execute("ROLLBACK TO write")
        rows.forget()
    connection.execute("RELEASE write")
    return answer


# The ledger on SQLite. Its contract is the engine's `Ledger` port.

T = TypeVar("T")

_ENDED_IN_SNAPSHOT = 50


def _system_ms() -> int:
    return time.time_ns() // 1_000_000


class SqliteLedger:
    """One data directory, many workspaces. Opening and locking happen in the constructor, which blocks.

    `now_ms` dates events: for the retention, and for who looks back. `probe` is called in the writer thread at
    "before", "executed" and "committed" of every group; `vfs` names the SQLite file layer to write through.
    """

    def __init__(
        self,
        data_dir: Path,
        *,
        retention: Retention | None = None,
        now_ms: Callable[[], int] = _system_ms,
        probe: Probe | None = None,
        vfs: str | None = None,
    ) -> None:
        self._retention = retention or Retention()
        self._now_ms = now_ms
        # Workspaces whose log is to be looked at. Only the writer thread touches it.
        self._due: set[int] = set()
        self._database = Database.open(data_dir, tidy=self._prune, probe=probe, vfs=vfs)

    @property
    def database(self) -> Database:
        return self._database

    async def close(self) -> None:
        """Finish what was asked, then close. Later calls raise `StorageUnavailable`."""
        await asyncio.to_thread(self._database.close)

    async def problem(self) -> str:
        """Return why nothing can be stored although the disk works, or an empty string."""
        if not self._database.problem():
            return ""
        try:
            # The writer decides: its own checkpoint may just be changing the file.
            await self._database.write(lambda _: None, sync=False)
        except StorageError as error:
            return str(error)
        return ""

    async def open_workspace(self, path: str) -> WorkspaceRecord:
        def take_over(connection: apsw.Connection) -> WorkspaceRecord:
            row = workspace_table.take_over(connection, path)
            self._due.add(row.key)
            oldest = EventLog(connection, row.key).oldest()
            return WorkspaceRecord(row.id, path, row.epoch, oldest or row.newest + 1, row.newest)

        return await self._database.write(take_over, sync=True)

    async def close_workspace(self, workspace: WorkspaceId, epoch: int) -> None:
        await self._database.write(
            lambda connection: workspace_table.mark_clean(connection, workspace, epoch),
            sync=True,
        )

    async def unfinished_workspaces(self) -> Sequence[str]:
        return await self._database.read(workspace_table.unfinished)

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        batch = Batch(workspace, epoch, ticket, tuple(writes))

        def commit(connection: apsw.Connection) -> Sequence[Answer]:
            done = commit_batch(connection, batch, self._now_ms())
            if self._retention.is_due(done.before, done.newest):
                self._due.add(done.key)
            return done.answers

        operations = [operation for write in batch.writes for operation in write.operations]
        erases = any(isinstance(operation, DeleteSession) for operation in operations)
        return await self._database.write(commit, sync=any(write.sync for write in batch.writes), erases=erases)

    async def last_batch(self, workspace: WorkspaceId, epoch: int) -> tuple[int, Sequence[Answer]]:
        """Asked of the writer, so that it comes after every batch that is still on its way."""

        def look(connection: apsw.Connection) -> tuple[int, Sequence[Answer]]:
            row = workspace_table.owned(connection, workspace, epoch)
            rows = WorkspaceTables(connection, row.key)
            return row.ticket, unpack(workspace_table.answers(connection, row), row.newest, rows.log, rows.runs)

        return await self._database.write(look, sync=False)

    async def events_after(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, bytes]]:
        return await self._read(workspace, lambda rows: rows.log.after(cursor, limit))

    async def dated_events(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, int, bytes]]:
        return await self._read(workspace, lambda rows: rows.log.dated_after(cursor, limit))

    async def bounds(self, workspace: WorkspaceId) -> tuple[int, int]:
        def look(connection: apsw.Connection) -> tuple[int, int]:
            row = workspace_table.find(connection, workspace)
            if row is None:
                return 1, 0
            return EventLog(connection, row.key).oldest() or row.newest + 1, row.newest

        return await self._database.read(look)

    async def snapshot(self, workspace: WorkspaceId, session: SessionId | None) -> Snapshot:
        def look(connection: apsw.Connection) -> Snapshot:
            row = workspace_table.find(connection, workspace)
            if row is None:
                return Snapshot(0, 0, (), (), ())
            rows = WorkspaceTables(connection, row.key)
            runs = rows.runs.every_open() + rows.runs.last_ended(_ENDED_IN_SNAPSHOT)
            return Snapshot(
                cursor=row.newest,
                epoch=row.epoch,
                sessions=tuple(rows.sessions.every()),
                messages=() if session is None else tuple(rows.messages.of_session(session)),
                runs=tuple(sorted(runs, key=lambda run: run.number)),
            )

        return await self._database.read(look)

    async def sessions(self, workspace: WorkspaceId) -> Sequence[Session]:
        return await self._read(workspace, lambda rows: rows.sessions.top())

    async def session(self, workspace: WorkspaceId, session: SessionId) -> Session | None:
        return await self._read(workspace, lambda rows: rows.sessions.get(session))

    async def messages(self, workspace: WorkspaceId, session: SessionId) -> Sequence[Message]:
        return await self._read(workspace, lambda rows: rows.messages.of_session(session))

    async def messages_of_run(self, workspace: WorkspaceId, run: RunId) -> Sequence[Message]:
        return await self._read(workspace, lambda rows: rows.messages.of_run(run))

    async def run(self, workspace: WorkspaceId, run: RunId) -> RunRecord | None:
        return await self._read(workspace, lambda rows: rows.runs.record(run))

    async def briefing(self, workspace: WorkspaceId, run: RunId) -> Briefing | None:
        def look(rows: WorkspaceTables) -> Briefing | None:
            record = rows.runs.record(run)
            session = None if record is None else rows.sessions.get(record.run.session_id)
            if record is None or session is None:
                return None
            return Briefing(record, session, tuple(rows.messages.of_session(session.id)))

        return await self._read(workspace, look)

    async def open_runs(self, workspace: WorkspaceId) -> Sequence[Run]:
        return await self._read(workspace, lambda rows: rows.runs.every_open())

    async def runs(self, workspace: WorkspaceId, session: SessionId | None, limit: int, before: int) -> Sequence[Run]:
        return await self._read(workspace, lambda rows: rows.runs.page(session, limit, before))

    async def files(self, workspace: WorkspaceId, session: SessionId) -> Sequence[FileVersion]:
        return await self._read(workspace, lambda rows: rows.files.of_session(session))

    async def read_mark(self, workspace: WorkspaceId, session: SessionId, path: str) -> ReadMark | None:
        return await self._read(workspace, lambda rows: rows.files.read_mark(session, path))

    async def read_marks(self, workspace: WorkspaceId, session: SessionId) -> Sequence[ReadMark]:
        return await self._read(workspace, lambda rows: rows.files.read_marks(session))

    async def stats(self, workspace: WorkspaceId | None, zone: int = 0) -> Stats:
        """What was done, in one workspace or in all, by a clock that is `zone` minutes ahead of UTC."""
        return await self._database.read(lambda connection: counted(connection, workspace, zone))

    async def _read(self, workspace: WorkspaceId, look: Callable[[WorkspaceTables], T]) -> T:
        """An unknown workspace reads as an empty one: no row has the key 0."""

        def work(connection: apsw.Connection) -> T:
            row = workspace_table.find(connection, workspace)
            return look(WorkspaceTables(connection, 0 if row is None else row.key))

        return await self._database.read(work)

    def _prune(self, connection: apsw.Connection) -> None:
        for key in tuple(self._due):
            with connection:
                EventLog(connection, key).prune(self._retention, self._now_ms())
            # One that fails stays due, and is tried again after a later group.
            self._due.discard(key)
