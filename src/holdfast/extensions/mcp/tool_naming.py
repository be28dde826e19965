"""Names of MCP tools and prompts for models and users. Pure.

Providers accept letters, digits, `_` and `-`, at most 64 characters; servers name their tools freely.
"""

import hashlib
import re
from collections.abc import Iterable, Sequence

__all__ = ["is_enabled", "prompt_command", "tool_name", "tool_names", "with_hash_suffix"]

_MAX_NAME = 64
_HASH_LENGTH = 6
_INVALID = re.compile(r"[^A-Za-z0-9_-]")


def tool_name(server: str, tool: str) -> str:
    """Return `mcp_<server>_<tool>` with invalid characters replaced. A name that is too long is cut and gets a hash
    suffix.
    """
    plain = f"mcp_{server}_{tool}"
    name = _INVALID.sub("_", plain)
    return name if len(name) <= _MAX_NAME else with_hash_suffix(name, plain)


def tool_names(server: str, tools: Iterable[str]) -> dict[str, str]:
    """Map each tool to a unique name for models."""
    names: dict[str, str] = {}
    taken: set[str] = set()
    for tool in tools:
        name = tool_name(server, tool)
        if name in taken:
            name = with_hash_suffix(name, f"mcp_{server}_{tool}")
        if tool not in names and name not in taken:
            names[tool] = name
            taken.add(name)
    return names


def with_hash_suffix(name: str, plain: str) -> str:
    """Return `name` with a hash suffix of `plain`, to resolve a collision or to shorten it."""
    suffix = hashlib.sha256(plain.encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    return f"{name[: _MAX_NAME - _HASH_LENGTH - 1]}_{suffix}"


def is_enabled(tool: str, enabled: Sequence[str], disabled: Sequence[str]) -> bool:
    """Apply the `enabled_tools` and `disabled_tools` settings of a server. `disabled` takes precedence."""
    return (not enabled or tool in enabled) and tool not in disabled


def prompt_command(server: str, prompt: str) -> str:
    """Return the slash command name of a prompt."""
    return f"{server}:{prompt}"
