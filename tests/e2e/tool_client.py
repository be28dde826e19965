"""A real server with all its tools, and a model that calls the tools named in the prompt."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from holdfast.client.client import Client
from holdfast.client.events import StreamEvent
from holdfast.domain.approvals import PermissionRequest
from holdfast.domain.events import RunComplete, RunCompleteEvent, ToolOutputEvent
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.domain.messages import Message, TextPart, ToolResult
from holdfast.domain.model_requests import ModelRequest
from holdfast.engine.settings import EngineSettings
from holdfast.protocol.bodies import AgentMessage, PromptAccepted
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from holdfast.server.workspace_manager import GracePeriods
from holdfast.testing.harness import FixedModels
from server.helpers import QUICK, Server, ServerDirectory, in_process_server, read_until, run_ended, server_directory

__all__ = ["ToolClient", "bash", "last_text", "script", "tool_client"]


def last_text(message: Message) -> str:
    """Return the prompt in a message of the user. In a repository the state of the work tree precedes it as soon as it
    is known, which depends on the speed of git.
    """
    return ["", *(part.data.text for part in message.parts if isinstance(part, TextPart))][-1]


def script(request: ModelRequest) -> Step:
    """Call the tools of a prompt that is a list of calls in JSON: `[["bash", {…}], …]`. Other messages get a one-word
    answer.
    """
    last = request.messages[-1]
    try:
        calls = json.loads(last_text(last)) if last.role == "user" else []
    except ValueError:
        calls = []
    acts = tuple(Call(name, json.dumps(arguments)) for name, arguments in calls)
    return Step(acts or (Say("done"),))


def bash(line: str, **more: object) -> tuple[str, dict[str, object]]:
    return ("bash", {"command": line, "description": "a test", **more})


class ToolClient:
    """One client in one workspace."""

    def __init__(self, server: Server, client: Client, workspace: WorkspaceId, model: ScriptedModel) -> None:
        self.server = server
        self.client = client
        self.workspace = workspace
        self.model = model
        self.project = Path(server.directory.project())

    async def session(self) -> SessionId:
        return (await self.client.create_session(self.workspace, "s")).id

    async def call_tools(
        self, session: SessionId, *calls: tuple[str, object], interactive: bool = True
    ) -> PromptAccepted:
        message = AgentMessage(session, json.dumps(calls), interactive=interactive)
        return await self.client.send_prompt(self.workspace, message)

    async def events_until_end(self, run: PromptAccepted) -> list[StreamEvent]:
        """Return all stored events up to the end of the run."""
        async with self.client.events(self.workspace, since=0) as events:
            return await read_until(events, run_ended(run.run_id))

    async def run_end(self, run: PromptAccepted) -> RunComplete:
        event = (await self.events_until_end(run))[-1].event
        assert isinstance(event, RunCompleteEvent)
        return event.change.object

    async def call_tools_and_wait(
        self, *calls: tuple[str, object], session: SessionId | None = None
    ) -> list[ToolResult]:
        """Return the results of these calls."""
        session = session or await self.session()
        before = len(await self.results(session))
        end = await self.run_end(await self.call_tools(session, *calls))
        found = (await self.results(session))[before:]
        assert found or not calls, f"the run ended without a result: {end}"
        return found

    async def results(self, session: SessionId) -> list[ToolResult]:
        messages = await self.client.list_messages(self.workspace, session)
        return [result for message in messages for result in message.tool_results]

    async def wait_for_output(self, session: SessionId, word: str) -> None:
        """Wait until a command has printed this."""
        printed = ""

        def has_printed(item: StreamEvent) -> bool:
            nonlocal printed
            if isinstance(item.event, ToolOutputEvent) and item.event.payload.session_id == session:
                printed += item.event.payload.text
            return word in printed

        async with self.client.events(self.workspace, since=0) as events:
            await read_until(events, has_printed)

    async def pending_permissions(self, count: int = 1) -> tuple[PermissionRequest, ...]:
        async with asyncio.timeout(20):
            while len(found := await self.client.pending_permissions(self.workspace)) != count:
                pass
        return found

    async def grant(self, ask: PermissionRequest, action: str = "allow", reason: str = "") -> bool:
        body: dict[str, Any] = {"permission": msgspec.to_builtins(ask), "action": action, "reason": reason}
        return (await self.client.grant(self.workspace, body)).resolved


@asynccontextmanager
async def tool_client(
    directory: ServerDirectory | None = None,
    *,
    yolo: bool = True,
    graces: GracePeriods | None = None,
    settings: EngineSettings = QUICK,
    env: tuple[str, ...] = (),
    model: ScriptedModel | None = None,
    small: ScriptedModel | None = None,
) -> AsyncIterator[ToolClient]:
    """Open a workspace. With `yolo` no approval is required."""
    model = model or ScriptedModel(script)
    async with (
        server_directory() as own,
        in_process_server(
            directory or own, FixedModels(model, small or model), graces=graces, settings=settings
        ) as server,
    ):
        client = await server.client()
        body = await client.create_workspace(server.directory.project(), yolo=yolo, env=env)
        yield ToolClient(server, client, body.id, model)
