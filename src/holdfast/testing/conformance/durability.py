"""Durability after a crash or a power failure, and the state after an unknown result."""

import asyncio

from holdfast.domain.errors import StorageUnavailable, StorageUnknown
from holdfast.domain.ids import SessionId
from holdfast.domain.ledger import CreateSession, PatchSession, Write
from holdfast.domain.sessions import SessionPatch
from holdfast.testing.conformance.subject import Check, Desk, Subject, message, session

__all__ = ["CHECKS"]

PATCH = PatchSession(SessionPatch(SessionId("s"), 1))


async def what_was_answered_survives_a_crash(subject: Subject) -> None:
    desk = await Desk.with_session(subject.ledger)
    await desk.admit("r1", "r2")
    await desk.put(message("m", "text"))
    await desk.do(CreateSession(session("t")), sync=False)
    before = await desk.all()
    await subject.crash()
    desk.ledger = subject.ledger
    assert await desk.all() == before


async def a_synced_write_survives_a_power_cut(subject: Subject) -> None:
    """So does what was written before it."""
    desk = await Desk.with_session(subject.ledger)
    await desk.do(PATCH, sync=False)
    await desk.admit("r1")
    before = await desk.all()
    await subject.cut_power()
    desk.ledger = subject.ledger
    assert await desk.all() == before


async def a_batch_is_synced_if_one_of_its_writes_is(subject: Subject) -> None:
    desk = await Desk.with_session(subject.ledger)
    await desk.batch(Write((PATCH,), sync=False), Write((PATCH,), sync=True), Write((PATCH,), sync=False))
    before = await desk.all()
    await subject.cut_power()
    desk.ledger = subject.ledger
    assert await desk.all() == before


async def a_number_seen_before_a_power_cut_is_not_used_again(subject: Subject) -> None:
    desk = await Desk.with_session(subject.ledger)
    (seen,) = (await desk.do(PATCH, sync=False)).entries
    await subject.cut_power()
    again = await Desk.open(subject.ledger)
    assert again.record.newest > seen.number
    kept = dict(await subject.ledger.events_after(again.id, 0, 100))
    assert kept.get(seen.number, seen.body) == seen.body


async def a_clean_end_survives_a_power_cut(subject: Subject) -> None:
    desk = await Desk.with_session(subject.ledger)
    await desk.do(PATCH, sync=False)
    before = (await subject.ledger.bounds(desk.id))[1]
    await subject.ledger.close_workspace(desk.id, desk.epoch)
    await subject.cut_power()
    again = await Desk.open(subject.ledger)
    assert again.record.newest == before
    assert len(await again.events()) == before


async def a_commit_that_failed_wrote_nothing_and_can_be_repeated(subject: Subject) -> None:
    desk = await Desk.with_session(subject.ledger)
    before = await desk.all()
    subject.fail_next()
    try:
        await desk.do(PATCH)
    except StorageUnavailable:
        assert await desk.all() == before
    else:
        raise AssertionError("the commit did not fail")
    ticket, _ = await subject.ledger.last_batch(desk.id, desk.epoch)
    assert ticket == desk.ticket - 1
    answers = await subject.ledger.commit(desk.id, desk.epoch, desk.ticket, [Write((PATCH,))])
    assert list((await subject.ledger.last_batch(desk.id, desk.epoch))[1]) == list(answers)
    assert len(await desk.events()) == 2


async def a_commit_with_an_unknown_outcome_is_looked_up(subject: Subject) -> None:
    desk = await Desk.with_session(subject.ledger)
    subject.lose_next_answer()
    try:
        await desk.do(PATCH)
    except StorageUnknown:
        pass
    else:
        raise AssertionError("the answer was not lost")
    ticket, answers = await subject.ledger.last_batch(desk.id, desk.epoch)
    assert ticket == desk.ticket
    again = await subject.ledger.commit(desk.id, desk.epoch, ticket, [Write((PATCH,))])
    assert list(again) == list(answers)
    assert len(await desk.events()) == 2


async def a_write_goes_through_though_nobody_waits_for_it(subject: Subject) -> None:
    desk = await Desk.with_session(subject.ledger)
    commit = asyncio.gather(desk.batch(Write((PATCH,))))
    await asyncio.sleep(0)
    commit.cancel()
    await asyncio.gather(commit, return_exceptions=True)
    ticket, answers = await subject.ledger.last_batch(desk.id, desk.epoch)
    assert (ticket, len(answers)) == (desk.ticket, 1)
    assert len(await desk.events()) == 2


CHECKS = tuple(
    Check(check)
    for check in (
        what_was_answered_survives_a_crash,
        a_synced_write_survives_a_power_cut,
        a_batch_is_synced_if_one_of_its_writes_is,
        a_number_seen_before_a_power_cut_is_not_used_again,
        a_clean_end_survives_a_power_cut,
        a_commit_that_failed_wrote_nothing_and_can_be_repeated,
        a_commit_with_an_unknown_outcome_is_looked_up,
        a_write_goes_through_though_nobody_waits_for_it,
    )
)
