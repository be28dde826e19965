"""The last look at the disk, and the next: shared by all who ask, waited for only so long.

A look is taken in a thread, unless the one before took next to no time: to wake a thread takes longer than that.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from holdfast.domain.tools import Tool
from holdfast.tasks import TaskOwner

__all__ = ["Looking", "Watch"]

T = TypeVar("T")

_PATIENCE = 1.0
_MOST = 4
_NO_TIME = 0.001
_log = logging.getLogger("holdfast.server")


class Watch(Generic[T]):
    """`look` blocks and never raises; `on_change` is called in the loop when it has found something else."""

    def __init__(self, look: Callable[[], T], nothing: T, on_change: Callable[[], None] = lambda: None) -> None:
        self._look = look
        self._on_change = on_change
        self._tasks = TaskOwner()
        self._latest: asyncio.Task[None] | None = None
        self._begun = self._applied = 0
        self._took = _PATIENCE
        self.current = nothing
        """As of the last look."""

    @property
    def has_looked(self) -> bool:
        return self._applied > 0

    def begin(self) -> None:
        """Look in the background."""
        self._start()

    async def fresh(self, patience: float = _PATIENCE) -> T:
        """What is there now; what was there before, if the disk is too slow to say."""
        if self._took < _NO_TIME:
            self._begun += 1
            self._take(self._begun, self._timed())
        else:
            await asyncio.wait((self._start(),), timeout=patience)
        return self.current

    def _start(self) -> asyncio.Task[None]:
        """A look that begins now; where a disk does not answer, they do not pile up."""
        if self._latest is None or len(self._tasks) < _MOST:
            self._latest = self._tasks.start(self._see(), name="look at extensions")
        return self._latest

    async def _see(self) -> None:
        self._begun += 1
        number = self._begun
        self._take(number, await asyncio.to_thread(self._timed))

    def _timed(self) -> T | None:
        """What is there; None if the look failed."""
        began = time.perf_counter()
        try:
            return self._look()
        except Exception:
            _log.exception("a look at extensions failed")
            return None
        finally:
            self._took = time.perf_counter() - began

    def _take(self, number: int, found: T | None) -> None:
        if found is not None and number > self._applied:
            self._applied = number
            if found != self.current:
                self.current = found
                self._on_change()

    async def close(self) -> None:
        self._tasks.cancel_all()
        await self._tasks.drain()


class Looking(Generic[T]):
    """An extension that is a look at the disk and nothing more: it has no tools and no processes."""

    def __init__(self, watch: Watch[T]) -> None:
        self._watch = watch

    @property
    def current(self) -> T:
        """As of the last look."""
        return self._watch.current

    async def fresh(self) -> T:
        return await self._watch.fresh()

    def start(self) -> None:
        self._watch.begin()

    def refresh(self) -> None:
        self._watch.begin()

    def tools(self) -> Sequence[Tool]:
        return ()

    async def close(self) -> None:
        await self._watch.close()
