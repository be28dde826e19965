"""Background jobs, as real processes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
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


class Harness:
    """Jobs of one workspace, with a clock set by the test."""

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
async def harness(tmp_path: Path) -> AsyncIterator[Harness]:
    async with guarded(tmp_path) as processes:
        yield Harness(processes, JobLimits(max_jobs=3, kept_ms=8 * HOUR, grace=0.1, brief_grace=0.05))


async def test_ids_count_up_in_hexadecimal(harness: Harness) -> None:
    harness.jobs._count = 8
    assert [(await harness.finish()).info.id for _ in range(3)] == ["009", "00A", "00B"]
    harness.jobs._count = 0xFFE
    assert [(await harness.finish()).info.id for _ in range(2)] == ["FFF", "1000"]
    assert harness.jobs.get(" 00b ").info.id == "00B"


async def test_job_reports_output_and_state(harness: Harness) -> None:
    job = harness.start("echo out; echo err >&2; exit 3", run="r7")
    assert job.info == JobInfo("001", ONE, RunId("r7"), "echo out; echo err >&2; exit 3", "what it does", "/", 1_000)
    harness.now = 2_000
    await job.running.wait()
    await asyncio.sleep(0)
    output = harness.jobs.output("001")
    assert (output.job.state, output.job.exit_code, output.job.ended_at) == ("completed", 3, 2_000)
    assert (output.stdout, output.stderr) == ("out\n", "err\n")


async def test_job_lasts_as_long_as_its_processes(harness: Harness) -> None:
    token = new_token()
    job = harness.start(f"sleep {token} & exit 2")
    assert await job.running.exited == 2
    assert (job.info.state, job.info.exit_code) == ("running", 2)
    await harness.jobs.kill("001")
    assert not survivors(token)


async def test_killed_jobs_are_removed(harness: Harness) -> None:
    token = new_token()
    harness.start(f"echo said; trap '' INT TERM; while :; do sleep {token}; done")
    output = await harness.jobs.kill("001")
    assert output.job.state == "killed"
    assert not survivors(token)
    assert harness.jobs.list() == ()
    with pytest.raises(UnknownJob, match="There are none"):
        harness.jobs.get("001")


@pytest.mark.parametrize("end", ["kill", "end of its run", "end of its session", "close"])
async def test_jobs_without_a_grace_are_killed_at_once(end: str, tmp_path: Path) -> None:
    async with guarded(tmp_path) as processes:
        hour = 3_600.0
        harness, token = Harness(processes, JobLimits(grace=hour, brief_grace=hour)), new_token()
        job = harness.start(f"trap '' INT TERM; while :; do sleep {token}; done")
        harness.jobs.skip_graces()
        ends: dict[str, Callable[[], Awaitable[object]]] = {
            "kill": lambda: harness.jobs.kill(job.info.id),
            "end of its run": lambda: harness.jobs.end_run(job.info.run_id),
            "end of its session": lambda: harness.jobs.end_session(ONE),
            "close": lambda: harness.jobs.close(hour),
        }
        await ends[end]()
        assert not survivors(token)


async def test_jobs_belong_to_a_session(harness: Harness) -> None:
    await harness.finish(session=ONE)
    await harness.finish(session=TWO)
    assert [info.id for info in harness.jobs.list(TWO)] == ["002"]
    assert [info.id for info in harness.jobs.list()] == ["001", "002"]
    with pytest.raises(UnknownJob, match="There is: 002"):
        harness.jobs.get("001", TWO)
    with pytest.raises(UnknownJob):
        await harness.jobs.kill("001", TWO)


async def test_c57_only_running_jobs_count_towards_limit(harness: Harness) -> None:
    """C-57."""
    for _ in range(20):
        await harness.finish()
    for _ in range(3):
        harness.start("sleep 1000")
    with pytest.raises(TooManyJobs, match="015, 016, 017"):
        harness.jobs.check_room()
    assert len(harness.jobs.list()) <= 6
    await harness.jobs.kill("015")
    harness.jobs.check_room()
    await harness.jobs.close()


async def test_finished_jobs_are_kept_for_a_while(harness: Harness) -> None:
    await harness.finish()
    harness.now += 8 * HOUR - 1
    await harness.finish()
    assert [info.id for info in harness.jobs.list()] == ["001", "002"]
    harness.now += 1
    await harness.finish()
    assert [info.id for info in harness.jobs.list()] == ["002", "003"]


async def test_jobs_of_a_run_die_with_it(harness: Harness) -> None:
    """R4: those of the cancelled run, and no others."""
    token, other = new_token(), new_token()
    harness.start(f"trap '' TERM INT; setsid sleep {token} & sleep {token}; sleep {token}", run="r1")
    harness.start(f"sleep {other}", run="r2")
    await harness.jobs.end_run(RunId("r1"))
    assert not survivors(token)
    assert [info.state for info in harness.jobs.list()] == ["killed", "running"]
    await harness.jobs.end_run(RunId("unknown"))
    await harness.jobs.close()
    assert not survivors(other)


async def test_removing_session_ends_its_jobs(harness: Harness) -> None:
    token = new_token()
    harness.start(f"sleep {token}", TWO)
    await harness.finish(session=ONE)
    await harness.jobs.end_session(TWO)
    assert not survivors(token)
    assert [info.id for info in harness.jobs.list()] == ["002"]


async def test_close_stops_all_jobs_and_refuses_new_ones(harness: Harness) -> None:
    tokens = [new_token() for _ in range(3)]
    for token in tokens:
        harness.start(f"trap '' TERM INT; echo on; while :; do sleep {token}; done")
    await harness.jobs.close(limit=0.1)
    assert not [left for token in tokens for left in survivors(token)]
    with pytest.raises(TooManyJobs):
        harness.jobs.check_room()
    assert harness.busy == [True, False]


async def test_busy_state_changes_with_first_and_last_job(harness: Harness) -> None:
    one, two = harness.start("sleep 1000"), harness.start("sleep 1000")
    assert harness.jobs.is_busy
    await harness.jobs.kill(one.info.id)
    assert harness.busy == [True]
    await harness.jobs.kill(two.info.id)
    assert harness.busy == [True, False]
    await harness.finish()
    assert harness.busy == [True, False, True, False]
