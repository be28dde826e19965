"""The ledger on PostgreSQL: equivalence with the store in memory, concurrent inputs, and unknown outcomes."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest

from holdfast.domain.errors import OwnerChanged, StorageUnavailable, StorageUnknown
from holdfast.domain.ids import MessageId, RunId, SessionId, WorkspaceId
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import (
    Admit,
    Answer,
    CancelSession,
    CreateSession,
    DeleteSession,
    EndRun,
    Operation,
    PatchSession,
    PutMessage,
    Receipt,
    Refusal,
    StartRun,
    Write,
)
from holdfast.storage.event_log import Retention
from holdfast.storage.postgres import connection_pool
from holdfast.storage.postgres.apply_call import APPLY
from holdfast.storage.postgres.connection_pool import Pool, Row
from holdfast.storage.postgres.postgres_ledger import PostgresLedger
from holdfast.testing.conformance import WorkspaceOwner, message, run, session
from holdfast.testing.memory_ledger import MemoryLedger
from postgres_server import new_database
from storage.conformance_subjects import PostgresSubject
from storage.write_generator import WriteGenerator, everything

PATCH = PatchSession(SessionPatch(SessionId("s"), 1))


@pytest.fixture
async def database() -> AsyncIterator[str]:
    async with new_database() as dsn:
        yield dsn


class HoldingPool(Pool):
    """Connections whose next batch is lost on its way: it is kept, and can arrive later."""

    def __init__(self, dsn: str) -> None:
        super().__init__({"dsn": dsn})
        self.is_holding = False
        self.held: tuple[object, ...] = ()

    async def write(self, statement: str, *arguments: object) -> Row | None:
        if statement == APPLY and self.is_holding:
            self.held, self.is_holding = arguments, False
            raise StorageUnknown
        return await super().write(statement, *arguments)

    async def deliver(self) -> int:
        """Let the batch that was kept arrive."""
        row = await super().write(APPLY, *self.held)
        assert row is not None
        return int(row[0])


async def opened(dsn: str, pool: Pool | None = None) -> PostgresLedger:
    pool = pool or Pool({"dsn": dsn})
    await pool.open()
    return PostgresLedger(pool, "here")


@pytest.mark.parametrize("seed", range(4))
async def test_postgres_replies_and_contains_the_same_as_memory(seed: int) -> None:
    async with new_database() as dsn:
        subject = PostgresSubject(dsn, Retention())
        ledgers = (await subject.open(), MemoryLedger(now_ms=subject.clock.now_ms))
        owners = [await WorkspaceOwner.with_session(ledger) for ledger in ledgers]
        generator = WriteGenerator(seed)
        for _ in range(60):
            writes = generator.batch()
            answers = [await owner.batch(*writes) for owner in owners]
            assert list(answers[0]) == list(answers[1]), writes
            again = [await owner.ledger.commit(owner.id, owner.epoch, owner.ticket, []) for owner in owners]
            assert list(again[0]) == list(answers[0]), "the same ticket is answered the same"
        assert _plain(await everything(owners[0])) == _plain(await everything(owners[1]))
        await subject.close()


@pytest.mark.parametrize("seed", range(4, 7))
async def test_inputs_reply_and_contain_the_same_as_memory(seed: int, database: str) -> None:
    """Batches of the owner and inputs of another server take turns."""
    ledger, other = await opened(database), await opened(database)
    memory = MemoryLedger()
    owners = [await WorkspaceOwner.with_session(store) for store in (ledger, memory)]
    generator, accepted = WriteGenerator(seed), 0
    for _ in range(80):
        writes = generator.batch()
        try:
            found = await other.accept(owners[0].id, writes)
            expected = await memory.accept(owners[1].id, writes)
            accepted += 1
        except ValueError:
            found, expected = [await owner.batch(*writes) for owner in owners]
        assert list(found) == list(expected), writes
    assert accepted >= 20
    assert _plain(await everything(owners[0])) == _plain(await everything(owners[1]))
    for store in (ledger, other):
        await store.close()


def _plain(found: list[object]) -> list[object]:
    return [list(item) if isinstance(item, tuple) else item for item in found]


async def test_concurrent_inputs_of_several_servers_land_exactly_once(database: str) -> None:
    """Four servers accept prompts for one workspace while its owner stores events."""
    ledgers = [await opened(database) for _ in range(4)]
    owner = await WorkspaceOwner.with_session(ledgers[0])

    async def accept(server: int, count: int) -> list[Answer]:
        found: list[Answer] = []
        for index in range(count):
            found += await ledgers[server].accept(owner.id, [Write((Admit(run(f"r{server}-{index}"), b"h"),))])
        return found

    async def own(count: int) -> list[Answer]:
        return [answer for _ in range(count) for answer in await owner.batch(Write((PATCH, PATCH)))]

    # On each server several clients at once, and one prompt that every server receives.
    same = [ledger.accept(owner.id, [Write((Admit(run("same"), b"h"),))]) for ledger in ledgers]
    work = [accept(server, 15) for server in range(4)]
    more = [ledgers[1].accept(owner.id, [Write((Admit(run(f"m{index}"), b"h"),))]) for index in range(20)]
    results = await asyncio.gather(own(30), *work, *more, *same)
    answers = [answer for result in results for answer in result]
    receipts = [answer for answer in answers if isinstance(answer, Receipt)]
    refusals = [answer.reason for answer in answers if isinstance(answer, Refusal)]
    assert refusals == ["run_exists"] * 3
    numbers = [entry.number for receipt in receipts for entry in receipt.entries]
    newest = 1 + 60 + 60 + 20 + 1
    assert sorted(numbers) == list(range(2, newest + 1))
    assert [number for number, _ in await owner.events()] == list(range(1, newest + 1))
    assert len(await ledgers[2].open_runs(owner.id)) == 81
    stored = {number: body for number, body in await ledgers[3].events_after(owner.id, 0, 1_000)}
    assert all(stored[entry.number] == entry.body for receipt in receipts for entry in receipt.entries)
    for ledger in ledgers:
        await ledger.close()


async def test_inputs_that_wait_are_applied_together(database: str) -> None:
    ledger = await opened(database)
    owner = await WorkspaceOwner.with_session(ledger)
    before = await _revision(database)
    writes = [[Write((Admit(run(f"r{index}"), b"h"),))] for index in range(50)]
    answers = await asyncio.gather(*(ledger.accept(owner.id, item) for item in writes))
    assert [answer.runs[0].run_id for (answer,) in answers if isinstance(answer, Receipt)] == [
        f"r{index}" for index in range(50)
    ]
    assert await _revision(database) - before <= 2
    await ledger.close()


async def _revision(dsn: str) -> int:
    connection = await asyncpg.connect(dsn)
    try:
        return int(await connection.fetchval("SELECT revision FROM holdfast.workspaces"))
    finally:
        await connection.close()


async def test_input_without_an_effect_writes_nothing(database: str) -> None:
    ledger = await opened(database)
    owner = await WorkspaceOwner.with_session(ledger)
    before = await _revision(database)
    writes = [Write((CancelSession(SessionId("s")),)), Write((Admit(run("r", session="none"), b"h"),))]
    assert list(await ledger.accept(owner.id, writes)) == [Receipt(), Refusal("unknown_session")]
    assert await _revision(database) == before
    with pytest.raises(StorageUnavailable, match="no such workspace"):
        await ledger.accept(WorkspaceId("none"), writes)
    await ledger.close()


async def test_inputs_are_accepted_while_the_workspace_is_closed_and_reach_the_next_owner(database: str) -> None:
    ledger, other = await opened(database), await opened(database)
    owner = await WorkspaceOwner.with_session(ledger)
    await ledger.close_workspace(owner.id, owner.epoch)
    await other.accept(owner.id, [Write((Admit(run("r"), b"h"),))])
    with pytest.raises(OwnerChanged):
        await owner.do(PATCH)
    again = await WorkspaceOwner.open(ledger)
    assert [item.run_id for item in await ledger.open_runs(again.id)] == ["r"]
    assert again.record.newest == 2
    for store in (ledger, other):
        await store.close()


async def test_batch_that_was_reported_as_not_written_never_takes_effect(database: str) -> None:
    """Its call was delayed on the way. `last_batch` decides that it was not written, and then it arrives."""
    pool = HoldingPool(database)
    ledger = await opened(database, pool)
    owner = await WorkspaceOwner.with_session(ledger)
    before = await owner.all()
    pool.is_holding = True
    with pytest.raises(StorageUnknown):
        await owner.do(PATCH)
    assert (await ledger.last_batch(owner.id, owner.epoch))[0] == owner.ticket - 1
    assert await pool.deliver() == 2
    assert await owner.all() == before
    await owner.do(PATCH)
    await ledger.close()


async def test_input_of_an_unknown_outcome_never_takes_effect_after_its_error(database: str) -> None:
    pool = HoldingPool(database)
    ledger = await opened(database, pool)
    owner = await WorkspaceOwner.with_session(ledger)
    pool.is_holding = True
    with pytest.raises(StorageUnknown):
        await ledger.accept(owner.id, [Write((Admit(run("r"), b"h"),))])
    assert await pool.deliver() == 2
    assert await ledger.open_runs(owner.id) == []
    await ledger.close()


async def test_connection_that_is_cut_during_a_batch_leaves_an_unknown_outcome(database: str) -> None:
    """The batch waits for a row that another transaction holds; its connection is terminated meanwhile."""
    ledger = await opened(database)
    owner = await WorkspaceOwner.with_session(ledger)
    holder, control = await asyncpg.connect(database), await asyncpg.connect(database)
    transaction = holder.transaction()
    await transaction.start()
    await holder.execute("SELECT FROM holdfast.workspaces FOR UPDATE")
    commit = asyncio.gather(owner.do(PATCH))
    waiting = "SELECT pid FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%holdfast.apply%'"
    pid = None
    while pid is None:
        pid = await control.fetchval(waiting)
    await control.execute("SELECT pg_terminate_backend($1)", pid)
    with pytest.raises(StorageUnknown):
        await commit
    await transaction.rollback()
    assert (await ledger.last_batch(owner.id, owner.epoch))[0] == owner.ticket - 1
    await owner.do(PATCH)
    for connection in (holder, control):
        await connection.close()
    await ledger.close()


async def test_no_connection_means_that_nothing_was_written(database: str) -> None:
    ledger = await opened(database)
    owner = await WorkspaceOwner.with_session(ledger)
    await ledger.pool.close()
    for call in (owner.do(PATCH), ledger.accept(owner.id, [Write((PATCH,))]), ledger.sessions(owner.id)):
        with pytest.raises(StorageUnavailable, match="PostgreSQL cannot be reached"):
            await call
    assert "cannot be reached" in await ledger.problem()
    await ledger.close()
    with pytest.raises(StorageUnavailable):
        await owner.do(PATCH)


async def test_a_server_whose_connections_are_all_in_use_does_not_report_an_outage(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection_pool, "CONNECT_SECONDS", 0.2)
    ledger = await opened(database)
    owner = await WorkspaceOwner.with_session(ledger)
    holder = await asyncpg.connect(database)
    await holder.execute("SELECT pg_advisory_lock(17)")
    statement = "SELECT pg_advisory_xact_lock_shared(17)"
    held = asyncio.gather(*(ledger.pool.write(statement) for _ in range(connection_pool.CONNECTIONS)))
    blocked = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'"
    while await holder.fetchval(blocked) < connection_pool.CONNECTIONS:
        pass
    for call in (ledger.accept(owner.id, [Write((PATCH,))]), ledger.pool.ping(), ledger.sessions(owner.id)):
        with pytest.raises(StorageUnavailable, match="all connections of this server are in use"):
            await call
    await holder.execute("SELECT pg_advisory_unlock(17)")
    await held
    assert len(await ledger.sessions(owner.id)) == 1
    await holder.close()
    await ledger.close()


async def test_reads_continue_after_their_connection_was_cut(database: str) -> None:
    ledger = await opened(database)
    owner = await WorkspaceOwner.with_session(ledger)
    control = await asyncpg.connect(database)
    await control.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid()")
    assert len(await ledger.sessions(owner.id)) == 1
    assert await ledger.problem() == ""
    await control.close()
    await ledger.close()


async def test_ids_that_no_text_column_can_hold_are_found_again(database: str) -> None:
    ledger = await opened(database)
    owner = await WorkspaceOwner.open(ledger)
    name = "nul\0é"
    await owner.do(CreateSession(session(name)), CreateSession(session("child", parent=name)))
    await owner.do(PutMessage(message("m\0", "one", session=name)))
    await owner.do(PutMessage(message("m\0", "two", session=name)))
    assert [item.id for item in await ledger.messages(owner.id, SessionId(name))] == [MessageId("m\0")]
    await owner.admit("r", session=name)
    await owner.do(StartRun(RunId("r"), 1), EndRun(RunId("r"), "completed", 2))
    assert await ledger.session(owner.id, SessionId("half \ud83d")) is None
    await owner.do(DeleteSession(SessionId(name)))
    assert await ledger.sessions(owner.id) == []
    await ledger.close()


async def test_a_run_that_has_ended_is_not_changed_by_any_statement(database: str) -> None:
    ledger = await opened(database)
    owner = await WorkspaceOwner.with_session(ledger)
    await owner.admit("r")
    await owner.do(EndRun(RunId("r"), "completed", 2))
    control = await asyncpg.connect(database)
    with pytest.raises(asyncpg.IntegrityConstraintViolationError):
        await control.execute("UPDATE holdfast.runs SET outcome = 'failed'")
    await control.close()
    await ledger.close()


async def test_places_have_separate_workspaces(database: str) -> None:
    here = await opened(database)
    there = PostgresLedger(here.pool, "there")
    one, two = await WorkspaceOwner.with_session(here), await WorkspaceOwner.with_session(there)
    assert one.id != two.id
    await one.admit("r")
    assert list(await here.unfinished_workspaces()) == [one.record.path]
    assert list(await there.unfinished_workspaces()) == []
    await here.close()


async def test_growth_is_not_synced_and_every_event_is(database: str) -> None:
    """A batch without events may be lost with PostgreSQL; numbers never are."""
    seen: list[object] = []

    class Watching(Pool):
        async def write(self, statement: str, *arguments: object) -> Row | None:
            if statement == APPLY:
                seen.append(arguments[5])
            return await super().write(statement, *arguments)

    ledger = await opened(database, Watching({"dsn": database}))
    owner = await WorkspaceOwner.with_session(ledger)
    operations: list[tuple[Operation, bool]] = [(PATCH, False), (CancelSession(SessionId("s")), False)]
    operations.append((CancelSession(SessionId("s")), True))
    for operation, sync in operations:
        await owner.do(operation, sync=sync)
    assert seen == [True, True, False, True]
    await ledger.close()
