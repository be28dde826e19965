"""What becomes of a server: how it stands, why, and when it is tried again. Pure.

A server that cannot be reached is tried again, later each time, and left alone after a while: whoever calls one of its
tools, or changes its settings, has it tried at once. What only a person can mend (a program that is not there, a login)
is not tried again by itself.
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
"""After so many failures in a row it is left alone."""
STEADY = 30.0
"""A connection that lasted so many seconds was a good one: what failed before it does not count any more."""


class Standing(msgspec.Struct, frozen=True):
    """How a server stands. `pause`: seconds until it is tried again; None: not before somebody asks for it."""

    state: McpState
    reason: str = ""
    failures: int = 0
    pause: float | None = None


DISABLED = Standing("disabled")
WAITING = Standing("starting", pause=0.0)
"""Not tried yet."""


def pause_after(failures: int) -> float | None:
    """Doubles from half a second to a minute, then ends."""
    if failures >= TRIES:
        return None
    return min(FIRST_PAUSE * 2.0 ** max(0, failures - 1), LONGEST_PAUSE)


def pause_between(last: float, *, is_quiet: bool) -> float:
    """How long to wait before lists are read again. Doubles for a server that says at once that they have changed."""
    return FIRST_PAUSE if is_quiet else min(last * 2.0, LONGEST_PAUSE)


def begun(standing: Standing) -> Standing:
    """A try. What went wrong before is told until it succeeds."""
    return Standing("starting", standing.reason, standing.failures)


def joined(standing: Standing) -> Standing:
    """Its failures are remembered until the connection has proved itself."""
    return Standing("connected", failures=standing.failures)


def failed(standing: Standing, reason: str, *, is_final: bool = False) -> Standing:
    """It could not be reached. `is_final`: another try would fail alike."""
    failures = standing.failures + 1
    return Standing("error", reason, failures, None if is_final else pause_after(failures))


def lost(standing: Standing, reason: str, lasted: float) -> Standing:
    """It was there for `lasted` seconds."""
    before = 0 if lasted >= STEADY else standing.failures
    return failed(Standing("connected", failures=before), reason)


def barred(reason: str) -> Standing:
    """It wants a login."""
    return Standing("needs auth", reason)
