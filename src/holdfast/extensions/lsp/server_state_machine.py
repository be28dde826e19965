"""State machine for a language server. Pure: times are passed in.

Theory of operation. `transition(state, event)` returns the next state and the effects; `server_supervisor` executes the
effects and dispatches the events. Nothing here waits, so every order of events can be tested as a table.

    UNSTARTED --Requested--> STARTING --Started--> READY
    STARTING, READY --Exited--> ERROR --TimerFired or Requested--> STARTING
    STARTING, READY, ERROR --Stop--> STOPPED --Requested--> STARTING
    any --Forbidden--> DISABLED or UNSTARTED with a reason --Allowed--> UNSTARTED

A server is launched on demand, by the first file of its language. One that exits by itself is relaunched after a delay
that doubles with each failure. After `MAX_FAILURES` it stays in the error state until a restart is requested, because a
server that always crashes would otherwise consume a processor for the whole session. A server that was ready for
`STABLE_AFTER` seconds before it exited starts counting again. A missing program is no failure of that kind: it is
searched again after `MISSING_RETRY_DELAY` seconds, since the user may install it.

Events of a process carry the number of their launch. Stop, restart and a prohibition increase that number, so a late
report of an abandoned process cannot affect its successor.
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
    "LaunchEvent",
    "ProgramMissing",
    "RequestEvent",
    "Requested",
    "Restart",
    "ServerState",
    "SetTimer",
    "Started",
    "Stop",
    "TimerFired",
    "transition",
]

MAX_FAILURES = 5
FIRST_DELAY = 1.0
"""Seconds before the first relaunch; doubles with each failure."""
MISSING_RETRY_DELAY = 30.0
"""Seconds after which a program that was not installed is searched again."""
STABLE_AFTER = 60.0
"""A server that was ready for this many seconds resets its failure count."""
NEVER = float("inf")


class ServerState(msgspec.Struct, frozen=True):
    """State of a server. `launch` counts launches, `not_before` is the earliest next launch, `ready_since` the time of
    readiness.
    """

    state: LspState = LspState.UNSTARTED
    error: str = ""
    launch: int = 0
    failures: int = 0
    not_before: float = 0.0
    ready_since: float = 0.0

    @property
    def is_active(self) -> bool:
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
    reason: str


class ProgramMissing(msgspec.Struct, frozen=True):
    """The program is not installed."""

    launch: int
    now: float
    reason: str


class TimerFired(msgspec.Struct, frozen=True):
    """The delay before a relaunch has passed."""

    launch: int


class Stop(msgspec.Struct, frozen=True):
    """Request to stop until a file is touched again."""


class Restart(msgspec.Struct, frozen=True):
    """Request to restart, regardless of earlier failures."""


class Forbidden(msgspec.Struct, frozen=True):
    """Settings or a lack of trust prevent a launch. `is_disabled`: the user has disabled the server."""

    reason: str
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


LaunchEvent: TypeAlias = Started | Exited | ProgramMissing | TimerFired
"""Events of one launch, ignored unless it is the current one."""
RequestEvent: TypeAlias = Requested | Stop | Restart | Forbidden | Allowed
"""Events from outside: files, users and settings."""
Event: TypeAlias = LaunchEvent | RequestEvent
Effect: TypeAlias = Launch | Kill | SetTimer


def transition(current: ServerState, event: Event) -> tuple[ServerState, tuple[Effect, ...]]:
    """Return the next state and the effects of an event."""
    if isinstance(event, Started | Exited | ProgramMissing | TimerFired):
        # A report of an earlier launch arrives after a stop or a restart: the process it is about is abandoned.
        return _on_launch_event(current, event) if event.launch == current.launch else (current, ())
    return _on_request(current, event)


def _on_launch_event(current: ServerState, event: LaunchEvent) -> tuple[ServerState, tuple[Effect, ...]]:
    match event:
        case Started(now=now) if current.state == LspState.STARTING:
            return replace(current, state=LspState.READY, error="", ready_since=now), ()
        case Exited() if current.is_active:
            return _record_failure(current, event)
        case ProgramMissing(now=now, reason=reason) if current.is_active:
            return replace(current, state=LspState.ERROR, error=reason, not_before=now + MISSING_RETRY_DELAY), (Kill(),)
        case TimerFired() if current.state == LspState.ERROR:
            return _start_launch(current)
        case _:
            return current, ()


def _on_request(current: ServerState, event: RequestEvent) -> tuple[ServerState, tuple[Effect, ...]]:
    kill = (Kill(),) if current.is_active else ()
    match event:
        case Requested(now=now) if not current.is_active and not current.is_forbidden and now >= current.not_before:
            return _start_launch(current)
        case Stop() if current.is_active or current.state == LspState.ERROR:
            # A new launch number, so that the exit of the killed process is not counted as a failure.
            return ServerState(LspState.STOPPED, launch=current.launch + 1), kill
        case Restart() if not current.is_forbidden:
            restarted, effects = _start_launch(ServerState(launch=current.launch))
            return restarted, (*kill, *effects)
        case Forbidden(reason=reason, is_disabled=is_disabled):
            state = LspState.DISABLED if is_disabled else LspState.UNSTARTED
            return ServerState(state, reason, current.launch + 1), kill
        case Allowed() if current.is_forbidden:
            return ServerState(launch=current.launch), ()
        case _:
            return current, ()


def _start_launch(current: ServerState) -> tuple[ServerState, tuple[Effect, ...]]:
    now = ServerState(LspState.STARTING, launch=current.launch + 1, failures=current.failures)
    return now, (Launch(now.launch),)


def _record_failure(current: ServerState, event: Exited) -> tuple[ServerState, tuple[Effect, ...]]:
    was_stable = current.state == LspState.READY and event.now - current.ready_since >= STABLE_AFTER
    failures = 1 if was_stable else current.failures + 1
    failed = replace(current, state=LspState.ERROR, failures=failures)
    if failures >= MAX_FAILURES:
        advice = f"It was started {failures} times and is not started again: fix the cause, then restart it."
        return replace(failed, error=f"{event.reason} {advice}", not_before=NEVER), (Kill(),)
    delay = FIRST_DELAY * 2 ** (failures - 1)
    return replace(failed, error=event.reason, not_before=event.now + delay), (Kill(), SetTimer(current.launch, delay))
