"""An editor: the protocol's own client on the pipes of a real `holdfast acp`, with a real server."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from acp import PROTOCOL_VERSION, Client, RequestError, spawn_agent_process, text_block
from acp.client.connection import ClientSideConnection
from acp.connection import StreamDirection, StreamEvent
from acp.schema import (
    AcceptElicitationResponse,
    AllowedOutcome,
    ClientCapabilities,
    DeniedOutcome,
    PermissionOption,
    PromptResponse,
    RequestPermissionResponse,
    ToolCallUpdate,
)

from cli.isolated_home import IsolatedHome
from holdfast.client.client import Client as ServerClient
from holdfast.domain.ids import WorkspaceId

__all__ = ["TIMEOUT", "EditorClient", "editor_client", "server_client", "updates_of"]

TIMEOUT = 30.0
Json = dict[str, Any]


class EditorClient:
    """Records all messages. `choose` answers requests; None leaves them open."""

    def __init__(self) -> None:
        self.notifications: list[tuple[str, Json]] = []
        self.asked: list[tuple[ToolCallUpdate, list[PermissionOption]]] = []
        self.raw: list[Json] = []
        """Every message from the agent, as received."""
        self.choose: Callable[[list[PermissionOption]], str | None] = lambda options: options[0].option_id
        self.forms: list[Json] = []
        self._news = asyncio.Event()
        self.agent: ClientSideConnection
        self.process: asyncio.subprocess.Process
        self.cwd = ""

    def observe(self, event: StreamEvent) -> None:
        if event.direction is StreamDirection.INCOMING:
            self.raw.append(event.message)
            self._news.set()

    async def session_update(self, session_id: str, update: Any, **_: object) -> None:  # noqa: ANN401 - one of many
        self.notifications.append((session_id, update.model_dump(by_alias=True, exclude_none=True)))
        self._news.set()

    async def request_permission(
        self, session_id: str, tool_call: ToolCallUpdate, options: list[PermissionOption], **_: object
    ) -> RequestPermissionResponse:
        self.asked.append((tool_call, options))
        self._news.set()
        chosen = self.choose(options)
        if chosen is None:
            await asyncio.get_running_loop().create_future()
        if chosen == "":
            return RequestPermissionResponse(outcome=DeniedOutcome(outcome="cancelled"))
        assert chosen is not None
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=chosen))

    async def create_elicitation(self, message: str, mode: Any, **_: object) -> Any:  # noqa: ANN401
        self.forms.append({"message": message, **mode.model_dump(by_alias=True, exclude_none=True)})
        fields = self.forms[-1]["requestedSchema"]["properties"]
        return AcceptElicitationResponse(
            action="accept", content={name: _filled(field) for name, field in fields.items()}
        )

    def on_connect(self, conn: Any) -> None:  # noqa: ANN401
        self.agent = conn

    def clear(self) -> None:
        self.notifications.clear()
        self.asked.clear()
        self.raw.clear()
        self.choose = lambda options: options[0].option_id

    # Actions of a test

    async def until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(TIMEOUT):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def session(self) -> str:
        return (await self.agent.new_session(cwd=self.cwd)).session_id

    async def prompt(self, session: str, text: str) -> PromptResponse:
        async with asyncio.timeout(TIMEOUT):
            return await self.agent.prompt(session_id=session, prompt=[text_block(text)])

    async def prompt_error(self, session: str, text: str) -> str:
        """Return the error of a prompt that fails."""
        try:
            await self.prompt(session, text)
        except RequestError as error:
            return str(error)
        raise AssertionError("it was answered")

    def text(self, session: str, kind: str = "agent_message_chunk") -> str:
        return "".join(item["content"]["text"] for item in self.updates(session, kind) if "text" in item["content"])

    def updates(self, session: str, *kinds: str) -> list[Json]:
        return [
            item
            for name, item in self.notifications
            if name == session and (not kinds or item["sessionUpdate"] in kinds)
        ]

    def calls(self, session: str) -> dict[str, Json]:
        """Return every tool call in its final state."""
        return updates_of(self.updates(session, "tool_call", "tool_call_update"))


def _filled(field: Json) -> Any:  # noqa: ANN401 - what fits the field
    if field["type"] == "boolean":
        return True
    return field["oneOf"][0]["const"] if field.get("oneOf") else "because"


def updates_of(updates: list[Json]) -> dict[str, Json]:
    calls: dict[str, Json] = {}
    for item in updates:
        name = item["toolCallId"]
        assert (item["sessionUpdate"] == "tool_call") == (name not in calls), "a call is begun once, then reported on"
        calls.setdefault(name, {}).update(item)
    return calls


@asynccontextmanager
async def editor_client(
    home: IsolatedHome, capabilities: ClientCapabilities | None = None
) -> AsyncIterator[EditorClient]:
    made = EditorClient()
    made.cwd = str(home.work)
    command = [sys.executable, "-m", "holdfast", "acp"]
    async with spawn_agent_process(
        cast(Client, made),
        *command,
        env=home.environment,
        cwd=home.work,
        transport_kwargs={"stderr": None},
        observers=[made.observe],
        use_unstable_protocol=True,
    ) as (connection, process):
        made.agent, made.process = connection, process
        await connection.initialize(
            protocol_version=PROTOCOL_VERSION, client_capabilities=capabilities or ClientCapabilities()
        )
        yield made


@asynccontextmanager
async def server_client(home: IsolatedHome) -> AsyncIterator[tuple[ServerClient, WorkspaceId]]:
    """Open another client of the same server in the same workspace."""
    async with ServerClient(home.where.address, seconds=TIMEOUT) as client:
        yield client, (await client.create_workspace(str(home.work))).id
