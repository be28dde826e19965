"""Reads: ordered lists, and snapshots that are consistent with one number of the log."""

import asyncio

from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.store_operations import EndRun, PutMessage, Snapshot, StartRun
from holdfast.testing.conformance.subject import Check, Subject, WorkspaceOwner, message

__all__ = ["CHECKS"]

SESSION = SessionId("s")


async def open_runs_are_those_without_an_end_in_their_order(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger, "s", "t")
    await owner.admit("r1", "r2")
    await owner.admit("r3", session="t")
    await owner.do(StartRun(RunId("r2"), 7), EndRun(RunId("r1"), "completed", 9))
    found = await subject.ledger.open_runs(owner.id)
    assert list(found) == [await owner.get("r2"), await owner.get("r3")]


async def runs_are_listed_newest_first_in_pages(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger, "s", "t")
    runs = await owner.admit("r1", "r2", "r3")
    await owner.admit("x", session="t")
    await owner.do(EndRun(RunId("r2"), "completed", 9))
    ledger = subject.ledger

    async def page(session: SessionId | None, limit: int, before: int) -> list[str]:
        return [item.run_id for item in await ledger.runs(owner.id, session, limit, before)]

    assert await page(None, 10, 0) == ["x", "r3", "r2", "r1"]
    assert await page(SESSION, 2, 0) == ["r3", "r2"]
    assert await page(SESSION, 2, runs[1].number) == ["r1"]
    assert await page(None, 10, runs[0].number) == []


async def a_snapshot_has_open_runs_and_the_last_fifty_that_ended(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    names = [f"r{index:02}" for index in range(60)]
    await owner.admit(*names)
    await owner.do(*(EndRun(RunId(name), "completed", 9) for name in names[2:58]))
    found = [item.run_id for item in (await subject.ledger.snapshot(owner.id, None)).runs]
    assert found == [*names[:2], *names[8:]]


async def a_snapshot_without_a_session_has_no_messages(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger, "s", "t")
    await owner.put(message("m1"), message("m2", session="t"))
    assert (await subject.ledger.snapshot(owner.id, None)).messages == ()
    snapshot = await subject.ledger.snapshot(owner.id, SESSION)
    assert snapshot.messages == (message("m1"),)
    assert (snapshot.cursor, snapshot.epoch) == ((await subject.ledger.bounds(owner.id))[1], owner.epoch)


async def a_snapshot_is_consistent_with_one_number_of_the_log(subject: Subject) -> None:
    """Each write makes two events and adds one message, so an inconsistent snapshot is detected."""
    owner = await WorkspaceOwner.with_session(subject.ledger)
    base = (await subject.ledger.bounds(owner.id))[1]

    async def write() -> None:
        for index in range(40):
            await owner.do(PutMessage(message(f"m{index}")), PutMessage(message(f"m{index}", "x")), sync=False)

    async def watch() -> list[Snapshot]:
        return [await subject.ledger.snapshot(owner.id, SESSION) for _ in range(40)]

    _, *watched = await asyncio.gather(write(), watch(), watch())
    for snapshot in [item for snapshots in watched for item in snapshots]:
        assert snapshot.cursor - base == 2 * len(snapshot.messages)
        assert snapshot.sessions[0].message_count == len(snapshot.messages)


async def a_read_includes_every_write_acknowledged_before_it(subject: Subject) -> None:
    owner = await WorkspaceOwner.with_session(subject.ledger)
    for index in range(20):
        await owner.do(PutMessage(message(f"m{index}")), sync=False)
        found = await asyncio.gather(*(subject.ledger.messages(owner.id, SESSION) for _ in range(3)))
        assert [len(messages) for messages in found] == [index + 1] * 3


async def an_unknown_workspace_reads_as_an_empty_one(subject: Subject) -> None:
    owner = WorkspaceOwner(subject.ledger, (await WorkspaceOwner.with_session(subject.ledger)).record)
    owner.id = WorkspaceId("unknown")
    snapshot = await subject.ledger.snapshot(owner.id, SESSION)
    assert (snapshot.sessions, snapshot.messages, snapshot.runs) == ((), (), ())
    assert await subject.ledger.bounds(owner.id) == (1, 0)
    assert await subject.ledger.session(owner.id, SESSION) is None
    assert await subject.ledger.run(owner.id, RunId("r")) is None
    assert list(await subject.ledger.sessions(owner.id)) == []
    assert list(await subject.ledger.events_after(owner.id, 0, 10)) == []


CHECKS = tuple(
    Check(check)
    for check in (
        open_runs_are_those_without_an_end_in_their_order,
        runs_are_listed_newest_first_in_pages,
        a_snapshot_has_open_runs_and_the_last_fifty_that_ended,
        a_snapshot_without_a_session_has_no_messages,
        a_snapshot_is_consistent_with_one_number_of_the_log,
        a_read_includes_every_write_acknowledged_before_it,
        an_unknown_workspace_reads_as_an_empty_one,
    )
)
