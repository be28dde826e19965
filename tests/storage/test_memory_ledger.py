"""Abilities of the memory ledger beyond the contract: delays, failures, power cuts."""

import asyncio
import random
from collections import deque

import pytest

from holdfast.domain.errors import StorageUnavailable, StorageUnknown
from holdfast.domain.ids import SessionId
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import PatchSession, Receipt, Write
from holdfast.testing.conformance import WorkspaceOwner
from holdfast.testing.memory_ledger import MemoryLedger

PATCH = PatchSession(SessionPatch(SessionId("s"), 1))
WRITE = Write((PATCH,))


@pytest.mark.parametrize("seed", range(20))
async def test_slow_batches_keep_their_order(seed: int) -> None:
    chance = random.Random(seed)

    async def pace() -> None:
        for _ in range(chance.randrange(6)):
            await asyncio.sleep(0)

    owner = await WorkspaceOwner.with_session(MemoryLedger(pace=pace))
    answers = await asyncio.gather(*(owner.batch(WRITE, WRITE) for _ in range(10)))
    flat = [answer for batch in answers for answer in batch]
    assert [answer.entries[0].number for answer in flat if isinstance(answer, Receipt)] == list(range(2, 22))


async def test_delayed_batch_is_not_written_early() -> None:
    gate = asyncio.Event()
    gate.set()

    async def pace() -> None:
        await gate.wait()

    ledger = MemoryLedger(pace=pace)
    owner = await WorkspaceOwner.with_session(ledger)
    seen = ledger.events_after(owner.id, 0, 10)
    gate.clear()
    commit = asyncio.gather(owner.batch(WRITE))
    await asyncio.sleep(0)
    ledger.lose_power()
    gate.set()
    with pytest.raises(StorageUnknown):
        await commit
    assert len(await seen) == 1


@pytest.mark.parametrize("survives", [True, False])
async def test_an_unknown_outcome_may_be_either(*, survives: bool) -> None:
    failures: deque[Exception] = deque()
    ledger = MemoryLedger(fail=lambda: failures.popleft() if failures else None, survives=lambda: survives)
    owner = await WorkspaceOwner.with_session(ledger)
    failures.append(StorageUnknown())
    with pytest.raises(StorageUnknown):
        await owner.batch(WRITE)
    ticket, _ = await ledger.last_batch(owner.id, owner.epoch)
    assert ticket == (owner.ticket if survives else owner.ticket - 1)
    assert len(await owner.events()) == 1 + survives


async def test_a_full_disk_writes_nothing() -> None:
    failures: deque[Exception] = deque()
    ledger = MemoryLedger(fail=lambda: failures.popleft() if failures else None)
    owner = await WorkspaceOwner.with_session(ledger)
    before = await owner.all()
    failures.append(StorageUnavailable())
    with pytest.raises(StorageUnavailable):
        await owner.batch(WRITE)
    assert await owner.all() == before


async def test_power_cut_discards_unsynced_writes() -> None:
    ledger = MemoryLedger()
    owner = await WorkspaceOwner.with_session(ledger)
    before = await owner.all()
    await owner.do(PATCH, PATCH, sync=False)
    ledger.lose_power()
    assert await owner.all() == before


async def test_same_seed_gives_the_same_results() -> None:
    async def run_once() -> list[object]:
        owner = await WorkspaceOwner.with_session(MemoryLedger())
        await owner.admit("r1", "r2")
        return [owner.record, *await owner.all()]

    assert await run_once() == await run_once()
