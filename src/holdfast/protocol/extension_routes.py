"""Routes of MCP and language servers with their bodies, and the bodies of skills and commands."""

from typing import Annotated, Any, Literal

import msgspec

from holdfast.domain.extensions import LspInfo, McpContents, McpInfo, McpLogin, McpPrompt
from holdfast.domain.settings import McpSettings
from holdfast.protocol.route import Query, Route, get, post

__all__ = [
    "LSP_ROUTES",
    "MCP_ROUTES",
    "CommandAsk",
    "CommandText",
    "LspLog",
    "LspName",
    "LspPath",
    "LspRestarted",
    "McpAskPrompt",
    "McpAskResource",
    "McpAuthUrl",
    "McpDone",
    "McpLoan",
    "McpLog",
    "McpName",
    "McpText",
    "SkillAsk",
    "SkillFacts",
    "SkillInfo",
    "SkillSource",
    "SkillText",
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


# Language servers


class LspPath(msgspec.Struct, frozen=True):
    """The file for which servers are requested."""

    path: str


class LspName(msgspec.Struct, frozen=True):
    """The name of a server; empty for all that run."""

    name: str


class LspRestarted(msgspec.Struct, frozen=True):
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
        "What a language server finds wrong, by file.",
        dict[str, tuple[dict[str, Any], ...]],
        errors=(404,),
    ),
    post("start_lsps", _L + "/start", "Start language servers for a file.", LspPath, errors=(400, 404)),
    post("stop_lsps", _L + "/stop", "Stop language servers, until a file is touched again.", errors=(404,)),
    post("restart_lsps", _L + "/restart", "Start one again, or all that run.", LspName, LspRestarted, errors=(404,)),
    get(
        "lsp_log",
        _L + "/log",
        "What a language server has printed.",
        LspLog,
        query=(Query("name", is_required=True),),
        errors=(400, 404),
    ),
)


# Skills and commands

SkillSource = Literal["user", "project", "system"]


class SkillInfo(msgspec.Struct, frozen=True):
    """A usable skill. `id` is the key with which its text is requested."""

    id: str
    name: str
    description: str
    label: str
    source: SkillSource
    user_invocable: bool


class SkillAsk(msgspec.Struct, frozen=True):
    """A request for the text of a skill."""

    skill_id: str


class SkillFacts(msgspec.Struct, frozen=True):
    """Facts about a skill."""

    name: str
    description: str
    source: SkillSource
    builtin: bool


class SkillText(msgspec.Struct, frozen=True):
    """The full text of a skill's file."""

    content: bytes
    result: SkillFacts


class CommandAsk(msgspec.Struct, frozen=True):
    """A prompt of the form `/name …`; `arguments` are named ones, in addition to the typed text."""

    prompt: str
    arguments: dict[str, str] = {}


class CommandText(msgspec.Struct, frozen=True, omit_defaults=True):
    """The expansion of a command, for display only: the server expands a command that is sent as a prompt."""

    prompt: str
    command: str
    model: str = ""
    allowed_tools: tuple[str, ...] = ()
