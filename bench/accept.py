"""Accepting many prompts at once, in process: the number of prompts per synced commit."""

import asyncio
import time
from collections.abc import Iterator
from statistics import median

import uvloop

from bench.figures import Figure, Goal, ratio_of_medians
from bench.in_process import BareStore, HeldModels, WorkspaceUnderTest, sessions, workspace_under_test
from holdfast.domain.ids import SessionId
from holdfast.domain.runs import Prompt, Run

__all__ = ["measure"]

TOGETHER = 50
ROUNDS = 15
SUBMITTERS = 50
EACH = 10
STEADY_ROUNDS = 4
_PROMPT = "Please look at the failing test and say in one sentence what is wrong with it."


async def _submit(on: WorkspaceUnderTest, session: SessionId) -> Run:
    return await on.workspace.inputs.submit(Prompt(session, _PROMPT, delivery="queue"))


async def _together(on: WorkspaceUnderTest, bare: BareStore, held: list[SessionId]) -> list[tuple[float, float]]:
    """Submit many prompts at once and wait for the last response. Earlier runs are held, so no other work is done."""
    pairs = []
    for _ in range(ROUNDS):
        limit = median(bare.commit() for _ in range(5))
        began = time.perf_counter()
        await asyncio.gather(*(_submit(on, session) for session in held))
        pairs.append((time.perf_counter() - began, limit))
        await _clear(on, held)
    return pairs


async def _clear(on: WorkspaceUnderTest, held: list[SessionId]) -> None:
    """Cancel the waiting runs, so that no queue grows from round to round."""
    await asyncio.gather(*(on.workspace.inputs.clear(session) for session in held))
    # The clear returns when it is stored; this write follows the ends of the runs that it covers.
    await on.workspace.engine.recorder.put(sync=False)


async def _steady(on: WorkspaceUnderTest, bare: BareStore, held: list[SessionId]) -> Figure:
    """Return accepts per second when each of many submitters sends its next prompt after the response."""

    async def ask(session: SessionId) -> None:
        for _ in range(EACH):
            await _submit(on, session)

    rates, limits = [], []
    for _ in range(STEADY_ROUNDS):
        limits.append(SUBMITTERS * EACH / sum(bare.commit(SUBMITTERS) for _ in range(EACH)))
        began = time.perf_counter()
        await asyncio.gather(*(ask(session) for session in held[:SUBMITTERS]))
        rates.append(SUBMITTERS * EACH / (time.perf_counter() - began))
        await _clear(on, held)
    beside = f"bare rows, {SUBMITTERS} to a commit"
    return Figure(f"accepts, {SUBMITTERS} submitters", median(rates), "per second", median(limits), beside)


def _ms(pairs: list[tuple[float, float]]) -> Iterator[tuple[float, float]]:
    return ((value * 1e3, limit * 1e3) for value, limit in pairs)


async def _measure() -> list[Figure]:
    models = HeldModels()
    async with workspace_under_test(models) as on:
        bare = BareStore(on.path)
        grouped = BareStore(on.path / "data", row=b"x" * 400)
        for _ in range(20):
            bare.commit()
        held = await sessions(on, TOGETHER)
        before = models.begun
        await asyncio.gather(*(_submit(on, session) for session in held))
        await models.until(before + TOGETHER)
        together = await _together(on, bare, held)
        steady = await _steady(on, grouped, held)
        bare.close()
        grouped.close()
    one = "one bare synced commit"
    return [
        ratio_of_medians(f"{TOGETHER} accepts at once, p50", "ms", _ms(together), one, Goal(3, is_ratio=True)),
        steady,
    ]


def measure() -> list[Figure]:
    return uvloop.run(_measure())
