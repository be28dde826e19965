"""File changes that the store, the disk or another program refuses: applied completely or not at all."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from holdfast.domain.errors import BadRequest, StorageUnavailable
from holdfast.domain.files import Origin
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.store_operations import AddFile, Answer, Write
from holdfast.tasks import TaskOwner
from holdfast.testing.gates import Gate
from holdfast.testing.memory_ledger import MemoryLedger
from holdfast.tools.registry import ToolNeeds
from holdfast.workspace.files import atomic_write
from tools.test_undo import undo_last
from tools.tool_runner import ToolRunner
from workspace.web_server import WebServer, web_server

OLD = b"one\ntwo\nthree\n"
CHANGES: dict[str, tuple[str, dict[str, object]]] = {
    "a new file": ("write", {"file_path": "new.txt", "content": "x"}),
    "a new file in new directories": ("write", {"file_path": "new/deep/b.txt", "content": "x"}),
    "a file written anew": ("write", {"file_path": "a.txt", "content": "x"}),
    "an edit": ("edit", {"file_path": "a.txt", "old_string": "one", "new_string": "1"}),
    "a file made by an edit": ("edit", {"file_path": "made.txt", "new_string": "1"}),
    "several edits": ("multiedit", {"file_path": "a.txt", "edits": [{"old_string": "two", "new_string": "2"}]}),
    "a file with two names": ("write", {"file_path": "linked.txt", "content": "x"}),
    "a file in another encoding": ("write", {"file_path": "marked.txt", "content": "x"}),
    "a download": ("download", {"url": "URL/page", "file_path": "saved/page.txt"}),
}


class RefusingLedger(MemoryLedger):
    """Refuses file versions of certain origins and stores all others."""

    def __init__(self) -> None:
        super().__init__()
        self.origins: tuple[Origin, ...] = ()
        self.undo_gate = Gate(is_open=True)
        """Suspends the record of an undo."""

    async def commit(
        self, workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        files = [op.file for write in writes for op in write.operations if isinstance(op, AddFile)]
        if any(file.origin == "undo" for file in files):
            await self.undo_gate()
        if any(file.origin in self.origins for file in files):
            raise StorageUnavailable
        return await super().commit(workspace, epoch, ticket, writes)


@pytest.fixture
async def web() -> AsyncIterator[WebServer]:
    async with web_server() as server:
        server.page("/page", b"text", "text/plain")
        yield server


@pytest.fixture
def ledger() -> RefusingLedger:
    return RefusingLedger()


@pytest.fixture
async def stored(project: Path, ledger: RefusingLedger) -> ToolRunner:
    runner = await ToolRunner(project).open(ledger=ledger)
    path = runner.write_file("linked.txt", OLD)
    os.link(path, runner.root / "other name.txt")
    runner.write_file("marked.txt", b"\xef\xbb\xbfa\r\nb\r\n").chmod(0o640)
    for name in ("a.txt", "linked.txt", "marked.txt"):
        await runner.call_ok("view", file_path=name)
    return runner


def tree(root: Path) -> dict[str, tuple[bytes, int]]:
    """Return every file with content and mode, and every directory."""
    found: dict[str, tuple[bytes, int]] = {}
    for path in sorted(root.rglob("*")):
        data = b"" if path.is_dir() else path.read_bytes()
        found[str(path.relative_to(root))] = data, path.stat().st_mode
    return found


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("origin", ["outside", "tool"])
@pytest.mark.parametrize("change", CHANGES)
async def test_a_change_that_cannot_be_recorded_is_not_made(
    stored: ToolRunner, ledger: RefusingLedger, web: WebServer, change: str, origin: Origin
) -> None:
    """R5: a file never differs from its history, so that an undo is reliable."""
    tool, arguments = CHANGES[change]
    arguments = {name: value.replace("URL", web.url) if name == "url" else value for name, value in arguments.items()}  # type: ignore[attr-defined]
    before = tree(stored.root)
    names = (stored.root / "linked.txt").stat().st_ino
    ledger.origins = (origin,)
    run = await stored.start((tool, arguments))
    await stored.harness.wait_until_idle()
    assert tree(stored.root) == before
    assert (stored.root / "other name.txt").stat().st_ino == (stored.root / "linked.txt").stat().st_ino == names
    assert [file.origin for file in await stored.files() if file.origin == "tool"] == []
    assert stored.harness.end_of(run).outcome == "failed"
    # Nothing prevents the same change afterwards.
    ledger.origins = ()
    await stored.call_ok(tool, **arguments)
    assert tree(stored.root) != before
    assert [file.origin for file in await stored.files()][-1] == "tool"


@pytest.mark.parametrize("is_refused", [True, False])
@pytest.mark.parametrize("change", ["an edit", "a new file in new directories", "a download"])
async def test_a_change_is_reverted_if_its_record_is_refused_after_a_cancel(
    stored: ToolRunner, ledger: RefusingLedger, web: WebServer, change: str, *, is_refused: bool
) -> None:
    """R5: the run is cancelled while the record is pending; the result of the record decides, not the cancel."""
    tool, arguments = CHANGES[change]
    arguments = {name: value.replace("URL", web.url) if name == "url" else value for name, value in arguments.items()}  # type: ignore[attr-defined]
    before = tree(stored.root)
    pending, decided = asyncio.Event(), asyncio.Event()
    commit = ledger.commit

    async def commit_later(
        workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        if any(isinstance(op, AddFile) and op.file.origin == "tool" for write in writes for op in write.operations):
            pending.set()
            await decided.wait()
        return await commit(workspace, epoch, ticket, writes)

    ledger.commit = commit_later  # type: ignore[method-assign]
    ledger.origins = ("tool",) if is_refused else ()
    run = await stored.start((tool, arguments))
    await pending.wait()
    assert tree(stored.root) != before
    tasks = TaskOwner()
    cancel = tasks.start(stored.harness.cancel(), name="cancel")
    # The cancel stops the task of the run at once; its own record waits behind the pending one.
    for _ in range(20):
        await asyncio.sleep(0)
    assert not cancel.done()
    decided.set()
    await cancel
    await stored.harness.wait_until_idle()
    assert stored.harness.end_of(run).outcome == "cancelled"
    assert (tree(stored.root) == before) is is_refused
    assert ("tool" in [file.origin for file in await stored.files()]) is not is_refused


async def test_a_concurrent_change_by_another_program_is_kept(stored: ToolRunner, ledger: RefusingLedger) -> None:
    """The store refuses while another program writes: its content stays."""
    commit = ledger.commit

    async def commit_and_write(
        workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        try:
            return await commit(workspace, epoch, ticket, writes)
        except StorageUnavailable:
            stored.write_file("a.txt", b"of another program\n")
            raise

    ledger.commit = commit_and_write  # type: ignore[method-assign]
    ledger.origins = ("tool",)
    await stored.start(CHANGES["an edit"])
    await stored.harness.wait_until_idle()
    assert stored.read("a.txt") == b"of another program\n"
    assert not [name for name in stored.names() if "holdfast" in name]


# Undo


@pytest.fixture
async def changed(project: Path, ledger: RefusingLedger) -> ToolRunner:
    """A run that changed one file and created two, one of them in new directories."""
    runner = await ToolRunner(project).open(ledger=ledger)
    runner.write_file("gone.txt", b"was here\n")
    for name in ("a.txt", "gone.txt"):
        await runner.call_ok("view", file_path=name)
    calls: list[tuple[str, dict[str, object]]] = [
        ("write", {"file_path": "a.txt", "content": "changed"}),
        ("write", {"file_path": "b.txt", "content": "made"}),
        ("write", {"file_path": "deep/er/c.txt", "content": "made too"}),
        ("write", {"file_path": "gone.txt", "content": "changed before it was removed"}),
    ]
    await runner.start(*calls, run_id="r1")
    await runner.harness.wait_until_idle()
    (runner.root / "gone.txt").unlink()
    return runner


RESTORED = {"a.txt": OLD, "gone.txt": b"was here\n"}


def contents(runner: ToolRunner) -> dict[str, bytes]:
    return {name: runner.read(name) for name in runner.names()}


async def test_undo_of_several_files_is_applied_and_recorded(changed: ToolRunner) -> None:
    before = descriptors()
    report = await undo_last(changed, run="r1", force=True)
    assert [file.outcome for file in report.files] == ["restored", "removed", "removed", "restored"]
    assert contents(changed) == RESTORED
    assert descriptors() == before
    assert sum(file.origin == "undo" for file in await changed.files()) == 4


@pytest.mark.parametrize("origin", ["outside", "undo"])
async def test_undo_that_cannot_be_recorded_is_not_applied(
    changed: ToolRunner, ledger: RefusingLedger, origin: Origin
) -> None:
    """The record fails before the first file, or after the last one."""
    before, open_before = tree(changed.root), descriptors()
    ledger.origins = (origin,)
    with pytest.raises(StorageUnavailable):
        await undo_last(changed, run="r1", force=True)
    assert tree(changed.root) == before
    assert descriptors() == open_before
    assert "undo" not in {file.origin for file in await changed.files()}
    ledger.origins = ()
    assert (await undo_last(changed, run="r1", force=True)).is_done
    assert contents(changed) == RESTORED


def failing(real: Callable[..., None], count: int) -> Callable[..., None]:
    """Fail the call of this number, counted from 0, with a disk error."""
    left = [count]

    def maybe(*arguments: object, **named: object) -> None:
        left[0] -= 1
        if left[0] == -1:
            raise OSError(5, "Input/output error")
        real(*arguments, **named)

    return maybe


@pytest.mark.parametrize(("call", "count"), [("rename", 0), ("rename", 1), ("rename", 2), ("link", 0), ("fsync", 1)])
async def test_undo_that_fails_midway_is_reverted(
    changed: ToolRunner, monkeypatch: pytest.MonkeyPatch, call: str, count: int
) -> None:
    """At whichever file it fails: every file is as it was."""
    before, open_before = tree(changed.root), descriptors()
    with monkeypatch.context() as patch:
        patch.setattr(atomic_write.os, call, failing(getattr(os, call), count))  # type: ignore[attr-defined]
        with pytest.raises(BadRequest, match="input/output error"):
            await undo_last(changed, run="r1", force=True)
    assert tree(changed.root) == before
    assert descriptors() == open_before
    assert "undo" not in {file.origin for file in await changed.files()}
    assert (await undo_last(changed, run="r1", force=True)).is_done
    assert contents(changed) == RESTORED


async def test_a_file_that_is_created_again_during_an_undo_is_not_overwritten(
    changed: ToolRunner, ledger: RefusingLedger
) -> None:
    """The record fails and the original path is in use again: both files are kept."""
    commit = ledger.commit

    async def commit_and_write(
        workspace: WorkspaceId, epoch: int, ticket: int, writes: Sequence[Write]
    ) -> Sequence[Answer]:
        try:
            return await commit(workspace, epoch, ticket, writes)
        except StorageUnavailable:
            changed.write_file("b.txt", b"of another program")
            raise

    ledger.commit = commit_and_write  # type: ignore[method-assign]
    ledger.origins = ("undo",)
    with pytest.raises(StorageUnavailable):
        await undo_last(changed, run="r1", force=True)
    assert changed.read("b.txt") == b"of another program"
    assert b"made" in [changed.read(name) for name in changed.names() if name.startswith(".holdfast-")]


async def test_an_undo_is_completed_although_its_caller_is_cancelled(
    changed: ToolRunner, ledger: RefusingLedger
) -> None:
    """The client disconnects while the undo is recorded: it is completed, or reverted if the record is refused."""
    before = tree(changed.root)
    for is_refused in (True, False):
        ledger.origins = ("undo",) if is_refused else ()
        gate = ledger.undo_gate = Gate()
        undoing = TaskOwner().start(undo_last(changed, run="r1", force=True), name="undo")
        await gate.reached.wait()
        assert tree(changed.root) != before
        undoing.cancel()
        gate.open()
        with pytest.raises(asyncio.CancelledError):
            await undoing
        assert (tree(changed.root) == before) is is_refused
        assert not [name for name in changed.names() if ".holdfast-" in name]
    assert "undo" in [file.origin for file in await changed.files()]


async def test_an_undo_removes_the_temporary_files_of_a_killed_server(changed: ToolRunner) -> None:
    """Temporary files that a process still uses, and other files, stay."""
    abandoned, used = ".holdfast-0123456789abcdef.tmp", ".holdfast-fedcba9876543210.tmp"
    others = [".holdfast-0123456789abcdef.kept", "a.tmp", "deep/.holdfast-0123456789abcdef.tmp"]
    for name in (abandoned, used, f"deep/er/{abandoned}", *others):
        changed.write_file(name, b"x")
    held = os.open(changed.root / used, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        await undo_last(changed, run="r1", force=True, dry=True)
        assert abandoned in changed.names()
        await undo_last(changed, run="r1", force=True)
    finally:
        os.close(held)
    found = [name for name in changed.names() if "holdfast" in name or name.endswith(".tmp")]
    assert found == sorted([used, *others])


# Durability


class SyncRecorder:
    """Records the calls that make a file durable, in order."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.calls: list[str] = []
        self._root = str(root)
        for name in ("fsync", "rename", "link", "unlink"):
            monkeypatch.setattr(os, name, self._recorded(name, getattr(os, name)))

    def _recorded(self, name: str, real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: object, **named: object) -> None:
            first = arguments[0]
            place = os.readlink(f"/proc/self/fd/{first}") if name == "fsync" else str(first)
            if ".holdfast-" in place or place.startswith(self._root) or named.get("dir_fd") is not None:
                kind = "draft" if ".holdfast-" in place else "directory" if os.path.isdir(place) else "file"
                empty = " without content" if (name, kind) == ("fsync", "draft") and not os.path.getsize(place) else ""
                self.calls.append(f"{name} {kind}{empty}")
            real(*arguments, **named)

        return call


