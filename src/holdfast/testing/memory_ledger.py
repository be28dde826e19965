"""The store in memory: the contract of the SQLite store without threads, clock and randomness.

It can be slow (`pace`), it can fail (`fail`), and `lose_power` discards everything that was not synced.
"""

from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from holdfast.domain.errors import OwnerChanged, StorageUnavailable, StorageUnknown
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.messages import Message
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.domain.store_operations import Answer, Briefing, Refusal, RunRecord, Snapshot, WorkspaceRecord, Write
from holdfast.storage.event_log import Retention
from holdfast.storage.operations import execute
from holdfast.storage.undo_log import Journal, Table
from holdfast.testing.memory_tables import MemoryTables

__all__ = ["MemoryLedger"]

T = TypeVar("T")
_JUMP = 10_000
_ENDED_IN_SNAPSHOT = 50


async def _no_delay() -> None:
    """Do not delay."""


class _Owner(msgspec.Struct, frozen=True):
    """The row of a workspace."""

    id: WorkspaceId
    path: str
    epoch: int = 0
    newest: int = 0
    clean: bool = True
    ticket: int = 0
    answers: tuple[Answer, ...] = ()


class _Job(Generic[T]):
    """A job of the queue. It keeps its result until the caller reads it."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._results: list[T] = []
        self._error: Exception | None = None

    def run(self) -> None:
        try:
            self._results.append(self._work())
        except Exception as error:
            self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        if not self._results:
            raise StorageUnknown
        return self._results[0]


class MemoryLedger:
    """A store in memory with the contract of the SQLite store.

    `pace` is awaited before and after each effect. `fail` is called before each commit; an error that it returns is
    raised and nothing is written, except for `StorageUnknown`, where `survives` decides whether the write takes effect.
    Writes take effect in the order of their submission, even if they are delayed. `jump` is the distance by which the
    numbering skips ahead after an unclean end: 0 as on PostgreSQL, where no number is lost.
    """

    def __init__(
        self,
        *,
        retention: Retention | None = None,
        now_ms: Callable[[], int] = lambda: 0,
        pace: Callable[[], Awaitable[None]] = _no_delay,
        fail: Callable[[], Exception | None] = lambda: None,
        survives: Callable[[], bool] = lambda: True,
        jump: int = _JUMP,
    ) -> None:
        self._retention = retention or Retention()
        self._now_ms = now_ms
        self._pace = pace
        self._fail = fail
        self._survives = survives
        self._jump = jump
        self._journal = Journal()
        self._owners: Table[WorkspaceId, _Owner] = Table(self._journal)
        self._tables: dict[WorkspaceId, MemoryTables] = {}
        self._waiting: deque[_Job[Any]] = deque()

    def lose_power(self) -> None:
        """Discard everything written since the last synced write, and jobs in progress, as a power failure does."""
        self._waiting.clear()
        self._journal.back_to(0)

    async def open_workspace(self, path: str) -> WorkspaceRecord:
        """Open a workspace with a new epoch."""
        return await self._run_in_order(lambda: self._change_owner(path))

    async def close_workspace(self, workspace: WorkspaceId, epoch: int) -> None:
        """Close a workspace cleanly."""
        await self._run_in_order(lambda: self._mark_clean(workspace, epoch))

    async def unfinished_workspaces(self) -> Sequence[str]:
        """Return the paths of workspaces with runs that have not ended."""

        def read() -> list[str]:
            return [owner.path for owner in self._owners if self._tables[owner.id].runs.all_open()]

        return await self._read_after_pace(read)

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        """Commit a batch and return an answer for each write."""
        batch = tuple(writes)
        return await self._run_in_order(lambda: self._commit(workspace, epoch, ticket, batch))

    async def join_workspace(self, path: str) -> WorkspaceRecord:
        """Open a workspace without becoming its owner."""
        return await self._run_in_order(lambda: self._join(path))

    async def accept(self, workspace: WorkspaceId, writes: Sequence[Write]) -> Sequence[Answer]:
        """Store inputs of a node that need not own the workspace."""
        inputs = tuple(writes)
        return await self._run_in_order(lambda: self._accept(workspace, inputs))

    async def inputs_after(
        self, workspace: WorkspaceId, epoch: int, cursor: int, limit: int
    ) -> Sequence[tuple[int, bytes]]:
        """Return events after the cursor to the owner of this epoch."""

        def look() -> list[tuple[int, bytes]]:
            self._require_owner(workspace, epoch)
            return self._tables[workspace].log.after(cursor, limit)

        return await self._read_after_pace(look)

    async def last_batch(self, workspace: WorkspaceId, epoch: int) -> tuple[int, Sequence[Answer]]:
        """Return the ticket and the answers of the last batch."""
        owner = await self._run_in_order(lambda: self._require_owner(workspace, epoch))
        return owner.ticket, owner.answers

    async def events_after(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Return numbered events after a cursor."""
        return await self._read(workspace, lambda tables: tables.log.after(cursor, limit))

    async def dated_events(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, int, bytes]]:
        """Return numbered events after a cursor with their times."""
        return await self._read(workspace, lambda tables: tables.log.dated_after(cursor, limit))

    async def bounds(self, workspace: WorkspaceId) -> tuple[int, int]:
        """Return the oldest stored and the newest number."""

        def read() -> tuple[int, int]:
            owner = self._owners.get(workspace)
            return (1, 0) if owner is None else (self._oldest(owner), owner.newest)

        return await self._read_after_pace(read)

    async def snapshot(self, workspace: WorkspaceId, session: SessionId | None) -> Snapshot:
        """Return the state at one point of the log."""
        return await self._read_after_pace(lambda: self._snapshot(workspace, session))

    async def sessions(self, workspace: WorkspaceId) -> Sequence[Session]:
        """Return the top-level sessions."""

        def read(tables: MemoryTables) -> list[Session]:
            return [session for session in tables.sessions.every() if not session.parent_session_id]

        return await self._read(workspace, read)

    async def session(self, workspace: WorkspaceId, session: SessionId) -> Session | None:
        """Return a session, or None."""
        return await self._read(workspace, lambda tables: tables.sessions.get(session))

    async def messages(self, workspace: WorkspaceId, session: SessionId) -> Sequence[Message]:
        """Return the messages of a session."""
        return await self._read(workspace, lambda tables: tables.messages.of_session(session))

    async def messages_of_run(self, workspace: WorkspaceId, run: RunId) -> Sequence[Message]:
        """Return the messages of a run."""
        return await self._read(workspace, lambda tables: tables.messages.of_run(run))

    async def run(self, workspace: WorkspaceId, run: RunId) -> RunRecord | None:
        """Return a run with its input, or None."""
        return await self._read(workspace, lambda tables: tables.runs.record(run))

    async def briefing(self, workspace: WorkspaceId, run: RunId) -> Briefing | None:
        """Return a run with its session and conversation, or None."""

        def read(tables: MemoryTables) -> Briefing | None:
            record = tables.runs.record(run)
            session = None if record is None else tables.sessions.get(record.run.session_id)
            if record is None or session is None:
                return None
            return Briefing(record, session, tuple(tables.messages.of_session(session.id)))

        return await self._read(workspace, read)

    async def open_runs(self, workspace: WorkspaceId) -> Sequence[Run]:
        """Return the runs without an end."""
        return await self._read(workspace, lambda tables: tables.runs.all_open())

    async def runs(self, workspace: WorkspaceId, session: SessionId | None, limit: int, before: int) -> Sequence[Run]:
        """Return runs, newest first."""

        def read(tables: MemoryTables) -> list[Run]:
            found = [run for run in tables.runs.every() if session in {None, run.session_id}]
            return [run for run in reversed(found) if not before or run.number < before][:limit]

        return await self._read(workspace, read)

    async def files(self, workspace: WorkspaceId, session: SessionId) -> Sequence[FileVersion]:
        """Return the file versions of a session."""
        return await self._read(workspace, lambda tables: tables.files.of_session(session))

    async def read_mark(self, workspace: WorkspaceId, session: SessionId, path: str) -> ReadMark | None:
        """Return the last read of a file, or None."""
        return await self._read(workspace, lambda tables: tables.files.read_mark(session, path))

    async def read_marks(self, workspace: WorkspaceId, session: SessionId) -> Sequence[ReadMark]:
        """Return the read marks of a session."""
        return await self._read(workspace, lambda tables: tables.files.read_marks(session))

    async def _read_after_pace(self, read: Callable[[], T]) -> T:
        await self._pace()
        result = read()
        await self._pace()
        return result

    async def _read(self, workspace: WorkspaceId, read: Callable[[MemoryTables], T]) -> T:
        """Read the tables of a workspace. An unknown workspace is empty."""
        return await self._read_after_pace(lambda: read(self._tables.get(workspace) or MemoryTables(Journal())))

    async def _run_in_order(self, work: Callable[[], T]) -> T:
        """Run a job after all earlier ones. The first caller that is scheduled runs the waiting jobs of others, too."""
        job = _Job(work)
        self._waiting.append(job)
        try:
            await self._pace()
        finally:
            # Cancelling a caller does not cancel its job.
            while job in self._waiting:
                self._waiting.popleft().run()
        await self._pace()
        return job.result()

    def _change_owner(self, path: str) -> WorkspaceRecord:
        owner = self._row(path)
        newest = owner.newest if owner.clean else owner.newest + self._jump
        owner = _Owner(owner.id, path, owner.epoch + 1, newest, clean=False)
        self._owners.set(owner.id, owner)
        record = WorkspaceRecord(owner.id, path, owner.epoch, self._oldest(owner), newest)
        self._prune(owner.id)
        self._journal.forget()
        return record

    def _join(self, path: str) -> WorkspaceRecord:
        owner = self._row(path)
        self._journal.forget()
        return WorkspaceRecord(owner.id, path, owner.epoch, self._oldest(owner), owner.newest)

    def _row(self, path: str) -> _Owner:
        """Return the row of a directory, which is created the first time."""
        owner = next((owner for owner in self._owners if owner.path == path), None)
        if owner is None:
            owner = _Owner(WorkspaceId(f"workspace-{len(self._tables) + 1}"), path)
            self._tables[owner.id] = MemoryTables(self._journal)
            self._owners.set(owner.id, owner)
        return owner

    def _mark_clean(self, workspace: WorkspaceId, epoch: int) -> None:
        owner = self._owners.get(workspace)
        if owner is not None and owner.epoch == epoch:
            self._owners.set(workspace, msgspec.structs.replace(owner, clean=True))
            self._journal.forget()

    def _require_owner(self, workspace: WorkspaceId, epoch: int) -> _Owner:
        owner = self._owners.get(workspace)
        if owner is None or owner.epoch != epoch:
            raise OwnerChanged
        return owner

    def _commit(self, workspace: WorkspaceId, epoch: int, ticket: int, writes: tuple[Write, ...]) -> tuple[Answer, ...]:
        def apply() -> tuple[Answer, ...]:
            return self._apply_batch(self._require_owner(workspace, epoch), ticket, writes)

        return self._transact(apply, is_synced=any(write.sync for write in writes))

    def _accept(self, workspace: WorkspaceId, writes: tuple[Write, ...]) -> tuple[Answer, ...]:
        def apply() -> tuple[Answer, ...]:
            owner = self._owners.get(workspace)
            if owner is None:
                raise StorageUnavailable("There is no such workspace.")
            newest, answers = self._apply_writes(owner, writes, is_input=True)
            self._owners.set(owner.id, msgspec.structs.replace(owner, newest=newest))
            self._prune_if_due(owner, newest)
            return answers

        return self._transact(apply, is_synced=True)

    def _transact(self, apply: Callable[[], tuple[Answer, ...]], *, is_synced: bool) -> tuple[Answer, ...]:
        error = self._fail()
        if error is not None and not (isinstance(error, StorageUnknown) and self._survives()):
            raise error
        mark = self._journal.mark()
        try:
            answers = apply()
        except Exception:
            self._journal.back_to(mark)
            raise
        if is_synced:
            self._journal.forget()
        if error is not None:
            raise error
        return answers

    def _apply_batch(self, owner: _Owner, ticket: int, writes: tuple[Write, ...]) -> tuple[Answer, ...]:
        if owner.clean:
            raise OwnerChanged("The workspace was closed: open it again before writing to it.")
        if ticket == owner.ticket:
            return owner.answers
        if ticket < owner.ticket:
            raise StorageUnknown("A later batch was written already; the result of this one is no longer known.")
        newest, done = self._apply_writes(owner, writes, is_input=False)
        self._owners.set(owner.id, msgspec.structs.replace(owner, newest=newest, ticket=ticket, answers=done))
        self._prune_if_due(owner, newest)
        return done

    def _apply_writes(
        self, owner: _Owner, writes: tuple[Write, ...], *, is_input: bool
    ) -> tuple[int, tuple[Answer, ...]]:
        """Apply the writes and store their events. Return the newest number and the answers."""
        newest = owner.newest
        answers: list[Answer] = []
        for write in writes:
            mark = self._journal.mark()
            answer = execute(write, self._tables[owner.id], newest, is_input=is_input)
            if isinstance(answer, Refusal):
                self._journal.back_to(mark)
            else:
                self._tables[owner.id].log.append(answer.entries, self._now_ms())
                newest += len(answer.entries)
            answers.append(answer)
        return newest, tuple(answers)

    def _snapshot(self, workspace: WorkspaceId, session: SessionId | None) -> Snapshot:
        owner = self._owners.get(workspace)
        if owner is None:
            return Snapshot(0, 0, (), (), ())
        tables = self._tables[workspace]
        runs = tables.runs.every()
        recent = {run.run_id for run in [run for run in runs if run.outcome is not None][-_ENDED_IN_SNAPSHOT:]}
        return Snapshot(
            cursor=owner.newest,
            epoch=owner.epoch,
            sessions=tuple(tables.sessions.every()),
            messages=() if session is None else tuple(tables.messages.of_session(session)),
            runs=tuple(run for run in runs if run.outcome is None or run.run_id in recent),
        )

    def _oldest(self, owner: _Owner) -> int:
        return self._tables[owner.id].log.oldest() or owner.newest + 1

    def _prune_if_due(self, before: _Owner, newest: int) -> None:
        if self._retention.is_due(before.newest, newest):
            self._prune(before.id)

    def _prune(self, workspace: WorkspaceId) -> None:
        tables = self._tables[workspace]
        unended = min((run.number for run in tables.runs.all_open()), default=None)
        tables.log.prune(self._retention, self._now_ms(), unended)
