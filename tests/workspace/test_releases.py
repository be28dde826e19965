"""What was acquired is released when the next step fails: descriptors, processes, trees, counts, directories.

The guard process is played by the test where no command is needed: it reads requests and answers as
supervisors do.
"""

import asyncio
import errno
import json
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.processes import JobInfo, TooManyJobs, UnknownJob
from holdfast.testing.gates import settle_down, start, until
from holdfast.tools import ls
from holdfast.workspace.files import safe_open
from holdfast.workspace.files.ignore_files import IgnoreRules
from holdfast.workspace.process import guard as guards
from holdfast.workspace.process.command_process import Launch, Processes
from holdfast.workspace.process.guard import Bounds, CannotStart, TreeEnd
from holdfast.workspace.process.jobs import Job, JobLimits, Jobs
from holdfast.workspace.process.piped_process import GuardedSpawn
from holdfast.workspace.sandbox.git_dir_scan import GitScanner
from holdfast.workspace.search.search import Match, confirmed_matches
from tools.tool_runner import ToolRunner
from workspace.played_guard import NOBODY, Ground, Line


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
async def ground(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Ground]:
    ground = Ground(monkeypatch)
    yield ground
    await ground.guard.close()
    for played in ground.started:
        played.close_all()


async def test_what_a_guard_is_asked(ground: Ground) -> None:
    _, plain, _ = ground.spawn()
    mark = plain["env"].pop("HOLDFAST_RUN")
    assert plain == {"argv": ["x"], "cwd": "/", "is_real": False, "env": {"A": "1"}, "linger": 0.25, "number": 1}
    bounds = Bounds((("tmpfs", "/x", ""),), False, ("/y",), restricted=True)
    _, bound, _ = ground.spawn(linger=None, bounds=bounds, is_real=True)
    assert bound.pop("env")["HOLDFAST_RUN"] == f"{mark.partition('.')[0]}.2"
    assert bound == {
        "argv": ["x"], "cwd": "/", "is_real": True, "linger": None, "number": 2, "mounts": [["tmpfs", "/x", ""]],
        "network": False, "landlock": ["/y"], "restricted": True,
    }  # fmt: skip


async def test_what_a_guard_says_of_itself(ground: Ground) -> None:
    ready = start(ground.guard.ready())
    await until(lambda: ground.started)
    assert (ground.guard.containment, ground.guard.has_namespaces) == ("auto", False)
    ground.started[0].greet("groups")
    assert await ready == "groups"
    assert (ground.guard.containment, ground.guard.has_namespaces, ground.guard.process_id) == ("groups", True, NOBODY)
    assert await ground.guard.ready() == "groups"
    assert len(ground.started) == 1


PIECES = [1, 2, 7, 1_000]
"""How many bytes arrive at once."""


async def arrive(line: socket.socket, text: bytes, size: int) -> None:
    """Each piece is read before the next is sent: the loop looks at its sockets in every turn."""
    for at in range(0, len(text), size):
        line.sendall(text[at : at + size])
        await settle_down(3)


@pytest.mark.parametrize("size", PIECES)
async def test_what_a_guard_says_may_arrive_in_pieces(ground: Ground, size: int) -> None:
    ready = start(ground.guard.ready())
    tree, _, line = ground.spawn()
    played = ground.started[0]
    hello = json.dumps({"hello": "groups", "namespaces": True, "groups": "/g"}).encode()
    await arrive(played.line, hello, size)
    assert not ready.done()
    # The end of one message and the beginning of the next.
    await arrive(played.line, b'\n{"swe', size)
    await until(ready.done)
    assert ready.result() == "groups"
    line.close()
    await until(lambda: tree._is_over)
    assert played.asked()[0] == {"sweep": 2, "number": 1}
    await arrive(played.line, b'pt": 9}\n{"swept": 2}', size)
    assert not tree.gone.done()
    await arrive(played.line, b"\n", size)
    await until(tree.gone.done)
    assert not tree.gone.result().is_unproven
    assert (len(ground.started), ground.searched) == (1, [])


