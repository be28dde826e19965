"""Retry delays with jitter. Pure."""

from collections.abc import Callable

__all__ = ["Backoff"]


class Backoff:
    """Delays that double, with jitter, so that many clients do not reconnect at the same moment.

    `jitter` returns a number from 0 to 1; a delay is between half of its nominal length and all of it.
    """

    def __init__(self, jitter: Callable[[], float], *, initial: float = 0.25, maximum: float = 5.0) -> None:
        self._jitter = jitter
        self._initial = initial
        self._maximum = maximum
        self._next = initial

    def wait(self) -> float:
        """Return the next delay in seconds."""
        wait, self._next = self._next, min(self._next * 2, self._maximum)
        return wait * (0.5 + 0.5 * self._jitter())

    def reset(self) -> None:
        """Start again with the first delay."""
        self._next = self._initial
