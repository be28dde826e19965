"""Client methods for language servers."""

from typing import Any

from holdfast.client.calls import Calls
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.languages import LspInfo
from holdfast.protocol.lsp import LspLog, LspName, LspPath, LspRestarted

__all__ = ["LspCalls"]


class LspCalls(Calls):
    """Routes for language servers."""

    async def list_lsps(self, workspace: WorkspaceId) -> dict[str, LspInfo]:
        """Return the state of the language servers."""
        return await self._ask(dict[str, LspInfo], "list_lsps", id=workspace)

    async def lsp_diagnostics(self, workspace: WorkspaceId, lsp: str) -> dict[str, tuple[dict[str, Any], ...]]:
        """Return the diagnostics of a language server, by file."""
        return await self._ask(dict[str, tuple[dict[str, Any], ...]], "lsp_diagnostics", id=workspace, lsp=lsp)

    async def start_lsps(self, workspace: WorkspaceId, path: str) -> None:
        """Start the language servers for a file."""
        await self._send("start_lsps", body=LspPath(path), id=workspace)

    async def stop_lsps(self, workspace: WorkspaceId) -> None:
        """Stop all language servers."""
        await self._send("stop_lsps", id=workspace)

    async def restart_lsps(self, workspace: WorkspaceId, name: str = "") -> LspRestarted:
        """Restart one language server, or all."""
        return await self._ask(LspRestarted, "restart_lsps", body=LspName(name), id=workspace)

    async def lsp_log(self, workspace: WorkspaceId, name: str) -> LspLog:
        """Return the log of a language server."""
        return await self._ask(LspLog, "lsp_log", query=[("name", name)], id=workspace)
