"""How long somebody waits for what language servers say of a change. Pure; times are handed in.

A change is told; then comes a first word, and perhaps more. It is over when nothing came for a moment, when the server
has answered a direct question, or when the time is up: nobody waits longer than `overall`, whatever a server does.
"""

import msgspec

__all__ = ["AFTER_A_CHANGE", "AT_A_GLANCE", "AT_LEISURE", "WHEN_ASKED", "Progress", "Times", "deadline"]

MOST_SILENT = 2
"""Who was silent so many times in a row is not waited for, until it says something."""


class Times(msgspec.Struct, frozen=True):
    """In seconds. `overall`: the most for all servers together. `start`: for one that has just been launched. `first`:
    for the first word of one that was told and does not say that it works. `quiet`: after the last word.
    """

    overall: float
    start: float
    first: float
    quiet: float = 0.3


AFTER_A_CHANGE = Times(5.0, 5.0, 1.0)
AT_A_GLANCE = Times(0.3, 0.0, 0.3)
"""When a file is only looked at."""
AT_LEISURE = Times(30.0, 30.0, 5.0)
"""When nobody waits for it."""
WHEN_ASKED = Times(5.0, 5.0, 5.0)
"""When somebody asks what is wrong."""


class Progress(msgspec.Struct, frozen=True):
    """How far one server is with a change. Times are None until it has happened."""

    started: float | None = None
    """When it was launched, until it has spoken for the first time."""
    told: float | None = None
    heard: float | None = None
    is_busy: bool = False
    """It says that it works on something."""
    is_done: bool = False
    silences: int = 0


def deadline(begun: float, progress: Progress, times: Times) -> float:
    """Until when it is waited for, if nothing more happens."""
    end = begun + times.overall
    is_given_up = progress.silences >= MOST_SILENT and progress.heard is None and times.first < times.overall
    if progress.is_done or is_given_up:
        return begun
    if progress.heard is not None:
        return min(end, progress.heard + times.quiet)
    if progress.is_busy:
        return end
    # All who wait for it to come up wait no longer than one would.
    up = progress.started + times.start if progress.started is not None else begun
    return min(end, up if progress.told is None else max(up, progress.told + times.first))
