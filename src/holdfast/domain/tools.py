"""The interface between tools and the engine: the context a tool receives and the outcome it returns; the names of the
tools, also in other programs, and the actions each of them requests.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, Protocol

import msgspec

from holdfast.domain.approvals import Question, QuestionAnswer
from holdfast.domain.files import ReadMark
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.model_requests import ToolSpec
from holdfast.domain.store_operations import Operation, Receipt

__all__ = [
    "CLAUDE_NAMES",
    "FOREIGN",
    "INTERACTIVE_TOOLS",
    "MCP_FORM",
    "TOOLS",
    "TOOLS_WITHOUT_REQUESTS",
    "Permit",
    "QuestionBatch",
    "SubagentTask",
    "Tool",
    "ToolContext",
    "ToolOutcome",
    "canonical_tool_name",
    "claude_tool_name",
    "is_known_tool",
    "matching_tools",
    "suggest",
]


INTERACTIVE_TOOLS = frozenset({"question"})
"""Tools that only put questions to the user. Sub-agents and unattended runs do not get them."""
TOOLS: Mapping[str, tuple[str, ...]] = {
    "agent": ("use",),
    "agentic_fetch": ("fetch",),
    "bash": ("execute",),
    "download": ("download",),
    "edit": ("write",),
    "fetch": ("fetch",),
    "glob": ("list",),
    "grep": ("list",),
    "holdfast_info": ("use",),
    "holdfast_logs": ("use",),
    "job_kill": ("execute",),
    "job_output": ("use",),
    "list_mcp_resources": ("list",),
    "ls": ("list",),
    "lsp_call_hierarchy": ("read", "list"),
    "lsp_definition": ("read", "list"),
    "lsp_diagnostics": ("read",),
    "lsp_references": ("read", "list"),
    "lsp_rename": ("read", "list", "write"),
    "lsp_replace_symbol": ("read", "list", "write"),
    "lsp_restart": ("execute",),
    "lsp_symbols": ("read",),
    "multiedit": ("write",),
    "question": ("use",),
    "read_mcp_resource": ("read",),
    "todos": ("use",),
    "view": ("read",),
    "web_fetch": ("use",),
    "write": ("write",),
}
"""The built-in tools with the actions they request; `use` has no effect outside of the conversation. A hook can require
permission for any tool, as `execute`.
"""
TOOLS_WITHOUT_REQUESTS = frozenset(
    {
        "agent",
        "holdfast_info",
        "holdfast_logs",
        "job_kill",
        "job_output",
        "lsp_restart",
        "question",
        "todos",
        "web_fetch",
    }
)
"""Tools that request no permission of their own: the engine requests it for them, so that rules hold for every tool."""
MCP_FORM = re.compile(r"mcp_[A-Za-z0-9*?-][\w*?-]*_[\w*?-]+|mcp_[\w?-]*\*")
"""`mcp_<server>_<tool>`, with wildcards: tools of servers are not known before their server has started."""
_CLAUDE = {
    "Bash": "bash",
    "BashOutput": "job_output",
    "KillShell": "job_kill",
    "KillBash": "job_kill",
    "Read": "view",
    "Write": "write",
    "Edit": "edit",
    "MultiEdit": "multiedit",
    "Glob": "glob",
    "Grep": "grep",
    "LS": "ls",
    "WebFetch": "fetch",
    "WebSearch": "agentic_fetch",
    "Agent": "agent",
    "Task": "agent",
    "TodoWrite": "todos",
    "AskUserQuestion": "question",
}
_CRUSH = {"crush_info": "holdfast_info", "crush_logs": "holdfast_logs", "diagnostics": "lsp_diagnostics"}
_CANONICAL_NAMES = {name: name for name in TOOLS} | {name.lower(): ours for name, ours in _CLAUDE.items()} | _CRUSH
_CLAUDE_NAMES = {ours: name for name, ours in _CLAUDE.items()}
CLAUDE_NAMES = (*_CLAUDE, "NotebookEdit", "NotebookRead", "ExitPlanMode", "SlashCommand", "Skill")
FOREIGN = frozenset({"notebookedit", "notebookread", "exitplanmode", "slashcommand", "skill", "sourcegraph"})
"""Tools of Claude Code and Crush that have no counterpart here: a rule about one of them is vacuous, not a mistake."""


class ToolOutcome(msgspec.Struct, frozen=True):
    """The result of a tool call. `stops_turn`: no further model request is made in this turn (a person refused)."""

    content: str
    metadata: str = ""
    is_error: bool = False
    data: str = ""
    mime_type: str = ""
    stops_turn: bool = False


class Permit(msgspec.Struct, frozen=True):
    """A permission request of a tool, before the rules are applied.

    `action` is a verb (`execute`, `write`, `read`, `list`, `fetch`, `download`), `path` the location of the effect, and
    `params` is the content of the dialog. `command` is the shell line, if one is to be run: rules judge it by its
    parts.
    `is_agreed`: the call follows from an earlier agreement, so only a rule that denies it has an effect.
    `continues`: an earlier request of this call was allowed, so the call may have had effects already.
    """

    tool: str
    action: str
    path: str
    description: str
    params: dict[str, Any]
    command: str = ""
    is_agreed: bool = False
    continues: bool = False


class QuestionBatch(msgspec.Struct, frozen=True):
    """Questions for the user, answered as one batch. Their ids are assigned when the request is published."""

    questions: tuple[Question, ...]
    confirm_title: str = ""
    confirm_description: str = ""


class SubagentTask(msgspec.Struct, frozen=True):
    """A task for a sub-agent, which runs in a child session of the caller's. `kind` selects the type of sub-agent."""

    prompt: str
    title: str
    kind: str = "task"


