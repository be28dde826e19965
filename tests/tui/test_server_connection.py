"""The terminal app's connection to the server, without the app: its state after events were missed.

Two connections are in the same session, and the stream of one of them loses everything that happens in a scenario.
After the gap both must have the same state.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from client.every_event import TYPES, event_of
from client.lossy_streams import lossy_streams
from client.missed_events import SCENARIOS, MissedEventsFixture, attended_workspace, location_of
from e2e.tool_client import ToolClient
from holdfast.domain.ids import SessionId
from holdfast.tui.server_connection import ServerConnection

LIVE = {"agent_event", "attached", "lsp_event", "mcp_event", "message_delta", "message_part", "tool_output"}

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def one() -> AsyncIterator[ToolClient]:
    async with attended_workspace() as made:
        yield made


class Watched:
    """A connection whose changes can be awaited."""

    def __init__(self, one: ToolClient) -> None:
        self._news = asyncio.Event()
        self.connection = ServerConnection(location_of(one), str(one.project), on_change=self._news.set)

    async def wait_until(self, condition: Any) -> None:  # noqa: ANN401 - any callable
        async with asyncio.timeout(20):
            while not condition():
                self._news.clear()
                await self._news.wait()

    def known(self, session: SessionId) -> dict[str, Any]:
        view = self.connection.view
        return {
            "messages": self.connection.messages(),
            "title": view.sessions[session].title,
            "todos": view.sessions[session].todos,
            "permissions": {id for id, ask in view.permissions.items() if ask["session_id"] == session},
            "questions": {id for id, ask in view.questions.items() if ask["session_id"] == session},
            "runs": {run.run_id: (run.state, run.outcome) for run in view.runs_of(session)},
            "outputs": dict(view.outputs),
            "open runs": [run.run_id for run in self.connection.runs()],
        }


@asynccontextmanager
async def _links(
    one: ToolClient, patch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[MissedEventsFixture, Watched, Watched]]:
    scene = MissedEventsFixture(one, await one.session(), lossy_streams(patch))
    missing, seeing = Watched(one), Watched(one)
    try:
        for watched in (missing, seeing):
            await watched.connection.open()
            await scene.loss.is_open.wait()
            await watched.wait_until(lambda watched=watched: watched.connection.state == "live")
            await watched.connection.open_session(scene.session)
        yield scene, seeing, missing
    finally:
        await missing.connection.close()
        await seeing.connection.close()


@pytest.mark.parametrize("name", SCENARIOS)
async def test_missed_events_are_recovered(name: str, one: ToolClient, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = SCENARIOS[name]
    async with _links(one, monkeypatch) as (scene, seeing, missing):
        await scenario.before(scene)
        if scenario.opens_first:
            for connection in (seeing, missing):
                await connection.wait_until(
                    lambda connection=connection: (
                        connection.connection.view.permissions or connection.connection.view.questions
                    )
                )
        scene.loss.cut()
        await scenario.during(scene)
        snapshot = await one.client.snapshot(one.workspace, scene.session)
        await seeing.wait_until(lambda: seeing.connection.view.cursor >= snapshot.cursor)
        await scene.loss.lose(lambda item: (item.number or 0) >= snapshot.cursor)
        missing.connection.needs_full_redraw = False
        scene.loss.restore()
        await missing.wait_until(
            lambda: missing.connection.view.cursor >= snapshot.cursor and missing.connection.needs_full_redraw
        )
        assert missing.known(scene.session) == seeing.known(scene.session)
        assert bool(missing.known(scene.session)["permissions"] or missing.known(scene.session)["questions"]) == (
            scenario.is_open
        )
        assert msgspec.to_builtins(missing.connection.messages()) == msgspec.to_builtins(snapshot.messages)
        await one.client.cancel_session(one.workspace, scene.session)


EFFECTS: dict[str, tuple[Any, object]] = {
    "message": (lambda connection: [item.id for item in connection.messages()], ["m"]),
    "session": (lambda connection: connection.view.sessions[connection.session].title, "A title"),
    "run": (lambda connection: [run.run_id for run in connection.runs()], ["r"]),
    "run_complete": (lambda connection: list(connection.ended_runs), ["r"]),
    "permission_request": (lambda connection: list(connection.view.permissions), ["ask"]),
    "permission_notification": (lambda connection: list(connection.outcomes), ["ask"]),
    "question_batch_request": (lambda connection: list(connection.view.questions), ["batch"]),
    "question_batch_notification": (lambda connection: list(connection.outcomes), ["batch"]),
    "agent_event": (lambda connection: list(connection.warnings), ["another model is asked"]),
    "attached": (lambda connection: connection.other_clients, 2),
    "lsp_event": (lambda connection: connection.servers.lsps["tongue"].diagnostic_count, 4),
    "mcp_event": (lambda connection: connection.servers.mcps["tools"].tool_count, 5),
    "message_delta": (lambda connection: list(connection.index.changed), ["m"]),
    "message_part": (lambda connection: list(connection.index.changed), ["m"]),
    "tool_output": (lambda connection: list(connection.index.changed), ["m"]),
}
NONE = {"file", "removed", "skills_event", "hello", "config_changed", "gap"}
"""Not shown by themselves; the last two have the workspace read again."""


async def test_every_type_of_event_has_a_row() -> None:
    assert set(TYPES) == EFFECTS.keys() | NONE


async def test_every_event_changes_the_view(one: ToolClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is delivered to a connection of its own session, behind the number it has seen."""
    async with _links(one, monkeypatch) as (scene, _, watched):
        connection = watched.connection
        for name, (seen, expected) in EFFECTS.items():
            if name in ("message_delta", "message_part", "tool_output"):
                connection.index.changed.clear()
            if name.endswith("_notification"):
                connection.outcomes.clear()
            number = None if name in LIVE else connection.view.cursor + 1
            scene.loss.deliver(event_of(name, scene.session, number))
            async with asyncio.timeout(10):
                await watched.wait_until(lambda seen=seen, expected=expected: _seen(seen, connection) == expected)


def _seen(seen: Any, connection: ServerConnection) -> object:  # noqa: ANN401
    try:
        return seen(connection)
    except KeyError:
        return None
