"""The newest frames of a workspace, held once for all readers, and the position of each reader. Pure.

Two rings share one bound. `growth` holds deltas, whole parts and the output of running tools. A reader can miss
them, because the whole part or the result replaces them. `kept` holds all other frames. Growth is
dropped first, except for a reserve of the newest: without it a reader that keeps up would lose its text to
numbered frames that it has already taken.

A reader counts the frames it took from each ring, so it finds its position in constant time.

* A reader that lost growth receives no more of it until it has every kept frame, and then each open part in
full.
* A reader that lost a kept frame is cut: `ReaderCut` carries the last number it has.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import TypeAlias

import msgspec

from holdfast.bus.frames import Frame
from holdfast.domain.errors import HoldfastError
from holdfast.domain.event_erasure import redact_event, session_of
from holdfast.domain.events import LiveEvent, MessageDelta, MessageDeltaEvent, MessagePartEvent, ToolOutputEvent
from holdfast.domain.ids import MessageId
from holdfast.domain.store_operations import Entry

__all__ = ["Backlog", "Reader", "ReaderCut", "SlowReaderPolicy", "WholeParts", "merge_deltas"]

WholeParts: TypeAlias = Callable[[], Iterable[Frame]]
"""Returns a `message_part` frame for each open part, in its state at the time of the call."""

_ENVELOPE = 160
"""Approximate size of a delta without its text, in bytes."""

_MERGE_THRESHOLD = 4
"""Up to this many frames are returned without merging: a reader that takes so few keeps up."""

_by_index = attrgetter("index")


class SlowReaderPolicy(msgspec.Struct, frozen=True):
    """How far a reader may fall behind before it loses frames. A quarter of both limits is reserved for growth."""

    frames: int = 4096
    bytes: int = 4 * 1024 * 1024


class ReaderCut(HoldfastError):
    """The reader fell too far behind: subscribe again with the last number it got."""

    def __init__(self, cursor: int) -> None:
        super().__init__(f"The reader fell too far behind: subscribe again since {cursor}.")
        self.cursor = cursor


class _Ring:
    """Frames in order of arrival: from `first` up to, not including, `end`."""

    __slots__ = ("_frames", "end", "first", "weight")

    def __init__(self) -> None:
        # A dict by position instead of a deque: readers start in the middle, where a deque needs linear time.
        self._frames: dict[int, tuple[Frame, int]] = {}
        self.first = 0
        self.end = 0
        self.weight = 0

    def __len__(self) -> int:
        return self.end - self.first

    def append(self, frame: Frame, weight: int) -> None:
        self._frames[self.end] = (frame, weight)
        self.end += 1
        self.weight += weight

    def drop_oldest(self) -> int:
        """Drop the oldest frame and return its weight."""
        _, weight = self._frames.pop(self.first)
        self.first += 1
        self.weight -= weight
        return weight

    def clear(self) -> None:
        self._frames.clear()
        self.first = self.end
        self.weight = 0

    def empty(self, session: str) -> None:
        """Replace the frames of a deleted session."""
        for place, (frame, weight) in self._frames.items():
            if session_of(frame.event) == session:
                # The frame stays, because readers count frames, and its number must not be missing from the stream.
                emptied = Frame(frame.index, number=frame.number, event=redact_event(frame.event, session))
                self._frames[place] = (emptied, weight)

    def slice(self, start: int, limit: int) -> list[Frame]:
        frames = self._frames
        end = self.end
        # The usual case of a reader that keeps up, once per token.
        if end - start == 1:
            return [frames[start][0]]
        return [frames[place][0] for place in range(start, min(start + limit, end))]


class Backlog:
    """A bounded ring of frames for all readers of a workspace. It holds no reference to them."""

    def __init__(self, policy: SlowReaderPolicy) -> None:
        self._policy = policy
        self._index = 0
        self._weight = 0
        self._count = 0
        self.kept = _Ring()
        self.growth = _Ring()

    def __len__(self) -> int:
        return self._count

    @property
    def weight(self) -> int:
        """The total size of the frames, in bytes."""
        return self._weight

    def append(self, entry: Entry) -> None:
        """Append a durable event."""
        frame = Frame(self._index + 1, number=entry.number, event=entry.event, body=entry.body)
        self._append(self.kept, frame, len(entry.body))

    def append_live(self, event: LiveEvent) -> None:
        """Append a live event: growth to its own ring, all others to the kept frames."""
        frame = Frame(self._index + 1, event=event)
        # The size is estimated: encoding here would encode every delta, even if it is merged before it is sent.
        if type(event) is MessageDeltaEvent:
            self._append(self.growth, frame, _ENVELOPE + _weight(event.payload.text))
        elif isinstance(event, MessagePartEvent | ToolOutputEvent):
            self._append(self.growth, frame, len(frame.body))
        else:
            self._append(self.kept, frame, len(frame.body))

    def clear(self) -> None:
        """Drop all frames. Call it only when every reader has taken them; a new reader begins at the end."""
        self.kept.clear()
        self.growth.clear()
        self._weight = self._count = 0

    def empty(self, session: str) -> None:
        """Remove the content of a deleted session from the held frames."""
        self.kept.empty(session)
        self.growth.empty(session)

    def reader(self, cursor: int) -> "Reader":
        """Return a reader at the end, which has everything up to `cursor`."""
        return Reader(self, cursor)

    def _append(self, ring: _Ring, frame: Frame, weight: int) -> None:
        """Add a frame, then drop frames down to the bound. A single frame is held whatever its size."""
        self._index = frame.index
        self._weight += weight
        self._count += 1
        ring.append(frame, weight)
        policy = self._policy
        while self._count > policy.frames or self._weight > policy.bytes:
            # One frame above the limit is held: otherwise no reader could ever receive it.
            if self._count == 1:
                return
            self._count -= 1
            self._weight -= self._ring_to_trim().drop_oldest()

    def _ring_to_trim(self) -> _Ring:
        growth, policy = self.growth, self._policy
        # The last kept frame is never dropped before growth: a reader that loses it is disconnected.
        exceeds = len(growth) > policy.frames // 4 or growth.weight > policy.bytes // 4
        return growth if exceeds or len(self.kept) <= 1 else self.kept


class Reader:
    """The position of one subscriber. `cursor` is the last number it has; numbers up to it are not sent again."""

    __slots__ = ("_backlog", "_growth", "_is_behind", "_kept", "cursor")

    def __init__(self, backlog: Backlog, cursor: int) -> None:
        self._backlog = backlog
        self.cursor = cursor
        self.go_to_end()

    def go_to_end(self) -> None:
        """Move behind the newest frame. The text that was streamed so far is missing."""
        self._kept = self._backlog.kept.end
        self._growth = self._backlog.growth.end
        # A reader that starts in the middle of a part would see a delta without its beginning.
        self._is_behind = True

    @property
    def is_lost(self) -> bool:
        """True if a kept frame that the reader has not taken was dropped."""
        return self._kept < self._backlog.kept.first

    def take(self, limit: int, whole: WholeParts, *, merge: bool) -> list[Frame]:
        """Return the next frames, about `limit` of them; an empty list only if there are none. Raises `ReaderCut`."""
        while True:
            frames = self._step(limit, whole)
            if frames:
                return merge_deltas(frames) if merge and len(frames) > _MERGE_THRESHOLD else frames
            # An empty step with more to read consisted of frames that the reader already has from the log.
            if self._kept == self._backlog.kept.end and self._growth == self._backlog.growth.end:
                return frames

    def _step(self, limit: int, whole: WholeParts) -> list[Frame]:
        kept, growth = self._backlog.kept, self._backlog.growth
        # Growth may be missed, a numbered frame may not: the reader has to resume through the log.
        if self._kept < kept.first:
            raise ReaderCut(self.cursor)
        if self._is_behind or self._growth < growth.first:
            return self._catch_up(limit, whole)
        if self._kept == kept.end:
            frames = growth.slice(self._growth, limit)
            self._growth += len(frames)
            return frames
        if self._growth == growth.end:
            return self._read_kept(limit)
        return self._read_both(limit)

    def _catch_up(self, limit: int, whole: WholeParts) -> list[Frame]:
        """Return kept frames only; after the last of them the open parts, which then include all growth up to now."""
        frames = self._read_kept(limit)
        # Not earlier: a whole part is newer than kept frames that precede it, and clients apply frames in order.
        if self._kept == self._backlog.kept.end:
            frames.extend(whole())
            self._growth = self._backlog.growth.end
            self._is_behind = False
        return frames

    def _read_kept(self, limit: int) -> list[Frame]:
        frames = self._backlog.kept.slice(self._kept, limit)
        self._kept += len(frames)
        return self._skip_delivered(frames)

    def _read_both(self, limit: int) -> list[Frame]:
        kept = self._backlog.kept.slice(self._kept, limit)
        growth = self._backlog.growth.slice(self._growth, limit)
        # The rings are ordered by themselves. The index restores the order of publication between them.
        frames = sorted(kept + growth, key=_by_index)[:limit]
        last = frames[-1].index
        self._kept += bisect_right(kept, last, key=_by_index)
        self._growth += bisect_right(growth, last, key=_by_index)
        return self._skip_delivered(frames)

    def _skip_delivered(self, frames: list[Frame]) -> list[Frame]:
        unseen = []
        for frame in frames:
            number = frame.number
            if number is None:
                unseen.append(frame)
            elif number > self.cursor:
                self.cursor = number
                unseen.append(frame)
        return unseen


def merge_deltas(frames: Iterable[Frame]) -> list[Frame]:
    """Return the frames with the deltas of a part joined, as long as only deltas are between them."""
    merged: list[Frame | _Joined] = []
    open_joins: dict[tuple[MessageId, int], _Joined] = {}
    for frame in frames:
        event = frame.event
        # Deltas are not moved across other events: a structural change may refer to the text before it.
        if not isinstance(event, MessageDeltaEvent):
            open_joins.clear()
            merged.append(frame)
            continue
        delta = event.payload
        join = open_joins.get((delta.message_id, delta.part))
        # An offset that does not continue the text is a repetition or a hole, which the client detects.
        if join is None or join.end != delta.offset:
            join = open_joins[delta.message_id, delta.part] = _Joined(delta.offset)
            merged.append(join)
        join.add(frame, delta)
    return [item.frame() if isinstance(item, _Joined) else item for item in merged]


class _Joined:
    """Consecutive deltas of one part."""

    __slots__ = ("_deltas", "_first", "end")

    def __init__(self, offset: int) -> None:
        self._deltas: list[MessageDelta] = []
        self._first: Frame | None = None
        self.end = offset

    def add(self, frame: Frame, delta: MessageDelta) -> None:
        self._first = self._first or frame
        self._deltas.append(delta)
        self.end += len(delta.text)

    def frame(self) -> Frame:
        """Return one frame for all deltas. A single delta keeps its frame, whose bytes are shared."""
        if self._first is not None and len(self._deltas) == 1:
            return self._first
        text = "".join(delta.text for delta in self._deltas)
        return Frame(event=MessageDeltaEvent(msgspec.structs.replace(self._deltas[0], text=text)))


def _weight(text: str) -> int:
    """Return an upper bound of the encoded size without encoding the text."""
    return len(text) if text.isascii() else 4 * len(text)
