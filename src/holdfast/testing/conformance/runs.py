"""Runs from their start to their end."""

from holdfast.domain.events import RunComplete, RunCompleteEvent, RunEvent
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.store_operations import CancelRun, EndRun, FoldRun, Operation, StartRun, StepRun
from holdfast.testing.conformance.subject import Check, Subject, WorkspaceOwner

__all__ = ["CHECKS"]


async def start_step_and_fold_are_stored_and_published(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1", "r2")
    work: tuple[Operation, ...] = (
        StartRun(RunId("r1"), 7),
        StepRun(RunId("r1"), 3),
        FoldRun(RunId("r2"), RunId("r1"), 8),
    )
    events = [entry.event for entry in (await owner.do(*work)).entries]
    states = [event.change.object for event in events if isinstance(event, RunEvent)]
    assert [(item.run_id, item.state, item.step) for item in states] == [
        ("r1", "active", 0),
        ("r1", "active", 3),
        ("r2", "folded", 0),
    ]
    assert all(isinstance(event, RunEvent) and event.change.type == "updated" for event in events)
    host, folded = await owner.get("r1"), await owner.get("r2")
    assert (host.state, host.started_at, host.step) == ("active", 7, 3)
    assert (folded.state, folded.started_at, folded.folded_into) == ("folded", 8, "r1")


async def a_run_starts_once(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1", "r2")
    await owner.do(StartRun(RunId("r1"), 0))
    await owner.do(FoldRun(RunId("r2"), RunId("r1"), 0))
    for name in ("r1", "r2"):
        assert await owner.refused(StartRun(RunId(name), 8)) == "already_started"
        assert await owner.refused(FoldRun(RunId(name), RunId("r1"), 8)) == "already_started"
    await owner.do(CancelRun(RunId("r1")))
    assert await owner.refused(StartRun(RunId("r1"), 8)) == "already_started"


async def unknown_and_ended_runs_cannot_be_changed(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1", "host")
    await owner.do(EndRun(RunId("r1"), "cancelled", 9))
    for name, reason in (("none", "unknown_run"), ("r1", "already_ended")):
        assert await owner.refused(StartRun(RunId(name), 8)) == reason
        assert await owner.refused(FoldRun(RunId(name), RunId("host"), 8)) == reason
        assert await owner.refused(StepRun(RunId(name), 2)) == reason
        assert await owner.refused(EndRun(RunId(name), "completed", 9)) == reason


async def an_end_is_stored_and_published_only_as_run_complete(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1")
    await owner.do(StartRun(RunId("r1"), 7))
    end = EndRun(RunId("r1"), "failed", 9, error="It broke.", message_id=MessageId("m1"), text="Half a")
    (entry,) = (await owner.do(end)).entries
    assert isinstance(entry.event, RunCompleteEvent)
    assert entry.event.change.type == "updated"
    assert entry.event.change.object == RunComplete(
        session_id=SessionId("s"),
        message_id=MessageId("m1"),
        run_id=RunId("r1"),
        outcome="failed",
        text="Half a",
        error="It broke.",
    )
    run = await owner.get("r1")
    assert (run.state, run.outcome, run.ended_at, run.error) == ("ended", "failed", 9, "It broke.")
    assert (run.message_id, run.prompt) == ("m1", "Say hello.")


async def a_second_end_is_refused(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1")
    await owner.do(EndRun(RunId("r1"), "completed", 9))
    assert await owner.refused(EndRun(RunId("r1"), "interrupted", 10)) == "already_ended"
    assert (await owner.get("r1")).outcome == "completed"


async def only_cancelled_runs_end_with_the_cancelled_flag(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("a", "b", "c", "d")
    ends = (
        EndRun(RunId("a"), "completed", 9),
        EndRun(RunId("b"), "failed", 9),
        EndRun(RunId("c"), "cancelled", 9),
        EndRun(RunId("d"), "interrupted", 9),
    )
    events = [entry.event for entry in (await owner.do(*ends)).entries]
    marks = [event.change.object.cancelled for event in events if isinstance(event, RunCompleteEvent)]
    assert marks == [False, False, True, False]


async def a_folded_run_ends_with_its_host(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("host", "folded", "late")
    await owner.do(StartRun(RunId("host"), 7), FoldRun(RunId("folded"), RunId("host"), 8))
    folded = EndRun(RunId("folded"), "completed", 9)
    late = EndRun(RunId("late"), "completed", 9, folded_into=RunId("host"))
    events = [entry.event for entry in (await owner.do(folded, late)).entries]
    assert [event.change.object.folded_into for event in events if isinstance(event, RunCompleteEvent)] == ["host"] * 2
    assert (await owner.get("late")).folded_into == "host"


CHECKS = tuple(
    Check(check)
    for check in (
        start_step_and_fold_are_stored_and_published,
        a_run_starts_once,
        unknown_and_ended_runs_cannot_be_changed,
        an_end_is_stored_and_published_only_as_run_complete,
        a_second_end_is_refused,
        only_cancelled_runs_end_with_the_cancelled_flag,
        a_folded_run_ends_with_its_host,
    )
)
