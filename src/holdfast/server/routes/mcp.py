"""Handlers for MCP servers: state, prompts and resources, login; and their health check."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.config.problems import format_key
from holdfast.domain.doctor import Finding
from holdfast.domain.errors import BadRequest, Conflict
from holdfast.domain.extensions import McpContents, McpInfo, McpLogin, McpPrompt
from holdfast.extensions.mcp.extension import McpExtension
from holdfast.protocol.error_status import UnknownWorkspace
from holdfast.protocol.extension_routes import McpAuthUrl, McpEmptyResponse, McpLog, McpPromptText
from holdfast.server.health.checks import place_of
from holdfast.server.http.request import Request
from holdfast.server.workspace_handle import WorkspaceHandle
from holdfast.server.workspace_manager import NotAttached, client_id_of

if TYPE_CHECKING:
    from holdfast.extensions.mcp.mcp_types import ListName

__all__ = [
    "check",
    "mcp_auth",
    "mcp_auth_url",
    "mcp_docker_disable",
    "mcp_docker_enable",
    "mcp_get_prompt",
    "mcp_lend",
    "mcp_log",
    "mcp_pending_auth",
    "mcp_prompts",
    "mcp_read_resource",
    "mcp_refresh_prompts",
    "mcp_refresh_resources",
    "mcp_refresh_tools",
    "mcp_restart",
    "mcp_states",
]

_START_TIMEOUT = 15.0
"""Seconds for which the health check waits for servers that are starting."""


class OwnedElsewhere(Conflict):
    """Another server owns this workspace: MCP servers of a client can be added only there."""


def _servers(handle: WorkspaceHandle) -> McpExtension:
    """Return the servers after re-reading the settings and the trust in the project."""
    handle.services.configuration.snapshot()
    return handle.services.extensions.mcp


async def mcp_states(request: Request) -> dict[str, McpInfo]:
    """Return the states; none for an unknown workspace, because Crush clients request them before they open it."""
    try:
        handle = request.manager.handle(request.params["id"])
    except UnknownWorkspace:
        return {}
    return _servers(handle).states()


async def mcp_prompts(request: Request) -> tuple[McpPrompt, ...]:
    """Return the prompts of all servers."""
    return _servers(request.handle).prompts()


async def mcp_pending_auth(request: Request) -> tuple[McpLogin, ...]:
    """Return the logins that are in progress."""
    return _servers(request.handle).waiting_logins()


async def _refresh_list(request: Request, what: "ListName") -> None:
    (await _servers(request.handle).manager()).refresh_list(request.body.name, what)


async def mcp_refresh_tools(request: Request) -> None:
    """Reload the tools of a server."""
    await _refresh_list(request, "tools")


async def mcp_refresh_prompts(request: Request) -> None:
    """Reload the prompts of a server."""
    await _refresh_list(request, "prompts")


async def mcp_refresh_resources(request: Request) -> None:
    """Reload the resources of a server."""
    await _refresh_list(request, "resources")


async def mcp_get_prompt(request: Request) -> McpPromptText:
    """Return a prompt of a server, filled in with arguments."""
    body = request.body
    return McpPromptText(
        await (await _servers(request.handle).manager()).prompt(body.client_id, body.prompt_id, body.args)
    )


async def mcp_read_resource(request: Request) -> tuple[McpContents, ...]:
    """Read a resource of a server."""
    return await (await _servers(request.handle).manager()).resource(request.body.name, request.body.uri)


async def mcp_auth_url(request: Request) -> McpAuthUrl:
    """Return the URL of a login in progress."""
    if not (name := request.query.get("name")):
        raise BadRequest("name is required")
    return McpAuthUrl(_servers(request.handle).login_url(name))


async def mcp_auth(request: Request) -> McpEmptyResponse:
    """Log in to a server; returns when the login has been approved, and raises if it was refused."""
    await (await _servers(request.handle).manager()).log_in(request.body.name)
    return McpEmptyResponse()


async def mcp_restart(request: Request) -> None:
    """Restart a server."""
    (await _servers(request.handle).manager()).restart(request.body.name)


async def mcp_log(request: Request) -> McpLog:
    """Return the log of a server."""
    if not (name := request.query.get("name")):
        raise BadRequest("name is required")
    return McpLog(name, (await _servers(request.handle).manager()).log(name))


async def mcp_lend(request: Request) -> None:
    """Add MCP servers of a client. It must be attached: the servers are removed when it leaves. They run on the
    client's machine, so they are not relayed to a server on another one.
    """
    if not request.handle.is_local:
        raise OwnedElsewhere
    client, handle = client_id_of(request.body.client_id), request.handle
    if client not in request.manager.claims(handle):
        raise NotAttached
    handle.mcp_lenders.add(client)
    request.extensions.mcp.set_client_servers(client, request.body.servers)


async def mcp_docker_enable(_: Request) -> None:
    """Refuse: Docker's MCP catalogue is not supported."""
    raise BadRequest("Docker's MCP catalogue is not supported: add its servers to the settings.")


async def mcp_docker_disable(_: Request) -> None:
    """Do nothing: Docker's MCP catalogue is not supported."""
    return None


async def check(handle: WorkspaceHandle) -> Sequence[Finding]:
    """Report servers that are not connected, with the line of their setting. Waits for servers that are starting."""
    servers = _servers(handle)
    await servers.wait_attempts(_START_TIMEOUT)
    states = servers.states()
    found = [finding for info in states.values() if (finding := _finding(handle, info)) is not None]
    if found or not states:
        return found
    tools = sum(info.tool_count for info in states.values())
    is_on = [info for info in states.values() if info.state != "disabled"]
    many = f"{len(is_on)} connected" if is_on else "none enabled"
    return (Finding("mcp servers", "ok", f"{many}, {tools} tool{'s' * (tools != 1)}."),)


def _finding(handle: WorkspaceHandle, info: McpInfo) -> Finding | None:
    if info.state in ("connected", "disabled"):
        return None
    file, line = place_of(handle, "mcp", info.name)
    name = format_key(("mcp", info.name))
    if info.state == "starting":
        return Finding("mcp servers", "note", f"{name} is still starting.", "Check again in a moment.", file, line)
    if info.state == "needs auth":
        todo = f"Log in: holdfast mcp login {info.name}"
        return Finding("mcp servers", "warning", f"{name} requires a login.", todo, file, line)
    todo = f"See its output: holdfast mcp logs {info.name}"
    return Finding("mcp servers", "error", f"{name} is not connected. {info.error}", todo, file, line)
