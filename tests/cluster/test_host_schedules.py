"""Three whole servers of a cluster on a loop that chooses. A failure names its seed, which need not repeat it."""

import random
from collections import Counter

import pytest

from holdfast.testing.seeded_loop import run_seeded
from trials.host_schedules import HostSchedule, try_host_schedule

SCHEDULES = 600
CHUNK = 150


@pytest.mark.parametrize("first", range(0, SCHEDULES, CHUNK))
def test_no_schedule_of_whole_servers_breaks_a_promise(first: int) -> None:
    """R1 R2 R3 R4 R6 R7 R8: inputs and streams at any server, faults of servers and of the store, restarts."""
    for seed in range(first, first + CHUNK):
        try_host_schedule(seed)


def test_the_schedules_of_whole_servers_cover_the_intended_situations() -> None:
    met: Counter[str] = Counter()

    async def play(dice: random.Random) -> None:
        schedule = HostSchedule(dice)
        await schedule.play()
        met.update(schedule.met)
        met["accepted"] += len(schedule.log.accepted)
        met["commands"] += bool(schedule.acts)
        met["takeover"] += schedule.world.cluster.workspaces[schedule.workspace].epoch > 2
        met["declared dead"] += bool(schedule.world.cluster.evicted)

    for seed in range(60):
        run_seeded(play, seed)
    for kind in (
        "accepted",
        "cut",
        "commands",
        "declared dead",
        "evicted",
        "listener lost",
        "outage",
        "restarted",
        "suspended",
        "takeover",
    ):
        assert met[kind] >= 5, f"{kind}: {met[kind]}"
