"""Handlers for shell commands of the user, background jobs, the sandbox and trust."""

import asyncio
import os
import time

from holdfast.config.problems import format_key
from holdfast.domain.errors import BadRequest, ToolError
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import ShellCommand
from holdfast.domain.processes import JobInfo, JobOutput, SandboxState, ShellResult
from holdfast.extensions.trusted_files import (
    TrustableFile,
    combined_digest,
    find_trustable_files,
    grant_trust,
    revoke_trust,
    untrusted_files,
)
from holdfast.protocol.bodies import TrustBody, WithheldKey
from holdfast.server.http.request import Request

__all__ = ["get_sandbox", "get_trust", "job_output", "kill_job", "list_jobs", "run_shell", "set_trust"]


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


async def get_trust(request: Request) -> TrustBody:
    """Return whether the project's files are trusted, and which settings are withheld."""
    configuration = request.services.configuration
    reading = configuration.snapshot()
    files = await _trustable_files(request)
    waiting = untrusted_files(files, configuration.trust)
    project = reading.project
    withheld = [WithheldKey(format_key(item.path), item.file, item.line) for item in reading.withheld]
    withheld += [WithheldKey(key, file.path, line) for file in waiting for key, line, _ in file.entries]
    is_trusted = (project.is_trusted or not project.files) and not waiting
    paths = (*project.files, *(file.path for file in files))
    return TrustBody(is_trusted, paths, combined_digest(project.digest, files), tuple(withheld))


async def set_trust(request: Request) -> TrustBody:
    """Set the trust. The digest must match the files as they are, so that only files that were shown are trusted."""
    configuration = request.services.configuration
    project = configuration.snapshot().project
    files = await _trustable_files(request)
    if request.body.trusted:
        if request.body.digest != combined_digest(project.digest, files):
            raise BadRequest("The project's files are not what was shown: look at them again.")
        grant_trust(configuration, files, at=time.time())
    else:
        revoke_trust(configuration, files)
    request.services.notify_settings_changed()
    return await get_trust(request)


async def _trustable_files(request: Request) -> tuple[TrustableFile, ...]:
    return await asyncio.to_thread(find_trustable_files, request.services.configuration.locations, os.environ)
