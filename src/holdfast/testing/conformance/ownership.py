"""Ownership of a workspace: epochs, tickets, clean and unclean ends."""

from holdfast.domain.errors import OwnerChanged, StorageUnknown
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import Admit, CancelSession, CreateSession, PatchSession, StartRun, Write
from holdfast.testing.conformance.subject import Check, Subject, WorkspaceOwner, run, session

__all__ = ["CHECKS"]

PATCH = PatchSession(SessionPatch(SessionId("s"), 1))


async def a_path_keeps_its_id_and_gets_a_new_epoch(subject: Subject) -> None:
    first = await WorkspaceOwner.open(subject.ledger)
    other = await WorkspaceOwner.open(subject.ledger, "/elsewhere")
    second = await WorkspaceOwner.open(await subject.another())
    assert (first.record.path, other.record.path) == ("/home/ada/project", "/elsewhere")
    assert first.id == second.id != other.id
    assert (first.epoch, second.epoch, other.epoch) == (1, 2, 1)
    await subject.crash()
    third = await WorkspaceOwner.open(subject.ledger)
    assert (third.id, third.epoch) == (first.id, 3)


async def the_numbering_skips_the_gap_of_the_store_after_an_unclean_end(subject: Subject) -> None:
    workspace_owner = await WorkspaceOwner.with_session(subject.ledger)
    await subject.crash()
    again = await WorkspaceOwner.open(subject.ledger)
    gap = subject.unclean_gap
    assert (again.record.oldest, again.record.newest) == (1, gap + 1)
    (entry,) = (await again.do(PATCH)).entries
    assert entry.number == gap + 2
    assert [number for number, _ in await again.events()] == [1, gap + 2]
    assert workspace_owner.record.newest == 0


async def the_numbering_continues_after_a_clean_end(subject: Subject) -> None:
    workspace_owner = await WorkspaceOwner.with_session(subject.ledger)
    await subject.ledger.close_workspace(workspace_owner.id, workspace_owner.epoch)
    await subject.crash()
    again = await WorkspaceOwner.open(subject.ledger)
    assert again.record.newest == 1
    (entry,) = (await again.do(PATCH)).entries
    assert entry.number == 2


async def only_the_owner_closes(subject: Subject) -> None:
    first = await WorkspaceOwner.with_session(subject.ledger)
    second = await WorkspaceOwner.open(subject.ledger)
    await subject.ledger.close_workspace(first.id, first.epoch)
    await second.do(PATCH)
    third = await WorkspaceOwner.open(subject.ledger)
    assert third.record.newest == second.record.newest + 1 + subject.unclean_gap


async def a_closed_workspace_refuses_writes(subject: Subject) -> None:
    workspace_owner = await WorkspaceOwner.with_session(subject.ledger)
    await subject.ledger.close_workspace(workspace_owner.id, workspace_owner.epoch)
    await _is_fenced(workspace_owner)


async def a_former_owner_cannot_write(subject: Subject) -> None:
    former = await WorkspaceOwner.with_session(subject.ledger)
    current = await WorkspaceOwner.open(await subject.another())
    await _is_fenced(former)
    await current.do(PATCH)
    await _is_fenced(former)


async def an_unknown_workspace_has_no_owner(subject: Subject) -> None:
    workspace_owner = await WorkspaceOwner.open(subject.ledger)
    workspace_owner.id = WorkspaceId("unknown")
    await _is_fenced(workspace_owner)


async def _is_fenced(workspace_owner: WorkspaceOwner) -> None:
    before = await workspace_owner.all()
    try:
        await workspace_owner.batch(Write((CreateSession(session("late")),)))
    except OwnerChanged:
        assert await workspace_owner.all() == before
    else:
        raise AssertionError("a write of a former owner was committed")


async def the_same_ticket_is_answered_again_and_written_once(subject: Subject) -> None:
    workspace_owner = await WorkspaceOwner.with_session(subject.ledger)
    await workspace_owner.admit("r0")
    writes = (
        Write((CancelSession(SessionId("s"), "ada"), Admit(run("r1", prompt="x" * 9_000), b"h"))),
        Write((Admit(run("r1"), b"h"),)),
        Write((CancelSession(SessionId("s"), "bob"), PATCH)),
        Write((StartRun(RunId("r1"), 7),)),
        Write(()),
    )
    first = await workspace_owner.batch(*writes)
    seen = await workspace_owner.all()
    again = await subject.ledger.commit(workspace_owner.id, workspace_owner.epoch, workspace_owner.ticket, writes)
    assert list(again) == list(first)
    assert await workspace_owner.all() == seen
    ticket, last = await subject.ledger.last_batch(workspace_owner.id, workspace_owner.epoch)
    assert (ticket, list(last)) == (workspace_owner.ticket, list(first))


async def an_older_ticket_writes_nothing(subject: Subject) -> None:
    workspace_owner = await WorkspaceOwner.with_session(subject.ledger)
    await workspace_owner.do(PATCH)
    before = await workspace_owner.all()
    try:
        await subject.ledger.commit(workspace_owner.id, workspace_owner.epoch, 1, [Write((PATCH,))])
    except StorageUnknown:
        assert await workspace_owner.all() == before
    else:
        raise AssertionError("an older ticket was accepted")


async def tickets_restart_with_each_epoch(subject: Subject) -> None:
    await WorkspaceOwner.with_session(subject.ledger)
    workspace_owner = await WorkspaceOwner.open(subject.ledger)
    ticket, answers = await subject.ledger.last_batch(workspace_owner.id, workspace_owner.epoch)
    assert (ticket, list(answers)) == (0, [])
    receipt = await workspace_owner.do(PATCH)
    assert workspace_owner.ticket == 1
    ticket, answers = await subject.ledger.last_batch(workspace_owner.id, workspace_owner.epoch)
    assert (ticket, list(answers)) == (1, [receipt])


async def a_former_owner_cannot_read_its_last_batch(subject: Subject) -> None:
    former = await WorkspaceOwner.with_session(subject.ledger)
    await WorkspaceOwner.open(subject.ledger)
    try:
        await subject.ledger.last_batch(former.id, former.epoch)
    except OwnerChanged:
        return
    raise AssertionError("a former owner could read its last batch")


async def unfinished_workspaces_are_those_with_runs_without_an_end(subject: Subject) -> None:
    workspace_owner = await WorkspaceOwner.with_session(subject.ledger)
    await WorkspaceOwner.open(subject.ledger, "/elsewhere")
    odd = await WorkspaceOwner.open(subject.ledger, "/bytes/\udcff")
    assert list(await subject.ledger.unfinished_workspaces()) == []
    await odd.do(CreateSession(session("s")))
    await workspace_owner.admit("r1")
    await odd.admit("r1")
    assert list(await subject.ledger.unfinished_workspaces()) == ["/home/ada/project", "/bytes/\udcff"]


CHECKS = tuple(
    Check(check)
    for check in (
        a_path_keeps_its_id_and_gets_a_new_epoch,
        the_numbering_skips_the_gap_of_the_store_after_an_unclean_end,
        the_numbering_continues_after_a_clean_end,
        only_the_owner_closes,
        a_closed_workspace_refuses_writes,
        a_former_owner_cannot_write,
        an_unknown_workspace_has_no_owner,
        the_same_ticket_is_answered_again_and_written_once,
        an_older_ticket_writes_nothing,
        tickets_restart_with_each_epoch,
        a_former_owner_cannot_read_its_last_batch,
        unfinished_workspaces_are_those_with_runs_without_an_end,
    )
)
