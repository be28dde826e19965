"""Methods for the server itself, its workspaces, their configuration and extensions."""

from typing import Any

import msgspec

from holdfast.client.brought import BroughtCalls
from holdfast.client.lsp import LspCalls
from holdfast.client.mcp import McpCalls
from holdfast.client.pages import PageCalls
from holdfast.domain.files import UndoAsk, UndoReport
from holdfast.domain.health import Health
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.domain.jobs import JobInfo, JobOutput, ShellResult
from holdfast.domain.runs import Attachment
from holdfast.domain.sandbox import SandboxState
from holdfast.domain.stats import Stats
from holdfast.protocol.bodies import (
    ConfigChange,
    ConfigModel,
    ConfigProblem,
    Control,
    CurrentSession,
    FileNames,
    InitPrompt,
    LogPage,
    ModelChoice,
    NeedsInit,
    ShellAsk,
    SnapshotBody,
    TrustBody,
    VersionInfo,
    WorkspaceBody,
)

__all__ = ["WorkspaceCalls"]

_Any = dict[str, Any]
_List = tuple[dict[str, Any], ...]


class WorkspaceCalls(BroughtCalls, LspCalls, McpCalls, PageCalls):
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

    async def docs(self) -> str:
        """The page of the routes, for people."""
        return (await self._exchange("docs", {})).decode()

    async def metrics(self) -> str:
        """What the server does, as Prometheus reads it."""
        return (await self._exchange("metrics", {})).decode()

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

    async def read_log(
        self, workspace: WorkspaceId, after: int = 0, *, limit: int = 500, session: str = "", run: str = ""
    ) -> LogPage:
        """Stored events with their times, oldest first: of all, of a session, of a run."""
        query = [("after", after), ("limit", limit), ("session_id", session or None), ("run_id", run or None)]
        return await self._ask(LogPage, "read_log", query=query, id=workspace)

    async def stats(self, workspace: WorkspaceId, zone: int | None = None) -> Stats:
        return await self._ask(Stats, "stats", query=[("zone", zone)], id=workspace)

    async def all_stats(self, zone: int | None = None) -> Stats:
        return await self._ask(Stats, "all_stats", query=[("zone", zone)])

    async def doctor(self, workspace: WorkspaceId, areas: str | None = None) -> Health:
        """A look at all that the workspace needs; models are asked, so this takes its time."""
        return await self._ask(Health, "doctor", query=[("areas", areas)], id=workspace)

    # Configuration and project

    async def config_problems(self, workspace: WorkspaceId) -> tuple[ConfigProblem, ...]:
        """What is wrong with the files of settings; of a broken one the last good contents are in force."""
        return await self._ask(tuple[ConfigProblem, ...], "config_problems", id=workspace)

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

    # Beside the conversation

    async def run_shell(self, workspace: WorkspaceId, session: SessionId, command: str, width: int = 0) -> ShellResult:
        """Returns when the command has ended, however long it takes; leaving ends it."""
        body = ShellAsk(command, session, width)
        places = {"id": workspace, "sid": session}
        answer = await self._exchange("run_shell", places, body=body, is_patient=True)
        return msgspec.json.decode(answer, type=ShellResult)

    async def list_jobs(self, workspace: WorkspaceId, session: SessionId | None = None) -> tuple[JobInfo, ...]:
        return await self._ask(tuple[JobInfo, ...], "list_jobs", query=[("session_id", session)], id=workspace)

    async def job_output(self, workspace: WorkspaceId, job: str) -> JobOutput:
        return await self._ask(JobOutput, "job_output", id=workspace, job_id=job)

    async def kill_job(self, workspace: WorkspaceId, job: str) -> JobOutput:
        return await self._ask(JobOutput, "kill_job", id=workspace, job_id=job)

    async def undo_changes(self, workspace: WorkspaceId, ask: UndoAsk) -> UndoReport:
        return await self._ask(UndoReport, "undo_changes", body=ask, id=workspace)

    async def list_files(self, workspace: WorkspaceId) -> FileNames:
        return await self._ask(FileNames, "list_files", id=workspace)

    async def read_file(self, workspace: WorkspaceId, path: str) -> Attachment:
        return await self._ask(Attachment, "read_file", query=[("path", path)], id=workspace)

    async def get_sandbox(self, workspace: WorkspaceId) -> SandboxState:
        return await self._ask(SandboxState, "get_sandbox", id=workspace)

    async def get_trust(self, workspace: WorkspaceId) -> TrustBody:
        return await self._ask(TrustBody, "get_trust", id=workspace)

    async def set_trust(self, workspace: WorkspaceId, *, trusted: bool, digest: str = "") -> TrustBody:
        """`digest` is that of the files as they were shown to whoever trusts them."""
        return await self._ask(TrustBody, "set_trust", body=TrustBody(trusted, digest=digest), id=workspace)
