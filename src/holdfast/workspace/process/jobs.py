"""Background jobs of one workspace.

A job belongs to the session and the run that started it. Jobs of a completed run continue, listed and killable; those
of any other run are killed with it. Finished jobs are kept for a while for reading, and do not count against the
limit.
"""

import asyncio
from collections.abc import Callable, Sequence

import msgspec

from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.processes import JobInfo, JobOutput, TooManyJobs, UnknownJob
from holdfast.workspace.process.command_process import RunningCommand
from holdfast.workspace.process.guard_client import UNPROVEN

__all__ = ["Job", "JobLimits", "Jobs"]

_MAX_COMMAND_TEXT = 200


class JobLimits(msgspec.Struct, frozen=True):
    """Limits: `max_jobs` jobs run at the same time, and as many finished ones are kept, for at most `kept_ms`."""

    max_jobs: int = 50
    kept_ms: int = 8 * 60 * 60 * 1_000
    grace: float = 2.0
    brief_grace: float = 0.1
    """Grace period for jobs of a run that has already used its own."""


class Job:
    """A command in the background."""

    def __init__(self, info: JobInfo, running: RunningCommand) -> None:
        self._info = info
        self.running = running
        self.was_killed = False

    @property
    def has_ended(self) -> bool:
        """True if all processes of the job have ended."""
        return self.running.ended.done()

    @property
    def info(self) -> JobInfo:
        """The current state of the job."""
        exited = self.running.exited
        code = exited.result() if exited.done() else None
        state = "running" if not self.has_ended else "killed" if self.was_killed else "completed"
        return msgspec.structs.replace(self._info, state=state, exit_code=code)

    def set_end(self, ended_at: int) -> None:
        """Store the time of its end."""
        self._info = msgspec.structs.replace(self._info, ended_at=ended_at)

    def output(self) -> JobOutput:
        """Return the output so far, with remarks about its end."""
        errors = self.running.stderr.excerpt()
        stderr = "\n".join(filter(None, (errors.rstrip("\n"), self.running.remark))) if self.running.remark else errors
        return JobOutput(self.info, self.running.stdout.excerpt(), stderr)


