"""Stores with a planted mistake, to show that a crash trial detects it."""

import asyncio
from collections.abc import Sequence

import msgspec

from crash.workspace import Disk, Killer, Lifetime
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.store_operations import Answer, CancelSession, Receipt, StartRun, WorkspaceRecord, Write
from holdfast.engine.ports import Ledger
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.tasks import TaskOwner
from holdfast.testing.memory_ledger import MemoryLedger

__all__ = ["FLAWS", "stores"]


_LATE = 1_000
"""Number of loop iterations after the reply."""


class _LateWritingStore(MemoryLedger):
    """Replies from memory, and writes to the disk a little later."""

    def __init__(self, disk: SqliteLedger) -> None:
        super().__init__()
        self._disk = disk
        self._late = TaskOwner()
        self._records: dict[WorkspaceId, WorkspaceRecord] = {}

    async def open_workspace(self, path: str) -> WorkspaceRecord:
        record = await super().open_workspace(path)
        self._records[record.id] = await self._disk.open_workspace(path)
        return record

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        answers = await super().commit(workspace, epoch, ticket, writes)
        record = self._records[workspace]
        self._late.start(self._write_late(record, ticket, writes), name="late write")
        return answers

    async def _write_late(self, record: WorkspaceRecord, ticket: int, writes: Sequence[Write]) -> None:
        for _ in range(_LATE):
            await asyncio.sleep(0)
        await self._disk.commit(record.id, record.epoch, ticket, writes)

    async def close_workspace(self, workspace: WorkspaceId, epoch: int) -> None:
        await self._late.drain()
        await super().close_workspace(workspace, epoch)
        record = self._records[workspace]
        await self._disk.close_workspace(record.id, record.epoch)


class _CancelLosingStore(Disk):
    """Acknowledges the cancel of a session without storing it."""

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        sessions = {op.session_id: None for write in writes for op in write.operations if isinstance(op, CancelSession)}
        runs = [run for run in await self.open_runs(workspace) if run.session_id in sessions]
        kept = [_without(write, CancelSession) for write in writes]
        answers = await super().commit(workspace, epoch, ticket, kept)
        return [
            answer if new == old else Receipt((), tuple(runs))
            for answer, new, old in zip(answers, kept, writes, strict=True)
        ]


class _StartLosingStore(Disk):
    """Does not store that a run has started."""

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        return await super().commit(workspace, epoch, ticket, [_without(write, StartRun) for write in writes])


FLAWS = ("hasty", "deaf", "forgetful")


def stores(lifetime: Lifetime, killer: Killer) -> tuple[Ledger, SqliteLedger]:
    """Return the store used by the engine, and the one on disk behind it: the same, except for late writes."""
    match lifetime.flaw:
        case "hasty":
            disk = Disk(lifetime, killer)
            return _LateWritingStore(disk), disk
        case "deaf":
            disk = _CancelLosingStore(lifetime, killer)
        case "forgetful":
            disk = _StartLosingStore(lifetime, killer)
        case _:
            disk = Disk(lifetime, killer)
    return disk, disk


def _without(write: Write, kind: type[CancelSession | StartRun]) -> Write:
    kept = tuple(operation for operation in write.operations if not isinstance(operation, kind))
    return write if len(kept) == len(write.operations) else msgspec.structs.replace(write, operations=kept)
