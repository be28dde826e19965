"""Client methods for the server, its workspaces, their configuration and extensions."""

from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.client.request import RouteMethods
from holdfast.domain.doctor import Health
from holdfast.domain.extensions import CommandInfo, LspInfo, McpContents, McpInfo, McpLogin, McpPrompt, SubagentInfo
from holdfast.domain.files import UndoReport, UndoRequest
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.domain.processes import JobInfo, JobOutput, SandboxState, ShellResult
from holdfast.domain.runs import Attachment
from holdfast.domain.settings import McpSettings
from holdfast.domain.usage import Stats
from holdfast.protocol.bodies import (
    ConfigChange,
    ConfigModelRequest,
    ConfigProblem,
    CurrentSession,
    EventLogPage,
    FileList,
    InitPrompt,
    NodeList,
    PageChallenge,
    PageChallengeRequest,
    PageCredentials,
    PageLoginRequest,
    PageProof,
    ProjectInitStatus,
    SelectedModel,
    ServerControl,
    ShellRequest,
    SnapshotBody,
    TrustBody,
    VersionInfo,
    WebLink,
    WebLinkRequest,
    WorkspaceBody,
)
from holdfast.protocol.extension_routes import (
    ClientMcpServers,
    CommandExpansion,
    CommandRequest,
    LspLog,
    LspRestartRequest,
    LspRestartResponse,
    LspStartRequest,
    McpAuthUrl,
    McpEmptyResponse,
    McpLog,
    McpPromptRequest,
    McpPromptText,
    McpResourceRequest,
    McpServerName,
    SkillInfo,
    SkillRequest,
    SkillText,
)

__all__ = ["ExtensionMethods", "LspMethods", "McpMethods", "WebMethods", "WorkspaceMethods"]


class ExtensionMethods(RouteMethods):
    """Routes for skills, commands and agents."""

    async def list_skills(self, workspace: WorkspaceId) -> tuple[SkillInfo, ...]:
        """List the skills of a workspace."""
        return await self._call(tuple[SkillInfo, ...], "list_skills", id=workspace)

    async def read_skill(self, workspace: WorkspaceId, skill: str) -> SkillText:
        """Return the text of a skill, by its id or its name."""
        return await self._call(SkillText, "read_skill", body=SkillRequest(skill), id=workspace)

    async def list_commands(self, workspace: WorkspaceId) -> tuple[CommandInfo, ...]:
        """List the commands that can be sent as `/name …`."""
        return await self._call(tuple[CommandInfo, ...], "list_commands", id=workspace)

    async def expand_command(
        self, workspace: WorkspaceId, prompt: str, arguments: Mapping[str, str] | None = None
    ) -> CommandExpansion:
        """Return the expansion of a command. Prompts are also expanded by the server, so this is optional."""
        body = CommandRequest(prompt, dict(arguments or {}))
        return await self._call(CommandExpansion, "expand_command", body=body, id=workspace)

    async def list_agents(self, workspace: WorkspaceId) -> tuple[SubagentInfo, ...]:
        """List the agents that a prompt can mention with an `@`."""
        return await self._call(tuple[SubagentInfo, ...], "list_agents", id=workspace)


class LspMethods(RouteMethods):
    """Routes for language servers."""

    async def list_lsps(self, workspace: WorkspaceId) -> dict[str, LspInfo]:
        """Return the state of the language servers."""
        return await self._call(dict[str, LspInfo], "list_lsps", id=workspace)

    async def lsp_diagnostics(self, workspace: WorkspaceId, lsp: str) -> dict[str, tuple[dict[str, Any], ...]]:
        """Return the diagnostics of a language server, by file."""
        return await self._call(dict[str, tuple[dict[str, Any], ...]], "lsp_diagnostics", id=workspace, lsp=lsp)

    async def start_lsps(self, workspace: WorkspaceId, path: str) -> None:
        """Start the language servers for a file."""
        await self._send("start_lsps", body=LspStartRequest(path), id=workspace)

    async def stop_lsps(self, workspace: WorkspaceId) -> None:
        """Stop all language servers."""
        await self._send("stop_lsps", id=workspace)

    async def restart_lsps(self, workspace: WorkspaceId, name: str = "") -> LspRestartResponse:
        """Restart one language server, or all."""
        return await self._call(LspRestartResponse, "restart_lsps", body=LspRestartRequest(name), id=workspace)

    async def lsp_log(self, workspace: WorkspaceId, name: str) -> LspLog:
        """Return the log of a language server."""
        return await self._call(LspLog, "lsp_log", query=[("name", name)], id=workspace)


