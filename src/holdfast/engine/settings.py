"""Settings of the engine. Times are in seconds."""

import msgspec

from holdfast.engine.retries import RetryPolicy

__all__ = ["EngineSettings", "Limits", "Pace"]


class Limits(msgspec.Struct, frozen=True):
    """Limits of each run, whether a client is attached or not (decision 33). A run that exceeds one ends `failed`; 0 is
    no limit.
    """

    steps: int = 500
    minutes: float = 480.0
    cost: float = 0.0


class Pace(msgspec.Struct, frozen=True):
    """Interval at which a growing message is stored. A crash loses at most this much streamed text."""

    seconds: float = 0.25
    characters: int = 4_096


class EngineSettings(msgspec.Struct, frozen=True):
    """Limits, timeouts and intervals of the engine, in seconds where no unit is named."""

    grace: float = 2.0
    """Time that the tools of a cancelled run have to stop."""
    margin: float = 0.15
    """Time after the grace until a run that does not stop is abandoned and ended."""
    closing: float = 1.0
    """Time that a shutdown waits for the last writes, beyond the grace."""
    cancel_write: float = 0.25
    """Time that the response to a cancel waits for its write. The cancel itself takes effect at once."""
    retry_first: float = 0.05
    retry_longest: float = 1.0
    """Delays between attempts to store an end: the first, doubled up to the longest."""
    retries: RetryPolicy = RetryPolicy()
    """Retries of provider requests."""
    parallel_tools: int = 5
    subagent_depth: int = 2
    """Maximum nesting of sub-agents; 0 for none."""
    max_subagents: int = 16
    """Maximum number of sub-agents of one run that run at the same time."""
    auto_summarize: bool = True
    titles: bool = True
    limits: Limits = Limits()
    pace: Pace = Pace()
