"""A running command: started through the guard, its output read continuously, ended when all its processes are."""

import asyncio
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from holdfast.workspace.process.guard_client import Bounds, Command, Guard, Tree, TreeEnd
from holdfast.workspace.process.output_capture import MAX_SHOWN, Output, OutputFile, OutputFiles

__all__ = ["CommandLaunch", "CommandSandbox", "OnOutput", "Processes", "RunningCommand"]

# Receives live output.
OnOutput = Callable[[str], None]

_CHUNK = 65_536
_LAST_CHUNKS = 64
_LIVE_SIZE = 8_192
_LIVE_INTERVAL = 0.05
_MAX_LIVE = 1_048_576
_LIVE_TRUNCATED = "\n[further output is not shown while it runs]\n"


class CommandLaunch(msgspec.Struct, frozen=True):
    """Command line, directory and environment. `linger`, `is_real`: see `Command`. `owner` is the session of the
    command.
    """

    argv: tuple[str, ...]
    cwd: str
    env: Mapping[str, str]
    linger: float | None = 0.25
    is_real: bool = False
    owner: str = ""


class CommandSandbox(Protocol):
    """A sandbox: restricts a launch, and checks the workspace after its end."""

    def confine(self, launch: CommandLaunch) -> tuple[CommandLaunch, Bounds]:
        """Return the restricted launch and the bounds for the guard."""
        ...

    def watch(self) -> Callable[[], str]:
        """Start to watch for changes by the command; the returned function checks them at its end."""
        ...


class _LiveOutput:
    """Publishes live output in batches: at most every `_LIVE_INTERVAL` or `_LIVE_SIZE`, up to `_MAX_LIVE` in total."""

    def __init__(self, on_output: OnOutput) -> None:
        self._on_output: OnOutput | None = on_output
        self._pending: list[str] = []
        self._size = 0
        self._published = 0
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._next = 0.0

    def add(self, text: str) -> None:
        if self._on_output is None or not text:
            return
        self._pending.append(text)
        self._size += len(text)
        if self._size >= _LIVE_SIZE or self._loop.time() >= self._next:
            self.flush()
        elif self._timer is None:
            self._timer = self._loop.call_at(self._next, self.flush)

    def flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._next = self._loop.time() + _LIVE_INTERVAL
        text = "".join(self._pending)
        self._pending.clear()
        self._size = 0
        if self._on_output is None or not text:
            return
        on_output = self._on_output
        # Live output is for display only; the complete output is in the result and its file.
        left = _MAX_LIVE - self._published
        self._published += len(text)
        if len(text) > left:
            text = text[:left] + _LIVE_TRUNCATED
            self._on_output = None
        on_output(text)

    def end(self) -> None:
        self.flush()
        self._on_output = None


