"""Waiting for a server no longer than one wants to, whatever it does.

What is cancelled over a connection first says so to the server, and that may take its time where the server hangs. So
each question has a task of its own, which is left to itself when nobody waits for it any more.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from holdfast.tasks import TaskOwner

__all__ = ["Doors", "Pace", "Patience", "seen"]

T = TypeVar("T")

_PARTING = 0.1
"""Seconds in which a server is told that nobody wants the answer any more. Nobody waits longer for it."""

_BURST = 64
_BREATH = 0.05
"""After so many messages there is a pause of so many seconds: whoever floods is read slowly, and others have theirs."""


_AT_ONCE = 3
_AT_THE_DOOR = 3.0


class Doors:
    """Those that start at the same time are few, for the machine's sake. One that hangs keeps nobody waiting."""

    def __init__(self, at_once: int = _AT_ONCE, seconds: float = _AT_THE_DOOR) -> None:
        self._room = asyncio.Semaphore(at_once)
        self._seconds = seconds

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        await self._room.acquire()
        is_inside = True

        def leave() -> None:
            nonlocal is_inside
            if is_inside:
                is_inside = False
                self._room.release()

        timer = asyncio.get_running_loop().call_later(self._seconds, leave)
        try:
            yield
        finally:
            timer.cancel()
            leave()


class Pace:
    """How fast one that talks is listened to."""

    def __init__(self) -> None:
        self._count = 0

    async def step(self) -> None:
        """Before each message."""
        self._count += 1
        if self._count % _BURST == 0:
            await asyncio.sleep(_BREATH)


class Patience:
    """The questions that are under way."""

    def __init__(self) -> None:
        self._tasks = TaskOwner()

    async def wait(self, work: Coroutine[Any, Any, T], seconds: float | Callable[[], float | None], *, name: str) -> T:
        """What comes of it. `seconds` says how long to wait from now on, asked anew whenever that is over; None is for
        ever. Raises `TimeoutError`.
        """
        task = self._tasks.start(work, name=name, done=seen)
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


def seen(task: "asyncio.Task[Any]") -> None:
    """When it is done: whoever waits for it has its error, and nobody else is to be told."""
    if not task.cancelled():
        task.exception()
