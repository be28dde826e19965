"""Resources are released when the next step fails: descriptors, processes, trees, counts, directories.

A fake guard process is used where no command is needed: it reads requests and answers as supervisors do.
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
from holdfast.workspace.process import guard_client as guards
from holdfast.workspace.process.command_process import CommandLaunch, Processes
from holdfast.workspace.process.guard_client import Bounds, CannotStart, TreeEnd
from holdfast.workspace.process.jobs import Job, JobLimits, Jobs
from holdfast.workspace.process.piped_process import GuardedSpawn
from holdfast.workspace.sandbox.git_dir_search import GitScanner
from holdfast.workspace.search.search import Match, confirmed_matches
from tools.tool_runner import ToolRunner
from workspace.fake_guard import UNUSED_PID, GuardFixture, SupervisorConnection


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
async def fixture(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[GuardFixture]:
    fixture = GuardFixture(monkeypatch)
    yield fixture
    await fixture.guard.close()
    for played in fixture.started:
        played.close_all()


async def test_requests_to_guard(fixture: GuardFixture) -> None:
    _, plain, _ = fixture.spawn()
    mark = plain["env"].pop("HOLDFAST_RUN")
    assert plain == {"argv": ["x"], "cwd": "/", "is_real": False, "env": {"A": "1"}, "linger": 0.25, "number": 1}
    bounds = Bounds((("tmpfs", "/x", ""),), False, ("/y",), restricted=True)
    _, bound, _ = fixture.spawn(linger=None, bounds=bounds, is_real=True)
    assert bound.pop("env")["HOLDFAST_RUN"] == f"{mark.partition('.')[0]}.2"
    assert bound == {
        "argv": ["x"], "cwd": "/", "is_real": True, "linger": None, "number": 2, "mounts": [["tmpfs", "/x", ""]],
        "network": False, "landlock": ["/y"], "restricted": True,
    }  # fmt: skip


async def test_greeting_of_guard(fixture: GuardFixture) -> None:
    ready = start(fixture.guard.ready())
    await until(lambda: fixture.started)
    assert (fixture.guard.containment, fixture.guard.has_namespaces) == ("auto", False)
    fixture.started[0].greet("groups")
    assert await ready == "groups"
    assert (fixture.guard.containment, fixture.guard.has_namespaces, fixture.guard.process_id) == (
        "groups",
        True,
        UNUSED_PID,
    )
    assert await fixture.guard.ready() == "groups"
    assert len(fixture.started) == 1


@pytest.mark.parametrize("greets", [False, True])
async def test_nobody_waits_for_a_guard_that_has_died(fixture: GuardFixture, greets: bool) -> None:
    """Neither those who wait for its greeting nor those who ask later, who get another one."""
    waiting = [start(fixture.guard.ready()) for _ in range(2)]
    await until(lambda: fixture.started)
    if greets:
        fixture.started[0].greet("groups")
        await until(lambda: all(task.done() for task in waiting))
    fixture.started[0].close()
    await until(lambda: fixture.guard.process_id == 0 and all(task.done() for task in waiting))
    assert [task.cancelled() for task in waiting] == [not greets] * 2
    again = start(fixture.guard.ready())
    await until(lambda: len(fixture.started) == 2)
    fixture.started[1].greet("tree")
    assert await again == "tree"


PIECES = [1, 2, 7, 1_000]
"""Sizes of the pieces in which data arrives."""


async def arrive(line: socket.socket, text: bytes, size: int) -> None:
    """Send a text in pieces.

    Each piece is read before the next is sent: the loop polls its sockets in every iteration.
    """
    for at in range(0, len(text), size):
        line.sendall(text[at : at + size])
        await settle_down(3)


@pytest.mark.parametrize("size", PIECES)
async def test_guard_messages_may_be_fragmented(fixture: GuardFixture, size: int) -> None:
    ready = start(fixture.guard.ready())
    tree, _, line = fixture.spawn()
    played = fixture.started[0]
    hello = json.dumps({"hello": "groups", "namespaces": True, "groups": "/g"}).encode()
    await arrive(played.line, hello, size)
    assert not ready.done()
    # The end of one message and the beginning of the next.
    await arrive(played.line, b'\n{"swe', size)
    await until(ready.done)
    assert ready.result() == "groups"
    line.close()
    await until(lambda: tree._is_over)
    assert played.next_request()[0] == {"sweep": 2, "number": 1}
    await arrive(played.line, b'pt": 9}\n{"swept": 2}', size)
    assert not tree.gone.done()
    await arrive(played.line, b"\n", size)
    await until(tree.gone.done)
    assert not tree.gone.result().is_unproven
    assert (len(fixture.started), fixture.searched) == (1, [])


@pytest.mark.parametrize("size", PIECES)
async def test_supervisor_messages_may_be_fragmented(fixture: GuardFixture, size: int) -> None:
    tree, _, line = fixture.spawn()
    assert line.socket is not None
    message = b'{"starting": true}\n{"begun": true}\n{"code": 3}\n{"gone": true, "left": [7], "is_lost": false}'
    await arrive(line.socket, message, size)
    await until(tree.exited.done)
    assert tree.exited.result() == 3
    assert not tree.gone.done()
    line.socket.sendall(b"\n")
    await until(tree.gone.done)
    assert tree.gone.result() == TreeEnd(3, was_killed=True, left=(7,))


async def test_new_guard_starts_with_empty_buffer(fixture: GuardFixture) -> None:
    first = start(fixture.guard.ready())
    await until(lambda: fixture.started)
    await arrive(fixture.started[0].line, b'{"hel', 100)
    fixture.started[0].close()
    await until(lambda: fixture.guard.process_id == 0)
    with pytest.raises(asyncio.CancelledError):
        await first
    again = start(fixture.guard.ready())
    await until(lambda: len(fixture.started) == 2)
    fixture.started[1].greet()
    await until(again.done)
    assert again.result() == "tree"


ENDS: list[tuple[list[dict[str, object]], TreeEnd]] = [
    ([{"code": 3}, {"gone": False, "left": [], "is_lost": False}], TreeEnd(3)),
    ([{"code": 3}, {"gone": True, "left": [7, 9], "is_lost": False}], TreeEnd(3, was_killed=True, left=(7, 9))),
    ([{"gone": True, "left": [], "is_lost": True}], TreeEnd(was_killed=True, is_lost=True)),
    ([{"error": "no"}, {"code": 127}, {"gone": False, "left": [], "is_lost": False}], TreeEnd(127, error="no")),
]


@pytest.mark.parametrize(("message", "end"), ENDS)
async def test_ends_of_tree(fixture: GuardFixture, message: list[dict[str, object]], end: TreeEnd) -> None:
    fixture.guard.ensure_started()
    before = descriptors()
    tree, _, line = fixture.spawn()
    line.send(starting=True)
    line.send(begun=True)
    for what in message:
        line.send(**what)
    assert await tree.gone == end
    assert tree.exited.result() == end.code
    assert tree.is_lost is end.is_lost
    line.close()
    assert descriptors() == before


async def test_exit_code_precedes_end(fixture: GuardFixture) -> None:
    """A command that could not be started has no exit code."""
    tree, _, line = fixture.spawn()
    line.send(code=4)
    assert await tree.exited == 4
    assert not tree.gone.done()
    tree, _, line = fixture.spawn()
    line.send(error="no")
    line.send(code=127)
    line.send(gone=False, left=[], is_lost=False)
    assert (await tree.gone).error == "no"


async def test_orders_are_sent_until_end(fixture: GuardFixture) -> None:
    tree, _, line = fixture.spawn()
    tree.stop(2.5)
    tree.set_linger(None)
    tree.set_linger(0)
    assert line.received_orders() == [{"stop": 2.5}, {"linger": None}, {"linger": 0}]
    line.send(gone=True, left=[], is_lost=False)
    await tree.gone
    tree.stop(0)
    tree.set_linger(None)
    tree.kill_now()
    line.close()


@pytest.mark.parametrize("has_begun", [True, False])
async def test_supervisor_that_disconnects_without_message(fixture: GuardFixture, has_begun: bool) -> None:
    """The guard kills the remaining processes; only then does the tree end."""
    tree, request, line = fixture.spawn()
    if has_begun:
        line.send(starting=True)
    line.close()
    await until(lambda: fixture.started[0]._unread or tree._is_over)
    sweep, _ = fixture.started[0].next_request()
    assert sweep == {"sweep": 2, "number": request["number"]}
    assert not tree.gone.done()
    fixture.started[0].line.sendall(b'{"swept": 9}\n{"swept": 2}\n')
    end = await tree.gone
    assert (end.is_lost, end.is_unproven, tree.is_lost) == (has_begun, False, has_begun)
    assert fixture.searched == []
    assert fixture.guard.escapes == 0


@pytest.mark.parametrize("order", ["supervisor first", "guard first"])
async def test_supervisor_and_guard_end(fixture: GuardFixture, order: str) -> None:
    """Their processes are searched for; another guard is started for the next command."""
    before = descriptors()
    ready = start(fixture.guard.ready())
    tree, _, line = fixture.spawn()
    line.send(starting=True)
    fixture.left = (77,)
    if order == "supervisor first":
        line.close()
        await until(lambda: tree._is_over)
        fixture.started[0].next_request()
        fixture.started[0].close()
    else:
        fixture.started[0].close()
        await until(lambda: fixture.guard.process_id == 0)
        line.close()
    end = await tree.gone
    assert (end.was_killed, end.left, end.is_lost, end.is_unproven) == (True, (77,), True, True)
    assert fixture.guard.escapes == 1
    with pytest.raises(asyncio.CancelledError):
        await ready
    assert descriptors() == before
    again, request, other = fixture.spawn()
    assert (len(fixture.started), request["number"] > 1) == (2, True)
    other.send(gone=False, left=[], is_lost=False)
    assert not (await again.gone).is_lost
    other.close()


@pytest.mark.parametrize(
    ("code", "waited", "is_searched"), [(0, [5.0], False), (1, [5.0], True), (None, [5.0, None], True)]
)
async def test_closing_a_guard(
    fixture: GuardFixture, code: int | None, waited: list[float | None], is_searched: bool
) -> None:
    """A guard that exits normally has left nothing; one that was killed or never exits may have."""
    before = descriptors()
    tree, _, line = fixture.spawn()
    played = fixture.started[0]
    played.code = code
    played.greet(groups="/groups")
    await fixture.guard.ready()
    await fixture.guard.close()
    assert (await tree.gone).was_killed
    assert (played.waited, played.was_killed) == (waited, code is None)
    assert bool(fixture.searched) is is_searched
    assert not is_searched or fixture.searched[0][2] == "/groups"
    for act in (fixture.guard.ensure_started, fixture.spawn):
        with pytest.raises(CannotStart):
            act()
    line.close()
    played.close()
    assert descriptors() == before


# Failure of the next step


def failing(real: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Return the call, failing at this index (from 0) as if no descriptors were left."""
    left = [count]

    def fail_at_index(*arguments: object, **named: object) -> object:
        left[0] -= 1
        if left[0] == -1:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(*arguments, **named)

    return fail_at_index