@pytest.mark.parametrize(
    ("change", "calls"),
    [
        ("an edit", ["fsync draft", "rename draft", "fsync directory"]),
        ("a new file", ["fsync draft", "link draft", "unlink draft", "fsync directory"]),
        (
            "a new file in new directories",
            ["fsync draft", "link draft", "unlink draft", *["fsync directory"] * 3],
        ),
        ("a file with two names", ["fsync draft", "unlink draft", "fsync file", "fsync directory"]),
    ],
)
async def test_a_change_is_synced_before_its_result(
    stored: ToolRunner, monkeypatch: pytest.MonkeyPatch, change: str, calls: list[str]
) -> None:
    """R1 for files: first the content, then the name, then the directory that contains the name."""
    tool, arguments = CHANGES[change]
    with monkeypatch.context() as patch:
        recording = SyncRecorder(patch, stored.root)
        await stored.call_ok(tool, **arguments)
    assert recording.calls == calls


async def test_an_undo_is_synced_before_its_result(changed: ToolRunner, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        recording = SyncRecorder(patch, changed.root)
        await undo_last(changed, run="r1", force=True)
    assert recording.calls[:2] == ["fsync draft"] * 2
    assert recording.calls.count("fsync directory") == 4
    assert recording.calls[-1] == "fsync directory"
    names = [call for call in recording.calls if call.startswith(("rename", "link"))]
    assert recording.calls.index(names[0]) == 2


async def test_download_over_its_limit_leaves_no_record(project: Path, web: WebServer) -> None:
    """Nothing is recorded for a file that was not saved, and no directory is left behind."""
    runner = await ToolRunner(project).open(ToolNeeds(download_limit=3))
    await runner.call_error("download", url=f"{web.url}/page", file_path="saved/page.txt")
    assert list(tree(runner.root)) == ["a.txt"]
    assert not await runner.files()
