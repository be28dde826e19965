"""A server whose model calls the tools named in the prompt, and a client that handles its approval requests."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from holdfast.client.client import Client
from holdfast.client.events import StreamEvent
from holdfast.domain.approvals import PermissionRequest, QuestionRequest
from holdfast.domain.events import PermissionNotificationEvent, QuestionNotificationEvent
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.domain.messages import ToolResult, text_of
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.tools import Permit, ToolContext, ToolOutcome
from holdfast.protocol.bodies import AgentMessage, PromptAccepted
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.server.workspace_manager import GracePeriods
from holdfast.testing.gates import SimpleTool
from holdfast.testing.harness import FixedTools
from holdfast.tools.question import QuestionTool
from holdfast.tools.view import ViewTool
from holdfast.tools.write import WriteTool
from server.helpers import Server, ServerDirectory, in_process_server, read_until, run_ended, server_directory

__all__ = ["ApprovalClient", "approval_client", "notices", "question"]


def _script(request: ModelRequest) -> Step:
    """Call the tools of a prompt that is a list of calls in JSON: `[["bash", {…}], …]`. After their results the model
    is done. Any other prompt, such as that of a summary, has no calls.
    """
    last = request.messages[-1]
    try:
        calls = json.loads(text_of(last)) if last.role == "user" else []
    except ValueError:
        calls = []
    if not calls:
        return Step((Say("done"),))
    return Step(tuple(Call(name, json.dumps(arguments)) for name, arguments in calls))


class ApprovalClient:
    """One client in one workspace of a real server. `ran` lists the commands that were permitted to run."""

    def __init__(self, server: Server, client: Client, workspace: WorkspaceId, ran: list[str]) -> None:
        self.server = server
        self.client = client
        self.workspace = workspace
        self.ran = ran
        self._runs = 0

    async def session(self) -> SessionId:
        return (await self.client.create_session(self.workspace, "s")).id

    async def call_tools(
        self, session: SessionId, *calls: tuple[str, object], interactive: bool = True
    ) -> PromptAccepted:
        """Send a prompt that makes the model call these tools."""
        self._runs += 1
        message = AgentMessage(session, json.dumps(calls), interactive=interactive)
        return await self.client.send_prompt(self.workspace, message)

    async def bash(self, session: SessionId, *lines: str, interactive: bool = True) -> PromptAccepted:
        return await self.call_tools(session, *(("bash", {"command": line}) for line in lines), interactive=interactive)

    async def pending_permissions(self, count: int = 1) -> tuple[PermissionRequest, ...]:
        """Return the open permission requests as soon as there are `count` of them."""
        async with asyncio.timeout(20):
            while len(found := await self.client.pending_permissions(self.workspace)) != count:
                pass
        return found

    async def pending_questions(self, count: int = 1) -> tuple[QuestionRequest, ...]:
        async with asyncio.timeout(20):
            while len(found := await self.client.pending_questions(self.workspace)) != count:
                pass
        return found

    async def grant(self, ask: PermissionRequest, action: str = "allow", reason: str = "") -> bool:
        body = {"permission": msgspec.to_builtins(ask), "action": action, "reason": reason}
        return (await self.client.grant(self.workspace, body)).resolved

    async def events_until_end(self, run: PromptAccepted) -> list[StreamEvent]:
        """Return the events of the workspace up to the end of the run."""
        async with self.client.events(self.workspace, since=0) as events:
            return await read_until(events, run_ended(run.run_id))

    async def results(self, session: SessionId) -> list[ToolResult]:
        messages = await self.client.list_messages(self.workspace, session)
        return [result for message in messages for result in message.tool_results]

    async def finish_reasons(self, session: SessionId) -> list[str]:
        messages = await self.client.list_messages(self.workspace, session)
        return [item.finish.reason for item in messages if item.role == "assistant" and item.finish]


def notices(items: list[StreamEvent]) -> list[Any]:
    """Return the notifications about approvals, in order."""
    known = PermissionNotificationEvent | QuestionNotificationEvent
    return [item.event.change.object for item in items if isinstance(item.event, known)]


def question(text: str, kind: str = "yes_no", **more: object) -> dict[str, object]:
    return {"type": kind, "question": text, "description": "It decides something.", **more}


@asynccontextmanager
async def approval_client(
    directory: ServerDirectory | None = None, *, graces: GracePeriods | None = None
) -> AsyncIterator[ApprovalClient]:
    ran: list[str] = []

    async def run(context: ToolContext, arguments: dict[str, object]) -> ToolOutcome:
        line = str(arguments["command"])
        params = {"command": line, "description": "", "working_dir": context.workspace_path}
        permit = Permit("bash", "execute", context.workspace_path, f"Execute command: {line}", params, line)
        await context.permit(permit)
        ran.append(line)
        return ToolOutcome(f"ran {line}")

    tools = FixedTools([SimpleTool("bash", run, is_parallel=True), WriteTool(), ViewTool(), QuestionTool()])
    async with (
        server_directory() as own,
        in_process_server(directory or own, ScriptedModel(_script), graces=graces, tools=tools) as server,
    ):
        client, workspace = await server.open_workspace()
        yield ApprovalClient(server, client, workspace, ran)
