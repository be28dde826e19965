"""The ledger on SQLite: batches of writes, repeated batches, and reads. Its contract is the engine's `Ledger` port.

A batch is one job of the writer thread. It is identified by its ticket, which only increases within an epoch, and its
answers are stored in the row of the workspace. If the same ticket is committed again, because the first result was
unknown, the stored answers are returned and nothing is written twice.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import TypeVar

import apsw
import msgspec

from holdfast.domain.errors import OwnerChanged, StorageError, StorageUnknown
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.messages import Message
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.domain.store_operations import (
    Admit,
    Answer,
    Briefing,
    DeleteSession,
    Receipt,
    Refusal,
    RunRecord,
    Snapshot,
    WorkspaceRecord,
    Write,
)
from holdfast.domain.usage import Stats
from holdfast.storage import workspace_table
from holdfast.storage.database import Database
from holdfast.storage.event_log import EventLog, Retention
from holdfast.storage.operations import execute
from holdfast.storage.packed_answers import PackedAnswers, pack_answers
from holdfast.storage.sqlite_tables import FileTable, MessageTable, RequestTable, RunTable, SessionTable
from holdfast.storage.stats import collect_stats
from holdfast.storage.writer_thread import Probe

__all__ = ["Batch", "Committed", "SqliteLedger", "WorkspaceTables", "commit_batch"]


class WorkspaceTables:
    """All tables of one workspace over one connection. Implements `operations.Tables`.

    Create one for each batch and each read: the tables cache the rows that they have read.
    """

    def __init__(self, connection: apsw.Connection, workspace: int) -> None:
        self.runs = RunTable(connection, workspace)
        self.messages = MessageTable(connection, workspace)
        self.sessions = SessionTable(connection, workspace, self.runs, self.messages)
        self.files = FileTable(connection, workspace)
        self.requests = RequestTable(connection, workspace)
        self.log = EventLog(connection, workspace)
        self.admission = self.runs.admission

    def clear_cache(self) -> None:
        """Discard cached rows after a rollback."""
        self.runs.clear_cache()
        self.sessions.clear_cache()
        self.messages.clear_cache()
        self.log.clear_cache()


class Batch(msgspec.Struct, frozen=True):
    """Writes of one workspace that are committed together. Each of them is done or refused on its own."""

    workspace: WorkspaceId
    epoch: int
    ticket: int
    writes: tuple[Write, ...]


class Committed(msgspec.Struct, frozen=True):
    """The answers of a batch, the key of its workspace, and the newest event number before and after it."""

    answers: Sequence[Answer]
    key: int
    before: int
    newest: int


def commit_batch(connection: apsw.Connection, batch: Batch, at: int) -> Committed:
    """Apply a batch and store its events with the time `at`. If the ticket was committed before, return its answers.

    A workspace that was closed properly refuses all writes: an unsynced write could be lost in a power cut after its
    events were published, and the next owner, which does not leave a gap after a clean end, would reuse their numbers.
    """
    row = workspace_table.require_owner(connection, batch.workspace, batch.epoch)
    if row.clean:
        raise OwnerChanged("The workspace was closed: open it again before writing to it.")
    rows = WorkspaceTables(connection, row.key)
    if batch.ticket == row.ticket:
        return Committed(_last_answers(connection, row, rows), row.key, row.newest, row.newest)
    # Only the answers of the last batch are stored.
    if batch.ticket < row.ticket:
        raise StorageUnknown("A later batch was already stored; the result of this one is no longer known.")
    answers = _apply_writes(connection, batch.writes, rows, row.newest)
    receipts = [answer for answer in answers if isinstance(answer, Receipt)]
    entries = [entry for receipt in receipts for entry in receipt.entries]
    rows.log.append(entries, at)
    workspace_table.advance(
        connection, row, event_count=len(entries), ticket=batch.ticket, answers=pack_answers(answers)
    )
    return Committed(answers, row.key, row.newest, row.newest + len(entries))


def _apply_writes(
    connection: apsw.Connection, writes: Sequence[Write], rows: WorkspaceTables, newest: int
) -> list[Answer]:
    """Apply the writes in order. Consecutive accepts share their look-ups and are inserted together."""
    answers: list[Answer] = []
    for are_admits, consecutive in groupby(writes, _is_plain_admit):
        group = list(consecutive)
        if are_admits and len(group) > 1:
            operations = [operation for write in group for operation in write.operations]
            rows.runs.begin_admissions([operation for operation in operations if isinstance(operation, Admit)])
        for write in group:
            answer = _apply(connection, write, rows, newest)
            if isinstance(answer, Receipt):
                newest += len(answer.entries)
            answers.append(answer)
        rows.runs.end_admissions()
    return answers


def _is_plain_admit(write: Write) -> bool:
    """Return True if the write is an accept that changes no other run."""
    if len(write.operations) != 1:
        return False
    operation = write.operations[0]
    return isinstance(operation, Admit) and operation.run.delivery != "interrupt"


def _apply(connection: apsw.Connection, write: Write, rows: WorkspaceTables, newest: int) -> Answer:
    """Apply one write, and roll it back if it is refused.

    A refused operation has stored nothing itself, so only a write of several operations needs a savepoint. A savepoint
    is expensive: SQLite copies each page that is changed after it.
    """
    if len(write.operations) < 2:
        return execute(write, rows, newest)
    connection.execute("SAVEPOINT write")
    answer = execute(write, rows, newest)
    if isinstance(answer, Refusal):
        connection.execute("ROLLBACK TO write")
        rows.clear_cache()
    connection.execute("RELEASE write")
    return answer


def _last_answers(
    connection: apsw.Connection, row: workspace_table.WorkspaceRow, rows: WorkspaceTables
) -> Sequence[Answer]:
    """Return the answers of the last batch, restored from their stored form and the log."""

    def prompt(run_id: RunId) -> str:
        run = rows.runs.get(run_id)
        return "" if run is None else run.prompt

    packed = PackedAnswers(workspace_table.last_answers(connection, row))
    return packed.unpack(row.newest, rows.log.after, prompt)


T = TypeVar("T")

_ENDED_IN_SNAPSHOT = 50
"""Number of ended runs in a snapshot."""


def _system_ms() -> int:
    return time.time_ns() // 1_000_000


class SqliteLedger:
    """The ledger of one data directory, for all its workspaces. The constructor opens and locks it, and blocks.

    `now_ms` is the clock for the times of events. `probe` is described at `Writer`, `vfs` at `Database.open`.
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
        # Keys of workspaces whose log has to be pruned. Used by the writer thread only.
        self._due: set[int] = set()
        self._database = Database.open(data_dir, maintenance=self._prune, probe=probe, vfs=vfs)

    @property
    def database(self) -> Database:
        """The database, for tests and measurements."""
        return self._database

    async def close(self) -> None:
        """Finish the submitted work, then close. Later calls raise `StorageUnavailable`."""
        await asyncio.to_thread(self._database.close)

    async def problem(self) -> str:
        """Return why nothing can be stored although the disk works, or an empty string."""
        if not self._database.problem():
            return ""
        try:
            # Only the writer can decide: at this moment its own checkpoint may be changing the file.
            await self._database.write(lambda _: None, sync=False)
        except StorageError as error:
            return str(error)
        return ""

    async def open_workspace(self, path: str) -> WorkspaceRecord:
        """Take over the workspace at `path` with a new epoch. Writes of earlier epochs are refused from now on."""

        def take_over(connection: apsw.Connection) -> WorkspaceRecord:
            row = workspace_table.take_over(connection, path)
            self._due.add(row.key)
            oldest = EventLog(connection, row.key).oldest()
            return WorkspaceRecord(row.id, path, row.epoch, oldest or row.newest + 1, row.newest)

        return await self._database.write(take_over, sync=True)

    async def close_workspace(self, workspace: WorkspaceId, epoch: int) -> None:
        """Mark the workspace as closed properly. No effect if `epoch` is not the current one."""
        await self._database.write(
            lambda connection: workspace_table.mark_clean(connection, workspace, epoch),
            sync=True,
        )

    async def unfinished_workspaces(self) -> Sequence[str]:
        """Return the paths of the workspaces with runs that have not ended."""
        return await self._database.read(workspace_table.paths_with_open_runs)

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        """Commit writes as one batch and return a receipt or a refusal for each. Repeatable with the same ticket.

        Raises `OwnerChanged` if `epoch` is not the current one, and other `StorageError`s.
        """
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
        """Return ticket and answers of the last stored batch.

        Runs in the writer thread and therefore after all batches that were submitted before.
        """

        def read(connection: apsw.Connection) -> tuple[int, Sequence[Answer]]:
            row = workspace_table.require_owner(connection, workspace, epoch)
            return row.ticket, _last_answers(connection, row, WorkspaceTables(connection, row.key))

        return await self._database.write(read, sync=False)

    async def events_after(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Return numbers and bodies of the events after `cursor`, at most `limit`."""
        return await self._read(workspace, lambda rows: rows.log.after(cursor, limit))

    async def dated_events(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, int, bytes]]:
        """Return numbers, times and bodies of the events after `cursor`, at most `limit`."""
        return await self._read(workspace, lambda rows: rows.log.dated_after(cursor, limit))

    async def bounds(self, workspace: WorkspaceId) -> tuple[int, int]:
        """Return the numbers of the oldest and the newest event. The oldest is larger if the log is empty."""

        def read(connection: apsw.Connection) -> tuple[int, int]:
            row = workspace_table.find(connection, workspace)
            if row is None:
                return 1, 0
            return EventLog(connection, row.key).oldest() or row.newest + 1, row.newest

        return await self._database.read(read)

    async def snapshot(self, workspace: WorkspaceId, session: SessionId | None) -> Snapshot:
        """Return the state of a workspace at one cursor, with the messages of one session."""

        def read(connection: apsw.Connection) -> Snapshot:
            row = workspace_table.find(connection, workspace)
            if row is None:
                return Snapshot(0, 0, (), (), ())
            rows = WorkspaceTables(connection, row.key)
            runs = rows.runs.all_open() + rows.runs.recently_ended(_ENDED_IN_SNAPSHOT)
            return Snapshot(
                cursor=row.newest,
                epoch=row.epoch,
                sessions=tuple(rows.sessions.every()),
                messages=() if session is None else tuple(rows.messages.of_session(session)),
                runs=tuple(sorted(runs, key=lambda run: run.number)),
            )

        return await self._database.read(read)

    async def sessions(self, workspace: WorkspaceId) -> Sequence[Session]:
        """Return the sessions without a parent, latest change first."""
        return await self._read(workspace, lambda rows: rows.sessions.top_level())

    async def session(self, workspace: WorkspaceId, session: SessionId) -> Session | None:
        """Return a session, or None."""
        return await self._read(workspace, lambda rows: rows.sessions.get(session))

    async def messages(self, workspace: WorkspaceId, session: SessionId) -> Sequence[Message]:
        """Return the messages of a session in conversation order."""
        return await self._read(workspace, lambda rows: rows.messages.of_session(session))

    async def messages_of_run(self, workspace: WorkspaceId, run: RunId) -> Sequence[Message]:
        """Return the messages of a run in conversation order."""
        return await self._read(workspace, lambda rows: rows.messages.of_run(run))

    async def run(self, workspace: WorkspaceId, run: RunId) -> RunRecord | None:
        """Return a run with its input, or None."""
        return await self._read(workspace, lambda rows: rows.runs.record(run))

    async def briefing(self, workspace: WorkspaceId, run: RunId) -> Briefing | None:
        """Return a run with its session and the session's messages from one snapshot, or None."""

        def read(rows: WorkspaceTables) -> Briefing | None:
            record = rows.runs.record(run)
            session = None if record is None else rows.sessions.get(record.run.session_id)
            if record is None or session is None:
                return None
            return Briefing(record, session, tuple(rows.messages.of_session(session.id)))

        return await self._read(workspace, read)

    async def open_runs(self, workspace: WorkspaceId) -> Sequence[Run]:
        """Return all runs without an outcome, in queue order."""
        return await self._read(workspace, lambda rows: rows.runs.all_open())

    async def runs(self, workspace: WorkspaceId, session: SessionId | None, limit: int, before: int) -> Sequence[Run]:
        """Return runs of one session or of all, newest first. `before` is a number, 0 for the newest page."""
        return await self._read(workspace, lambda rows: rows.runs.page(session, limit, before))

    async def files(self, workspace: WorkspaceId, session: SessionId) -> Sequence[FileVersion]:
        """Return all file versions of a session by path and version."""
        return await self._read(workspace, lambda rows: rows.files.of_session(session))

    async def read_mark(self, workspace: WorkspaceId, session: SessionId, path: str) -> ReadMark | None:
        """Return the read mark of a file, or None."""
        return await self._read(workspace, lambda rows: rows.files.read_mark(session, path))

    async def read_marks(self, workspace: WorkspaceId, session: SessionId) -> Sequence[ReadMark]:
        """Return the read marks of a session, latest first."""
        return await self._read(workspace, lambda rows: rows.files.read_marks(session))

    async def stats(self, workspace: WorkspaceId | None, zone: int = 0) -> Stats:
        """Return usage figures of one workspace or of all, by a clock that is `zone` minutes ahead of UTC."""
        return await self._database.read(lambda connection: collect_stats(connection, workspace, zone))

    async def _read(self, workspace: WorkspaceId, read: Callable[[WorkspaceTables], T]) -> T:
        """Read from the tables of a workspace. An unknown workspace reads as an empty one: no row has the key 0."""

        def work(connection: apsw.Connection) -> T:
            row = workspace_table.find(connection, workspace)
            return read(WorkspaceTables(connection, 0 if row is None else row.key))

        return await self._database.read(work)

    def _prune(self, connection: apsw.Connection) -> None:
        for key in tuple(self._due):
            with connection:
                EventLog(connection, key).prune(self._retention, self._now_ms())
            # If pruning fails, the key stays in the set and a later group tries again.
            self._due.discard(key)
