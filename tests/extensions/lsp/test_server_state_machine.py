"""State machine of a language server: every state, every event."""

import itertools
from collections.abc import Callable

import pytest

from holdfast.domain.extensions import LspState
from holdfast.extensions.lsp import server_state_machine
from holdfast.extensions.lsp.server_state_machine import (
    Allowed,
    Event,
    Exited,
    Forbidden,
    Kill,
    Launch,
    ProgramMissing,
    Requested,
    Restart,
    ServerState,
    SetTimer,
    Started,
    Stop,
    TimerFired,
    transition,
)


def after(*events: Event, begin: ServerState | None = None) -> ServerState:
    standing = begin or ServerState()
    for event in events:
        standing, _ = transition(standing, event)
    return standing


STARTING = after(Requested(0))
READY = after(Requested(0), Started(1, 1))


def test_server_starts_once_when_needed() -> None:
    standing, effects = transition(ServerState(), Requested(0))
    assert (standing.state, effects) == (LspState.STARTING, (Launch(1),))
    assert transition(standing, Requested(0)) == (standing, ())
    assert READY.state == LspState.READY
    assert transition(READY, Requested(5)) == (READY, ())


def test_restarts_back_off_until_given_up() -> None:
    standing, pauses, now = READY, [], 1.0
    while True:
        standing, effects = transition(standing, Exited(standing.launch, now, "It ended."))
        assert effects[0] == Kill()
        if len(effects) == 1:
            break
        assert isinstance(effects[1], SetTimer)
        pauses.append(effects[1].seconds)
        assert transition(standing, Requested(now)) == (standing, ()), "not before its pause is over"
        standing, effects = transition(standing, TimerFired(standing.launch))
        assert effects == (Launch(standing.launch),)
        standing = after(Started(standing.launch, now), begin=standing)
    assert pauses == [1, 2, 4, 8]
    assert standing.state == LspState.ERROR
    assert standing.has_given_up
    assert standing.error.startswith("It ended. It was started 5 times and is not started again")
    assert transition(standing, Requested(1e9)) == (standing, ())
    anew, effects = transition(standing, Restart())
    assert (anew.state, anew.failures, effects) == (LspState.STARTING, 0, (Launch(anew.launch),))


def test_long_uptime_resets_failures() -> None:
    often = after(Exited(1, 1, "x"), TimerFired(1), Started(2, 10), begin=READY)
    assert after(Exited(2, 20, "x"), begin=often).failures == 2
    assert after(Exited(2, 10 + server_state_machine.STABLE_AFTER, "x"), begin=often).failures == 1


def test_missing_program_is_looked_up_again_later() -> None:
    absent, effects = transition(STARTING, ProgramMissing(1, 0, "not there"))
    assert (absent.state, absent.error, absent.failures) == (LspState.ERROR, "not there", 0)
    assert effects == (Kill(),), "nobody waits for it"
    assert transition(absent, Requested(29)) == (absent, ())
    assert transition(absent, Requested(30))[1] == (Launch(2),)


@pytest.mark.parametrize("late", [Started(1, 9), Exited(1, 9, "x"), ProgramMissing(1, 9, "x"), TimerFired(1)])
@pytest.mark.parametrize("change", [Stop(), Restart(), Forbidden("no"), Forbidden("", is_disabled=True)])
def test_events_of_earlier_launch_are_ignored(late: Event, change: Event) -> None:
    for begin in (STARTING, READY):
        standing = after(change, begin=begin)
        assert transition(standing, late) == (standing, ())


def test_stop_lasts_until_next_file() -> None:
    stopped, effects = transition(READY, Stop())
    assert (stopped.state, effects) == (LspState.STOPPED, (Kill(),))
    assert transition(stopped, Requested(0))[0].state == LspState.STARTING
    assert transition(ServerState(), Stop()) == (ServerState(), ())
    failed = after(Exited(1, 0, "x"), begin=READY)
    assert transition(failed, Stop()) == (ServerState(LspState.STOPPED, launch=2), ())


@pytest.mark.parametrize("is_disabled", [True, False])
def test_forbidden_server_stays_stopped_until_allowed(is_disabled: bool) -> None:
    standing, effects = transition(READY, Forbidden("why", is_disabled))
    assert standing.is_forbidden
    assert (standing.error, effects) == ("why", (Kill(),))
    for event in (Requested(1e9), Restart(), Stop()):
        assert transition(standing, event) == (standing, ())
    allowed = after(Allowed(), begin=standing)
    assert (allowed.state, allowed.error) == (LspState.UNSTARTED, "")
    assert after(Requested(0), begin=allowed).state == LspState.STARTING


def test_at_most_one_process_runs() -> None:
    """Every sequence of four events: a launch follows a kill, or no running process."""
    kinds: tuple[Callable[[int], Event], ...] = (
        lambda n: Requested(100.0 * n),
        lambda n: Started(n, 1.0),
        lambda n: Exited(n, 1.0, "x"),
        lambda n: ProgramMissing(n, 1.0, "x"),
        TimerFired,
        lambda _: Stop(),
        lambda _: Restart(),
        lambda _: Forbidden("no"),
        lambda _: Allowed(),
    )
    for history in itertools.product(kinds, repeat=4):
        standing, runs = ServerState(), False
        for make in history:
            standing, effects = transition(standing, make(standing.launch))
            for effect in effects:
                if isinstance(effect, Kill):
                    runs = False
                elif isinstance(effect, Launch):
                    assert not runs
                    assert effect.launch == standing.launch
                    runs = True
            assert runs == standing.is_active
