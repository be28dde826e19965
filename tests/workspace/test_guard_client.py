"""The guard and its process trees: start, stop, and kills of either."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import uvloop

from holdfast.testing.gates import until
from holdfast.workspace.process.command_process import CommandLaunch, Processes
from holdfast.workspace.process.guard_client import Bounds, CannotStart, Command, Containment, Guard, Tree
from holdfast.workspace.process.piped_process import GuardedSpawn
from trials.hostile_commands import new_token, start_shape, survivors
from workspace.commands import guarded, line, run_line


@pytest.fixture(params=["namespace", "tree"])
async def guard(request: pytest.FixtureRequest) -> AsyncIterator[Guard]:
    containment: Containment = request.param
    guard = Guard(containment)
    yield guard
    await guard.close()


def spawn(guard: Guard, text: str, *, linger: float | None = 0.25, cwd: str = "/") -> Tree:
    null = os.open(os.devnull, os.O_RDWR)
    try:
        env = {"PATH": os.environ["PATH"]}
        return guard.spawn(Command(("/bin/bash", "-c", text), cwd, env, linger), null, null, null)
    finally:
        os.close(null)


@pytest.mark.parametrize(("text", "code"), [("true", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill $$", 143)])
async def test_exit_code_is_reported(guard: Guard, text: str, code: int) -> None:
    tree = spawn(guard, text)
    assert await tree.exited == code
    end = await tree.gone
    assert (end.code, end.was_killed, end.left, end.error) == (code, False, (), "")


async def test_failed_start_is_reported_with_reason(guard: Guard) -> None:
    missing = Command(("/nothing/here",), "/", {})
    null = os.open(os.devnull, os.O_RDWR)
    tree = guard.spawn(missing, null, null, null)
    os.close(null)
    assert "/nothing/here could not be started: No such file" in (await tree.gone).error
    assert "could not be started" in (await spawn(guard, "true", cwd="/nothing/here").gone).error


async def test_guard_paused_during_request_continues(guard: Guard, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command without a namespace can pause its guard at the worst moment: after it was resumed, and before it has
    read the request.
    """
    await guard.ready()
    wake, woken = guard.wake, 0

    def resume_too_early() -> None:
        nonlocal woken
        woken += 1
        wake()
        if woken == 1:
            os.kill(guard.process_id, signal.SIGSTOP)

    monkeypatch.setattr(guard, "wake", resume_too_early)
    async with asyncio.timeout(20):
        assert (await spawn(guard, "exit 5").gone).code == 5
    assert woken > 1


async def test_c53_remaining_processes_are_stopped(guard: Guard) -> None:
    """C-53."""
    token = new_token()
    tree = spawn(guard, f"setsid sleep {token} & sleep {token} & exit 3", linger=0.02)
    end = await tree.gone
    assert (end.code, end.was_killed) == (3, True)
    assert not survivors(token)


async def test_exiting_processes_are_awaited(guard: Guard) -> None:
    end = await spawn(guard, "cat < <(:) & exit 0", linger=30).gone
    assert (end.code, end.was_killed) == (0, False)


async def test_tree_may_outlive_its_command(guard: Guard) -> None:
    token = new_token()
    tree = spawn(guard, f"sleep {token} & exit 3", linger=30)
    tree.set_linger(None)
    assert await tree.exited == 3
    # During its exec of `sleep` it has no command line.
    await until(lambda: survivors(token))
    assert not tree.gone.done()
    tree.set_linger(0)
    assert (await tree.gone).was_killed
    assert not survivors(token)


async def test_second_stop_shortens_grace(guard: Guard, tmp_path: Path) -> None:
    watched = await start_shape(Processes(guard, tmp_path), "deaf to all")
    watched.running.stop(3_000)
    assert (await watched.stop(0)).was_killed
    watched.running.stop(0)


async def test_command_may_end_within_grace(tmp_path: Path) -> None:
    async with guarded(tmp_path) as processes:
        printed = asyncio.Event()
        text = "trap 'echo bye; exit 4' INT; echo ready; while :; do sleep 0.01; done"
        running = processes.start(line(text), on_output=lambda text: printed.set() if "ready" in text else None)
        await printed.wait()
        end = await running.stop_and_wait(1_000)
    assert (end.code, end.was_killed) == (4, False)
    assert running.stdout.excerpt() == "ready\nbye\n"


async def test_process_that_ignores_interrupt_is_terminated(tmp_path: Path) -> None:
    async with guarded(tmp_path) as processes:
        printed = asyncio.Event()
        text = "trap '' INT; trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.01; done"
        running = processes.start(line(text), on_output=lambda text: printed.set() if "ready" in text else None)
        await printed.wait()
        end = await running.stop_and_wait(3)
    assert (end.code, running.stdout.excerpt()) == (5, "ready\nbye\n")


async def test_many_commands_at_once(guard: Guard) -> None:
    trees = [spawn(guard, f"exit {number}") for number in range(40)]
    assert [await tree.exited for tree in trees] == list(range(40))


