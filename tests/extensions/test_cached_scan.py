"""Cached scans of the disk: shared, awaited for a limited time, and published only after a change."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from holdfast.extensions.markdown_dir import CachedScan, ScannedExtension
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import elapse, in_virtual_time


class Disk:
    """A disk whose scans end in the order chosen by the test. Threads are futures of the loop here."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.holds = "first"
        self.changes = 0
        self.looks: list[asyncio.Future[None]] = []
        self.is_broken = False
        self.clock = 0.0
        self.watch = CachedScan(self.scan, "nothing", self._changed)
        patch.setattr(asyncio, "to_thread", self._threaded)
        patch.setattr("holdfast.workspace.short_calls.time.perf_counter", self._time)
        patch.setattr("holdfast.workspace.short_calls.time.thread_time", lambda: 0.0)

    def scan(self) -> str:
        if self.is_broken:
            raise OSError("broken")
        return self.holds

    def _changed(self) -> None:
        self.changes += 1

    def _time(self) -> float:
        self.clock += 0.5
        return self.clock

    async def _threaded(self, work: Callable[[], Any]) -> Any:  # noqa: ANN401
        seen = work()
        end = asyncio.get_running_loop().create_future()
        self.looks.append(end)
        await end
        return seen


def run_scenario(patch: pytest.MonkeyPatch, scenario: Callable[[Disk], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        disk = Disk(patch)
        try:
            await scenario(disk)
        finally:
            await disk.watch.close()

    in_virtual_time(main)


def test_previous_result_is_used_while_disk_is_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(disk: Disk) -> None:
        began = asyncio.get_running_loop().time()
        assert await disk.watch.rescan() == "nothing"
        assert asyncio.get_running_loop().time() - began == 1.0
        assert not disk.watch.has_scanned
        disk.looks[0].set_result(None)
        await elapse(0.01)
        assert (disk.watch.current, disk.changes, disk.watch.has_scanned) == ("first", 1, True)

    run_scenario(monkeypatch, scenario)


def test_only_changes_are_published(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(disk: Disk) -> None:
        for holds, changes in (("first", 1), ("first", 1), ("second", 2)):
            disk.holds = holds
            disk.watch.start()
            await asyncio.sleep(0)
            disk.looks[-1].set_result(None)
            await elapse(0.01)
            assert (disk.watch.current, disk.changes) == (holds, changes)

    run_scenario(monkeypatch, scenario)


def test_older_scan_does_not_replace_newer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(disk: Disk) -> None:
        disk.watch.start()
        await asyncio.sleep(0)
        disk.holds = "second"
        disk.watch.start()
        await asyncio.sleep(0)
        for scan in (1, 0):
            disk.looks[scan].set_result(None)
            await elapse(0.01)
        assert (disk.watch.current, disk.changes) == ("second", 1)

    run_scenario(monkeypatch, scenario)


def test_scans_do_not_accumulate_on_hanging_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(disk: Disk) -> None:
        for _ in range(9):
            disk.watch.start()
            await asyncio.sleep(0)
        assert len(disk.looks) == 4
        waiting = start(disk.watch.rescan(seconds=50))
        await elapse(0.01)
        disk.looks[3].set_result(None)
        assert await waiting == "first", "who comes later waits for the last of them"

    run_scenario(monkeypatch, scenario)


def test_failed_scan_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(disk: Disk) -> None:
        disk.watch.start()
        await asyncio.sleep(0)
        disk.looks[0].set_result(None)
        await elapse(0.01)
        disk.is_broken = True
        disk.watch.start()
        await asyncio.sleep(0)
        disk.looks[1].set_result(None)
        await elapse(0.01)
        assert (disk.watch.current, disk.changes) == ("first", 1)

    run_scenario(monkeypatch, scenario)


def test_fast_scan_needs_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(disk: Disk) -> None:
        monkeypatch.setattr("holdfast.workspace.short_calls.time.perf_counter", lambda: 0.0)
        looking = ScannedExtension(disk.watch)
        looking.start()
        await asyncio.sleep(0)
        disk.looks[0].set_result(None)
        await elapse(0.01)
        disk.holds = "second"
        assert await looking.rescan() == "second"
        assert (looking.current, len(disk.looks), disk.changes) == ("second", 1, 2)
        looking.refresh()
        await asyncio.sleep(0)
        assert len(disk.looks) == 2
        assert list(looking.tools()) == []

    run_scenario(monkeypatch, scenario)


@pytest.mark.parametrize(
    ("elapsed", "processor", "needs_thread"),
    [(0.0025, 0.0005, False), (0.0035, 0.0005, True), (0.0025, 0.0015, True)],
    ids=["waited for the interpreter", "slow disk", "many files"],
)
def test_the_disk_and_the_work_decide_about_the_thread(
    monkeypatch: pytest.MonkeyPatch, elapsed: float, processor: float, *, needs_thread: bool
) -> None:
    async def scenario(disk: Disk) -> None:
        clocks = {"perf_counter": iter((0.0, elapsed)), "thread_time": iter((0.0, processor))}
        for name, clock in clocks.items():
            monkeypatch.setattr(f"holdfast.workspace.short_calls.time.{name}", lambda clock=clock: next(clock, 0.0))
        disk.watch.start()
        await asyncio.sleep(0)
        disk.looks[0].set_result(None)
        await elapse(0.01)
        await disk.watch.rescan()
        assert len(disk.looks) == (2 if needs_thread else 1)

    run_scenario(monkeypatch, scenario)
