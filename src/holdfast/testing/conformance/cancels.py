"""Cancels of runs and sessions."""

from holdfast.domain.events import RunEvent
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.ledger import (
    Admit,
    CancelRun,
    CancelSession,
    ClearQueue,
    EndRun,
    FoldRun,
    Receipt,
    Reorder,
    StartRun,
)
from holdfast.testing.conformance.subject import Check, Desk, Subject, run

__all__ = ["CHECKS"]

SESSION = SessionId("s")


def _covered(receipt: Receipt) -> list[str]:
    return [item.run_id for item in receipt.runs]


def _said(receipt: Receipt) -> list[str]:
    events = [entry.event for entry in receipt.entries]
    assert all(isinstance(event, RunEvent) and event.change.type == "updated" for event in events)
    return [event.change.object.run_id for event in events if isinstance(event, RunEvent)]


async def _busy(subject: Subject) -> Desk:
    """An active run, one folded into it, two that wait, one that has ended, one elsewhere."""
    desk = await Desk.with_session(subject.ledger, "s", "t")
    await desk.admit("active", "folded", "ended", "w1", "w2")
    await desk.admit("elsewhere", session="t")
    await desk.do(StartRun(RunId("active"), 7))
    await desk.do(FoldRun(RunId("folded"), RunId("active"), 8))
    await desk.do(EndRun(RunId("ended"), "cancelled", 9))
    return desk


async def a_cancel_covers_every_run_of_the_session_that_has_not_ended(subject: Subject) -> None:
    desk = await _busy(subject)
    receipt = await desk.do(CancelSession(SESSION, "ada"))
    assert _covered(receipt) == _said(receipt) == ["active", "folded", "w1", "w2"]
    assert all(item.cancel_requested and item.cancelled_by == "ada" for item in receipt.runs)
    assert [item.state for item in receipt.runs] == ["cancelling", "folded", "waiting", "waiting"]
    assert not (await desk.get("elsewhere")).cancel_requested
    assert not (await desk.get("ended")).cancel_requested


async def cancelled_runs_are_listed_in_the_order_of_the_queue(subject: Subject) -> None:
    desk = await _busy(subject)
    await desk.do(Reorder((RunId("w2"), RunId("w1")), RunId("w2")))
    receipt = await desk.do(CancelSession(SESSION))
    assert _covered(receipt) == _said(receipt) == ["active", "folded", "w2", "w1"]


async def a_mark_is_set_and_said_once(subject: Subject) -> None:
    desk = await _busy(subject)
    await desk.do(CancelRun(RunId("w1"), "ada"))
    receipt = await desk.do(CancelSession(SESSION, "bob"))
    assert _covered(receipt) == ["active", "folded", "w1", "w2"]
    assert _said(receipt) == ["active", "folded", "w2"]
    assert [item.cancelled_by for item in receipt.runs] == ["bob", "bob", "ada", "bob"]
    again = await desk.do(CancelSession(SESSION, "eve"))
    assert (again.entries, again.runs) == ((), receipt.runs)


async def a_cancel_of_an_idle_session_writes_nothing(subject: Subject) -> None:
    desk = await Desk.with_session(subject.ledger)
    before = await desk.all()
    for name in ("s", "nowhere"):
        assert await desk.do(CancelSession(SessionId(name))) == Receipt()
        assert await desk.do(ClearQueue(SessionId(name))) == Receipt()
    assert await desk.all() == before


async def one_run_is_cancelled_alone(subject: Subject) -> None:
    desk = await _busy(subject)
    receipt = await desk.do(CancelRun(RunId("active"), "ada"))
    assert _covered(receipt) == _said(receipt) == ["active"]
    assert (await desk.get("active")).state == "cancelling"
    assert not (await desk.get("w1")).cancel_requested


async def cancelling_an_ended_run_answers_with_it(subject: Subject) -> None:
    desk = await _busy(subject)
    receipt = await desk.do(CancelRun(RunId("ended"), "ada"))
    assert (receipt.entries, receipt.runs) == ((), (await desk.get("ended"),))
    assert not receipt.runs[0].cancel_requested


async def cancelling_an_unknown_run_is_refused(subject: Subject) -> None:
    desk = await Desk.with_session(subject.ledger)
    assert await desk.refused(CancelRun(RunId("none"))) == "unknown_run"


async def clearing_the_queue_spares_what_runs_and_what_is_kept(subject: Subject) -> None:
    desk = await _busy(subject)
    receipt = await desk.do(ClearQueue(SESSION, keep=(RunId("w1"),), by="ada"))
    assert _covered(receipt) == _said(receipt) == ["w2"]
    again = await desk.do(ClearQueue(SESSION, by="bob"))
    assert (_covered(again), _said(again)) == (["w1", "w2"], ["w1"])
    assert [item.cancelled_by for item in again.runs] == ["bob", "ada"]


async def a_run_marked_before_its_start_is_cancelling_when_it_starts(subject: Subject) -> None:
    desk = await Desk.with_session(subject.ledger)
    await desk.admit("r1")
    (marked,) = (await desk.do(CancelRun(RunId("r1")))).runs
    assert (marked.state, marked.cancel_requested) == ("accepted", True)
    await desk.do(StartRun(RunId("r1"), 7))
    assert (await desk.get("r1")).state == "cancelling"


async def a_cancel_covers_what_was_admitted_before_it_in_the_same_write_only(subject: Subject) -> None:
    desk = await Desk.with_session(subject.ledger)
    await desk.admit("old")
    receipt = await desk.do(CancelSession(SESSION, "ada"), Admit(run("new"), b"h"))
    assert [(item.run_id, item.cancel_requested) for item in receipt.runs] == [("old", True), ("new", False)]
    numbers = [entry.number for entry in receipt.entries]
    assert receipt.runs[1].number == numbers[1] == numbers[0] + 1


async def a_receipt_tells_runs_as_they_are_at_the_end_of_the_write(subject: Subject) -> None:
    desk = await Desk.with_session(subject.ledger)
    receipt = await desk.do(Admit(run("r1"), b"h"), CancelSession(SESSION, "ada"), StartRun(RunId("r1"), 7))
    assert receipt.runs == (await desk.get("r1"),)


CHECKS = tuple(
    Check(check)
    for check in (
        a_cancel_covers_every_run_of_the_session_that_has_not_ended,
        cancelled_runs_are_listed_in_the_order_of_the_queue,
        a_mark_is_set_and_said_once,
        a_cancel_of_an_idle_session_writes_nothing,
        one_run_is_cancelled_alone,
        cancelling_an_ended_run_answers_with_it,
        cancelling_an_unknown_run_is_refused,
        clearing_the_queue_spares_what_runs_and_what_is_kept,
        a_run_marked_before_its_start_is_cancelling_when_it_starts,
        a_cancel_covers_what_was_admitted_before_it_in_the_same_write_only,
        a_receipt_tells_runs_as_they_are_at_the_end_of_the_write,
    )
)