async def test_long_environment_is_passed(tmp_path: Path) -> None:
    async with guarded(tmp_path) as processes:
        launch = line('echo "${#LONG}"; echo "$ODD"')
        env = {**launch.env, "LONG": "x" * 100_000, "ODD": "a\udcff€", **{f"N{n}": "y" * 9_000 for n in range(100)}}
        runnings = [processes.start(type(launch)(launch.argv, "/", env)) for _ in range(4)]
        for running in runnings:
            await running.wait()
            assert running.stdout.excerpt() == "100000\na�€\n"


async def test_in_a_namespace_a_command_sees_only_itself(tmp_path: Path) -> None:
    async with guarded(tmp_path) as processes:
        if await processes.guard.ready() == "namespace":
            stdout, _, _ = await run_line(processes, "echo $$ $PPID; ls -d /proc/[0-9]* | wc -l")
            assert stdout.split()[:2] == ["2", "1"]
            assert int(stdout.split()[2]) < 10


async def test_command_without_namespace_sees_other_processes(tmp_path: Path) -> None:
    async with guarded(tmp_path, "tree") as processes:
        assert await processes.guard.ready() == "tree"
        assert (await run_line(processes, f"kill -0 {os.getpid()} && echo seen"))[0] == "seen\n"


# Killed supervisors


async def test_command_that_kills_its_supervisor_is_stopped(tmp_path: Path) -> None:
    """In a namespace the supervisor is out of its reach; elsewhere the remaining processes are reparented to the
    guard.
    """
    for containment in ("namespace", "tree"):
        token = new_token()
        async with guarded(tmp_path, containment) as processes:
            running = processes.start(line(f"setsid sleep {token} & sleep {token} & kill -9 $PPID; exit 3"))
            await running.wait()
            assert not survivors(token)
            assert (await run_line(processes, "echo again"))[0] == "again\n"


async def test_killed_guard_ends_its_trees_and_is_replaced(tmp_path: Path) -> None:
    for containment in ("namespace", "tree"):
        async with guarded(tmp_path, containment) as processes:
            shapes = [
                await start_shape(processes, shape) for shape in ("own session", "deaf to all", "cleaned environment")
            ]
            first = processes.guard.process_id
            os.kill(first, signal.SIGKILL)
            for watched in shapes:
                await watched.running.wait()
                assert not survivors(watched.token)
            assert (await run_line(processes, "echo again"))[0] == "again\n"
            assert processes.guard.process_id not in {0, first}


async def test_guard_and_supervisors_killed_together_leave_no_process(tmp_path: Path) -> None:
    """Only the tag in their environment identifies them."""
    async with guarded(tmp_path, "tree") as processes:
        token = new_token()
        running = processes.start(line(f"setsid sleep {token} & echo ready; wait"))
        await until(lambda: "ready" in running.stdout.output.buffered)
        guard = processes.guard.process_id
        supervisors = Path(f"/proc/{guard}/task/{guard}/children").read_text().split()  # noqa: ASYNC240
        assert supervisors
        for process in (guard, *map(int, supervisors)):
            os.kill(process, signal.SIGKILL)
        await running.wait()
        assert not survivors(token)


async def test_close_kills_running_commands(tmp_path: Path) -> None:
    guard = Guard()
    processes = Processes(guard, tmp_path)
    watched = await start_shape(processes, "deaf to all")
    process = guard.process_id
    await guard.close()
    assert not survivors(watched.token)
    assert (await watched.running.wait()).was_killed
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)
    with pytest.raises(CannotStart):
        processes.start(line("true"))


def test_it_works_on_the_loop_of_the_server(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with guarded(tmp_path) as processes:
            stdout, stderr, end = await run_line(processes, "seq 100000 | tail -n 1; echo e >&2; exit 3")
            assert (stdout, stderr, end.code) == ("100000\n", "e\n", 3)
            await (await start_shape(processes, "respawner")).stop(0.05)
            child = await GuardedSpawn(processes.guard)(["cat"], "/", {"PATH": os.environ["PATH"]}, has_input=True)
            assert child.stdin is not None
            child.stdin.write(b"x\n")
            assert await child.stdout.readline() == b"x\n"
            child.stdin.close()
            assert await child.wait() == 0

    uvloop.run(scenario())


async def test_nothing_is_left_open(tmp_path: Path) -> None:
    """R11: the number of descriptors is as before."""
    async with guarded(tmp_path) as processes:
        await run_line(processes, "true")
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(10):
            await run_line(processes, "echo x; echo y >&2")
        running = processes.start(line("sleep 1000"))
        await running.stop_and_wait(0)
        assert len(os.listdir("/proc/self/fd")) == before


async def test_failed_view_is_an_error(tmp_path: Path) -> None:
    class Broken:
        def confine(self, launch: CommandLaunch) -> tuple[CommandLaunch, Bounds]:
            return launch, Bounds(mounts=(("bind", "/nonexistent", "/nonexistent"),))

        def watch(self) -> Callable[[], str]:
            return str

    async with guarded(tmp_path, sandbox=Broken()) as processes:
        _, _, end = await run_line(processes, "true")
        assert "could not be confined" in end.error
        assert not end.is_lost
