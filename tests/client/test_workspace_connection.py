"""A long-running client: heartbeats of its stream, and a server that is lost for a short or a long time."""

import asyncio
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from client.scripted_server import chunk, frame_of, session_event, stream_head
from holdfast.client import sync_client, workspace_connection
from holdfast.client.errors import ClientError, ConnectionLost, ServerProblem
from holdfast.client.server_address import ServerAddress
from holdfast.client.server_launcher import ServerLocation
from holdfast.client.sync_client import SyncEventStream
from holdfast.client.workspace_connection import WorkspaceConnection
from holdfast.domain.ids import WorkspaceId
from holdfast.http11.sse import HEARTBEAT
from holdfast.protocol.bodies import WorkspaceBody
from holdfast.testing.gates import settle_down, start, until
from server.clock import Clock

LOOK = 0.5


class Steps:
    """A clock that advances by four seconds at every reading, and then runs due callbacks."""

    def __init__(self) -> None:
        self.now = 0.0
        self.due: dict[float, Callable[[], object]] = {}

    def monotonic(self) -> float:
        self.now += 4
        self.due.pop(self.now, lambda: None)()
        return self.now


@pytest.mark.parametrize("is_alive", [True, False])
def test_a_heartbeat_resets_the_timeout_like_an_event(is_alive: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(stream_head())
        clock = Steps()
        monkeypatch.setattr(sync_client, "time", clock)
        with SyncEventStream(ours, b"", 1000.0, 10.0) as stream:
            begin = clock.now
            if is_alive:
                theirs.sendall(chunk(HEARTBEAT))
            else:
                # An event has to arrive, or the wait is a real one.
                clock.due[begin + 8] = lambda: monkeypatch.setattr(clock, "now", begin + 40)
            clock.due[begin + 20] = lambda: theirs.sendall(chunk(frame_of(session_event("a"), 1)))
            items = iter(stream)
            if is_alive:
                assert next(items).number == 1
            else:
                with pytest.raises(ConnectionLost, match="stopped responding"):
                    next(items)


class Events:
    """A stream controlled by the test."""

    def __init__(self, items: list[int]) -> None:
        self.is_connected = True
        self.trouble = None
        self.cursor = 0
        self.over = asyncio.Event()
        self.items = items

    async def __aenter__(self) -> "Events":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.is_connected = False

    def __aiter__(self) -> "Events":
        return self

    async def __anext__(self) -> Any:  # noqa: ANN401
        if self.items:
            self.cursor = self.items[0]
            return self.items.pop(0)
        await self.over.wait()
        raise StopAsyncIteration


async def _at_once(function: Callable[..., object], *args: object) -> object:
    """Run the function at once instead of later."""
    return function(*args)


class Harness:
    """A workspace that records how often it was entered and from which cursor it was followed."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *, can_be_started: bool = True, where: ServerLocation | None = None
    ) -> None:
        self.entered = 0
        self.refusals = 0
        self.since: list[int] = []
        self.streams: list[Events] = []
        self.items: list[int] = []
        self.left: list[str] = []
        self.environments: list[object] = []
        self.modes: list[bool] = []
        self.open_connections = 0
        self.hangs = False
        self.may_leave = asyncio.Event()
        self.may_leave.set()
        self.address = ServerAddress(path="/first")
        self.client = client = SimpleNamespace(
            create_workspace=self._create, events=self._events, close=self._close, address=None
        )
        client.leave_workspace = self._leave
        monkeypatch.setattr(workspace_connection, "Client", lambda *_, **__: client)
        monkeypatch.setattr(workspace_connection, "find_or_start", self._find)
        monkeypatch.setattr(asyncio, "to_thread", _at_once)
        where = where or ServerLocation(ServerAddress(path="/s"), "", can_be_started=can_be_started)
        self.stay = WorkspaceConnection(where, "/p", ("A=1",), yolo=lambda: self.entered > 1)

    def _find(self, _: ServerLocation) -> SimpleNamespace:
        self.open_connections += 1

        def close() -> None:
            self.open_connections -= 1

        return SimpleNamespace(address=self.address, close=close)

    async def _create(self, path: str, *, yolo: bool, env: object) -> WorkspaceBody:
        self.entered += 1
        self.environments.append(env)
        self.modes.append(yolo)
        if self.refusals:
            self.refusals -= 1
            raise ClientError("not now")
        return WorkspaceBody(WorkspaceId(f"w{self.entered}"), path)

    def _events(self, _: str, since: int) -> Events:
        self.since.append(since)
        self.streams.append(Events(self.items))
        return self.streams[-1]

    async def _leave(self, workspace: str) -> None:
        if self.hangs:
            await asyncio.Event().wait()
        await self.may_leave.wait()
        self.left.append(workspace)

    async def _close(self) -> None:
        self.left.append("closed")


@pytest.mark.parametrize(
    ("looks", "can_be_started", "again"),
    [
        ("+++++", True, 0),
        ("-+-+-+", True, 0),
        ("--", True, 1),
        ("---", True, 1),
        ("----", True, 2),
        ("-+--", True, 1),
        ("----", False, 0),
    ],
)
async def test_a_lost_server_is_located_again_and_a_short_interruption_is_ignored(
    looks: str, can_be_started: bool, again: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = Harness(monkeypatch, can_be_started=can_be_started)
    clock = Clock()
    await harness.stay.enter()

    async def receive(_: object) -> None:
        return

    following = start(harness.stay.follow(receive))
    await settle_down()
    for look in looks:
        harness.streams[0].is_connected = look == "+"
        await clock.forward(LOOK * 1.01)
        await settle_down()
    assert harness.entered == 1 + again
    following.cancel()
    await harness.stay.leave()
    assert harness.left == [f"w{harness.entered}", "closed"]


async def test_a_stream_that_ended_is_reopened_at_its_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old one is not read any more; a refusal is retried with growing delays."""
    harness = Harness(monkeypatch)
    clock = Clock()
    await harness.stay.enter()
    taken: list[object] = []

    async def receive(item: object) -> None:
        taken.append(item)

    harness.items += [4, 5]
    harness.stay.cursor = 3
    following = start(harness.stay.follow(receive))
    await until(lambda: len(taken) == 2)
    harness.refusals = 1
    harness.streams[0].over.set()
    await until(lambda: harness.entered == 2)
    await clock.forward(20)
    await until(lambda: len(harness.streams) == 2)
    entered = harness.entered
    for _ in range(6):
        await clock.forward(LOOK * 1.01)
        await settle_down(200)
    assert harness.entered == entered
    assert (harness.since, taken) == ([3, 5], [4, 5])
    following.cancel()
    await harness.stay.leave()


REMOTE = ServerLocation(ServerAddress(path="/tunnel"), "", can_be_started=False, again=lambda: None, directory="/there")


@pytest.mark.parametrize(
    ("where", "environment", "directory"),
    [
        (ServerLocation(ServerAddress(path="/s"), "", can_be_started=True), ("A=1",), "/p"),
        (ServerLocation(ServerAddress(path="/s"), "", can_be_started=False), ("A=1",), "/p"),
        (ServerLocation(ServerAddress(host="h", port=1), "", can_be_started=False), (), "/p"),
        (REMOTE, (), "/there"),
    ],
    ids=["own", "named socket", "TCP", "ssh"],
)
async def test_the_environment_is_sent_to_a_server_of_this_machine_only(
    where: ServerLocation, environment: tuple[str, ...], directory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    harness = Harness(monkeypatch, where=where)
    body = await harness.stay.enter()
    assert harness.environments == [environment]
    assert body.path == directory


async def test_each_entry_uses_the_current_address_and_mode_and_leaves_no_connection(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    harness = Harness(monkeypatch)
    for number in range(3):
        harness.address = ServerAddress(path=f"/socket{number}")
        await harness.stay.enter()
        assert harness.open_connections == 0
    assert harness.client.address == ServerAddress(path="/socket2")
    assert harness.modes == [False, False, True]


async def test_a_remote_server_is_restored_too(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(monkeypatch, where=REMOTE)
    clock = Clock()
    await harness.stay.enter()
    following = start(harness.stay.follow(_ignore))
    await settle_down()
    harness.streams[0].is_connected = False
    for _ in range(2):
        await clock.forward(LOOK * 1.01)
        await settle_down()
    assert harness.entered == 2
    following.cancel()
    await harness.stay.leave()


async def _ignore(_: object) -> None:
    return


async def test_the_position_is_that_of_the_event_while_it_is_received(monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that loads a snapshot sets the position, and one that fails does not receive the event again."""
    harness = Harness(monkeypatch)
    Clock()
    await harness.stay.enter()
    seen: list[tuple[object, int]] = []

    async def receive(item: object) -> None:
        seen.append((item, harness.stay.cursor))
        if item == 5:
            harness.stay.cursor = 9

    harness.items += [4, 5]
    following = start(harness.stay.follow(receive))
    await until(lambda: len(seen) == 2)
    assert (seen, harness.stay.cursor) == ([(4, 4), (5, 5)], 9)
    following.cancel()
    await harness.stay.leave()


async def test_leaving_a_server_that_does_not_respond(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit ends the wait, the client is closed, and no task is left."""
    harness = Harness(monkeypatch)
    clock = Clock()
    await harness.stay.enter()
    harness.hangs = True
    following = start(harness.stay.follow(_ignore))
    await settle_down()
    leaving = start(harness.stay.leave())
    await settle_down()
    await clock.forward(1.1)
    await leaving
    assert harness.left == ["closed"]
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "connection"]
    following.cancel()


async def test_leaving_a_slow_server(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(monkeypatch)
    clock = Clock()
    await harness.stay.enter()
    harness.may_leave.clear()
    leaving = start(harness.stay.leave())
    await settle_down()
    await clock.forward(0.9)
    harness.may_leave.set()
    await leaving
    assert harness.left == ["w1", "closed"]


SEVERAL = ServerLocation(ServerAddress(path="/a"), "", can_be_started=False)
SEVERAL = SEVERAL._replace(alternatives=(SEVERAL, SEVERAL._replace(address=ServerAddress(path="/b"))))


@pytest.mark.parametrize(("is_known", "kept", "left"), [(True, "w1", ["w2"]), (False, "w2", [])])
async def test_the_workspace_stays_the_same_at_a_server_with_other_disks(
    is_known: bool, kept: str, left: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a server has another workspace for the path, and knows the first one by its id."""
    harness = Harness(monkeypatch, where=SEVERAL)
    harness.address = ServerAddress(path="/a")

    async def get_workspace(workspace: WorkspaceId) -> WorkspaceBody:
        if not is_known:
            raise ServerProblem(404)
        return WorkspaceBody(workspace, "/p")

    harness.client.get_workspace = get_workspace
    harness.client.address = harness.address
    await harness.stay.enter()
    assert (harness.stay.workspace, harness.stay.node) == ("w1", "a")
    harness.address = ServerAddress(path="/b")
    await harness.stay.enter()
    assert (harness.stay.workspace, harness.left) == (kept, left)


async def test_one_host_has_no_node_and_may_change_its_workspace(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(monkeypatch)
    await harness.stay.enter()
    await harness.stay.enter()
    assert (harness.stay.workspace, harness.stay.node, harness.stay.has_alternatives) == ("w2", "", False)