class _OutputChannel:
    """One output stream of a command, read as soon as data are available, so that the command does not block."""

    def __init__(self, descriptor: int, file: OutputFile, live: _LiveOutput) -> None:
        self.output = Output()
        self.file = file
        self._descriptor = descriptor
        self._live = live
        os.set_blocking(descriptor, False)
        asyncio.get_running_loop().add_reader(descriptor, self._read)

    def excerpt(self) -> str:
        """Return the text for a model, with the path of the file that contains the omitted part."""
        text = self.output.excerpt()
        if self.output.size > MAX_SHOWN and self.file.path is not None:
            text += f"\n[{self.file.describe()} is in {self.file.path}: view that file to see more.]"
        return text

    def drain(self) -> None:
        """Read the rest of the pipe after the tree has ended, without waiting for other processes that hold it open."""
        # Bounded: a process outside of the tree that inherited the pipe may write without end.
        for _ in range(_LAST_CHUNKS):
            if self._descriptor < 0 or not self._read():
                break
        self._add(self.output.finish())
        self._close()
        self.file.close()

    def _read(self) -> bool:
        try:
            data = os.read(self._descriptor, _CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if data:
            self._add(self.output.feed(data))
        else:
            self._close()
        return bool(data)

    def _add(self, text: str) -> None:
        if self.output.size > MAX_SHOWN:
            # Nothing has been dropped yet: the buffer is much larger than one read.
            self.file.add(text if self.file.has_begun else self.output.buffered)
        self._live.add(text)

    def _close(self) -> None:
        if self._descriptor >= 0:
            asyncio.get_running_loop().remove_reader(self._descriptor)
            os.close(self._descriptor)
            self._descriptor = -1


class RunningCommand:
    """A running command. `ended` is set when its tree is gone and its output was read; `remark` then describes how it
    ended.
    """

    def __init__(
        self,
        tree: Tree,
        streams: tuple[int, int],
        output_files: OutputFiles,
        on_output: OnOutput,
        on_end: Callable[[], str] | None = None,
    ) -> None:
        self.remark = ""
        self._on_end = on_end
        self._live = _LiveOutput(on_output)
        self._tree = tree
        self.stdout = _OutputChannel(streams[0], output_files.new_file("out"), self._live)
        self.stderr = _OutputChannel(streams[1], output_files.new_file("err"), self._live)
        self.ended: asyncio.Future[TreeEnd] = asyncio.get_running_loop().create_future()
        tree.gone.add_done_callback(self._handle_tree_end)

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

    def set_linger(self, linger: float | None) -> None:
        """Change how long processes left behind may continue."""
        self._tree.set_linger(linger)

    def stop_live_output(self) -> None:
        """Stop publishing live output."""
        self._live.end()

    async def wait(self) -> TreeEnd:
        """Wait for the end. Cancelling the waiter does not stop the command."""
        return await asyncio.shield(self.ended)

    async def stop_and_wait(self, grace: float) -> TreeEnd:
        """Stop the command and wait until all its processes are gone, even if the waiter is cancelled."""
        self.stop(grace)
        while not self.ended.done():
            try:
                await asyncio.shield(self.ended)
            except asyncio.CancelledError:
                self.stop(grace)
        return self.ended.result()

    def _handle_tree_end(self, gone: asyncio.Future[TreeEnd]) -> None:
        if self._on_end is None:
            self._finish(gone)
            return
        # The sandbox searches the workspace, which takes a while in a large one.
        cleaned = asyncio.get_running_loop().run_in_executor(None, self._on_end)
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
    """Starts the commands of one workspace. `output_files` is the directory for output that is too long to be shown."""

    def __init__(
        self, guard: Guard, output_files: Path, *, grace: float = 2.0, sandbox: CommandSandbox | None = None
    ) -> None:
        self.guard = guard
        self.grace = grace
        self.sandbox = sandbox
        self._output_files = OutputFiles(output_files)

    def start(self, launch: CommandLaunch, *, on_output: OnOutput = lambda _: None) -> RunningCommand:
        """Start a command, which can be stopped from now on. `on_output` receives its output as it arrives."""
        bounds = Bounds()
        output_files = self._output_files.for_owner(launch.owner)
        on_end: Callable[[], str] | None = None
        if self.sandbox is not None:
            launch, bounds = self.sandbox.confine(launch)
            on_end = self.sandbox.watch()
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
            if on_end is not None:
                on_end()
            raise
        finally:
            for descriptor in writes:
                os.close(descriptor)
        return RunningCommand(tree, (reads[0], reads[1]), output_files, on_output, on_end)

    def remove_output(self, session: str, mentioned: Iterable[str] = ()) -> None:
        """Remove the output files of a deleted session; `mentioned` are those mentioned in its messages."""
        self._output_files.remove(session, mentioned)

    async def run(
        self, launch: CommandLaunch, *, on_output: OnOutput = lambda _: None
    ) -> tuple[RunningCommand, TreeEnd]:
        """Run a command to its end. On cancellation the command is stopped first."""
        running = self.start(launch, on_output=on_output)
        try:
            return running, await running.wait()
        except asyncio.CancelledError:
            await running.stop_and_wait(self.grace)
            raise
