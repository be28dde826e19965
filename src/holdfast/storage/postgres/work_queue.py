"""Jobs of one workspace, executed one after another.

A job runs to its end even if its caller no longer waits for it, because a write that was sent takes effect in any case.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from holdfast.tasks import TaskOwner

__all__ = ["WorkQueue"]

T = TypeVar("T")


class WorkQueue:
    """A queue of jobs and the task that executes them."""

    def __init__(self, tasks: TaskOwner) -> None:
        self._tasks = tasks
        self._jobs: deque[tuple[Callable[[], Awaitable[Any]], asyncio.Future[Any]]] = deque()
        self._is_running = False

    def submit(self, work: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        """Queue a job and return a future of its result."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._jobs.append((work, future))
        if not self._is_running:
            self._is_running = True
            self._tasks.start(self._drain(), name="postgres")
        return future

    async def _drain(self) -> None:
        try:
            while self._jobs:
                work, future = self._jobs.popleft()
                await _execute(work, future)
        finally:
            self._is_running = False


async def _execute(work: Callable[[], Awaitable[Any]], future: asyncio.Future[Any]) -> None:
    try:
        result = await work()
    except Exception as error:
        if not future.done():
            future.set_exception(error)
            # Mark the exception as retrieved: the caller may have been cancelled.
            future.exception()
        return
    if not future.done():
        future.set_result(result)
