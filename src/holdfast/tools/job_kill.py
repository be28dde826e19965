"""Stop a background job."""

import msgspec

from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool, metadata
from holdfast.tools.bash import output_text
from holdfast.workspace.jobs import Jobs

__all__ = ["JobKill", "JobKillArguments"]


class JobKillArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    shell_id: str


class JobKill(BaseTool[JobKillArguments]):
    name = "job_kill"
    arguments = JobKillArguments

    def __init__(self, jobs: Jobs) -> None:
        super().__init__()
        self._jobs = jobs

    async def act(self, context: ToolContext, arguments: JobKillArguments) -> ToolOutcome:
        was_over = self._jobs.get(arguments.shell_id, context.session_id).is_over
        output = await self._jobs.kill(arguments.shell_id, context.session_id)
        job = output.job
        about = metadata(shell_id=job.id, command=job.command, description=job.description)
        told = f"Job {job.id} had ended already and is forgotten." if was_over else f"Job {job.id} was stopped."
        said = output_text(output.stdout, output.stderr, None)
        content = f"{told}\n\nIt had said:\n{said}" if said else told
        return ToolOutcome(content, about)
