"""The events of one workspace, from the one who publishes to all who read.

Publishing appends to the shared backlog and wakes who waits; it never waits and knows no reader that does
not wait. A reader gets a hello, then what it missed from the log, then what comes. Its place in the backlog
is noted when it subscribes, in the same breath as the newest number: up to that number the log answers,
after it the backlog does, so nothing is sent twice and nothing falls between.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, Protocol

from holdfast.bus.backlog import Backlog, SlowReaderPolicy
from holdfast.bus.frames import Frame, Gap, GapEvent, Hello, HelloEvent
from holdfast.domain.events import LiveEvent, MessagePart, MessagePartEvent, SessionEvent
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.ledger import Entry, WorkspaceRecord

__all__ = ["Bus", "EventLog", "OpenParts", "Subscription"]

OpenParts = Callable[[], Iterable[MessagePart]]
"""The parts that grow right now, with at least the text of every delta that was published."""

_AT_ONCE = 512
"""So many frames are handed over, or read from the log, in one go."""


class EventLog(Protocol):
    """The stored events. The ledger is one."""

    async def events_after(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, bytes]]:
        """At most `limit` numbered events after the cursor, in order."""

    async def bounds(self, workspace: WorkspaceId) -> tuple[int, int]:
        """The smallest number held (newest + 1 if none is) and the newest given."""


class Bus:
    """Belongs to one event loop. `record` says where the numbering stands when the bus is made."""

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
        self._waiting: dict[asyncio.Future[None], None] = {}
        self._whole: tuple[Frame, ...] | None = None
        self._readers = 0
        self._is_closed = False

    @property
    def newest(self) -> int:
        """The last number that was published."""
        return self._newest

    @property
    def waiting(self) -> int:
        """How many readers have everything and wait for more."""
        return len(self._waiting)

    @property
    def held(self) -> int:
        """How many frames are held for readers that do not have them yet."""
        return len(self._backlog)

    def publish(self, entries: Iterable[Entry]) -> None:
        """Durable events, in the order of their numbers. One that was published before is not published again."""
        if self._is_closed:
            return
        for entry in entries:
            if entry.number > self._newest:
                self._newest = entry.number
                if isinstance(entry.event, SessionEvent) and entry.event.payload.type == "deleted":
                    self._backlog.empty(entry.event.payload.payload.id)
                if self._readers:
                    self._backlog.append(entry)
        self._whole = None
        self._wake()

    def publish_live(self, event: LiveEvent) -> None:
        """To those who are there. Who comes later gets the open parts whole, so for nobody nothing is kept."""
        self._whole = None
        if self._readers and not self._is_closed:
            self._backlog.append_live(event)
            self._wake()

    def subscribe(self, since: int | None, *, merge: bool = True) -> "Subscription":
        """Everything after the number `since`; 0 is all that is held, None only what comes from now on."""
        return Subscription(self, since, merge=merge)

    def close(self) -> None:
        """End every subscription once it has what was published so far. What comes later goes nowhere."""
        self._is_closed = True
        self._wake()

    def _forget(self) -> None:
        """Drop the frames that every reader has. What a later reader has missed is in the log."""
        if len(self._waiting) == self._readers:
            self._backlog.clear()

    def _wake(self) -> None:
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, {}
        for waiter in waiting:
            if not waiter.done():
                waiter.set_result(None)

    def _whole_parts(self) -> tuple[Frame, ...]:
        """Made once for all who ask before the next event: until then nothing can be missing from them."""
        if self._whole is None:
            self._whole = tuple(Frame(event=MessagePartEvent(part)) for part in self._open_parts())
        return self._whole


class Subscription:
    """One reader's view of the bus. It belongs to one task; a cancelled `take` loses nothing.

    The bus holds no subscription, only the future of one that waits. Dropping it is enough; `close` also
    ends a `take` that waits.
    """

    def __init__(self, bus: Bus, since: int | None, *, merge: bool) -> None:
        self._bus = bus
        self._since = since
        self._merge = merge
        self._target = bus._newest
        self._reader = bus._backlog.reader(bus._newest)
        self._phase: Literal["greet", "replay", "live"] = "greet"
        self._waiter: asyncio.Future[None] | None = None
        self._is_closed = False
        bus._readers += 1

    def __del__(self) -> None:
        self.close()

    @property
    def cursor(self) -> int:
        """The last number this reader has: since it, a new subscription gets exactly the rest."""
        return self._reader.cursor

    async def take(self, limit: int = _AT_ONCE) -> list[Frame]:
        """The next frames, at least one; none when the subscription is over. Waits until there are some.

        About `limit` at most: open parts come on top. Raises `ReaderCut` when the reader was too slow, and
        what the log raises.
        """
        bus, reader = self._bus, self._reader
        while not self._is_closed:
            if self._phase != "live":
                frames = await (self._greet() if self._phase == "greet" else self._replay(limit))
                if frames:
                    return frames
                continue
            frames = reader.take(limit, bus._whole_parts, merge=self._merge)
            if frames or bus._is_closed:
                return frames
            await self._wait()
            if reader.is_lost:
                # Who waited was not slow: more came at once than the backlog holds, and the log has it.
                self._rejoin()
        return []

    def close(self) -> None:
        """End it here and now, also for a `take` that waits."""
        if not self._is_closed:
            self._is_closed = True
            self._bus._readers -= 1
            if self._waiter is not None:
                self._bus._waiting.pop(self._waiter, None)
            self._bus._forget()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def _greet(self) -> list[Frame]:
        """Says hello, and decides where to begin. Between a commit and its publication the log is ahead."""
        bus, since = self._bus, self._since
        oldest, newest = await bus._log.bounds(bus._record.id)
        is_gap = since is not None and (0 < since < oldest - 1 or since > max(newest, self._target))
        if since is not None and not is_gap:
            self._reader.cursor = since or min(oldest - 1, self._target)
        cursor = max(self._target, self._reader.cursor)
        frames = [Frame(event=HelloEvent(Hello(cursor, oldest, bus._record.epoch)))]
        if is_gap:
            frames.append(self._gap(cursor, oldest))
        self._phase = "replay"
        return frames

    async def _replay(self, limit: int) -> list[Frame]:
        """A page of the log up to the target. A backlog that has moved on meanwhile sets a new target."""
        bus, reader, target = self._bus, self._reader, self._target
        if reader.cursor >= target:
            if reader.is_lost:
                self._rejoin()
            else:
                self._phase = "live"
            return []
        page = await bus._log.events_after(bus._record.id, reader.cursor, limit)
        if not page or page[0][0] != reader.cursor + 1:
            oldest, _ = await bus._log.bounds(bus._record.id)
            if oldest > reader.cursor + 1:
                self._rejoin()
                reader.cursor = self._target
                return [self._gap(self._target, oldest)]
        frames = [Frame(number=number, body=body) for number, body in page if number <= target]
        reader.cursor = min(page[-1][0], target) if page else target
        return frames

    async def _wait(self) -> None:
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        self._bus._waiting[waiter] = None
        self._bus._forget()
        try:
            await waiter
        finally:
            self._waiter = None
            self._bus._waiting.pop(waiter, None)

    def _rejoin(self) -> None:
        """Let the log answer up to what is newest now, and the backlog from here on."""
        self._target = self._bus._newest
        self._reader.go_to_end()
        self._phase = "replay"

    def _gap(self, cursor: int, oldest: int) -> Frame:
        return Frame(event=GapEvent(Gap(cursor, oldest, self._bus._record.epoch)))
