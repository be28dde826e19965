"""The server from outside: accepting, the first token, a whole turn, cancel. A real process and socket."""

import time
from collections.abc import AsyncIterator
from statistics import median

import uvloop

from bench.figures import Figure, Goal
from bench.outside import Served, served
from bench.stage import Bare
from holdfast.client.client import Client
from holdfast.client.events import StreamEvent
from holdfast.domain.events import MessageDeltaEvent, MessagePartEvent, RunCompleteEvent
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.protocol.bodies import AgentMessage

__all__ = ["measure"]

TURNS = 60
CANCELS = 30


class Talk:
    """One session, prompted by one client that also reads the stream."""

    def __init__(
        self, client: Client, workspace: WorkspaceId, session: SessionId, items: AsyncIterator[StreamEvent]
    ) -> None:
        self._client = client
        self._workspace = workspace
        self._session = session
        self._items = items
        self._count = 0

    async def post(self, prompt: str) -> RunId:
        self._count += 1
        run = RunId(f"b{self._count}")
        await self._client.send_prompt(self._workspace, AgentMessage(self._session, prompt, run))
        return run

    async def turn(self) -> tuple[float, float, float]:
        """Seconds until it is accepted, until its first words, until its end."""
        began = time.perf_counter()
        run = await self.post("words=200")
        accepted, first = time.perf_counter() - began, 0.0
        async for item in self._items:
            event = item.event
            if not first and isinstance(event, MessagePartEvent | MessageDeltaEvent):
                first = time.perf_counter() - began
            if isinstance(event, RunCompleteEvent) and event.change.object.run_id == run:
                break
        return accepted, first, time.perf_counter() - began

    async def cancelled(self) -> float:
        """Seconds from the request to the end, as the client sees it."""
        await self.post("words=2000 pause=20")
        await self._next(MessageDeltaEvent)
        began = time.perf_counter()
        await self._client.cancel_session(self._workspace, self._session)
        await self._next(RunCompleteEvent)
        return time.perf_counter() - began

    async def _next(self, kind: type) -> None:
        async for item in self._items:
            if isinstance(item.event, kind):
                return


class Floor:
    """What an answer that is on disk costs with nothing of ours in it: a server that only answers, and a commit."""

    def __init__(self, client: Client, store: Bare) -> None:
        self._client = client
        self._store = store
        self._commits: list[float] = []
        self._answers: list[float] = []

    async def look(self) -> None:
        self._commits.append(self._store.commit())
        began = time.perf_counter()
        await self._client.send_prompt(WorkspaceId("none"), AgentMessage(SessionId("none"), "words=0"))
        self._answers.append(time.perf_counter() - began)

    def milliseconds(self) -> float:
        return (median(self._commits) + median(self._answers)) * 1e3


async def _measure(server: Served, other: Served) -> list[Figure]:
    store = Bare(server.root)
    async with Client(server.address) as client, Client(other.address) as bare:
        floor = Floor(bare, store)
        workspace = (await client.create_workspace(str(server.root / "project"))).id
        session = (await client.create_session(workspace)).id
        stream = client.events(workspace, since=0)
        talk = Talk(client, workspace, session, aiter(stream))
        turns, cancels = [], []
        for _ in range(TURNS):
            await floor.look()
            turns.append(await talk.turn())
        for _ in range(CANCELS):
            await floor.look()
            cancels.append(await talk.cancelled())
        await stream.close()
    store.close()
    accepts, firsts, whole = zip(*turns, strict=True)
    least, beside = floor.milliseconds(), "a bare asyncio server's answer and one synced commit"
    return [
        Figure("POST a prompt, answered", median(accepts) * 1e3, "ms", least, beside, Goal(1.5)),
        Figure("POST to first token event", median(firsts) * 1e3, "ms", least, beside, Goal(10)),
        Figure("turn of 200 tokens, end to end", median(whole) * 1e3, "ms", least, beside),
        Figure("cancel to end, seen by a client", median(cancels) * 1e3, "ms", least, beside, Goal(2.5)),
    ]


def measure() -> list[Figure]:
    with served() as server, served("-m", "bench.bare") as other:
        for each in (server, other):
            each.answer("/v1/version")
        return uvloop.run(_measure(server, other))
