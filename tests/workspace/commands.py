"""Helpers for tests of commands."""

import os
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec

from holdfast.workspace.process.command_process import CommandLaunch, CommandSandbox, Processes
from holdfast.workspace.process.guard_client import Containment, Guard, TreeEnd

__all__ = ["guarded", "line", "run_line"]


def line(text: str, cwd: Path | str = "/", *, linger: float | None = 0.25) -> CommandLaunch:
    """Return a bash command line with a minimal environment."""
    return CommandLaunch(("/bin/bash", "-c", text), str(cwd), {"PATH": os.environ["PATH"]}, linger)


async def run_line(
    processes: Processes, text: str, cwd: Path | str = "/", env: Mapping[str, str] | None = None
) -> tuple[str, str, TreeEnd]:
    """Run a line. Returns its stdout and stderr, and its end."""
    launch = line(text, cwd)
    running, end = await processes.run(msgspec.structs.replace(launch, env={**launch.env, **(env or {})}))
    return running.stdout.excerpt(), running.stderr.excerpt(), end


@asynccontextmanager
async def guarded(
    spills: Path, containment: Containment = "auto", *, sandbox: CommandSandbox | None = None, grace: float = 2.0
) -> AsyncIterator[Processes]:
    guard = Guard(containment)
    try:
        yield Processes(guard, spills, sandbox=sandbox, grace=grace)
    finally:
        await guard.close()
