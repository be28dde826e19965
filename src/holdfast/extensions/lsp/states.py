"""Where a language server stands, and what follows when something happens to it. Pure; times are handed in.

A server is launched when it is wanted. One that goes by itself is launched again, each time a little later, until that
has happened too often; then it stays away and says why. What is told of an earlier launch changes nothing.
"""

from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from holdfast.domain.languages import LspState

__all__ = [
    "Absent",
    "Allowed",
    "Came",
    "Due",
    "Effect",
    "Event",
    "Forbidden",
    "Kill",
    "Launch",
    "Report",
    "Restart",
    "Standing",
    "Stop",
    "Wanted",
    "Went",
    "Wind",
    "Wish",
    "transition",
]

MOST_FAILURES = 5
FIRST_PAUSE = 1.0
ABSENT_FOR = 30.0
STEADY = 60.0
"""Who has worked for so long has not failed before."""
NEVER = float("inf")


class Standing(msgspec.Struct, frozen=True):
    """`launch` counts the launches; `not_before`: when it may be tried again; `since`: when it became ready."""

    state: LspState = LspState.UNSTARTED
    error: str = ""
    launch: int = 0
    failures: int = 0
    not_before: float = 0.0
    since: float = 0.0

    @property
    def is_there(self) -> bool:
        return self.state in (LspState.STARTING, LspState.READY)

    @property
    def is_forbidden(self) -> bool:
        return self.state == LspState.DISABLED or (self.state == LspState.UNSTARTED and bool(self.error))

    @property
    def has_given_up(self) -> bool:
        return self.not_before == NEVER


class Wanted(msgspec.Struct, frozen=True):
    """Somebody has a file for it."""

    now: float


class Came(msgspec.Struct, frozen=True):
    """It is ready."""

    launch: int
    now: float


class Went(msgspec.Struct, frozen=True):
    """It ended, was not understood, or did not answer when it started."""

    launch: int
    now: float
    why: str


class Absent(msgspec.Struct, frozen=True):
    """There is no such program."""

    launch: int
    now: float
    why: str


class Due(msgspec.Struct, frozen=True):
    """The pause is over."""

    launch: int


class Stop(msgspec.Struct, frozen=True):
    """Somebody wants it to rest, until a file is touched again."""


class Restart(msgspec.Struct, frozen=True):
    """Somebody wants it anew, whatever has happened."""


class Forbidden(msgspec.Struct, frozen=True):
    """The settings, or a lack of trust, keep it away; `is_disabled` if its user said so."""

    why: str
    is_disabled: bool = False


class Allowed(msgspec.Struct, frozen=True):
    """Nothing keeps it away any more."""


class Launch(msgspec.Struct, frozen=True):
    launch: int


class Kill(msgspec.Struct, frozen=True):
    """What runs now."""


class Wind(msgspec.Struct, frozen=True):
    """Say `Due` in so many seconds."""

    launch: int
    seconds: float


Report: TypeAlias = Came | Went | Absent | Due
"""What becomes of a launch."""
Wish: TypeAlias = Wanted | Stop | Restart | Forbidden | Allowed
Event: TypeAlias = Report | Wish
Effect: TypeAlias = Launch | Kill | Wind


def transition(was: Standing, event: Event) -> tuple[Standing, tuple[Effect, ...]]:
    if isinstance(event, Came | Went | Absent | Due):
        return _reported(was, event) if event.launch == was.launch else (was, ())
    return _wished(was, event)


def _reported(was: Standing, event: Report) -> tuple[Standing, tuple[Effect, ...]]:
    match event:
        case Came(now=now) if was.state == LspState.STARTING:
            return replace(was, state=LspState.READY, error="", since=now), ()
        case Went() if was.is_there:
            return _failed(was, event)
        case Absent(now=now, why=why) if was.is_there:
            return replace(was, state=LspState.ERROR, error=why, not_before=now + ABSENT_FOR), (Kill(),)
        case Due() if was.state == LspState.ERROR:
            return _launched(was)
        case _:
            return was, ()


def _wished(was: Standing, event: Wish) -> tuple[Standing, tuple[Effect, ...]]:
    kill = (Kill(),) if was.is_there else ()
    match event:
        case Wanted(now=now) if not was.is_there and not was.is_forbidden and now >= was.not_before:
            return _launched(was)
        case Stop() if was.is_there or was.state == LspState.ERROR:
            return Standing(LspState.STOPPED, launch=was.launch + 1), kill
        case Restart() if not was.is_forbidden:
            anew, effects = _launched(Standing(launch=was.launch))
            return anew, (*kill, *effects)
        case Forbidden(why=why, is_disabled=is_disabled):
            state = LspState.DISABLED if is_disabled else LspState.UNSTARTED
            return Standing(state, why, was.launch + 1), kill
        case Allowed() if was.is_forbidden:
            return Standing(launch=was.launch), ()
        case _:
            return was, ()


def _launched(was: Standing) -> tuple[Standing, tuple[Effect, ...]]:
    now = Standing(LspState.STARTING, launch=was.launch + 1, failures=was.failures)
    return now, (Launch(now.launch),)


def _failed(was: Standing, event: Went) -> tuple[Standing, tuple[Effect, ...]]:
    was_steady = was.state == LspState.READY and event.now - was.since >= STEADY
    failures = 1 if was_steady else was.failures + 1
    failed = replace(was, state=LspState.ERROR, failures=failures)
    if failures >= MOST_FAILURES:
        why = f"{event.why} It was started {failures} times and is left alone now: mend it, then restart it."
        return replace(failed, error=why, not_before=NEVER), (Kill(),)
    pause = FIRST_PAUSE * 2 ** (failures - 1)
    return replace(failed, error=event.why, not_before=event.now + pause), (Kill(), Wind(was.launch, pause))
