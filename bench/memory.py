"""What sessions cost in memory that do nothing any more. Each number is a process of its own."""

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path

import uvloop

from bench.figures import Figure, Goal
from bench.stage import model_saying, sessions, stage, words
from holdfast.domain.runs import Prompt

__all__ = ["measure"]

SESSIONS = 1_000
_AT_ONCE = 50


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _fill(count: int) -> int:
    """Resident bytes when that many sessions have had a run each, and are idle."""
    model = model_saying(words(20))
    async with stage(model) as on:
        for start in range(0, count, _AT_ONCE):
            made = await sessions(on, min(_AT_ONCE, count - start))
            runs = await asyncio.gather(*(on.workspace.inputs.submit(Prompt(session, "Hello?")) for session in made))
            for run in runs:
                await on.ends.of(run.run_id)
                await on.workspace.engine.until_quiet(run.session_id)
            model.requests.clear()
            on.ends.seen.clear()
        gc.collect()
        return _resident()


def _in_a_process(count: int) -> int:
    command = [sys.executable, "-m", "bench.memory", str(count)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def measure() -> list[Figure]:
    one, many = _in_a_process(1), _in_a_process(SESSIONS)
    name = f"memory of {SESSIONS:,} idle sessions"
    return [Figure(name, (many - one) / 1e6, "MB", one / 1e6, "a process with one session", Goal(20))]


if __name__ == "__main__":
    print(uvloop.run(_fill(int(sys.argv[1]))))
