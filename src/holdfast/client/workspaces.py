"""Methods for the server itself, its workspaces, their configuration and extensions."""

from typing import Any

from holdfast.client.calls import Calls
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.protocol.bodies import (
    ConfigChange,
    ConfigModel,
    Control,
    CurrentSession,
    InitPrompt,
    ModelChoice,
    NeedsInit,
    SnapshotBody,
    VersionInfo,
    WorkspaceBody,
)

__all__ = ["WorkspaceCalls"]

_Any = dict[str, Any]
_List = tuple[dict[str, Any], ...]


class WorkspaceCalls(Calls):
    """One method for each route; `protocol/routes.py` says what each does."""

    async def health(self) -> None:
        await self._send("health")

    async def version(self) -> VersionInfo:
        return await self._ask(VersionInfo, "version")

    async def server_config(self) -> dict[str, Any]:
        return await self._ask(_Any, "server_config")

    async def control(self, command: str, *, force: bool = False) -> None:
        await self._send("control", body=Control(command, force))

    async def retire_client(self) -> None:
        """This client leaves for good."""
        await self._send("retire_client", client_id=self.client_id)

    async def openapi(self) -> dict[str, Any]:
        return await self._ask(_Any, "openapi")

    async def list_workspaces(self) -> tuple[WorkspaceBody, ...]:
        return await self._ask(tuple[WorkspaceBody, ...], "list_workspaces")

    async def create_workspace(
        self, path: str, *, yolo: bool = False, debug: bool = False, env: tuple[str, ...] = (), version: str = ""
    ) -> WorkspaceBody:
        """Open the workspace of a directory, or join it. The answer has its id."""
        body = WorkspaceBody(
            WorkspaceId(""), path, yolo=yolo, debug=debug, version=version, client_id=self.client_id, env=env
        )
        return await self._ask(WorkspaceBody, "create_workspace", body=body)

    async def get_workspace(self, workspace: WorkspaceId) -> WorkspaceBody:
        return await self._ask(WorkspaceBody, "get_workspace", id=workspace)

    async def leave_workspace(self, workspace: WorkspaceId) -> None:
        await self._send("leave_workspace", query=[("client_id", self.client_id)], id=workspace)

    async def set_current_session(self, workspace: WorkspaceId, session: SessionId) -> None:
        """Say which session this client looks at; an empty id is none. It needs an open stream."""
        query = [("client_id", self.client_id)]
        await self._send("set_current_session", query=query, body=CurrentSession(session), id=workspace)

    async def snapshot(self, workspace: WorkspaceId, session: SessionId | None = None) -> SnapshotBody:
        return await self._ask(SnapshotBody, "snapshot", query=[("session_id", session)], id=workspace)

    async def get_config(self, workspace: WorkspaceId) -> dict[str, Any]:
        return await self._ask(_Any, "get_config", id=workspace)

    async def list_providers(self, workspace: WorkspaceId) -> tuple[dict[str, Any], ...]:
        return await self._ask(_List, "list_providers", id=workspace)

    async def default_small_model(self, workspace: WorkspaceId, provider_id: str | None = None) -> ModelChoice:
        query = [("provider_id", provider_id)]
        return await self._ask(ModelChoice, "default_small_model", query=query, id=workspace)

    # Configuration and project

    async def config_set(self, workspace: WorkspaceId, key: str, value: object, *, scope: int = 0) -> None:
        await self._send("config_set", body=ConfigChange(key, scope, value), id=workspace)

    async def config_remove(self, workspace: WorkspaceId, key: str, *, scope: int = 0) -> None:
        await self._send("config_remove", body=ConfigChange(key, scope), id=workspace)

    async def config_model(self, workspace: WorkspaceId, choice: ConfigModel) -> None:
        await self._send("config_model", body=choice, id=workspace)

    async def config_compact(self, workspace: WorkspaceId, body: dict[str, Any]) -> None:
        await self._send("config_compact", body=body, id=workspace)

    async def config_provider_key(self, workspace: WorkspaceId, body: dict[str, Any]) -> None:
        await self._send("config_provider_key", body=body, id=workspace)

    async def config_refresh_oauth(self, workspace: WorkspaceId, body: dict[str, Any]) -> None:
        await self._send("config_refresh_oauth", body=body, id=workspace)

    async def config_import_copilot(self, workspace: WorkspaceId) -> dict[str, Any]:
        return await self._ask(_Any, "config_import_copilot", id=workspace)

    async def needs_init(self, workspace: WorkspaceId) -> NeedsInit:
        return await self._ask(NeedsInit, "needs_init", id=workspace)

    async def init_project(self, workspace: WorkspaceId) -> None:
        await self._send("init_project", id=workspace)

    async def init_prompt(self, workspace: WorkspaceId) -> InitPrompt:
        return await self._ask(InitPrompt, "init_prompt", id=workspace)

    # Extensions

    async def list_skills(self, workspace: WorkspaceId) -> tuple[dict[str, Any], ...]:
        return await self._ask(_List, "list_skills", id=workspace)

    async def list_lsps(self, workspace: WorkspaceId) -> dict[str, Any]:
        return await self._ask(_Any, "list_lsps", id=workspace)

    async def start_lsps(self, workspace: WorkspaceId, body: dict[str, Any]) -> None:
        await self._send("start_lsps", body=body, id=workspace)

    async def stop_lsps(self, workspace: WorkspaceId) -> None:
        await self._send("stop_lsps", id=workspace)

    async def mcp_states(self, workspace: WorkspaceId) -> dict[str, Any]:
        return await self._ask(_Any, "mcp_states", id=workspace)

    async def mcp_prompts(self, workspace: WorkspaceId) -> tuple[dict[str, Any], ...]:
        return await self._ask(_List, "mcp_prompts", id=workspace)

    async def mcp_pending_auth(self, workspace: WorkspaceId) -> tuple[dict[str, Any], ...]:
        return await self._ask(_List, "mcp_pending_auth", id=workspace)

    async def mcp_refresh_tools(self, workspace: WorkspaceId, body: dict[str, Any]) -> None:
        await self._send("mcp_refresh_tools", body=body, id=workspace)

    async def mcp_refresh_prompts(self, workspace: WorkspaceId, body: dict[str, Any]) -> None:
        await self._send("mcp_refresh_prompts", body=body, id=workspace)

    async def mcp_refresh_resources(self, workspace: WorkspaceId, body: dict[str, Any]) -> None:
        await self._send("mcp_refresh_resources", body=body, id=workspace)

    async def list_jobs(self, workspace: WorkspaceId) -> tuple[dict[str, Any], ...]:
        return await self._ask(_List, "list_jobs", id=workspace)
