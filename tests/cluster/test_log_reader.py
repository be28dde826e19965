"""The reader of a growing log."""

import asyncio
from collections.abc import Sequence

from holdfast.cluster.log_reader import POLL_SECONDS, LogReader
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.store_operations import Entry
from holdfast.testing.seeded_loop import elapse, in_virtual_time


class CountedLog:
    """An empty log that records when it is read."""

    def __init__(self) -> None:
        self.reads: list[float] = []

    async def events_after(self, _: WorkspaceId, __: int, ___: int) -> list[tuple[int, bytes]]:
        self.reads.append(asyncio.get_running_loop().time())
        return []

    async def bounds(self, _: WorkspaceId) -> tuple[int, int]:
        return 1, 0


async def deliver(_: Sequence[Entry]) -> None:
    raise AssertionError


def test_a_reader_polls_unless_its_caller_does() -> None:
    async def main() -> None:
        polling, woken = CountedLog(), CountedLog()
        workspace = WorkspaceId("w")
        readers = [LogReader(log, workspace, 0, deliver) for log in (polling, woken)]
        readers[0].start()
        readers[1].start(poll_seconds=None)
        await elapse(2.5 * POLL_SECONDS)
        assert polling.reads == [0.0, POLL_SECONDS, 2 * POLL_SECONDS]
        assert woken.reads == [0.0]
        readers[1].wake()
        await elapse(POLL_SECONDS)
        assert woken.reads == [0.0, 2.5 * POLL_SECONDS]
        await readers[1].catch_up()
        assert len(woken.reads) == 3
        for reader in readers:
            reader.close()

    in_virtual_time(main)
