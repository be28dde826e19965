"""An editor shows the same state after missed events as without a gap.

Two editors are in the same session, and the stream of one of them loses all events of a scenario. After the gap both
must show the same.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, cast

import pytest
import pytest_asyncio

from client.lossy_streams import lossy_streams
from client.missed_events import SCENARIOS, MissedEventsFixture, approve, attended_workspace, cancel, location_of
from e2e.tool_client import ToolClient
from editors.editor_client import updates_of
from holdfast.acp.editor_connection import EditorConnection, StdioPipes
from holdfast.acp.workspace_bridge import WorkspaceBridge
from holdfast.domain.events import RunCompleteEvent
from holdfast.domain.ids import SessionId
from holdfast.protocol.bodies import AgentMessage

pytestmark = pytest.mark.asyncio(loop_scope="module")

Json = dict[str, Any]


class RecordingEditor:
    """The connection of an editor: records updates, and keeps requests open until a test answers or they are
    withdrawn.
    """

    def __init__(self) -> None:
        self.notifications: list[tuple[str, Json]] = []
        self.open: dict[str, tuple[int, str, Json]] = {}
        self.answers: dict[int, asyncio.Future[Json]] = {}
        self.withdrawn: list[int] = []
        self.count = 0
        self.news = asyncio.Event()
        self._pipes = StdioPipes(cast(asyncio.StreamReader, None), cast(asyncio.StreamWriter, None))
        self.editor = EditorConnection(self._pipes)
        self.editor.start(self._call, self._notify)

    async def _call(self, method: str, params: Json) -> Json:
        self.count += 1
        number = self.count
        name = params["_meta"]["holdfast/ask"]
        self._pipes.on_sent({"method": method, "id": number, "params": params})
        self.open[name] = (number, method, params)
        self.answers[number] = asyncio.get_running_loop().create_future()
        self.news.set()
        try:
            return await self.answers[number]
        finally:
            self.open.pop(name, None)
            self.news.set()

    async def _notify(self, method: str, params: Json) -> None:
        if method == "session/update":
            self.notifications.append((params["sessionId"], params["update"]))
        else:
            self.withdrawn.append(params["requestId"])
        self.news.set()

    async def wait_until(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self.news.clear()
                await self.news.wait()

    def has_title(self, title: str) -> bool:
        return any(update.get("title") == title for _, update in self.notifications)

    def shown(self, session: SessionId) -> Json:
        """Return the visible state of a session."""
        own = [update for name, update in self.notifications if name == session]
        calls = updates_of([item for item in own if item["sessionUpdate"] in ("tool_call", "tool_call_update")])
        titles = [item["title"] for item in own if item["sessionUpdate"] == "session_info_update"]
        plans = [item["entries"] for item in own if item["sessionUpdate"] == "plan"]
        texts = {
            kind: "".join(item["content"].get("text", "") for item in own if item["sessionUpdate"] == kind)
            for kind in ("user_message_chunk", "agent_message_chunk", "agent_thought_chunk")
        }
        return {
            **texts,
            "calls": {name: (item["title"], item["status"]) for name, item in calls.items()},
            "title": titles[-1:],
            "plan": plans[-1:],
            "open": [method for _, method, _ in self.open.values()],
        }


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def one() -> AsyncIterator[ToolClient]:
    async with attended_workspace() as made:
        yield made


class Editors:
    """Two editors in one session: `seeing` misses nothing, `missing` may."""

    def __init__(self, scene: MissedEventsFixture) -> None:
        self.scene = scene
        self.seeing = RecordingEditor()
        self.missing = RecordingEditor()
        self.lines: list[WorkspaceBridge] = []

    async def open(self) -> None:
        for screen in (self.missing, self.seeing):
            line = WorkspaceBridge(location_of(self.scene.one), str(self.scene.one.project), (), screen.editor)
            self.lines.append(line)
            await line.open()
            assert await line.attach(self.scene.session, replays=True)
            await self.scene.loss.is_open.wait()

    async def close(self) -> None:
        for line, screen in zip(self.lines, (self.missing, self.seeing), strict=True):
            await line.close()
            await screen.editor.close()

    async def settle(self) -> None:
        """Return when both have processed everything up to now: a title marks the end."""
        await self.scene.one.client.put_session(self.scene.one.workspace, self.scene.session, "the end")
        for screen in (self.seeing, self.missing):
            await screen.wait_until(partial(screen.has_title, "the end"))
            await screen.editor.flush()


@asynccontextmanager
async def _editors(one: ToolClient, patch: pytest.MonkeyPatch) -> AsyncIterator[tuple[MissedEventsFixture, Editors]]:
    scene = MissedEventsFixture(one, await one.session(), lossy_streams(patch))
    editors = Editors(scene)
    await editors.open()
    try:
        yield scene, editors
    finally:
        await editors.close()


@pytest.mark.parametrize("name", SCENARIOS)
async def test_missed_events_are_recovered(name: str, one: ToolClient, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = SCENARIOS[name]
    async with _editors(one, monkeypatch) as (scene, editors):
        seeing, missing = editors.seeing, editors.missing
        await scenario.before(scene)
        if scenario.opens_first:
            for screen in (seeing, missing):
                await screen.wait_until(partial(bool, screen.open))
        scene.loss.cut()
        await scenario.during(scene)
        await scene.loss.lose(lambda item: item.number is not None)
        title = (await one.client.get_session(one.workspace, scene.session)).title
        scene.loss.restore()
        await missing.wait_until(partial(missing.has_title, title))
        await editors.settle()
        assert missing.shown(scene.session) == seeing.shown(scene.session)
        assert bool(missing.open) == scenario.is_open
        assert bool(missing.withdrawn) == (scenario.opens_first and not scenario.is_open)
        assert missing.count == (scenario.opens_first or scenario.is_open), "each ask is put once"
        await one.client.cancel_session(one.workspace, scene.session)


@pytest.mark.parametrize("how", [approve, cancel])
async def test_missed_end_of_own_prompt_is_recovered(
    how: Callable[[MissedEventsFixture], Awaitable[None]], one: ToolClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with _editors(one, monkeypatch) as (scene, editors):
        line = editors.lines[0]
        ended = line.expect_end(scene.session, scene.run)
        scene.loss.cut()
        await line.send(AgentMessage(scene.session, json.dumps([scene.write]), scene.run, interactive=True))
        await how(scene)
        await scene.loss.lose(lambda item: isinstance(item.event, RunCompleteEvent))
        assert not ended.done()
        scene.loss.restore()
        assert (await ended).outcome == ("completed" if how is approve else "cancelled")