class McpMethods(RouteMethods):
    """Routes for MCP servers."""

    async def mcp_states(self, workspace: WorkspaceId) -> dict[str, McpInfo]:
        """Return the state of the MCP servers."""
        return await self._call(dict[str, McpInfo], "mcp_states", id=workspace)

    async def mcp_prompts(self, workspace: WorkspaceId) -> tuple[McpPrompt, ...]:
        """List the prompts of the MCP servers."""
        return await self._call(tuple[McpPrompt, ...], "mcp_prompts", id=workspace)

    async def mcp_pending_auth(self, workspace: WorkspaceId) -> tuple[McpLogin, ...]:
        """List the MCP servers that require a login."""
        return await self._call(tuple[McpLogin, ...], "mcp_pending_auth", id=workspace)

    async def mcp_refresh_tools(self, workspace: WorkspaceId, name: str) -> None:
        """Read the tools of a server again."""
        await self._send("mcp_refresh_tools", body=McpServerName(name), id=workspace)

    async def mcp_refresh_prompts(self, workspace: WorkspaceId, name: str) -> None:
        """Read the prompts of a server again."""
        await self._send("mcp_refresh_prompts", body=McpServerName(name), id=workspace)

    async def mcp_refresh_resources(self, workspace: WorkspaceId, name: str) -> None:
        """Read the resources of a server again."""
        await self._send("mcp_refresh_resources", body=McpServerName(name), id=workspace)

    async def mcp_get_prompt(
        self, workspace: WorkspaceId, server: str, prompt: str, arguments: dict[str, str] | None = None
    ) -> McpPromptText:
        """Return the text of a prompt."""
        body = McpPromptRequest(server, prompt, arguments or {})
        return await self._call(McpPromptText, "mcp_get_prompt", body=body, id=workspace)

    async def mcp_read_resource(self, workspace: WorkspaceId, server: str, uri: str) -> tuple[McpContents, ...]:
        """Return the contents of a resource."""
        body = McpResourceRequest(server, uri)
        return await self._call(tuple[McpContents, ...], "mcp_read_resource", body=body, id=workspace)

    async def mcp_auth_url(self, workspace: WorkspaceId, name: str) -> McpAuthUrl:
        """Return the authorization URL of a login in progress."""
        return await self._call(McpAuthUrl, "mcp_auth_url", query=[("name", name)], id=workspace)

    async def mcp_auth(self, workspace: WorkspaceId, name: str) -> McpEmptyResponse:
        """Log in. Returns when the user has completed the login, without a time limit."""
        await self._exchange("mcp_auth", {"id": workspace}, body=McpServerName(name), is_patient=True)
        return McpEmptyResponse()

    async def mcp_restart(self, workspace: WorkspaceId, name: str) -> None:
        """Restart a server."""
        await self._send("mcp_restart", body=McpServerName(name), id=workspace)

    async def mcp_log(self, workspace: WorkspaceId, name: str) -> McpLog:
        """Return the log of a server."""
        return await self._call(McpLog, "mcp_log", query=[("name", name)], id=workspace)

    async def mcp_docker_enable(self, workspace: WorkspaceId) -> None:
        """Enable the Docker MCP gateway. Servers of this version do not implement it."""
        await self._send("mcp_docker_enable", id=workspace)

    async def mcp_docker_disable(self, workspace: WorkspaceId) -> None:
        """Disable the Docker MCP gateway. No effect, as it cannot be enabled."""
        await self._send("mcp_docker_disable", id=workspace)

    async def mcp_lend(self, workspace: WorkspaceId, servers: dict[str, McpSettings]) -> None:
        """Register the MCP servers of this client, replacing earlier ones, until it disconnects."""
        await self._send("mcp_lend", body=ClientMcpServers(self.client_id, servers), id=workspace)


class WebMethods(RouteMethods):
    """Routes for browser pages. `docs/protocol.md` describes their order."""

    async def open_web(self, port: int = 0, env: tuple[str, ...] = ()) -> WebLink:
        """Return a login link for one page. Available over the unix socket only."""
        return await self._call(WebLink, "open_web", body=WebLinkRequest(port, env))

    async def close_web(self) -> None:
        """Close web access and revoke all pages."""
        await self._send("close_web")

    async def enter_page(self, code: str) -> PageCredentials:
        """Exchange a login code for a page pass."""
        return await self._call(PageCredentials, "enter_page", body=PageLoginRequest(code))

    async def page_pass(self) -> PageCredentials:
        """Return a new pass for a page that has one."""
        return await self._call(PageCredentials, "page_pass")

    async def greet_page(self, page: str, nonce: str) -> PageChallenge:
        """Identify a returning page. The result proves that the server knows it."""
        return await self._call(PageChallenge, "greet_page", body=PageChallengeRequest(page, nonce))

    async def return_page(self, page: str, proof: str) -> PageCredentials:
        """Complete the return of a page with its own proof, and return a new pass."""
        return await self._call(PageCredentials, "return_page", body=PageProof(page, proof))


_Any = dict[str, Any]
_List = tuple[dict[str, Any], ...]


