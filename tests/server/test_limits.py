"""Connection limits: short requests are served whatever else is open."""

import asyncio

import pytest

from holdfast.client.server_address import ServerAddress
from server.helpers import exchange, in_process_server, open_raw, raw_request, server_directory

TIMEOUT = 20.0
STREAMS = 28
"""With 64 descriptors 32 connections over the unix socket are allowed, of which 4 are reserved."""


async def _opened(address: ServerAddress, request: bytes, until: bytes) -> tuple[bytes, asyncio.StreamWriter]:
    """Send a request on a connection that stays open. Returns its status line as soon as `until` was received."""
    reader, writer = await open_raw(address)
    writer.write(request)
    status = await asyncio.wait_for(reader.readline(), TIMEOUT)
    if b" 200 " in status:
        await asyncio.wait_for(reader.readuntil(until), TIMEOUT)
    return status, writer


async def test_cancel_is_served_when_stream_limit_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.http.connection._descriptors", lambda: 64)
    async with server_directory() as directory, in_process_server(directory) as server:
        workspace = await (await server.client()).create_workspace(directory.project())
        base = f"/v1/workspaces/{workspace.id}"
        stream = raw_request(f"{base}/events?since=0")
        opened = [await _opened(server.address, stream, b'"hello"') for _ in range(STREAMS + 3)]
        assert [status.split()[1] for status, _ in opened] == [b"200"] * STREAMS + [b"503"] * 3
        # Neither connections without a request nor incomplete requests use up the reserved ones.
        half = raw_request(f"{base}/agent", "POST", b"{}").removesuffix(b"{}")
        waiting = [await open_raw(server.address) for _ in range(60)]
        cancel = raw_request(f"{base}/agent/sessions/x/cancel", "POST", b"{}")
        assert (await exchange(server.address, cancel)).status in (200, 400)
        for _, writer in waiting:
            writer.write(half)
        answers = await asyncio.gather(*(exchange(server.address, cancel) for _ in range(3)))
        assert all(answer.status in (200, 400) for answer in answers)
        assert not any(writer.is_closing() for _, writer in opened[:STREAMS]), "streams are not closed for others"
        shell = raw_request(f"{base}/agent/sessions/x/shell", "POST", b'{"command":"true"}')
        assert (await exchange(server.address, shell)).status == 503
        opened[0][1].transport.abort()
        for _ in range(200):
            status, writer = await _opened(server.address, stream, b'"hello"')
            writer.transport.abort()
            if b" 200 " in status:
                break
        else:
            raise AssertionError("a stream that has ended makes room for another")
        for _, writer in (*opened, *waiting):
            writer.transport.abort()


async def test_tcp_and_the_unix_socket_have_separate_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.http.connection._descriptors", lambda: 64)
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        half = raw_request("/v1/control", "POST", b"{}").removesuffix(b"{}")
        waiting = [await open_raw(server.tcp) for _ in range(40)]
        for _, writer in waiting:
            writer.write(half)
        for address in (server.address, server.tcp):
            headers = [f"Host: {address.authority}", f"Authorization: Bearer {server.tcp.token}"]
            assert (await exchange(address, raw_request("/v1/health", headers=headers))).status == 200
        for _, writer in waiting:
            writer.transport.abort()
