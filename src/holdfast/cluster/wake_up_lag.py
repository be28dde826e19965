"""Times from the arrival of a wake-up at a node until the events that it announces are handled there. Pure.

Only the clock of this node is read: times of events are those of the node that stored them.
"""

from bisect import bisect_left

__all__ = ["WakeUpLag"]


class WakeUpLag:
    """A histogram. `bounds` are the upper bounds of the buckets, in seconds; the last bucket has none."""

    bounds = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)

    def __init__(self) -> None:
        self.buckets = [0] * (len(self.bounds) + 1)
        self.seconds = 0.0

    def observe(self, seconds: float) -> None:
        """Count one wake-up that was handled."""
        self.buckets[bisect_left(self.bounds, seconds)] += 1
        self.seconds += seconds
