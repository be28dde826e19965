"""No process survives a cancel or the server (R4): real processes that evade termination in every known way."""

import asyncio
import os
import select
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.workspace.process.command_process import Processes
from holdfast.workspace.process.guard_client import Containment, Guard
from trials.hostile_commands import SHAPES, RunningShape, start_shape, survivors, try_tree

TIMES = 20
PARALLEL = 5
SHORT, DEFAULT = 0.1, 2.0

SERVER = """
import asyncio, sys
from pathlib import Path
from trials.hostile_commands import SHAPES, start_shape
from holdfast.workspace.process.guard_client import Guard
from holdfast.workspace.process.command_process import Processes

async def main():
    guard = Guard(sys.argv[1])
    processes = Processes(guard, Path(sys.argv[2]))
    for shape in sorted(SHAPES, key=lambda shape: "loop" in shape or "chain" in shape):
        print((await start_shape(processes, shape)).token)
    print(guard.process_id, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.fixture(params=["namespace", "tree"])
async def processes(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Processes]:
    """With a PID namespace, if available, and without."""
    containment: Containment = request.param
    guard = Guard(containment)
    yield Processes(guard, tmp_path)
    await guard.close()


async def start_and_stop(processes: Processes, shape: str, grace: float) -> None:
    watched = await start_shape(processes, shape)
    await watched.stop(grace)


@pytest.mark.parametrize("shape", SHAPES)
async def test_no_shape_survives_a_short_grace(processes: Processes, shape: str) -> None:
    """R4, C-53: including those that left their group, hold stdout, ignore signals or fork forever."""
    for _ in range(TIMES // PARALLEL):
        async with asyncio.TaskGroup() as group:
            for _ in range(PARALLEL):
                group.create_task(start_and_stop(processes, shape, SHORT))


async def test_no_shape_survives_the_default_grace(processes: Processes) -> None:
    async with asyncio.TaskGroup() as group:
        for shape in SHAPES:
            group.create_task(start_and_stop(processes, shape, DEFAULT))


async def test_no_shape_survives_that_is_stopped_before_it_is_ready(processes: Processes) -> None:
    for watched in [RunningShape(processes, shape) for shape in SHAPES]:
        await watched.stop(0)


@pytest.mark.parametrize("containment", ["namespace", "tree"])
def test_no_shape_survives_the_server(tmp_path: Path, containment: str) -> None:
    """R4, C-55: the server is killed without notice to the guard, and all processes are gone when the guard is."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, containment, str(tmp_path)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])},
    )
    try:
        assert server.stdout is not None
        with server.stdout:
            tokens = [server.stdout.readline().strip() for _ in SHAPES]
            guard = os.pidfd_open(int(server.stdout.readline()))
        for token in tokens:
            # A single scan may miss processes that exec or fork continuously.
            while not survivors(token):
                os.sched_yield()
    finally:
        server.kill()
        server.wait()
    gone = select.poll()
    gone.register(guard, select.POLLIN)
    assert gone.poll(30_000), "the guard is still there"
    os.close(guard)
    assert [left for token in tokens for left in survivors(token)] == []


def test_trial_of_long_run() -> None:
    try_tree(7)
