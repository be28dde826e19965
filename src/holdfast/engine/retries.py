"""When a provider that failed is asked again. Pure.

Only for troubles that may pass by themselves, and only as long as nothing but words came of the attempt: tools
run after an answer is complete, so no attempt that is repeated had an effect.
"""

import msgspec

from holdfast.domain.errors import ProviderError, Trouble

__all__ = ["RetryPolicy", "wait_before_retry"]

_PASSING: frozenset[Trouble] = frozenset({"busy", "connection", "cut", "stalled"})


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often, and after how many seconds: `first`, then twice as long each time, `longest` at most."""

    most: int = 5
    first: float = 1.0
    longest: float = 30.0
    patience: float = 60.0
    """What a provider may ask us to wait. Who asks for more has failed: people decide about hours."""


def wait_before_retry(policy: RetryPolicy, error: ProviderError, failures: int) -> float | None:
    """Seconds until the next attempt after so many failed ones, the last with this error; None if there is none."""
    if error.trouble not in _PASSING or failures > policy.most:
        return None
    if error.retry_after is not None:
        return error.retry_after if 0 <= error.retry_after <= policy.patience else None
    return min(policy.first * 2.0 ** (failures - 1), policy.longest)
