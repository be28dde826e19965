"""The routes of MCP servers, and their bodies."""

from typing import Annotated

import msgspec

from holdfast.domain.mcp import McpContents, McpInfo, McpLogin, McpPrompt
from holdfast.domain.settings import McpSettings
from holdfast.protocol.route import Query, Route, get, post

__all__ = [
    "MCP_ROUTES",
    "McpAskPrompt",
    "McpAskResource",
    "McpAuthUrl",
    "McpDone",
    "McpLoan",
    "McpLog",
    "McpName",
    "McpText",
]


class McpName(msgspec.Struct, frozen=True):
    """The name of a server."""

    name: str


class McpAskPrompt(msgspec.Struct, frozen=True):
    """A request for a prompt. `client_id` is the server's name."""

    client_id: str
    prompt_id: str
    args: dict[str, str] = {}


class McpText(msgspec.Struct, frozen=True):
    """The text of a prompt."""

    prompt: str


class McpAskResource(msgspec.Struct, frozen=True):
    """A request for a resource of a server."""

    name: str
    uri: str


class McpAuthUrl(msgspec.Struct, frozen=True, omit_defaults=True):
    """The address at which a user has to log in; empty while no login is in progress."""

    auth_url: str = ""


class McpLog(msgspec.Struct, frozen=True):
    """The output of a server."""

    name: str
    text: str


class McpLoan(msgspec.Struct, frozen=True):
    """All servers that a client provides, by name. They exist while the client is connected and are not stored."""

    client_id: str
    servers: dict[Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{1,40}$")], McpSettings]


class McpDone(msgspec.Struct, frozen=True):
    """The request succeeded; there is no content."""


_M = "/workspaces/{id}/mcp"
_NAME = (Query("name", is_required=True),)

MCP_ROUTES: tuple[Route, ...] = (
    get("mcp_states", _M + "/states", "MCP servers.", dict[str, McpInfo]),
    get("mcp_prompts", _M + "/prompts", "Prompts of MCP servers.", tuple[McpPrompt, ...], errors=(404,)),
    get(
        "mcp_pending_auth",
        _M + "/pending-auth",
        "MCP servers that wait for a login.",
        tuple[McpLogin, ...],
        errors=(404,),
    ),
    post("mcp_refresh_tools", _M + "/refresh-tools", "Look at tools again.", McpName, errors=(400, 404)),
    post("mcp_refresh_prompts", _M + "/refresh-prompts", "Look at prompts again.", McpName, errors=(400, 404)),
    post("mcp_refresh_resources", _M + "/refresh-resources", "Look at resources again.", McpName, errors=(400, 404)),
    post("mcp_get_prompt", _M + "/get-prompt", "A prompt of an MCP server.", McpAskPrompt, McpText, errors=(400, 404)),
    post(
        "mcp_read_resource",
        _M + "/read-resource",
        "A resource of an MCP server.",
        McpAskResource,
        tuple[McpContents, ...],
        errors=(400, 404),
    ),
    get(
        "mcp_auth_url",
        _M + "/auth-url",
        "Where to log in to an MCP server.",
        McpAuthUrl,
        query=_NAME,
        errors=(400, 404),
    ),
    post("mcp_auth", _M + "/auth", "Log in to an MCP server.", McpName, McpDone, errors=(400, 404)),
    post("mcp_restart", _M + "/restart", "Start an MCP server again.", McpName, errors=(400, 404)),
    get("mcp_log", _M + "/log", "What an MCP server has printed.", McpLog, query=_NAME, errors=(400, 404)),
    post("mcp_lend", _M + "/lend", "MCP servers that come and go with a client.", McpLoan, errors=(400, 404, 409)),
    post("mcp_docker_enable", _M + "/docker/enable", "Not built.", errors=(400, 404)),
    post("mcp_docker_disable", _M + "/docker/disable", "Nothing to switch off.", errors=(404,)),
)