@pytest.mark.parametrize("size", PIECES)
async def test_what_a_supervisor_says_may_arrive_in_pieces(ground: Ground, size: int) -> None:
    tree, _, line = ground.spawn()
    assert line.socket is not None
    said = b'{"starting": true}\n{"begun": true}\n{"code": 3}\n{"gone": true, "left": [7], "is_lost": false}'
    await arrive(line.socket, said, size)
    await until(tree.exited.done)
    assert tree.exited.result() == 3
    assert not tree.gone.done()
    line.socket.sendall(b"\n")
    await until(tree.gone.done)
    assert tree.gone.result() == TreeEnd(3, was_killed=True, left=(7,))


async def test_a_new_guard_does_not_continue_what_the_last_one_said(ground: Ground) -> None:
    first = start(ground.guard.ready())
    await until(lambda: ground.started)
    await arrive(ground.started[0].line, b'{"hel', 100)
    ground.started[0].close()
    await until(lambda: ground.guard.process_id == 0)
    with pytest.raises(asyncio.CancelledError):
        await first
    again = start(ground.guard.ready())
    await until(lambda: len(ground.started) == 2)
    ground.started[1].greet()
    await until(again.done)
    assert again.result() == "tree"


ENDS: list[tuple[list[dict[str, object]], TreeEnd]] = [
    ([{"code": 3}, {"gone": False, "left": [], "is_lost": False}], TreeEnd(3)),
    ([{"code": 3}, {"gone": True, "left": [7, 9], "is_lost": False}], TreeEnd(3, was_killed=True, left=(7, 9))),
    ([{"gone": True, "left": [], "is_lost": True}], TreeEnd(was_killed=True, is_lost=True)),
    ([{"error": "no"}, {"code": 127}, {"gone": False, "left": [], "is_lost": False}], TreeEnd(127, error="no")),
]


@pytest.mark.parametrize(("said", "end"), ENDS)
async def test_how_a_tree_ends(ground: Ground, said: list[dict[str, object]], end: TreeEnd) -> None:
    ground.guard.ensure_started()
    before = descriptors()
    tree, _, line = ground.spawn()
    line.tell(starting=True)
    line.tell(begun=True)
    for what in said:
        line.tell(**what)
    assert await tree.gone == end
    assert tree.exited.result() == end.code
    assert tree.is_lost is end.is_lost
    line.close()
    assert descriptors() == before


async def test_an_exit_code_comes_before_the_end(ground: Ground) -> None:
    """One of a command that could not be started is none."""
    tree, _, line = ground.spawn()
    line.tell(code=4)
    assert await tree.exited == 4
    assert not tree.gone.done()
    tree, _, line = ground.spawn()
    line.tell(error="no")
    line.tell(code=127)
    line.tell(gone=False, left=[], is_lost=False)
    assert (await tree.gone).error == "no"


async def test_orders_reach_a_supervisor_until_it_is_over(ground: Ground) -> None:
    tree, _, line = ground.spawn()
    tree.stop(2.5)
    tree.set_linger(None)
    tree.set_linger(0)
    assert line.orders() == [{"stop": 2.5}, {"linger": None}, {"linger": 0}]
    line.tell(gone=True, left=[], is_lost=False)
    await tree.gone
    tree.stop(0)
    tree.set_linger(None)
    tree.kill_now()
    line.close()


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_supervisor_that_is_gone_without_a_word(ground: Ground, has_begun: bool) -> None:
    """The guard sweeps up what it kept; only then is the tree over."""
    tree, request, line = ground.spawn()
    if has_begun:
        line.tell(starting=True)
    line.close()
    await until(lambda: ground.started[0]._unread or tree._is_over)
    sweep, _ = ground.started[0].asked()
    assert sweep == {"sweep": 2, "number": request["number"]}
    assert not tree.gone.done()
    ground.started[0].line.sendall(b'{"swept": 9}\n{"swept": 2}\n')
    end = await tree.gone
    assert (end.is_lost, end.is_unproven, tree.is_lost) == (has_begun, False, has_begun)
    assert ground.searched == []
    assert ground.guard.escapes == 0


