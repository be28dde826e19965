"""Notifications between nodes: wake-ups after a commit, and live deltas.

A notification is a hint, never a promise: every reader of the log also polls once a second (`POLL_SECONDS`), and a
subscriber that misses a live delta receives the whole part. Each node has one sender, so that at most one NOTIFY of a
node is in progress, and what is added meanwhile is merged into the next one.

* Wake-ups carry the id of a workspace with new events, or the place of one that needs an owner. The latest notification
  of a kind is enough, so equal ones are merged.
* Live deltas are texts that are appended to a part of a message. Deltas of one part are concatenated for
  `DELTA_SECONDS`, then packed with others into payloads below the limit of PostgreSQL.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec

from holdfast.domain.errors import StorageError
from holdfast.tasks import TaskOwner

__all__ = [
    "CHANNELS",
    "DELTA_CHANNEL",
    "DELTA_SECONDS",
    "EVENTS_CHANNEL",
    "MAX_PAYLOAD",
    "POLL_SECONDS",
    "WANTED_CHANNEL",
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
CHANNELS = (EVENTS_CHANNEL, WANTED_CHANNEL, DELTA_CHANNEL)

POLL_SECONDS = 1.0
DELTA_SECONDS = 0.04
MAX_PAYLOAD = 7_999
"""Bytes of a payload: PostgreSQL refuses 8,000."""

Send = Callable[[list[tuple[str, str]]], Coroutine[Any, Any, None]]


def pack_deltas(deltas: Iterable[tuple[str, str]], limit: int = MAX_PAYLOAD) -> list[str]:
    """Return payloads with all deltas, pairs of the key of a part and a text, in their order.

    A text that is too long is divided: appending its pieces has the same effect.
    """
    payloads: list[str] = []
    current: list[str] = []
    size = 0
    for key, text in deltas:
        for line in _lines(key, text, limit):
            length = len(line.encode()) + 1
            if current and size + length > limit + 1:
                payloads.append("\n".join(current))
                current, size = [], 0
            current.append(line)
            size += length
    return [*payloads, "\n".join(current)] if current else payloads


def unpack_deltas(payload: str) -> list[tuple[str, str]]:
    """Return the deltas of a payload, in order."""
    return [msgspec.json.decode(line, type=tuple[str, str]) for line in payload.split("\n")]


def _lines(key: str, text: str, limit: int) -> Iterable[str]:
    line = msgspec.json.encode((key, text)).decode()
    if len(line.encode()) <= limit or len(text) < 2:
        yield line
        return
    middle = len(text) // 2
    yield from _lines(key, text[:middle], limit)
    yield from _lines(key, text[middle:], limit)


class NotificationSender:
    """The only sender of a node. `send` sends some notifications in one statement."""

    def __init__(self, send: Send, *, delta_seconds: float = DELTA_SECONDS) -> None:
        self._send = send
        self._delta_seconds = delta_seconds
        # Insertion order is the order of sending; a repeated key is merged.
        self._wakeups: dict[tuple[str, str], None] = {}
        self._deltas: dict[str, list[str]] = {}
        self._are_deltas_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = TaskOwner()
        self.lost = 0
        """Number of statements that failed. What they carried is found by the polls of the readers."""

    def wake(self, workspace: str) -> None:
        """Notify the other nodes of new events of a workspace, after their commit."""
        self._add(EVENTS_CHANNEL, workspace)

    def want(self, place: str) -> None:
        """Notify the nodes of a place that a workspace needs an owner, after the commit of its input."""
        self._add(WANTED_CHANNEL, place)

    def add_delta(self, key: str, text: str) -> None:
        """Send a live delta of a part soon."""
        self._deltas.setdefault(key, []).append(text)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._delta_seconds, self._send_deltas)

    async def close(self) -> None:
        """Drop what is not sent."""
        if self._timer is not None:
            self._timer.cancel()
        self._tasks.cancel_all()
        await self._tasks.drain()

    def _add(self, channel: str, payload: str) -> None:
        self._wakeups[channel, payload] = None
        self._start()

    def _send_deltas(self) -> None:
        self._timer, self._are_deltas_due = None, True
        self._start()

    def _start(self) -> None:
        if not len(self._tasks):
            self._tasks.start(self._run(), name="cluster: notifications")

    async def _run(self) -> None:
        while self._wakeups or self._are_deltas_due:
            notifications, self._wakeups = list(self._wakeups), {}
            if self._are_deltas_due:
                deltas, self._deltas, self._are_deltas_due = self._deltas, {}, False
                packed = pack_deltas((key, "".join(texts)) for key, texts in deltas.items())
                notifications += [(DELTA_CHANNEL, payload) for payload in packed]
            try:
                await self._send(notifications)
            except StorageError:
                self.lost += 1
