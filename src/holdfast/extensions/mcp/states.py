"""Connection state of an MCP server: status, reason, and time of the next attempt. Pure.

A server that cannot be reached is retried with exponential backoff, and not any more after `TRIES` failures. A call of
one of its tools, or a change of its settings, triggers an immediate attempt. Errors that need a user action (a missing
program, a login) are not retried automatically.
"""

import msgspec

from holdfast.domain.mcp import McpState

__all__ = [
    "DISABLED",
    "WAITING",
    "Standing",
    "barred",
    "begun",
    "failed",
    "joined",
    "lost",
    "pause_after",
    "pause_between",
]

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 60.0
TRIES = 8
"""Maximum consecutive failures before automatic retries end."""
STEADY = 30.0
"""A connection that lasted this many seconds resets the failure count."""


class Standing(msgspec.Struct, frozen=True):
    """State of a server. `pause` is the delay in seconds before the next attempt; None means on request only."""

    state: McpState
    reason: str = ""
    failures: int = 0
    pause: float | None = None


DISABLED = Standing("disabled")
WAITING = Standing("starting", pause=0.0)
"""Initial state, before the first attempt."""


def pause_after(failures: int) -> float | None:
    """Return the retry delay: doubles from `FIRST_PAUSE` to `LONGEST_PAUSE`; None after `TRIES` failures."""
    if failures >= TRIES:
        return None
    return min(FIRST_PAUSE * 2.0 ** max(0, failures - 1), LONGEST_PAUSE)


def pause_between(last: float, *, is_quiet: bool) -> float:
    """Return the delay before lists are read again. It doubles while the server keeps announcing changes."""
    return FIRST_PAUSE if is_quiet else min(last * 2.0, LONGEST_PAUSE)


def begun(standing: Standing) -> Standing:
    """Start an attempt. The last failure reason is kept until an attempt succeeds."""
    return Standing("starting", standing.reason, standing.failures)


def joined(standing: Standing) -> Standing:
    """Enter the connected state. The failure count is kept until the connection has lasted `STEADY` seconds."""
    return Standing("connected", failures=standing.failures)


def failed(standing: Standing, reason: str, *, is_final: bool = False) -> Standing:
    """Record a failed attempt. `is_final` disables automatic retries."""
    failures = standing.failures + 1
    return Standing("error", reason, failures, None if is_final else pause_after(failures))


def lost(standing: Standing, reason: str, lasted: float) -> Standing:
    """Record the end of a connection that lasted `lasted` seconds."""
    before = 0 if lasted >= STEADY else standing.failures
    return failed(Standing("connected", failures=before), reason)


def barred(reason: str) -> Standing:
    """Enter the state that requires a login."""
    return Standing("needs auth", reason)
