"""R5, C-45 and C-54 for the tools that change and search files: nothing takes effect after a cancel."""

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from holdfast.domain.settings import ToolSettings
from holdfast.domain.store_operations import AddFile
from holdfast.testing.gates import GatedLedger, until
from holdfast.tools.registry import ToolNeeds
from holdfast.workspace.process import piped_process
from holdfast.workspace.process.piped_process import Child
from tools.tool_runner import ToolRunner

CHANGES: list[tuple[str, dict[str, object]]] = [
    ("write", {"file_path": "a.txt", "content": "x"}),
    ("edit", {"file_path": "a.txt", "old_string": "one", "new_string": "x"}),
    ("multiedit", {"file_path": "a.txt", "edits": [{"old_string": "one", "new_string": "x"}]}),
    ("write", {"file_path": "new/deep/b.txt", "content": "x"}),
]
OLD = b"one\ntwo\nthree\n"


async def cancel_and_check(runner: ToolRunner, run: str) -> None:
    await runner.harness.cancel()
    await runner.harness.wait_until_idle()
    assert runner.harness.end_of(run).outcome == "cancelled"
    await runner.harness.assert_valid()


@pytest.mark.parametrize("change", CHANGES)
async def test_cancelled_while_an_approval_is_pending(
    runner: ToolRunner, change: tuple[str, dict[str, object]]
) -> None:
    await runner.call_ok("view", file_path="a.txt")
    runner.approver.gate.shut()
    runner.approver.gate.reached.clear()
    run = await runner.start(change)
    await runner.approver.gate.reached.wait()
    await cancel_and_check(runner, run)
    assert runner.read("a.txt") == OLD
    assert runner.names() == ["a.txt"]
    assert await runner.versions() == []


class HeldDisk:
    """Holds every sync of a file at a gate."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self.go = threading.Event()
        self.left = threading.Event()

    def fsync(self, file: int) -> None:
        self.reached.set()
        self.go.wait(30)
        os.fdatasync(file)


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> HeldDisk:
    held = HeldDisk()
    monkeypatch.setattr(os, "fsync", held.fsync)
    return held


@pytest.mark.parametrize("change", CHANGES)
async def test_cancel_ends_the_run_although_the_disk_blocks(
    runner: ToolRunner, disk: HeldDisk, change: tuple[str, dict[str, object]]
) -> None:
    """R5: the blocked disk operation has no effect when it completes later."""
    await runner.call_ok("view", file_path="a.txt")
    run = await runner.start(change)
    assert await asyncio.to_thread(disk.reached.wait, 30)
    assert len(runner.names()) == 2
    await cancel_and_check(runner, run)
    assert runner.read("a.txt") == OLD
    disk.go.set()
    # The temporary file is removed first, then the directories created for it.
    await until(lambda: os.listdir(runner.root) == ["a.txt"])
    assert runner.read("a.txt") == OLD
    assert [content for _, _, content in await runner.versions()] in ([OLD.decode()], [None])


async def test_change_in_place_before_a_cancel_is_recorded(project: Path) -> None:
    """A cancel after the new content is in place does not prevent its record in the history."""
    ledger = GatedLedger()
    runner = await ToolRunner(project).open(ledger=ledger)
    await runner.call_ok("write", file_path="b.txt", content="1")
    ledger.hold(AddFile)
    run = await runner.start(("write", {"file_path": "b.txt", "content": "2"}))
    # The old state is already recorded; the next record is of the new state.
    await ledger.gate.reached.wait()
    ledger.gate.open()
    await runner.harness.wait_until_idle()
    assert runner.harness.end_of(run).outcome == "completed"
    assert runner.read("b.txt") == b"2"
    assert [content for _, _, content in await runner.versions()] == [None, "1", "2"]


# Searches


class RecordedProcesses:
    """Starts child processes and records them."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.pids: list[int] = []

    async def __call__(self, arguments: Sequence[str], directory: str, environment: Mapping[str, str]) -> Child:
        child = await piped_process.spawn(arguments, directory, environment)
        self.pids.append(child._process.pid)  # type: ignore[attr-defined]
        self.started.set()
        return child

    def is_any_left(self) -> bool:
        return any(Path(f"/proc/{pid}").exists() for pid in self.pids)


SLOW: dict[str, object] = {"pattern": "(a+)+$(?#)", "path": "slow.txt"}
"""A pattern with catastrophic backtracking on this text."""


@pytest.fixture
async def searching(project: Path) -> tuple[ToolRunner, RecordedProcesses]:
    watch = RecordedProcesses()
    runner = await ToolRunner(project).open(ToolNeeds(spawn=watch))
    # No ripgrep and no repository here: the built-in walk must handle the cancel.
    runner.environment["PATH"] = "/nowhere"
    runner.write_file("slow.txt", b"a" * 60 + b"!\n")
    return runner, watch


async def test_c45_a_running_search_stops_with_its_run(searching: tuple[ToolRunner, RecordedProcesses]) -> None:
    """C-45 and C-54: the search is gone, and the write after it in the same step has no effect."""
    runner, watch = searching
    await runner.call_ok("view", file_path="a.txt")
    run = await runner.start(("grep", SLOW), ("write", {"file_path": "a.txt", "content": "x"}))
    await watch.started.wait()
    await cancel_and_check(runner, run)
    assert not watch.is_any_left()
    assert runner.read("a.txt") == OLD


async def test_search_ends_at_its_time_limit(project: Path) -> None:
    """No other search is started instead."""
    watch = RecordedProcesses()
    settings = ToolSettings(grep={"timeout": 300_000_000})
    runner = await ToolRunner(project).open(ToolNeeds(spawn=watch, settings=lambda: settings))
    runner.environment["PATH"] = "/nowhere"
    runner.write_file("slow.txt", b"a" * 60 + b"!\n")
    result = await runner.call_ok("grep", **SLOW)
    assert "stopped after 0.3 s" in result.content
    assert len(watch.pids) == 1
    assert not watch.is_any_left()
