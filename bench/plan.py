"""Numbers of rounds and sizes of a run of `scripts/bench table`."""

import msgspec

__all__ = ["QUICK", "Plan"]


class Plan(msgspec.Struct, frozen=True):
    """Rounds per row, and sizes of the rows about growth."""

    rounds: int = 30
    """Single requests and turns."""
    series: int = 7
    """Series of many turns."""
    starts: int = 9
    """Starts of a process."""
    lengths: tuple[int, ...] = (200, 2_000, 20_000)
    """Tokens of an answer."""
    sessions: int = 10_000
    events: int = 100_000
    workspaces: int = 200
    senders: int = 24


QUICK = Plan(rounds=8, series=2, starts=3, lengths=(200, 2_000), sessions=1_000, events=10_000, workspaces=20)
