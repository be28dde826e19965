"""Replies of storage threads to the event loops of their callers."""

import asyncio
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

from holdfast.domain.errors import StorageError

__all__ = ["Reply", "deliver"]

T = TypeVar("T")


class Reply(Generic[T]):
    """A future that is created in the caller's loop and settled in it."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[T] = self.loop.create_future()

    def settle(self, result: T | StorageError) -> None:
        """Set the result or exception. Runs in the loop. The caller may have stopped waiting; the work is done
        all the same.
        """
        if self.future.done():
            return
        if isinstance(result, StorageError):
            self.future.set_exception(result)
        else:
            self.future.set_result(result)


def deliver(answers: Iterable[tuple[Reply[Any], Any]]) -> None:
    """Settle replies from any thread. A group of replies wakes each loop once."""
    by_loop: dict[asyncio.AbstractEventLoop, list[tuple[Reply[Any], Any]]] = {}
    for reply, result in answers:
        by_loop.setdefault(reply.loop, []).append((reply, result))
    for loop, batch in by_loop.items():
        try:
            loop.call_soon_threadsafe(_settle, batch)
        except RuntimeError:
            # The loop is closed, so there is no waiter left.
            continue


def _settle(answers: Iterable[tuple[Reply[Any], Any]]) -> None:
    for reply, result in answers:
        reply.settle(result)
