"""Memory of servers, idle sessions and closed workspaces. Each figure is that of a new process."""

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path

import uvloop

from bench.figures import Figure, Goal
from bench.in_process import model_saying, sessions, words, workspace_under_test
from bench.plan import Plan
from bench.repositories import copy_small
from bench.servers import Provider, ServerProcess, served, served_floor
from bench.turn_rows import Subject
from holdfast.client.client import Client
from holdfast.domain.events import RunCompleteEvent
from holdfast.domain.runs import Prompt
from holdfast.protocol.bodies import AgentMessage

__all__ = ["measure", "measure_closing", "measure_memory"]

SESSIONS = 1_000
SESSIONS_WITH_TURN = 50
PROMPTS_PER_WORKSPACE = 100
_SECTION = "memory"
_AT_ONCE = 50
_WORKSPACES_AT_ONCE = 8
_RELEASED_AFTER = 20.0
"""Seconds in which a server closes workspaces and returns their memory."""


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def _fill(count: int) -> int:
    """Return the resident bytes with this many idle sessions that have had one run each."""
    model = model_saying(words(20))
    async with workspace_under_test(model) as on:
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


def _after_turns(server: ServerProcess) -> tuple[float, float]:
    """Return the memory of an idle server, and after sessions with a turn each, in MiB."""
    server.wait_for_answer()
    idle = server.resident()
    subject = Subject(server, over_tcp=True)
    for _ in range(SESSIONS_WITH_TURN):
        subject.turn(subject.client.session())
    subject.close()
    return idle, server.resident()


def measure_memory(provider: Provider, plan: Plan) -> list[Figure]:
    """Measure fresh servers."""
    del plan
    with served_floor(provider) as floor:
        limits = _after_turns(floor)
    with served(settings=provider.settings) as server:
        found = _after_turns(server)
    rows = (
        ("resident memory, idle", Goal(40), "54 MiB", "memory_idle"),
        (f"resident memory after {SESSIONS_WITH_TURN} sessions with a turn", Goal(55), "80 MiB", "memory_turns"),
    )
    return [
        Figure(name, value, "MiB", limit, "the floor", goal, key, _SECTION, reference)
        for (name, goal, reference, key), value, limit in zip(rows, found, limits, strict=True)
    ]


async def _work(server: ServerProcess, name: str, prompts: int) -> Client:
    """Send prompts in a workspace of its own, one after the other, with a stream open. Return the client."""
    path = server.root / name
    await asyncio.to_thread(copy_small, path)
    client = Client(server.tcp)
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


async def _grow(server: ServerProcess, workspaces: int, prompts: int) -> tuple[float, float, float]:
    """Return the memory of a server after a first workspace, after many, and when all are closed, in MiB."""
    await asyncio.to_thread(server.wait_for_answer)
    await _retire(await _work(server, "first", 5))
    before = server.resident()
    places = asyncio.Semaphore(_WORKSPACES_AT_ONCE)

    async def work(number: int) -> Client:
        async with places:
            return await _work(server, f"w{number}", prompts // workspaces)

    clients = await asyncio.gather(*map(work, range(workspaces)))
    most = server.resident()
    for client in clients:
        await _retire(client)
    await asyncio.sleep(_RELEASED_AFTER)
    return before, most, server.resident()


def measure_closing(provider: Provider, plan: Plan) -> list[Figure]:
    """Send many prompts in many workspaces, and close these."""
    prompts = PROMPTS_PER_WORKSPACE * plan.workspaces
    with served(settings=provider.settings) as server:
        before, most, closed = uvloop.run(_grow(server, plan.workspaces, prompts))
    beside, goal = "the server after its first workspace", Goal(1.5, is_ratio=True)
    work = f"{prompts:,} prompts in {plan.workspaces} workspaces"
    return [
        Figure(f"memory after {work}", most, "MiB", before, beside, None, "memory_work", _SECTION),
        Figure("memory when they are closed", closed, "MiB", before, beside, goal, "memory_closed", _SECTION),
    ]


def measure() -> list[Figure]:
    """Return the row about idle sessions in process, which is not part of the table."""
    one, many = _in_a_process(1), _in_a_process(SESSIONS)
    name, beside = f"memory of {SESSIONS:,} idle sessions", "a process with one session"
    return [Figure(name, (many - one) / 1e6, "MB", one / 1e6, beside, Goal(20))]


if __name__ == "__main__":
    print(uvloop.run(_fill(int(sys.argv[1]))))
