"""Cancels of runs and sessions."""

from holdfast.domain.events import RunEvent
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.store_operations import (
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
from holdfast.testing.conformance.subject import Check, Subject, WorkspaceOwner, run

__all__ = ["CHECKS"]

SESSION = SessionId("s")


def _cancelled_runs(receipt: Receipt) -> list[str]:
    return [item.run_id for item in receipt.runs]


def _cancel_events(receipt: Receipt) -> list[str]:
    events = [entry.event for entry in receipt.entries]
    assert all(isinstance(event, RunEvent) and event.change.type == "updated" for event in events)
    return [event.change.object.run_id for event in events if isinstance(event, RunEvent)]


async def _busy_session(subject: Subject) -> WorkspaceOwner:
    """Return a session with an active run, one folded into it, two waiting, one ended, and one of another session."""
    owner = await WorkspaceOwner.with_session(subject.ledger, "s", "t")
    await owner.admit("active", "folded", "ended", "w1", "w2")
    await owner.admit("elsewhere", session="t")
    await owner.do(StartRun(RunId("active"), 7))
    await owner.do(FoldRun(RunId("folded"), RunId("active"), 8))
    await owner.do(EndRun(RunId("ended"), "cancelled", 9))
    return owner


async def a_cancel_covers_every_run_of_the_session_that_has_not_ended(subject: Subject) -> None:
    owner = await _busy_session(subject)
    receipt = await owner.do(CancelSession(SESSION, "ada"))
    assert _cancelled_runs(receipt) == _cancel_events(receipt) == ["active", "folded", "w1", "w2"]
    assert all(item.cancel_requested and item.cancelled_by == "ada" for item in receipt.runs)
    assert [item.state for item in receipt.runs] == ["cancelling", "folded", "waiting", "waiting"]
    assert not (await owner.get("elsewhere")).cancel_requested
    assert not (await owner.get("ended")).cancel_requested


async def cancelled_runs_are_listed_in_the_order_of_the_queue(subject: Subject) -> None:
    owner = await _busy_session(subject)
    await owner.do(Reorder((RunId("w2"), RunId("w1")), RunId("w2")))
    receipt = await owner.do(CancelSession(SESSION))
    assert _cancelled_runs(receipt) == _cancel_events(receipt) == ["active", "folded", "w2", "w1"]


async def a_cancel_mark_is_set_and_published_once(subject: Subject) -> None:
    owner = await _busy_session(subject)
    await owner.do(CancelRun(RunId("w1"), "ada"))
    receipt = await owner.do(CancelSession(SESSION, "bob"))
    assert _cancelled_runs(receipt) == ["active", "folded", "w1", "w2"]
    assert _cancel_events(receipt) == ["active", "folded", "w2"]
    assert [item.cancelled_by for item in receipt.runs] == ["bob", "bob", "ada", "bob"]
    again = await owner.do(CancelSession(SESSION, "eve"))
    assert (again.entries, again.runs) == ((), receipt.runs)


async def a_cancel_of_an_idle_session_writes_nothing(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    before = await owner.all()
    for name in ("s", "nowhere"):
        assert await owner.do(CancelSession(SessionId(name))) == Receipt()
        assert await owner.do(ClearQueue(SessionId(name))) == Receipt()
    assert await owner.all() == before


async def a_cancel_of_one_run_covers_no_other_run(subject: Subject) -> None:
    owner = await _busy_session(subject)
    receipt = await owner.do(CancelRun(RunId("active"), "ada"))
    assert _cancelled_runs(receipt) == _cancel_events(receipt) == ["active"]
    assert (await owner.get("active")).state == "cancelling"
    assert not (await owner.get("w1")).cancel_requested


async def cancelling_an_ended_run_returns_it(subject: Subject) -> None:
    owner = await _busy_session(subject)
    receipt = await owner.do(CancelRun(RunId("ended"), "ada"))
    assert (receipt.entries, receipt.runs) == ((), (await owner.get("ended"),))
    assert not receipt.runs[0].cancel_requested


async def cancelling_an_unknown_run_is_refused(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    assert await owner.refused(CancelRun(RunId("none"))) == "unknown_run"


async def clearing_the_queue_spares_active_and_kept_runs(subject: Subject) -> None:
    owner = await _busy_session(subject)
    receipt = await owner.do(ClearQueue(SESSION, keep=(RunId("w1"),), by="ada"))
    assert _cancelled_runs(receipt) == _cancel_events(receipt) == ["w2"]
    again = await owner.do(ClearQueue(SESSION, by="bob"))
    assert (_cancelled_runs(again), _cancel_events(again)) == (["w1", "w2"], ["w1"])
    assert [item.cancelled_by for item in again.runs] == ["bob", "ada"]


async def a_run_marked_before_its_start_is_cancelling_when_it_starts(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1")
    (marked,) = (await owner.do(CancelRun(RunId("r1")))).runs
    assert (marked.state, marked.cancel_requested) == ("accepted", True)
    await owner.do(StartRun(RunId("r1"), 7))
    assert (await owner.get("r1")).state == "cancelling"


async def a_cancel_covers_earlier_admissions_of_the_same_write_only(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("old")
    receipt = await owner.do(CancelSession(SESSION, "ada"), Admit(run("new"), b"h"))
    assert [(item.run_id, item.cancel_requested) for item in receipt.runs] == [("old", True), ("new", False)]
    numbers = [entry.number for entry in receipt.entries]
    assert receipt.runs[1].number == numbers[1] == numbers[0] + 1


async def a_receipt_contains_runs_in_their_state_after_the_write(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    receipt = await owner.do(Admit(run("r1"), b"h"), CancelSession(SESSION, "ada"), StartRun(RunId("r1"), 7))
    assert receipt.runs == (await owner.get("r1"),)


CHECKS = tuple(
    Check(check)
    for check in (
        a_cancel_covers_every_run_of_the_session_that_has_not_ended,
        cancelled_runs_are_listed_in_the_order_of_the_queue,
        a_cancel_mark_is_set_and_published_once,
        a_cancel_of_an_idle_session_writes_nothing,
        a_cancel_of_one_run_covers_no_other_run,
        cancelling_an_ended_run_returns_it,
        cancelling_an_unknown_run_is_refused,
        clearing_the_queue_spares_active_and_kept_runs,
        a_run_marked_before_its_start_is_cancelling_when_it_starts,
        a_cancel_covers_earlier_admissions_of_the_same_write_only,
        a_receipt_contains_runs_in_their_state_after_the_write,
    )
)
