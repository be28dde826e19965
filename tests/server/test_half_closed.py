"""Clients that shut their own side of a connection and go on reading, and those that have left altogether."""

import asyncio
import socket

import pytest

from holdfast.client.address import Address
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


async def said(address: Address, request: bytes) -> bytes:
    """All that is answered to who sends this, and shuts its side at once."""
    reader, writer = await open_raw(address)
    writer.write(request)
    writer.write_eof()
    try:
        return await asyncio.wait_for(reader.read(), TIMEOUT)
    finally:
        writer.close()


def over(server: Server, kind: str) -> tuple[Address, list[str]]:
    if kind == "socket":
        return server.address, []
    return server.tcp, [f"Host: 127.0.0.1:{server.tcp.port}", f"Authorization: Bearer {server.tcp.token}"]


@pytest.mark.parametrize("kind", ["socket", "tcp"])
async def test_who_shuts_its_side_gets_its_answers_and_then_the_end(kind: str) -> None:
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        address, headers = over(server, kind)
        answers = await said(address, raw_request("/v1/version", headers=headers) * 20)
        assert answers.count(b"HTTP/1.1 200 OK") == 20
        assert answers.count(b'"protocol"') == 20


async def test_the_real_server_answers_too() -> None:
    """It runs on another loop than the tests."""
    async with server_directory() as directory, server_process(directory):
        answers = await said(directory.address, HEALTH + VERSION)
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
async def test_half_a_request_is_no_request(half: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked before it is answered; the rest is not waited for."""
    monkeypatch.setattr("holdfast.server.http.connection._KEEP_ALIVE_SECONDS", LONG)
    async with server_directory() as directory, in_process_server(directory) as server:
        assert await said(server.address, half) == b""
        answers = await said(server.address, VERSION + half)
        assert answers.count(b"HTTP/1.1") == answers.count(b'"protocol"') == 1


async def half_closed(server: Server, kind: str, since: str) -> tuple[RawStream, SessionId]:
    """A stream whose reader has shut its side, and a session of its workspace."""
    client, workspace = await server.open_workspace()
    session = (await client.create_session(workspace, "x")).id
    address, headers = over(server, kind)
    stream = await RawStream.open(address, f"/v1/workspaces/{workspace}/events{since}", headers)
    stream.writer.write_eof()
    return stream, session


@pytest.mark.parametrize("since", ["?since=0", ""])
@pytest.mark.parametrize("kind", ["socket", "tcp"])
async def test_a_stream_goes_on_for_who_only_reads(kind: str, since: str) -> None:
    async with server_directory() as directory, in_process_server(directory, EchoModel(), with_tcp=True) as server:
        stream, session = await half_closed(server, kind, since)
        client, workspace = await server.open_workspace()
        await send_prompt(client, workspace, session, "hello", "r1")
        await stream.until(lambda event: b'"run_complete"' in event.data)
        stream.close()


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when a reader has left, as far as the server knows. A heartbeat would find out, too; there is none here."""
    event = asyncio.Event()
    client_detached = Approvals.client_detached

    def tell(asks: Approvals) -> None:
        client_detached(asks)
        event.set()

    monkeypatch.setattr(Approvals, "client_detached", tell)
    monkeypatch.setattr("holdfast.server.streams.event_stream.HEARTBEAT_SECONDS", LONG)
    return event


@pytest.mark.parametrize("since", ["?since=0", ""])
@pytest.mark.parametrize("kind", ["socket", "tcp"])
async def test_who_only_read_and_leaves_is_missed(kind: str, since: str, left: asyncio.Event) -> None:
    """R11: nothing is said meanwhile."""
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        stream, _ = await half_closed(server, kind, since)
        await server.open_workspace()
        assert not left.is_set()
        stream.close()
        await asyncio.wait_for(left.wait(), TIMEOUT)


@pytest.mark.parametrize("kind", ["socket", "tcp"])
async def test_who_leaves_a_stream_is_missed_at_once(kind: str, left: asyncio.Event) -> None:
    """Also one that has left before its stream began."""
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        _, workspace = await server.open_workspace()
        address, headers = over(server, kind)
        with socket.socket(socket.AF_UNIX if kind == "socket" else socket.AF_INET) as reader:
            reader.connect(address.path or (address.host, address.port))
            reader.sendall(raw_request(f"/v1/workspaces/{workspace}/events?since=0", headers=headers))
        await asyncio.wait_for(left.wait(), TIMEOUT)
