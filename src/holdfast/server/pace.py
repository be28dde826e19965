"""How often one reader is written to. Pure; time is handed in.

A few writes go out at once, so that neither a paced stream of tokens nor what a cancel says is held back. Who is
written to again and again within moments waits a little before the next: what comes meanwhile goes out in one piece.
The wait grows while the loop is behind with its work, and shrinks again when it keeps up. It stays short: who waits
long falls behind what the bus holds.
"""

__all__ = ["LONGEST_WAIT", "SHORTEST_WAIT", "Pace"]

SHORTEST_WAIT = 0.002
LONGEST_WAIT = 0.008
_AT_ONCE = 16.0
_LATE = 0.5


class Pace:
    """One reader's. Ask `wait` before every write; after having waited, tell `waited`."""

    def __init__(self, now: float) -> None:
        self._credit = _AT_ONCE
        self._seen = now
        self.pause = SHORTEST_WAIT
        """How far apart writes are at the moment, at least."""
        self._due = now

    def wait(self, now: float) -> float:
        """How long to wait before the next write, in seconds; 0 for not at all."""
        self._credit = min(_AT_ONCE, self._credit + (now - self._seen) / self.pause)
        self._seen = now
        if self._credit >= 1:
            self._credit -= 1
            return 0.0
        # To the same moment as everybody else who waits: what they take then is the same, and is made once.
        seconds = self.pause - now % self.pause
        if seconds < self.pause / 4:
            seconds += self.pause
        self._due = now + seconds
        return seconds

    def waited(self, now: float) -> None:
        """A wait is over. One that took much longer than it should have is a sign of load."""
        if now - self._due > self.pause * _LATE:
            self.pause = min(LONGEST_WAIT, self.pause * 2)
        else:
            self.pause = max(SHORTEST_WAIT, self.pause / 2)
        self._seen = now
        self._credit = 0.0
