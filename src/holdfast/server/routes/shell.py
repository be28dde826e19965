"""Handlers for shell commands of the user, background jobs and the sandbox."""

from holdfast.domain.errors import BadRequest, ToolError
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import ShellCommand
from holdfast.domain.processes import JobInfo, JobOutput, SandboxState, ShellResult
from holdfast.server.http.request import Request

__all__ = ["get_sandbox", "job_output", "kill_job", "list_jobs", "run_shell"]


async def run_shell(request: Request) -> ShellResult:
    """Run a command that the user typed. It is cancelled when the client disconnects; its output becomes part of the
    session.
    """
    handle = request.handle
    line = request.body.command
    if not line.strip():
        raise BadRequest("The command is empty.")
    try:
        await handle.services.update_sandbox()
        environment = dict(item.partition("=")[::2] for item in handle.env)
        width = request.body.term_width
        result = await handle.services.shell.call(line, handle.path, environment, columns=width, owner=request.session)
    except ToolError as error:
        raise BadRequest(str(error)) from None
    await handle.workspace.sessions.note_shell(request.session, ShellCommand(line, result.output, result.exit_code))
    return result


async def list_jobs(request: Request) -> tuple[JobInfo, ...]:
    """Return the background jobs."""
    return request.services.jobs.list(
        SessionId(request.query["session_id"]) if request.query.get("session_id") else None
    )


async def job_output(request: Request) -> JobOutput:
    """Return the output of a job."""
    return request.services.jobs.output(request.params["job_id"])


async def kill_job(request: Request) -> JobOutput:
    """Kill a job and return its output."""
    return await request.services.jobs.kill(request.params["job_id"])


async def get_sandbox(request: Request) -> SandboxState:
    """Return the state of the sandbox."""
    try:
        return await request.services.update_sandbox()
    except ToolError as error:
        raise BadRequest(str(error)) from None