class Jobs:
    """Registry of the jobs. `on_busy` is called when the first job starts and when the last one has ended."""

    def __init__(
        self,
        now_ms: Callable[[], int],
        *,
        limits: JobLimits | None = None,
        on_busy: Callable[[bool], None] = lambda _: None,
    ) -> None:
        self._now_ms = now_ms
        self._limits = limits or JobLimits()
        self.on_busy = on_busy
        self._jobs: dict[str, Job] = {}
        self._count = 0
        self._faults: dict[RunId, str] = {}
        self._is_busy = False
        self._is_closed = False

    @property
    def is_busy(self) -> bool:
        """True if any job is running."""
        return self._is_busy

    def check_room(self) -> None:
        """Raise `TooManyJobs` if no job can be added."""
        running = [job.info.id for job in self._jobs.values() if not job.has_ended]
        if self._is_closed or len(running) >= self._limits.max_jobs:
            raise TooManyJobs(
                f"{len(running)} background jobs are running, which is the limit: stop one with job_kill first. "
                f"They are: {', '.join(running)}."
            )

    def add(self, info: JobInfo, running: RunningCommand) -> Job:
        """Register a running command as a job with the next id. Raises `TooManyJobs`."""
        self._remove_old()
        self.check_room()
        self._count += 1
        job = Job(msgspec.structs.replace(info, id=f"{self._count:03X}"), running)
        self._jobs[job.info.id] = job
        # A job includes all its processes: it runs as long as any of them.
        running.set_linger(None)
        running.ended.add_done_callback(lambda _: self._handle_end(job))
        self._update_busy()
        return job

    def remove(self, job: Job) -> None:
        """Remove a job that has ended or was never published."""
        self._jobs.pop(job.info.id, None)
        self._update_busy()

    def get(self, job_id: str, session: SessionId | None = None) -> Job:
        """Return a job by id, optionally restricted to a session. Raises `UnknownJob`."""
        job = self._jobs.get(job_id.strip().upper())
        if job is None or (session is not None and job.info.session_id != session):
            known = ", ".join(info.id for info in self.list(session))
            raise UnknownJob(
                f"There is no background job with this id. {f'There is: {known}.' if known else 'There are none.'}"
            )
        return job

    def list(self, session: SessionId | None = None) -> tuple[JobInfo, ...]:
        """Return all jobs, or those of a session, oldest first."""
        infos = [job.info for job in self._jobs.values()]
        return tuple(info for info in infos if session is None or info.session_id == session)

    def output(self, job_id: str) -> JobOutput:
        """Return the output of a job. Raises `UnknownJob`."""
        return self.get(job_id).output()

    async def kill(self, job_id: str, session: SessionId | None = None) -> JobOutput:
        """Stop and remove a job. Returns its output."""
        job = self.get(job_id, session)
        await self._stop([job], self._limits.grace)
        self.remove(job)
        return job.output()

    def record_fault(self, run: RunId, command: str, running: RunningCommand) -> None:
        """Record that a supervisor of a command was killed: the run must not end as completed."""
        remark = running.ended.result().remark if running.ended.done() else UNPROVEN
        line = " ".join(command.split())
        shown = line if len(line) <= _MAX_COMMAND_TEXT else f"{line[:_MAX_COMMAND_TEXT]}…"
        self._faults[run] = f"{remark.strip('[]')} The command: {shown}"
        while len(self._faults) > self._limits.max_jobs:
            del self._faults[next(iter(self._faults))]

    def fault_of(self, run: RunId) -> str:
        """Return why a run must not end as completed; empty if it may."""
        for job in self._jobs.values():
            if job.info.run_id == run and job.running.is_lost:
                self.record_fault(run, job.info.command, job.running)
        return self._faults.get(run, "")

    async def end_run(self, run: RunId) -> None:
        """Stop the jobs of a run that did not complete, and wait until they are gone."""
        self._faults.pop(run, None)
        await self._stop([job for job in self._jobs.values() if job.info.run_id == run], self._limits.brief_grace)

    async def end_session(self, session: SessionId) -> None:
        """Stop and remove the jobs of a deleted session."""
        jobs = [job for job in self._jobs.values() if job.info.session_id == session]
        await self._stop(jobs, self._limits.brief_grace)
        for job in jobs:
            self.remove(job)

    async def close(self, limit: float = 5.0) -> None:
        """Stop all jobs; they are killed after `limit` seconds at most. No further job can be added."""
        self._is_closed = True
        await self._stop(tuple(self._jobs.values()), min(self._limits.grace, limit))
        self._jobs.clear()
        self._update_busy()

    def skip_graces(self) -> None:
        """Kill jobs at once from now on."""
        self._limits = msgspec.structs.replace(self._limits, grace=0.0, brief_grace=0.0)

    async def _stop(self, jobs: Sequence[Job], grace: float) -> None:
        open_jobs = [job for job in jobs if not job.has_ended]
        for job in open_jobs:
            job.was_killed = True
            job.running.stop(grace)
        # Stopping continues if the waiter is cancelled.
        await asyncio.gather(*(job.running.wait() for job in open_jobs))

    def _handle_end(self, job: Job) -> None:
        job.set_end(self._now_ms())
        self._update_busy()

    def _remove_old(self) -> None:
        over = sorted((job.info.ended_at, job.info.id) for job in self._jobs.values() if job.has_ended)
        oldest = self._now_ms() - self._limits.kept_ms
        surplus = len(over) - self._limits.max_jobs + 1
        for index, (ended_at, job_id) in enumerate(over):
            if ended_at <= oldest or index < surplus:
                del self._jobs[job_id]

    def _update_busy(self) -> None:
        is_busy = any(not job.has_ended for job in self._jobs.values())
        if is_busy != self._is_busy:
            self._is_busy = is_busy
            self.on_busy(is_busy)
