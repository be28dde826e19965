"""MCP servers: how they stand, what they offer, and logging in to them."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.config.problems import dotted
from holdfast.domain.errors import BadRequest
from holdfast.domain.health import Finding
from holdfast.domain.mcp import McpContents, McpInfo, McpLogin, McpPrompt
from holdfast.extensions.mcp.mcp import Mcp
from holdfast.protocol.mcp import McpAuthUrl, McpDone, McpLog, McpText
from holdfast.protocol.problems import UnknownWorkspace
from holdfast.server.calls import Call
from holdfast.server.checks import place_of
from holdfast.server.desk import Desk
from holdfast.server.hub import NotAttached, client_id_of

if TYPE_CHECKING:
    from holdfast.extensions.mcp.shapes import ListName

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

_PATIENCE = 15.0
"""Seconds in which somebody who wants to know what is wrong waits for servers that start."""


def _servers(desk: Desk) -> Mcp:
    """With the settings, and the trust in the project, as they are now."""
    desk.outfit.configuration.reading()
    return desk.outfit.extensions.mcp


async def mcp_states(call: Call) -> dict[str, McpInfo]:
    """Of a workspace that is not open there are none: stock clients ask before they know."""
    try:
        desk = call.hub.desk(call.params["id"])
    except UnknownWorkspace:
        return {}
    return _servers(desk).states()


async def mcp_prompts(call: Call) -> tuple[McpPrompt, ...]:
    return _servers(call.desk).prompts()


async def mcp_pending_auth(call: Call) -> tuple[McpLogin, ...]:
    return _servers(call.desk).waiting_logins()


async def _look(call: Call, what: "ListName") -> None:
    (await _servers(call.desk).servers()).look(call.body.name, what)


async def mcp_refresh_tools(call: Call) -> None:
    await _look(call, "tools")


async def mcp_refresh_prompts(call: Call) -> None:
    await _look(call, "prompts")


async def mcp_refresh_resources(call: Call) -> None:
    await _look(call, "resources")


async def mcp_get_prompt(call: Call) -> McpText:
    body = call.body
    return McpText(await (await _servers(call.desk).servers()).prompt(body.client_id, body.prompt_id, body.args))


async def mcp_read_resource(call: Call) -> tuple[McpContents, ...]:
    return await (await _servers(call.desk).servers()).resource(call.body.name, call.body.uri)


async def mcp_auth_url(call: Call) -> McpAuthUrl:
    if not (name := call.query.get("name")):
        raise BadRequest("name is required")
    return McpAuthUrl(_servers(call.desk).login_url(name))


async def mcp_auth(call: Call) -> McpDone:
    """Answers when somebody has allowed it, or has not."""
    await (await _servers(call.desk).servers()).log_in(call.body.name)
    return McpDone()


async def mcp_restart(call: Call) -> None:
    (await _servers(call.desk).servers()).restart(call.body.name)


async def mcp_log(call: Call) -> McpLog:
    if not (name := call.query.get("name")):
        raise BadRequest("name is required")
    return McpLog(name, (await _servers(call.desk).servers()).log(name))


async def mcp_lend(call: Call) -> None:
    """Only who is there may: nobody else could be seen to leave."""
    client, desk = client_id_of(call.body.client_id), call.desk
    if client not in call.hub.claims(desk):
        raise NotAttached
    desk.lenders.add(client)
    desk.outfit.extensions.mcp.lend(client, call.body.servers)


async def mcp_docker_enable(_: Call) -> None:
    raise BadRequest("Docker's MCP servers are not built in: set one up as a server of your own.")


async def mcp_docker_disable(_: Call) -> None:
    return None


# For `holdfast doctor`


async def check(desk: Desk) -> Sequence[Finding]:
    """Those that are not there, each with the line that names it. Those that are just being started are waited for."""
    servers = _servers(desk)
    await servers.tried(_PATIENCE)
    states = servers.states()
    found = [finding for info in states.values() if (finding := _finding(desk, info)) is not None]
    if found or not states:
        return found
    tools = sum(info.tool_count for info in states.values())
    is_on = [info for info in states.values() if info.state != "disabled"]
    many = f"{len(is_on)} connected" if is_on else "none switched on"
    return (Finding("mcp servers", "ok", f"{many}, {tools} tool{'s' * (tools != 1)}."),)


def _finding(desk: Desk, info: McpInfo) -> Finding | None:
    if info.state in ("connected", "disabled"):
        return None
    file, line = place_of(desk, "mcp", info.name)
    name = dotted(("mcp", info.name))
    if info.state == "starting":
        return Finding("mcp servers", "note", f"{name} is still starting.", "Look again in a moment.", file, line)
    if info.state == "needs auth":
        todo = f"Log in: holdfast mcp login {info.name}"
        return Finding("mcp servers", "warning", f"{name} wants a login.", todo, file, line)
    todo = f"See what it printed: holdfast mcp logs {info.name}"
    return Finding("mcp servers", "error", f"{name} is not connected. {info.error}", todo, file, line)
