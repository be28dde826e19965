"""Clients that shut down their writing side and keep reading, and clients that have disconnected."""

import asyncio
import socket

import pytest

from holdfast.client.server_address import ServerAddress
from holdfast.domain.ids import SessionId
from holdfast.engine.approvals import Approvals
from server.helpers import (
    EchoModel,
    RawStream,
    Server,
    in_process_server,
    open_raw,
    raw_request,
    send_prompt,
    server_directory,
    server_process,
)

HEALTH = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"
VERSION = b"GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n"
TIMEOUT = 20.0
LONG = 3_600.0


async def send_and_half_close(address: ServerAddress, request: bytes) -> bytes:
    """Send a request, shut down the writing side at once, and return the whole response."""
    reader, writer = await open_raw(address)
    writer.write(request)
    writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), TIMEOUT)
    finally:
        writer.close()


def over(server: Server, kind: str) -> tuple[ServerAddress, list[str]]:
    if kind == "socket":
        return server.address, []
    return server.tcp, [f"Host: 127.0.0.1:{server.tcp.port}", f"Authorization: Bearer {server.tcp.token}"]


@pytest.mark.parametrize("kind", ["socket", "tcp"])
async def test_half_closed_client_receives_responses_then_end(kind: str) -> None:
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        address, headers = over(server, kind)
        answers = await send_and_half_close(address, raw_request("/v1/version", headers=headers) * 20)
        assert answers.count(b"HTTP/1.1 200 OK") == 20
        assert answers.count(b'"protocol"') == 20


async def test_the_real_server_answers_too() -> None:
    """It uses a different event loop implementation than the tests."""
    async with server_directory() as directory, server_process(directory):
        answers = await send_and_half_close(directory.address, HEALTH + VERSION)
        assert answers.count(b"HTTP/1.1 200 OK") == 2


@pytest.mark.parametrize(
    "half",
    [
        b"GET /v1/version HT",
        b"GET /v1/version HTTP/1.1\r\nHost: x\r\n",
        b"POST /v1/control HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{",
        b"POST /v1/control HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{",
    ],
)
async def test_incomplete_request_is_dropped(half: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier requests are answered; the rest is not awaited."""
    monkeypatch.setattr("holdfast.server.http.connection._KEEP_ALIVE_SECONDS", LONG)
    async with server_directory() as directory, in_process_server(directory) as server:
        assert await send_and_half_close(server.address, half) == b""
        answers = await send_and_half_close(server.address, VERSION + half)
        assert answers.count(b"HTTP/1.1") == answers.count(b'"protocol"') == 1


async def half_closed(server: Server, kind: str, since: str) -> tuple[RawStream, SessionId]:
    """Open a stream whose reader has shut down its writing side, and a session of its workspace."""
    client, workspace = await server.open_workspace()
    session = (await client.create_session(workspace, "x")).id
    address, headers = over(server, kind)
    stream = await RawStream.open(address, f"/v1/workspaces/{workspace}/events{since}", headers)
    stream.writer.write_eof()
    return stream, session


@pytest.mark.parametrize("since", ["?since=0", ""])
@pytest.mark.parametrize("kind", ["socket", "tcp"])
async def test_half_closed_stream_continues(kind: str, since: str) -> None:
    async with server_directory() as directory, in_process_server(directory, EchoModel(), with_tcp=True) as server:
        stream, session = await half_closed(server, kind, since)
        client, workspace = await server.open_workspace()
        await send_prompt(client, workspace, session, "hello", "r1")
        await stream.until(lambda event: b'"run_complete"' in event.data)
        stream.close()


@pytest.fixture
def disconnected(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """An event that is set when the server detects a disconnect.

    There is no heartbeat here, which would detect it too.
    """
    event = asyncio.Event()
    client_detached = Approvals.client_detached

    def notify(asks: Approvals) -> None:
        client_detached(asks)
        event.set()

    monkeypatch.setattr(Approvals, "client_detached", notify)
    monkeypatch.setattr("holdfast.server.streams.event_stream.HEARTBEAT_SECONDS", LONG)
    return event


@pytest.mark.parametrize("since", ["?since=0", ""])
@pytest.mark.parametrize("kind", ["socket", "tcp"])
async def test_r11_disconnect_of_half_closed_reader_is_detected(
    kind: str, since: str, disconnected: asyncio.Event
) -> None:
    """R11: there is no traffic in the meantime."""
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        stream, _ = await half_closed(server, kind, since)
        await server.open_workspace()
        assert not disconnected.is_set()
        stream.close()
        await asyncio.wait_for(disconnected.wait(), TIMEOUT)


@pytest.mark.parametrize("kind", ["socket", "tcp"])
async def test_disconnect_from_stream_is_detected_at_once(kind: str, disconnected: asyncio.Event) -> None:
    """Including a client that disconnected before its stream began."""
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        _, workspace = await server.open_workspace()
        address, headers = over(server, kind)
        with socket.socket(socket.AF_UNIX if kind == "socket" else socket.AF_INET) as reader:
            reader.connect(address.path or (address.host, address.port))
            reader.sendall(raw_request(f"/v1/workspaces/{workspace}/events?since=0", headers=headers))
        await asyncio.wait_for(disconnected.wait(), TIMEOUT)
