"""The watchdog of a request in each of its states, in virtual time."""

import asyncio
from collections.abc import Callable

import pytest

from holdfast.http11.client_connection import RequestWatchdog
from holdfast.testing.seeded_loop import in_virtual_time


async def pass_time(seconds: float) -> None:
    """Let this much virtual time pass."""
    await asyncio.sleep(seconds)


class AbortCounter:
    """A connection that counts its aborts."""

    def __init__(self) -> None:
        self.has_unread = False
        self.ends = 0

    def abort(self) -> None:
        self.ends += 1


Act = Callable[[RequestWatchdog, AbortCounter], object]


def unread(_: RequestWatchdog, held: AbortCounter) -> None:
    held.has_unread = True


def read(_: RequestWatchdog, held: AbortCounter) -> None:
    held.has_unread = False


def touch(watch: RequestWatchdog, _: AbortCounter) -> None:
    watch.touch()


def note(watch: RequestWatchdog, _: AbortCounter) -> None:
    """Receive something other than a piece of the body: a head."""
    watch.last = asyncio.get_running_loop().time()


def finish(watch: RequestWatchdog, _: AbortCounter) -> None:
    watch.finish()


def abort(watch: RequestWatchdog, _: AbortCounter) -> None:
    watch.abort()


NEVER = -1.0
ROWS: dict[str, tuple[float, float, tuple[tuple[float, Act], ...], float]] = {
    "nothing is ever received": (10, 3, (), 10),
    "the first piece may take less than the others": (3, 10, (), 3),
    "a head counts, but does not begin the answer": (10, 3, ((4, note),), 14),
    "a piece begins the answer": (10, 3, ((4, touch),), 7),
    "a piece at once": (10, 3, ((0, touch),), 3),
    "pieces just in time": (10, 3, ((4, touch), (6.9, touch), (9.8, touch)), 12.8),
    "unread data is not a stall": (10, 3, ((1, touch), (2, unread), (9, read)), 10),
    "stall after all data was read": (10, 3, ((1, touch), (1.5, unread), (2, read)), 4),
    "finished before": (10, 3, ((9, finish),), NEVER),
    "finished after a piece": (10, 3, ((1, touch), (3.9, finish)), NEVER),
    "hung up before": (10, 3, ((9, abort),), NEVER),
}


@pytest.mark.parametrize("name", ROWS)
def test_time_of_a_detected_stall(name: str) -> None:
    first, between, acts, expected = ROWS[name]

    async def main() -> tuple[float, bool, int]:
        loop = asyncio.get_running_loop()
        stalled: list[float] = []
        watch, held = RequestWatchdog(first, between), AbortCounter()
        watch.register(held)
        watch.start(lambda: stalled.append(loop.time()))
        for at, act in acts:
            await pass_time(at - loop.time())
            act(watch, held)
        await pass_time(100)
        return (stalled or [NEVER])[0], watch.has_stalled, held.ends

    at, has_stalled, ends = in_virtual_time(main)
    # It checks at most once per shorter timeout after data was left unread.
    assert at == pytest.approx(expected, abs=3 if "data" in name else 1e-6)
    assert has_stalled == (expected != NEVER)
    assert ends == (0 if "finished" in name else 1)


def test_timeout_counts_from_the_start() -> None:
    """Not from construction: importing a library takes seconds."""

    async def main() -> float:
        stalled: list[float] = []
        watch = RequestWatchdog(10, 3)
        await pass_time(8)
        watch.start(lambda: stalled.append(asyncio.get_running_loop().time()))
        await pass_time(100)
        return stalled[0]

    assert in_virtual_time(main) == 18


def test_stall_without_a_callback_aborts_the_connection() -> None:
    async def main() -> tuple[bool, int, bool]:
        watch, held = RequestWatchdog(10, 3), AbortCounter()
        watch.start()
        watch.register(held)
        await pass_time(10)
        return watch.has_stalled, held.ends, watch.is_over

    assert in_virtual_time(main) == (True, 1, True)


def test_a_connection_registered_after_the_end_is_closed_at_once() -> None:
    async def main() -> list[int]:
        ends: list[int] = []
        for end in (finish, abort):
            watch, first, late, released = RequestWatchdog(10, 3), AbortCounter(), AbortCounter(), AbortCounter()
            watch.register(first)
            watch.register(released)
            watch.unregister(released)
            watch.unregister(released)
            watch.start()
            end(watch, first)
            watch.register(late)
            watch.abort()
            ends += [first.ends, late.ends, released.ends]
        return ends

    assert in_virtual_time(main) == [0, 1, 0, 1, 1, 0]


def test_every_registered_connection_is_aborted_once() -> None:
    async def main() -> list[int]:
        watch, held = RequestWatchdog(10, 3), [AbortCounter(), AbortCounter()]
        for item in held:
            watch.register(item)
        watch.start()
        watch.abort()
        watch.abort()
        return [item.ends for item in held]

    assert in_virtual_time(main) == [1, 1]


def test_timeout_and_its_reason() -> None:
    async def main() -> list[tuple[float, bool]]:
        watch = RequestWatchdog(10, 3)
        seen = [(watch.timeout, watch.has_begun)]
        watch.touch()
        return [*seen, (watch.timeout, watch.has_begun)]

    assert in_virtual_time(main) == [(10, False), (3, True)]
