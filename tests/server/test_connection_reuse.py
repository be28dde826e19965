"""Connections that are reused, replaced or ended, and consecutive dialogs, at both ends of the wire."""

import asyncio

import pytest

from client.scripted_server import Exchange, ScriptedServer, answer
from holdfast.client.backoff import Backoff
from holdfast.client.client import Client
from holdfast.client.request import OpenResponse
from holdfast.client.server_address import ServerAddress
from holdfast.client.stream import EventStream
from holdfast.server.http.connection import HttpServer, Receive, Scope, Send
from holdfast.server.http.listen import UnixListener
from holdfast.testing.gates import Gate, start, until
from server.approval_client import approval_client, question
from server.clock import Clock
from server.helpers import RawStream, in_process_server, open_raw, raw_request, server_directory

HEALTH = raw_request("/v1/health")
TIMEOUT = 20.0


async def test_response_in_flight_at_shutdown_is_last_on_its_connection() -> None:
    gate = Gate()

    async def slow(_scope: Scope, _receive: Receive, send: Send) -> None:
        await gate()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async with server_directory() as directory:
        listener = UnixListener(directory.socket)
        server = HttpServer()
        await server.listen(listener.socket, slow)
        reader, writer = await open_raw(directory.address)
        writer.write(HEALTH)
        await gate.reached.wait()
        ending = start(server.stop(TIMEOUT))
        await asyncio.sleep(0)
        gate.open()
        output = await asyncio.wait_for(reader.read(), TIMEOUT)
        assert output.endswith(b"\r\n\r\nok")
        assert b"connection: close" in output
        await ending
        writer.close()
        listener.close()


async def test_longest_idle_connection_is_evicted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("holdfast.server.http.connection._descriptors", lambda: 4)
    async with server_directory() as directory, in_process_server(directory) as server:
        first, second = [await open_raw(server.address) for _ in range(2)]
        for reader, writer in (second, first):
            writer.write(HEALTH)
            await reader.readuntil(b"\r\n\r\n")
        third = await open_raw(server.address)
        third[1].write(HEALTH)
        await third[0].readuntil(b"\r\n\r\n")
        assert await asyncio.wait_for(second[0].read(), TIMEOUT) == b""
        first[1].write(HEALTH)
        assert await first[0].readuntil(b"\r\n\r\n")
        for _, writer in (first, second, third):
            writer.close()


async def test_pause_after_closed_form_applies_to_new_clients() -> None:
    """A key press meant for the first dialog must not reach the next."""
    async with approval_client() as here:
        sessions = [await here.session() for _ in range(2)]
        for count, session in enumerate(sessions, 1):
            await here.call_tools(session, ("question", {"questions": [question("Really?")]}))
            await here.pending_questions(count)
        clock = Clock()
        batches = await here.pending_questions(2)
        await here.client.cancel_question(here.workspace, batches[0].id)
        stream = await RawStream.open(here.server.address, f"/v1/workspaces/{here.workspace}/events")
        mark = await here.session()
        await stream.until(lambda item: mark.encode() in item.data)
        assert b"question_batch_request" not in stream.raw
        await clock.forward(0.5)
        shown = await stream.until(lambda item: b"question_batch_request" in item.data)
        assert batches[1].id.encode() in shown.data
        stream.close()


# The client


async def test_long_idle_connection_is_not_reused() -> None:
    """The server may close it at the same moment."""
    connections: list[int] = []

    async def script(exchange: Exchange) -> None:
        connections.append(0)
        while await exchange.asked() is not None:
            connections[-1] += 1
            await exchange.send(answer())

    async with ScriptedServer(script) as address, Client(address) as client:
        clock = Clock()
        await client.health()
        await clock.forward(29)
        await client.health()
        await clock.forward(31)
        await client.health()
        assert connections == [2, 1]


class Response(OpenResponse):
    """Response that arrives after its request was abandoned."""

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        self.is_closed = True


async def test_connection_established_after_stream_close_is_closed() -> None:
    response = Response()

    async def connect(_: int) -> OpenResponse:
        stream._closed.set()
        return response

    stream = EventStream(connect, since=0, backoff=Backoff(lambda: 0.0, initial=0.0))
    with pytest.raises(StopAsyncIteration):
        await stream.__anext__()
    assert response.is_closed


async def test_requests_use_new_address_despite_kept_connections() -> None:
    asked: list[str] = []

    def named(name: str) -> ScriptedServer:
        async def script(exchange: Exchange) -> None:
            while await exchange.asked() is not None:
                asked.append(name)
                await exchange.send(answer())

        return ScriptedServer(script)

    async with named("old") as old, named("new") as new, Client(old) as client:
        await client.health()
        client.address = new
        await client.health()
        client.address = ServerAddress(path=new.path)
        await client.health()
        assert asked == ["old", "new", "new"]


async def test_gap_advances_stream_cursor() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        await client.create_session(workspace)
        async with client.events(workspace, since=500) as events:
            async for item in events:
                if "GapEvent" in type(item.event).__name__:
                    break
            assert events.cursor == (await client.snapshot(workspace)).cursor
        await until(lambda: not events.is_connected)
