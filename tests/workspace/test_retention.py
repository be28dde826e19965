"""Retention of sessions, scans, jobs and output files, without any process."""

import asyncio
import os
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from holdfast.domain.errors import ToolError
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.processes import JobInfo
from holdfast.testing.gates import settle_down
from holdfast.workspace.git.background_status import GitScan, StatusScan
from holdfast.workspace.git.git_command import PrivateGit
from holdfast.workspace.process import command_process
from holdfast.workspace.process.command_process import RunningCommand
from holdfast.workspace.process.guard_client import LOST, UNPROVEN, CannotStart, TreeEnd
from holdfast.workspace.process.jobs import JobLimits, Jobs
from holdfast.workspace.process.output_capture import OutputFiles
from holdfast.workspace.process.piped_process import Child
from holdfast.workspace.project_context import ContextLoader, ContextOptions
from trials.sandbox_escapes import git
from workspace.test_search_programs import FakeProgram

SESSION = SessionId("s1")


# ProjectContext


async def test_changed_context_files_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "AGENTS.md"
    path.write_text("be kind")
    os.utime(path, ns=(1, 1))
    options = ContextOptions(trailer="one")
    loader = ContextLoader(str(tmp_path), lambda: options)
    first = await loader.load(SESSION)
    assert await loader.load(SESSION) is first
    options = ContextOptions(trailer="two")
    assert (await loader.load(SESSION)).trailer == "two"
    options = ContextOptions(trailer="two", notes=("note",))
    assert (await loader.load(SESSION)).notes == ("note",)
    for text, time in (("be calm", 2), ("be wise", 3), ("be calm again", 3), ("be kind", 1)):
        path.write_text(text)
        os.utime(path, ns=(time, time))
        assert [file.text for file in (await loader.load(SESSION)).context] == [text]


async def test_a_session_has_one_scan(tmp_path: Path) -> None:
    scans: list[StatusScan] = []

    def scan() -> StatusScan:
        scans.append(StatusScan(0.0))
        return scans[-1]

    loader = ContextLoader(str(tmp_path), scan=scan)
    for _ in range(3):
        await loader.load(SESSION)
    await loader.load(SessionId("s2"))
    assert len(scans) == 2


# Scans


@pytest.mark.parametrize("failure", [OSError, TimeoutError, CannotStart, "code", "killed"])
async def test_failed_scan_ends_and_later_one_starts(tmp_path: Path, failure: str | type[Exception]) -> None:
    """Nothing is reported: the model can still run git itself."""
    reported: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))
    top = tmp_path / "top"
    top.mkdir()
    git("init", "-q", cwd=top)

    async def start(*_: Sequence[str] | str | Mapping[str, str]) -> Child:
        if not isinstance(failure, str):
            raise failure
        return FakeProgram(b" M half\0", b"fatal: broken", 128 if failure == "code" else 137)

    environment = {"PATH": os.environ["PATH"]}
    scans = GitScan(PrivateGit(str(tmp_path / "git")), start, str(top), environment)
    first = scans.current()
    first.started -= 61
    assert scans.current() is first, "one that is running is not old"
    await scans.finished()
    assert (first.changes, first.is_done, reported) == (None, True, [])
    assert scans.current() is not first
    await scans.close()


# Commands


