"""An agent without processes: a recording editor, and a server that records requests and answers from a table."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, TypeVar, cast

import msgspec
import pytest
from acp import schema

from client.scripted_server import session_event
from holdfast.acp import workspace_bridge
from holdfast.acp.agent import HoldfastAgent
from holdfast.acp.editor_connection import EditorConnection, StdioPipes
from holdfast.acp.slash_commands import BUILT_IN
from holdfast.client.events import StreamEvent
from holdfast.client.server_address import ServerAddress
from holdfast.client.server_launcher import ServerLocation
from holdfast.domain.events import (
    Change,
    RunComplete,
    RunCompleteEvent,
)
from holdfast.domain.extensions import CommandArgument, CommandInfo
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.messages import Finish, FinishPart, Message, Role, Text, TextPart
from holdfast.domain.sessions import Session
from holdfast.protocol.bodies import SnapshotBody, WorkspaceBody
from holdfast.testing.gates import start, until
from tui.fake_context import FakeClient

__all__ = [
    "AVAILABLE",
    "EXTENSIONS",
    "LOCAL",
    "NOTES",
    "PROBLEM",
    "REMOTE",
    "TCP",
    "AgentFixture",
    "Json",
    "answer",
    "chunk",
    "open_agent",
    "open_session",
    "permission",
    "session",
    "snapshot",
    "start_request",
    "words",
]

Json = dict[str, Any]
T = TypeVar("T")
Log = list[tuple[object, ...]]
LOCAL = ServerLocation(ServerAddress(path="/s"), "", can_be_started=True)
TCP = ServerLocation(ServerAddress(host="h", port=1), "", can_be_started=False)
REMOTE = ServerLocation(ServerAddress(path="/s"), "", can_be_started=False, again=lambda: None)
COMMANDS = ("list_commands",)
SETTINGS = ("get_workspace",)


def session(name: str, **more: Any) -> Session:  # noqa: ANN401 - any field
    return msgspec.structs.replace(session_event(name).change.object, id=SessionId(name), title="", **more)


def answer(words: str, reason: str = "end_turn", *, id: str = "m", at: str = "s", role: Role = "assistant") -> Message:
    finish = FinishPart(Finish(reason, 1))  # type: ignore[arg-type]
    return Message((TextPart(Text(words)), finish), MessageId(id), role, SessionId(at), "", "", 0, 0, run_id=RunId("r"))


def snapshot(cursor: int = 5, *messages: Message, **more: Any) -> SnapshotBody:  # noqa: ANN401
    sessions = (session("s"), session("new"), session("sub", parent_session_id=SessionId("s")))
    body = WorkspaceBody("w", "/w")  # type: ignore[arg-type]
    return SnapshotBody(**{"cursor": cursor, "epoch": 1, "workspace": body, "sessions": sessions, "messages": messages,
                           "runs": (), **more})  # fmt: skip


def permission(id: str = "a", at: str = "s", run: str = "r") -> Json:
    return {"id": id, "session_id": at, "tool_call_id": "c", "tool_name": "bash", "description": "", "action": "x",
            "params": {}, "path": "/", "run_id": run}  # fmt: skip


def chunk(words: str, kind: str = "agent_message_chunk") -> Json:
    return {"sessionUpdate": kind, "content": {"type": "text", "text": words}}


class FakeConnection:
    """In place of `WorkspaceConnection`: events come from the test."""

    def __init__(self, fixture: "AgentFixture", directory: str) -> None:
        self._fixture = fixture
        self.directory, self.workspace, self.client = directory, "w", fixture.client
        self.cursor = 0
        self.receive: Callable[[StreamEvent], Any]

    async def enter(self) -> None:
        self._fixture.log.append(("enter", self.directory))
        self._fixture.client.result("enter")

    async def follow(self, receive: Callable[[StreamEvent], Any]) -> None:
        self.receive = receive
        await asyncio.Event().wait()

    async def leave(self) -> None:
        self._fixture.log.append(("leave", self.directory))


class AgentFixture:
    """An agent with a recording editor and a recording server."""

    def __init__(self, patch: pytest.MonkeyPatch, where: ServerLocation = LOCAL, **results: Any) -> None:  # noqa: ANN401
        self.log: Log = []
        self.may_send = asyncio.Event()
        self.may_send.set()
        self.sent: list[tuple[str, Json]] = []
        self.asked: list[Json] = []
        self.connections: list[FakeConnection] = []
        self.results: Json = {
            "snapshot": snapshot(),
            "create_session": session("new"),
            "agent_info": SimpleNamespace(model=SimpleNamespace(context_window=100)),
            "list_commands": (),
            "get_workspace": WorkspaceBody("w", "/w"),  # type: ignore[arg-type]
            **results,
        }
        self.client = FakeClient(self.log, self.results)
        self.pipes = StdioPipes(cast(asyncio.StreamReader, None), cast(asyncio.StreamWriter, None))
        self.editor = EditorConnection(self.pipes)
        self.agent = HoldfastAgent(where, self.editor)
        self.editor.start(self._call, self._notify)
        self.environments: list[tuple[str, ...]] = []

        def connect(location: ServerLocation, directory: str, environment: tuple[str, ...]) -> FakeConnection:
            assert location is where
            self.environments.append(environment)
            self.connections.append(FakeConnection(self, directory))
            return self.connections[-1]

        patch.setattr(workspace_bridge, "WorkspaceConnection", connect)

    async def _call(self, method: str, params: Json) -> Json:
        self.asked.append(params)
        await asyncio.Event().wait()
        return {}

    async def _notify(self, method: str, params: Json) -> None:
        await self.may_send.wait()
        if method == "session/update":
            self.sent.append((params["sessionId"], params["update"]))

    async def updates(self) -> list[tuple[str, Json]]:
        """Return the updates that were sent since the last call."""
        await self.editor.flush()
        found, self.sent = self.sent, []
        return found

    def requests(self) -> Log:
        """Return the requests since the last call, without those that read the workspace."""
        found = [entry for entry in self.log if entry not in (COMMANDS, SETTINGS, ("agent_info",))]
        self.log.clear()
        return found

    async def event(self, event: object, number: int | None = None) -> None:
        await self.connections[0].receive(StreamEvent(cast(Any, event), number))

    async def end(self, outcome: str, **more: Any) -> None:  # noqa: ANN401
        """Report the end of the run that was sent last."""
        await until(lambda: any(entry[0] == "send_prompt" for entry in self.log))
        message: Any = next(entry[1] for entry in self.log if entry[0] == "send_prompt")
        done = RunComplete(message.session_id, MessageId("m"), message.run_id, outcome, **more)  # type: ignore[arg-type]
        await self.event(RunCompleteEvent(Change("created", done)), 9)


@asynccontextmanager
async def open_agent(
    patch: pytest.MonkeyPatch,
    where: ServerLocation = LOCAL,
    **results: Any,  # noqa: ANN401
) -> AsyncIterator[AgentFixture]:
    fixture = AgentFixture(patch, where, **results)
    try:
        yield fixture
    finally:
        await fixture.agent._close()
        await fixture.editor.close()


@asynccontextmanager
async def open_session(patch: pytest.MonkeyPatch, **results: Any) -> AsyncIterator[AgentFixture]:  # noqa: ANN401
    """An agent with the session `s` open."""
    async with open_agent(patch, **results) as fixture:
        await fixture.agent.load_session(cwd="/", session_id="s")
        fixture.requests()
        await fixture.updates()
        yield fixture


def words(*texts: str) -> list[Any]:
    return [schema.TextContentBlock(type="text", text=item) for item in texts]


NOTES = WorkspaceBody("w", "/w", problems=("line 1",))  # type: ignore[arg-type]
LISTED = CommandInfo("deploy", "user", "Deploy.", arguments=(CommandArgument("env"), CommandArgument("note")))
AVAILABLE = {
    "sessionUpdate": "available_commands_update",
    "availableCommands": [
        *({"name": name, "description": about} for name, about in BUILT_IN.items()),
        {"name": "deploy", "description": "Deploy.", "input": {"hint": "<env> <note>"}},
        {"name": "plain", "description": "/plain"},
    ],
}
EXTENSIONS = (LISTED, CommandInfo("plain", "user"), CommandInfo("undo", "project"))
PROBLEM = chunk("\n\n*Error in the settings: line 1*\n\n", "agent_thought_chunk")


def start_request(request: Awaitable[T]) -> asyncio.Task[T]:
    """Start a request of the editor."""

    async def wait() -> T:
        return await request

    return start(wait())
