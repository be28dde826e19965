"""A running command: started through the guard, its output read continuously, ended when all its processes are."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.workspace.process.guard import Bounds, Command, Guard, Tree, TreeEnd
from holdfast.workspace.process.output import SHOWN, Output, OutputFile, OutputFiles

__all__ = ["Confine", "Launch", "Processes", "Running", "Say"]

# Receives live output.
Say = Callable[[str], None]

_CHUNK = 65_536
_LAST_CHUNKS = 64
_LIVE_SIZE = 8_192
_LIVE_SECONDS = 0.05
_LIVE_MOST = 1_048_576
_LIVE_OVER = "\n[more is not shown while it runs]\n"


class Launch(msgspec.Struct, frozen=True):
    """Command line, directory and environment. `linger`, `is_real`: see `Command`. `owner` is the session of the
    command.
    """

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    linger: float | None = 0.25
    is_real: bool = False
    owner: str = ""


class Confine(Protocol):
    """A sandbox: restricts a launch, and checks the workspace after its end."""

    def confine(self, launch: Launch) -> tuple[Launch, Bounds]:
        """Return the restricted launch and the bounds for the guard."""
        ...

    def watch(self) -> Callable[[], str]:
        """Start to watch for changes by the command; the returned function checks them at its end."""
        ...


class _Live:
    """Publishes live output in batches: at most every `_LIVE_SECONDS` or `_LIVE_SIZE`, up to `_LIVE_MOST` in total."""

    def __init__(self, say: Say) -> None:
        self._say: Say | None = say
        self._waiting: list[str] = []
        self._size = 0
        self._said = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._next = 0.0

    def add(self, text: str) -> None:
        if self._say is None or not text:
            return
        self._waiting.append(text)
        self._size += len(text)
        if self._size >= _LIVE_SIZE or self._loop.time() >= self._next:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_at(self._next, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._next = self._loop.time() + _LIVE_SECONDS
        text = "".join(self._waiting)
        self._waiting.clear()
        self._size = 0
        if self._say is None or not text:
            return
        say = self._say
        left = _LIVE_MOST - self._said
        self._said += len(text)
        if len(text) > left:
            text = text[:left] + _LIVE_OVER
            self._say = None
        say(text)

    def end(self) -> None:
        self.flush()
        self._say = None


class _Channel:
    """One output stream of a command, read as soon as data are available, so that the command does not block."""

    def __init__(self, descriptor: int, spill: OutputFile, live: _Live) -> None:
        self.output = Output()
        self.spill = spill
        self._descriptor = descriptor
        self._live = live
        os.set_blocking(descriptor, False)
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def shown(self) -> str:
        """Return the text for a model, with the path of the file that contains the omitted part."""
        text = self.output.shown()
        if self.output.size > SHOWN and self.spill.path is not None:
            text += f"\n[{self.spill.describe()} is in {self.spill.path}: view that file to see more.]"
        return text

    def drain(self) -> None:
        """Read the rest of the pipe after the tree has ended, without waiting for other processes that hold it open."""
        for _ in range(_LAST_CHUNKS):
            if self._descriptor < 0 or not self._read():
                break
        self._take(self.output.finish())
        self._close()
        self.spill.close()

    def _read(self) -> bool:
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self._take(self.output.feed(data))
        else:
            self._close()
        return bool(data)

    def _take(self, text: str) -> None:
        if self.output.size > SHOWN:
            # Nothing has been dropped yet: the buffer is much larger than one read.
            self.spill.add(text if self.spill.has_begun else self.output.held)
        self._live.add(text)

    def _close(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


class Running:
    """A running command. `ended` is set when its tree is gone and its output was read; `remark` then describes how it
    ended.
    """

    def __init__(
        self, tree: Tree, streams: tuple[int, int], spills: OutputFiles, say: Say, over: Callable[[], str] | None = None
    ) -> None:
        self.remark = ""
        self._over = over
        self._live = _Live(say)
        self._tree = tree
        self.stdout = _Channel(streams[0], spills.new("out"), self._live)
        self.stderr = _Channel(streams[1], spills.new("err"), self._live)
        self.ended: asyncio.Future[TreeEnd] = asyncio.get_running_loop().create_future()
        tree.gone.add_done_callback(self._gone)

    @property
    def exited(self) -> asyncio.Future[int | None]:
        """Exit code of the command itself; its child processes may still be running."""
        return self._tree.exited

    @property
    def is_lost(self) -> bool:
        """True if a process that supervises it was killed. Known before `ended`."""
        return self._tree.is_lost

    def stop(self, grace: float) -> None:
        """Stop the command; killed after `grace` seconds."""
        self._tree.stop(grace)

    def keep(self, linger: float | None) -> None:
        """Change how long processes left behind may continue."""
        self._tree.keep(linger)

    def go_silent(self) -> None:
        """Stop publishing live output."""
        self._live.end()

    async def until_ended(self) -> TreeEnd:
        """Wait for the end. Cancelling the waiter does not stop the command."""
        return await asyncio.shield(self.ended)

    async def stopped(self, grace: float) -> TreeEnd:
        """Stop the command and wait until all its processes are gone, even if the waiter is cancelled."""
        self.stop(grace)
        while not self.ended.done():
            try:
                await asyncio.shield(self.ended)
            except asyncio.CancelledError:
                self.stop(grace)
        return self.ended.result()

    def _gone(self, gone: asyncio.Future[TreeEnd]) -> None:
        if self._over is None:
            self._finish(gone)
            return
        # The sandbox searches the workspace, which takes a while in a large one.
        cleaned = asyncio.get_running_loop().run_in_executor(None, self._over)
        cleaned.add_done_callback(lambda done: self._finish(gone, done))

    def _finish(self, gone: asyncio.Future[TreeEnd], cleaned: asyncio.Future[str] | None = None) -> None:
        if cleaned is not None:
            self.remark = cleaned.result()
        if gone.cancelled():
            return
        self.remark = "\n".join(filter(None, (self.remark, gone.result().remark)))
        self.stdout.drain()
        self.stderr.drain()
        self._live.end()
        if not self.ended.done():
            self.ended.set_result(gone.result())


class Processes:
    """Starts the commands of one workspace. `spills` is the directory for output that is too long to be shown."""

    def __init__(self, guard: Guard, spills: Path, *, grace: float = 2.0, sandbox: Confine | None = None) -> None:
        self.guard = guard
        self.grace = grace
        self.sandbox = sandbox
        self._spills = OutputFiles(spills)

    def start(self, launch: Launch, *, say: Say = lambda _: None) -> Running:
        """Start a command, which can be stopped from now on. `say` receives its output as it arrives."""
        bounds = Bounds()
        spills = self._spills.of(launch.owner)
        over: Callable[[], str] | None = None
        if self.sandbox is not None:
            launch, bounds = self.sandbox.confine(launch)
            over = self.sandbox.watch()
        reads: list[int] = []
        writes: list[int] = []
        try:
            writes.append(os.open(os.devnull, os.O_RDONLY))
            for _ in range(2):
                reading, writing = os.pipe()
                reads.append(reading)
                writes.append(writing)
            command = Command(launch.argv, launch.cwd, launch.env, launch.linger, bounds, launch.is_real)
            tree = self.guard.spawn(command, *writes)
        except BaseException:
            for descriptor in reads:
                os.close(descriptor)
            if over is not None:
                over()
            raise
        finally:
            for descriptor in writes:
                os.close(descriptor)
        return Running(tree, (reads[0], reads[1]), spills, say, over)

    def remove_output(self, session: str, named: Iterable[str] = ()) -> None:
        """Remove the output files of a deleted session; `named` are those mentioned in its messages."""
        self._spills.remove(session, named)

    async def run(self, launch: Launch, *, say: Say = lambda _: None) -> tuple[Running, TreeEnd]:
        """Run a command to its end. On cancellation the command is stopped first."""
        running = self.start(launch, say=say)
        try:
            return running, await running.until_ended()
        except asyncio.CancelledError:
            await running.stopped(self.grace)
            raise
