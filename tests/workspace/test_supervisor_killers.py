"""Commands that kill their supervisors do not survive a cancel or the server (R4) without a PID namespace."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.testing.gates import until
from holdfast.workspace.process import process_tag as guard_cgroup
from holdfast.workspace.process.command_process import Processes
from holdfast.workspace.process.guard_client import Containment, Guard
from holdfast.workspace.process.guard_system import is_running
from holdfast.workspace.process.process_tag import (
    kill_orphaned,
    kill_tagged,
    new_tag,
    orphaned_processes,
    set_tag,
    tag_of_tree,
)
from trials.hostile_commands import new_token, survivors
from trials.supervisor_killers import PLANS, SERVER_PLANS, Plan, cancel_plan, kill_server_of, try_killer
from workspace.commands import guarded, run_line

CANCELLED = [
    Plan("supervisor", "clean", "fork loop in new sessions", "now"),
    Plan("guard", "none", "sleep", "now"),
    Plan("chain", "clean daemon", "sleep", "now"),
    Plan("chain", "none", "sleep", "cancel"),
    Plan("chain in reverse", "no descriptors", "respawner", "now"),
    Plan("group", "clean", "fork loop", "now"),
    Plan("all", "clean daemon", "killer", "now"),
    Plan("chain and sentinel", "clean", "fork loop in new sessions", "now"),
]
WITHOUT_SERVER = [
    Plan("chain", "clean", "fork loop", "now"),
    Plan("all", "clean daemon", "sleep", "now"),
    SERVER_PLANS[0],
    Plan("chain and server", "clean daemon", "fork loop", "now"),
    # No supervisor is left to react, but the command ends with its supervisor.
    Plan("chain and sentinel", "none", "sleep", "now"),
]


@pytest.mark.parametrize("containment", ["tree", "groups"])
async def test_r4_no_killer_survives_cancel(tmp_path: Path, containment: Containment) -> None:
    """R4. A tree that lost all its supervisors is reported as unproven, even if every process was found."""
    for plan in CANCELLED:
        guard = Guard(containment)
        try:
            end = await cancel_plan(Processes(guard, tmp_path), plan, tmp_path)
        finally:
            await guard.close()
        if plan.victims in ("supervisor", "guard", "group"):
            # A group is killed atomically. One after the other, the second may have time to act.
            assert (end.is_lost, end.is_unproven) == (True, plan.victims == "group"), plan
        assert not end.left


@pytest.mark.parametrize("plan", WITHOUT_SERVER, ids=" ".join)
def test_r4_no_killer_survives_server(tmp_path: Path, plan: Plan) -> None:
    """R4: within 250 ms."""
    kill_server_of([plan], tmp_path, ready=1)


def sentinels(guard: int) -> set[int]:
    """Return the sentinels of a guard, each of which has a pidfd of it. Guards of other tests may have left theirs."""
    found = set()
    for line in survivors(f"supervisor of process {os.getpid()}"):
        process = int(line.partition(":")[0])
        with contextlib.suppress(OSError):
            descriptors = [file.read_text() for file in Path(f"/proc/{process}/fdinfo").iterdir()]
            if any(f"Pid:\t{guard}\n" in descriptor for descriptor in descriptors):
                found.add(process)
    return found


async def test_a_sentinel_that_is_killed_is_replaced(tmp_path: Path) -> None:
    """It is in a session of its own, and ends with its guard."""
    async with guarded(tmp_path, "tree") as processes:
        await run_line(processes, "true")
        guard = processes.guard.process_id
        await until(lambda: sentinels(guard))
        (first,) = sentinels(guard)
        os.kill(first, signal.SIGKILL)
        await until(lambda: sentinels(guard) - {first})
        (second,) = sentinels(guard) - {first}
        assert os.getsid(second) != os.getsid(guard)
    await until(lambda: not is_running(second))


async def test_with_control_groups_each_command_has_one(tmp_path: Path) -> None:
    """Where they may be created. They are removed with their guard."""
    async with guarded(tmp_path, "groups") as processes:
        containment = await processes.guard.ready()
        own = Path("/proc/self/cgroup").read_text("utf-8")  # noqa: ASYNC240
        stdout = (await run_line(processes, "cat /proc/self/cgroup"))[0]
        assert (containment == "groups") == (stdout != own)
    group = next((line[3:] for line in stdout.splitlines() if line.startswith("0::")), "")
    if containment == "groups":
        assert "/holdfast-" in group
        assert group.split("/")[-2] not in os.listdir(guard_cgroup._own_cgroup())


def test_a_directory_that_is_no_control_group_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_cgroup, "_own_cgroup", lambda: str(tmp_path))
    assert guard_cgroup.create_cgroups(new_tag()) == ""
    assert not list(tmp_path.iterdir())
    monkeypatch.setattr(guard_cgroup, "_own_cgroup", lambda: str(tmp_path / "missing"))
    assert guard_cgroup.create_cgroups(new_tag()) == ""


def tagged_process(tag: int, token: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["sleep", token], preexec_fn=lambda: set_tag(tag), start_new_session=True)  # noqa: PLW1509


def test_no_two_guards_of_a_server_share_a_tag() -> None:
    """A tag has 8 bits for the guard, so random numbers would soon be equal."""
    assert len({new_tag() for _ in range(256)}) == 256


def test_tag_identifies_exactly_its_processes() -> None:
    tag, other = tag_of_tree(new_tag(), 1), tag_of_tree(new_tag(), 1)
    with tagged_process(tag, new_token()) as mine, tagged_process(other, new_token()) as unknown:
        try:
            assert kill_tagged(tag) == (1, ())
            assert mine.wait() == -signal.SIGKILL
            assert unknown.poll() is None
            assert not {mine.pid, unknown.pid} & orphaned_processes().keys()
        finally:
            unknown.kill()


def test_processes_of_dead_server_are_found_and_killed() -> None:
    """By doctor, and by the next guard."""
    token = new_token()
    code = (
        "import subprocess, sys; from holdfast.workspace.process.process_tag import new_tag, set_tag; tag = new_tag()\n"
        "subprocess.Popen(['sleep', sys.argv[1]], preexec_fn=lambda: set_tag(tag + 1), start_new_session=True)"
    )
    subprocess.run([sys.executable, "-c", code, token], check=True)
    try:
        assert [line for line in orphaned_processes().values() if token in line]
        kill_orphaned()
        assert not survivors(token)
    finally:
        for line in survivors(token):
            os.kill(int(line.partition(":")[0]), signal.SIGKILL)


INSPECT_SUPERVISORS = """
import asyncio, os, sys
from pathlib import Path
from holdfast.workspace.process.guard_client import Guard
from holdfast.workspace.sandbox.privileges import drop_capabilities
from holdfast.workspace.process.command_process import CommandLaunch, Processes

if os.geteuid() == 0 and sys.argv[2:] != ["again"]:
    # Root sees everything by its capabilities.
    drop_capabilities()
    os.execv(sys.executable, [*sys.orig_argv, "again"])

async def main():
    guard = Guard("tree")
    line = "read -r _ _ _ above _ < /proc/$PPID/stat; readlink /proc/$PPID/exe /proc/$above/exe /proc/$$/exe | wc -l"
    launch = CommandLaunch(("/bin/bash", "-c", line), "/", dict(os.environ))
    running, _ = await Processes(guard, Path(sys.argv[1])).run(launch)
    print(running.stdout.excerpt())
    await guard.close()

asyncio.run(main())
"""


def test_command_cannot_inspect_its_supervisors(tmp_path: Path) -> None:
    """Otherwise it could trace them, or take over their connection to the server and report its own end."""
    done = subprocess.run(
        [sys.executable, "-c", INSPECT_SUPERVISORS, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1"]


def test_trial_of_long_run() -> None:
    assert len(PLANS) == 7 * 6 * 5 * 2
    try_killer(3)
