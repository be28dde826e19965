"""Background jobs, as real processes."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.processes import JobInfo, TooManyJobs, UnknownJob
from holdfast.workspace.process.command_process import Processes
from holdfast.workspace.process.jobs import Job, JobLimits, Jobs
from trials.hostile_commands import new_token, survivors
from workspace.commands import guarded, line

ONE, TWO = SessionId("s1"), SessionId("s2")
HOUR = 3_600_000


class World:
    """Jobs of one workspace, with a clock that tests turn."""

    def __init__(self, processes: Processes, limits: JobLimits) -> None:
        self.now = 1_000
        self.busy: list[bool] = []
        self.processes = processes
        self.jobs = Jobs(lambda: self.now, limits=limits, on_busy=self.busy.append)

    def start(self, text: str, session: SessionId = ONE, run: str = "r1") -> Job:
        running = self.processes.start(line(text))
        return self.jobs.add(JobInfo("", session, RunId(run), text, "what it does", "/", self.now), running)

    async def finish(self, text: str = "true", session: SessionId = ONE, run: str = "r1") -> Job:
        job = self.start(text, session, run)
        await job.running.wait()
        await asyncio.sleep(0)
        return job


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    async with guarded(tmp_path) as processes:
        yield World(processes, JobLimits(max_jobs=3, kept_ms=8 * HOUR, grace=0.1, brief_grace=0.05))


async def test_ids_count_up_in_hexadecimal(world: World) -> None:
    world.jobs._count = 8
    assert [(await world.finish()).info.id for _ in range(3)] == ["009", "00A", "00B"]
    world.jobs._count = 0xFFE
    assert [(await world.finish()).info.id for _ in range(2)] == ["FFF", "1000"]
    assert world.jobs.get(" 00b ").info.id == "00B"


async def test_a_job_tells_how_it_goes(world: World) -> None:
    job = world.start("echo out; echo err >&2; exit 3", run="r7")
    assert job.info == JobInfo("001", ONE, RunId("r7"), "echo out; echo err >&2; exit 3", "what it does", "/", 1_000)
    world.now = 2_000
    await job.running.wait()
    await asyncio.sleep(0)
    output = world.jobs.output("001")
    assert (output.job.state, output.job.exit_code, output.job.ended_at) == ("completed", 3, 2_000)
    assert (output.stdout, output.stderr) == ("out\n", "err\n")


async def test_a_job_goes_on_as_long_as_any_of_its_processes(world: World) -> None:
    token = new_token()
    job = world.start(f"sleep {token} & exit 2")
    assert await job.running.exited == 2
    assert (job.info.state, job.info.exit_code) == ("running", 2)
    await world.jobs.kill("001")
    assert not survivors(token)


async def test_killed_jobs_are_forgotten(world: World) -> None:
    token = new_token()
    world.start(f"echo said; trap '' INT TERM; while :; do sleep {token}; done")
    output = await world.jobs.kill("001")
    assert output.job.state == "killed"
    assert not survivors(token)
    assert world.jobs.list() == ()
    with pytest.raises(UnknownJob, match="There are none"):
        world.jobs.get("001")


async def test_jobs_belong_to_a_session(world: World) -> None:
    await world.finish(session=ONE)
    await world.finish(session=TWO)
    assert [info.id for info in world.jobs.list(TWO)] == ["002"]
    assert [info.id for info in world.jobs.list()] == ["001", "002"]
    with pytest.raises(UnknownJob, match="There is: 002"):
        world.jobs.get("001", TWO)
    with pytest.raises(UnknownJob):
        await world.jobs.kill("001", TWO)


async def test_only_running_jobs_use_up_the_limit(world: World) -> None:
    """C-57."""
    for _ in range(20):
        await world.finish()
    for _ in range(3):
        world.start("sleep 1000")
    with pytest.raises(TooManyJobs, match="015, 016, 017"):
        world.jobs.check_room()
    assert len(world.jobs.list()) <= 6
    await world.jobs.kill("015")
    world.jobs.check_room()
    await world.jobs.close()


async def test_finished_jobs_are_kept_for_a_while(world: World) -> None:
    await world.finish()
    world.now += 8 * HOUR - 1
    await world.finish()
    assert [info.id for info in world.jobs.list()] == ["001", "002"]
    world.now += 1
    await world.finish()
    assert [info.id for info in world.jobs.list()] == ["002", "003"]


async def test_jobs_of_a_run_die_with_it(world: World) -> None:
    """R4: those of the cancelled run, and no others."""
    token, other = new_token(), new_token()
    world.start(f"trap '' TERM INT; setsid sleep {token} & sleep {token}; sleep {token}", run="r1")
    world.start(f"sleep {other}", run="r2")
    await world.jobs.end_run(RunId("r1"))
    assert not survivors(token)
    assert [info.state for info in world.jobs.list()] == ["killed", "running"]
    await world.jobs.end_run(RunId("unknown"))
    await world.jobs.close()
    assert not survivors(other)


async def test_a_removed_session_takes_its_jobs_along(world: World) -> None:
    token = new_token()
    world.start(f"sleep {token}", TWO)
    await world.finish(session=ONE)
    await world.jobs.end_session(TWO)
    assert not survivors(token)
    assert [info.id for info in world.jobs.list()] == ["002"]


async def test_closing_stops_all_and_takes_no_more(world: World) -> None:
    tokens = [new_token() for _ in range(3)]
    for token in tokens:
        world.start(f"trap '' TERM INT; echo on; while :; do sleep {token}; done")
    await world.jobs.close(limit=0.1)
    assert not [left for token in tokens for left in survivors(token)]
    with pytest.raises(TooManyJobs):
        world.jobs.check_room()
    assert world.busy == [True, False]


async def test_it_tells_when_the_first_begins_and_the_last_has_ended(world: World) -> None:
    one, two = world.start("sleep 1000"), world.start("sleep 1000")
    assert world.jobs.is_busy
    await world.jobs.kill(one.info.id)
    assert world.busy == [True]
    await world.jobs.kill(two.info.id)
    assert world.busy == [True, False]
    await world.finish()
    assert world.busy == [True, False, True, False]
