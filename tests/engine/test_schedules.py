"""Seeded interleavings: the real engine on a loop that chooses. A failure names the seed that replays it."""

import asyncio
import random
from collections import Counter

import pytest

from holdfast.domain.model_requests import ModelRequest
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.testing.harness import Harness
from holdfast.testing.seeded_loop import Deadlock, every_schedule, run_schedule, run_seeded
from trials.schedules import Schedule, try_schedule

SCHEDULES = 2_400
CHUNK = 200


@pytest.mark.parametrize("first", range(0, SCHEDULES, CHUNK))
def test_no_schedule_breaks_a_promise(first: int) -> None:
    """R1 R2 R3 R6 R7 R8 R11: submit, retry, cancel, clear, moves, failures, slow storage and shutdown combined."""
    for seed in range(first, first + CHUNK):
        try_schedule(seed)


def test_the_schedules_cover_the_intended_situations() -> None:
    """Random schedules that never cancel, fail or shut down would prove nothing."""
    met: Counter[str] = Counter()

    async def live(rng: random.Random) -> None:
        life = Schedule(rng)
        await life.live()
        met["refused"] += life.witness.refused
        met["cancelled"] += len(life.witness.cancelled)
        met["tools"] += life.witness.tools
        met["refused by a hook"] += len(life.hooks.refused)
        met["requests"] += len(life.model.requests)
        met["repeated request"] += len(life.model.requests) - len({id(request) for request in life.model.requests})
        for run in life.runs:
            met[str(run.outcome)] += 1
            met["folded"] += bool(run.folded_into)

    for seed in range(150):
        run_seeded(live, seed)
    for kind in (
        "refused",
        "cancelled",
        "tools",
        "requests",
        "completed",
        "failed",
        "interrupted",
        "folded",
        "repeated request",
        "refused by a hook",
    ):
        assert met[kind] >= 8, f"{kind}: {met[kind]}"


def echo(_: ModelRequest) -> Step:
    return Step((Say("yes"),))


def test_every_schedule_of_a_cancel_beside_a_prompt() -> None:
    """R3, number order: all interleavings, up to a bound. A run is cancelled exactly if the log says that it is
    covered.
    """
    seen: Counter[tuple[str, ...]] = Counter()

    async def main() -> None:
        harness = await Harness.open(ScriptedModel(echo))
        await harness.prompt("one", "r1")
        _, covered, _ = await asyncio.gather(
            harness.prompt("two", "r2"), harness.cancel(), harness.prompt("three", "r3")
        )
        await harness.wait_until_idle()
        outcomes = tuple(harness.end_of(run).outcome for run in ("r1", "r2", "r3"))
        for run in covered:
            assert harness.end_of(run).outcome == "cancelled"
        for name in ("r1", "r2", "r3"):
            if harness.end_of(name).outcome == "cancelled":
                assert (await harness.run(name)).cancel_requested
                assert name in covered
        seen[outcomes] += 1
        await harness.close()

    tried = sum(1 for _ in every_schedule(main, depth=6, most=5_000))
    assert 200 < tried < 5_000, "the search is exhaustive up to its depth"
    assert len(seen) > 1, "the search met only one way in which it can go"


def test_a_deadlock_is_reported_at_once() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        run_schedule(main, lambda _: 0)


def test_a_failing_seed_is_named_and_replays() -> None:
    async def main(rng: random.Random) -> None:
        assert rng.random() < 0.9

    ending_kinds = {seed: random.Random(seed + 1).random() < 0.9 for seed in range(60)}
    assert not all(ending_kinds.values())
    for seed, lives in ending_kinds.items():
        if lives:
            run_seeded(main, seed)
        else:
            with pytest.raises(AssertionError) as caught:
                run_seeded(main, seed)
            assert caught.value.__notes__ == [f"replay with seed {seed}"]
