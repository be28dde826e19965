"""Client methods for MCP servers."""

from holdfast.client.calls import Calls
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.mcp import McpContents, McpInfo, McpLogin, McpPrompt
from holdfast.domain.settings import McpSettings
from holdfast.protocol.mcp import (
    McpAskPrompt,
    McpAskResource,
    McpAuthUrl,
    McpDone,
    McpLoan,
    McpLog,
    McpName,
    McpText,
)

__all__ = ["McpCalls"]


class McpCalls(Calls):
    """Routes for MCP servers."""

    async def mcp_states(self, workspace: WorkspaceId) -> dict[str, McpInfo]:
        """Return the state of the MCP servers."""
        return await self._ask(dict[str, McpInfo], "mcp_states", id=workspace)

    async def mcp_prompts(self, workspace: WorkspaceId) -> tuple[McpPrompt, ...]:
        """List the prompts of the MCP servers."""
        return await self._ask(tuple[McpPrompt, ...], "mcp_prompts", id=workspace)

    async def mcp_pending_auth(self, workspace: WorkspaceId) -> tuple[McpLogin, ...]:
        """List the MCP servers that require a login."""
        return await self._ask(tuple[McpLogin, ...], "mcp_pending_auth", id=workspace)

    async def mcp_refresh_tools(self, workspace: WorkspaceId, name: str) -> None:
        """Read the tools of a server again."""
        await self._send("mcp_refresh_tools", body=McpName(name), id=workspace)

    async def mcp_refresh_prompts(self, workspace: WorkspaceId, name: str) -> None:
        """Read the prompts of a server again."""
        await self._send("mcp_refresh_prompts", body=McpName(name), id=workspace)

    async def mcp_refresh_resources(self, workspace: WorkspaceId, name: str) -> None:
        """Read the resources of a server again."""
        await self._send("mcp_refresh_resources", body=McpName(name), id=workspace)

    async def mcp_get_prompt(
        self, workspace: WorkspaceId, server: str, prompt: str, arguments: dict[str, str] | None = None
    ) -> McpText:
        """Return the text of a prompt."""
        body = McpAskPrompt(server, prompt, arguments or {})
        return await self._ask(McpText, "mcp_get_prompt", body=body, id=workspace)

    async def mcp_read_resource(self, workspace: WorkspaceId, server: str, uri: str) -> tuple[McpContents, ...]:
        """Return the contents of a resource."""
        body = McpAskResource(server, uri)
        return await self._ask(tuple[McpContents, ...], "mcp_read_resource", body=body, id=workspace)

    async def mcp_auth_url(self, workspace: WorkspaceId, name: str) -> McpAuthUrl:
        """Return the authorization URL of a login in progress."""
        return await self._ask(McpAuthUrl, "mcp_auth_url", query=[("name", name)], id=workspace)

    async def mcp_auth(self, workspace: WorkspaceId, name: str) -> McpDone:
        """Log in. Returns when the user has completed the login, without a time limit."""
        await self._exchange("mcp_auth", {"id": workspace}, body=McpName(name), is_patient=True)
        return McpDone()

    async def mcp_restart(self, workspace: WorkspaceId, name: str) -> None:
        """Restart a server."""
        await self._send("mcp_restart", body=McpName(name), id=workspace)

    async def mcp_log(self, workspace: WorkspaceId, name: str) -> McpLog:
        """Return the log of a server."""
        return await self._ask(McpLog, "mcp_log", query=[("name", name)], id=workspace)

    async def mcp_docker_enable(self, workspace: WorkspaceId) -> None:
        """Enable the Docker MCP gateway. Servers of this version do not implement it."""
        await self._send("mcp_docker_enable", id=workspace)

    async def mcp_docker_disable(self, workspace: WorkspaceId) -> None:
        """Disable the Docker MCP gateway. No effect, as it cannot be enabled."""
        await self._send("mcp_docker_disable", id=workspace)

    async def mcp_lend(self, workspace: WorkspaceId, servers: dict[str, McpSettings]) -> None:
        """Register the MCP servers of this client, replacing earlier ones, until it disconnects."""
        await self._send("mcp_lend", body=McpLoan(self.client_id, servers), id=workspace)
