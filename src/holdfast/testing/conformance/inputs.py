"""Inputs of any node: numbered with the writes of the owner, without its epoch, and binding for it.

For stores that implement `SharedLedger`.
"""

import msgspec

from holdfast.domain.approvals import PermissionNotification, PermissionRequest
from holdfast.domain.errors import OwnerChanged, StorageUnknown
from holdfast.domain.events import Change, PermissionNotificationEvent, PermissionRequestEvent, RunEvent
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId, WorkspaceId
from holdfast.domain.runs import Delivery, Outcome
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import (
    Admit,
    Announce,
    Answer,
    CancelRun,
    CancelSession,
    ClearQueue,
    CloseRequest,
    CreateSession,
    DeleteSession,
    EndRun,
    FoldRun,
    Operation,
    PatchSession,
    PutMessage,
    Receipt,
    Redeliver,
    Refusal,
    RemoveRun,
    Reorder,
    StartRun,
    StepRun,
    Write,
)
from holdfast.engine.ports import SharedLedger
from holdfast.testing.conformance.subject import Check, Subject, WorkspaceOwner, message, run, session

__all__ = ["CHECKS"]

SESSION = SessionId("s")
PATCH = PatchSession(SessionPatch(SESSION, 1, title="Renamed"))


def _shared(subject: Subject) -> SharedLedger:
    assert isinstance(subject.ledger, SharedLedger), "these checks are for shared stores"
    return subject.ledger


async def _accept(subject: Subject, workspace: WorkspaceId, *operations: Operation) -> Answer:
    (answer,) = await _shared(subject).accept(workspace, [Write(operations)])
    return answer


async def _accepted(subject: Subject, workspace: WorkspaceId, *operations: Operation) -> Receipt:
    answer = await _accept(subject, workspace, *operations)
    assert isinstance(answer, Receipt), f"{operations} were refused: {answer}"
    return answer


async def _refused(subject: Subject, owner: WorkspaceOwner, *operations: Operation) -> str:
    before = await owner.all()
    answer = await _accept(subject, owner.id, *operations)
    assert isinstance(answer, Refusal), f"{operations} were not refused: {answer}"
    assert await owner.all() == before, f"{operations} were refused and left a trace"
    return answer.reason