STEPS = [
    *(("os.dup", number) for number in range(3)),
    ("socket.socketpair", 0),
    ("subprocess.Popen", 0),
    *(("os.pipe", number) for number in range(2)),
    ("os.open", 0),
]


class Watching:
    """A sandbox that counts the watched commands."""

    def __init__(self) -> None:
        self.watched = 0

    def confine(self, launch: CommandLaunch) -> tuple[CommandLaunch, Bounds]:
        return launch, Bounds()

    def watch(self) -> Callable[[], str]:
        self.watched += 1

        def over() -> str:
            self.watched -= 1
            return ""

        return over


@pytest.mark.parametrize(("call", "count"), STEPS)
async def test_failed_command_start_releases_resources(
    fixture: GuardFixture, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, count: int
) -> None:
    """After any failing step descriptors and counts are as before, and the next command starts."""
    module, _, name = call.partition(".")
    if call != "subprocess.Popen":
        fixture.guard.ensure_started()
    sandbox = Watching()
    processes = Processes(fixture.guard, tmp_path, sandbox=sandbox)
    before = descriptors()
    owner = {"os": os, "socket": guards.socket, "subprocess": guards.subprocess}[module]  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing(getattr(owner, name), count))
        with pytest.raises(OSError, match="Too many open files"):
            processes.start(CommandLaunch(("x",), "/", {}))
    assert (descriptors(), sandbox.watched, fixture.guard._trees) == (before, 0, set())
    running = processes.start(CommandLaunch(("x",), "/", {}))
    _, line = fixture.started[-1].next_request()
    line.send(gone=False, left=[], is_lost=False)
    await running.wait()
    assert sandbox.watched == 0
    line.close()


