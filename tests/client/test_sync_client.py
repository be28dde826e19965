"""The blocking client against a real socket, in a thread, and its imports."""

import asyncio
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from client.scripted_server import (
    Exchange,
    Handler,
    ScriptedServer,
    StreamServer,
    answer,
    chunk,
    frame_of,
    session_event,
    stream_head,
)
from holdfast.client import sync_client
from holdfast.client.errors import BrokenResponse, ClientError, ConnectionLost, ServerProblem, TimedOut, Unreachable
from holdfast.client.server_address import ServerAddress
from holdfast.client.sync_client import SyncClient, SyncEventStream
from holdfast.domain.events import encode_event
from holdfast.http11.sse import SseEvent, frame

T = TypeVar("T")
BODIES = [encode_event(session_event(f"s{number}")) for number in range(1, 6)]
LOG = list(enumerate(BODIES, 1))


async def with_server(script: Handler, work: Callable[[SyncClient], T]) -> T:
    """Run the server on this loop and the client in a thread."""

    def run(address: ServerAddress) -> T:
        with SyncClient(address, timeout=10.0) as client:
            return work(client)

    async with ScriptedServer(script) as address:
        return await asyncio.to_thread(run, address)


async def echo(exchange: Exchange) -> None:
    while (asked := await exchange.asked()) is not None:
        await exchange.send(answer(f"{exchange.number} {asked.method} {asked.target} ".encode() + asked.body, 202))


async def test_requests_on_one_connection() -> None:
    def work(client: SyncClient) -> list[tuple[int, bytes]]:
        return [
            client.request("GET", "/v1/health"),
            client.request("POST", "/v1/x", [("a", "b c")], b'{"x":1}'),
            client.request("DELETE", "/v1/y"),
        ]

    assert await with_server(echo, work) == [
        (202, b"0 GET /v1/health "),
        (202, b'0 POST /v1/x?a=b%20c {"x":1}'),
        (202, b"0 DELETE /v1/y "),
    ]


async def test_an_opened_connection_is_used() -> None:
    def work(client: SyncClient) -> tuple[int, bytes]:
        client.connect()
        client.connect()
        return client.request("GET", "/v1/health")

    assert (await with_server(echo, work))[1] == b"0 GET /v1/health "


async def test_large_bodies_both_ways() -> None:
    body = os.urandom(400_000).hex().encode()
    status, back = await with_server(echo, lambda client: client.request("POST", "/v1/x", (), body))
    assert (status, back) == (202, b"0 POST /v1/x " + body)


class DisconnectingScript:
    """Answers the first request; on the first connection it reads the second one and disconnects."""

    def __init__(self) -> None:
        self.received: list[str] = []

    async def __call__(self, exchange: Exchange) -> None:
        while (asked := await exchange.asked()) is not None:
            self.received.append(asked.method)
            if len(self.received) == 2:
                return
            await exchange.send(answer(b"yes"))


@pytest.mark.parametrize(("method", "can_repeat"), [("GET", False), ("DELETE", False), ("POST", True)])
async def test_idempotent_requests_are_repeated(method: str, can_repeat: bool) -> None:
    def work(client: SyncClient) -> tuple[int, bytes]:
        client.request("GET", "/v1/health")
        return client.request(method, "/v1/x", can_repeat=can_repeat)

    script = DisconnectingScript()
    assert await with_server(script, work) == (200, b"yes")
    assert script.received == ["GET", method, method]


async def test_a_post_is_never_sent_twice() -> None:
    def work(client: SyncClient) -> None:
        client.request("GET", "/v1/health")
        with pytest.raises(ConnectionLost):
            client.request("POST", "/v1/x")

    script = DisconnectingScript()
    await with_server(script, work)
    assert script.received == ["GET", "POST"]