async def inputs_and_writes_share_one_numbering(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    first = await _accepted(subject, owner.id, Admit(run("r1"), b"h"))
    second = await owner.do(Admit(run("r2"), b"h"))
    third = await _accepted(subject, owner.id, CancelSession(SESSION, "ada"))
    assert [entry.number for entry in (*first.entries, *second.entries, *third.entries)] == [2, 3, 4, 5]
    assert [item.run_id for item in third.runs] == ["r1", "r2"]
    assert [number for number, _ in await owner.events()] == [1, 2, 3, 4, 5]
    assert [event for _, event in await owner.events(1)] == [
        entry.event for entry in (*first.entries, *second.entries, *third.entries)
    ]
    assert (await owner.ledger.bounds(owner.id))[1] == 5


async def inputs_do_not_count_as_batches_of_the_owner(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    answers = await owner.batch(Write((PATCH,)))
    await _accepted(subject, owner.id, Admit(run("r1"), b"h"))
    ticket, last = await subject.ledger.last_batch(owner.id, owner.epoch)
    assert (ticket, list(last)) == (owner.ticket, list(answers))
    again = await subject.ledger.commit(owner.id, owner.epoch, owner.ticket, [Write((PATCH,))])
    assert list(again) == list(answers)
    await owner.do(StartRun(RunId("r1"), 7))


async def inputs_are_accepted_without_an_owner(subject: Subject) -> None:
    """Before the first owner, after a clean end, and while the owner is dead."""
    joined = await _shared(subject).join_workspace("/home/ada/project")
    assert (joined.epoch, joined.newest) == (0, 0)
    await _accepted(subject, joined.id, CreateSession(session("s")))
    await _accepted(subject, joined.id, Admit(run("r1"), b"h"))
    owner = await WorkspaceOwner.open(subject.ledger)
    assert (owner.id, owner.record.newest) == (joined.id, 2)
    assert [item.run_id for item in await subject.ledger.open_runs(owner.id)] == ["r1"]
    await subject.ledger.close_workspace(owner.id, owner.epoch)
    await _accepted(subject, owner.id, Admit(run("r2"), b"h"))
    await subject.crash()
    await _accepted(subject, owner.id, Admit(run("r3"), b"h"))
    assert [item.run_id for item in await subject.ledger.open_runs(owner.id)] == ["r1", "r2", "r3"]


async def joining_a_workspace_does_not_take_it(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    joined = await _shared(subject).join_workspace("/home/ada/project")
    assert (joined.id, joined.epoch, joined.newest) == (owner.id, owner.epoch, 1)
    await owner.do(PATCH)


async def inputs_of_one_transaction_are_answered_one_by_one(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    writes = [
        Write((Admit(run("r1"), b"1"),)),
        Write((Admit(run("r1"), b"2"),)),
        Write((CreateSession(session("t")), Admit(run("r2", session="t"), b"3"))),
        Write((Admit(run("r3", session="nowhere"), b"4"),)),
    ]
    answers = await _shared(subject).accept(owner.id, writes)
    told = [answer.reason if isinstance(answer, Refusal) else len(answer.entries) for answer in answers]
    assert told == [1, "run_exists", 2, "unknown_session"]


async def only_inputs_are_accepted(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1")
    before = await owner.all()
    for operation in (
        StartRun(RunId("r1"), 7),
        StepRun(RunId("r1"), 1),
        EndRun(RunId("r1"), "completed", 9),
        FoldRun(RunId("r1"), RunId("r1"), 7),
        RemoveRun(RunId("r1")),
        PutMessage(message("m", run="r1")),
    ):
        try:
            await _accept(subject, owner.id, operation)
        except ValueError:
            assert await owner.all() == before
        else:
            raise AssertionError(f"{operation} was accepted from a node that does not own the workspace")
    await _accepted(subject, owner.id, PutMessage(message("m")))


async def a_failed_input_leaves_no_trace(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    assert await _refused(subject, owner, CreateSession(session("t")), Admit(run("r", session="nowhere"), b"")) == (
        "unknown_session"
    )
    assert await _refused(subject, owner, CancelRun(RunId("nothing"))) == "unknown_run"
    await owner.admit("r1")
    assert await _refused(subject, owner, DeleteSession(SESSION)) == "busy"


async def a_cancel_of_another_node_binds_the_owner(subject: Subject) -> None:
    """R3: whoever sent the cancel was told that the run is covered, so it neither completes nor fails nor folds."""
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1", "r2", "r3")
    await owner.do(StartRun(RunId("r1"), 7))
    receipt = await _accepted(subject, owner.id, CancelSession(SESSION, "ada"))
    assert [(item.run_id, item.must_cancel, item.state) for item in receipt.runs] == [
        ("r1", True, "cancelling"),
        ("r2", True, "waiting"),
        ("r3", True, "waiting"),
    ]
    ends: tuple[Outcome, ...] = ("completed", "failed")
    for outcome in ends:
        assert await owner.refused(EndRun(RunId("r1"), outcome, 9)) == "must_cancel"
    assert await owner.refused(FoldRun(RunId("r2"), RunId("r1"), 8)) == "must_cancel"
    # It may have been taken up meanwhile; then it starts as a cancelled run.
    await owner.do(StartRun(RunId("r3"), 8))
    assert (await owner.get("r3")).state == "cancelling"
    await owner.do(*(EndRun(RunId(name), "cancelled", 9) for name in ("r1", "r3")))
    await owner.do(EndRun(RunId("r2"), "interrupted", 9))


async def a_cancel_of_the_owner_does_not_bind_it(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1", "r2")
    await owner.do(StartRun(RunId("r1"), 7))
    await owner.do(CancelSession(SESSION, "ada"))
    await owner.do(FoldRun(RunId("r2"), RunId("r1"), 8))
    await owner.do(EndRun(RunId("r1"), "completed", 9))


async def a_second_cancel_of_another_node_binds_too(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1")
    await owner.do(CancelSession(SESSION, "ada"))
    receipt = await _accepted(subject, owner.id, CancelRun(RunId("r1"), "bob"))
    (entry,) = receipt.entries
    assert isinstance(entry.event, RunEvent)
    marked = entry.event.change.object
    assert (marked.must_cancel, marked.cancelled_by) == (True, "ada")
    assert (await _accepted(subject, owner.id, CancelRun(RunId("r1"), "bob"))).entries == ()
    await owner.do(EndRun(RunId("r1"), "cancelled", 9))
    assert (await _accepted(subject, owner.id, CancelRun(RunId("r1"), "bob"))).entries == ()


async def an_interrupting_prompt_of_another_node_binds_too(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1")
    await owner.do(StartRun(RunId("r1"), 7))
    now: Delivery = "interrupt"
    await _accepted(subject, owner.id, Admit(msgspec.structs.replace(run("now"), delivery=now), b"h"))
    assert await owner.refused(EndRun(RunId("r1"), "completed", 9)) == "must_cancel"
    assert not (await owner.get("now")).must_cancel


async def a_binding_cancel_outlives_the_withdrawal_of_an_interrupt(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1")
    await owner.do(Admit(msgspec.structs.replace(run("now"), delivery="interrupt"), b"h"))
    await _accepted(subject, owner.id, CancelRun(RunId("r1"), "ada"))
    await owner.do(RemoveRun(RunId("now"), (RunId("r1"),)))
    assert (await owner.get("r1")).cancel_requested


async def a_folded_run_is_not_cancelled_alone(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1", "r2")
    await owner.do(StartRun(RunId("r1"), 7))
    await owner.do(FoldRun(RunId("r2"), RunId("r1"), 8))
    assert await _refused(subject, owner, CancelRun(RunId("r2"))) == "folded"
    receipt = await _accepted(subject, owner.id, CancelSession(SESSION))
    assert [item.run_id for item in receipt.runs] == ["r1", "r2"]


async def a_clear_keeps_the_active_run_or_the_next_one(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1", "r2", "r3")
    receipt = await _accepted(subject, owner.id, ClearQueue(SESSION, by="ada", keeps_next=True))
    assert [item.run_id for item in receipt.runs] == ["r2", "r3"]
    await owner.admit("r4")
    await owner.do(StartRun(RunId("r1"), 7))
    receipt = await _accepted(subject, owner.id, ClearQueue(SESSION, by="ada", keeps_next=True))
    assert [item.run_id for item in receipt.runs] == ["r2", "r3", "r4"]
    assert not (await owner.get("r1")).cancel_requested


async def a_cancelled_run_is_not_rearranged(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1", "r2", "r3")
    await _accepted(subject, owner.id, CancelRun(RunId("r2")))
    assert await _refused(subject, owner, Redeliver(RunId("r2"), "steer")) == "not_waiting"
    assert await _refused(subject, owner, Reorder((RunId("r2"), RunId("r1")), RunId("r2"))) == "not_waiting"
    await _accepted(subject, owner.id, Redeliver(RunId("r3"), "steer"))
    await _accepted(subject, owner.id, Reorder((RunId("r3"), RunId("r1")), RunId("r3")))
    assert [item.run_id for item in await subject.ledger.open_runs(owner.id)] == ["r3", "r2", "r1"]


async def the_first_answer_of_any_node_closes_a_request(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    request = PermissionRequest("p", SESSION, ToolCallId("c"), "bash", "run", "execute", {}, "/w")
    await owner.do(Announce(PermissionRequestEvent(Change("created", request))))
    notice = PermissionNotification(
        ToolCallId("c"), granted=False, denied=True, id="p", session_id=SESSION, action="deny", reason="not now"
    )
    event = PermissionNotificationEvent(Change("created", notice))
    await _accepted(subject, owner.id, CloseRequest(event))
    assert await owner.refused(CloseRequest(event)) == "already_closed"
    assert await _refused(subject, owner, CloseRequest(event)) == "already_closed"
    assert [stored for _, stored in await owner.events()][-1] == event


async def a_session_is_created_changed_and_deleted_by_any_node(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await _accepted(subject, owner.id, CreateSession(session("t")))
    assert await _refused(subject, owner, CreateSession(session("t"))) == "session_exists"
    await _accepted(subject, owner.id, PATCH)
    stored = await subject.ledger.session(owner.id, SESSION)
    assert stored is not None
    assert stored.title == "Renamed"
    await _accepted(subject, owner.id, DeleteSession(SESSION))
    assert await subject.ledger.session(owner.id, SESSION) is None
    assert await owner.refused(PutMessage(message(MessageId("m")))) == "unknown_session"


async def only_the_owner_reads_its_inputs(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    ledger = _shared(subject)
    await owner.do(PATCH)
    await _accepted(subject, owner.id, Admit(run("r1"), b"h"))
    rows = await ledger.inputs_after(owner.id, owner.epoch, 1, 10)
    assert list(rows) == list(await ledger.events_after(owner.id, 1, 10))
    assert len(rows) == 2
    assert list(await ledger.inputs_after(owner.id, owner.epoch, 1, 1)) == list(rows)[:1]
    assert list(await ledger.inputs_after(owner.id, owner.epoch, 3, 10)) == []
    await WorkspaceOwner.open(await subject.another())
    for cursor in (1, 3):
        try:
            await ledger.inputs_after(owner.id, owner.epoch, cursor, 10)
        except OwnerChanged:
            continue
        raise AssertionError("a former owner read the inputs of its successor")


async def a_repeated_input_has_one_effect(subject: Subject) -> None:
    """After an unknown result a node reads the state or repeats the input."""
    owner = await WorkspaceOwner.with_session(subject.ledger)
    for attempt in range(2):
        subject.lose_next_answer()
        try:
            answer = await _accept(subject, owner.id, Admit(run("r1"), b"h"))
        except StorageUnknown:
            continue
        # A store need not write a refusal.
        assert attempt == 1, "the result was known"
        assert answer == Refusal("run_exists")
    record = await subject.ledger.run(owner.id, RunId("r1"))
    assert record is not None
    assert record.run.number == 2
    assert [number for number, _ in await owner.events()] == [1, 2]


async def accepted_inputs_survive_a_power_cut(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await _accepted(subject, owner.id, Admit(run("r1"), b"h"))
    await subject.cut_power()
    assert [item.run_id for item in await subject.ledger.open_runs(owner.id)] == ["r1"]


CHECKS = tuple(
    Check(check)
    for check in (
        inputs_and_writes_share_one_numbering,
        inputs_do_not_count_as_batches_of_the_owner,
        inputs_are_accepted_without_an_owner,
        joining_a_workspace_does_not_take_it,
        inputs_of_one_transaction_are_answered_one_by_one,
        only_inputs_are_accepted,
        a_failed_input_leaves_no_trace,
        a_cancel_of_another_node_binds_the_owner,
        a_cancel_of_the_owner_does_not_bind_it,
        a_second_cancel_of_another_node_binds_too,
        an_interrupting_prompt_of_another_node_binds_too,
        a_binding_cancel_outlives_the_withdrawal_of_an_interrupt,
        a_folded_run_is_not_cancelled_alone,
        a_clear_keeps_the_active_run_or_the_next_one,
        a_cancelled_run_is_not_rearranged,
        the_first_answer_of_any_node_closes_a_request,
        a_session_is_created_changed_and_deleted_by_any_node,
        only_the_owner_reads_its_inputs,
        a_repeated_input_has_one_effect,
        accepted_inputs_survive_a_power_cut,
    )
)