@pytest.mark.parametrize("order", ["supervisor first", "guard first"])
async def test_supervisor_and_guard_are_gone(ground: Ground, order: str) -> None:
    """What they kept is searched for; another guard is started for the next command."""
    before = descriptors()
    ready = start(ground.guard.ready())
    tree, _, line = ground.spawn()
    line.tell(starting=True)
    ground.left = (77,)
    if order == "supervisor first":
        line.close()
        await until(lambda: tree._is_over)
        ground.started[0].asked()
        ground.started[0].close()
    else:
        ground.started[0].close()
        await until(lambda: ground.guard.process_id == 0)
        line.close()
    end = await tree.gone
    assert (end.was_killed, end.left, end.is_lost, end.is_unproven) == (True, (77,), True, True)
    assert ground.guard.escapes == 1
    with pytest.raises(asyncio.CancelledError):
        await ready
    assert descriptors() == before
    again, request, other = ground.spawn()
    assert (len(ground.started), request["number"] > 1) == (2, True)
    other.tell(gone=False, left=[], is_lost=False)
    assert not (await again.gone).is_lost
    other.close()


@pytest.mark.parametrize(
    ("code", "waited", "is_searched"), [(0, [5.0], False), (1, [5.0], True), (None, [5.0, None], True)]
)
async def test_closing_a_guard(ground: Ground, code: int | None, waited: list[float | None], is_searched: bool) -> None:
    """One that ends well has left nothing; one that was killed, or that never ends, may have."""
    before = descriptors()
    tree, _, line = ground.spawn()
    played = ground.started[0]
    played.code = code
    played.greet(groups="/groups")
    await ground.guard.ready()
    await ground.guard.close()
    assert (await tree.gone).was_killed
    assert (played.waited, played.was_killed) == (waited, code is None)
    assert bool(ground.searched) is is_searched
    assert not is_searched or ground.searched[0][2] == "/groups"
    for act in (ground.guard.ensure_started, ground.spawn):
        with pytest.raises(CannotStart):
            act()
    line.close()
    played.close()
    assert descriptors() == before


# The next step fails


def failing(real: Callable[..., Any], count: int) -> Callable[..., Any]:
    """The call of this number, counted from 0, fails as if there were no descriptors left."""
    left = [count]

    def maybe(*arguments: object, **named: object) -> object:
        left[0] -= 1
        if left[0] == -1:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(*arguments, **named)

    return maybe


STEPS = [
    *(("os.dup", number) for number in range(3)),
    ("socket.socketpair", 0),
    ("subprocess.Popen", 0),
    *(("os.pipe", number) for number in range(2)),
    ("os.open", 0),
]


class Watching:
    """A sandbox that counts the commands it watches."""

    def __init__(self) -> None:
        self.watched = 0

    def confine(self, launch: Launch) -> tuple[Launch, Bounds]:
        return launch, Bounds()

    def watch(self) -> Callable[[], str]:
        self.watched += 1

        def over() -> str:
            self.watched -= 1
            return ""

        return over


@pytest.mark.parametrize(("call", "count"), STEPS)
async def test_a_command_that_cannot_be_started(
    ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, count: int
) -> None:
    """Whichever step fails: descriptors and counts are as before, and the next command is started."""
    module, _, name = call.partition(".")
    if call != "subprocess.Popen":
        ground.guard.ensure_started()
    sandbox = Watching()
    processes = Processes(ground.guard, tmp_path, sandbox=sandbox)
    before = descriptors()
    owner = {"os": os, "socket": guards.socket, "subprocess": guards.subprocess}[module]  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing(getattr(owner, name), count))
        with pytest.raises(OSError, match="Too many open files"):
            processes.start(Launch(("x",), "/", {}))
    assert (descriptors(), sandbox.watched, ground.guard._trees) == (before, 0, set())
    running = processes.start(Launch(("x",), "/", {}))
    _, line = ground.started[-1].asked()
    line.tell(gone=False, left=[], is_lost=False)
    await running.wait()
    assert sandbox.watched == 0
    line.close()


