"""Waiting for a server no longer than one wants to, whatever it does.

What is cancelled over a connection first says so to the server, and that may take its time where the server hangs. So
each question has a task of its own, which is left to itself when nobody waits for it any more.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from holdfast.tasks import TaskOwner

__all__ = ["Patience"]

T = TypeVar("T")

_PARTING = 0.1
"""Seconds in which a server is told that nobody wants the answer any more. Nobody waits longer for it."""


class Patience:
    """The questions that are under way."""

    def __init__(self) -> None:
        self._tasks = TaskOwner()

    async def wait(self, work: Coroutine[Any, Any, T], seconds: float | Callable[[], float | None], *, name: str) -> T:
        """What comes of it. `seconds` says how long to wait from now on, asked anew whenever that is over; None is for
        ever. Raises `TimeoutError`.
        """
        task = self._tasks.start(work, name=name, done=_seen)
        try:
            while not task.done():
                left = seconds() if callable(seconds) else seconds
                if left is not None and left <= 0:
                    raise TimeoutError
                await asyncio.wait({task}, timeout=left)
                if not callable(seconds) and not task.done():
                    raise TimeoutError
            return task.result()
        finally:
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=_PARTING)

    def give_up(self) -> None:
        self._tasks.cancel_all()

    async def drain(self) -> None:
        """Those that were given up have ended when this returns: close their connections first."""
        await self._tasks.drain()


def _seen(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()
