"""Reports with several parts: each part is there with and without the others."""

import asyncio
import errno
import os
from itertools import product
from pathlib import Path

import pytest

from holdfast.domain.project_context import GitChanges
from holdfast.testing.gates import Gate, settle_down, start
from holdfast.workspace.git.background_status import GitScan
from holdfast.workspace.git.git_command import PrivateGit
from holdfast.workspace.process.piped_process import spawn
from holdfast.workspace.sandbox.quarantine import SandboxCleanup


@pytest.mark.parametrize(("moves", "unread"), list(product((0, 1, 2), (0, 1, 2))))
def test_moved_and_unread_paths_are_both_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moves: int, unread: int
) -> None:
    place = Path(os.path.realpath(tmp_path)) / "project"
    names = tuple(f"made-{number}" for number in range(moves))
    closed = [f"closed-{number}" for number in range(unread)]
    for name in closed:
        (place / name).mkdir(parents=True)
    place.mkdir(exist_ok=True)
    real = os.open

    def opens(path: str, *arguments: int, **options: int) -> int:
        if path in closed:
            raise OSError(errno.EIO, "broken")
        return real(path, *arguments, **options)

    cleanup = SandboxCleanup(str(place), names, str(place.parent / "kept"))
    end = cleanup.begin(frozenset())
    for name in names:
        (place / name).write_text("made")
    monkeypatch.setattr(os, "open", opens)
    report = end()
    assert [f"{name} (now" in report for name in names] == [True] * moves
    assert ("Moved out of the workspace" in report) == bool(moves)
    assert (f"[{unread} directories could not be searched" in report) == bool(unread)
    assert ("among them closed-" in report) == bool(unread)
    assert len(report.splitlines()) == bool(moves) + bool(unread)
    assert cleanup.begin(frozenset())() == "", "each is reported once"


class SlowScan(GitScan):
    """Scans without an end; a cancelled one stops when the gate is opened."""

    begun: asyncio.Event
    stopped: Gate

    async def _changes(self) -> GitChanges | None:
        self.begun.set()
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            await self.stopped()
        return None


async def test_close_returns_after_the_scan_has_ended(tmp_path: Path) -> None:
    """Also if its program takes a while to stop."""
    scans = SlowScan(PrivateGit(str(tmp_path / "private")), spawn, str(tmp_path), {})
    scans.begun, scans.stopped = asyncio.Event(), Gate()
    scan = scans.current()
    await scans.begun.wait()
    closing = start(scans.close())
    await scans.stopped.reached.wait()
    await settle_down()
    assert (closing.done(), scan.is_done) == (False, False)
    scans.stopped.open()
    await closing
    assert (scan.is_done, scan.changes) == (True, None)
