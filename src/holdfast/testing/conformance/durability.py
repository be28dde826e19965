"""Durability after a crash or a power failure, and the state after an unknown result."""

import asyncio

from holdfast.domain.errors import StorageUnavailable, StorageUnknown
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import CreateSession, PatchSession, Write
from holdfast.testing.conformance.subject import Check, Subject, WorkspaceOwner, message, session

__all__ = ["CHECKS"]

PATCH = PatchSession(SessionPatch(SessionId("s"), 1))


async def an_acknowledged_write_survives_a_crash(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.admit("r1", "r2")
    await owner.put(message("m", "text"))
    await owner.do(CreateSession(session("t")), sync=False)
    before = await owner.all()
    await subject.crash()
    owner.ledger = subject.ledger
    assert await owner.all() == before


async def a_synced_write_survives_a_power_cut(subject: Subject) -> None:
    """Unsynced writes before it survive too."""
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.do(PATCH, sync=False)
    await owner.admit("r1")
    before = await owner.all()
    await subject.cut_power()
    owner.ledger = subject.ledger
    assert await owner.all() == before


async def a_batch_is_synced_if_one_of_its_writes_is(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.batch(Write((PATCH,), sync=False), Write((PATCH,), sync=True), Write((PATCH,), sync=False))
    before = await owner.all()
    await subject.cut_power()
    owner.ledger = subject.ledger
    assert await owner.all() == before


async def a_number_seen_before_a_power_cut_is_not_used_again(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    (seen,) = (await owner.do(PATCH, sync=False)).entries
    await subject.cut_power()
    again = await WorkspaceOwner.open(subject.ledger)
    # Without a gap, the event itself is still stored.
    assert again.record.newest >= seen.number + min(subject.unclean_gap, 1)
    kept = dict(await subject.ledger.events_after(again.id, 0, 100))
    assert kept.get(seen.number, seen.body if subject.unclean_gap else b"") == seen.body


async def a_clean_end_survives_a_power_cut(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.do(PATCH, sync=False)
    before = (await subject.ledger.bounds(owner.id))[1]
    await subject.ledger.close_workspace(owner.id, owner.epoch)
    await subject.cut_power()
    again = await WorkspaceOwner.open(subject.ledger)
    assert again.record.newest == before
    assert len(await again.events()) == before


async def a_commit_that_failed_wrote_nothing_and_can_be_repeated(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    before = await owner.all()
    subject.fail_next()
    try:
        await owner.do(PATCH)
    except StorageUnavailable:
        assert await owner.all() == before
    else:
        raise AssertionError("the commit did not fail")
    ticket, _ = await subject.ledger.last_batch(owner.id, owner.epoch)
    assert ticket == owner.ticket - 1
    answers = await subject.ledger.commit(owner.id, owner.epoch, owner.ticket, [Write((PATCH,))])
    assert list((await subject.ledger.last_batch(owner.id, owner.epoch))[1]) == list(answers)
    assert len(await owner.events()) == 2


async def the_outcome_of_an_unknown_commit_is_read_back(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    subject.lose_next_answer()
    try:
        await owner.do(PATCH)
    except StorageUnknown:
        pass
    else:
        raise AssertionError("the answer was not lost")
    ticket, answers = await subject.ledger.last_batch(owner.id, owner.epoch)
    assert ticket == owner.ticket
    again = await subject.ledger.commit(owner.id, owner.epoch, ticket, [Write((PATCH,))])
    assert list(again) == list(answers)
    assert len(await owner.events()) == 2


async def a_write_is_committed_after_its_caller_was_cancelled(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    commit = asyncio.gather(owner.batch(Write((PATCH,))))
    await asyncio.sleep(0)
    commit.cancel()
    await asyncio.gather(commit, return_exceptions=True)
    ticket, answers = await subject.ledger.last_batch(owner.id, owner.epoch)
    assert (ticket, len(answers)) == (owner.ticket, 1)
    assert len(await owner.events()) == 2


CHECKS = tuple(
    Check(check)
    for check in (
        an_acknowledged_write_survives_a_crash,
        a_synced_write_survives_a_power_cut,
        a_batch_is_synced_if_one_of_its_writes_is,
        a_number_seen_before_a_power_cut_is_not_used_again,
        a_clean_end_survives_a_power_cut,
        a_commit_that_failed_wrote_nothing_and_can_be_repeated,
        the_outcome_of_an_unknown_commit_is_read_back,
        a_write_is_committed_after_its_caller_was_cancelled,
    )
)
