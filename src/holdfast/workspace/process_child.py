"""Programs with pipes, supervised by the guard: searches, hooks, MCP and language servers."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from functools import partial

from holdfast.workspace.guard import CannotStart, Command, Guard, Tree, TreeEnd

__all__ = ["GuardedChild", "GuardedSpawn"]

_AFTER_ALL = 0.5
"""Seconds until pipes are closed after the end of a tree; a process outside of it may hold them open."""


class _Reading(asyncio.StreamReaderProtocol):
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
        tree.gone.add_done_callback(self._gone)

    async def connect(self, stdout: int, stderr: int, stdin: int | None) -> None:
        """Take over the descriptors. On failure all of them are closed."""
        loop = asyncio.get_running_loop()
        pipes = [os.fdopen(descriptor, "rb", 0) for descriptor in (stdout, stderr)]
        writing_end = os.fdopen(stdin, "wb", 0) if stdin is not None else None
        try:
            for reader, pipe in zip((self.stdout, self.stderr), pipes, strict=True):
                transport, _ = await loop.connect_read_pipe(partial(_Reading, reader), pipe)
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

    def _gone(self, _: asyncio.Future[TreeEnd]) -> None:
        if self.stdin is not None:
            self.stdin.close()
        for transport in self._transports:
            asyncio.get_running_loop().call_later(_AFTER_ALL, transport.close)


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
