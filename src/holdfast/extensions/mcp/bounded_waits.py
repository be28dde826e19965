"""Bounded waiting for MCP servers.

Cancelling a request over a connection first sends a cancellation to the server, which can block if the server hangs.
Therefore each request runs in its own task, which is detached when the caller stops waiting.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from holdfast.tasks import TaskOwner

__all__ = ["DetachedWait", "RateLimit", "StartLimiter", "retrieve_exception"]

T = TypeVar("T")

_CANCEL_TIMEOUT = 0.1
"""Seconds allowed for sending the cancellation of an abandoned request. The caller waits no longer than this."""

_BURST_MESSAGES = 64
_BURST_PAUSE = 0.05
"""Pause after each burst of `_BURST_MESSAGES` messages, in seconds: a flooding server is read slowly and
leaves time for others.
"""


_MAX_CONCURRENT_STARTS = 3
_SLOT_TIMEOUT = 3.0


class StartLimiter:
    """Limits how many servers start at the same time. A start that hangs gives up its slot after `seconds`."""

    def __init__(self, limit: int = _MAX_CONCURRENT_STARTS, seconds: float = _SLOT_TIMEOUT) -> None:
        self._slots = asyncio.Semaphore(limit)
        self._seconds = seconds

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Hold a start slot for the duration of the block, or until the time limit has passed."""
        await self._slots.acquire()
        is_held = True

        def release() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._slots.release()

        # A hanging start keeps running; it only stops delaying the others.
        timer = asyncio.get_running_loop().call_later(self._seconds, release)
        try:
            yield
        finally:
            timer.cancel()
            release()


class RateLimit:
    """Flow control for messages read from a server."""

    def __init__(self) -> None:
        self._count = 0

    async def step(self) -> None:
        """Count one message, and pause after each burst. To be awaited before each message."""
        self._count += 1
        if self._count % _BURST_MESSAGES == 0:
            await asyncio.sleep(_BURST_PAUSE)


class DetachedWait:
    """Requests in progress, each in its own task."""

    def __init__(self) -> None:
        self._tasks = TaskOwner()

    async def wait(self, work: Coroutine[Any, Any, T], seconds: float | Callable[[], float | None], *, name: str) -> T:
        """Run `work` and return its result. `seconds` is the time limit; a callable is evaluated again whenever the
        time it returned has passed, and None means no limit. Raises `TimeoutError`.
        """
        task = self._tasks.start(work, name=name, done=retrieve_exception)
        try:
            while not task.done():
                remaining = seconds() if callable(seconds) else seconds
                if remaining is not None and remaining <= 0:
                    raise TimeoutError
                await asyncio.wait({task}, timeout=remaining)
                # A fixed limit has passed once; a callable is evaluated again, because progress may have extended it.
                if not callable(seconds) and not task.done():
                    raise TimeoutError
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                # `asyncio.wait` does not cancel the task again and does not raise its exception.
                await asyncio.wait({task}, timeout=_CANCEL_TIMEOUT)

    def cancel_all(self) -> None:
        """Cancel all requests in progress without waiting for them."""
        self._tasks.cancel_all()

    async def drain(self) -> None:
        """Wait until the cancelled requests have ended. Close their connections first."""
        await self._tasks.drain()


def retrieve_exception(task: "asyncio.Task[Any]") -> None:
    """Done callback that marks the exception as retrieved: only the task's waiter reports it."""
    if not task.cancelled():
        task.exception()
