"""The numbered event log and its retention."""

import asyncio

from holdfast.domain.events import encode_event
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import Admit, CreateSession, EndRun, PatchSession, Receipt, Write
from holdfast.storage.event_log import PRUNE_INTERVAL, Retention
from holdfast.testing.conformance.subject import Check, Subject, WorkspaceOwner, run, session

__all__ = ["CHECKS"]

DAY_MS = 86_400_000
PATCH = PatchSession(SessionPatch(SessionId("s"), 1))


async def numbers_have_no_gap(subject: Subject) -> None:
    owner = await WorkspaceOwner.open(subject.ledger)
    assert (owner.record.oldest, owner.record.newest) == (1, 0)
    owner = await WorkspaceOwner.with_session(subject.ledger)
    start = (await subject.ledger.bounds(owner.id))[1]
    receipts = [await owner.do(PATCH), await owner.do(PATCH, PATCH), await owner.do(), await owner.do(PATCH)]
    numbers = [entry.number for receipt in receipts for entry in receipt.entries]
    assert numbers == list(range(start + 1, start + 5))


async def every_acknowledged_event_is_in_the_log_with_its_bytes(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    receipt = await owner.do(Admit(run("r1"), b"h"), PATCH)
    for entry in receipt.entries:
        assert entry.body == encode_event(entry.event)
    stored = await subject.ledger.events_after(owner.id, receipt.entries[0].number - 1, 100)
    assert list(stored) == [(entry.number, entry.body) for entry in receipt.entries]


async def events_after_a_cursor_come_in_order_up_to_the_limit(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.do(*([PATCH] * 12))
    numbers = [number for number, _ in await subject.ledger.events_after(owner.id, 3, 5)]
    assert numbers == [4, 5, 6, 7, 8]
    assert list(await subject.ledger.events_after(owner.id, 13, 5)) == []
    assert await subject.ledger.bounds(owner.id) == (1, 13)


async def every_event_has_the_time_at_which_it_was_stored(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    first = await owner.do(PATCH)
    subject.clock.ms += 5_000
    second = await owner.do(PATCH, PATCH)
    after = first.entries[0].number - 1
    dated = list(await subject.ledger.dated_events(owner.id, after, 2))
    plain = [(entry.number, entry.body) for entry in (*first.entries, *second.entries)]
    assert [(number, body) for number, _, body in dated] == plain[:2]
    assert [at for _, at, _ in dated] == [subject.clock.ms - 5_000, subject.clock.ms]


async def each_workspace_has_its_own_numbers(subject: Subject) -> None:
    here = await WorkspaceOwner.with_session(subject.ledger)
    there = await WorkspaceOwner.open(subject.ledger, "/elsewhere")
    await here.do(PATCH, PATCH)
    assert await subject.ledger.bounds(there.id) == (1, 0)
    assert list(await subject.ledger.events_after(there.id, 0, 10)) == []


async def concurrent_batches_are_numbered_in_order_of_submission(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    other = await WorkspaceOwner.open(subject.ledger, "/elsewhere")
    commits = [owner.batch(Write((PATCH,)), Write((PATCH,), sync=False)) for _ in range(10)]
    commits.append(other.batch(Write(())))
    answers = await asyncio.gather(*commits)
    numbers = [
        entry.number
        for batch in answers
        for answer in batch
        for entry in (answer.entries if isinstance(answer, Receipt) else ())
    ]
    assert numbers == list(range(2, 22))


async def the_newest_events_are_kept(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    for _ in range(3):
        await owner.do(*([PATCH] * PRUNE_INTERVAL))
    # The log may be pruned after an answer was returned, but not later than before the next answer.
    await owner.do(PATCH)
    newest = 3 * PRUNE_INTERVAL + 2
    oldest = (await subject.ledger.bounds(owner.id))[0]
    kept = newest - oldest + 1
    assert 500 <= kept <= 500 + PRUNE_INTERVAL, f"{kept} events are kept"
    assert [number for number, _ in await owner.events()] == list(range(oldest, newest + 1))


async def a_cursor_above_the_newest_number_returns_no_events(subject: Subject) -> None:
    here = await WorkspaceOwner.with_session(subject.ledger)
    there = await WorkspaceOwner.open(subject.ledger, "/elsewhere")
    await there.do(CreateSession(session("s")), Admit(run("there"), b""))
    await here.admit("here")
    for beyond in (10, 1 << 40, 1 << 50, (1 << 63) - 1):
        assert list(await subject.ledger.events_after(here.id, beyond, 10)) == []
        (found,) = await subject.ledger.runs(here.id, None, 10, beyond)
        assert [found] == list(await subject.ledger.runs(here.id, SessionId("s"), 10, beyond))
        assert found.run_id == "here"


async def old_events_are_pruned_when_the_workspace_is_opened(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.do(PATCH)
    subject.clock.ms += 20 * DAY_MS
    await owner.do(PATCH)
    subject.clock.ms += 20 * DAY_MS
    again = await WorkspaceOwner.open(subject.ledger)
    await again.do(PATCH)
    numbers = [number for number, _ in await again.events()]
    assert numbers == [3, again.record.newest + 1]
    assert await subject.ledger.bounds(again.id) == (3, again.record.newest + 1)


async def an_emptied_log_starts_after_the_newest_number(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    subject.clock.ms += 40 * DAY_MS
    await WorkspaceOwner.open(subject.ledger)
    last = await WorkspaceOwner.open(subject.ledger)
    newest = last.record.newest
    assert last.record.oldest == newest + 1
    assert await subject.ledger.bounds(owner.id) == (newest + 1, newest)
    assert (await subject.ledger.snapshot(owner.id, None)).cursor == newest


async def events_since_an_unended_run_are_kept(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    await owner.do(PATCH)
    (first,) = await owner.admit("r1")
    await owner.do(PATCH)
    subject.clock.ms += 40 * DAY_MS
    again = await WorkspaceOwner.open(subject.ledger)
    await again.do(PATCH)
    assert (await subject.ledger.bounds(owner.id))[0] == first.number
    await again.do(EndRun(RunId("r1"), "completed", 9))
    subject.clock.ms += 40 * DAY_MS
    last = await WorkspaceOwner.open(subject.ledger)
    await last.do(PATCH)
    assert [number for number, _ in await last.events()] == [last.record.newest + 1]
    assert (await last.get("r1")).outcome == "completed"


CHECKS = (
    *(
        Check(check)
        for check in (
            numbers_have_no_gap,
            every_acknowledged_event_is_in_the_log_with_its_bytes,
            events_after_a_cursor_come_in_order_up_to_the_limit,
            every_event_has_the_time_at_which_it_was_stored,
            each_workspace_has_its_own_numbers,
            concurrent_batches_are_numbered_in_order_of_submission,
            a_cursor_above_the_newest_number_returns_no_events,
            old_events_are_pruned_when_the_workspace_is_opened,
            an_emptied_log_starts_after_the_newest_number,
            events_since_an_unended_run_are_kept,
        )
    ),
    Check(the_newest_events_are_kept, Retention(events=500)),
)
