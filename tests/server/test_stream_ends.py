"""Ends of an event stream: nothing is written to its connection afterwards, which may carry another response by then.

In virtual time, with fakes of the connection and of the subscription.
"""

import asyncio
from collections.abc import MutableMapping
from typing import Any, cast

import pytest

from holdfast.bus.frames import Frame
from holdfast.bus.shared_backlog import ReaderCut
from holdfast.domain.errors import StorageUnavailable
from holdfast.domain.events import AgentEvent, AgentNotice, Change
from holdfast.server.streams.crush_stream import CrushDialogs, CrushStream
from holdfast.server.streams.event_stream import HEARTBEAT_SECONDS, _send_all
from holdfast.server.streams.frame_cache import FrameCache
from holdfast.testing.seeded_loop import elapse, in_virtual_time

NOTICE = AgentEvent(Change("created", AgentNotice("error", error="x")))


class Subscription:
    """Delivers one event, waits, then ends: without more events, or with an error."""

    def __init__(self, end: BaseException | None) -> None:
        self._end = end
        self._takes = 0

    async def take(self) -> list[Frame]:
        self._takes += 1
        if self._takes == 1:
            return [Frame(event=NOTICE)]
        await elapse(1)
        if self._end is not None:
            raise self._end
        return []


class Connection:
    """A connection whose writes are counted; it is full while `is_full`."""

    def __init__(self) -> None:
        self.is_full = False
        self.writes = 0
        self.connection = self

    def write(self, data: bytes) -> None:
        self.writes += bool(data)

    async def send(self, message: MutableMapping[str, Any]) -> None:
        if self.is_full:
            await asyncio.get_running_loop().create_future()
        self.write(message.get("body", b""))


ENDS: dict[str, BaseException | None] = {
    "no more events": None,
    "too slow": ReaderCut(1),
    "log cannot be read": StorageUnavailable(),
    "cancelled": asyncio.CancelledError(),
    "stalled": None,
}


@pytest.mark.parametrize("form", ["resumable", "crush"])
@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_written_after_the_end(end: str, form: str) -> None:
    async def scenario() -> None:
        connection = Connection()
        dialogs = CrushDialogs((), (), now=0.0, pause=0.0, withdrawn=())
        stream = FrameCache() if form == "resumable" else CrushStream(lambda *_: None, dialogs)
        sending = _send_all(cast(Any, Subscription(ENDS[end])), connection.send, cast(Any, connection), stream)
        try:
            async with asyncio.timeout(HEARTBEAT_SECONDS / 2):
                if end == "stalled":
                    connection.is_full = True
                await sending
        except (TimeoutError, StorageUnavailable, asyncio.CancelledError):
            pass
        connection.is_full = False
        before = connection.writes
        await elapse(3 * HEARTBEAT_SECONDS)
        assert connection.writes == before
        assert asyncio.all_tasks() == {asyncio.current_task()}

    in_virtual_time(scenario)
