"""Child programs run for their output: lookup, start, streamed reading, and termination when the reader is done."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Protocol, TypeAlias

from holdfast.tasks import TaskOwner
from holdfast.workspace.files import descend, replaced
from holdfast.workspace.paths import is_within

__all__ = ["Child", "Running", "Spawn", "find_program", "running", "spawn", "splitted"]

_CHUNK = 1 << 16
_LONGEST_RECORD = 1 << 20
_MOST_ERRORS = 8_192


class Child(Protocol):
    """A started program. `kill` ends it and all processes that it started."""

    @property
    def stdout(self) -> asyncio.StreamReader:
        """Output stream."""
        ...

    @property
    def stderr(self) -> asyncio.StreamReader:
        """Error stream."""
        ...

    def kill(self) -> None:
        """End the program and all processes that it started."""
        ...

    async def wait(self) -> int:
        """Wait for the end and return the exit code."""


Spawn: TypeAlias = Callable[[Sequence[str], str, Mapping[str, str]], Awaitable[Child]]
"""Starts a program with arguments, directory and environment; stdin is empty. The directory is a real, checked path,
and is refused if a link has replaced it.
"""


class _Process:
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self.stdout = process.stdout
        self.stderr = process.stderr

    def kill(self) -> None:
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)

    async def wait(self) -> int:
        return await self._process.wait()


async def spawn(arguments: Sequence[str], directory: str, environment: Mapping[str, str]) -> Child:
    """Start a child in its own process group, not supervised by the guard."""
    handle = -1
    if sys.platform == "linux":
        try:
            # Open the directory without following links: a path could be replaced between check and use.
            handle = descend(directory)
        except OSError:
            raise replaced(directory) from None
    try:
        process = await asyncio.create_subprocess_exec(
            *arguments,
            cwd=f"/proc/self/fd/{handle}" if handle >= 0 else directory,
            env=dict(environment),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    finally:
        if handle >= 0:
            os.close(handle)
    return _Process(process)


class Running:
    """A running child and the beginning of its stderr."""

    def __init__(self, child: Child, errors: asyncio.Task[bytes]) -> None:
        self.child = child
        self._errors = errors

    async def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and the beginning of stderr."""
        code = await self.child.wait()
        return code, (await self._errors).decode("utf-8", "replace").strip()


@asynccontextmanager
async def running(
    start: Spawn, arguments: Sequence[str], directory: str, environment: Mapping[str, str]
) -> AsyncIterator[Running]:
    """Run a child for the duration of the block. On any exit from the block it is killed and reaped."""
    child = await start(arguments, directory, environment)
    tasks = TaskOwner()
    errors = tasks.start(_beginning(child.stderr), name="errors of a child", done=_retrieve)
    try:
        yield Running(child, errors)
    finally:
        child.kill()
        tasks.cancel_all()
        await child.wait()


def _retrieve(task: asyncio.Task[bytes]) -> None:
    if not task.cancelled():
        task.exception()


async def _beginning(stream: asyncio.StreamReader) -> bytes:
    """Return the first bytes of a stream. The rest is read and discarded, so that the child does not block."""
    kept = b""
    while piece := await stream.read(_CHUNK):
        kept += piece[: _MOST_ERRORS - len(kept)]
    return kept


async def splitted(stream: asyncio.StreamReader, end: bytes) -> AsyncGenerator[bytes, None]:
    """Yield the records of a stream without their terminator. A record that is too long is cut and its
    rest discarded.
    """
    left = b""
    is_dropping = False
    while piece := await stream.read(_CHUNK):
        *records, left = (left + piece).split(end)
        for record in records:
            if not is_dropping:
                yield record
            is_dropping = False
        if len(left) > _LONGEST_RECORD:
            if not is_dropping:
                yield left
            is_dropping, left = True, b""
    if left and not is_dropping:
        yield left


def find_program(name: str, environment: Mapping[str, str], root: str) -> str | None:
    """Find a program on the user's PATH; never one inside the workspace, because its content is untrusted."""
    found = shutil.which(name, path=environment.get("PATH") or os.defpath)
    if found is None or not os.path.isabs(found) or is_within(root, os.path.realpath(found)):
        return None
    return found
