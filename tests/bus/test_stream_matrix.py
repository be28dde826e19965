"""R6 for every combination: how far a reader may fall behind, how much it takes, whether deltas are joined, where it
begins, what is thrown away meanwhile, and how it comes back after a cut.
"""

import asyncio
import itertools
import random

import pytest

from bus.subscribers import Ear
from bus.test_bus import SESSION, Stage, settle
from holdfast.bus.backlog import ReaderCut, SlowReaderPolicy
from holdfast.bus.bus import Subscription
from holdfast.bus.frames import Frame, GapEvent, HelloEvent
from holdfast.domain.events import AgentEvent, AgentNotice, Change

FRAMES = (1, 2, 4, 4096)
LIMITS = (1, 2, 512)
SINCE = ("none", "all", "middle", "newest", "unknown")
LOSES = (False, True)
MATRIX = list(itertools.product(FRAMES, LIMITS, (False, True), SINCE, LOSES))
NOTICE = AgentEvent(Change("created", AgentNotice("error", session_id=SESSION)))


class Client:
    """Reads, resumes after a cut, and takes a snapshot at a gap: `known` are the numbers it need not get any more."""

    def __init__(self, stage: Stage, since: int | None, *, merge: bool, limit: int) -> None:
        self.stage, self.merge, self.limit = stage, merge, limit
        self.ear = Ear()
        self.known = set(range(1, stage.newest + 1 if since is None else min(since, stage.newest) + 1))
        self.gaps = 0
        self.subscription = self._subscribe(since)

    def _subscribe(self, since: int | None) -> Subscription:
        self.is_greeted, self.since = False, since
        return self.stage.bus.subscribe(since, merge=self.merge)

    async def take(self) -> bool:
        try:
            frames = await self.subscription.take(self.limit)
        except ReaderCut as cut:
            self.subscription.close()
            self.subscription = self._subscribe(cut.cursor)
            return True
        for frame in frames:
            self._hear(frame)
        return bool(frames)

    def _hear(self, frame: Frame) -> None:
        event = frame.event
        assert isinstance(event, HelloEvent) != self.is_greeted, "hello comes first, and once"
        self.is_greeted = True
        if isinstance(event, HelloEvent) and self.since == 0:
            # All stored events, then those after the newest.
            self.known |= set(range(1, min(event.payload.oldest - 1, event.payload.cursor) + 1))
        if isinstance(event, GapEvent):
            self.gaps += 1
            assert event.payload.cursor <= self.stage.newest
            self.known |= set(range(1, event.payload.cursor + 1))
            # Open parts follow in full.
            self.ear.text = self.stage.text if self.stage.text else ""
            return
        if frame.number is not None:
            assert frame.number not in self.known, f"{frame.number} was sent twice"
            assert frame.number > max(self.ear.numbers, default=0)
            self.known.add(frame.number)
        self.ear.hear([frame])


def start_of(stage: Stage, since: str) -> int | None:
    places = {"none": None, "all": 0, "middle": 3, "newest": stage.newest, "unknown": stage.newest + 50}
    return places[since]


def act(stage: Stage, dice: random.Random, *, loses: bool) -> None:
    match dice.randrange(6):
        case 0:
            stage.grow(dice.choice("ab") * dice.randint(1, 5))
        case 1:
            stage.publish(dice.randint(1, 6))
        case 2:
            stage.bus.publish_live(NOTICE)
        case 3:
            # Several events are stored before they are published.
            stage.bus.publish([stage.commit() for _ in range(3)])
        case 4 if loses:
            stage.oldest = dice.randint(stage.oldest, stage.newest + 1)
        case _:
            for _ in range(8):
                stage.grow("c")


@pytest.mark.parametrize("place", range(0, len(MATRIX), 12))
async def test_r6_every_combination_of_stream_and_reader(place: int) -> None:
    for number, (frames, limit, merge, since, loses) in enumerate(MATRIX[place : place + 12], place):
        dice = random.Random(number)
        stage = Stage(SlowReaderPolicy(frames=frames), stored=6)
        stage.begin()
        client = Client(stage, start_of(stage, since), merge=merge, limit=limit)
        for _ in range(40):
            act(stage, dice, loses=loses)
            if dice.random() < 0.4:
                # A reader that has everything would wait.
                stage.publish()
                await client.take()
        stage.bus.close()
        async with asyncio.timeout(20):
            while await client.take():
                pass
        case = (frames, limit, merge, since, loses)
        assert client.known == set(range(1, stage.newest + 1)), case
        assert client.ear.text == stage.text, case
        assert client.gaps == 0 if not loses and since != "unknown" else client.gaps >= (since == "unknown"), case
        assert client.subscription.cursor == stage.newest, case


async def test_the_sizes_of_pages_and_takes_can_be_one() -> None:
    """`limit` bounds a page of the log and a take; open parts are added."""
    stage = Stage(stored=3)
    subscription = stage.bus.subscribe(0)
    sizes = [len(await subscription.take(1)) for _ in range(4)]
    assert sizes == [1, 1, 1, 1]
    assert subscription.cursor == 3
    stage.publish(3)
    assert [len(await subscription.take(2)) for _ in range(2)] == [2, 1]
    stage.bus.close()
    assert await subscription.take(1) == []


async def test_a_default_take_is_bounded() -> None:
    stage = Stage(SlowReaderPolicy(), stored=600)
    subscription = stage.bus.subscribe(0)
    assert [len(await subscription.take()) for _ in range(3)] == [1, 512, 88]
    stage.publish(600)
    assert [len(await subscription.take()) for _ in range(2)] == [512, 88]


async def test_frames_are_held_only_while_there_are_readers() -> None:
    """Before the first reader, after the last one, and for one that has everything."""
    stage = Stage()
    stage.publish(2)
    stage.grow()
    assert stage.bus.held == 0
    reader, other = stage.bus.subscribe(None), stage.bus.subscribe(None)
    stage.publish(2)
    assert stage.bus.held == 2
    reader.close()
    assert stage.bus.held == 2, "the other one lacks them"
    while other.cursor < 4:
        await other.take()
    assert stage.bus.held == 2, "it does not wait yet"
    waiting = asyncio.gather(other.take())
    await settle(stage, 1)
    assert stage.bus.held == 0
    stage.publish()
    assert [frame.number for frame in (await waiting)[0]] == [5]
    other.close()
    stage.publish()
    assert (stage.bus.held, stage.bus.newest) == (0, 6)
