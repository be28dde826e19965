"""Events of a session that a client misses: scenarios for every client."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Literal, cast

import msgspec

from client.lossy_streams import LossyStreams
from e2e.tool_client import ToolClient, tool_client
from holdfast.client.server_launcher import ServerLocation
from holdfast.domain.events import RunCompleteEvent
from holdfast.domain.ids import RunId, SessionId
from holdfast.protocol.bodies import AgentMessage

__all__ = ["SCENARIOS", "MissedEventsFixture", "Scenario", "approve", "attended_workspace", "cancel", "location_of"]

Json = dict[str, Any]
QUESTION = ("question", {"questions": [{"type": "yes_no", "question": "Shall I?", "description": "Now."}]})
PLAN = ("todos", {"todos": [{"content": "Look", "active_form": "Looking", "status": "pending"}]})


@asynccontextmanager
async def attended_workspace() -> AsyncIterator[ToolClient]:
    """A real server and a workspace kept open by a second client."""
    async with tool_client(yolo=False) as made, made.client.events(made.workspace, since=0) as events:
        await events.__anext__()
        yield made


def location_of(one: ToolClient) -> ServerLocation:
    return ServerLocation(one.server.address, str(one.server.directory.data), can_be_started=False)


class MissedEventsFixture:
    """A session in which another client acts, and the stream of the client that may miss events."""

    def __init__(self, one: ToolClient, session: SessionId, loss: LossyStreams) -> None:
        self.one = one
        self.session = session
        self.loss = loss
        self.run = RunId(f"run-{session}")
        self.write = ("write", {"file_path": f"{session}.txt", "content": "one\n"})

    async def prompt(self, *calls: tuple[str, object]) -> None:
        message = AgentMessage(self.session, json.dumps(calls), self.run, interactive=True)
        await self.one.client.send_prompt(self.one.workspace, message)

    async def asks(self, kind: Literal["permissions", "questions"]) -> Json:
        """Return the request of this session as soon as there is one."""
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


Step = Callable[[MissedEventsFixture], Awaitable[None]]


async def _answer(fixture: MissedEventsFixture) -> None:
    await fixture.prompt()
    await fixture.end()


async def _tool(fixture: MissedEventsFixture) -> None:
    await fixture.prompt(("ls", {}))
    await fixture.end()


async def _approval(fixture: MissedEventsFixture) -> None:
    await fixture.prompt(fixture.write)
    await fixture.asks("permissions")


async def _grant(fixture: MissedEventsFixture, action: str) -> None:
    body = {"permission": await fixture.asks("permissions"), "action": action, "reason": ""}
    assert (await fixture.one.client.grant(fixture.one.workspace, body)).resolved
    await fixture.end()


async def approve(fixture: MissedEventsFixture) -> None:
    await _grant(fixture, "allow")


async def _denied(fixture: MissedEventsFixture) -> None:
    await _grant(fixture, "deny")


async def _question(fixture: MissedEventsFixture) -> None:
    await fixture.prompt(QUESTION)
    await fixture.asks("questions")


async def _answered(fixture: MissedEventsFixture) -> None:
    await fixture.one.client.cancel_question(fixture.one.workspace, (await fixture.asks("questions"))["id"])
    await fixture.end()


async def cancel(fixture: MissedEventsFixture) -> None:
    await fixture.one.client.cancel_run(fixture.one.workspace, fixture.run)
    await fixture.end()


async def _renamed(fixture: MissedEventsFixture) -> None:
    await fixture.one.client.put_session(fixture.one.workspace, fixture.session, "Another title")


async def _planned(fixture: MissedEventsFixture) -> None:
    await fixture.prompt(PLAN)
    await fixture.end()


async def _nothing(_: MissedEventsFixture) -> None:
    pass


class Scenario(msgspec.Struct, frozen=True):
    """`before` is received by all clients, `during` is missed. `is_open`: a request is open at the end."""

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
