"""Programs with pipes: searches, hooks, MCP and language servers. `GuardedSpawn` starts them under the guard, `spawn`
without it; `run_child` reads the output of one and kills it when the reader is done.
"""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Protocol, TypeAlias

from holdfast.tasks import TaskOwner
from holdfast.workspace.files.path_strings import is_within
from holdfast.workspace.files.safe_open import open_directory, replaced_error
from holdfast.workspace.process.guard_client import CannotStart, Command, Guard, Tree, TreeEnd

__all__ = [
    "Child",
    "GuardedChild",
    "GuardedSpawn",
    "RunningChild",
    "Spawn",
    "find_program",
    "run_child",
    "spawn",
    "split_records",
]


_PIPE_CLOSE_DELAY = 0.5
"""Seconds until pipes are closed after the end of a tree; a process outside of it may hold them open."""
_CHUNK = 1 << 16
_MAX_RECORD = 1 << 20
_MAX_STDERR = 8_192


class _ReadPipeProtocol(asyncio.StreamReaderProtocol):
    def eof_received(self) -> bool:
        """Close the pipe at end of file."""
        super().eof_received()
        return False


class GuardedChild:
    """A program with its pipes. `stdin` is None if it has no input."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        self._transports: list[asyncio.BaseTransport] = []
        self.stdin: asyncio.StreamWriter | None = None
        self.stdout = asyncio.StreamReader()
        self.stderr = asyncio.StreamReader()
        tree.gone.add_done_callback(self._close_pipes)

    async def connect(self, stdout: int, stderr: int, stdin: int | None) -> None:
        """Take over the descriptors. On failure all of them are closed."""
        loop = asyncio.get_running_loop()
        pipes = [os.fdopen(descriptor, "rb", 0) for descriptor in (stdout, stderr)]
        writing_end = os.fdopen(stdin, "wb", 0) if stdin is not None else None
        try:
            for reader, pipe in zip((self.stdout, self.stderr), pipes, strict=True):
                transport, _ = await loop.connect_read_pipe(partial(_ReadPipeProtocol, reader), pipe)
                self._transports.append(transport)
            if writing_end is not None:
                flow = asyncio.StreamReaderProtocol(asyncio.StreamReader())
                writing, _ = await loop.connect_write_pipe(lambda: flow, writing_end)
                self.stdin = asyncio.StreamWriter(writing, flow, None, loop)
                self._transports.append(writing)
        except BaseException:
            # The transports close their own descriptors.
            for left in (*pipes[len(self._transports) :], writing_end):
                if left is not None:
                    left.close()
            raise

    def kill(self) -> None:
        """Kill the program and all processes that it started."""
        self._tree.stop(0)

    def close(self) -> None:
        """Kill the program and close its pipes at once, discarding unread output."""
        self.kill()
        for transport in self._transports:
            transport.close()

    async def stop(self, grace: float) -> TreeEnd:
        """Stop the program, kill it after the grace period, and wait until all its processes are gone."""
        self._tree.stop(grace)
        return await asyncio.shield(self._tree.gone)

    async def wait(self) -> int:
        """Wait until all processes are gone and return the exit code. Raises `CannotStart`."""
        end = await asyncio.shield(self._tree.gone)
        if end.error:
            raise CannotStart(end.error)
        return 137 if end.code is None else end.code

    def _close_pipes(self, _: asyncio.Future[TreeEnd]) -> None:
        if self.stdin is not None:
            self.stdin.close()
        for transport in self._transports:
            asyncio.get_running_loop().call_later(_PIPE_CLOSE_DELAY, transport.close)


class GuardedSpawn:
    """Starts programs with pipes: arguments, directory, environment."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard

    async def __call__(
        self,
        arguments: Sequence[str],
        directory: str,
        environment: Mapping[str, str],
        *,
        has_input: bool = False,
        is_real: bool = False,
        linger: float | None = 0.25,
    ) -> GuardedChild:
        ours: list[int] = []
        theirs: list[int] = []
        try:
            if has_input:
                reading, writing = os.pipe()
                theirs.append(reading)
                ours.append(writing)
            else:
                theirs.append(os.open(os.devnull, os.O_RDONLY))
            for _ in range(2):
                reading, writing = os.pipe()
                ours.append(reading)
                theirs.append(writing)
            command = Command(tuple(arguments), directory, environment, linger, is_real=is_real)
            tree = self._guard.spawn(command, *theirs)
        except BaseException:
            for descriptor in ours:
                os.close(descriptor)
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        child = GuardedChild(tree)
        *stdin, stdout, stderr = ours
        try:
            await child.connect(stdout, stderr, stdin[0] if stdin else None)
        except BaseException:
            child.close()
            raise
        return child


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
            handle = open_directory(directory)
        except OSError:
            raise replaced_error(directory) from None
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


class RunningChild:
    """A running child and the beginning of its stderr."""

    def __init__(self, child: Child, errors: asyncio.Task[bytes]) -> None:
        self.child = child
        self._errors = errors

    async def end(self) -> tuple[int, str]:
        """Wait for the end; return the exit code and the beginning of stderr."""
        code = await self.child.wait()
        return code, (await self._errors).decode("utf-8", "replace").strip()


@asynccontextmanager
async def run_child(
    start: Spawn, arguments: Sequence[str], directory: str, environment: Mapping[str, str]
) -> AsyncIterator[RunningChild]:
    """Run a child for the duration of the block. On any exit from the block it is killed and reaped."""
    child = await start(arguments, directory, environment)
    tasks = TaskOwner()
    errors = tasks.start(_read_beginning(child.stderr), name="errors of a child", done=_retrieve)
    try:
        yield RunningChild(child, errors)
    finally:
        child.kill()
        tasks.cancel_all()
        await child.wait()


def _retrieve(task: asyncio.Task[bytes]) -> None:
    if not task.cancelled():
        task.exception()


async def _read_beginning(stream: asyncio.StreamReader) -> bytes:
    """Return the first bytes of a stream. The rest is read and discarded, so that the child does not block."""
    kept = b""
    while piece := await stream.read(_CHUNK):
        kept += piece[: _MAX_STDERR - len(kept)]
    return kept


async def split_records(stream: asyncio.StreamReader, end: bytes) -> AsyncGenerator[bytes, None]:
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
        if len(left) > _MAX_RECORD:
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
