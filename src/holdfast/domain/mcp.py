"""MCP servers, which offer tools, prompts and resources, as clients see them."""

from typing import Literal

import msgspec

__all__ = [
    "McpArgument",
    "McpChange",
    "McpContents",
    "McpInfo",
    "McpLogin",
    "McpNotice",
    "McpPrompt",
    "McpState",
]

McpState = Literal["disabled", "starting", "connected", "error", "needs auth"]
"""`needs auth`: a user has to log in. Stock clients know these five words and no others."""

McpChange = Literal["state_changed", "tools_list_changed", "prompts_list_changed", "resources_list_changed"]

NEVER = "0001-01-01T00:00:00Z"
"""The timestamp of an event that has not happened, as stock clients expect it."""


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
