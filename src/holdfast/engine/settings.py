"""What a user may set about the engine. Times in seconds."""

import msgspec

from holdfast.engine.retries import RetryPolicy
from holdfast.engine.turn import Pace

__all__ = ["EngineSettings", "Limits"]


class Limits(msgspec.Struct, frozen=True):
    """Limits of each run, whether a client is attached or not (decision 33). A run that exceeds one ends `failed`; 0 is
    no limit.
    """

    steps: int = 500
    minutes: float = 480.0
    cost: float = 0.0


class EngineSettings(msgspec.Struct, frozen=True):
    """Limits, timeouts and intervals of the engine, in seconds where no unit is named."""

    grace: float = 2.0
    """How long the tools of a cancelled run may take to stop."""
    margin: float = 0.15
    """How long after the grace a run that does not stop is given up; its end follows at once."""
    closing: float = 1.0
    """How long a shutdown waits for the last writes, beyond the grace."""
    cancel_write: float = 0.25
    """How long a cancel waits for the disk before it is carried out all the same."""
    retry_first: float = 0.05
    retry_longest: float = 1.0
    """How often an end is tried again while the storage fails."""
    retries: RetryPolicy = RetryPolicy()
    """How often a provider that failed is asked again."""
    parallel_tools: int = 5
    helper_depth: int = 2
    """How many helpers may stand below each other; 0 is none."""
    helpers: int = 16
    """How many helpers of one run may be under way at once."""
    auto_summarize: bool = True
    titles: bool = True
    limits: Limits = Limits()
    pace: Pace = Pace()
