"""State machine for a language server. Pure: times are passed in.

A server is launched on demand. One that exits by itself is relaunched with increasing delays, until it has failed too
often; then it stays in the error state with the reason. Reports of an earlier launch are ignored.
"""

from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from holdfast.domain.extensions import LspState

__all__ = [
    "Allowed",
    "Effect",
    "Event",
    "Exited",
    "Forbidden",
    "Kill",
    "Launch",
    "ProgramMissing",
    "Report",
    "Requested",
    "Restart",
    "ServerState",
    "SetTimer",
    "Started",
    "Stop",
    "TimerFired",
    "Wish",
    "transition",
]

MOST_FAILURES = 5
FIRST_PAUSE = 1.0
ABSENT_FOR = 30.0
STEADY = 60.0
"""A server that was ready for this many seconds resets its failure count."""
NEVER = float("inf")


class ServerState(msgspec.Struct, frozen=True):
    """State of a server. `launch` counts launches, `not_before` is the earliest next launch, `since` the time of
    readiness.
    """

    state: LspState = LspState.UNSTARTED
    error: str = ""
    launch: int = 0
    failures: int = 0
    not_before: float = 0.0
    since: float = 0.0

    @property
    def is_there(self) -> bool:
        """True if a process is starting or running."""
        return self.state in (LspState.STARTING, LspState.READY)

    @property
    def is_forbidden(self) -> bool:
        """True if settings or a lack of trust prevent a launch."""
        return self.state == LspState.DISABLED or (self.state == LspState.UNSTARTED and bool(self.error))

    @property
    def has_given_up(self) -> bool:
        """True if automatic relaunches have ended."""
        return self.not_before == NEVER


class Requested(msgspec.Struct, frozen=True):
    """A file requires the server."""

    now: float


class Started(msgspec.Struct, frozen=True):
    """The server is ready."""

    launch: int
    now: float


class Exited(msgspec.Struct, frozen=True):
    """The server exited, sent an invalid message, or did not respond during its start."""

    launch: int
    now: float
    why: str


class ProgramMissing(msgspec.Struct, frozen=True):
    """The program is not installed."""

    launch: int
    now: float
    why: str


class TimerFired(msgspec.Struct, frozen=True):
    """The delay before a relaunch has passed."""

    launch: int


class Stop(msgspec.Struct, frozen=True):
    """Request to stop until a file is touched again."""


class Restart(msgspec.Struct, frozen=True):
    """Request to restart, regardless of earlier failures."""


class Forbidden(msgspec.Struct, frozen=True):
    """Settings or a lack of trust prevent a launch. `is_disabled`: the user has disabled the server."""

    why: str
    is_disabled: bool = False


class Allowed(msgspec.Struct, frozen=True):
    """A launch is permitted again."""


class Launch(msgspec.Struct, frozen=True):
    """Effect: launch the server."""

    launch: int


class Kill(msgspec.Struct, frozen=True):
    """Effect: stop the current process."""


class SetTimer(msgspec.Struct, frozen=True):
    """Effect: deliver `TimerFired` after `seconds`."""

    launch: int
    seconds: float


Report: TypeAlias = Started | Exited | ProgramMissing | TimerFired
"""Events of a launch."""
Wish: TypeAlias = Requested | Stop | Restart | Forbidden | Allowed
Event: TypeAlias = Report | Wish
Effect: TypeAlias = Launch | Kill | SetTimer


def transition(was: ServerState, event: Event) -> tuple[ServerState, tuple[Effect, ...]]:
    """Return the next state and the effects of an event."""
    if isinstance(event, Started | Exited | ProgramMissing | TimerFired):
        return _reported(was, event) if event.launch == was.launch else (was, ())
    return _wished(was, event)


def _reported(was: ServerState, event: Report) -> tuple[ServerState, tuple[Effect, ...]]:
    match event:
        case Started(now=now) if was.state == LspState.STARTING:
            return replace(was, state=LspState.READY, error="", since=now), ()
        case Exited() if was.is_there:
            return _failed(was, event)
        case ProgramMissing(now=now, why=why) if was.is_there:
            return replace(was, state=LspState.ERROR, error=why, not_before=now + ABSENT_FOR), (Kill(),)
        case TimerFired() if was.state == LspState.ERROR:
            return _launched(was)
        case _:
            return was, ()


def _wished(was: ServerState, event: Wish) -> tuple[ServerState, tuple[Effect, ...]]:
    kill = (Kill(),) if was.is_there else ()
    match event:
        case Requested(now=now) if not was.is_there and not was.is_forbidden and now >= was.not_before:
            return _launched(was)
        case Stop() if was.is_there or was.state == LspState.ERROR:
            return ServerState(LspState.STOPPED, launch=was.launch + 1), kill
        case Restart() if not was.is_forbidden:
            anew, effects = _launched(ServerState(launch=was.launch))
            return anew, (*kill, *effects)
        case Forbidden(why=why, is_disabled=is_disabled):
            state = LspState.DISABLED if is_disabled else LspState.UNSTARTED
            return ServerState(state, why, was.launch + 1), kill
        case Allowed() if was.is_forbidden:
            return ServerState(launch=was.launch), ()
        case _:
            return was, ()


def _launched(was: ServerState) -> tuple[ServerState, tuple[Effect, ...]]:
    now = ServerState(LspState.STARTING, launch=was.launch + 1, failures=was.failures)
    return now, (Launch(now.launch),)


def _failed(was: ServerState, event: Exited) -> tuple[ServerState, tuple[Effect, ...]]:
    was_steady = was.state == LspState.READY and event.now - was.since >= STEADY
    failures = 1 if was_steady else was.failures + 1
    failed = replace(was, state=LspState.ERROR, failures=failures)
    if failures >= MOST_FAILURES:
        why = f"{event.why} It was started {failures} times and is left alone now: mend it, then restart it."
        return replace(failed, error=why, not_before=NEVER), (Kill(),)
    pause = FIRST_PAUSE * 2 ** (failures - 1)
    return replace(failed, error=event.why, not_before=event.now + pause), (Kill(), SetTimer(was.launch, pause))
