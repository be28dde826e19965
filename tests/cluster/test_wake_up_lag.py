"""The delay between a wake-up and the handling of its events: observed once, also if the store fails in between."""

from collections.abc import Awaitable, Sequence

import pytest

from holdfast.cluster.log_reader import LogReader
from holdfast.cluster.wake_up_lag import WakeUpLag
from holdfast.domain.errors import StorageUnavailable
from holdfast.domain.ids import MessageId, SessionId, WorkspaceId
from holdfast.domain.sessions import Session
from holdfast.domain.store_operations import CreateSession, Receipt, Write
from holdfast.engine.recorder import Recorder
from holdfast.testing.gates import settle_down, until
from holdfast.testing.memory_ledger import MemoryLedger


def test_each_delay_is_counted_in_the_bucket_of_its_bound() -> None:
    lag = WakeUpLag()
    for seconds in (0.0, 0.005, 0.0051, 2.5, 3.0):
        lag.observe(seconds)
    assert lag.buckets == [2, 1, 0, 0, 0, 0, 0, 0, 1, 1]
    assert lag.seconds == pytest.approx(5.5101)


class FailingLedger(MemoryLedger):
    """Reads of the log fail while `fails` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.fails = False
        self.reads = 0

    async def events_after(self, workspace: WorkspaceId, cursor: int, limit: int) -> Sequence[tuple[int, bytes]]:
        return await self._checked(super().events_after(workspace, cursor, limit))

    async def inputs_after(
        self, workspace: WorkspaceId, epoch: int, cursor: int, limit: int
    ) -> Sequence[tuple[int, bytes]]:
        return await self._checked(super().inputs_after(workspace, epoch, cursor, limit))

    async def _checked(self, read: Awaitable[Sequence[tuple[int, bytes]]]) -> Sequence[tuple[int, bytes]]:
        self.reads += 1
        found = await read
        if self.fails:
            raise StorageUnavailable
        return found


async def _accept(ledger: MemoryLedger, workspace: WorkspaceId, name: str) -> None:
    """Store an input of another node."""
    session = Session(SessionId(name), SessionId(""), name, 0, 0, 0, MessageId(""), 0.0, 0, 0, False, 0)
    (answer,) = await ledger.accept(workspace, [Write((CreateSession(session),))])
    assert isinstance(answer, Receipt)


@pytest.mark.parametrize("role", ["owner", "follower"])
async def test_a_wake_up_is_observed_after_the_read_that_finds_its_events(role: str) -> None:
    ledger = FailingLedger()
    record = await ledger.open_workspace("/w")
    calls: list[str] = []

    async def take(_: object) -> None:
        calls.append("events")

    reader = LogReader(ledger, record.id, 0, take)
    # It publishes nothing here.
    recorder = Recorder(ledger, record, None, take)  # type: ignore[arg-type]
    wake = recorder.catch_up if role == "owner" else reader.wake
    if role == "follower":
        reader.start()
    await settle_down()

    async def wake_and_read(name: str) -> None:
        reads = ledger.reads
        wake(lambda: calls.append(name))
        await until(lambda: ledger.reads > reads)
        await settle_down()

    # Its own notification: there is nothing to find.
    await wake_and_read("own")
    assert calls == []
    await _accept(ledger, record.id, "r")
    ledger.fails = True
    await wake_and_read("first")
    await wake_and_read("second")
    assert calls == []
    ledger.fails = False
    await wake_and_read("third")
    assert calls == ["events", "first"]
    # Without a wake-up a read is not observed.
    await _accept(ledger, record.id, "q")
    wake()
    await until(lambda: len(calls) > 2)
    await settle_down()
    assert calls == ["events", "first", "events"]
    reader.close()
