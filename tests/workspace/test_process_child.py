"""Child processes with pipes, under the guard."""

import os
from pathlib import Path

import pytest

from holdfast.workspace.process.guard_client import CannotStart
from holdfast.workspace.process.piped_process import GuardedSpawn
from trials.hostile_commands import new_token, survivors
from workspace.commands import guarded

ENV = {"PATH": os.environ["PATH"]}


async def test_output_and_exit_code(tmp_path: Path) -> None:
    async with guarded(tmp_path) as processes:
        child = await GuardedSpawn(processes.guard)(["bash", "-c", "pwd; echo e >&2; exit 4"], str(tmp_path), ENV)
        assert await child.stdout.read() == f"{tmp_path}\n".encode()
        assert await child.stderr.read() == b"e\n"
        assert await child.wait() == 4


async def test_input_and_output_alternate(tmp_path: Path) -> None:
    async with guarded(tmp_path) as processes:
        child = await GuardedSpawn(processes.guard)(["cat"], "/", ENV, has_input=True)
        assert child.stdin is not None
        for text in (b"one\n", b"two\n"):
            child.stdin.write(text)
            await child.stdin.drain()
            assert await child.stdout.readline() == text
        child.stdin.close()
        assert await child.stdout.read() == b""
        assert await child.wait() == 0


async def test_large_output_waits_for_its_reader(tmp_path: Path) -> None:
    async with guarded(tmp_path) as processes:
        child = await GuardedSpawn(processes.guard)(["head", "-c", "3000000", "/dev/zero"], "/", ENV)
        assert await child.wait() == 0 if await child.stdout.readexactly(3_000_000) else False


async def test_kill_includes_descendants(tmp_path: Path) -> None:
    token = new_token()
    async with guarded(tmp_path) as processes:
        line = f"setsid sleep {token} & echo up; trap '' TERM INT; sleep {token}; sleep {token}"
        child = await GuardedSpawn(processes.guard)(["bash", "-c", line], "/", ENV)
        assert await child.stdout.readline() == b"up\n"
        child.kill()
        assert await child.wait() == 137
        assert not survivors(token)
        polite = await GuardedSpawn(processes.guard)(["bash", "-c", "echo up; exec sleep 1000"], "/", ENV)
        assert await polite.stdout.readline() == b"up\n"
        assert (await polite.stop(1_000)).code == 130


async def test_failed_start_raises(tmp_path: Path) -> None:
    async with guarded(tmp_path) as processes:
        child = await GuardedSpawn(processes.guard)(["/nothing/here"], "/", ENV)
        with pytest.raises(CannotStart, match="No such file"):
            await child.wait()
