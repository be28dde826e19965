"""The one choke point between the engine and its store: every write of a workspace passes here.

Writes go to the store one batch at a time, in the order in which they were put; whatever is put while a
batch is under way makes the next one. So answers, the calls that tell the lanes, and the publication of
events all happen in the order of the event numbers, in whatever order the waiting callers wake.

A write has its place in the order from the moment it is put. One that is about to have company may wait a few passes
of the loop for it: then both are on disk with one sync.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from holdfast.domain.errors import StorageUnavailable, StorageUnknown
from holdfast.domain.ledger import Answer, Operation, Receipt, WorkspaceRecord, Write
from holdfast.engine.ports import Ledger, Outlet
from holdfast.tasks import TaskOwner

__all__ = ["Recorder", "for_a_moment"]

_LOOK_AGAIN_SECONDS = 0.05
_MOST_PASSES = 16
"""So many passes of the loop a write may wait for what follows from it at once."""
_LONGEST_SECONDS = 0.002
"""Where many others are at work a pass takes long, and waiting costs more than a second sync."""
_MANY = 32
"""So many writes share a sync as it is: they wait for no others, and nobody waits for them."""


async def for_a_moment(holds: Callable[[], bool], passes: int) -> None:
    """As long as it holds, but only for a few passes of the loop."""
    loop = asyncio.get_running_loop()
    latest = loop.time() + _LONGEST_SECONDS
    for _ in range(passes):
        if not holds() or loop.time() > latest:
            return
        await asyncio.sleep(0)


class _Item(msgspec.Struct):
    """A write on its way, and what to do with its answer."""

    write: Write
    then: Callable[[Answer], None] | None
    otherwise: Callable[[], object] | None
    announce: Callable[[Receipt], None] | None
    future: asyncio.Future[Answer]


class Recorder:
    """Writes, then tells. Nothing is published that is not stored."""

    def __init__(self, ledger: Ledger, record: WorkspaceRecord, outlet: Outlet) -> None:
        self._ledger = ledger
        self.record = record
        self.outlet = outlet
        self.tasks = TaskOwner()
        """Owner of the writing task. The engine's outbox tasks belong to it too, so that a drain waits for both."""
        self._waiting: list[_Item] = []
        self._expecting: list[Callable[[], bool]] = []
        self._ticket = 0
        self._is_writing = False

    def put(
        self,
        *operations: Operation,
        sync: bool = True,
        then: Callable[[Answer], None] | None = None,
        otherwise: Callable[[], object] | None = None,
        announce: Callable[[Receipt], None] | None = None,
        expects: Callable[[], bool] | None = None,
    ) -> asyncio.Future[Answer]:
        """Store the operations together. `then` is called with the answer, in number order, before the events
        are published, and `otherwise` in its place if they could not be stored; `announce` publishes the events in
        place of the outlet. All of it happens whether or not anybody still waits for the future.
        `expects` says whether another write is about to follow from this one.
        """
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        if expects is not None:
            self._expecting.append(expects)
        self._waiting.append(_Item(Write(operations, sync=sync), then, otherwise, announce, future))
        if not self._is_writing:
            self._is_writing = True
            self.tasks.start(self._drain(), name="recorder")
        return future

    async def _drain(self) -> None:
        try:
            while self._waiting:
                await self._gather()
                batch, self._waiting = self._waiting, []
                await self._write(batch)
        finally:
            self._is_writing = False

    async def _gather(self) -> None:
        """Let what follows at once from the writes that wait come along."""
        await for_a_moment(self._expects_more, _MOST_PASSES)
        self._expecting.clear()

    def _expects_more(self) -> bool:
        return len(self._waiting) < _MANY and any(expects() for expects in self._expecting)

    async def _write(self, batch: list[_Item]) -> None:
        self._ticket += 1
        try:
            answers = await self._commit([item.write for item in batch])
        except Exception as error:
            for item in batch:
                if item.otherwise is not None:
                    item.otherwise()
                if not item.future.done():
                    item.future.set_exception(error)
                    # It counts as seen: a caller may have gone away, and then nobody looks.
                    item.future.exception()
            return
        for item, answer in zip(batch, answers, strict=True):
            self._tell(item, answer)

    async def _commit(self, writes: Sequence[Write]) -> Sequence[Answer]:
        try:
            return await self._ledger.commit(self.record.id, self.record.epoch, self._ticket, writes)
        except StorageUnknown:
            return await self._look()

    async def _look(self) -> Sequence[Answer]:
        """Nobody knows whether the batch was written: ask until the store can say."""
        while True:
            try:
                ticket, answers = await self._ledger.last_batch(self.record.id, self.record.epoch)
            except (StorageUnavailable, StorageUnknown):
                await asyncio.sleep(_LOOK_AGAIN_SECONDS)
                continue
            if ticket == self._ticket:
                return answers
            raise StorageUnavailable

    def _tell(self, item: _Item, answer: Answer) -> None:
        try:
            if item.then is not None:
                item.then(answer)
            # Whoever asked goes on after this call, and before the readers it wakes.
            if not item.future.done():
                item.future.set_result(answer)
            if isinstance(answer, Receipt):
                (item.announce or self._publish)(answer)
        except Exception as error:
            # One listener's mistake must not keep the others from their answers.
            context = {"message": "telling what was stored failed", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)
        if not item.future.done():
            item.future.set_result(answer)

    def _publish(self, receipt: Receipt) -> None:
        self.outlet.publish(receipt.entries)
