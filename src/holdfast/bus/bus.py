"""The event bus of one workspace.

Theory of operation. Publishing appends to a backlog that all readers share and wakes the readers that wait. It is
synchronous, never blocks, and holds no reference to a reader that is not waiting, so a slow or abandoned subscriber
costs the publisher nothing.

A subscription passes through three phases:

* greet: read the bounds of the log and send a hello, and a gap if the reader's number is not in the log;
* replay: read pages of the log up to the target, the newest number at the time of subscribing;
* live: take frames from the backlog.

The position in the backlog is set together with the target, without an await in between: the log provides the events up
to the target and the backlog those after it, so no event is sent twice and none is missed. If the backlog drops frames
during the replay, the reader sets a new target and continues with the log.

Live deltas are not in the log. A reader that enters the live phase, or that missed deltas, first receives each open
part in full. Therefore deltas are not buffered without readers, and the backlog is cleared as soon as every reader has
all of it.

A reader that falls behind by more than `SlowReaderPolicy` permits while it is not waiting gets `ReaderCut`, with the
number since which it can subscribe again. A reader that was waiting when a burst exceeded the backlog was not slow; it
rejoins through the log.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

from holdfast.bus.frames import Frame, Gap, GapEvent, Hello, HelloEvent
from holdfast.bus.shared_backlog import Backlog, SlowReaderPolicy
from holdfast.domain.events import LiveEvent, MessagePart, MessagePartEvent, SessionEvent
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.store_operations import Entry, WorkspaceRecord

__all__ = ["Bus", "EventLog", "OpenParts", "Subscription"]

OpenParts = Callable[[], Iterable[MessagePart]]
"""Returns the parts that currently grow, with at least the text of every published delta."""

_BATCH_SIZE = 512
"""Default number of frames returned by one `take`, and the page size of a replay."""


class EventLog(Protocol):
    """The stored events. Implemented by the ledger."""

    async def events_after(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """Return at most `limit` numbered events after the cursor, in order."""

    async def bounds(self, workspace: WorkspaceId) -> tuple[int, int]:
        """Return the smallest number stored (newest + 1 if there is none) and the newest assigned."""


class Bus:
    """Belongs to one event loop. `record.newest` is the last number assigned before the bus is created."""

    def __init__(
        self,
        record: WorkspaceRecord,
        log: EventLog,
        open_parts: OpenParts,
        policy: SlowReaderPolicy | None = None,
    ) -> None:
        self._record = record
        self._log = log
        self._open_parts = open_parts
        self._backlog = Backlog(policy or SlowReaderPolicy())
        self._newest = record.newest
        # An ordered set: readers are woken in the order in which they began to wait.
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._whole: tuple[Frame, ...] | None = None
        self._readers = 0
        self._is_closed = False

    @property
    def newest(self) -> int:
        """The last published number."""
        return self._newest

    @property
    def waiting(self) -> int:
        """The number of readers that have everything and wait for more."""
        return len(self._waiting)

    @property
    def held(self) -> int:
        """The number of frames held for readers that do not have them yet."""
        return len(self._backlog)

    def change_source(self, record: WorkspaceRecord, open_parts: OpenParts) -> None:
        """Continue with events of another source: another server owns the workspace now. Subscriptions stay open; they
        receive each open part in full.
        """
        self._record = record
        self._open_parts = open_parts
        self._whole = None

    def publish(self, entries: Iterable[Entry]) -> None:
        """Publish durable events, in the order of their numbers. An event that was published before is skipped."""
        if self._is_closed:
            return
        for entry in entries:
            if entry.number > self._newest:
                self._newest = entry.number
                # Readers that are behind must not receive the content of a session that is deleted by now.
                if isinstance(entry.event, SessionEvent) and entry.event.change.type == "deleted":
                    self._backlog.empty(entry.event.change.object.id)
                # Without readers the log is sufficient: a later subscription replays it up to `_newest`.
                if self._readers:
                    self._backlog.append(entry)
        self._whole = None
        self._wake()

    def publish_live(self, event: LiveEvent) -> None:
        """Publish a live event to current subscribers. It is not buffered when there are none: late subscribers receive
        each open part in full.
        """
        # Open parts have grown, or were closed, since the frames were made.
        self._whole = None
        if self._readers and not self._is_closed:
            self._backlog.append_live(event)
            self._wake()

    def subscribe(self, since: int | None, *, merge: bool = True) -> "Subscription":
        """Return a subscription to all events after the number `since`: 0 for all stored ones, None for new ones
        only.
        """
        return Subscription(self, since, merge=merge)

    def close(self) -> None:
        """End every subscription once it has the events published so far. Later events are dropped."""
        self._is_closed = True
        self._wake()

    def _drop_delivered(self) -> None:
        """Drop the frames if every reader has them. A later reader finds the events it missed in the log."""
        if len(self._waiting) == self._readers:
            self._backlog.clear()

    def _wake(self) -> None:
        if not self._waiting:
            return
        # Swap before waking: a reader that runs and waits again registers for the next event.
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            # A cancelled `take` leaves a cancelled future behind until its task runs.
            if not waiter.done():
                waiter.set_result(None)

    def _whole_parts(self) -> tuple[Frame, ...]:
        """Return a frame for each open part. They are created once and shared until the next event is published."""
        if self._whole is None:
            self._whole = tuple(Frame(event=MessagePartEvent(part)) for part in self._open_parts())
        return self._whole


class Subscription:
    """One reader of the bus. It belongs to one task; a cancelled `take` loses nothing.

    The bus holds no reference to a subscription, only the future of a waiting one, so dropping the subscription is
    enough. `close` also ends a waiting `take`.
    """

    def __init__(self, bus: Bus, since: int | None, *, merge: bool) -> None:
        self._bus = bus
        self._since = since
        self._merge = merge
        self._target = bus._newest
        # Target and backlog position are taken in the same synchronous step; see the theory of operation.
        self._reader = bus._backlog.reader(bus._newest)
        self._phase: Literal["greet", "replay", "live"] = "greet"
        self._waiter: asyncio.Future[None] | None = None
        self._is_closed = False
        bus._readers += 1

    def __del__(self) -> None:
        self.close()

    @property
    def cursor(self) -> int:
        """The last number this reader has: a new subscription since it receives exactly the rest."""
        return self._reader.cursor

    async def take(self, limit: int = _BATCH_SIZE) -> list[Frame]:
        """Return the next frames, at least one, and wait for them; an empty list when the subscription has ended.

        Returns about `limit` frames; open parts are added to them. Raises `ReaderCut` when the reader was too slow, and
        the errors of the log.
        """
        bus, reader = self._bus, self._reader
        while not self._is_closed:
            if self._phase != "live":
                frames = await (self._start_reading() if self._phase == "greet" else self._replay(limit))
                if frames:
                    return frames
                continue
            frames = reader.take(limit, bus._whole_parts, merge=self._merge)
            # A closed bus has no more events, but the reader first receives those that were published.
            if frames or bus._is_closed:
                return frames
            await self._wait()
            if reader.is_lost:
                # A reader that was waiting is not slow: a burst exceeded the backlog, and the log has the events.
                self._rejoin()
        return []

    def close(self) -> None:
        """End the subscription at once, including a waiting `take`."""
        if not self._is_closed:
            self._is_closed = True
            self._bus._readers -= 1
            if self._waiter is not None:
                self._bus._waiting.pop(self._waiter, None)
            self._bus._drop_delivered()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _start_reading(self) -> list[Frame]:
        """Return the hello and choose the start. Between a commit and its publication the log is ahead of the bus."""
        bus, since = self._bus, self._since
        # A cursor below the oldest number has lost events; one above the newest belongs to another database.
        oldest, newest = await bus._log.bounds(bus._record.id)
        is_gap = since is not None and (0 < since < oldest - 1 or since > max(newest, self._target))
        if since is not None and not is_gap:
            # 0 requests everything that is still stored, which may begin later than number 1.
            self._reader.cursor = since or min(oldest - 1, self._target)
        cursor = max(self._target, self._reader.cursor)
        frames = [Frame(event=HelloEvent(Hello(cursor, oldest, bus._record.epoch)))]
        if is_gap:
            frames.append(self._gap(cursor, oldest))
        self._phase = "replay"
        return frames

    async def _replay(self, limit: int) -> list[Frame]:
        """Return a page of the log up to the target. If the backlog has dropped frames meanwhile, set a new target."""
        bus, reader, target = self._bus, self._reader, self._target
        if reader.cursor >= target:
            if reader.is_lost:
                self._rejoin()
            else:
                self._phase = "live"
            return []
        # The page may contain numbers above the target, which the backlog delivers.
        page = await bus._log.events_after(bus._record.id, reader.cursor, limit)
        # After an unclean end the numbering skips ahead, so a missing number alone is no gap; a trimmed log is one.
        if not page or page[0][0] != reader.cursor + 1:
            oldest, _ = await bus._log.bounds(bus._record.id)
            if oldest > reader.cursor + 1:
                self._rejoin()
                reader.cursor = self._target
                return [self._gap(self._target, oldest)]
        frames = [Frame(number=number, body=body) for number, body in page if number <= target]
        # No event up to the target is stored: the numbering has skipped ahead.
        reader.cursor = min(page[-1][0], target) if page else target
        return frames

    async def _wait(self) -> None:
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        # Waiting means having everything. If all readers wait, no frame is needed any more.
        self._bus._waiting[waiter] = None
        self._bus._drop_delivered()
        try:
            await waiter
        finally:
            self._waiter = None
            self._bus._waiting.pop(waiter, None)

    def _rejoin(self) -> None:
        """Continue with the log up to the newest number now, and with the backlog after it."""
        self._target = self._bus._newest
        self._reader.go_to_end()
        self._phase = "replay"

    def _gap(self, cursor: int, oldest: int) -> Frame:
        return Frame(event=GapEvent(Gap(cursor, oldest, self._bus._record.epoch)))
