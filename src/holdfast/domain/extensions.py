"""Extensions as clients see them: slash commands, agents, skills, MCP servers and language servers."""

from enum import IntEnum
from typing import Literal

import msgspec

__all__ = [
    "NEVER",
    "CommandArgument",
    "CommandInfo",
    "CommandSource",
    "LspInfo",
    "LspNotice",
    "LspState",
    "McpArgument",
    "McpChange",
    "McpContents",
    "McpInfo",
    "McpLogin",
    "McpNotice",
    "McpPrompt",
    "McpState",
    "SkillState",
    "SkillStates",
    "SubagentInfo",
]


CommandSource = Literal["user", "project", "skill", "mcp"]
NEVER = "0001-01-01T00:00:00Z"
"""The timestamp of an event that has not happened, as stock clients expect it."""


class CommandArgument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A parameter of a command."""

    name: str
    description: str = ""
    required: bool = False


class CommandInfo(msgspec.Struct, frozen=True, omit_defaults=True):
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


class SubagentInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """An agent that a prompt may name with `@name`. Without `tools` it has all tools of the agent that starts it."""

    name: str
    source: Literal["user", "project"]
    description: str = ""
    path: str = ""
    model: str = ""
    tools: tuple[str, ...] | None = None
    withheld: tuple[str, ...] = ()


class SkillState(msgspec.Struct, frozen=True, omit_defaults=True):
    """A skill that was found. `state` is 0 if it can be used and 1 if it cannot; `error` is the reason."""

    name: str
    path: str
    state: Literal[0, 1]
    error: str = ""


class SkillStates(msgspec.Struct, frozen=True):
    """All skills of a workspace."""

    states: tuple[SkillState, ...]


McpState = Literal["disabled", "starting", "connected", "error", "needs auth"]
"""`needs auth`: a user has to log in. Stock clients know these five words and no others."""

McpChange = Literal["state_changed", "tools_list_changed", "prompts_list_changed", "resources_list_changed"]


class McpInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The current state of a server. `error` has the reason for a missing connection and a remedy."""

    name: str
    state: McpState
    connected_at: str
    error: str = ""
    tool_count: int = 0
    prompt_count: int = 0
    resource_count: int = 0
    type: str = ""
    """The transport."""
    tools: tuple[str, ...] = ()
    """The names of its tools in model requests."""


class McpNotice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of the state or of the lists of a server."""

    type: McpChange
    name: str
    state: McpState
    error: str = ""
    tool_count: int = 0
    prompt_count: int = 0
    resource_count: int = 0


class McpArgument(msgspec.Struct, frozen=True, omit_defaults=True):
    """A parameter of a prompt."""

    id: str
    title: str
    description: str = ""
    required: bool = False


class McpPrompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A prompt template of a server, offered as a slash command. `client_id` is the server's name."""

    id: str
    prompt_id: str
    client_id: str
    title: str = ""
    description: str = ""
    arguments: tuple[McpArgument, ...] = ()


class McpContents(msgspec.Struct, frozen=True, omit_defaults=True):
    """A resource, or a part of it: `text`, or `blob` in base64."""

    uri: str
    mime_type: str = ""
    text: str = ""
    blob: str = ""


class McpLogin(msgspec.Struct, frozen=True):
    """A server that waits for a login, and the login URL."""

    name: str
    url: str


class LspState(IntEnum):
    """The state of a language server. The numbers are those of the wire."""

    UNSTARTED = 0
    STARTING = 1
    READY = 2
    ERROR = 3
    STOPPED = 4
    DISABLED = 5


class LspInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """The current state of a language server. `error` has the reason why it is not ready and a remedy; it may be set in
    any state.
    """

    name: str
    state: LspState
    connected_at: str
    error: str = ""
    diagnostic_count: int = 0


class LspNotice(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of a language server, and its current state."""

    type: Literal["state_changed", "diagnostics_changed"]
    name: str
    state: LspState
    error: str = ""
    diagnostic_count: int = 0
