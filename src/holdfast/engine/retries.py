"""When a provider that failed is asked again. Pure.

Only for troubles that may pass by themselves, and only as long as nothing but words came of the attempt: tools
run after an answer is complete, so no attempt that is repeated had an effect.
"""

import msgspec

from holdfast.domain.errors import ProviderError, Trouble

__all__ = ["RetryPolicy", "wait_before_retry"]

_PASSING: frozenset[Trouble] = frozenset({"busy", "connection", "cut", "loading", "stalled"})


class RetryPolicy(msgspec.Struct, frozen=True):
    """How often, and after how many seconds: `first`, then twice as long each time, `longest` at most."""

    most: int = 5
    first: float = 1.0
    longest: float = 30.0
    patience: float = 60.0
    """What a provider may ask us to wait. Who asks for more has failed: people decide about hours."""
    loading_interval: float = 2.0
    loading_timeout: float = 300.0
    """How long a server that loads its model is waited for: the size of the model decides, not the number of tries."""

    def attempts(self, trouble: Trouble) -> int:
        """Return how many retries a failure of this kind gets at most."""
        return int(self.loading_timeout / self.loading_interval) if trouble == "loading" else self.most


def wait_before_retry(policy: RetryPolicy, error: ProviderError, failures: int) -> float | None:
    """Seconds until the next attempt after so many failed ones, the last with this error; None if there is none."""
    if error.trouble not in _PASSING or failures > policy.attempts(error.trouble):
        return None
    if error.trouble == "loading":
        return policy.loading_interval
    if error.retry_after is not None:
        return error.retry_after if 0 <= error.retry_after <= policy.patience else None
    return min(policy.first * 2.0 ** (failures - 1), policy.longest)
