"""Cached result of a disk scan, refreshed on request. Concurrent callers share a scan, and wait for a limited time.

A scan runs in a thread, unless the previous one was faster than starting a thread.
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
    """The cached result. `look` blocks and never raises; `on_change` is called in the event loop when the result
    differs.
    """

    def __init__(self, look: Callable[[], T], nothing: T, on_change: Callable[[], None] = lambda: None) -> None:
        self._look = look
        self._on_change = on_change
        self._tasks = TaskOwner()
        self._latest: asyncio.Task[None] | None = None
        self._begun = self._applied = 0
        self._took = _PATIENCE
        self.current = nothing
        """Result of the last scan."""

    @property
    def has_looked(self) -> bool:
        """True if a scan has finished."""
        return self._applied > 0

    def begin(self) -> None:
        """Start a scan in the background."""
        self._start()

    async def fresh(self, patience: float = _PATIENCE) -> T:
        """Scan and return the result; the previous result if the scan takes longer than `patience`."""
        if self._took < _NO_TIME:
            self._begun += 1
            self._take(self._begun, self._timed())
        else:
            await asyncio.wait((self._start(),), timeout=patience)
        return self.current

    def _start(self) -> asyncio.Task[None]:
        """Start a scan. The number of concurrent scans is bounded, in case the disk does not respond."""
        if self._latest is None or len(self._tasks) < _MOST:
            self._latest = self._tasks.start(self._see(), name="look at extensions")
        return self._latest

    async def _see(self) -> None:
        self._begun += 1
        number = self._begun
        self._take(number, await asyncio.to_thread(self._timed))

    def _timed(self) -> T | None:
        """Scan and measure the duration. Returns None if the scan failed."""
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
        """Cancel running scans."""
        self._tasks.cancel_all()
        await self._tasks.drain()


class Looking(Generic[T]):
    """Base class of extensions that only scan the disk: they have no tools and no processes."""

    def __init__(self, watch: Watch[T]) -> None:
        self._watch = watch

    @property
    def current(self) -> T:
        """Result of the last scan."""
        return self._watch.current

    async def fresh(self) -> T:
        """Scan and return the result."""
        return await self._watch.fresh()

    def start(self) -> None:
        """Start the first scan."""
        self._watch.begin()

    def refresh(self) -> None:
        """Start a new scan."""
        self._watch.begin()

    def tools(self) -> Sequence[Tool]:
        """Return no tools."""
        return ()

    async def close(self) -> None:
        """Cancel running scans."""
        await self._watch.close()