class Tree:
    """A process tree that ends on request of the test."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.gone: asyncio.Future[TreeEnd] = loop.create_future()
        self.exited: asyncio.Future[int | None] = loop.create_future()
        self.is_lost = False
        self.graces: list[float] = []
        self.lingers: list[float | None] = []

    def stop(self, grace: float) -> None:
        self.graces.append(grace)
        self.end(TreeEnd(was_killed=True))

    def set_linger(self, linger: float | None) -> None:
        self.lingers.append(linger)

    def end(self, end: TreeEnd) -> None:
        if not self.gone.done():
            self.gone.set_result(end)


Start = Callable[..., tuple[Tree, RunningCommand, int]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start a fake command. Returns the end of its output to write to."""
    trees: list[Tree] = []
    writes: list[int] = []

    def start_fake(
        output: list[str] | None = None, over: Callable[[], str] | None = None
    ) -> tuple[Tree, RunningCommand, int]:
        tree = Tree()
        reads = []
        for _ in range(2):
            reading, writing = os.pipe()
            reads.append(reading)
            writes.append(writing)
        say = output.append if output is not None else lambda _: None
        trees.append(tree)
        running = RunningCommand(cast(Any, tree), (reads[0], reads[1]), OutputFiles(tmp_path / "spills"), say, over)
        return tree, running, writes[-2]

    yield start_fake
    for tree in trees:
        tree.end(TreeEnd())
    await asyncio.sleep(0)
    for descriptor in writes:
        os.close(descriptor)


@pytest.mark.parametrize(
    ("cleaned", "end", "remark"),
    [
        (None, TreeEnd(code=0), ""),
        (None, TreeEnd(code=0, is_lost=True), LOST),
        ("", TreeEnd(code=0), ""),
        ("[moved]", TreeEnd(code=0), "[moved]"),
        ("[moved]", TreeEnd(code=0, is_lost=True), f"[moved]\n{LOST}"),
        ("", TreeEnd(code=0, is_lost=True, is_unproven=True), UNPROVEN),
    ],
)
async def test_remark_about_end_of_command(start: Start, cleaned: str | None, end: TreeEnd, remark: str) -> None:
    tree, running, _ = start(None, None if cleaned is None else lambda: cleaned)
    tree.end(end)
    assert await running.wait() == end
    assert running.remark == remark


@pytest.mark.parametrize(("size", "is_cut"), [(5, False), (6, True)])
async def test_live_output_is_bounded(start: Start, monkeypatch: pytest.MonkeyPatch, size: int, is_cut: bool) -> None:
    monkeypatch.setattr(command_process, "_MAX_LIVE", 5)
    output: list[str] = []
    tree, running, writing = start(output)
    os.write(writing, b"abcdefg"[:size])
    tree.end(TreeEnd(code=0))
    await running.wait()
    assert "".join(output) == "abcde" + "\n[further output is not shown while it runs]\n" * is_cut
    assert running.stdout.excerpt() == "abcdefg"[:size]


# Output files


class Full:
    def write(self, _: bytes) -> int:
        raise OSError(28, "full")

    def close(self) -> None: ...


def test_unwritable_output_file_is_not_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spills = OutputFiles(tmp_path / "spills")
    file = spills.new_file("out")
    file.add("text")
    assert file.path is not None
    assert file.path.read_text() == "text"
    file.close()

    def fdopen(descriptor: int, *_: object, **__: object) -> Full:
        os.close(descriptor)
        return Full()

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdopen", fdopen)
        full = spills.new_file("out")
        full.add("text")
    full.add("more")
    assert full.path is None


