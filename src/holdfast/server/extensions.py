"""Skills, language servers, MCP: the routes are there; what they speak of is not yet."""

from typing import Any

from holdfast.domain.errors import BadRequest, NotFound
from holdfast.server.calls import Call

__all__ = [
    "list_lsps",
    "list_skills",
    "lsp_diagnostics",
    "mcp_auth",
    "mcp_auth_url",
    "mcp_docker_disable",
    "mcp_docker_enable",
    "mcp_get_prompt",
    "mcp_pending_auth",
    "mcp_prompts",
    "mcp_read_resource",
    "mcp_refresh_prompts",
    "mcp_refresh_resources",
    "mcp_refresh_tools",
    "mcp_states",
    "read_skill",
    "start_lsps",
    "stop_lsps",
]


async def _none(_: Call) -> list[Any]:
    return []


async def _nothing(_: Call) -> dict[str, Any]:
    return {}


async def _done(_: Call) -> None:
    return None


list_skills = mcp_pending_auth = mcp_prompts = _none
list_lsps = mcp_states = mcp_auth_url = _nothing
start_lsps = stop_lsps = mcp_refresh_tools = mcp_refresh_prompts = mcp_refresh_resources = mcp_docker_disable = _done


async def read_skill(_: Call) -> dict[str, Any]:
    raise BadRequest("There is no such skill: look at the list for one.")


async def lsp_diagnostics(_: Call) -> dict[str, Any]:
    raise NotFound("LSP client not found: no language server of that name runs.")


async def mcp_get_prompt(_: Call) -> dict[str, Any]:
    raise BadRequest("There is no such MCP server, so it has no prompts.")


async def mcp_read_resource(_: Call) -> list[Any]:
    raise BadRequest("There is no such MCP server, so it has no resources.")


async def mcp_auth(_: Call) -> dict[str, Any]:
    raise BadRequest("There is no MCP server of that name that wants a login.")


async def mcp_docker_enable(_: Call) -> None:
    raise BadRequest("Docker's MCP servers are not built in: set one up as a server of your own.")
