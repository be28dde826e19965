"""Three nodes on one store, on a loop that chooses: suspended, cut off, taken over. A failure names its seed."""

import random
from collections import Counter

import pytest

from holdfast.domain.events import RunCompleteEvent, decode_event
from holdfast.testing.seeded_loop import run_seeded
from trials.cluster_schedules import ClusterSchedule, try_cluster_schedule

SCHEDULES = 2_000
CHUNK = 250


@pytest.mark.parametrize("first", range(0, SCHEDULES, CHUNK))
def test_no_schedule_of_a_cluster_breaks_a_promise(first: int) -> None:
    """R1 R2 R3 R4 R6 R7 R8: prompts, cancels, moves and answers at any node, faults and takeovers combined."""
    for seed in range(first, first + CHUNK):
        try_cluster_schedule(seed)


def test_the_schedules_of_a_cluster_cover_the_intended_situations() -> None:
    met: Counter[str] = Counter()

    async def play(dice: random.Random) -> None:
        schedule = ClusterSchedule(dice)
        await schedule.play()
        log = schedule.log
        met["accepted"] += len(log.accepted)
        met["covered by a cancel"] += len(log.covered)
        met["unknown result"] += log.uncertain
        met["refused"] += log.refused
        met["answered"] += len(log.answered)
        met["takeover"] += log.takeovers - 1
        for _, body in next(iter(log.seen.values())):
            met["binding cancel"] += b'"must_cancel":true' in body
            event = decode_event(body)
            if isinstance(event, RunCompleteEvent):
                met[event.change.object.outcome] += 1
                met["folded"] += bool(event.change.object.folded_into)

    for seed in range(150):
        run_seeded(play, seed)
    for kind in (
        "accepted",
        "covered by a cancel",
        "unknown result",
        "refused",
        "answered",
        "takeover",
        "binding cancel",
        "completed",
        "cancelled",
        "interrupted",
        "folded",
    ):
        assert met[kind] >= 15, f"{kind}: {met[kind]}"
