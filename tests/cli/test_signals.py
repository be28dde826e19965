"""Signals while a run is followed, in each state, in this process."""

import os
import select
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast.cli.run_client.signals import CANCELLED, DETACHED, Signals

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@pytest.fixture
def timers(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The timers that were set: the real one belongs to the limit of the test."""
    found: list[float] = []
    monkeypatch.setattr(signal, "setitimer", lambda _, seconds: found.append(seconds))
    return found


@pytest.fixture
def signals(timers: list[float]) -> Iterator[Signals]:
    """Installed; everything is as it was afterwards."""
    assert timers == []
    before = {number: signal.getsignal(number) for number in (*NUMBERS, signal.SIGALRM)}
    made = Signals()
    wakeup = signal.set_wakeup_fd(-1)
    try:
        made.install()
        yield made
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        for descriptor in (made.wake, made._write):
            os.close(descriptor)


def _send(number: int) -> int | None:
    """The exit code that the signal leads to at once, if any."""
    try:
        signal.raise_signal(number)
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else 0
    return None


@pytest.mark.parametrize(
    ("is_running", "sent", "codes"),
    [
        (False, [signal.SIGINT], [CANCELLED]),
        (False, [signal.SIGTERM], [CANCELLED]),
        (False, [signal.SIGHUP], [DETACHED]),
        (True, [signal.SIGINT], [None]),
        (True, [signal.SIGTERM], [None]),
        (True, [signal.SIGHUP], [None]),
        (True, [signal.SIGINT, signal.SIGTERM], [None, None]),
        (True, [signal.SIGINT, signal.SIGINT, signal.SIGINT], [None, None, CANCELLED]),
        (True, [signal.SIGHUP, signal.SIGHUP], [None, None]),
        (True, [signal.SIGHUP, signal.SIGINT], [None, None]),
    ],
)
def test_signals_exit_at_once(signals: Signals, is_running: bool, sent: list[int], codes: list[int | None]) -> None:
    signals.is_running = is_running
    assert [_send(number) for number in sent] == codes
    assert signals.is_hung_up == (signal.SIGHUP in sent)
    assert signals.stops == len([number for number in sent if number != signal.SIGHUP])


def test_a_second_signal_exits_at_once_after_the_cancel_is_confirmed(signals: Signals) -> None:
    signals.is_running = True
    assert _send(signal.SIGINT) is None
    signals.confirm_cancel()
    assert _send(signal.SIGINT) == CANCELLED


def test_two_signals_exit_when_the_cancel_is_confirmed(signals: Signals) -> None:
    signals.is_running = True
    assert [_send(signal.SIGINT), _send(signal.SIGINT)] == [None, None]
    with pytest.raises(SystemExit) as left:
        signals.confirm_cancel()
    assert left.value.code == CANCELLED


def test_a_second_signal_waits_a_limited_time_for_the_cancel(signals: Signals, timers: list[float]) -> None:
    signals.is_running = True
    _send(signal.SIGINT)
    assert timers == [], "a single signal has no time limit"
    _send(signal.SIGINT)
    assert timers == [0.25]
    assert _send(signal.SIGALRM) == CANCELLED


def test_a_wait_ends_with_a_signal_and_drains_the_pipe(signals: Signals) -> None:
    signals.is_running = True
    _send(signal.SIGTERM)
    assert select.select([signals.wake], [], [], 0)[0], "the wait ends"
    signals.wait(600)
    assert not select.select([signals.wake], [], [], 0)[0]
    signals.drain()


@pytest.mark.parametrize("number", NUMBERS)
def test_an_ignored_signal_stays_ignored(number: int) -> None:
    before = {each: signal.getsignal(each) for each in NUMBERS}
    wakeup = signal.set_wakeup_fd(-1)
    made = Signals()
    try:
        signal.signal(number, signal.SIG_IGN)
        made.install()
        assert signal.getsignal(number) is signal.SIG_IGN
        others: list[Callable[..., Any] | int | None] = [signal.getsignal(each) for each in NUMBERS if each != number]
        assert all(callable(handler) and handler is not signal.default_int_handler for handler in others)
    finally:
        signal.set_wakeup_fd(wakeup)
        for each, handler in before.items():
            signal.signal(each, handler)
        os.close(made.wake)
        os.close(made._write)
