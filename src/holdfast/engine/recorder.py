"""The single path between the engine and its store: every write of a workspace passes through the recorder.

Theory of operation. Storage never publishes and the bus never stores; the recorder does both. One batch of writes is
committed at a time; writes that are put meanwhile form the next batch, so a slow disk makes batches larger instead of
callers slower. After the commit, each write of the batch is completed in the order of its event numbers, in one step of
the event loop: `then` (which dispatches inputs to their lanes), then publication; the callers are resumed after that.
The order of publication and of dispatched inputs is therefore the order of numbers, in whatever order the callers are
resumed.

A write has its place in the order from the moment it is put. It may carry a *hold*: a future that is done once another
write that follows from it has been put, such as the end that a cancel causes. The batch is not committed before its
holds are done, so that both are stored with one sync. The owner of a hold limits its duration; a batch that is
already large is committed without waiting.

A commit has three results. *Done* and *refused* are answers. After *unknown* (the disk failed after the write, the
connection broke) the recorder reads the last batch until the store can tell whether it was written; it never assumes.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from holdfast.domain.errors import StorageUnavailable, StorageUnknown
from holdfast.domain.store_operations import Answer, Operation, Receipt, WorkspaceRecord, Write
from holdfast.engine.ports import Ledger, Outlet
from holdfast.tasks import TaskOwner

__all__ = ["Recorder"]

_READ_AGAIN_SECONDS = 0.05
"""Pause between two attempts to read the last batch after an unknown result."""
_LARGE_BATCH = 32
"""Batches of this size are committed without waiting for their holds."""


class _Item(msgspec.Struct):
    """A write that was put, with its callbacks and the future of its caller."""

    write: Write
    then: Callable[[Answer], None] | None
    otherwise: Callable[[], object] | None
    announce: Callable[[Receipt], None] | None
    future: asyncio.Future[Answer]


class Recorder:
    """Stores the operations of one workspace, then publishes their events. Nothing is published before it is stored."""

    def __init__(self, ledger: Ledger, record: WorkspaceRecord, outlet: Outlet) -> None:
        self._ledger = ledger
        self.record = record
        self.outlet = outlet
        self.tasks = TaskOwner()
        """Owner of the writing task. The engine's outbox tasks belong to it too, so that a drain waits for both."""
        self._waiting: list[_Item] = []
        self._holds: list[asyncio.Future[None]] = []
        self._released: asyncio.Future[None] | None = None
        self._ticket = 0
        self._is_writing = False

    def put(
        self,
        *operations: Operation,
        sync: bool = True,
        then: Callable[[Answer], None] | None = None,
        otherwise: Callable[[], object] | None = None,
        announce: Callable[[Receipt], None] | None = None,
        hold: asyncio.Future[None] | None = None,
    ) -> asyncio.Future[Answer]:
        """Store the operations in one transaction and return a future of the answer.

        `then` is called with the answer, in number order, before the events are published; `otherwise` is called
        instead if they could not be stored. `announce` replaces the publication to the outlet. All of them are called
        even if the caller no longer waits for the future. `hold` delays the batch until it is done.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if hold is not None:
            self._holds.append(hold)
            hold.add_done_callback(self._release)
        self._waiting.append(_Item(Write(operations, sync=sync), then, otherwise, announce, future))
        # A batch that is large enough now is not delayed by its holds any longer.
        self._release()
        if not self._is_writing:
            self._is_writing = True
            self.tasks.start(self._drain(), name="recorder")
        return future

    async def _drain(self) -> None:
        try:
            while self._waiting:
                if not self._is_complete():
                    self._released = asyncio.get_running_loop().create_future()
                    await self._released
                # Holds belong to the batch that is taken here; those that are not done have been overruled by its size.
                self._holds.clear()
                batch, self._waiting = self._waiting, []
                await self._write(batch)
        finally:
            self._is_writing = False

    def _is_complete(self) -> bool:
        """Return whether the next batch can be committed."""
        return len(self._waiting) >= _LARGE_BATCH or all(hold.done() for hold in self._holds)

    def _release(self, _: object = None) -> None:
        """Resume the writing task if it waits for a batch that is complete now."""
        if self._released is not None and not self._released.done() and self._is_complete():
            self._released.set_result(None)

    async def _write(self, batch: list[_Item]) -> None:
        # The ticket identifies the batch if its result is unknown; see `_read_last_batch`.
        self._ticket += 1
        try:
            answers = await self._commit([item.write for item in batch])
        except Exception as error:
            for item in batch:
                self._fail(item, error)
            return
        for item, answer in zip(batch, answers, strict=True):
            self._complete(item, answer)

    async def _commit(self, writes: Sequence[Write]) -> Sequence[Answer]:
        try:
            return await self._ledger.commit(self.record.id, self.record.epoch, self._ticket, writes)
        except StorageUnknown:
            return await self._read_last_batch()

    async def _read_last_batch(self) -> Sequence[Answer]:
        """Return the answers of the batch whose result is unknown. Raises `StorageUnavailable` if it was not written.

        Read until the store responds: any assumption would lose the batch or write it twice.
        """
        while True:
            try:
                ticket, answers = await self._ledger.last_batch(self.record.id, self.record.epoch)
            except (StorageUnavailable, StorageUnknown):
                await asyncio.sleep(_READ_AGAIN_SECONDS)
                continue
            if ticket == self._ticket:
                return answers
            raise StorageUnavailable

    def _fail(self, item: _Item, error: Exception) -> None:
        try:
            if item.otherwise is not None:
                item.otherwise()
        except Exception as fault:
            # As in `_complete`: the other callers of the batch still get their error.
            context = {"message": "a callback of a failed write failed", "exception": fault}
            asyncio.get_running_loop().call_exception_handler(context)
        if not item.future.done():
            item.future.set_exception(error)
            # Mark the exception as retrieved: the caller may have been cancelled.
            item.future.exception()

    def _complete(self, item: _Item, answer: Answer) -> None:
        # The event loop resumes the caller after the callbacks, but before the tasks and subscribers that they wake.
        if not item.future.done():
            item.future.set_result(answer)
        try:
            if item.then is not None:
                item.then(answer)
            if isinstance(answer, Receipt):
                (item.announce or self._publish)(answer)
        except Exception as error:
            # An error in one callback must not keep the other callers from their answers.
            context = {"message": "publishing a stored write failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def _publish(self, receipt: Receipt) -> None:
        self.outlet.publish(receipt.entries)