@pytest.mark.parametrize("has_input", [True, False])
@pytest.mark.parametrize(("call", "count"), [step for step in STEPS if step[0] != "os.open"])
async def test_failed_child_start_releases_resources(
    fixture: GuardFixture, monkeypatch: pytest.MonkeyPatch, call: str, count: int, has_input: bool
) -> None:
    module, _, name = call.partition(".")
    if call != "subprocess.Popen":
        fixture.guard.ensure_started()
    before = descriptors()
    owner = {"os": os, "socket": guards.socket, "subprocess": guards.subprocess}[module]  # type: ignore[attr-defined]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, failing(getattr(owner, name), count))
        with pytest.raises(OSError, match="Too many open files"):
            await GuardedSpawn(fixture.guard)(["x"], "/", {}, has_input=has_input)
    assert (descriptors(), fixture.guard._trees) == (before, set())


@pytest.mark.parametrize(
    ("call", "count"), [("connect_read_pipe", 0), ("connect_read_pipe", 1), ("connect_write_pipe", 0)]
)
async def test_a_child_whose_pipes_cannot_be_connected_is_stopped(
    fixture: GuardFixture, monkeypatch: pytest.MonkeyPatch, call: str, count: int
) -> None:
    fixture.guard.ensure_started()
    before = descriptors()
    loop, real, left = asyncio.get_running_loop(), getattr(asyncio.get_running_loop(), call), [count]

    async def connect(*arguments: object) -> object:
        left[0] -= 1
        if left[0] == -1:
            raise OSError(errno.EMFILE, "Too many open files")
        return await real(*arguments)

    monkeypatch.setattr(loop, call, connect)
    with pytest.raises(OSError, match="Too many open files"):
        await GuardedSpawn(fixture.guard)(["x"], "/", {}, has_input=True)
    _, line = fixture.started[0].next_request()
    assert line.received_orders() == [{"stop": 0}]
    line.send(gone=True, left=[], is_lost=False)
    line.close()
    await until(lambda: descriptors() == before)