async def test_a_closed_connection_is_noticed_before_a_post() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        await exchange.send(answer(str(exchange.number).encode()))

    def work(client: SyncClient) -> bytes:
        client.request("GET", "/v1/health")
        kept = client._idle
        assert kept is not None
        assert kept.recv(1) == b""
        return client.request("POST", "/v1/x")[1]

    assert await with_server(script, work) == b"1"


async def test_a_large_request_that_is_refused_before_it_is_read() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.asked(reads_body=False)
        await exchange.send(answer(b"no", 413, "Connection: close\r\n"))

    assert await with_server(script, lambda client: client.request("POST", "/v1/x", (), b"x" * 5_000_000)) == (
        413,
        b"no",
    )


async def test_no_answer_in_time() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.wait_for_disconnect()

    def work(client: SyncClient) -> None:
        with pytest.raises(TimedOut):
            client.request("GET", "/v1/health", timeout=0.01)

    await with_server(script, work)


@pytest.mark.parametrize("cut", [0, 9, -1])
async def test_an_incomplete_response_is_an_error(cut: int) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        await exchange.send(answer(b"whole")[:cut])

    def work(client: SyncClient) -> None:
        with pytest.raises(ConnectionLost):
            client.request("GET", "/v1/health")

    await with_server(script, work)


def test_no_server_listens() -> None:
    with pytest.raises(Unreachable, match="/nowhere"):
        SyncClient(ServerAddress(path="/nowhere")).request("GET", "/v1/health")


async def test_a_stream() -> None:
    def work(client: SyncClient) -> list[SseEvent]:
        with client.stream("/v1/workspaces/w/events", [("since", 2)]) as stream:
            events: list[SseEvent] = []
            for event in stream:
                events.append(event)
                if event.number == 5:
                    break
            return events

    events = await with_server(StreamServer(LOG, iter(())), work)
    assert events[1:] == [SseEvent(body, number) for number, body in LOG[2:]]


@pytest.mark.parametrize("ending", [b"0\r\n\r\n", b""])
async def test_a_stream_that_ends_is_distinguished_from_one_that_breaks(ending: bytes) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        await exchange.send(stream_head() + chunk(frame_of(session_event("s"), 1)) + ending)

    def work(client: SyncClient) -> int:
        seen = 0
        with client.stream("/v1/x") as stream:
            try:
                for _ in stream:
                    seen += 1
            except ConnectionLost:
                assert not ending
            else:
                assert ending
        return seen

    assert await with_server(script, work) == 1


async def test_a_stream_that_ends_with_its_connection() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        await exchange.send(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + frame(BODIES[0]))

    def work(client: SyncClient) -> list[SseEvent]:
        return list(client.stream("/v1/x"))

    assert await with_server(script, work) == [SseEvent(BODIES[0])]


async def test_a_refused_stream() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        raw = answer(b'{"message":"no such workspace"}', 404)
        for place in range(len(raw)):
            await exchange.send(raw[place : place + 1])

    def work(client: SyncClient) -> ServerProblem:
        with pytest.raises(ServerProblem) as caught:
            client.stream("/v1/x")
        return caught.value

    problem = await with_server(script, work)
    assert (problem.status, problem.message) == (404, "no such workspace")


async def quiet(exchange: Exchange) -> None:
    await exchange.asked()
    await exchange.send(stream_head())
    await exchange.wait_for_disconnect()


async def test_a_wait_ends_with_its_deadline() -> None:
    def work(client: SyncClient) -> list[SseEvent]:
        with client.stream("/v1/x") as stream:
            return stream.receive(0.01)

    assert await with_server(quiet, work) == []


async def test_stream_without_heartbeat_is_broken() -> None:
    """A connection may be dead without being closed: its reader must not wait forever."""

    def work(client: SyncClient) -> None:
        with client.stream("/v1/x", quiet=0.01) as stream, pytest.raises(ConnectionLost, match="stopped responding"):
            list(stream)

    await with_server(quiet, work)


