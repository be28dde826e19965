"""A long-running client: heartbeats of its stream, and a server that is lost for a short or a long time."""

import asyncio
import socket
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from client.scripted_server import chunk, frame_of, session_event, stream_head
from holdfast.client import sync_client, workspace_connection
from holdfast.client.address import Address
from holdfast.client.errors import ClientError, ConnectionLost
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
                with pytest.raises(ConnectionLost, match="quiet"):
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

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, can_be_started: bool = True) -> None:
        self.entered = 0
        self.refusals = 0
        self.since: list[int] = []
        self.streams: list[Events] = []
        self.items: list[int] = []
        self.left: list[str] = []
        client = SimpleNamespace(create_workspace=self._create, events=self._events, close=self._close, address=None)
        client.leave_workspace = self._leave
        monkeypatch.setattr(workspace_connection, "Client", lambda *_, **__: client)
        monkeypatch.setattr(
            workspace_connection, "find_or_start", lambda _: SimpleNamespace(address=Address(), close=lambda: None)
        )
        monkeypatch.setattr(asyncio, "to_thread", _at_once)
        self.stay = WorkspaceConnection(ServerLocation(Address(path="/s"), "", can_be_started=can_be_started), "/p")

    async def _create(self, path: str, *, yolo: bool, env: object) -> WorkspaceBody:
        self.entered += 1
        if self.refusals:
            self.refusals -= 1
            raise ClientError("not now")
        return WorkspaceBody(WorkspaceId(f"w{self.entered}"), path)

    def _events(self, _: str, since: int) -> Events:
        self.since.append(since)
        self.streams.append(Events(self.items))
        return self.streams[-1]

    async def _leave(self, workspace: str) -> None:
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
