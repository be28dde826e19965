"""Servers of tools, prompts and resources, as clients see them."""

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
"""`needs auth`: somebody has to log in. Stock clients know these five words and no others."""

McpChange = Literal["state_changed", "tools_list_changed", "prompts_list_changed", "resources_list_changed"]

NEVER = "0001-01-01T00:00:00Z"


class McpInfo(msgspec.Struct, frozen=True, omit_defaults=True):
    """A server as it is now. `error` says why it is not connected, and what to do."""

    name: str
    state: McpState
    connected_at: str
    error: str = ""
    tool_count: int = 0
    prompt_count: int = 0
    resource_count: int = 0
    type: str = ""
    """How it is reached."""
    tools: tuple[str, ...] = ()
    """What models know its tools by."""


class McpNotice(msgspec.Struct, frozen=True, omit_defaults=True):
    """What has become of a server, or of its lists."""

    type: McpChange
    name: str
    state: McpState
    error: str = ""
    tool_count: int = 0
    prompt_count: int = 0
    resource_count: int = 0


class McpArgument(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a prompt wants to know before it is made."""

    id: str
    title: str
    description: str = ""
    required: bool = False


class McpPrompt(msgspec.Struct, frozen=True, omit_defaults=True):
    """A text that a server makes for a user: a slash command. `client_id` is the server's name."""

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
    """A server that waits for a login, and its address."""

    name: str
    url: str
