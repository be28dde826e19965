"""Shell commands: converts a line to a launch, and runs the lines a user types with `!`."""

import asyncio
import os
import shutil
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import msgspec

from holdfast.domain.jobs import ShellResult
from holdfast.workspace.environment import command_environment
from holdfast.workspace.files import require
from holdfast.workspace.guard import CannotStart
from holdfast.workspace.process import Launch, Processes

__all__ = ["Shell", "find_bash", "no_secrets"]

Secrets = Callable[[], tuple[Collection[str], Collection[str]]]


def no_secrets() -> tuple[Collection[str], Collection[str]]:
    """Return no names and no values."""
    return (), ()


class Shell:
    """The user's bash, started anew for every line: it keeps no state and reads no start-up file.

    `secrets` returns the current names and values of variables to withhold from commands.
    """

    def __init__(self, processes: Processes, secrets: Secrets = no_secrets) -> None:
        self.processes = processes
        self._secrets = secrets

    def launch(
        self, line: str, cwd: str, client: Mapping[str, str], *, linger: float | None = 0.25, columns: int = 0
    ) -> Launch:
        """Return the launch of a line in a directory, given as a real path. Raises `CannotStart` if bash is missing."""
        env = self.environment(cwd, client)
        if columns > 0:
            env["COLUMNS"] = str(columns)
        return Launch((find_bash(client), "-c", "--", line), cwd, env, linger, is_real=True)

    def environment(self, cwd: str, client: Mapping[str, str]) -> dict[str, str]:
        """Return the environment of a line."""
        names, values = self._secrets()
        return command_environment(os.environ, client, cwd=cwd, withheld=names, secrets=values)

    async def call(
        self, line: str, cwd: str, client: Mapping[str, str], *, columns: int = 0, owner: str = ""
    ) -> ShellResult:
        """Run a line typed by a user. It is stopped if the caller is cancelled."""
        if "\0" in line:
            raise CannotStart("A command cannot contain a NUL character.")
        require(cwd)
        cwd = await asyncio.to_thread(os.path.realpath, cwd)
        launch = msgspec.structs.replace(self.launch(line, cwd, client, columns=columns), owner=owner)
        running, end = await self.processes.run(launch)
        if end.error:
            raise CannotStart(end.error)
        output = "".join(filter(None, (running.stdout.shown(), running.stderr.shown(), running.remark)))
        return ShellResult(output, 137 if end.code is None else end.code)


def find_bash(client: Mapping[str, str]) -> str:
    """Return the user's bash. Raises `CannotStart` if it is missing."""
    named = client.get("SHELL") or os.environ.get("SHELL", "")
    if Path(named).name == "bash" and os.access(named, os.X_OK):
        return named
    found = "/bin/bash" if os.access("/bin/bash", os.X_OK) else shutil.which("bash")
    if found is None:
        raise CannotStart("There is no bash on this machine: install it, or put it on the PATH.")
    return found
