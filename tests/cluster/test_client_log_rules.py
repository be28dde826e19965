"""The rules that trials of a failing cluster are checked with: each one detects its violation, and accepts the rest."""

import copy
from collections.abc import Callable

import pytest

from holdfast.client.events import StreamEvent
from holdfast.domain.events import Change, Gap, GapEvent, RunComplete, RunCompleteEvent, RunEvent
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.runs import Outcome, Run
from trials.client_log_rules import (
    LIMITS,
    Accepted,
    Cancelled,
    ClientLog,
    Fault,
    FaultKind,
    Received,
    ToolWrite,
    broken_rules,
    seconds_of,
)

READERS = ("reader of n1", "reader of n2")


def _run(run: str, *, started: int = 0) -> RunEvent:
    value = Run(RunId(run), SessionId("s"), "active", "queue", accepted_at=1, started_at=started)
    return RunEvent(Change("updated", value))


def _end(run: str, outcome: Outcome) -> RunCompleteEvent:
    return RunCompleteEvent(Change("updated", RunComplete(SessionId("s"), MessageId("m"), RunId(run), outcome)))


def _log(kind: FaultKind = "kill") -> ClientLog:
    """A good log: n1 executes `cut`, fails at 10, and n2 ends it at 11.5; `next` is executed afterwards."""
    is_of_node = kind in ("kill", "pause", "cut")
    events: list[RunEvent | RunCompleteEvent] = [
        _run("cut"),
        _run("cut", started=3),
        _end("cut", "interrupted" if is_of_node else "completed"),
        _run("next", started=12),
        _end("next", "completed"),
    ]
    times = (9.0, 9.1, 11.5, 12.0, 13.0)
    stream = [Received(times[at], StreamEvent(event, at + 1)) for at, event in enumerate(events)]
    return ClientLog(
        accepted=[
            Accepted("w", "cut", "n1", 9.0),
            Accepted("w", "next", "n2", 10.9),
            Accepted("w", "next", "n1", 10.8),
        ],
        streams={("w", reader): list(stream) for reader in READERS},
        cancelled=[Cancelled("w", "next", "completed"), *([Cancelled("w", "cut", None)] if is_of_node else [])],
        writes=[ToolWrite("w", "cut", 9.5), ToolWrite("w", "cut", 10.4)],
        faults=[Fault(kind, 10.0, "n1", "w", "cut") if is_of_node else Fault(kind, 10.0, healed_at=10.5)],
    )


@pytest.mark.parametrize("kind", LIMITS)
def test_a_good_log_breaks_no_rule(kind: FaultKind) -> None:
    log = _log(kind)
    assert broken_rules(log) == []
    assert seconds_of(log, log.faults[0]) == pytest.approx(1.5 if kind in ("kill", "pause", "cut") else 0.4)


def _stream(log: ClientLog, reader: int = 0) -> list[Received]:
    return log.streams["w", READERS[reader]]


def _skip(log: ClientLog) -> None:
    del _stream(log)[1]


def _repeat(log: ClientLog) -> None:
    _stream(log).insert(1, _stream(log)[0])


def _exchange(log: ClientLog) -> None:
    stream = _stream(log)
    stream[0], stream[1] = stream[1], stream[0]


def _stop_early(log: ClientLog) -> None:
    del _stream(log)[-1]


def _receive_nothing(log: ClientLog) -> None:
    _stream(log).clear()


def _gap(log: ClientLog) -> None:
    _stream(log).insert(0, Received(1.0, StreamEvent(GapEvent(Gap(0, 1, 1)))))


def _differ(log: ClientLog) -> None:
    _stream(log)[0] = Received(9.0, StreamEvent(_run("other"), 1))


def _append(log: ClientLog, *events: RunEvent | RunCompleteEvent) -> None:
    for reader in range(2):
        stream = _stream(log, reader)
        stream += [Received(20.0, StreamEvent(event, len(stream) + at)) for at, event in enumerate(events, 1)]


def _lose(log: ClientLog) -> None:
    log.accepted.append(Accepted("w", "lost", "n1", 9.9))


def _end_twice(log: ClientLog) -> None:
    _append(log, _end("next", "completed"))


def _start_again(log: ClientLog) -> None:
    """After its interruption."""
    _append(log, _run("cut", started=20))


def _start_twice(log: ClientLog) -> None:
    _append(log, _run("double", started=5), _run("double", started=6), _end("double", "completed"))


def _complete_after_cancel(log: ClientLog) -> None:
    log.cancelled.append(Cancelled("w", "next", None))


def _another_outcome(log: ClientLog) -> None:
    log.cancelled.append(Cancelled("w", "cut", "cancelled"))


def _write_late(log: ClientLog) -> None:
    log.writes.append(ToolWrite("w", "cut", 11.6))


def _end_late(log: ClientLog) -> None:
    for reader in range(2):
        stream = _stream(log, reader)
        stream[2] = stream[2]._replace(at=12.1)


def _no_takeover(log: ClientLog) -> None:
    log.faults[0].run = "unknown"


def _interrupt_without_fault(log: ClientLog) -> None:
    log.faults.clear()


def _return_late(log: ClientLog) -> None:
    log.accepted[1] = log.accepted[1]._replace(at=11.6)


def _one_node_stays_away(log: ClientLog) -> None:
    del log.accepted[1]
    log.accepted.append(Accepted("w", "next", "n2", 9.9))


VIOLATIONS: list[tuple[FaultKind, Callable[[ClientLog], None], str]] = [
    ("kill", _skip, "3 instead of 2"),
    ("kill", _repeat, "1 instead of 2"),
    ("kill", _exchange, "2 instead of 1"),
    ("kill", _stop_early, "only 4 of"),
    ("kill", _receive_nothing, "only 0 of"),
    ("kill", _gap, "a gap"),
    ("kill", _differ, "another event 1"),
    ("kill", _lose, "no end of lost, which n1 accepted"),
    ("kill", _end_twice, "2 ends of next"),
    ("kill", _start_again, "an event of cut after its end"),
    ("kill", _start_twice, "a second start of double"),
    ("kill", _complete_after_cancel, "next is completed; the response to its cancel was: not ended"),
    ("kill", _another_outcome, "cut is interrupted; the response to its cancel was: cancelled"),
    ("kill", _write_late, "wrote 0.100 s after"),
    ("kill", _end_late, "took 2.10 s, the limit is 2 s"),
    ("pause", _no_takeover, "pause of n1: nothing followed"),
    ("kill", _interrupt_without_fault, "cut was interrupted although no node had failed"),
    ("crash", _return_late, "took 1.10 s, the limit is 1 s"),
    ("failover", _one_node_stays_away, "nothing followed"),
]


@pytest.mark.parametrize(("kind", "spoil", "sentence"), VIOLATIONS)
def test_each_violation_is_found(kind: FaultKind, spoil: Callable[[ClientLog], None], sentence: str) -> None:
    log = _log(kind)
    spoil(log)
    found = broken_rules(log)
    assert any(sentence in violation for violation in found), found


def test_an_outage_of_postgresql_interrupts_nothing() -> None:
    log = _log()
    log.faults = [Fault("crash", 9.0, healed_at=10.5)]
    assert any("interrupted although" in violation for violation in broken_rules(log))


def test_time_in_which_the_machine_did_not_execute_the_clients_does_not_count() -> None:
    log = _log()
    _end_late(log)
    late = copy.deepcopy(log)
    late.faults[0].delay = 0.2
    assert broken_rules(log) != []
    assert broken_rules(late) == []
    assert seconds_of(late, late.faults[0]) == pytest.approx(2.1)
