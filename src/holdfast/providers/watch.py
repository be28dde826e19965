"""Who looks after one request while it is under way: it notices silence, and it can hang up at any moment."""

import asyncio
from collections.abc import Callable
from contextvars import ContextVar
from typing import Protocol

__all__ = ["CURRENT", "Hangable", "Watch"]


class Hangable(Protocol):
    """Something with a connection below it."""

    @property
    def has_unread(self) -> bool:
        """Whether something came that nobody has taken yet: then it is not the provider who is slow."""

    def hang_up(self) -> None:
        """Close it now, without a word. May be called more than once."""


class Watch:
    """Notices when nothing comes for too long, and closes whatever belongs to its request when it is told to.

    One timer for each request: what arrives only notes the time, so a piece of an answer costs next to nothing.
    """

    def __init__(self, first_byte: float, between: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._first_byte = first_byte
        self._between = between
        self._held: list[Hangable] = []
        self._timer: asyncio.TimerHandle | None = None
        self._on_stall: Callable[[], object] | None = None
        self.last = self._loop.time()
        """When something came last. Written by those who receive."""
        self.has_begun = False
        """Whether a piece of the answer itself has come; headers are none."""
        self.is_over = False
        self.has_stalled = False
        self.page: tuple[int, bytes] | None = None
        """Status and beginning of what came where a stream was expected: a web page, or a failure in words."""

    @property
    def patience(self) -> float:
        """How long it may be silent now."""
        return self._between if self.has_begun else self._first_byte

    def start(self, on_stall: Callable[[], object] | None = None) -> None:
        """Count from now on. `on_stall` is called after everything was hung up."""
        self._on_stall = on_stall
        self.last = self._loop.time()
        self._look_in(self.patience)

    def hold(self, what: Hangable) -> None:
        """From now on this is closed with the request. At once, if the request is over already."""
        if self.is_over:
            what.hang_up()
        else:
            self._held.append(what)

    def let_go(self, what: Hangable) -> None:
        """It goes on to serve somebody else."""
        if what in self._held:
            self._held.remove(what)

    def touch(self) -> None:
        self.last = self._loop.time()
        self.has_begun = True

    def finish(self) -> None:
        """All is well: nothing is closed any more."""
        self._held.clear()
        self._stop()

    def hang_up(self) -> None:
        """Close everything that is still held. Nothing else can be held from now on."""
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
        """Never later than the shorter patience: the answer may begin meanwhile, and then that one counts."""
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
"""The watch of the request that this task makes: the way past libraries that take no argument of ours."""
