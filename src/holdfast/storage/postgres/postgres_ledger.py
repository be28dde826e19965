"""The ledger on PostgreSQL. Its contract is the engine's `Ledger` port.

PostgreSQL orders the writes of all servers: the row of a workspace has a revision, and a batch applies only to the
revision that it was decided on. A batch takes three steps. *Load*: one statement reads the workspace and every row that
the batch may touch. *Decide*: `operations.execute` on these rows in memory, as for every store. *Apply*: one call of a
SQL function in its own transaction, which compares the epoch and the revision, then changes the rows. If another server
wrote in between, the batch is loaded and decided again. The client never holds a transaction open, so a server that is
suspended in the middle of a batch blocks nobody.

After an unknown outcome the call may still be under way in PostgreSQL. `last_batch` therefore increases the revision
before it returns: a call that has not taken effect by then never will.

Batches of one workspace are executed one after another. Inputs that wait meanwhile are applied together.
"""

import asyncio
import os
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from holdfast.domain.errors import OwnerChanged, StorageError, StorageUnavailable, StorageUnknown
from holdfast.domain.ids import RunId, WorkspaceId
from holdfast.domain.store_operations import Answer, Entry, Receipt, WorkspaceRecord, Write
from holdfast.storage.event_log import PRUNE_INTERVAL, Retention
from holdfast.storage.operations import check_inputs, execute
from holdfast.storage.packed_answers import PackedAnswers, pack_answers
from holdfast.storage.postgres.apply_call import APPLY, apply_arguments, has_changes, load_statement
from holdfast.storage.postgres.asyncpg_errors import unreachable
from holdfast.storage.postgres.batch_keys import keys_of, searchable
from holdfast.storage.postgres.connection_pool import Pool
from holdfast.storage.postgres.ledger_reads import Reads, statements
from holdfast.storage.postgres.loaded_tables import LoadedTables, WorkspaceState
from holdfast.storage.postgres.open_store import report_of
from holdfast.storage.postgres.store_report import StoreReport
from holdfast.tasks import TaskOwner

__all__ = ["PostgresLedger"]

T = TypeVar("T")

_APPLIED = 0
_FENCED = 1


def _system_ms() -> int:
    return time.time_ns() // 1_000_000


