"""Publication: which events wake readers, which frames are held, and which change redacts held frames."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from bus.test_bus import MESSAGE, SESSION, BusHarness, settle
from holdfast.bus.bus import Subscription
from holdfast.bus.frames import Frame
from holdfast.domain.events import (
    Change,
    ChangeKind,
    MessageDeltaEvent,
    MessageEvent,
    MessagePart,
    MessagePartEvent,
    RemovedEvent,
    RunEvent,
    SessionEvent,
    encode_event,
)
from holdfast.domain.ids import MessageId, WorkspaceId
from holdfast.domain.messages import Message, Text, TextPart
from holdfast.domain.store_operations import Entry, WorkspaceRecord
from holdfast.testing.conformance import run
from holdfast.testing.conformance import session as stored_session

PUBLICATIONS: dict[str, Callable[[BusHarness], None]] = {
    "a numbered event": lambda harness: harness.publish(),
    "a delta": lambda harness: harness.grow("x"),
    "its end": lambda harness: harness.bus.close(),
}


@pytest.mark.parametrize("deed", PUBLICATIONS)
async def test_every_waiting_reader_is_woken_by(deed: str) -> None:
    harness = BusHarness()
    readers = [harness.bus.subscribe(None) for _ in range(3)]
    for reader in readers:
        await reader.take()
    waiting = asyncio.gather(*(reader.take() for reader in readers))
    await settle(harness, 3)
    PUBLICATIONS[deed](harness)
    assert harness.bus.waiting == 0
    async with asyncio.timeout(20):
        taken = await waiting
    assert [len(frames) for frames in taken] == [0 if deed == "its end" else 1] * 3


async def test_cancelled_reader_does_not_prevent_waking_the_others() -> None:
    harness = BusHarness()
    first, second = harness.bus.subscribe(None), harness.bus.subscribe(None)
    await first.take()
    await second.take()
    gone, stays = asyncio.gather(first.take()), asyncio.gather(second.take())
    await settle(harness, 2)
    gone.cancel()
    harness.publish()
    async with asyncio.timeout(20):
        ((frame,),) = await stays
    assert frame.number == 1
    with pytest.raises(asyncio.CancelledError):
        await gone


async def live(harness: BusHarness, since: int | None = None, *, merge: bool | None = None) -> Subscription:
    """Return a subscription that is past its hello and replay."""
    bus = harness.bus
    subscription = bus.subscribe(since) if merge is None else bus.subscribe(since, merge=merge)
    await subscription.take()
    while subscription.cursor < harness.newest:
        await subscription.take()
    return subscription


@pytest.mark.parametrize(("merge", "frames"), [(None, 1), (True, 1), (False, 9)])
async def test_deltas_are_merged_unless_a_reader_opts_out(frames: int, *, merge: bool | None) -> None:
    harness = BusHarness()
    reader = await live(harness, merge=merge)
    harness.publish()
    await reader.take()
    for _ in range(9):
        harness.grow("x")
    taken = await reader.take()
    assert len(taken) == frames
    assert "".join(frame.event.payload.text for frame in taken if isinstance(frame.event, MessageDeltaEvent)) == "x" * 9


async def test_an_event_is_held_once_and_none_after_the_end() -> None:
    harness = BusHarness()
    reader = harness.bus.subscribe(None)
    entry = harness.commit()
    harness.bus.publish([entry])
    harness.bus.publish([entry])
    assert harness.bus.held == 1
    harness.grow()
    assert harness.bus.held == 2
    harness.bus.close()
    harness.grow()
    harness.bus.publish([harness.commit()])
    assert (harness.bus.held, harness.bus.newest) == (2, 1)
    reader.close()


async def full_parts(harness: BusHarness) -> list[str]:
    """Return the open parts that a new reader receives."""
    subscription = harness.bus.subscribe(None)
    stage_frames: list[Frame] = await subscription.take()
    waiting = asyncio.gather(subscription.take())
    for _ in range(10):
        await asyncio.sleep(0)
    if waiting.done():
        stage_frames += waiting.result()[0]
    subscription.close()
    await waiting
    return [
        part.payload.content.data.text
        for part in (frame.event for frame in stage_frames)
        if isinstance(part, MessagePartEvent) and isinstance(part.payload.content, TextPart)
    ]


async def test_open_parts_are_current_when_a_reader_subscribes() -> None:
    """Encoded once for all readers that subscribe before the next event, numbered or live."""
    harness = BusHarness()
    harness.begin()
    harness.grow("one")
    assert await full_parts(harness) == ["one"]
    harness.grow(" two")
    assert await full_parts(harness) == ["one two"]
    harness.text = ""
    harness.publish()
    assert await full_parts(harness) == []
    harness.text = "again"
    harness.bus.publish([])
    assert await full_parts(harness) == ["again"]
    parts = [MessagePart(SESSION, MESSAGE, 0, TextPart(Text("of another server")))]
    harness.bus.change_source(WorkspaceRecord(WorkspaceId("w"), "/w", 8, 1, harness.newest), lambda: parts)
    assert await full_parts(harness) == ["of another server"]


def changes(kind: ChangeKind) -> list[MessageEvent | RunEvent | SessionEvent]:
    """Changes of objects with the id of the session, or without one."""
    text = Message((), MessageId("s"), "user", SESSION, "", "", 1, 1)
    removed = msgspec.structs.replace(stored_session("s"), title="")
    return [MessageEvent(Change(kind, text)), RunEvent(Change(kind, run("r"))), SessionEvent(Change(kind, removed))]


@pytest.mark.parametrize("kind", ["created", "updated", "deleted"])
@pytest.mark.parametrize("place", range(3))
async def test_only_a_deleted_session_redacts_held_events(kind: ChangeKind, place: int) -> None:
    event = changes(kind)[place]
    empties = kind == "deleted" and isinstance(event, SessionEvent)
    harness = BusHarness()
    reader = await live(harness)
    text = MessageEvent(Change("created", Message((TextPart(Text("held")),), MESSAGE, "user", SESSION, "", "", 1, 1)))
    harness.bus.publish([harness.commit(text)])
    harness.newest += 1
    entry = Entry(harness.newest, event, encode_event(event))
    harness.rows.append((entry.number, entry.body))
    harness.bus.publish([entry])
    first, second = await reader.take()
    assert isinstance(first.event, RemovedEvent) == empties
    assert (b"held" in first.body) != empties
    assert second.event == event