class WorkspaceMethods(ExtensionMethods, LspMethods, McpMethods, WebMethods):
    """Routes for the server and its workspaces; `protocol/routes.py` documents each."""

    async def health(self) -> None:
        """Check that the server responds."""
        await self._send("health")

    async def version(self) -> VersionInfo:
        """Return the server's version and identity."""
        return await self._call(VersionInfo, "version")

    async def server_config(self) -> dict[str, Any]:
        """Return the settings that apply to every workspace."""
        return await self._call(_Any, "server_config")

    async def control(self, command: str, *, force: bool = False) -> None:
        """Request a stop of the server."""
        await self._send("control", body=ServerControl(command, force))

    async def list_nodes(self) -> NodeList:
        """List the servers of the cluster."""
        return await self._call(NodeList, "list_nodes")

    async def drain_node(self, node: str) -> None:
        """Let a server of the cluster finish its active runs, release its workspaces, and exit."""
        await self._send("drain_node", node=node)

    async def evict_node(self, node: str) -> None:
        """Declare a server of the cluster dead."""
        await self._send("evict_node", node=node)

    async def retire_client(self) -> None:
        """Remove this client from the server permanently."""
        await self._send("retire_client", client_id=self.client_id)

    async def docs(self) -> str:
        """Return the documentation page of the routes."""
        return (await self._exchange("docs", {})).decode()

    async def metrics(self) -> str:
        """Return the metrics in Prometheus format."""
        return (await self._exchange("metrics", {})).decode()

    async def openapi(self) -> dict[str, Any]:
        """Return the OpenAPI description."""
        return await self._call(_Any, "openapi")

    async def list_workspaces(self) -> tuple[WorkspaceBody, ...]:
        """List the open workspaces."""
        return await self._call(tuple[WorkspaceBody, ...], "list_workspaces")

    async def create_workspace(
        self, path: str, *, yolo: bool = False, debug: bool = False, env: tuple[str, ...] = (), version: str = ""
    ) -> WorkspaceBody:
        """Open the workspace of a directory, or join it. Returns it with its id."""
        body = WorkspaceBody(
            WorkspaceId(""), path, yolo=yolo, debug=debug, version=version, client_id=self.client_id, env=env
        )
        return await self._call(WorkspaceBody, "create_workspace", body=body)

    async def get_workspace(self, workspace: WorkspaceId) -> WorkspaceBody:
        """Return a workspace."""
        return await self._call(WorkspaceBody, "get_workspace", id=workspace)

    async def leave_workspace(self, workspace: WorkspaceId) -> None:
        """Leave a workspace."""
        await self._send("leave_workspace", query=[("client_id", self.client_id)], id=workspace)

    async def set_current_session(self, workspace: WorkspaceId, session: SessionId) -> None:
        """Set the session that this client displays; an empty id means none. Requires an open event stream."""
        query = [("client_id", self.client_id)]
        await self._send("set_current_session", query=query, body=CurrentSession(session), id=workspace)

    async def snapshot(self, workspace: WorkspaceId, session: SessionId | None = None) -> SnapshotBody:
        """Return a snapshot of a workspace, with the messages of `session`."""
        return await self._call(SnapshotBody, "snapshot", query=[("session_id", session)], id=workspace)

    async def get_config(self, workspace: WorkspaceId) -> dict[str, Any]:
        """Return the configuration of a workspace."""
        return await self._call(_Any, "get_config", id=workspace)

    async def list_providers(self, workspace: WorkspaceId) -> tuple[dict[str, Any], ...]:
        """List the providers and their models."""
        return await self._call(_List, "list_providers", id=workspace)

    async def default_small_model(self, workspace: WorkspaceId, provider_id: str | None = None) -> SelectedModel:
        """Return the default small model of a provider."""
        query = [("provider_id", provider_id)]
        return await self._call(SelectedModel, "default_small_model", query=query, id=workspace)

    async def read_log(
        self, workspace: WorkspaceId, after: int = 0, *, limit: int = 500, session: str = "", run: str = ""
    ) -> EventLogPage:
        """Return stored events with their times, oldest first, of the workspace, a session or a run."""
        query = [("after", after), ("limit", limit), ("session_id", session or None), ("run_id", run or None)]
        return await self._call(EventLogPage, "read_log", query=query, id=workspace)

    async def stats(self, workspace: WorkspaceId, zone: int | None = None) -> Stats:
        """Return the usage statistics of a workspace."""
        return await self._call(Stats, "stats", query=[("zone", zone)], id=workspace)

    async def all_stats(self, zone: int | None = None) -> Stats:
        """Return the usage statistics of all workspaces."""
        return await self._call(Stats, "all_stats", query=[("zone", zone)])

    async def doctor(self, workspace: WorkspaceId, areas: str | None = None) -> Health:
        """Check all dependencies of a workspace. Slow, because it sends requests to models."""
        return await self._call(Health, "doctor", query=[("areas", areas)], id=workspace)

    # Configuration and project

    async def config_problems(self, workspace: WorkspaceId) -> tuple[ConfigProblem, ...]:
        """List the errors in settings files. While a file is invalid, its last valid contents are in effect."""
        return await self._call(tuple[ConfigProblem, ...], "config_problems", id=workspace)

    async def config_set(self, workspace: WorkspaceId, key: str, value: object, *, scope: int = 0) -> None:
        """Change a setting."""
        await self._send("config_set", body=ConfigChange(key, scope, value), id=workspace)

    async def config_remove(self, workspace: WorkspaceId, key: str, *, scope: int = 0) -> None:
        """Remove a setting."""
        await self._send("config_remove", body=ConfigChange(key, scope), id=workspace)

    async def config_model(self, workspace: WorkspaceId, choice: ConfigModelRequest) -> None:
        """Select a model."""
        await self._send("config_model", body=choice, id=workspace)

    async def config_compact(self, workspace: WorkspaceId, body: dict[str, Any]) -> None:
        """Change the compact mode setting."""
        await self._send("config_compact", body=body, id=workspace)

    async def config_provider_key(self, workspace: WorkspaceId, body: dict[str, Any]) -> None:
        """Store the API key of a provider."""
        await self._send("config_provider_key", body=body, id=workspace)

    async def config_refresh_oauth(self, workspace: WorkspaceId, body: dict[str, Any]) -> None:
        """Refresh the OAuth token of a provider."""
        await self._send("config_refresh_oauth", body=body, id=workspace)

    async def config_import_copilot(self, workspace: WorkspaceId) -> dict[str, Any]:
        """Import Copilot credentials. Servers of this version do not implement it."""
        return await self._call(_Any, "config_import_copilot", id=workspace)

    async def needs_init(self, workspace: WorkspaceId) -> ProjectInitStatus:
        """Return whether the client should offer to initialize the project."""
        return await self._call(ProjectInitStatus, "needs_init", id=workspace)

    async def init_project(self, workspace: WorkspaceId) -> None:
        """Record that the initialization was offered."""
        await self._send("init_project", id=workspace)

    async def init_prompt(self, workspace: WorkspaceId) -> InitPrompt:
        """Return the prompt that initializes a project."""
        return await self._call(InitPrompt, "init_prompt", id=workspace)

    # Shell commands, jobs, files and trust

    async def run_shell(self, workspace: WorkspaceId, session: SessionId, command: str, width: int = 0) -> ShellResult:
        """Run a shell command. Returns when it has ended, without a time limit; disconnecting ends the command."""
        body = ShellRequest(command, session, width)
        places = {"id": workspace, "sid": session}
        answer = await self._exchange("run_shell", places, body=body, is_patient=True)
        return msgspec.json.decode(answer, type=ShellResult)

    async def list_jobs(self, workspace: WorkspaceId, session: SessionId | None = None) -> tuple[JobInfo, ...]:
        """List background jobs."""
        return await self._call(tuple[JobInfo, ...], "list_jobs", query=[("session_id", session)], id=workspace)

    async def job_output(self, workspace: WorkspaceId, job: str) -> JobOutput:
        """Return the output of a background job."""
        return await self._call(JobOutput, "job_output", id=workspace, job_id=job)

    async def kill_job(self, workspace: WorkspaceId, job: str) -> JobOutput:
        """Kill a background job."""
        return await self._call(JobOutput, "kill_job", id=workspace, job_id=job)

    async def undo_changes(self, workspace: WorkspaceId, ask: UndoRequest) -> UndoReport:
        """Revert file changes of a session."""
        return await self._call(UndoReport, "undo_changes", body=ask, id=workspace)

    async def list_files(self, workspace: WorkspaceId) -> FileList:
        """List the files of the workspace."""
        return await self._call(FileList, "list_files", id=workspace)

    async def read_file(self, workspace: WorkspaceId, path: str) -> Attachment:
        """Return a file as an attachment."""
        return await self._call(Attachment, "read_file", query=[("path", path)], id=workspace)

    async def get_sandbox(self, workspace: WorkspaceId) -> SandboxState:
        """Return the state of the sandbox."""
        return await self._call(SandboxState, "get_sandbox", id=workspace)

    async def get_trust(self, workspace: WorkspaceId) -> TrustBody:
        """Return the trust in the project's files."""
        return await self._call(TrustBody, "get_trust", id=workspace)

    async def set_trust(self, workspace: WorkspaceId, *, trusted: bool, digest: str = "") -> TrustBody:
        """Set the trust in the project's files. `digest` identifies the contents that were shown to the user."""
        return await self._call(TrustBody, "set_trust", body=TrustBody(trusted, digest=digest), id=workspace)
