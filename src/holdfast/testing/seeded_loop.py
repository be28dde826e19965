"""An event loop with virtual time in which a chooser selects the ready callback that runs next.

With a seeded chooser a test runs thousands of interleavings, each of which can be replayed from its seed;
`every_schedule` enumerates all of them up to a bound. There are no threads, sockets or real clocks. A loop without
ready or scheduled callbacks is a deadlock and is reported at once.
"""

import asyncio
import heapq
import random
from asyncio import events
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

__all__ = [
    "Chooser",
    "Deadlock",
    "SeededLoop",
    "elapse",
    "every_schedule",
    "in_virtual_time",
    "run_schedule",
    "run_seeded",
]

T = TypeVar("T")
Chooser = Callable[[int], int]
"""Given the number of ready callbacks, returns the index of the one that runs."""


class Deadlock(Exception):
    """No callback is ready or scheduled, but the work is not done."""


class SeededLoop(asyncio.BaseEventLoop):
    """The event loop of asyncio with a virtual clock and a chooser for the next callback."""

    def __init__(self, choose: Chooser) -> None:
        super().__init__()
        self._choose = choose
        self._now = 0.0
        self.failures: list[dict[str, Any]] = []
        self.is_suspended: Callable[[asyncio.Handle], bool] | None = None
        """Selects callbacks that do not run for now, like those of a suspended process. Set it again after a change."""
        self._suspended: list[asyncio.Handle] = []
        self.set_exception_handler(lambda _, context: self.failures.append(context))

    def run_to_rest(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, then all ready callbacks. Virtual time does not advance meanwhile."""
        result = self.run_until_complete(work)
        while self._ready:  # type: ignore[attr-defined]
            self.run_until_complete(asyncio.sleep(0))
        return result

    def abandon(self) -> None:
        """Cancel all remaining tasks, including those started by the cancellation, and close the loop."""
        while asyncio.all_tasks(self):
            _cancel_rest(self)
            self.run_to_rest(asyncio.sleep(0))
        self.close()

    def time(self) -> float:
        """Return the virtual time."""
        return self._now

    def pass_time(self, seconds: float) -> None:
        """Advance the virtual clock, as if the current callback took this long."""
        self._now += seconds

    def _run_once(self) -> None:
        ready: Any = self._ready  # type: ignore[attr-defined]
        scheduled: Any = self._scheduled  # type: ignore[attr-defined]
        while True:
            self._collect_due_timers(ready, scheduled)
            if self.is_suspended is None or not self._set_aside(ready) or ready or not scheduled:
                break
        if not ready:
            if self._stopping:  # type: ignore[attr-defined]
                return
            raise Deadlock
        place = self._choose(len(ready)) if len(ready) > 1 else 0
        ready.rotate(-place)
        handle = ready.popleft()
        ready.rotate(place)
        if not handle.cancelled():
            handle._run()

    def _collect_due_timers(self, ready: Any, scheduled: Any) -> None:  # noqa: ANN401
        """Move due timers to the ready callbacks. Without a ready callback, time advances to the next timer."""
        while scheduled and (scheduled[0].cancelled() or (not ready and scheduled[0].when() > self._now)):
            if scheduled[0].cancelled():
                heapq.heappop(scheduled)._scheduled = False
            else:
                self._now = scheduled[0].when()
        while scheduled and scheduled[0].when() <= self._now:
            handle = heapq.heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)

    def _set_aside(self, ready: Any) -> bool:  # noqa: ANN401
        """Remove suspended callbacks from the ready ones. Return whether there were any."""
        assert self.is_suspended is not None
        found = [handle for handle in ready if self.is_suspended(handle)]
        for handle in found:
            ready.remove(handle)
        self._suspended += found
        return bool(found)

    def resume(self) -> None:
        """Make all suspended callbacks ready; those that `is_suspended` still selects are set aside again."""
        self._ready.extend(self._suspended)  # type: ignore[attr-defined]
        self._suspended.clear()

    def _process_events(self, event_list: Any) -> None:  # noqa: ANN401
        """Do nothing: there is no selector."""

    def _write_to_self(self) -> None:
        """Do nothing: there are no other threads."""


async def elapse(seconds: float) -> None:
    """Let virtual time pass. Refuses to wait on a real clock."""
    assert isinstance(asyncio.get_running_loop(), SeededLoop), "this would wait in real time"
    await asyncio.sleep(seconds)


def run_schedule(main: Callable[[], Coroutine[Any, Any, T]], choose: Chooser) -> T:
    """Run `main` to its end. Exceptions that were only reported to the loop are raised."""
    loop = SeededLoop(choose)
    events.set_event_loop(loop)
    try:
        result = loop.run_until_complete(main())
        _cancel_rest(loop)
        if loop.failures:
            context = loop.failures[0]
            raise AssertionError(f"unseen failure: {context.get('message')}") from context.get("exception")
        return result
    finally:
        events.set_event_loop(None)
        loop.close()


def in_virtual_time(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run callbacks in their usual order, on a clock that jumps to the next timer."""
    return run_schedule(main, lambda _: 0)


def run_seeded(main: Callable[[random.Random], Coroutine[Any, Any, T]], seed: int) -> T:
    """Run `main` on the schedule of a seed. A failure names the seed."""
    dice = random.Random(seed)
    try:
        return run_schedule(lambda: main(random.Random(seed + 1)), dice.randrange)
    except BaseException as error:
        error.add_note(f"replay with seed {seed}")
        raise


def every_schedule(main: Callable[[], Coroutine[Any, Any, None]], *, depth: int, most: int) -> Iterator[int]:
    """Run every combination of the first `depth` choices, with the usual order after them; at most `most` schedules.

    Yields the number of choices of each schedule.
    """
    prefix: list[int] = []
    for _ in range(most):
        taken: list[tuple[int, int]] = []

        def choose(count: int, taken: list[tuple[int, int]] = taken, prefix: list[int] = prefix) -> int:
            place = prefix[len(taken)] if len(taken) < len(prefix) else 0
            if len(taken) < depth:
                taken.append((place, count))
            return place

        run_schedule(main, choose)
        yield len(taken)
        while taken and taken[-1][0] + 1 >= taken[-1][1]:
            taken.pop()
        if not taken:
            return
        place, _ = taken.pop()
        prefix = [*(place for place, _ in taken), place + 1]


def _cancel_rest(loop: SeededLoop) -> None:
    rest = asyncio.all_tasks(loop)
    for task in rest:
        task.cancel()
    if rest:
        loop.run_until_complete(asyncio.gather(*rest, return_exceptions=True))
