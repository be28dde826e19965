"""Retries of ends that could not be stored: when the next attempt is made, and what came of it."""

import asyncio

from holdfast.domain.errors import StorageError, StorageUnavailable

__all__ = ["EndRetries"]


class EndRetries:
    """One for a workspace. While `has_failed`, no prompt is accepted: its end could not be stored either."""

    def __init__(self) -> None:
        self.error: StorageError | None = None
        """Why the last attempt failed; None after one that succeeded."""
        self._paused: list[asyncio.Future[None]] = []
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def has_failed(self) -> bool:
        return self.error is not None

    def refusal(self) -> StorageUnavailable:
        """Return the error for a prompt that is not accepted: it names the reason, which need not be a full disk."""
        return type(self.error)(str(self.error)) if isinstance(self.error, StorageUnavailable) else StorageUnavailable()

    async def pause(self, seconds: float) -> None:
        """Wait after a failed attempt: so long, or until somebody wants it to be made now."""
        _wake(self._waiting)
        await _wait_in(self._paused, seconds)

    def succeed(self) -> None:
        """An end was stored."""
        self.error = None
        _wake(self._waiting)

    async def retry(self, seconds: float) -> bool:
        """Have an attempt made at once. Whether it succeeded, within so many seconds.

        One that fails now may have begun before the disk was freed: only a second one tells.
        """
        for _ in range(2):
            if self.has_failed:
                _wake(self._paused)
                await _wait_in(self._waiting, seconds)
        return not self.has_failed


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()


async def _wait_in(waiters: list[asyncio.Future[None]], seconds: float) -> None:
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiters.append(waiter)
    try:
        await asyncio.wait([waiter], timeout=seconds)
    finally:
        if waiter in waiters:
            waiters.remove(waiter)
