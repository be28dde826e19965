"""Deadlines of a lease: the guard freezes, resumes and kills real process trees."""

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from holdfast.testing.gates import until
from holdfast.workspace.process import guard_system as system
from holdfast.workspace.process.command_process import Processes, RunningCommand
from holdfast.workspace.process.guard_client import Containment
from trials.hostile_commands import new_token, survivors
from workspace.commands import guarded, line

PAST = 1.0
"""A time of the boot-time clock soon after the start of the machine."""


def future(seconds: float = 3_600) -> float:
    return system.boot_time() + seconds


@pytest.fixture(params=["namespace", "tree"])
async def commands(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Processes]:
    containment: Containment = request.param
    async with guarded(tmp_path, containment) as processes:
        yield processes


def sleeper(commands: Processes, token: str, *, before: str = "") -> RunningCommand:
    """Start a command with a child, and a child that has left its session."""
    return commands.start(line(f"{before} setsid sleep {token} & sleep {token} & wait"))


def found_processes(token: str) -> list[int]:
    return [int(text.partition(":")[0]) for text in survivors(token)]


def are_stopped(token: str, *, count: int = 2) -> bool:
    found = found_processes(token)
    return len(found) >= count and all(system.is_stopped(process) for process in found)


async def test_a_passed_deadline_freezes_the_tree_and_a_later_one_resumes_it(commands: Processes) -> None:
    token = new_token()
    commands.guard.set_deadline(future())
    running = sleeper(commands, token)
    await until(lambda: len(survivors(token)) >= 2)
    assert not are_stopped(token)
    commands.guard.set_deadline(PAST)
    await until(lambda: are_stopped(token))
    commands.guard.set_deadline(future())
    await until(lambda: not any(system.is_stopped(process) for process in found_processes(token)))
    await running.stop_and_wait(0)
    assert not survivors(token)


async def test_supervisors_freeze_by_themselves_when_the_deadline_arrives(commands: Processes) -> None:
    """No message is sent at the deadline: the server may hang."""
    token = new_token()
    running = sleeper(commands, token)
    await until(lambda: len(survivors(token)) >= 2)
    commands.guard.set_deadline(future(0.2))
    await until(lambda: are_stopped(token))
    await running.stop_and_wait(0)
    assert not survivors(token)


async def test_a_frozen_tree_is_killed_and_does_not_continue_before(commands: Processes, tmp_path: Path) -> None:
    """A stop with grace sends SIGTERM, for which stopped processes are usually resumed."""
    token, mark = new_token(), tmp_path / "continued"
    text = f"trap 'touch {mark}' INT TERM; (trap 'touch {mark}' INT TERM; while :; do sleep {token}; done) & wait"
    running = commands.start(line(text))
    await until(lambda: survivors(token))
    commands.guard.set_deadline(PAST)
    await until(lambda: are_stopped(token, count=1))
    assert (await running.stop_and_wait(0.3)).was_killed
    assert not mark.exists()
    assert not survivors(token)


async def test_a_command_waits_for_a_deadline_in_the_future(commands: Processes, tmp_path: Path) -> None:
    mark = tmp_path / "started"
    commands.guard.set_deadline(PAST)
    first, second = (commands.start(line(f"touch {mark}")) for _ in range(2))
    end = await second.stop_and_wait(5)
    assert "stopped before it was started" in end.error
    assert not mark.exists()
    commands.guard.set_deadline(future())
    assert (await first.wait()).code == 0
    assert mark.exists()


async def test_what_a_command_has_stopped_itself_stays_stopped(commands: Processes) -> None:
    own, other = new_token(), new_token()
    started = 'until grep -q "$OWN" /proc/$!/cmdline; do sleep 0.01; done'
    launch = line(f"sleep $OWN & {started}; kill -STOP $!; sleep $OTHER & wait")
    running = commands.start(msgspec.structs.replace(launch, env={**launch.env, "OWN": own, "OTHER": other}))
    await until(lambda: are_stopped(own, count=1) and survivors(other))
    commands.guard.set_deadline(PAST)
    await until(lambda: are_stopped(other, count=1))
    commands.guard.set_deadline(future())
    await until(lambda: not are_stopped(other, count=1))
    assert are_stopped(own, count=1)
    await running.stop_and_wait(0)


async def test_a_resumed_process_is_frozen_again(commands: Processes) -> None:
    token = new_token()
    running = sleeper(commands, token)
    await until(lambda: len(survivors(token)) >= 2)
    commands.guard.set_deadline(PAST)
    await until(lambda: are_stopped(token))
    for process in found_processes(token):
        os.kill(process, signal.SIGCONT)
    await until(lambda: are_stopped(token))
    await running.stop_and_wait(0)


async def test_without_a_deadline_commands_run_as_ever(commands: Processes) -> None:
    commands.guard.set_deadline(PAST)
    commands.guard.set_deadline(None)
    running, end = await commands.run(line("echo done"))
    assert (end.code, running.stdout.excerpt()) == (0, "done\n")
