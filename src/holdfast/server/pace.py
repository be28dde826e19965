"""Write rate of one subscriber. Pure; time is an argument.

A few writes are made at once, so that neither a slow stream of tokens nor the response to a cancel is delayed. A
subscriber that is written to repeatedly within a short time is delayed, and events that arrive in the meantime are
written together. The delay doubles while the event loop is late, and shrinks again when it keeps up. It stays short: a
long delay would let the subscriber fall behind the buffer of the bus.
"""

__all__ = ["LONGEST_WAIT", "SHORTEST_WAIT", "Pace"]

SHORTEST_WAIT = 0.002
LONGEST_WAIT = 0.008
_AT_ONCE = 16.0
_LATE = 0.5


class Pace:
    """Rate of one subscriber. Call `wait` before every write, and `waited` after the delay."""

    def __init__(self, now: float) -> None:
        self._credit = _AT_ONCE
        self._seen = now
        self.pause = SHORTEST_WAIT
        """Current minimum interval between writes."""
        self._due = now

    def wait(self, now: float) -> float:
        """Return the delay before the next write in seconds; 0 for none."""
        self._credit = min(_AT_ONCE, self._credit + (now - self._seen) / self.pause)
        self._seen = now
        if self._credit >= 1:
            self._credit -= 1
            return 0.0
        # Align the delay with that of other subscribers: they then take the same frames, which are merged once.
        seconds = self.pause - now % self.pause
        if seconds < self.pause / 4:
            seconds += self.pause
        self._due = now + seconds
        return seconds

    def waited(self, now: float) -> None:
        """Record the end of a delay. One that took much longer than requested indicates load."""
        if now - self._due > self.pause * _LATE:
            self.pause = min(LONGEST_WAIT, self.pause * 2)
        else:
            self.pause = max(SHORTEST_WAIT, self.pause / 2)
        self._seen = now
        self._credit = 0.0
