"""Routes of MCP and language servers with their bodies, and the bodies of skills and commands."""

from typing import Annotated, Any, Literal

import msgspec

from holdfast.domain.extensions import LspInfo, McpContents, McpInfo, McpLogin, McpPrompt
from holdfast.domain.settings import McpSettings
from holdfast.protocol.route import Query, Route, get, post

__all__ = [
    "LSP_ROUTES",
    "MCP_ROUTES",
    "ClientMcpServers",
    "CommandExpansion",
    "CommandRequest",
    "LspLog",
    "LspRestartRequest",
    "LspRestartResponse",
    "LspStartRequest",
    "McpAuthUrl",
    "McpEmptyResponse",
    "McpLog",
    "McpPromptRequest",
    "McpPromptText",
    "McpResourceRequest",
    "McpServerName",
    "SkillInfo",
    "SkillMetadata",
    "SkillRequest",
    "SkillSource",
    "SkillText",
]


class McpServerName(msgspec.Struct, frozen=True):
    """The name of a server."""

    name: str


class McpPromptRequest(msgspec.Struct, frozen=True):
    """A request for a prompt. `client_id` is the server's name."""

    client_id: str
    prompt_id: str
    args: dict[str, str] = {}


class McpPromptText(msgspec.Struct, frozen=True):
    """The text of a prompt."""

    prompt: str


class McpResourceRequest(msgspec.Struct, frozen=True):
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


class ClientMcpServers(msgspec.Struct, frozen=True):
    """All servers that a client provides, by name. They exist while the client is connected and are not stored."""

    client_id: str
    servers: dict[Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{1,40}$")], McpSettings]


class McpEmptyResponse(msgspec.Struct, frozen=True):
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
    post(
        "mcp_refresh_tools",
        _M + "/refresh-tools",
        "Reload the tools of an MCP server.",
        McpServerName,
        errors=(400, 404),
    ),
    post(
        "mcp_refresh_prompts",
        _M + "/refresh-prompts",
        "Reload the prompts of an MCP server.",
        McpServerName,
        errors=(400, 404),
    ),
    post(
        "mcp_refresh_resources",
        _M + "/refresh-resources",
        "Reload the resources of an MCP server.",
        McpServerName,
        errors=(400, 404),
    ),
    post(
        "mcp_get_prompt",
        _M + "/get-prompt",
        "A prompt of an MCP server.",
        McpPromptRequest,
        McpPromptText,
        errors=(400, 404),
    ),
    post(
        "mcp_read_resource",
        _M + "/read-resource",
        "A resource of an MCP server.",
        McpResourceRequest,
        tuple[McpContents, ...],
        errors=(400, 404),
    ),
    get(
        "mcp_auth_url",
        _M + "/auth-url",
        "The login address of an MCP server.",
        McpAuthUrl,
        query=_NAME,
        errors=(400, 404),
    ),
    post("mcp_auth", _M + "/auth", "Log in to an MCP server.", McpServerName, McpEmptyResponse, errors=(400, 404)),
    post("mcp_restart", _M + "/restart", "Restart an MCP server.", McpServerName, errors=(400, 404)),
    get("mcp_log", _M + "/log", "The output of an MCP server.", McpLog, query=_NAME, errors=(400, 404)),
    post(
        "mcp_lend",
        _M + "/lend",
        "Set the MCP servers that a client provides while it is connected.",
        ClientMcpServers,
        errors=(400, 404, 409),
    ),
    post("mcp_docker_enable", _M + "/docker/enable", "Not built.", errors=(400, 404)),
    post("mcp_docker_disable", _M + "/docker/disable", "No effect: there is nothing to disable.", errors=(404,)),
)


class LspStartRequest(msgspec.Struct, frozen=True):
    """The file for which servers are requested."""

    path: str


class LspRestartRequest(msgspec.Struct, frozen=True):
    """The name of a server; empty for all that run."""

    name: str


class LspRestartResponse(msgspec.Struct, frozen=True):
    """The servers that are being restarted."""

    names: tuple[str, ...]


class LspLog(msgspec.Struct, frozen=True):
    """The history of a server and its output. `file` is the path of the full log."""

    name: str
    text: str
    file: str = ""


_L = "/workspaces/{id}/lsps"

LSP_ROUTES: tuple[Route, ...] = (
    get("list_lsps", _L, "Language servers.", dict[str, LspInfo], errors=(404,)),
    get(
        "lsp_diagnostics",
        _L + "/{lsp}/diagnostics",
        "Diagnostics of a language server, by file.",
        dict[str, tuple[dict[str, Any], ...]],
        errors=(404,),
    ),
    post("start_lsps", _L + "/start", "Start language servers for a file.", LspStartRequest, errors=(400, 404)),
    post("stop_lsps", _L + "/stop", "Stop language servers until a file is used again.", errors=(404,)),
    post(
        "restart_lsps",
        _L + "/restart",
        "Restart one language server, or all that run.",
        LspRestartRequest,
        LspRestartResponse,
        errors=(404,),
    ),
    get(
        "lsp_log",
        _L + "/log",
        "The output of a language server.",
        LspLog,
        query=(Query("name", is_required=True),),
        errors=(400, 404),
    ),
)


SkillSource = Literal["user", "project", "system"]


class SkillInfo(msgspec.Struct, frozen=True):
    """A usable skill. `id` is the key with which its text is requested."""

    id: str
    name: str
    description: str
    label: str
    source: SkillSource
    user_invocable: bool


class SkillRequest(msgspec.Struct, frozen=True):
    """A request for the text of a skill."""

    skill_id: str


class SkillMetadata(msgspec.Struct, frozen=True):
    """Facts about a skill."""

    name: str
    description: str
    source: SkillSource
    builtin: bool


class SkillText(msgspec.Struct, frozen=True):
    """The full text of a skill's file."""

    content: bytes
    result: SkillMetadata


class CommandRequest(msgspec.Struct, frozen=True):
    """A prompt of the form `/name …`; `arguments` are named ones, in addition to the typed text."""

    prompt: str
    arguments: dict[str, str] = {}


class CommandExpansion(msgspec.Struct, frozen=True, omit_defaults=True):
    """The expansion of a command, for display only: the server expands a command that is sent as a prompt."""

    prompt: str
    command: str
    model: str = ""
    allowed_tools: tuple[str, ...] = ()
