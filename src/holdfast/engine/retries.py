"""Retry policy for provider requests. Pure.

Only transient errors are retried. A retry is always safe: tools run after a response is complete, so a failed attempt
has produced nothing but text.
"""

import msgspec

from holdfast.domain.errors import ProviderError, Trouble

__all__ = ["RetryPolicy", "retry_delay"]

_TRANSIENT: frozenset[Trouble] = frozenset({"busy", "connection", "cut", "loading", "stalled"})


class RetryPolicy(msgspec.Struct, frozen=True):
    """Number of retries and delays in seconds: `first`, doubled each time, `longest` at most."""

    most: int = 5
    first: float = 1.0
    longest: float = 30.0
    patience: float = 60.0
    """Maximum delay that a provider may request. A longer one is an error, because the user should decide about it."""
    loading_interval: float = 2.0
    loading_timeout: float = 300.0
    """Maximum time to wait for a server that loads its model, which depends on the model, not on the number of
    tries.
    """

    def attempts(self, trouble: Trouble) -> int:
        """Return how many retries a failure of this kind gets at most."""
        return int(self.loading_timeout / self.loading_interval) if trouble == "loading" else self.most


def retry_delay(policy: RetryPolicy, error: ProviderError, failures: int) -> float | None:
    """Return the seconds until the next attempt after `failures` failed ones; None if there is no further attempt."""
    if error.trouble not in _TRANSIENT or failures > policy.attempts(error.trouble):
        return None
    if error.trouble == "loading":
        return policy.loading_interval
    if error.retry_after is not None:
        return error.retry_after if 0 <= error.retry_after <= policy.patience else None
    return min(policy.first * 2.0 ** (failures - 1), policy.longest)
