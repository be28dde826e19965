"""Background jobs, and the sandbox of commands, as clients see them."""

from typing import Literal

import msgspec

from holdfast.domain.errors import NotFound, ToolError
from holdfast.domain.ids import RunId, SessionId

__all__ = [
    "PROTECTED",
    "JobInfo",
    "JobOutput",
    "JobState",
    "Mechanism",
    "SandboxState",
    "ShellResult",
    "TooManyJobs",
    "UnknownJob",
]


JobState = Literal["running", "completed", "killed"]
"""`completed`: it ended by itself, with any exit code; `killed`: it was stopped by a call or a client."""
PROTECTED = (
    "holdfast.toml",
    ".holdfast.toml",
    ".holdfast",
    "crush.json",
    ".crush.json",
    ".crush",
    ".mcp.json",
    ".claude",
    ".agents",
    ".cursor",
    ".hg/hgrc",
)
"""Paths in a workspace directory that are read outside of the sandbox, as settings, hooks, servers, skills, commands
and agents, and therefore protected in it. Git directories are protected in addition.
"""


class JobInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """One job. Times are Unix milliseconds. `exit_code` is set as soon as the command itself has ended."""

    id: str
    session_id: SessionId
    run_id: RunId
    command: str
    description: str
    working_directory: str
    started_at: int
    state: JobState = "running"
    exit_code: int | None = None
    ended_at: int = 0


class JobOutput(msgspec.Struct, frozen=True):
    """A job and its output so far, possibly truncated."""

    job: JobInfo
    stdout: str
    stderr: str


class ShellResult(msgspec.Struct, frozen=True):
    """The output and exit code of a shell command that a user typed."""

    output: str
    exit_code: int


class UnknownJob(NotFound, ToolError):
    """There is no such background job."""


class TooManyJobs(ToolError):
    """Too many background jobs are running: stop one with job_kill, or wait for one to end."""


Mechanism = Literal["bubblewrap", "landlock"]
"""The enforcing mechanism: the program bubblewrap, or the kernel (Landlock), set up by the guard."""


class SandboxState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The sandbox in force, for clients. `gaps` are restrictions that this machine cannot enforce."""

    mode: Literal["off", "workspace"] = "off"
    mechanism: Mechanism | None = None
    network: bool = True
    writable: tuple[str, ...] = ()
    protected: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    gaps: tuple[str, ...] = ()