class _WorkQueue:
    """Jobs of one workspace, executed one after another. A job runs to its end even if its caller no longer waits for
    it, because a write that was sent takes effect in any case.
    """

    def __init__(self, tasks: TaskOwner) -> None:
        self._tasks = tasks
        self._jobs: deque[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]]] = deque()
        self._is_running = False

    def submit(self, work: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        """Queue a job and return a future of its result."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.append((work, future))
        if not self._is_running:
            self._is_running = True
            self._tasks.start(self._drain(), name="postgres")
        return future

    async def _drain(self) -> None:
        try:
            while self._jobs:
                work, future = self._jobs.popleft()
                await _execute(work, future)
        finally:
            self._is_running = False


async def _execute(work: Callable[[], Awaitable[Any]], future: asyncio.Future[Any]) -> None:
    try:
        result = await work()
    except Exception as error:
        if not future.done():
            future.set_exception(error)
            # Mark the exception as retrieved: the caller may have been cancelled.
            future.exception()
        return
    if not future.done():
        future.set_result(result)


class _InputGroup:
    """Inputs of one workspace that wait to be applied together, and the future of all their answers."""

    def __init__(self) -> None:
        self.writes: list[Write] = []
        self.answers: asyncio.Future[Sequence[Answer]] | None = None


class _Batch(msgspec.Struct, frozen=True):
    """A batch of the owner, or inputs, which have neither epoch nor ticket."""

    writes: tuple[Write, ...]
    epoch: int | None = None
    ticket: int | None = None


class PostgresLedger(Reads):
    """The ledger of one server, for all workspaces in the database. `place` names the disk that the paths are on."""

    def __init__(
        self,
        pool: Pool,
        place: str,
        *,
        retention: Retention | None = None,
        now_ms: Callable[[], int] = _system_ms,
        on_close: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(pool)
        self._on_close = on_close
        self.place = place
        """The place of new workspaces, and of those that are found by their path."""
        self._retention = retention or Retention()
        self._now_ms = now_ms
        self._tasks = TaskOwner()
        self._queues: dict[int, _WorkQueue] = {}
        self._groups: dict[int, _InputGroup] = {}
        self._is_closed = False
        self.fenced_writes = 0
        """The number of writes that were refused because another server had taken over the workspace."""

    async def close(self) -> None:
        """Finish the submitted work, then close. Later calls raise `StorageUnavailable`."""
        self._is_closed = True
        try:
            await self._tasks.drain()
            await self.pool.close()
        finally:
            self._on_close()

    async def problem(self) -> str:
        """Return why nothing can be stored, or an empty string."""
        try:
            await self.pool.ping()
        except StorageError as error:
            return str(error)
        return ""

    async def report(self) -> StoreReport:
        """Return the state of the database."""
        return await report_of(self.pool)

    async def open_workspace(self, path: str) -> WorkspaceRecord:
        """Take over the workspace at `path` with a new epoch. Writes of earlier epochs are refused from now on."""
        arguments = (secrets.token_hex(16), self.place, os.fsencode(path))
        row = await self.pool.write(statements["open"], *arguments)
        if row is None:
            raise StorageUnavailable
        workspace = WorkspaceId(row["id"])
        oldest, _ = await self.bounds(workspace)
        await self._prune(row["key"])
        return WorkspaceRecord(workspace, path, row["epoch"], oldest, row["newest"])

    async def join_workspace(self, path: str) -> WorkspaceRecord:
        """Return a workspace without becoming its owner, creating it if necessary."""
        arguments = (secrets.token_hex(16), self.place, os.fsencode(path))
        row = await self.pool.write(statements["join"], *arguments)
        if row is None:
            raise StorageUnavailable
        return WorkspaceRecord(
            WorkspaceId(row["id"]), path, row["epoch"], row["oldest"] or row["newest"] + 1, row["newest"]
        )

    async def own_workspace(self, workspace: WorkspaceId, epoch: int) -> WorkspaceRecord:
        """Open a workspace that this server owns under `epoch`. Batches of an earlier opening with the same epoch can
        no longer take effect. Raises `OwnerChanged` if another server owns it.
        """
        row = await self.pool.write(statements["own"], workspace, epoch)
        if row is None:
            raise OwnerChanged
        oldest, _ = await self.bounds(workspace)
        await self._prune(row["key"])
        return WorkspaceRecord(workspace, os.fsdecode(row["path"]), epoch, oldest, row["newest"])

    async def find_workspace(self, workspace: WorkspaceId) -> WorkspaceRecord | None:
        """Return a workspace of any place, None if there is none with this id."""
        rows = await self.pool.fetch(statements["record"], searchable(workspace))
        if not rows:
            return None
        row = rows[0]
        oldest = row["oldest"] or row["newest"] + 1
        return WorkspaceRecord(workspace, os.fsdecode(row["path"]), row["epoch"], oldest, row["newest"])

    async def close_workspace(self, workspace: WorkspaceId, epoch: int) -> None:
        """Refuse later commits of this epoch. No effect if `epoch` is not the current one."""
        key = await self.key(workspace)
        await self._queue(key).submit(lambda: self.pool.write(statements["close"], key, epoch))

    async def unfinished_workspaces(self) -> Sequence[str]:
        """Return the paths of the workspaces of this place with runs that have not ended."""
        rows = await self.pool.fetch(statements["unfinished"], self.place)
        return [os.fsdecode(row["path"]) for row in rows]

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        """Commit writes as one batch and return a receipt or a refusal for each. Repeatable with the same ticket.

        Raises `OwnerChanged` if `epoch` is not the current one, and other `StorageError`s.
        """
        batch = _Batch(tuple(writes), epoch, ticket)
        key = await self._known_key(workspace)
        try:
            return await self._queue(key).submit(lambda: self._apply(key, batch))
        except OwnerChanged:
            self.fenced_writes += 1
            raise

    async def last_batch(self, workspace: WorkspaceId, epoch: int) -> tuple[int, Sequence[Answer]]:
        """Return ticket and answers of the last stored batch, after every earlier commit. A commit whose outcome was
        unknown can no longer take effect afterwards.
        """
        key = await self._known_key(workspace)
        return await self._queue(key).submit(lambda: self._last_batch(key, epoch))

    async def accept(self, workspace: WorkspaceId, writes: Sequence[Write]) -> Sequence[Answer]:
        """Store inputs of any server, whether or not the workspace has an owner. Inputs that are submitted while a
        batch is under way are applied together. Raises `ValueError` for operations of an owner.

        After `StorageUnknown` the caller reads the state. The inputs can no longer take effect then, unless the
        database could not be reached: `settle` waits for that.
        """
        for write in writes:
            check_inputs(write)
        key = await self._known_key(workspace)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _InputGroup()
            group.answers = self._queue(key).submit(lambda: self._store_inputs(key))
        start = len(group.writes)
        group.writes.extend(writes)
        assert group.answers is not None
        # The future belongs to all callers of the group: none of them may cancel it.
        answers = await asyncio.shield(group.answers)
        return answers[start : start + len(writes)]

    async def settle(self, workspace: WorkspaceId) -> None:
        """Return after every earlier input of an unknown outcome has taken effect or can no longer do so."""
        key = await self._known_key(workspace)
        await self.pool.write(statements["settle"], key)

    async def _known_key(self, workspace: WorkspaceId) -> int:
        if self._is_closed:
            raise unreachable()
        return await self.key(workspace)

    def _queue(self, key: int) -> _WorkQueue:
        if key not in self._queues:
            self._queues[key] = _WorkQueue(self._tasks)
        return self._queues[key]

    async def _store_inputs(self, key: int) -> Sequence[Answer]:
        batch = _Batch(tuple(self._groups.pop(key).writes))
        try:
            return await self._apply(key, batch)
        except StorageUnknown:
            with suppress(StorageError):
                await self.pool.write(statements["settle"], key)
            raise

    async def _apply(self, key: int, batch: _Batch) -> Sequence[Answer]:
        """Load, decide and apply a batch, again whenever another server has written in between."""
        keys = keys_of(batch.writes)
        while True:
            statement, arguments = load_statement(key, keys)
            tables = LoadedTables(keys, await self.pool.fetch(statement, *arguments))
            state = _require_state(tables, batch)
            if batch.ticket is not None and batch.ticket == state.ticket:
                return (await self._last_batch(key, state.epoch))[1]
            decision = _decide(batch, tables, state)
            if batch.ticket is None and not has_changes(tables, decision.entries):
                return decision.answers
            outcome = await self._call_apply(key, batch, decision)
            if outcome == _FENCED:
                raise OwnerChanged
            if outcome == _APPLIED:
                self._prune_if_due(key, state.newest, state.newest + len(decision.entries))
                return decision.answers

    async def _call_apply(self, key: int, batch: _Batch, decision: "_Decision") -> int:
        is_owner = batch.ticket is not None
        row = await self.pool.write(
            APPLY,
            key,
            batch.epoch,
            decision.state.revision,
            batch.ticket,
            pack_answers(decision.answers) if is_owner else None,
            bool(decision.entries) or any(write.sync for write in batch.writes),
            self._now_ms(),
            *apply_arguments(decision.tables, decision.entries),
        )
        return _FENCED if row is None else int(row[0])

    async def _last_batch(self, key: int, epoch: int) -> tuple[int, Sequence[Answer]]:
        row = await self.pool.write(statements["last_batch"], key, epoch)
        if row is None:
            raise OwnerChanged
        packed = PackedAnswers(row["answers"])
        before = row["answered"] - packed.event_count
        events = await self.pool.fetch(statements["events"], key, before, packed.event_count)
        prompts = await self._prompts(key, packed.runs_without_prompt())
        rows = [(event["number"], bytes(event["body"])) for event in events]
        answers = packed.unpack(
            row["answered"],
            lambda after, limit: [item for item in rows if after < item[0] <= after + limit],
            lambda run: prompts.get(run, ""),
        )
        return row["ticket"], answers

    async def _prompts(self, key: int, runs: Sequence[RunId]) -> dict[RunId, str]:
        if not runs:
            return {}
        rows = await self.pool.fetch(statements["prompts"], key, list(runs))
        return {RunId(row["run_id"]): row["prompt"].decode() for row in rows}

    def _prune_if_due(self, key: int, before: int, newest: int) -> None:
        """Prune the log before the next batch, without delaying the answers of this one."""
        if self._retention.is_due(before, newest):
            self._queue(key).submit(lambda: self._prune(key))

    async def _prune(self, key: int) -> None:
        """Prune the log. A failure is only logged: a later batch repeats it."""
        cutoff = self._retention.cutoff_ms(self._now_ms())
        with suppress(StorageError):
            await self.pool.write(
                "SELECT holdfast.prune($1, $2, $3, $4)", key, self._retention.events, cutoff, 2 * PRUNE_INTERVAL
            )


class _Decision(msgspec.Struct, frozen=True):
    """The answers of a batch, its events, and the changes of the loaded rows."""

    state: WorkspaceState
    tables: LoadedTables
    answers: Sequence[Answer]
    entries: Sequence[Entry]


def _require_state(tables: LoadedTables, batch: _Batch) -> WorkspaceState:
    """Return the state of the workspace. Raises `OwnerChanged` for a batch of an earlier owner."""
    state = tables.state
    if batch.ticket is None:
        if state is None:
            raise StorageUnavailable("There is no such workspace in the store.")
        return state
    if state is None:
        raise OwnerChanged
    if batch.epoch != state.epoch:
        raise OwnerChanged
    if state.is_closed:
        raise OwnerChanged("The workspace was closed: open it again before writing to it.")
    # Only the answers of the last batch are stored.
    if batch.ticket < state.ticket:
        raise StorageUnknown("A later batch was already stored; the result of this one is no longer known.")
    return state


def _decide(batch: _Batch, tables: LoadedTables, state: WorkspaceState) -> _Decision:
    """Execute the writes on the loaded rows. A refused write is undone."""
    is_input = batch.ticket is None
    newest = state.newest
    answers: list[Answer] = []
    entries: list[Entry] = []
    for write in batch.writes:
        mark = tables.journal.mark()
        answer = execute(write, tables, newest, is_input=is_input)
        if isinstance(answer, Receipt):
            entries += answer.entries
            newest += len(answer.entries)
        else:
            tables.journal.back_to(mark)
        answers.append(answer)
    return _Decision(state, tables, answers, entries)
