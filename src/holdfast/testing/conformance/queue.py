"""Runs that have not started."""

import msgspec

from holdfast.domain.events import RunEvent
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.runs import Attachment, PromptExpansion
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import (
    Admit,
    CancelRun,
    CancelSession,
    CreateSession,
    DeleteSession,
    EndRun,
    FoldRun,
    PatchSession,
    PutMessage,
    Receipt,
    Redeliver,
    Refusal,
    RemoveRun,
    Reorder,
    StartRun,
    Write,
)
from holdfast.testing.conformance.subject import Check, Subject, WorkspaceOwner, message, run, session

__all__ = ["CHECKS"]


async def admit_numbers_and_places_the_run(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    first = await owner.do(Admit(run("r1"), b"h1"))
    second = await owner.do(Admit(run("r2"), b"h2"))
    one, two = first.runs[0], second.runs[0]
    assert (one.position, one.state, one.number) == (0, "accepted", first.entries[0].number)
    assert (two.position, two.state, two.number) == (1, "waiting", second.entries[0].number)
    event = first.entries[0].event
    assert isinstance(event, RunEvent)
    assert (event.change.type, event.change.object) == ("created", one)
    assert one.prompt == "Say hello."


async def position_counts_neither_ended_nor_folded_runs(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger, "s", "t")
    await owner.admit("r1", "r2", "r3")
    await owner.admit("other", session="t")
    await owner.do(StartRun(RunId("r1"), 7))
    await owner.do(FoldRun(RunId("r2"), RunId("r1"), 8))
    await owner.do(EndRun(RunId("r3"), "cancelled", 9))
    (fourth,) = await owner.admit("r4")
    assert (fourth.position, fourth.state) == (1, "waiting")


async def a_run_that_interrupts_marks_the_others_of_its_session(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger, "s", "t")
    await owner.admit("active", "waiting")
    await owner.admit("elsewhere", session="t")
    await owner.do(StartRun(RunId("active"), 7))
    receipt = await owner.do(Admit(msgspec.structs.replace(run("now"), delivery="interrupt"), b"h"))
    events = [entry.event.change for entry in receipt.entries if isinstance(entry.event, RunEvent)]
    assert [(change.type, change.object.run_id) for change in events] == [
        ("created", "now"),
        ("updated", "active"),
        ("updated", "waiting"),
    ]
    assert [item.run_id for item in receipt.runs] == ["now"]
    marked = {name: (await owner.get(name)).cancel_requested for name in ("active", "waiting", "elsewhere", "now")}
    assert marked == {"active": True, "waiting": True, "elsewhere": False, "now": False}
    assert ((await owner.get("active")).state, (await owner.get("waiting")).cancelled_by) == ("cancelling", "c1")


async def a_run_id_is_used_once(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1")
    assert await owner.refused(Admit(run("r1"), b"other")) == "run_exists"
    await owner.do(EndRun(RunId("r1"), "completed", 9))
    assert await owner.refused(Admit(run("r1"), b"other")) == "run_exists"


async def the_same_ids_may_be_used_in_two_workspaces(subject: Subject) -> None:
    here = await WorkspaceOwner.with_session(subject.ledger)
    there = await WorkspaceOwner.open(subject.ledger, "/elsewhere")
    await there.do(CreateSession(session("s")), PutMessage(message("m", "there")), Admit(run("r1"), b"there"))
    await here.do(PutMessage(message("m", "here")), Admit(run("r1"), b"here"))
    record = await subject.ledger.run(there.id, RunId("r1"))
    assert record is not None
    assert record.body_hash == b"there"
    assert await subject.ledger.messages(there.id, SessionId("s")) == [message("m", "there")]


async def accepts_of_one_batch_take_each_other_into_account(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger, "s", "t")
    await owner.admit("before")
    file = Attachment(b"\x00", "/a", "a", "text/plain")
    rejecting = msgspec.structs.replace(run("rejecting"), delivery="reject")
    admits = (
        Admit(run("r1"), b"1"),
        Admit(run("r2", prompt="x" * 9_000), b"2", (file,)),
        Admit(run("r1", session="t"), b"3"),
        Admit(run("before"), b"4"),
        Admit(run("r3", session="nowhere"), b"5"),
        Admit(rejecting, b"6"),
        Admit(run("r4", session="t"), b"7"),
        Admit(run("r5", session="t"), b"8"),
    )
    answers = await owner.batch(*(Write((admit,)) for admit in admits))
    results = [item.reason if isinstance(item, Refusal) else item.runs[0].position for item in answers]
    assert results == [1, 2, "run_exists", "run_exists", "unknown_session", "busy", 0, 1]
    accepted = [item.runs[0] for item in answers if isinstance(item, Receipt)]
    assert [item.number for item in accepted] == [4, 5, 6, 7]
    assert [await owner.get(item.run_id) for item in accepted] == accepted
    record = await subject.ledger.run(owner.id, RunId("r2"))
    assert record is not None
    assert (record.body_hash, record.attachments) == (b"2", (file,))
    ticket, again = await subject.ledger.last_batch(owner.id, owner.epoch)
    assert (ticket, list(again)) == (owner.ticket, list(answers))


async def operations_between_accepts_affect_later_accepts(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    writes = (
        (Admit(run("r1"), b""),),
        (Admit(run("r2"), b""),),
        (StartRun(RunId("r1"), 7), FoldRun(RunId("r2"), RunId("r1"), 7)),
        (Admit(run("r3"), b""),),
        (Admit(run("r4"), b""),),
        (CancelSession(SessionId("s"), "ada"),),
        (EndRun(RunId("r1"), "cancelled", 9), EndRun(RunId("r3"), "cancelled", 9)),
        (Admit(run("r5"), b""),),
    )
    answers = [item for item in await owner.batch(*map(Write, writes)) if isinstance(item, Receipt)]
    assert len(answers) == len(writes)
    assert [answers[place].runs[0].position for place in (0, 1, 3, 4, 7)] == [0, 1, 1, 2, 1]
    assert [item.run_id for item in answers[5].runs] == ["r1", "r2", "r3", "r4"]
    assert all(item.prompt == "Say hello." for item in answers[5].runs)
    assert [item.run_id for item in await subject.ledger.open_runs(owner.id)] == ["r2", "r4", "r5"]


async def a_refused_write_is_not_remembered(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1")
    new = message("m", "new", run="r1")
    start = (StartRun(RunId("r1"), 7), PutMessage(new), PatchSession(SessionPatch(SessionId("s"), 500, title="new")))
    refused, done = await owner.batch(Write((*start, StartRun(RunId("r1"), 8))), Write((start[0], PutMessage(new))))
    assert refused == Refusal("already_started")
    assert isinstance(done, Receipt)
    assert (await owner.get("r1")).started_at == 7
    (item,) = await subject.ledger.sessions(owner.id)
    assert (item.title, item.message_count) == ("Title of s", 1)
    assert await subject.ledger.messages(owner.id, SessionId("s")) == [new]


async def writes_after_a_deletion_do_not_find_the_session(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger, "s", "t")
    await owner.admit("r1")
    await owner.admit("other", session="t")
    new = message("m", "new", run="r1")
    answers = await owner.batch(
        Write((StartRun(RunId("r1"), 7), PutMessage(new), PutMessage(new), EndRun(RunId("r1"), "completed", 9))),
        Write((DeleteSession(SessionId("s")),)),
        Write((CancelRun(RunId("r1")),)),
        Write((PutMessage(new),)),
        Write((CreateSession(session("s")),)),
        Write((Admit(run("r1"), b""),)),
        Write((Admit(run("r2"), b""),)),
        Write((PutMessage(new),)),
    )
    results = [item.reason if isinstance(item, Refusal) else "done" for item in answers]
    assert results == ["done", "done", "unknown_run", "unknown_session", "done", "run_exists", "done", "done"]
    assert [item.run_id for item in await subject.ledger.runs(owner.id, None, 10, 0)] == ["r2", "other"]
    assert (await owner.get("r2")).outcome is None


async def a_run_needs_a_session(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    assert await owner.refused(Admit(run("r1", session="nowhere"), b"h")) == "unknown_session"


async def an_admitted_run_is_read_back_unchanged(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    files = (Attachment(b"\x00\xff", "/a/b.bin", "b.bin", "application/octet-stream"), Attachment(b"", "", "", ""))
    long = run("r1", prompt="é" * 50_000)
    brief = PromptExpansion("what it stands for", "review", "small", ("bash(git *)",))
    (admitted,) = (await owner.do(Admit(long, b"\x01\x02", files, brief))).runs
    await owner.do(StartRun(RunId("r1"), 7))
    record = await subject.ledger.run(owner.id, RunId("r1"))
    assert record is not None
    assert (record.body_hash, record.attachments, record.brief) == (b"\x01\x02", files, brief)
    assert record.run == msgspec.structs.replace(admitted, state="active", started_at=7)
    assert record.run.prompt == long.prompt
    alone = run("r2", prompt="x" * 50_000)
    await owner.do(Admit(alone, b""))
    assert (await owner.get("r2")).prompt == alone.prompt
    assert [item.prompt for item in await subject.ledger.open_runs(owner.id)] == [long.prompt, alone.prompt]


async def only_created_carries_the_prompt(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1")
    (entry,) = (await owner.do(StartRun(RunId("r1"), 7))).entries
    assert isinstance(entry.event, RunEvent)
    assert entry.event.change.object.prompt == ""
    assert (await owner.get("r1")).prompt == "Say hello."


async def a_removed_run_is_deleted_with_an_event(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1")
    (entry,) = (await owner.do(RemoveRun(RunId("r1")))).entries
    assert isinstance(entry.event, RunEvent)
    assert (entry.event.change.type, entry.event.change.object.run_id) == ("deleted", "r1")
    assert await subject.ledger.run(owner.id, RunId("r1")) is None
    assert (await owner.do(RemoveRun(RunId("r1")))).entries == ()
    (again,) = await owner.admit("r1")
    assert again.position == 0


async def an_ended_run_is_not_removed(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1")
    await owner.do(EndRun(RunId("r1"), "completed", 9))
    assert (await owner.do(RemoveRun(RunId("r1")))).entries == ()
    assert (await owner.get("r1")).state == "ended"


async def reorder_exchanges_positions(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger, "s", "t")
    await owner.admit("r1", "r2")
    await owner.admit("x", session="t")
    await owner.admit("r3", "r4")
    await owner.do(StartRun(RunId("r1"), 7))
    order = (RunId("r4"), RunId("r2"), RunId("r3"))
    (entry,) = (await owner.do(Reorder(order, RunId("r4")))).entries
    assert isinstance(entry.event, RunEvent)
    assert (entry.event.change.type, entry.event.change.object.run_id) == ("updated", "r4")
    found = [item.run_id for item in await subject.ledger.open_runs(owner.id)]
    assert found == ["r1", "r4", "x", "r2", "r3"]


async def only_waiting_runs_are_moved_or_redelivered(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("active", "folded", "ended", "waiting")
    await owner.do(StartRun(RunId("active"), 7))
    await owner.do(FoldRun(RunId("folded"), RunId("active"), 8))
    await owner.do(EndRun(RunId("ended"), "cancelled", 9))
    for name in ("active", "folded", "ended", "unknown"):
        order = (RunId("waiting"), RunId(name))
        assert await owner.refused(Reorder(order, RunId("waiting"))) == "not_waiting"
        assert await owner.refused(Redeliver(RunId(name), "steer")) == "not_waiting"


async def redeliver_changes_the_delivery(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1", "r2")
    (entry,) = (await owner.do(Redeliver(RunId("r2"), "steer"))).entries
    assert isinstance(entry.event, RunEvent)
    assert (entry.event.change.type, entry.event.change.object.delivery) == ("updated", "steer")
    assert (await owner.get("r2")).delivery == "steer"


async def a_refused_write_undoes_its_earlier_operations(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1")
    started = StartRun(RunId("r1"), 7)
    work = (started, PutMessage(message("m", run="r1")), Admit(run("r2"), b"h"), EndRun(RunId("r1"), "completed", 9))
    assert await owner.refused(*work, EndRun(RunId("r1"), "failed", 9)) == "already_ended"
    before = (await subject.ledger.bounds(owner.id))[1]
    answers = await owner.batch(Write((Admit(run("r1"), b"h"),)), Write((Admit(run("r2"), b"h"),)))
    assert [item.number for answer in answers for item in getattr(answer, "entries", ())] == [before + 1]


CHECKS = tuple(
    Check(check)
    for check in (
        admit_numbers_and_places_the_run,
        position_counts_neither_ended_nor_folded_runs,
        a_run_that_interrupts_marks_the_others_of_its_session,
        a_run_id_is_used_once,
        the_same_ids_may_be_used_in_two_workspaces,
        accepts_of_one_batch_take_each_other_into_account,
        operations_between_accepts_affect_later_accepts,
        a_refused_write_is_not_remembered,
        writes_after_a_deletion_do_not_find_the_session,
        a_run_needs_a_session,
        an_admitted_run_is_read_back_unchanged,
        only_created_carries_the_prompt,
        a_removed_run_is_deleted_with_an_event,
        an_ended_run_is_not_removed,
        reorder_exchanges_positions,
        only_waiting_runs_are_moved_or_redelivered,
        redeliver_changes_the_delivery,
        a_refused_write_undoes_its_earlier_operations,
    )
)
