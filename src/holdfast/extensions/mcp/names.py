"""What models know tools by. Pure.

Providers take letters, digits, `_` and `-`, at most 64 of them; servers call their tools as they like.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence

__all__ = ["is_wanted", "marked", "prompt_command", "tool_name", "tool_names"]

_LONGEST = 64
_MARK = 6
_OTHER = re.compile(r"[^A-Za-z0-9_-]")


def tool_name(server: str, tool: str) -> str:
    """`mcp_<server>_<tool>`; what had to be changed or cut is told apart by a few digits."""
    plain = f"mcp_{server}_{tool}"
    name = _OTHER.sub("_", plain)
    return name if len(name) <= _LONGEST else marked(name, plain)


def tool_names(server: str, tools: Iterable[str]) -> dict[str, str]:
    """The name of each, no two alike."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for tool in tools:
        name = tool_name(server, tool)
        if name in taken:
            name = marked(name, f"mcp_{server}_{tool}")
        if tool not in names and name not in taken:
            names[tool] = name
            taken.add(name)
    return names


def marked(name: str, plain: str) -> str:
    """Another name, for one that is taken; `plain` is what it is a name for."""
    mark = hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()[:_MARK]
    return f"{name[: _LONGEST - _MARK - 1]}_{mark}"


def is_wanted(tool: str, enabled: Sequence[str], disabled: Sequence[str]) -> bool:
    """By the two lists of a server's settings: what is named in the second is out, whatever the first says."""
    return (not enabled or tool in enabled) and tool not in disabled


def prompt_command(server: str, prompt: str) -> str:
    """What a prompt is called where people type it."""
    return f"{server}:{prompt}"
