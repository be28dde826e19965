"""Notifications between nodes: wake-ups after a commit, and live deltas.

A notification is a hint, never a promise: every reader of the log also polls once a second (`POLL_SECONDS`), and a
subscriber that misses a live delta receives the whole part. Each node has one sender, so that at most one NOTIFY of a
node is in progress, and what is added meanwhile is merged into the next one.

* Wake-ups carry the id of a workspace with new events, or the place of one that needs an owner. The latest notification
  of a kind is enough, so equal ones are merged.
* Live events: texts that are appended to a part of a message, and other events that are not stored. The
  first one after a pause is sent at once, later ones at intervals of `DELTA_SECONDS`: meanwhile texts of one part are
  concatenated, then packed with the other events, in their order, into payloads below the limit of PostgreSQL. A text
  names its offset, so a receiver notices that it has missed one.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec

from holdfast.domain.errors import StorageError
from holdfast.tasks import TaskOwner

__all__ = [
    "CHANNELS",
    "CLIENTS_CHANNEL",
    "DELTA_CHANNEL",
    "DELTA_SECONDS",
    "DOCUMENTS_CHANNEL",
    "EVENTS_CHANNEL",
    "MAX_PAYLOAD",
    "POLL_SECONDS",
    "WANTED_CHANNEL",
    "Delta",
    "NotificationSender",
    "pack_deltas",
    "unpack_deltas",
]

EVENTS_CHANNEL = "holdfast_events"
"""Its payload is the id of a workspace with new events."""
WANTED_CHANNEL = "holdfast_wanted"
"""Its payload is the place of a workspace that needs an owner."""
DELTA_CHANNEL = "holdfast_deltas"
"""Its payload is made by `pack_deltas`."""
CLIENTS_CHANNEL = "holdfast_clients"
"""Its payload is the id of a workspace whose clients or owner have changed."""
DOCUMENTS_CHANNEL = "holdfast_documents"
"""Its payload is empty: a shared document has changed."""
CHANNELS = (EVENTS_CHANNEL, WANTED_CHANNEL, DELTA_CHANNEL, CLIENTS_CHANNEL, DOCUMENTS_CHANNEL)

POLL_SECONDS = 1.0
DELTA_SECONDS = 0.04
MAX_PAYLOAD = 7_999
"""Bytes of a payload: PostgreSQL refuses 8,000."""

Send = Callable[[list[tuple[str, str]]], Coroutine[Any, Any, None]]


class Delta(msgspec.Struct, frozen=True, array_like=True):
    """A text that is appended at `offset` to the part that `key` names; with offset -1, an event of the workspace."""

    key: str
    offset: int
    text: str


def pack_deltas(deltas: Iterable[Delta], limit: int = MAX_PAYLOAD) -> list[str]:
    """Return payloads with all deltas in their order.

    A text that is too long is divided: appending its pieces has the same effect. An event that is too long is left out.
    """
    payloads: list[str] = []
    current: list[str] = []
    size = 0
    for delta in deltas:
        for line in _lines(delta, limit):
            length = len(line.encode()) + 1
            if current and size + length > limit + 1:
                payloads.append("\n".join(current))
                current, size = [], 0
            current.append(line)
            size += length
    return [*payloads, "\n".join(current)] if current else payloads


def unpack_deltas(payload: str) -> list[Delta]:
    """Return the deltas of a payload, in order."""
    return [_decoder.decode(line) for line in payload.split("\n")]


_decoder = msgspec.json.Decoder(Delta)


def _lines(delta: Delta, limit: int) -> Iterable[str]:
    line = msgspec.json.encode(delta).decode()
    if len(line.encode()) <= limit:
        yield line
        return
    if delta.offset < 0 or len(delta.text) < 2:
        return
    middle = len(delta.text) // 2
    yield from _lines(Delta(delta.key, delta.offset, delta.text[:middle]), limit)
    yield from _lines(Delta(delta.key, delta.offset + middle, delta.text[middle:]), limit)


class _Growth:
    """Texts of one part that are not sent yet, from `offset` up to `end`."""

    def __init__(self, key: str, offset: int) -> None:
        self.key = key
        self.offset = self.end = offset
        self.texts: list[str] = []

    def add(self, text: str) -> None:
        self.texts.append(text)
        self.end += len(text)

    def delta(self) -> Delta:
        return Delta(self.key, self.offset, "".join(self.texts))


class NotificationSender:
    """The only sender of a node. `send` sends some notifications in one statement."""

    def __init__(self, send: Send, *, delta_seconds: float = DELTA_SECONDS) -> None:
        self._send = send
        self._delta_seconds = delta_seconds
        # Insertion order is the order of sending; a repeated key is merged.
        self._wakeups: dict[tuple[str, str], None] = {}
        self._pending: list[_Growth | Delta] = []
        self._growing: dict[str, _Growth] = {}
        self._are_deltas_due = self._is_sending = False
        self._timer: asyncio.TimerHandle | None = None
        self._deltas_from = 0.0
        """The time before which no live events are sent."""
        self._tasks = TaskOwner()
        self.lost = 0
        """Number of statements that failed. What they carried is found by the polls of the readers."""

    def wake(self, workspace: str) -> None:
        """Notify the other nodes of new events of a workspace, after their commit."""
        self._add(EVENTS_CHANNEL, workspace)

    def update_clients(self, workspace: str) -> None:
        """Notify the other nodes that the clients or the owner of a workspace have changed."""
        self._add(CLIENTS_CHANNEL, workspace)

    def want(self, place: str) -> None:
        """Notify the nodes of a place that a workspace needs an owner, after the commit of its input."""
        self._add(WANTED_CHANNEL, place)

    def update_documents(self) -> None:
        """Notify the other nodes that a shared document has changed, after its commit."""
        self._add(DOCUMENTS_CHANNEL, "")

    def add_delta(self, key: str, offset: int, text: str) -> None:
        """Send a text that is appended to a part."""
        growth = self._growing.get(key)
        if growth is None or growth.end != offset:
            growth = self._growing[key] = _Growth(key, offset)
            self._pending.append(growth)
        growth.add(text)
        self._schedule()

    def add_event(self, workspace: str, body: str) -> None:
        """Send an event that is not stored, after the texts that were added before it."""
        self._growing.clear()
        self._pending.append(Delta(workspace, -1, body))
        self._schedule()

    async def close(self) -> None:
        """Drop what is not sent."""
        if self._timer is not None:
            self._timer.cancel()
        self._tasks.cancel_all()
        await self._tasks.drain()

    def _add(self, channel: str, payload: str) -> None:
        self._wakeups[channel, payload] = None
        self._start()

    def _schedule(self) -> None:
        if self._timer is None:
            # Never immediately: what is added in the same iteration of the event loop belongs together.
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(max(loop.time(), self._deltas_from), self._send_deltas)

    def _send_deltas(self) -> None:
        self._timer, self._are_deltas_due = None, True
        self._deltas_from = asyncio.get_running_loop().time() + self._delta_seconds
        self._start()

    def _start(self) -> None:
        if not self._is_sending:
            self._is_sending = True
            self._tasks.start(self._run(), name="cluster: notifications")

    async def _run(self) -> None:
        try:
            await self._send_pending()
        finally:
            # Not when the task is over: a notification that is added in between would be left.
            self._is_sending = False

    async def _send_pending(self) -> None:
        while self._wakeups or self._are_deltas_due:
            notifications, self._wakeups = list(self._wakeups), {}
            if self._are_deltas_due:
                pending, self._pending, self._growing, self._are_deltas_due = self._pending, [], {}, False
                packed = pack_deltas(item.delta() if isinstance(item, _Growth) else item for item in pending)
                notifications += [(DELTA_CHANNEL, payload) for payload in packed]
            try:
                if notifications:
                    await self._send(notifications)
            except StorageError:
                self.lost += 1
