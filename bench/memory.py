"""Memory of idle sessions and of workspaces that were closed. Each number is that of a process of its own."""

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path

import uvloop

from bench.figures import Figure, Goal
from bench.outside import MIB, Served, served
from bench.stage import model_saying, sessions, stage, words
from holdfast.client.client import Client
from holdfast.domain.events import RunCompleteEvent
from holdfast.domain.runs import Prompt
from holdfast.protocol.bodies import AgentMessage

__all__ = ["measure"]

SESSIONS = 1_000
WORKSPACES = 50
PROMPTS = 2_000
_AT_ONCE = 50
_WORKSPACES_AT_ONCE = 8
_RELEASED_AFTER = 20.0
"""Seconds in which a server closes workspaces and returns their memory."""


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
                await on.workspace.engine.wait_until_idle(run.session_id)
            model.requests.clear()
            on.ends.seen.clear()
        gc.collect()
        return _resident()


def _in_a_process(count: int) -> int:
    command = [sys.executable, "-m", "bench.memory", str(count)]
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


async def _work(server: Served, name: str, prompts: int) -> Client:
    """Send prompts in a workspace of its own, one after the other, with a stream open. Returns the client."""
    path = server.root / name
    path.mkdir()
    client = Client(server.address)
    workspace = (await client.create_workspace(str(path))).id
    session = (await client.create_session(workspace, name)).id
    async with client.events(workspace, since=0) as events:
        for number in range(prompts):
            await client.send_prompt(workspace, AgentMessage(session, f"words=20 number={number}"))
            async for item in events:
                if isinstance(item.event, RunCompleteEvent):
                    break
    return client


async def _retire(client: Client) -> None:
    await client.retire_client()
    await client.close()


async def _grow(server: Served) -> tuple[float, float, float]:
    """Resident bytes of a server after a first workspace, after many, and when all are closed."""
    await asyncio.to_thread(server.answer, "/v1/version")
    await _retire(await _work(server, "first", 5))
    before = server.resident()
    places = asyncio.Semaphore(_WORKSPACES_AT_ONCE)

    async def work(number: int) -> Client:
        async with places:
            return await _work(server, f"w{number}", PROMPTS // WORKSPACES)

    clients = await asyncio.gather(*map(work, range(WORKSPACES)))
    most = server.resident()
    for client in clients:
        await _retire(client)
    await asyncio.sleep(_RELEASED_AFTER)
    return before, most, server.resident()


def measure() -> list[Figure]:
    one, many = _in_a_process(1), _in_a_process(SESSIONS)
    with served() as server:
        before, most, closed = (size / MIB for size in uvloop.run(_grow(server)))
    beside = "the server after its first workspace"
    what = f"{PROMPTS:,} prompts in {WORKSPACES} workspaces"
    return [
        Figure(
            f"memory of {SESSIONS:,} idle sessions",
            (many - one) / 1e6,
            "MB",
            one / 1e6,
            "a process with one session",
            Goal(20),
        ),
        Figure(f"memory after {what}", most, "MiB", before, beside),
        Figure("memory when they are closed", closed, "MiB", before, beside, Goal(1.5, is_ratio=True)),
    ]


if __name__ == "__main__":
    print(uvloop.run(_fill(int(sys.argv[1]))))
