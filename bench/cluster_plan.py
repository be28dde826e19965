"""Sizes of a run of `scripts/bench cluster`, and what its groups of rows share."""

from collections.abc import Iterable, Sequence
from statistics import median, quantiles

import msgspec

from bench.figures import Figure, Goal

__all__ = ["FULL", "QUICK", "ClusterPlan", "percentile", "rows_of"]


class ClusterPlan(msgspec.Struct, frozen=True):
    """Numbers of trials and sizes."""

    trials: int = 5
    """Failures of each kind."""
    rounds: int = 4
    """Seconds of accepts at 200 per second, alternating with the bare statement."""
    bursts: int = 20
    deliveries: int = 100
    cancels: int = 20
    resumes: int = 9
    outage: float = 30.0
    """Seconds without PostgreSQL."""
    load_nodes: int = 4
    load_workspaces: int = 200
    load_seconds: float = 10.0
    nodes: tuple[int, ...] = (1, 2, 4)
    workspaces: tuple[int, ...] = (20, 200, 2_000)
    readers: tuple[int, ...] = (1, 10, 100)
    listeners: tuple[int, ...] = (1, 10, 100)
    turns: int = 400
    """Turns of a measurement of growth."""
    idle_seconds: float = 8.0


FULL = ClusterPlan()
QUICK = ClusterPlan(
    trials=1,
    rounds=1,
    bursts=4,
    deliveries=20,
    cancels=4,
    resumes=3,
    outage=6.0,
    load_nodes=2,
    load_workspaces=20,
    load_seconds=3.0,
    nodes=(1, 2),
    workspaces=(20, 100),
    readers=(1, 10),
    listeners=(1, 10),
    turns=40,
    idle_seconds=3.0,
)


def percentile(samples: Sequence[float], percent: int) -> float:
    """Return a percentile; the median and the maximum of few samples."""
    if percent == 50:
        return median(samples)
    return quantiles(samples, n=100)[percent - 1] if len(samples) >= 100 else max(samples)


def rows_of(
    name: str,
    samples: Sequence[float],
    bare: Sequence[float],
    beside: str,
    section: str,
    goals: Iterable[float | None] = (None, None),
) -> list[Figure]:
    """Return the rows of p50 and p99 in milliseconds; with fewer than 100 samples the maximum replaces p99."""
    figures = []
    for percent, goal in zip((50, 99), goals, strict=True):
        label = "p50" if percent == 50 else "p99" if len(samples) >= 100 else f"slowest of {len(samples)}"
        limit = percentile(bare, percent) if bare else None
        bound = None if goal is None else Goal(goal)
        figures.append(
            Figure(f"{name}, {label}", percentile(samples, percent), "ms", limit, beside, bound, "", section)
        )
    return figures
