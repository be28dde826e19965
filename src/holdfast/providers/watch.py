"""Supervision of one request: detects silence, and closes its connections on demand."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Protocol

__all__ = ["CURRENT", "Hangable", "Watch"]


class Hangable(Protocol):
    """An object that owns a connection."""

    @property
    def has_unread(self) -> bool:
        """True if received data have not been read yet. The reader is then slow, not the provider."""

    def hang_up(self) -> None:
        """Close the connection immediately. Idempotent."""


class Watch:
    """Detects a silent provider and closes the connections of its request on demand.

    There is one timer per request. Received data only update a timestamp, so a chunk costs next to nothing.
    """

    def __init__(self, first_byte: float, between: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._first_byte = first_byte
        self._between = between
        self._held: list[Hangable] = []
        self._timer: asyncio.TimerHandle | None = None
        self._on_stall: Callable[[], object] | None = None
        self.last = self._loop.time()
        """Time of the last received data, written by the receivers."""
        self.has_begun = False
        """True if a part of the body was received; headers do not count."""
        self.is_over = False
        self.has_stalled = False
        self.page: tuple[int, bytes] | None = None
        """Status and beginning of a body received instead of a stream: a web page or a JSON error."""

    @property
    def patience(self) -> float:
        """Current limit for silence in seconds."""
        return self._between if self.has_begun else self._first_byte

    def start(self, on_stall: Callable[[], object] | None = None) -> None:
        """Start the timer. `on_stall` is called after all connections were closed."""
        self._on_stall = on_stall
        self.last = self._loop.time()
        self._look_in(self.patience)

    def hold(self, what: Hangable) -> None:
        """Register a connection to be closed with the request; closed at once if the request is already over."""
        if self.is_over:
            what.hang_up()
        else:
            self._held.append(what)

    def let_go(self, what: Hangable) -> None:
        """Unregister a connection that will be reused by another request."""
        if what in self._held:
            self._held.remove(what)

    def touch(self) -> None:
        """Record received body data."""
        self.last = self._loop.time()
        self.has_begun = True

    def finish(self) -> None:
        """End the supervision of a successful request without closing anything."""
        self._held.clear()
        self._stop()

    def hang_up(self) -> None:
        """Close all registered connections. Later registrations are closed at once."""
        self._stop()
        held, self._held = self._held, []
        for item in held:
            item.hang_up()

    def _stop(self) -> None:
        self.is_over = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_in(self, seconds: float) -> None:
        """Schedule the next check, at most `between` seconds from now, because that limit applies as soon as the body
        begins.
        """
        self._timer = self._loop.call_later(min(seconds, self._between), self._look)

    def _look(self) -> None:
        if any(item.has_unread for item in self._held):
            self.last = self._loop.time()
        left = self.last + self.patience - self._loop.time()
        if left > 0:
            self._look_in(left)
            return
        self.has_stalled = True
        self.hang_up()
        if self._on_stall is not None:
            self._on_stall()


CURRENT: ContextVar[Watch | None] = ContextVar("holdfast_watch", default=None)
"""Watch of the request made by the current task; reaches our transport through SDKs without a parameter for it."""