async def test_a_wait_ends_when_the_wake_descriptor_is_readable() -> None:
    """As a signal does through its descriptor."""

    def work(client: SyncClient) -> list[SseEvent]:
        reading, writing = os.pipe()
        try:
            with client.stream("/v1/x") as stream:
                os.write(writing, b"\x02")
                return stream.receive(wake=reading)
        finally:
            os.close(reading)
            os.close(writing)

    assert await with_server(quiet, work) == []


def test_a_wait_without_wake_descriptor_waits_for_its_connection_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Descriptor 0 is readable at its end."""
    registered: list[object] = []

    class Poll:
        def register(self, item: object, _events: int) -> None:
            registered.append(item)

        def poll(self, _timeout: float | None) -> list[tuple[int, int]]:
            return []

    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(stream_head())
        with SyncEventStream(ours, b"", 10.0, 10.0) as stream:
            monkeypatch.setattr(sync_client, "select", SimpleNamespace(poll=Poll, POLLIN=select.POLLIN))
            assert stream.receive(0.0) == []
            assert registered == [ours]
            assert stream.receive(0.0, wake=0) == []
            assert registered == [ours, ours, 0]


class Wire:
    """A connection whose peer sends these pieces; an exception among them is raised."""

    def __init__(self, *pieces: bytes | Exception) -> None:
        self.pieces = list(pieces)
        self.is_closed = False

    def settimeout(self, _seconds: float) -> None:
        """Ignored: nothing is awaited."""

    def sendall(self, _data: bytes) -> None:
        """Accept everything."""

    def recv(self, _size: int) -> bytes:
        piece = self.pieces.pop(0)
        if isinstance(piece, Exception):
            raise piece
        return piece

    def close(self) -> None:
        self.is_closed = True


WHOLE = answer(b"body")
EXCHANGES: list[tuple[tuple[bytes | Exception, ...], object, bool]] = [
    # what is received, the result, and whether the connection is kept
    ((WHOLE,), (200, b"body"), True),
    ((WHOLE[:5], WHOLE[5:]), (200, b"body"), True),
    ((answer(b"body", headers="Connection: close\r\n"),), (200, b"body"), False),
    ((b"HTTP/1.1 200 OK\r\n\r\nbo", b"dy", b""), (200, b"body"), False),
    # Nothing was received: the caller may repeat the request.
    ((b"",), None, False),
    ((ConnectionResetError(),), None, False),
    # The server has begun to answer.
    ((WHOLE[:5], b""), ConnectionLost, False),
    ((WHOLE[:5], ConnectionResetError()), ConnectionLost, False),
    ((WHOLE[:-1], b""), ConnectionLost, False),
    ((TimeoutError(),), TimedOut, False),
    ((WHOLE[:5], TimeoutError()), TimedOut, False),
    ((b"SSH-2.0\r\n",), BrokenResponse, False),
]


@pytest.mark.parametrize("number", range(len(EXCHANGES)))
def test_the_result_of_one_exchange(number: int) -> None:
    pieces, expected, is_kept = EXCHANGES[number]
    wire: Any = Wire(*pieces)
    client = SyncClient(ServerAddress(path="/none"))
    try:
        result: object = client._exchange(wire, b"request", "POST", time.monotonic() + 60)
    except ClientError as error:
        result = type(error)
    assert result == expected
    assert (client._idle is wire, wire.is_closed) == (is_kept, not is_kept)


LIGHT = ("holdfast.client.sync_client", "holdfast.client.server_address", "holdfast.client.server_launcher")
HEAVY = {"asyncio", "http", "email", "ssl", "click", "rich", "hashlib", "subprocess", "urllib", "apsw", "random"}


@pytest.mark.parametrize("module", LIGHT)
def test_the_sync_client_imports_little(module: str) -> None:
    script = f"import sys, msgspec; before = set(sys.modules); import {module}; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert not {name.split(".")[0] for name in loaded} & HEAVY
    assert not [name for name in loaded if name.startswith(("holdfast.engine", "holdfast.storage", "holdfast.bus"))]
    assert len(loaded) < 34, loaded
