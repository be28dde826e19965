"""The `bash` tool: runs a shell command, in the background on request or if it takes long."""

import asyncio
from pathlib import Path

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.domain.processes import JobInfo, TooManyJobs
from holdfast.domain.tools import Permit, ToolContext, ToolOutcome
from holdfast.tools.base import BaseTool, metadata
from holdfast.workspace.files.safe_open import require_workspace
from holdfast.workspace.process.command_process import RunningCommand
from holdfast.workspace.process.guard_client import TreeEnd
from holdfast.workspace.process.jobs import Job, Jobs
from holdfast.workspace.process.shell_launch import Shell

__all__ = ["Bash", "BashArguments", "BashTimes", "output_text"]

_STOPPED_LEFTOVERS = (
    "[Processes that the command had left running were stopped. To keep a process running, set run_in_background.]"
)


class BashTimes(msgspec.Struct, frozen=True):
    """Times in seconds. `early`: how long the start of a background job is watched for a failure."""

    auto_background: float = 60.0
    early: float = 1.0


class BashArguments(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Arguments of the tool `bash`."""

    command: str
    description: str = ""
    working_dir: str = ""
    run_in_background: bool = False
    auto_background_after: int = 0


class Bash(BaseTool[BashArguments]):
    """Runs shell commands. One instance per workspace, like its jobs."""

    name = "bash"
    arguments = BashArguments

    def __init__(self, shell: Shell, jobs: Jobs, times: BashTimes | None = None) -> None:
        super().__init__()
        self._shell = shell
        self._jobs = jobs
        self._times = times or BashTimes()

    async def act(self, context: ToolContext, arguments: BashArguments) -> ToolOutcome:
        """Request permission and run the command, in the background if requested or if it takes long."""
        cwd = _directory(context, arguments)
        params = {**msgspec.to_builtins(arguments), "working_dir": cwd}
        what = f"Execute command: {arguments.command}"
        await context.permit(Permit(self.name, "execute", cwd, what, params, arguments.command))
        await self.prepare()
        if arguments.run_in_background:
            self._jobs.check_room()
        launch = self._shell.launch(arguments.command, cwd, context.environment)
        launch = msgspec.structs.replace(launch, owner=context.session_id)
        call = _Call(context, arguments, cwd, context.now_ms())
        # No await between here and the `try`: a cancel finds either no process or one that it stops.
        running = self._shell.processes.start(launch, on_output=context.publish_output)
        try:
            return await self._watch(call, running)
        except BaseException:
            if call.is_handed_over:
                raise
            await running.stop_and_wait(self._shell.processes.grace)
            raise

    async def prepare(self) -> None:
        """Hook for subclasses: called after the approval, before the command is started."""

    async def _watch(self, call: "_Call", running: RunningCommand) -> ToolOutcome:
        if call.arguments.run_in_background:
            job = self._jobs.add(call.job(), running)
            try:
                await _wait(running, self._times.early)
                if not job.has_ended:
                    return self._to_background(call, job)
            finally:
                if not call.is_handed_over:
                    self._jobs.remove(job)
            return self._outcome(call, running, running.ended.result())
        seconds = call.arguments.auto_background_after
        await _wait(running, seconds if seconds > 0 else self._times.auto_background)
        if not running.ended.done() and not running.exited.done():
            try:
                return self._to_background(call, self._jobs.add(call.job(), running))
            except TooManyJobs:
                # Keep it in the foreground, where it can still be cancelled.
                pass
        return self._outcome(call, running, await running.wait())

    def _outcome(self, call: "_Call", running: RunningCommand, end: TreeEnd) -> ToolOutcome:
        if end.is_lost:
            self._jobs.record_fault(call.run_id, call.arguments.command, running)
        return call.outcome(running, end)

    def _to_background(self, call: "_Call", job: Job) -> ToolOutcome:
        call.is_handed_over = True
        job.running.stop_live_output()
        return call.background(job)


class _Call:
    """Common data of the results of one call."""

    def __init__(self, context: ToolContext, arguments: BashArguments, cwd: str, start_ms: int) -> None:
        self.arguments = arguments
        self.is_handed_over = False
        self._context = context
        self.run_id = context.run_id
        self._cwd = cwd
        self._start_ms = start_ms

    def job(self) -> JobInfo:
        context, arguments = self._context, self.arguments
        about = (arguments.command, arguments.description, self._cwd, self._start_ms)
        return JobInfo("", context.session_id, context.run_id, *about)

    def outcome(self, running: RunningCommand, end: TreeEnd) -> ToolOutcome:
        if end.error:
            raise ToolError(end.error)
        text = output_text(running.stdout.excerpt(), running.stderr.excerpt(), end.code, _end_remark(running, end))
        content = f"{text}\n\n<cwd>{self._cwd}</cwd>" if text else "no output"
        return ToolOutcome(content, self._metadata(text), is_error=end.is_lost)

    def background(self, job: Job) -> ToolOutcome:
        output = job.output()
        text = output_text(output.stdout, output.stderr, None)
        message = (
            f"The command continues in the background as job {job.info.id}.\n"
            f'Read it with job_output {{"shell_id": "{job.info.id}"}}, stop it with job_kill.'
        )
        so_far = f"\n\nOutput so far:\n{text}" if text else ""
        seen = self._metadata(text, background=True, shell_id=job.info.id)
        return ToolOutcome(f"{message}{so_far}\n\n<cwd>{self._cwd}</cwd>", seen)

    def _metadata(self, output: str, **more: object) -> str:
        return metadata(
            start_time=self._start_ms,
            end_time=self._context.now_ms(),
            output=output,
            description=self.arguments.description,
            working_directory=self._cwd,
            **more,
        )


async def _wait(running: RunningCommand, seconds: float) -> None:
    """Wait for the end of the command, at most this long."""
    await asyncio.wait([running.ended], timeout=seconds)


def output_text(stdout: str, stderr: str, code: int | None, remark: str = "") -> str:
    """Return the output, followed by the way the command ended unless it succeeded."""
    exit_line = f"Exit code {code}" if code else ""
    parts = (stdout.rstrip("\n"), stderr.rstrip("\n"), remark, exit_line)
    return "\n".join(part for part in parts if part)


def _end_remark(running: RunningCommand, end: TreeEnd) -> str:
    return "\n".join(filter(None, (_describe_end(end), running.remark)))


def _describe_end(end: TreeEnd) -> str:
    if end.left:
        numbers = ", ".join(map(str, end.left))
        return f"[These processes run as another user and could not be stopped: {numbers}.]"
    if end.code is None:
        return "[The command was stopped before it finished.]"
    return _STOPPED_LEFTOVERS if end.was_killed else ""


def _directory(context: ToolContext, arguments: BashArguments) -> str:
    if not arguments.command.strip():
        raise ToolError("The command is empty.")
    if "\0" in arguments.command or "\0" in arguments.working_dir:
        raise ToolError("A command cannot contain a NUL character.")
    location = Path(context.workspace_path, arguments.working_dir).resolve()
    if not location.is_dir():
        require_workspace(context.workspace_path)
        raise ToolError(f"{location} is not a directory: choose another working_dir, or leave it out.")
    return str(location)