@pytest.mark.parametrize("has_input", [True, False])
@pytest.mark.parametrize(("call", "count"), [step for step in STEPS if step[0] != "os.open"])
async def test_a_child_that_cannot_be_started(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, call: str, count: int, has_input: bool
) -> None:
    module, _, name = call.partition(".")
    if call != "subprocess.Popen":
        ground.guard.ensure_started()
    before = descriptors()
    owner = {"os": os, "socket": guards.socket, "subprocess": guards.subprocess}[module]  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing(getattr(owner, name), count))
        with pytest.raises(OSError, match="Too many open files"):
            await GuardedSpawn(ground.guard)(["x"], "/", {}, has_input=has_input)
    assert (descriptors(), ground.guard._trees) == (before, set())


@pytest.mark.parametrize(
    ("call", "count"), [("connect_read_pipe", 0), ("connect_read_pipe", 1), ("connect_write_pipe", 0)]
)
async def test_a_child_whose_pipes_cannot_be_connected_is_stopped(
    ground: Ground, monkeypatch: pytest.MonkeyPatch, call: str, count: int
) -> None:
    ground.guard.ensure_started()
    before = descriptors()
    loop, real, left = asyncio.get_running_loop(), getattr(asyncio.get_running_loop(), call), [count]

    async def connect(*arguments: object) -> object:
        left[0] -= 1
        if left[0] == -1:
            raise OSError(errno.EMFILE, "Too many open files")
        return await real(*arguments)

    monkeypatch.setattr(loop, call, connect)
    with pytest.raises(OSError, match="Too many open files"):
        await GuardedSpawn(ground.guard)(["x"], "/", {}, has_input=True)
    _, line = ground.started[0].asked()
    assert line.orders() == [{"stop": 0}]
    line.tell(gone=True, left=[], is_lost=False)
    line.close()
    await until(lambda: descriptors() == before)


# Jobs, as their supervisors tell of them


class Harness:
    def __init__(self, ground: Ground, folder: Path, limits: JobLimits) -> None:
        self.now, self.busy = 1_000, list[bool]()
        self.ground, self.folder = ground, folder
        self.jobs = Jobs(lambda: self.now, limits=limits, on_busy=self.busy.append)

    def start(self, run: str = "r1", session: str = "s1", command: str = "x") -> tuple[Job, Line]:
        running, line = self.ground.job(self.folder)
        info = JobInfo("", SessionId(session), RunId(run), command, "", "/", self.now)
        return self.jobs.add(info, running), line

    async def end(self, job: Job, line: Line, **more: object) -> None:
        line.tell(code=0)
        line.tell(**{"gone": False, "left": [], "is_lost": False, **more})
        await job.running.wait()
        line.close()


@pytest.fixture
def harness(ground: Ground, tmp_path: Path) -> Harness:
    return Harness(ground, tmp_path, JobLimits(max_jobs=2, kept_ms=100, grace=7.0, brief_grace=0.5))


async def test_a_job_is_kept_and_stopped_with_the_grace_of_its_end(harness: Harness) -> None:
    """A person's stop is patient, that of a run or a session is not; at the end there is a limit."""
    job, line = harness.start()
    assert line.orders() == [{"linger": None}]
    for act, grace in (
        (lambda: harness.jobs.kill(job.info.id), 7.0),
        (lambda: harness.jobs.end_run(RunId("r1")), 0.5),
        (lambda: harness.jobs.end_session(SessionId("s1")), 0.5),
        (lambda: harness.jobs.close(3.0), 3.0),
    ):
        waiting = start(act())
        await until(waiting.get_coro)
        await asyncio.sleep(0)
        assert line.orders() == [{"stop": grace}]
        waiting.cancel()
    assert (job.info.state, job.was_killed) == ("running", True)
    await harness.end(job, line)
    assert job.info.state == "killed"