# Jobs, as reported by their supervisors


class Harness:
    def __init__(self, fixture: GuardFixture, folder: Path, limits: JobLimits) -> None:
        self.now, self.busy = 1_000, list[bool]()
        self.fixture, self.folder = fixture, folder
        self.jobs = Jobs(lambda: self.now, limits=limits, on_busy=self.busy.append)

    def start(self, run: str = "r1", session: str = "s1", command: str = "x") -> tuple[Job, SupervisorConnection]:
        running, line = self.fixture.job(self.folder)
        info = JobInfo("", SessionId(session), RunId(run), command, "", "/", self.now)
        return self.jobs.add(info, running), line

    async def end(self, job: Job, line: SupervisorConnection, **more: object) -> None:
        line.send(code=0)
        line.send(**{"gone": False, "left": [], "is_lost": False, **more})
        await job.running.wait()
        line.close()


@pytest.fixture
def harness(fixture: GuardFixture, tmp_path: Path) -> Harness:
    return Harness(fixture, tmp_path, JobLimits(max_jobs=2, kept_ms=100, grace=7.0, brief_grace=0.5))


async def test_grace_of_job_depends_on_stop(harness: Harness) -> None:
    """A stop by a user has a long grace, that of a run or a session a short one; at shutdown there is a limit."""
    job, line = harness.start()
    assert line.received_orders() == [{"linger": None}]
    for act, grace in (
        (lambda: harness.jobs.kill(job.info.id), 7.0),
        (lambda: harness.jobs.end_run(RunId("r1")), 0.5),
        (lambda: harness.jobs.end_session(SessionId("s1")), 0.5),
        (lambda: harness.jobs.close(3.0), 3.0),
    ):
        waiting = start(act())
        await until(waiting.get_coro)
        await asyncio.sleep(0)
        assert line.received_orders() == [{"stop": grace}]
        waiting.cancel()
    assert (job.info.state, job.was_killed) == ("running", True)
    await harness.end(job, line)
    assert job.info.state == "killed"


async def test_job_limits(harness: Harness) -> None:
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
    # As many finished jobs are kept as may run, the newest.
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
    """A run that killed a supervisor does not end as completed. A bounded number is remembered for a bounded time."""
    job, line = harness.start("r1", command="kill   it\n" + "x" * 300)
    assert harness.jobs.fault_of(RunId("r1")) == ""
    line.send(starting=True)
    line.send(gone=True, left=[], is_lost=True)
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


async def test_cancelled_listing_closes_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    await runner.harness.wait_until_idle()
    go.set()
    await until(lambda: descriptors() == before)


def test_directory_in_place_of_file_is_closed(tmp_path: Path) -> None:
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
    """Searched for git directories although its mode forbids it; the mode is restored, also after a failure."""
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
