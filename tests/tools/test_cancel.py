"""After a cancel nothing takes effect any more: R5, C-45 and C-54 for the tools that change and search files."""

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from holdfast.domain.ledger import AddFile
from holdfast.domain.settings import ToolSettings
from holdfast.testing.gates import GatedLedger, until
from holdfast.tools.registry import ToolNeeds
from holdfast.workspace.process import piped_process
from holdfast.workspace.process.piped_process import Child
from tools.desk import Desk

CHANGES: list[tuple[str, dict[str, object]]] = [
    ("write", {"file_path": "a.txt", "content": "x"}),
    ("edit", {"file_path": "a.txt", "old_string": "one", "new_string": "x"}),
    ("multiedit", {"file_path": "a.txt", "edits": [{"old_string": "one", "new_string": "x"}]}),
    ("write", {"file_path": "new/deep/b.txt", "content": "x"}),
]
OLD = b"one\ntwo\nthree\n"


async def cancelled(desk: Desk, run: str) -> None:
    await desk.harness.cancel()
    await desk.harness.quiet()
    assert desk.harness.end_of(run).outcome == "cancelled"
    await desk.harness.assert_valid()


@pytest.mark.parametrize("change", CHANGES)
async def test_cancelled_while_an_approval_is_pending(desk: Desk, change: tuple[str, dict[str, object]]) -> None:
    await desk.does("view", file_path="a.txt")
    desk.porter.gate.shut()
    desk.porter.gate.reached.clear()
    run = await desk.begin(change)
    await desk.porter.gate.reached.wait()
    await cancelled(desk, run)
    assert desk.read("a.txt") == OLD
    assert desk.names() == ["a.txt"]
    assert await desk.versions() == []


class HeldDisk:
    """Holds whoever syncs a file."""

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
async def test_cancelled_while_the_disk_works(
    desk: Desk, disk: HeldDisk, change: tuple[str, dict[str, object]]
) -> None:
    """R5: the run ends although the disk is stuck, and what the disk does later has no effect."""
    await desk.does("view", file_path="a.txt")
    run = await desk.begin(change)
    assert await asyncio.to_thread(disk.reached.wait, 30)
    assert len(desk.names()) == 2
    await cancelled(desk, run)
    assert desk.read("a.txt") == OLD
    disk.go.set()
    # The file that was being written goes first, then the directories that were made for it.
    await until(lambda: os.listdir(desk.root) == ["a.txt"])
    assert desk.read("a.txt") == OLD
    assert [content for _, _, content in await desk.versions()] in ([OLD.decode()], [None])


async def test_a_published_change_is_recorded(project: Path) -> None:
    """A cancel that comes after the new content is in place finds it in the history."""
    ledger = GatedLedger()
    desk = await Desk(project).open(ledger=ledger)
    await desk.does("write", file_path="b.txt", content="1")
    ledger.hold(AddFile)
    run = await desk.begin(("write", {"file_path": "b.txt", "content": "2"}))
    # The old state is known already; the next to be stored is the new one.
    await ledger.gate.reached.wait()
    ledger.gate.open()
    await desk.harness.quiet()
    assert desk.harness.end_of(run).outcome == "completed"
    assert desk.read("b.txt") == b"2"
    assert [content for _, _, content in await desk.versions()] == [None, "1", "2"]


# Searches


class Watch:
    """Starts children and keeps who they are."""

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
"""A pattern that takes for ever on this text, in a program of ours that goes back and forth."""


@pytest.fixture
async def searching(project: Path) -> tuple[Desk, Watch]:
    watch = Watch()
    desk = await Desk(project).open(ToolNeeds(spawn=watch))
    # No ripgrep and no repository here: our own walk has to bear it.
    desk.environment["PATH"] = "/nowhere"
    desk.put("slow.txt", b"a" * 60 + b"!\n")
    return desk, watch


async def test_c45_a_running_search_stops_with_its_run(searching: tuple[Desk, Watch]) -> None:
    """C-45 and C-54: the search is gone, and the write after it in the same step has no effect."""
    desk, watch = searching
    await desk.does("view", file_path="a.txt")
    run = await desk.begin(("grep", SLOW), ("write", {"file_path": "a.txt", "content": "x"}))
    await watch.started.wait()
    await cancelled(desk, run)
    assert not watch.is_any_left()
    assert desk.read("a.txt") == OLD


async def test_a_search_ends_when_its_time_is_up(project: Path) -> None:
    """And nothing else begins in its place."""
    watch = Watch()
    settings = ToolSettings(grep={"timeout": 300_000_000})
    desk = await Desk(project).open(ToolNeeds(spawn=watch, settings=lambda: settings))
    desk.environment["PATH"] = "/nowhere"
    desk.put("slow.txt", b"a" * 60 + b"!\n")
    result = await desk.does("grep", **SLOW)
    assert "stopped after 0.3 s" in result.content
    assert len(watch.pids) == 1
    assert not watch.is_any_left()
