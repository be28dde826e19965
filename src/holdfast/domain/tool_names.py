"""Names of the tools, what other programs call them, and the actions each of them requests. Pure.

Settings are validated without loading a single tool, so the names are listed here once; a test compares the list with
the tools that exist.
"""

import difflib
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase

__all__ = [
    "CLAUDE_NAMES",
    "FOREIGN",
    "MCP_FORM",
    "TOOLS",
    "UNASKED",
    "is_known_tool",
    "matching_tools",
    "our_tool",
    "suggest",
    "their_tool",
]

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

UNASKED = frozenset(
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
_OURS = {name: name for name in TOOLS} | {name.lower(): ours for name, ours in _CLAUDE.items()} | _CRUSH
_THEIRS = {ours: name for name, ours in _CLAUDE.items()}
CLAUDE_NAMES = (*_CLAUDE, "NotebookEdit", "NotebookRead", "ExitPlanMode", "SlashCommand", "Skill")
FOREIGN = frozenset({"notebookedit", "notebookread", "exitplanmode", "slashcommand", "skill", "sourcegraph"})
"""Tools of Claude Code and Crush that have no counterpart here: a rule about one of them is vacuous, not a mistake."""


def our_tool(name: str) -> str:
    """Return our name of a tool: `view` for `Read`, `mcp_git_log` for `mcp__git__log`. An unknown name is returned
    unchanged.
    """
    if name.startswith("mcp__"):
        return "_".join(piece for piece in name.split("__", 2) if piece)
    return _OURS.get(name.lower(), name)


def their_tool(name: str) -> str:
    """Return Claude Code's name of a tool."""
    if name.startswith("mcp_"):
        return "mcp__" + name.removeprefix("mcp_").replace("_", "__", 1)
    return _THEIRS.get(name, name)


def matching_tools(pattern: str) -> tuple[str, ...]:
    """Return the built-in tools that a name with wildcards covers."""
    return tuple(name for name in TOOLS if fnmatchcase(name, pattern))


def is_known_tool(name: str) -> bool:
    """Return True for a name of ours, of Claude Code or of Crush, with or without wildcards, and for every name of the
    MCP form.
    """
    if name.lower() in FOREIGN:
        return True
    ours = our_tool(name)
    return bool(matching_tools(ours)) or MCP_FORM.fullmatch(ours) is not None or name.startswith("mcp__")


def suggest(name: str, known: Sequence[str] = tuple(TOOLS)) -> str:
    """Return `; did you mean …?` for the closest known name, or a full stop."""
    close = difflib.get_close_matches(name.lower(), known, n=1) if len(name) <= 60 else []
    return f"; did you mean {close[0]}?" if close else "."
