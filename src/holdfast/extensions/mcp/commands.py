"""Prompts of MCP servers as slash commands: `/server:prompt words name=value`."""

import shlex
from collections.abc import Mapping, Sequence

from holdfast.domain.commands import CommandArgument, CommandNote
from holdfast.domain.mcp import McpArgument, McpPrompt
from holdfast.extensions.mcp.mcp import Mcp

__all__ = ["McpCommands", "arguments_in"]


class McpCommands:
    """Slash commands for MCP prompts. The server renders the prompt when the command is used."""

    def __init__(self, mcp: Mcp) -> None:
        self._mcp = mcp

    def commands(self) -> Sequence[CommandNote]:
        """Return a command for each known prompt."""
        return [_note(prompt) for prompt in self._mcp.prompts()]

    async def expand(self, name: str, arguments: str, given: Mapping[str, str]) -> str | None:
        """Return the text of the prompt, or None if `name` is not an MCP prompt."""
        server, colon, prompt = name.partition(":")
        if not colon or server not in self._mcp.states():
            return None
        servers = await self._mcp.servers()
        await servers.known(server)
        known = next((known for known in servers.prompts() if known.id == name), None)
        if known is None:
            return None
        return await servers.prompt(server, prompt, {**arguments_in(arguments, known.arguments), **given})


def _note(prompt: McpPrompt) -> CommandNote:
    hint = " ".join(f"<{item.id}>" if item.required else f"[{item.id}]" for item in prompt.arguments)
    arguments = tuple(CommandArgument(item.id, item.description, item.required) for item in prompt.arguments)
    return CommandNote(prompt.id, "mcp", prompt.description or prompt.title, hint, arguments)


def arguments_in(typed: str, wanted: Sequence[McpArgument]) -> dict[str, str]:
    """Assign the typed arguments: `name=value` for known names, other words in order. The last argument receives all
    remaining words.
    """
    names = [item.id for item in wanted]
    found: dict[str, str] = {}
    words: list[str] = []
    for word in _words(typed):
        name, sign, value = word.partition("=")
        if sign and name in names:
            found[name] = value
        else:
            words.append(word)
    left = [name for name in names if name not in found]
    for index, name in enumerate(left):
        if words:
            found[name] = " ".join(words) if index == len(left) - 1 else words.pop(0)
    return found


def _words(typed: str) -> list[str]:
    """Split as a shell does. Text with an unclosed quote is split at white space."""
    try:
        return shlex.split(typed)
    except ValueError:
        return typed.split()
