"""R6 for every combination of slow-reader bound, page size, merging of deltas, start cursor, losses, and resumption
after a cut.
"""

import asyncio
import itertools
import random

import pytest

from bus.folding_reader import FoldingReader
from bus.test_bus import SESSION, BusHarness, settle
from holdfast.bus.bus import Subscription
from holdfast.bus.frames import Frame, GapEvent, HelloEvent
from holdfast.bus.shared_backlog import ReaderCut, SlowReaderPolicy
from holdfast.domain.events import AgentEvent, AgentNotice, Change

FRAMES = (1, 2, 4, 4096)
LIMITS = (1, 2, 512)
SINCE = ("none", "all", "middle", "newest", "unknown")
LOSES = (False, True)
MATRIX = list(itertools.product(FRAMES, LIMITS, (False, True), SINCE, LOSES))
NOTICE = AgentEvent(Change("created", AgentNotice("error", session_id=SESSION)))


class Client:
    """Reads, resumes after a cut, and takes a snapshot at a gap: `known` contains the numbers it no longer needs."""

    def __init__(self, harness: BusHarness, since: int | None, *, merge: bool, limit: int) -> None:
        self.harness, self.merge, self.limit = harness, merge, limit
        self.reader = FoldingReader()
        self.known = set(range(1, harness.newest + 1 if since is None else min(since, harness.newest) + 1))
        self.gaps = 0
        self.subscription = self._subscribe(since)

    def _subscribe(self, since: int | None) -> Subscription:
        self.is_greeted, self.since = False, since
        return self.harness.bus.subscribe(since, merge=self.merge)

    async def take(self) -> bool:
        try:
            frames = await self.subscription.take(self.limit)
        except ReaderCut as cut:
            self.subscription.close()
            self.subscription = self._subscribe(cut.cursor)
            return True
        for frame in frames:
            self._fold(frame)
        return bool(frames)

    def _fold(self, frame: Frame) -> None:
        event = frame.event
        assert isinstance(event, HelloEvent) != self.is_greeted, "hello is the first event, and sent once"
        self.is_greeted = True
        if isinstance(event, HelloEvent) and self.since == 0:
            # All stored events, then those after the newest.
            self.known |= set(range(1, min(event.payload.oldest - 1, event.payload.cursor) + 1))
        if isinstance(event, GapEvent):
            self.gaps += 1
            assert event.payload.cursor <= self.harness.newest
            self.known |= set(range(1, event.payload.cursor + 1))
            # Open parts follow in full.
            self.reader.text = self.harness.text if self.harness.text else ""
            return
        if frame.number is not None:
            assert frame.number not in self.known, f"{frame.number} was sent twice"
            assert frame.number > max(self.reader.numbers, default=0)
            self.known.add(frame.number)
        self.reader.fold([frame])


def start_of(harness: BusHarness, since: str) -> int | None:
    places = {"none": None, "all": 0, "middle": 3, "newest": harness.newest, "unknown": harness.newest + 50}
    return places[since]


def act(harness: BusHarness, rng: random.Random, *, loses: bool) -> None:
    match rng.randrange(6):
        case 0:
            harness.grow(rng.choice("ab") * rng.randint(1, 5))
        case 1:
            harness.publish(rng.randint(1, 6))
        case 2:
            harness.bus.publish_live(NOTICE)
        case 3:
            # Several events are stored before they are published.
            harness.bus.publish([harness.commit() for _ in range(3)])
        case 4 if loses:
            harness.oldest = rng.randint(harness.oldest, harness.newest + 1)
        case _:
            for _ in range(8):
                harness.grow("c")


@pytest.mark.parametrize("place", range(0, len(MATRIX), 12))
async def test_r6_every_combination_of_stream_and_reader(place: int) -> None:
    for number, (frames, limit, merge, since, loses) in enumerate(MATRIX[place : place + 12], place):
        rng = random.Random(number)
        harness = BusHarness(SlowReaderPolicy(frames=frames), stored=6)
        harness.begin()
        client = Client(harness, start_of(harness, since), merge=merge, limit=limit)
        for _ in range(40):
            act(harness, rng, loses=loses)
            if rng.random() < 0.4:
                # A reader that has everything would block.
                harness.publish()
                await client.take()
        harness.bus.close()
        async with asyncio.timeout(20):
            while await client.take():
                pass
        case = (frames, limit, merge, since, loses)
        assert client.known == set(range(1, harness.newest + 1)), case
        assert client.reader.text == harness.text, case
        assert client.gaps == 0 if not loses and since != "unknown" else client.gaps >= (since == "unknown"), case
        assert client.subscription.cursor == harness.newest, case


async def test_page_and_take_size_of_one() -> None:
    """`limit` bounds a page of the log and a take; open parts are added."""
    harness = BusHarness(stored=3)
    subscription = harness.bus.subscribe(0)
    sizes = [len(await subscription.take(1)) for _ in range(4)]
    assert sizes == [1, 1, 1, 1]
    assert subscription.cursor == 3
    harness.publish(3)
    assert [len(await subscription.take(2)) for _ in range(2)] == [2, 1]
    harness.bus.close()
    assert await subscription.take(1) == []


async def test_a_default_take_is_bounded() -> None:
    harness = BusHarness(SlowReaderPolicy(), stored=600)
    subscription = harness.bus.subscribe(0)
    assert [len(await subscription.take()) for _ in range(3)] == [1, 512, 88]
    harness.publish(600)
    assert [len(await subscription.take()) for _ in range(2)] == [512, 88]


async def test_frames_are_held_only_while_there_are_readers() -> None:
    """None before the first reader, after the last one, or for a reader that has everything."""
    harness = BusHarness()
    harness.publish(2)
    harness.grow()
    assert harness.bus.held == 0
    reader, other = harness.bus.subscribe(None), harness.bus.subscribe(None)
    harness.publish(2)
    assert harness.bus.held == 2
    reader.close()
    assert harness.bus.held == 2, "the other one lacks them"
    while other.cursor < 4:
        await other.take()
    assert harness.bus.held == 2, "it does not wait yet"
    waiting = asyncio.gather(other.take())
    await settle(harness, 1)
    assert harness.bus.held == 0
    harness.publish()
    assert [frame.number for frame in (await waiting)[0]] == [5]
    other.close()
    harness.publish()
    assert (harness.bus.held, harness.bus.newest) == (0, 6)
