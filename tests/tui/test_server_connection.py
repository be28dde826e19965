"""The terminal app's connection to the server, without the app: its state after events were missed.

Two connections are in the same session, and the stream of one of them loses everything that happens in a scenario.
After the gap both must have the same state.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count, permutations, product
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import pytest_asyncio

from client.every_event import TYPES, event_of
from client.lossy_streams import lossy_streams
from client.missed_events import SCENARIOS, MissedEventsFixture, attended_workspace, location_of
from e2e.tool_client import ToolClient
from holdfast.client.client import Client
from holdfast.client.errors import ClientError
from holdfast.client.events import StreamEvent
from holdfast.client.server_launcher import locate
from holdfast.domain.events import Hello, HelloEvent
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.protocol.bodies import SnapshotBody, WorkspaceBody
from holdfast.testing.gates import Gate, settle_down, start
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


class Requests:
    """A client whose requests are recorded and fail."""

    snapshot: Any
    get_workspace: Any

    def __init__(self) -> None:
        self.names: list[str] = []

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any method of the client
        async def request(*_: object, **__: object) -> None:
            self.names.append(name)
            raise ClientError("not now")

        return request


@pytest.mark.parametrize("ends", list(product((0, 1), (False, True))), ids=lambda end: f"{end[0]} {end[1]}")
async def test_events_wait_for_every_snapshot_that_is_requested(ends: tuple[int, bool], tmp_path: Path) -> None:
    """Two sessions are opened at once; either answer may be the first, and an error."""
    first, fails = ends
    connection = ServerConnection(locate(None, str(tmp_path)), str(tmp_path), on_change=lambda: None)
    requests, gates, answers = Requests(), [Gate(), Gate()], count()

    async def snapshot(*_: object) -> SnapshotBody:
        number = next(answers)
        await gates[number]()
        if fails and number == first:
            raise ClientError("not now")
        return SnapshotBody(5 + number, 1, WorkspaceBody(WorkspaceId("w"), "/w"), (), (), ())

    requests.snapshot = snapshot
    connection._connection._client = cast(Client, requests)
    opening = [start(connection.open_session(SessionId(name))) for name in ("s1", "s2")]
    for gate in gates:
        await gate.reached.wait()
    event = start(connection._receive(StreamEvent(HelloEvent(Hello(9, 1, 1)))))
    for number in (first, 1 - first):
        await settle_down()
        assert (connection.state, event.done()) == ("connecting", False)
        gates[number].open()
    await asyncio.wait([*opening, event])
    assert [task.exception() is not None for task in opening] == [fails and number == first for number in (0, 1)]
    await connection._tasks.drain()
    assert (connection.state, connection.session) == ("live", "s1" if fails and first else "s2")


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
async def test_the_last_request_for_the_workspace_counts(order: tuple[int, ...], tmp_path: Path) -> None:
    """Settings change several times; the answers arrive in any order."""
    connection = ServerConnection(locate(None, str(tmp_path)), str(tmp_path), on_change=lambda: None)
    requests, gates, answers = Requests(), [Gate(), Gate(), Gate()], count()

    async def get_workspace(*_: object) -> WorkspaceBody:
        number = next(answers)
        await gates[number]()
        return WorkspaceBody(WorkspaceId("w"), f"/{number}")

    requests.get_workspace = get_workspace
    connection._connection._client = cast(Client, requests)
    reads = [start(connection._read_workspace()) for _ in gates]
    for number in order:
        await gates[number].reached.wait()
        gates[number].open()
        await reads[number]
    assert connection.directory == "/2"


async def test_a_prompt_waits_until_the_workspace_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connection = ServerConnection(locate(None, str(tmp_path)), str(tmp_path), on_change=lambda: None)
    requests, connected, read = Requests(), Gate(), Gate()

    async def connect() -> WorkspaceBody:
        await connected()
        connection._connection._client = cast(Client, requests)
        return WorkspaceBody(WorkspaceId("w"), "/w")

    async def snapshot(*_: object) -> SnapshotBody:
        await read()
        return SnapshotBody(5, 1, WorkspaceBody(WorkspaceId("w"), "/w"), (), (), ())

    async def follow(*_: object) -> None:
        """No event arrives."""

    monkeypatch.setattr(connection._connection, "enter", connect)
    monkeypatch.setattr(connection._connection, "follow", follow)
    requests.snapshot = snapshot
    opening, prompting = start(connection.open()), start(connection.prompt("hi"))
    for gate in (connected, read):
        await gate.reached.wait()
        await settle_down()
        assert (prompting.done(), requests.names) == (False, [])
        gate.open()
    await asyncio.wait([opening, prompting])
    assert isinstance(prompting.exception(), ClientError)
    assert requests.names == ["create_session"]


@pytest.mark.parametrize("before", ["connecting", "broken", "live"])
async def test_what_no_stored_event_tells_is_requested_after_every_interruption(before: str, tmp_path: Path) -> None:
    """The states of servers and the number of clients: their events are sent once, to those who are connected."""
    connection = ServerConnection(locate(None, str(tmp_path)), str(tmp_path), on_change=lambda: None)
    requests = Requests()
    connection._connection._client = cast(Client, requests)
    item = StreamEvent(HelloEvent(Hello(0, 1, 1)))
    if before != "connecting":
        await connection._receive(item)
        await connection._tasks.drain()
        requests.names.clear()
    if before == "broken":
        connection._report_trouble("gone")
    await connection._receive(item)
    await connection._tasks.drain()
    assert set(requests.names) == (set() if before == "live" else {"set_current_session", "mcp_states"})
    assert connection.state == "live"