async def test_room_for_jobs(harness: Harness) -> None:
    first = harness.start()
    second = harness.start()
    with pytest.raises(TooManyJobs, match="They are: 001, 002"):
        harness.start()
    await harness.end(*first)
    third = harness.start()
    assert [info.id for info in harness.jobs.list()] == ["001", "002", "003"]
    assert harness.busy == [True]
    for job in (second, third):
        await harness.end(*job)
    assert harness.busy == [True, False]
    # As many finished ones are kept as may run, the newest.
    await harness.end(*harness.start())
    assert [info.id for info in harness.jobs.list()] == ["003", "004"]
    harness.now += 99
    await harness.end(*harness.start())
    assert [info.id for info in harness.jobs.list()] == ["004", "005"]
    harness.now += 1
    await harness.end(*harness.start())
    assert [info.id for info in harness.jobs.list()] == ["005", "006"]
    with pytest.raises(UnknownJob, match="There is: 005, 006"):
        harness.jobs.get("001")


async def test_faults_of_runs_are_remembered(harness: Harness) -> None:
    """Whoever killed a supervisor: its run does not end as completed. Few are remembered, and not for ever."""
    job, line = harness.start("r1", command="kill   it\n" + "x" * 300)
    assert harness.jobs.fault_of(RunId("r1")) == ""
    line.tell(starting=True)
    line.tell(gone=True, left=[], is_lost=True)
    await job.running.wait()
    line.close()
    fault = harness.jobs.fault_of(RunId("r1"))
    assert fault.startswith("A process that supervises the command was killed")
    assert fault.endswith(" The command: kill it " + "x" * 192 + "…")
    assert harness.jobs.fault_of(RunId("r2")) == ""
    for run in ("r2", "r3", "r4"):
        harness.jobs.record_fault(RunId(run), "x", job.running)
    harness.jobs.remove(job)
    assert [bool(harness.jobs.fault_of(RunId(run))) for run in ("r1", "r2", "r3", "r4")] == [False, False, True, True]
    await harness.jobs.end_run(RunId("r4"))
    assert harness.jobs.fault_of(RunId("r4")) == ""


# Other descriptors


async def test_a_listing_that_is_cancelled_closes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "project"
    root.mkdir()
    runner = await ToolRunner(root).open()
    reached, go = threading.Event(), threading.Event()
    real = safe_open.open_directory

    def held(path: str) -> int:
        handle = real(path)
        reached.set()
        go.wait(30)
        return handle

    await runner.call_ok("ls")
    before = descriptors()
    monkeypatch.setattr(ls, "open_directory", held)
    await runner.start(("ls", {}))
    assert await asyncio.to_thread(reached.wait, 30)
    await runner.harness.cancel()
    await runner.harness.quiet()
    go.set()
    await until(lambda: descriptors() == before)


def test_a_directory_in_place_of_a_file_is_closed(tmp_path: Path) -> None:
    """An ignore file, a file of git, a match of a search."""
    for name in (".gitignore", "repository/.git/hooks", "found"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("HEAD", "config"):
        (tmp_path / "repository/.git" / name).write_text("")
    before = descriptors()
    assert not IgnoreRules(str(tmp_path)).is_ignored(str(tmp_path / "found"), is_folder=True)
    assert list(GitScanner(str(tmp_path)).scan().entries) == [str(tmp_path / "repository/.git")]
    assert confirmed_matches(os.path.realpath(tmp_path), [Match("found", 1, 1, "x")]) == []
    assert descriptors() == before


def test_a_directory_that_was_made_unreadable_is_closed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Searched for git directories although its mode says no; the mode is as it was, also if that fails."""
    folder = tmp_path / "closed"
    (folder / ".git").mkdir(parents=True)
    folder.chmod(0o711)
    real, before = os.open, descriptors()

    def refuse(path: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if path == "closed" and not flags & os.O_PATH:
            raise PermissionError(errno.EACCES, "denied")
        if is_broken and path.startswith("/proc/self/fd/"):
            raise OSError(errno.EIO, "broken")
        return real(path, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", refuse)
    for is_broken in (False, True):
        scan = GitScanner(str(tmp_path)).scan()
        assert (bool(scan.entries), scan.unread) == (not is_broken, (str(folder),) * is_broken)
        assert folder.stat().st_mode & 0o777 == 0o711
        assert descriptors() == before
