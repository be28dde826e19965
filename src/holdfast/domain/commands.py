"""Slash commands and agents as clients know them: the completions of `/` and `@`."""

from typing import Literal

import msgspec

__all__ = ["AgentNote", "CommandArgument", "CommandNote", "CommandSource"]

CommandSource = Literal["user", "project", "skill", "mcp"]


class CommandArgument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A parameter of a command."""

    name: str
    description: str = ""
    required: bool = False


class CommandNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prompt of the form `/name …` that the server expands. `hint` describes the text after the name.

    `withheld` are the keys of its front matter that have no effect, because the project is not trusted.
    """

    name: str
    source: CommandSource
    description: str = ""
    hint: str = ""
    arguments: tuple[CommandArgument, ...] = ()
    path: str = ""
    model: str = ""
    allowed_tools: tuple[str, ...] = ()
    withheld: tuple[str, ...] = ()


class AgentNote(msgspec.Struct, frozen=True, omit_defaults=True):
    """An agent that a prompt may name with `@name`. Without `tools` it has all tools of the agent that starts it."""

    name: str
    source: Literal["user", "project"]
    description: str = ""
    path: str = ""
    model: str = ""
    tools: tuple[str, ...] | None = None
    withheld: tuple[str, ...] = ()
