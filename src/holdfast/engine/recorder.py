"""The single path between the engine and its store: every write of a workspace passes through the recorder.

Theory of operation. Storage never publishes and the bus never stores; the recorder does both. One batch of writes is
committed at a time; writes that are put meanwhile form the next batch, so a slow disk makes batches larger instead of
callers slower. After the commit, each write of the batch is completed in the order of its event numbers, in one step of
the event loop: `on_answer` (which dispatches inputs to their lanes), then publication; the callers are resumed after
that. The order of publication and of dispatched inputs is therefore the order of numbers, in whatever order the callers
are resumed.

A write has its place in the order from the moment it is put. It may carry a *hold*: a future that is done once another
write that follows from it has been put, such as the end that a cancel causes. The batch is not committed before its
holds are done, so that both are stored with one sync. The owner of a hold limits its duration; a batch that is
already large is committed without waiting.

A commit has three results. *Done* and *refused* are answers. After *unknown* (the disk failed after the write, the
connection broke) the recorder reads the last batch until the store can tell whether it was written; it never assumes.

On a shared store other nodes add inputs to the same log. The recorder of the owner feeds them to `inbox` in number
order, and before the answers of its own later writes: so a lane has received every input with a smaller number before
it receives the answer to a write. They show as a gap before the first number of a batch, and `catch_up` looks for them
between two batches. A batch that is being written is never read back, because no read happens meanwhile. Reads check
the epoch too, because events that were stored after a takeover belong to the successor.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import msgspec

from holdfast.domain.errors import OwnerChanged, StorageError, StorageUnavailable, StorageUnknown
from holdfast.domain.events import DurableEvent, decode_event
from holdfast.domain.store_operations import Answer, Entry, Operation, Receipt, Refusal, WorkspaceRecord, Write
from holdfast.engine.ports import Ledger, Outlet, SharedLedger
from holdfast.tasks import TaskOwner

__all__ = ["Inbox", "Recorder", "decode_entries"]

Inbox: TypeAlias = Callable[[Sequence[Entry]], Awaitable[None]]
"""Applies and publishes inputs that other nodes have stored. Raises `StorageError` before it has applied any."""

_READ_RETRY_SECONDS = 0.05
"""Pause between two attempts to read the last batch after an unknown result."""
_PAGE_SIZE = 500
_LARGE_BATCH = 32
"""Batches of this size are committed without waiting for their holds."""


def decode_entries(rows: Sequence[tuple[int, bytes]]) -> list[Entry]:
    """Return stored events as entries."""
    decoded = ((number, decode_event(body), body) for number, body in rows)
    return [Entry(number, event, body) for number, event, body in decoded if isinstance(event, DurableEvent)]


class _Item(msgspec.Struct):
    """A write that was put, with its callbacks and the future of its caller."""

    write: Write
    on_answer: Callable[[Answer], None] | None
    on_failure: Callable[[], object] | None
    announce: Callable[[Receipt], None] | None
    future: asyncio.Future[Answer]


class Recorder:
    """Stores the operations of one workspace, then publishes their events. Nothing is published before it is stored."""

    def __init__(
        self,
        ledger: Ledger,
        record: WorkspaceRecord,
        outlet: Outlet,
        inbox: Inbox | None = None,
        on_owner_changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`inbox` is set for a shared store. `on_owner_changed` is called when the store refuses the epoch, after each
        such attempt.
        """
        self._ledger = ledger
        self._inbox = inbox
        self._shared = ledger if inbox is not None and isinstance(ledger, SharedLedger) else None
        self._on_owner_changed = on_owner_changed
        self._newest = record.newest
        """On a shared store: the number up to which every event was written or applied by this recorder."""
        self._must_read = False
        self._on_found: Callable[[], None] | None = None
        self.record = record
        self.outlet = outlet
        self.tasks = TaskOwner()
        """Owner of the writing task. The engine's outbox tasks belong to it too, so that a drain waits for both."""
        self._waiting: list[_Item] = []
        self._holds: list[asyncio.Future[None]] = []
        self._released: asyncio.Future[None] | None = None
        self._ticket = 0
        self._is_writing = False

    @property
    def newest(self) -> int:
        """On a shared store: the number up to which every event was written or applied by this recorder."""
        return self._newest

    @property
    def is_shared(self) -> bool:
        """Whether other nodes store inputs for this workspace."""
        return self._inbox is not None

    def put(
        self,
        *operations: Operation,
        sync: bool = True,
        on_answer: Callable[[Answer], None] | None = None,
        on_failure: Callable[[], object] | None = None,
        announce: Callable[[Receipt], None] | None = None,
        hold: asyncio.Future[None] | None = None,
    ) -> asyncio.Future[Answer]:
        """Store the operations in one transaction and return a future of the answer.

        `on_answer` is called with the answer, in number order, before the events are published; `on_failure` is called
        instead if they could not be stored. `announce` replaces the publication to the outlet. All of them are called
        even if the caller no longer waits for the future. `hold` delays the batch until it is done.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if hold is not None:
            self._holds.append(hold)
            hold.add_done_callback(self._release)
        self._waiting.append(_Item(Write(operations, sync=sync), on_answer, on_failure, announce, future))
        # A batch that is large enough now is not delayed by its holds any longer.
        self._release()
        self._start()
        return future

    def catch_up(self, on_found: Callable[[], None] | None = None) -> None:
        """Apply the inputs that other nodes have stored, after the batch that is being written. Called after a
        wake-up, and once a second. `on_found` is called after a read that has found inputs; of several calls before a
        read, that of the first one.
        """
        if self._inbox is not None:
            self._on_found = self._on_found or on_found
            self._must_read = True
            self._start()

    async def confirm_owner(self) -> None:
        """Return if this node owns the workspace at this moment. Raises `StorageError` if it does not, or if the store
        cannot be reached: a node that was suspended does not know yet that another one has taken over.
        """
        if self._shared is not None:
            await self._shared.inputs_after(self.record.id, self.record.epoch, self._newest, 1)

    def _start(self) -> None:
        if not self._is_writing:
            self._is_writing = True
            self.tasks.start(self._drain(), name="recorder")

    async def _drain(self) -> None:
        try:
            while self._waiting or self._must_read:
                if self._must_read:
                    await self._read_inputs()
                    continue
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
        except asyncio.CancelledError:
            # The workspace is given up. Callers outside of the engine, such as requests, get an error.
            for item in (*batch, *self._waiting):
                self._resolve_unknown(item)
            raise
        except Exception as error:
            for item in batch:
                self._fail(item, error)
            if isinstance(error, OwnerChanged):
                self._on_owner_changed()
            return
        if self._inbox is not None:
            await self._apply_inputs_before(answers)
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
                await asyncio.sleep(_READ_RETRY_SECONDS)
                continue
            if ticket == self._ticket:
                return answers
            raise StorageUnavailable

    # Inputs of other nodes.

    async def _read_inputs(self) -> None:
        """Apply the inputs that are stored by now. If the store fails, a later call does it."""
        self._must_read = False
        on_found, self._on_found = self._on_found, None
        has_found = False
        try:
            while self._shared is not None:
                page = await self._shared.inputs_after(self.record.id, self.record.epoch, self._newest, _PAGE_SIZE)
                if page:
                    await self._apply(page)
                    has_found = True
                if len(page) < _PAGE_SIZE:
                    break
        except OwnerChanged:
            self._on_owner_changed()
        except StorageError:
            self._on_found = on_found or self._on_found
            return
        if has_found and on_found is not None:
            on_found()

    async def _apply_inputs_before(self, answers: Sequence[Answer]) -> None:
        """Apply the inputs that are numbered before the first event of a batch, or that a refusal may result from."""
        first, last = 0, self._newest
        for answer in answers:
            if isinstance(answer, Receipt) and answer.entries:
                first, last = first or answer.entries[0].number, answer.entries[-1].number
        if first == self._newest + 1 or (not first and not any(isinstance(answer, Refusal) for answer in answers)):
            self._newest = last
            return
        while not first or self._newest + 1 < first:
            try:
                page = await self._ledger.events_after(self.record.id, self._newest, _PAGE_SIZE)
                page = [row for row in page if not first or row[0] < first]
                if not page:
                    break
                await self._apply(page)
            except StorageError:
                # The batch is stored, so its callers need an answer, and the inputs precede it.
                await asyncio.sleep(_READ_RETRY_SECONDS)
        self._newest = max(last, self._newest)

    async def _apply(self, page: Sequence[tuple[int, bytes]]) -> None:
        if self._inbox is not None:
            await self._inbox(decode_entries(page))
            self._newest = page[-1][0]

    def _resolve_unknown(self, item: _Item) -> None:
        if not item.future.done():
            item.future.set_exception(StorageUnknown())
            item.future.exception()

    def _fail(self, item: _Item, error: Exception) -> None:
        try:
            if item.on_failure is not None:
                item.on_failure()
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
            if item.on_answer is not None:
                item.on_answer(answer)
            if isinstance(answer, Receipt):
                (item.announce or self._publish)(answer)
        except Exception as error:
            # An error in one callback must not keep the other callers from their answers.
            context = {"message": "publishing a stored write failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def _publish(self, receipt: Receipt) -> None:
        self.outlet.publish(receipt.entries)
