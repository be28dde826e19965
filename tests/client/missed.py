"""Events of a session that a client misses: scenarios for every client."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, cast

import msgspec

from client.lossy import Lossy
from e2e.tool_client import ToolClient, tool_client
from holdfast.client.server_launcher import ServerLocation
from holdfast.domain.events import RunCompleteEvent
from holdfast.domain.ids import RunId, SessionId
from holdfast.protocol.bodies import AgentMessage

__all__ = ["SCENARIOS", "Scenario", "Scene", "approve", "attended", "cancel", "where_of"]

Json = dict[str, Any]
QUESTION = ("question", {"questions": [{"type": "yes_no", "question": "Shall I?", "description": "Now."}]})
PLAN = ("todos", {"todos": [{"content": "Look", "active_form": "Looking", "status": "pending"}]})


@asynccontextmanager
async def attended() -> AsyncIterator[ToolClient]:
    """A real server and a workspace that stays open: one that nobody follows is closed."""
    async with tool_client(yolo=False) as made, made.client.events(made.workspace, since=0) as events:
        await events.__anext__()
        yield made


def where_of(one: ToolClient) -> ServerLocation:
    return ServerLocation(one.server.address, str(one.server.directory.data), can_be_started=False)


class Scene:
    """A session in which another client acts, and the stream of the client that may miss it."""

    def __init__(self, one: ToolClient, session: SessionId, loss: Lossy) -> None:
        self.one = one
        self.session = session
        self.loss = loss
        self.run = RunId(f"run-{session}")
        self.write = ("write", {"file_path": f"{session}.txt", "content": "one\n"})

    async def prompt(self, *calls: tuple[str, object]) -> None:
        message = AgentMessage(self.session, json.dumps(calls), self.run, interactive=True)
        await self.one.client.send_prompt(self.one.workspace, message)

    async def asks(self, kind: Literal["permissions", "questions"]) -> Json:
        """The ask of this session, as soon as there is one."""
        async with asyncio.timeout(20):
            while True:
                snapshot = await self.one.client.snapshot(self.one.workspace)
                for ask in getattr(snapshot, kind):
                    if ask["session_id"] == self.session:
                        return cast(Json, ask)

    async def end(self) -> None:
        async with self.one.client.events(self.one.workspace, since=0) as events:
            async for item in events:
                if isinstance(item.event, RunCompleteEvent) and item.event.change.object.run_id == self.run:
                    return


Step = Callable[[Scene], Awaitable[None]]


async def _answer(scene: Scene) -> None:
    await scene.prompt()
    await scene.end()


async def _tool(scene: Scene) -> None:
    await scene.prompt(("ls", {}))
    await scene.end()


async def _approval(scene: Scene) -> None:
    await scene.prompt(scene.write)
    await scene.asks("permissions")


async def _grant(scene: Scene, action: str) -> None:
    body = {"permission": await scene.asks("permissions"), "action": action, "reason": ""}
    assert (await scene.one.client.grant(scene.one.workspace, body)).resolved
    await scene.end()


async def approve(scene: Scene) -> None:
    await _grant(scene, "allow")


async def _denied(scene: Scene) -> None:
    await _grant(scene, "deny")


async def _question(scene: Scene) -> None:
    await scene.prompt(QUESTION)
    await scene.asks("questions")


async def _answered(scene: Scene) -> None:
    await scene.one.client.cancel_question(scene.one.workspace, (await scene.asks("questions"))["id"])
    await scene.end()


async def cancel(scene: Scene) -> None:
    await scene.one.client.cancel_run(scene.one.workspace, scene.run)
    await scene.end()


async def _renamed(scene: Scene) -> None:
    await scene.one.client.put_session(scene.one.workspace, scene.session, "Another title")


async def _planned(scene: Scene) -> None:
    await scene.prompt(PLAN)
    await scene.end()


async def _nothing(_: Scene) -> None:
    pass


class Scenario(msgspec.Struct, frozen=True):
    """`before` is seen by everybody, `during` is missed. `is_open`: an ask is open at the end."""

    before: Step
    during: Step
    is_open: bool = False

    @property
    def opens_first(self) -> bool:
        return self.before is not _nothing


SCENARIOS = {
    "an answer": Scenario(_nothing, _answer),
    "a tool": Scenario(_nothing, _tool),
    "an approval opens": Scenario(_nothing, _approval, is_open=True),
    "an approval is given elsewhere": Scenario(_approval, approve),
    "an approval is refused elsewhere": Scenario(_approval, _denied),
    "an approval stays open": Scenario(_approval, _renamed, is_open=True),
    "a question opens": Scenario(_nothing, _question, is_open=True),
    "a question is closed elsewhere": Scenario(_question, _answered),
    "a question stays open": Scenario(_question, _renamed, is_open=True),
    "a run is cancelled while it asks": Scenario(_approval, cancel),
    "a session is renamed": Scenario(_nothing, _renamed),
    "a plan is made": Scenario(_nothing, _planned),
}
