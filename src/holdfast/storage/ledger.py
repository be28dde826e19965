"""The ledger on SQLite. Its contract is the engine's `Ledger` port."""

import asyncio
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import apsw

from holdfast.domain.errors import StorageError
from holdfast.domain.files import FileVersion, ReadMark
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.ledger import Answer, Briefing, DeleteSession, RunRecord, Snapshot, WorkspaceRecord, Write
from holdfast.domain.messages import Message
from holdfast.domain.runs import Run
from holdfast.domain.sessions import Session
from holdfast.domain.stats import Stats
from holdfast.storage import workspaces
from holdfast.storage.answers import unpack
from holdfast.storage.batches import Batch, commit_batch
from holdfast.storage.database import Database
from holdfast.storage.eventlog import EventLog
from holdfast.storage.insights import counted
from holdfast.storage.retention import Retention
from holdfast.storage.rows import Rows
from holdfast.storage.writer import Probe

__all__ = ["SqliteLedger"]

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
            row = workspaces.take_over(connection, path)
            self._due.add(row.key)
            oldest = EventLog(connection, row.key).oldest()
            return WorkspaceRecord(row.id, path, row.epoch, oldest or row.newest + 1, row.newest)

        return await self._database.write(take_over, sync=True)

    async def close_workspace(self, workspace: WorkspaceId, epoch: int) -> None:
        await self._database.write(
            lambda connection: workspaces.mark_clean(connection, workspace, epoch),
            sync=True,
        )

    async def unfinished_workspaces(self) -> Sequence[str]:
        return await self._database.read(workspaces.unfinished)

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
            row = workspaces.owned(connection, workspace, epoch)
            rows = Rows(connection, row.key)
            return row.ticket, unpack(workspaces.answers(connection, row), row.newest, rows.log, rows.runs)

        return await self._database.write(look, sync=False)

    async def events_after(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, bytes]]:
        return await self._read(workspace, lambda rows: rows.log.after(cursor, limit))

    async def dated_events(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, int, bytes]]:
        return await self._read(workspace, lambda rows: rows.log.dated_after(cursor, limit))

    async def bounds(self, workspace: WorkspaceId) -> tuple[int, int]:
        def look(connection: apsw.Connection) -> tuple[int, int]:
            row = workspaces.find(connection, workspace)
            if row is None:
                return 1, 0
            return EventLog(connection, row.key).oldest() or row.newest + 1, row.newest

        return await self._database.read(look)

    async def snapshot(self, workspace: WorkspaceId, session: SessionId | None) -> Snapshot:
        def look(connection: apsw.Connection) -> Snapshot:
            row = workspaces.find(connection, workspace)
            if row is None:
                return Snapshot(0, 0, (), (), ())
            rows = Rows(connection, row.key)
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
        def look(rows: Rows) -> Briefing | None:
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

    async def _read(self, workspace: WorkspaceId, look: Callable[[Rows], T]) -> T:
        """An unknown workspace reads as an empty one: no row has the key 0."""

        def work(connection: apsw.Connection) -> T:
            row = workspaces.find(connection, workspace)
            return look(Rows(connection, 0 if row is None else row.key))

        return await self._database.read(work)

    def _prune(self, connection: apsw.Connection) -> None:
        for key in tuple(self._due):
            with connection:
                EventLog(connection, key).prune(self._retention, self._now_ms())
            # One that fails stays due, and is tried again after a later group.
            self._due.discard(key)
