"""MCP servers of a workspace."""

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
    """How they stand, what they offer, and logging in to them."""

    async def mcp_states(self, workspace: WorkspaceId) -> dict[str, McpInfo]:
        return await self._ask(dict[str, McpInfo], "mcp_states", id=workspace)

    async def mcp_prompts(self, workspace: WorkspaceId) -> tuple[McpPrompt, ...]:
        return await self._ask(tuple[McpPrompt, ...], "mcp_prompts", id=workspace)

    async def mcp_pending_auth(self, workspace: WorkspaceId) -> tuple[McpLogin, ...]:
        return await self._ask(tuple[McpLogin, ...], "mcp_pending_auth", id=workspace)

    async def mcp_refresh_tools(self, workspace: WorkspaceId, name: str) -> None:
        await self._send("mcp_refresh_tools", body=McpName(name), id=workspace)

    async def mcp_refresh_prompts(self, workspace: WorkspaceId, name: str) -> None:
        await self._send("mcp_refresh_prompts", body=McpName(name), id=workspace)

    async def mcp_refresh_resources(self, workspace: WorkspaceId, name: str) -> None:
        await self._send("mcp_refresh_resources", body=McpName(name), id=workspace)

    async def mcp_get_prompt(
        self, workspace: WorkspaceId, server: str, prompt: str, arguments: dict[str, str] | None = None
    ) -> McpText:
        body = McpAskPrompt(server, prompt, arguments or {})
        return await self._ask(McpText, "mcp_get_prompt", body=body, id=workspace)

    async def mcp_read_resource(self, workspace: WorkspaceId, server: str, uri: str) -> tuple[McpContents, ...]:
        body = McpAskResource(server, uri)
        return await self._ask(tuple[McpContents, ...], "mcp_read_resource", body=body, id=workspace)

    async def mcp_auth_url(self, workspace: WorkspaceId, name: str) -> McpAuthUrl:
        return await self._ask(McpAuthUrl, "mcp_auth_url", query=[("name", name)], id=workspace)

    async def mcp_auth(self, workspace: WorkspaceId, name: str) -> McpDone:
        """Returns when somebody has allowed it, however long that takes."""
        await self._exchange("mcp_auth", {"id": workspace}, body=McpName(name), is_patient=True)
        return McpDone()

    async def mcp_restart(self, workspace: WorkspaceId, name: str) -> None:
        await self._send("mcp_restart", body=McpName(name), id=workspace)

    async def mcp_log(self, workspace: WorkspaceId, name: str) -> McpLog:
        return await self._ask(McpLog, "mcp_log", query=[("name", name)], id=workspace)

    async def mcp_docker_enable(self, workspace: WorkspaceId) -> None:
        await self._send("mcp_docker_enable", id=workspace)

    async def mcp_docker_disable(self, workspace: WorkspaceId) -> None:
        await self._send("mcp_docker_disable", id=workspace)

    async def mcp_lend(self, workspace: WorkspaceId, servers: dict[str, McpSettings]) -> None:
        """These, and no others of this client, until it leaves."""
        await self._send("mcp_lend", body=McpLoan(self.client_id, servers), id=workspace)
