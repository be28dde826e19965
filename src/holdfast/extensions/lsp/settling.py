"""Time limits for diagnostics after a change. Pure: times are passed in.

A change is sent to the server, which responds once or several times. The wait ends when no response has arrived for a
short time, when a pull request was answered, or at the `overall` limit.
"""

import msgspec

__all__ = ["AFTER_A_CHANGE", "AT_A_GLANCE", "AT_LEISURE", "WHEN_ASKED", "Progress", "Times", "deadline"]

MOST_SILENT = 2
"""After this many consecutive changes without a response a server is not waited for, until it responds again."""


class Times(msgspec.Struct, frozen=True):
    """Limits in seconds. `overall`: for all servers together. `start`: for a server that was just launched. `first`:
    for the first response of a server that does not report progress. `quiet`: after the last response.
    """

    overall: float
    start: float
    first: float
    quiet: float = 0.3


AFTER_A_CHANGE = Times(5.0, 5.0, 1.0)
AT_A_GLANCE = Times(0.3, 0.0, 0.3)
"""For a file that is only read."""
AT_LEISURE = Times(30.0, 30.0, 5.0)
"""For background checks."""
WHEN_ASKED = Times(5.0, 5.0, 5.0)
"""For an explicit request for diagnostics."""


class Progress(msgspec.Struct, frozen=True):
    """Progress of one server with a change. A time is None until the event has happened."""

    started: float | None = None
    """Time of the launch, until the server has responded for the first time."""
    told: float | None = None
    heard: float | None = None
    is_busy: bool = False
    """The server reports work in progress."""
    is_done: bool = False
    silences: int = 0


def deadline(begun: float, progress: Progress, times: Times) -> float:
    """Return the time until which to wait if nothing more happens."""
    end = begun + times.overall
    is_given_up = progress.silences >= MOST_SILENT and progress.heard is None and times.first < times.overall
    if progress.is_done or is_given_up:
        return begun
    if progress.heard is not None:
        return min(end, progress.heard + times.quiet)
    if progress.is_busy:
        return end
    # Concurrent waiters of a starting server share its start limit.
    up = progress.started + times.start if progress.started is not None else begun
    return min(end, up if progress.told is None else max(up, progress.told + times.first))
