"""Language servers of a workspace."""

from typing import Any

from holdfast.client.calls import Calls
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.languages import LspInfo
from holdfast.protocol.lsp import LspLog, LspName, LspPath, LspRestarted

__all__ = ["LspCalls"]


class LspCalls(Calls):
    """How they stand, what they find wrong, and starting them."""

    async def list_lsps(self, workspace: WorkspaceId) -> dict[str, LspInfo]:
        return await self._ask(dict[str, LspInfo], "list_lsps", id=workspace)

    async def lsp_diagnostics(self, workspace: WorkspaceId, lsp: str) -> dict[str, tuple[dict[str, Any], ...]]:
        return await self._ask(dict[str, tuple[dict[str, Any], ...]], "lsp_diagnostics", id=workspace, lsp=lsp)

    async def start_lsps(self, workspace: WorkspaceId, path: str) -> None:
        """Those for a file."""
        await self._send("start_lsps", body=LspPath(path), id=workspace)

    async def stop_lsps(self, workspace: WorkspaceId) -> None:
        await self._send("stop_lsps", id=workspace)

    async def restart_lsps(self, workspace: WorkspaceId, name: str = "") -> LspRestarted:
        return await self._ask(LspRestarted, "restart_lsps", body=LspName(name), id=workspace)

    async def lsp_log(self, workspace: WorkspaceId, name: str) -> LspLog:
        return await self._ask(LspLog, "lsp_log", query=[("name", name)], id=workspace)
