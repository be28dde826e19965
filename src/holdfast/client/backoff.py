"""How long to wait before the next attempt. Pure."""

from collections.abc import Callable

__all__ = ["Backoff"]


class Backoff:
    """Waits that double, with jitter so that many readers do not come back at one moment.

    `jitter` gives a number from 0 to 1; a wait is between half of its length and all of it.
    """

    def __init__(self, jitter: Callable[[], float], *, first: float = 0.25, most: float = 5.0) -> None:
        self._jitter = jitter
        self._first = first
        self._most = most
        self._next = first

    def wait(self) -> float:
        wait, self._next = self._next, min(self._next * 2, self._most)
        return wait * (0.5 + 0.5 * self._jitter())

    def reset(self) -> None:
        self._next = self._first