class ToolContext(Protocol):
    """The services a tool may use. Operations that it records are stored with those of its run."""

    @property
    def workspace_path(self) -> str:
        """The absolute path of the workspace directory."""

    @property
    def session_id(self) -> SessionId:
        """The session of the run."""

    @property
    def run_id(self) -> RunId:
        """The run that made the call."""

    @property
    def message_id(self) -> MessageId:
        """The assistant message that contains the call."""

    @property
    def tool_call_id(self) -> ToolCallId:
        """The id of the call."""

    def now_ms(self) -> int:
        """Return the current Unix time in milliseconds."""

    async def record(self, *operations: Operation) -> Receipt:
        """Store the operations in one write and publish their events."""

    async def read_mark(self, path: str) -> ReadMark | None:
        """Return when the session last read the file, or None if it has not."""

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of the client that opened the workspace."""

    @property
    def takes_images(self) -> bool:
        """True if the model that receives the result accepts images."""

    async def permit(self, permit: Permit) -> None:
        """Return when the action may proceed, at once or after a person agreed. Raises `PermissionDenied`."""

    async def ask_questions(self, batch: QuestionBatch) -> tuple[QuestionAnswer, ...] | None:
        """Return one answer for each question, in the same order; None if the person dismissed the batch. Raises
        `ToolError` if there is no client that can answer.
        """

    async def run_subagent(self, task: SubagentTask) -> str:
        """Run a sub-agent and return its final text. Cancelling this call stops it. Raises `ToolError` if there is no
        text.
        """

    def publish_output(self, text: str) -> None:
        """Publish output of a tool that is still running, for clients. The model receives only the outcome."""


class Tool(Protocol):
    """A tool that a model can call."""

    @property
    def spec(self) -> ToolSpec:
        """The name, description and parameters that the model receives."""

    @property
    def is_parallel(self) -> bool:
        """True if the tool may run concurrently with other calls of the same step."""

    async def run(self, context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        """Execute the call. Raises `ToolError`; any other exception becomes an error result too."""


def canonical_tool_name(name: str) -> str:
    """Return our name of a tool: `view` for `Read`, `mcp_git_log` for `mcp__git__log`. An unknown name is returned
    unchanged.
    """
    if name.startswith("mcp__"):
        return "_".join(piece for piece in name.split("__", 2) if piece)
    return _CANONICAL_NAMES.get(name.lower(), name)


def claude_tool_name(name: str) -> str:
    """Return Claude Code's name of a tool."""
    if name.startswith("mcp_"):
        return "mcp__" + name.removeprefix("mcp_").replace("_", "__", 1)
    return _CLAUDE_NAMES.get(name, name)


def matching_tools(pattern: str) -> tuple[str, ...]:
    """Return the built-in tools that a name with wildcards covers."""
    return tuple(name for name in TOOLS if fnmatchcase(name, pattern))


def is_known_tool(name: str) -> bool:
    """Return True for a name of ours, of Claude Code or of Crush, with or without wildcards, and for every name of the
    MCP form.
    """
    if name.lower() in FOREIGN:
        return True
    ours = canonical_tool_name(name)
    return bool(matching_tools(ours)) or MCP_FORM.fullmatch(ours) is not None or name.startswith("mcp__")


def suggest(name: str, known: Sequence[str] = tuple(TOOLS)) -> str:
    """Return `; did you mean …?` for the closest known name, or a full stop."""
    close = difflib.get_close_matches(name.lower(), known, n=1) if len(name) <= 60 else []
    return f"; did you mean {close[0]}?" if close else "."
