"""How Claude Code names tools, rules, models and events, and what we call them. Pure."""

import re

__all__ = ["our_model", "our_rule", "our_tool", "their_event", "their_tool"]

_TOOLS = {
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
_OURS = {name.lower(): ours for name, ours in _TOOLS.items()}
_THEIRS = {ours: name for name, ours in _TOOLS.items()}
_RULE = re.compile(r"([\w*-]+)\s*(?:\((.*)\))?\Z", re.S)
_ALIASES = {"": "", "inherit": "", "default": "", "sonnet": "", "opus": "", "haiku": "small"}


def our_tool(name: str) -> str:
    """`Read` is our `view`, `mcp__git__log` our `mcp_git_log`; every other name is what it is."""
    if name.startswith("mcp__"):
        return "_".join(piece for piece in name.split("__", 2) if piece)
    return _OURS.get(name.lower(), name)


def their_tool(name: str) -> str:
    if name.startswith("mcp_"):
        return "mcp__" + name.removeprefix("mcp_").replace("_", "__", 1)
    return _THEIRS.get(name, name)


def their_event(name: str) -> str:
    """Scripts look at what they are called for."""
    return "Stop" if name == "RunEnd" else name


def our_rule(rule: str) -> str:
    """`Bash(git add:*)` is our `bash(git add *)`. One of ours stays as it is."""
    found = _RULE.fullmatch(rule.strip())
    if found is None:
        return rule.strip()
    tool, pattern = our_tool(found[1]), found[2]
    if pattern is None or pattern.strip() in ("", "*"):
        return tool
    if tool == "bash":
        return f"bash({pattern.strip().removesuffix(':*').rstrip()}{' *' if pattern.strip().endswith(':*') else ''})"
    if tool == "fetch" and pattern.startswith("domain:"):
        return f"fetch(https://{pattern.removeprefix('domain:').strip()}/*)"
    return f"{tool}({pattern.strip()})"


def our_model(name: str) -> str:
    """`large`, `small` or a name; empty where nothing else is wanted than usual."""
    return _ALIASES.get(name.strip().lower(), name.strip())
