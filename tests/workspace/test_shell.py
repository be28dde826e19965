"""Shell commands typed by a user."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.domain.errors import ToolError
from holdfast.domain.processes import ShellResult
from holdfast.testing.gates import start, until
from holdfast.workspace.process.guard_client import CannotStart
from holdfast.workspace.process.shell_launch import Shell
from trials.hostile_commands import new_token, survivors
from workspace.commands import guarded


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[Shell]:
    async with guarded(tmp_path / "spills", grace=0.1) as processes:
        yield Shell(processes)


async def test_output_and_exit_code(shell: Shell, tmp_path: Path) -> None:
    assert await shell.call("pwd; echo e >&2; exit 3", str(tmp_path), {}) == ShellResult(f"{tmp_path}\ne\n", 3)


async def test_missing_directory_is_reported(shell: Shell, tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="is gone: it was moved or removed"):
        await shell.call("pwd", str(tmp_path / "gone"), {})


async def test_command_runs_in_client_directory(shell: Shell, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/mine").write_text("#!/bin/sh\necho $COLUMNS $WHO\n")
    (tmp_path / "bin/mine").chmod(0o755)
    client = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "WHO": "me"}
    assert (await shell.call("mine", str(tmp_path), client, columns=77)).output == "77 me\n"


@pytest.mark.parametrize("line", ["-x", "--version", "-c 'echo no'"])
async def test_a_line_is_never_taken_for_an_option(shell: Shell, tmp_path: Path, line: str) -> None:
    assert (await shell.call(line, str(tmp_path), {})).exit_code == 127


async def test_shell_is_always_bash(shell: Shell, tmp_path: Path) -> None:
    for liked in ("/bin/zsh", "/nothing/bash", "", "/bin/bash"):
        result = await shell.call("[[ a == a ]] && echo ${BASH_VERSION:+bash}", str(tmp_path), {"SHELL": liked})
        assert result == ShellResult("bash\n", 0)


async def test_it_ends_with_its_caller(shell: Shell, tmp_path: Path) -> None:
    token, flag = new_token(), tmp_path / "flag"
    call = start(shell.call(f"setsid sleep {token} & touch {flag}; sleep {token}", str(tmp_path), {}))
    await until(flag.exists)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not survivors(token)


async def test_a_failed_start_is_reported(shell: Shell, tmp_path: Path) -> None:
    with pytest.raises(CannotStart, match="NUL"):
        await shell.call("echo \0", str(tmp_path), {})
    with pytest.raises(CannotStart, match="Argument list too long"):
        await shell.call("true " + "x" * 3_000_000, str(tmp_path), {})