def test_the_oldest_output_files_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their last write, whatever their names and sessions."""
    monkeypatch.setattr("holdfast.workspace.process.output_capture._MAX_FILES", 3)
    directory, made, all_made = OutputFiles(tmp_path), list[Path](), set[Path]()
    sessions = [directory.for_owner(name) for name in ("s0", "s1", "")]
    for number, time in enumerate((50, 20, 40, 10, 30, 60)):
        made = sorted(made, key=lambda path: path.stat().st_mtime_ns)[-2:]
        made.append(sessions[number % 3].new_path("out"))
        made[-1].write_text("x")
        os.utime(made[-1], ns=(time, time))
        all_made.add(made[-1])
        assert set(tmp_path.rglob("*.txt")) == set(made)
    assert [len({path.parent for path in made}), len({path.parent for path in all_made})] == [2, 3]
    directory.remove("s0")
    assert set(tmp_path.rglob("*.txt")) == {path for path in made if path.parent != sessions[0]._directory_of("s0")}


def test_only_output_files_are_removed(tmp_path: Path) -> None:
    """Names are read from messages, which are untrusted."""
    spills = OutputFiles(tmp_path / "spills")
    own, other = spills.for_owner("s1").new_path("out"), spills.for_owner("s2").new_path("out")
    outside = tmp_path / "outside.txt"
    unowned = tmp_path / "spills" / "old.txt"
    for path in (own, other, outside, unowned):
        path.write_text("x")
    spills.remove("", ["../outside.txt", str(outside), "none.txt", str(other)])
    assert all(path.exists() for path in (own, other, outside, unowned))
    spills.remove("s1", ["../elsewhere/old.txt"])
    assert [path.exists() for path in (own, other, outside, unowned)] == [False, True, True, False]


# Jobs


def job_of(run: str) -> JobInfo:
    return JobInfo("", SESSION, RunId(run), "sleep 9", "", "/", 1)


async def test_grace_of_jobs(start: Start) -> None:
    """Jobs of a run already had its grace; jobs stopped by a user have their own."""

    async def graces(end: Callable[[Jobs], Any]) -> list[float]:
        jobs = Jobs(lambda: 1)
        tree, running, _ = start()
        jobs.add(job_of("r1"), running)
        await end(jobs)
        return tree.graces

    assert await graces(lambda jobs: jobs.kill("001")) == [2.0]
    assert await graces(lambda jobs: jobs.end_run(RunId("r1"))) == [0.1]
    assert await graces(lambda jobs: jobs.end_run(RunId("r2"))) == []
    assert await graces(lambda jobs: jobs.end_session(SESSION)) == [0.1]
    assert await graces(lambda jobs: jobs.close()) == [2.0]
    assert await graces(lambda jobs: jobs.close(0.5)) == [0.5]
    assert JobLimits() == JobLimits(50, 28_800_000, 2.0, 0.1)


async def test_fault_is_attributed_to_its_run(start: Start) -> None:
    jobs = Jobs(lambda: 1)
    tree, running, _ = start()
    jobs.add(job_of("r1"), running)
    assert jobs.fault_of(RunId("r1")) == ""
    tree.is_lost = True
    assert jobs.fault_of(RunId("r2")) == ""
    assert "The command: sleep 9" in jobs.fault_of(RunId("r1"))
    await jobs.close()
    with pytest.raises(ToolError):
        jobs.add(job_of("r3"), start()[1])


async def test_processes_left_behind_by_a_job_are_part_of_it(start: Start) -> None:
    """Outside of a job they may continue for a moment only."""
    tree, running, _ = start()
    assert tree.lingers == []
    jobs = Jobs(lambda: 1)
    jobs.add(job_of("r1"), running)
    assert tree.lingers == [None]
    await jobs.close()


@pytest.mark.parametrize("seed", range(10))
async def test_the_jobs_that_ended_first_are_dropped(start: Start, seed: int) -> None:
    """At the bound and after the time, whatever the order in which they were started."""
    rng, now, limits = random.Random(seed), 0, JobLimits(max_jobs=3, kept_ms=20)
    jobs = Jobs(lambda: now, limits=limits)
    running: dict[str, Tree] = {}
    ended: dict[str, int] = {}
    for _ in range(40):
        now += rng.choice((0, 1, 1, 9))
        if len(running) < limits.max_jobs and rng.random() < 0.5:
            newest = sorted(ended, key=lambda name: (ended[name], name))[-limits.max_jobs + 1 :]
            ended = {name: ended[name] for name in newest if ended[name] > now - limits.kept_ms}
            tree, command, _ = start()
            running[jobs.add(job_of("r1"), command).info.id] = tree
        elif running:
            name = rng.choice(sorted(running))
            running.pop(name).end(TreeEnd(code=0))
            ended[name] = now
            await settle_down()
        assert {info.id for info in jobs.list()} == running.keys() | ended.keys()
    await jobs.close()
