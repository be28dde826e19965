"""The `job_output` and `job_kill` tools: read and stop background jobs."""

import asyncio

import msgspec

from holdfast.domain.processes import JobInfo, JobOutput
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool, metadata
from holdfast.tools.bash import output_text
from holdfast.workspace.process.jobs import Jobs

__all__ = ["JobKill", "JobKillArguments", "JobOutputArguments", "JobOutputTool"]


_SETTLING = 0.3


class JobOutputArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the tool `job_output`."""

    shell_id: str
    wait: bool = False


class JobOutputTool(BaseTool[JobOutputArguments]):
    """The tool `job_output`: returns the output of a background job."""

    name = "job_output"
    is_parallel = True
    arguments = JobOutputArguments

    def __init__(self, jobs: Jobs) -> None:
        super().__init__()
        self._jobs = jobs

    async def act(self, context: ToolContext, arguments: JobOutputArguments) -> ToolOutcome:
        """Return the output of the job; wait for its end if requested."""
        job = self._jobs.get(arguments.shell_id, context.session_id)
        if arguments.wait:
            await asyncio.shield(job.running.exited)
            # Also wait for the last output and for child processes that are exiting.
            await asyncio.wait([job.running.ended], timeout=_SETTLING)
        output = job.output()
        return ToolOutcome(_text(output), _metadata(output.job))


def _text(output: JobOutput) -> str:
    job = output.job
    is_running = job.state == "running"
    status = "running" if is_running else "completed"
    if is_running and job.exit_code is not None:
        status += f" (the command itself has ended with exit code {job.exit_code}; processes that it started continue)"
    text = output_text(output.stdout, output.stderr, None if is_running else job.exit_code)
    return f"Status: {status}\n\n{text or 'no output'}"


def _metadata(job: JobInfo) -> str:
    return metadata(
        shell_id=job.id,
        command=job.command,
        description=job.description,
        done=job.state != "running",
        working_directory=job.working_directory,
    )


class JobKillArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the tool `job_kill`."""

    shell_id: str


class JobKill(BaseTool[JobKillArguments]):
    """The tool `job_kill`: stops a background job."""

    name = "job_kill"
    arguments = JobKillArguments

    def __init__(self, jobs: Jobs) -> None:
        super().__init__()
        self._jobs = jobs

    async def act(self, context: ToolContext, arguments: JobKillArguments) -> ToolOutcome:
        """Stop the job and return its output."""
        was_over = self._jobs.get(arguments.shell_id, context.session_id).has_ended
        output = await self._jobs.kill(arguments.shell_id, context.session_id)
        job = output.job
        about = metadata(shell_id=job.id, command=job.command, description=job.description)
        message = f"Job {job.id} had already ended and was removed." if was_over else f"Job {job.id} was stopped."
        text = output_text(output.stdout, output.stderr, None)
        content = f"{message}\n\nIts output:\n{text}" if text else message
        return ToolOutcome(content, about)
