"""The overhead of a supervised command, and the time until all its processes have ended after a stop."""

import asyncio
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

import uvloop

from bench.figures import Figure, Goal, ratio_of_medians
from holdfast.workspace.process.command_process import CommandLaunch, Processes
from holdfast.workspace.process.guard_client import Containment, Guard
from trials.hostile_commands import start_shape, survivors

__all__ = ["measure"]

_ROUNDS = 60
_KILLS = 8
_GRACE = 0.2
_TRUE = ("/bin/bash", "-c", "true")
_SERVER = """
import asyncio, sys
from pathlib import Path
from trials.hostile_commands import start_shape
from holdfast.workspace.process.guard_client import Guard
from holdfast.workspace.process.command_process import Processes

async def main():
    guard = Guard(sys.argv[1])
    processes = Processes(guard, Path(sys.argv[2]))
    print((await start_shape(processes, "respawner")).token, guard.process_id, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


async def _timed(work: Callable[[], Awaitable[object]]) -> float:
    began = time.perf_counter()
    await work()
    return time.perf_counter() - began


async def _raw() -> None:
    process = await asyncio.create_subprocess_exec(
        *_TRUE, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    await process.communicate()


async def _overheads(containment: Containment, spills: Path) -> tuple[list[tuple[float, float]], float]:
    """Return pairs of a supervised and a bare command in milliseconds, and the duration of the guard's start."""
    guard = Guard(containment)
    started = await _timed(guard.ready)
    processes = Processes(guard, spills)
    launch = CommandLaunch(_TRUE, "/", {"PATH": os.environ["PATH"]})
    try:
        pairs = [(await _timed(lambda: processes.run(launch)) * 1e3, await _timed(_raw) * 1e3) for _ in range(_ROUNDS)]
        return pairs, started * 1e3
    finally:
        await guard.close()


async def _beyond_the_grace(spills: Path) -> float:
    """Return the milliseconds from the end of the grace until a command that ignores signals has ended."""
    guard = Guard()
    processes = Processes(guard, spills)
    try:
        late = []
        for _ in range(_KILLS):
            watched = await start_shape(processes, "deaf to all")
            late.append(await _timed(lambda it=watched: it.running.stop_and_wait(_GRACE)) - _GRACE)  # type: ignore[misc]
        return max(late) * 1e3
    finally:
        await guard.close()


def _after_the_server(containment: Containment, spills: Path) -> float:
    """Return the milliseconds from a SIGKILL of the server until no process is left."""
    argv = [sys.executable, "-c", _SERVER, containment, str(spills)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        token, guard = server.stdout.readline().split()
        line = select.poll()
        line.register(os.pidfd_open(int(guard)), select.POLLIN)
        began = time.perf_counter()
        server.send_signal(signal.SIGKILL)
        line.poll()
        seconds = time.perf_counter() - began
    if left := survivors(token):
        raise AssertionError(f"survivors: {left}")
    return seconds * 1e3


def measure() -> list[Figure]:
    figures = []
    with tempfile.TemporaryDirectory() as folder:
        spills = Path(folder)
        kinds: dict[Containment, str] = {"namespace": "in a namespace", "tree": "as a tree"}
        for kind, words in kinds.items():
            pairs, started = uvloop.run(_overheads(kind, spills))
            beyond = median(guarded - raw for guarded, raw in pairs)
            name = f"bash `true` {words}"
            figures.append(ratio_of_medians(name, "ms", pairs, "the same, spawned raw", Goal(5, is_ratio=True)))
            figures.append(Figure(f"{name}, beyond the raw spawn", beyond, "ms", goal=Goal(10)))
            figures.append(Figure(f"start of the guard {words}", started, "ms"))
            killed = max(_after_the_server(kind, spills) for _ in range(_KILLS))
            figures.append(Figure(f"server killed, all gone {words}", killed, "ms", goal=Goal(250)))
        late = uvloop.run(_beyond_the_grace(spills))
        figures.append(Figure("cancel to gone, beyond the grace", late, "ms", goal=Goal(250)))
    return figures
