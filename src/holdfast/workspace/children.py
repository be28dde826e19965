"""Programs that are run for their output: found, started, read in pieces, and gone when nobody reads any more."""

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
    """A started program. `kill` ends it and all that it started."""

    @property
    def stdout(self) -> asyncio.StreamReader: ...

    @property
    def stderr(self) -> asyncio.StreamReader: ...

    def kill(self) -> None: ...

    async def wait(self) -> int:
        """Its exit code, when it has ended."""


Spawn: TypeAlias = Callable[[Sequence[str], str, Mapping[str, str]], Awaitable[Child]]
"""Starts a program: its arguments, its directory, its environment. Its stdin is empty. The directory is a real path
that was checked, and is refused if a link has taken its place.
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
    """A plain child in a process group of its own."""
    handle = -1
    if sys.platform == "linux":
        try:
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
    """A child at work, and what it complains about."""

    def __init__(self, child: Child, errors: asyncio.Task[bytes]) -> None:
        self.child = child
        self._errors = errors

    async def end(self) -> tuple[int, str]:
        """Its exit code and the beginning of its stderr, once it has ended by itself."""
        code = await self.child.wait()
        return code, (await self._errors).decode("utf-8", "replace").strip()


@asynccontextmanager
async def running(
    start: Spawn, arguments: Sequence[str], directory: str, environment: Mapping[str, str]
) -> AsyncIterator[Running]:
    """However the block is left, the child is gone afterwards."""
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
    """The first bytes; the rest is read, so that the child does not wait, and dropped."""
    kept = b""
    while piece := await stream.read(_CHUNK):
        kept += piece[: _MOST_ERRORS - len(kept)]
    return kept


async def splitted(stream: asyncio.StreamReader, end: bytes) -> AsyncGenerator[bytes, None]:
    """The records of a stream, each without its end. One that is too long is cut, its rest dropped."""
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
    """The program on the user's path; never one that lies in the workspace, where anybody may have put it."""
    found = shutil.which(name, path=environment.get("PATH") or os.defpath)
    if found is None or not os.path.isabs(found) or is_within(root, os.path.realpath(found)):
        return None
    return found
