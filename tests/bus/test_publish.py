"""Who is woken by what, what is kept for whom, and which change empties what is held."""

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from bus.test_bus import MESSAGE, SESSION, Stage, settle
from holdfast.bus.bus import Subscription
from holdfast.bus.frames import Frame
from holdfast.domain.events import (
    Change,
    ChangeKind,
    MessageDeltaEvent,
    MessageEvent,
    MessagePartEvent,
    RemovedEvent,
    RunEvent,
    SessionEvent,
    encode_event,
)
from holdfast.domain.ids import MessageId
from holdfast.domain.ledger import Entry
from holdfast.domain.messages import Message, Text, TextPart
from holdfast.testing.conformance import run
from holdfast.testing.conformance import session as stored_session

DEEDS: dict[str, Callable[[Stage], None]] = {
    "a numbered event": lambda stage: stage.publish(),
    "a delta": lambda stage: stage.grow("x"),
    "its end": lambda stage: stage.bus.close(),
}


@pytest.mark.parametrize("deed", DEEDS)
async def test_every_reader_that_waits_is_woken_by(deed: str) -> None:
    stage = Stage()
    readers = [stage.bus.subscribe(None) for _ in range(3)]
    for reader in readers:
        await reader.take()
    waiting = asyncio.gather(*(reader.take() for reader in readers))
    await settle(stage, 3)
    DEEDS[deed](stage)
    assert stage.bus.waiting == 0
    async with asyncio.timeout(20):
        taken = await waiting
    assert [len(frames) for frames in taken] == [0 if deed == "its end" else 1] * 3


async def test_one_that_stopped_waiting_does_not_keep_the_others_from_being_woken() -> None:
    stage = Stage()
    first, second = stage.bus.subscribe(None), stage.bus.subscribe(None)
    await first.take()
    await second.take()
    gone, stays = asyncio.gather(first.take()), asyncio.gather(second.take())
    await settle(stage, 2)
    gone.cancel()
    stage.publish()
    async with asyncio.timeout(20):
        ((frame,),) = await stays
    assert frame.number == 1
    with pytest.raises(asyncio.CancelledError):
        await gone


async def live(stage: Stage, since: int | None = None, *, merge: bool | None = None) -> Subscription:
    """A subscription that is past its greeting and replay."""
    bus = stage.bus
    subscription = bus.subscribe(since) if merge is None else bus.subscribe(since, merge=merge)
    await subscription.take()
    while subscription.cursor < stage.newest:
        await subscription.take()
    return subscription


@pytest.mark.parametrize(("merge", "frames"), [(None, 1), (True, 1), (False, 9)])
async def test_deltas_are_joined_unless_a_reader_wants_each(frames: int, *, merge: bool | None) -> None:
    stage = Stage()
    reader = await live(stage, merge=merge)
    stage.publish()
    await reader.take()
    for _ in range(9):
        stage.grow("x")
    taken = await reader.take()
    assert len(taken) == frames
    assert "".join(frame.event.payload.text for frame in taken if isinstance(frame.event, MessageDeltaEvent)) == "x" * 9


async def test_an_event_is_held_once_and_none_after_the_end() -> None:
    stage = Stage()
    reader = stage.bus.subscribe(None)
    entry = stage.commit()
    stage.bus.publish([entry])
    stage.bus.publish([entry])
    assert stage.bus.held == 1
    stage.grow()
    assert stage.bus.held == 2
    stage.bus.close()
    stage.grow()
    stage.bus.publish([stage.commit()])
    assert (stage.bus.held, stage.bus.newest) == (2, 1)
    reader.close()


async def whole_parts(stage: Stage) -> list[str]:
    """Return the open parts that a new reader receives."""
    subscription = stage.bus.subscribe(None)
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
    """Created once for all readers that subscribe before the next event, numbered or live."""
    stage = Stage()
    stage.begin()
    stage.grow("one")
    assert await whole_parts(stage) == ["one"]
    stage.grow(" two")
    assert await whole_parts(stage) == ["one two"]
    stage.text = ""
    stage.publish()
    assert await whole_parts(stage) == []
    stage.text = "again"
    stage.bus.publish([])
    assert await whole_parts(stage) == ["again"]


def changes(kind: ChangeKind) -> list[MessageEvent | RunEvent | SessionEvent]:
    """Of things with the id of the session, or without one."""
    text = Message((), MessageId("s"), "user", SESSION, "", "", 1, 1)
    removed = msgspec.structs.replace(stored_session("s"), title="")
    return [MessageEvent(Change(kind, text)), RunEvent(Change(kind, run("r"))), SessionEvent(Change(kind, removed))]


@pytest.mark.parametrize("kind", ["created", "updated", "deleted"])
@pytest.mark.parametrize("place", range(3))
async def test_only_a_deleted_session_redacts_held_events(kind: ChangeKind, place: int) -> None:
    event = changes(kind)[place]
    empties = kind == "deleted" and isinstance(event, SessionEvent)
    stage = Stage()
    reader = await live(stage)
    text = MessageEvent(Change("created", Message((TextPart(Text("held")),), MESSAGE, "user", SESSION, "", "", 1, 1)))
    stage.bus.publish([stage.commit(text)])
    stage.newest += 1
    entry = Entry(stage.newest, event, encode_event(event))
    stage.rows.append((entry.number, entry.body))
    stage.bus.publish([entry])
    first, second = await reader.take()
    assert isinstance(first.event, RemovedEvent) == empties
    assert (b"held" in first.body) != empties
    assert second.event == event
