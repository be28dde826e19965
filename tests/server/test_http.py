"""HTTP over real sockets: fragmented, pipelined, incomplete and missing requests."""

import asyncio
import json
import socket
from contextlib import suppress

import pytest

from holdfast.server.http.connection import HttpServer, Receive, Scope, Send
from holdfast.server.http.listen import UnixListener
from server.clock import Clock
from server.helpers import exchange, in_process_server, open_raw, raw_request, server_directory

HEALTH = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"
VERSION = b"GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n"
TIMEOUT = 20.0
KEPT = 90.0
"""Seconds for which an idle connection stays open."""


async def until_end(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.read(), TIMEOUT)


async def test_request_that_never_ends_does_not_delay_shutdown() -> None:
    """A handler may wait for something that a full disk prevents."""
    reached = asyncio.Event()

    async def wait_for_ever(_scope: Scope, _receive: Receive, _send: Send) -> None:
        reached.set()
        await asyncio.get_running_loop().create_future()

    async with server_directory() as directory:
        listener = UnixListener(directory.socket)
        server = HttpServer()
        await server.listen(listener.socket, wait_for_ever)
        reader, writer = await open_raw(directory.address)
        writer.write(HEALTH)
        await reached.wait()
        await asyncio.wait_for(server.stop(0.0), TIMEOUT)
        assert await until_end(reader) == b""
        writer.close()
        listener.close()


async def test_pipelined_requests_are_answered_in_order() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        reader, writer = await open_raw(server.address)
        last = b"GET /v1/nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        writer.write((HEALTH + VERSION) * 50 + last)
        answers = await until_end(reader)
        assert answers.count(b"HTTP/1.1 200 OK") == 100
        assert answers.count(b'"protocol"') == 50
        assert answers.endswith(b"404 page not found\n")
        assert answers.index(b'"protocol"') > answers.index(b"content-length: 0")
        writer.close()


async def test_request_may_arrive_byte_by_byte() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        reader, writer = await open_raw(server.address)
        body = json.dumps({"command": "no such command"}).encode()
        for byte in raw_request("/v1/control", "POST", body, ["Connection: close"]):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert b"HTTP/1.1 400 Bad Request" in await until_end(reader)
        writer.close()


async def test_chunked_body_is_joined() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        reader, writer = await open_raw(server.address)
        writer.write(b"POST /v1/control HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        for piece in (b'{"comm', b'and":', b'"shutdown"}'):
            writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        writer.write(b"0\r\n\r\n" + HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answers = await until_end(reader)
        assert answers.startswith(b"HTTP/1.1 409 Conflict")
        assert answers.count(b"HTTP/1.1 200 OK") == 1
        writer.close()


async def test_expect_header_gets_100_continue() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        reader, writer = await open_raw(server.address)
        body = b'{"command":"shutdown"}'
        head = f"POST /v1/control HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode())
        assert await asyncio.wait_for(reader.readline(), TIMEOUT) == b"HTTP/1.1 100 Continue\r\n"
        assert await reader.readline() == b"\r\n"
        writer.write(body)
        assert await asyncio.wait_for(reader.readline(), TIMEOUT) == b"HTTP/1.1 409 Conflict\r\n"
        writer.close()


async def test_http10_and_connection_close_end_the_connection() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        for request in (b"GET /v1/health HTTP/1.0\r\n\r\n", raw_request("/v1/health", headers=["Connection: close"])):
            reader, writer = await open_raw(server.address)
            writer.write(request)
            answer = await until_end(reader)
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"connection: close" in answer
            writer.close()


async def test_upgrade_is_refused() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        headers = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13"]
        reader, writer = await open_raw(server.address)
        writer.write(raw_request("/v1/health", headers=headers) + b"\x81\x05hello")
        answer = await until_end(reader)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.count(b"HTTP/1.1") == 1
        writer.close()


async def test_response_to_head_has_no_body() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        answer = await exchange(server.address, raw_request("/v1/version", "HEAD", headers=["Connection: close"]))
        assert (answer.status, answer.body) == (405, b"")
        assert (await exchange(server.address, HEALTH)).status == 200


async def test_unread_body_is_skipped() -> None:
    """A refusal is sent at once; the remaining body is read, and the connection continues."""
    async with server_directory() as directory, in_process_server(directory) as server:
        reader, writer = await open_raw(server.address)
        writer.write(raw_request("/v1/nothing", "POST", b"x" * 500_000))
        writer.write(HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answers = await until_end(reader)
        assert answers.startswith(b"HTTP/1.1 404 Not Found")
        assert answers.count(b"HTTP/1.1 200 OK") == 1
        writer.close()


@pytest.mark.parametrize(
    "beginning",
    [
        b"GET /v1/health HTTP/1.1\r\nHost: x\r\nA: ",
        b"GET /v1/health HTTP/1.1\r\nHost: x\r\nA",
        b"POST /v1/control HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5;",
        b"POST /v1/control HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: ",
    ],
)
async def test_endless_head_is_not_buffered(beginning: bytes) -> None:
    """Far more than the limit of a head, in pieces."""
    async with server_directory() as directory, in_process_server(directory) as server:
        _, writer = await open_raw(server.address)
        writer.write(beginning)
        with pytest.raises(ConnectionError):
            await _send_until_closed(writer)
        writer.transport.abort()
        assert (await exchange(server.address, HEALTH)).status == 200


async def _send_until_closed(writer: asyncio.StreamWriter) -> None:
    for _ in range(400):
        writer.write(b"x" * 50_000)
        await asyncio.wait_for(writer.drain(), TIMEOUT)
        await asyncio.sleep(0)


async def test_reading_pauses_while_responses_are_unread() -> None:
    """The unsent responses must stay bounded; when the client reads, every accepted request is answered."""
    async with server_directory() as directory, in_process_server(directory):
        with socket.socket(socket.AF_UNIX) as requester:
            requester.connect(str(directory.socket))
            requester.setblocking(False)
            loop = asyncio.get_running_loop()
            with pytest.raises(TimeoutError):
                await _send_requests(requester)
            requester.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(TIMEOUT):
                while await loop.sock_recv(requester, 1 << 20):
                    pass


async def _send_requests(requester: socket.socket) -> None:
    """Send far more requests than a connection can buffer."""
    for _ in range(1_000):
        async with asyncio.timeout(1):
            await asyncio.get_running_loop().sock_sendall(requester, VERSION * 1_000)


async def test_trailers_are_not_headers() -> None:
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        head = f"Host: 127.0.0.1:{server.tcp.port}\r\nAuthorization: Bearer {server.tcp.token}\r\n"
        head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
        request = f"POST /v1/control HTTP/1.1\r\n{head}\r\n2\r\n{{}}\r\n0\r\nOrigin: http://x\r\n\r\n"
        assert (await exchange(server.tcp, request.encode())).status == 400


async def test_incomplete_body_after_response_is_not_awaited() -> None:
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        clock = Clock()
        reader, writer = await open_raw(server.tcp)
        writer.write(b"POST /v1/control HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        assert (await reader.readuntil(b"}\n")).startswith(b"HTTP/1.1 403")
        await clock.forward(KEPT - 1, server.address)
        assert not reader.at_eof()
        await clock.forward(2)
        assert await until_end(reader) == b""
        writer.close()


async def test_growing_body_extends_idle_timeout_and_growing_head_does_not() -> None:
    """Neither does a connection without a request, before or after the first one."""
    head, body = b"GET /v1/health HTTP/1.1\r\n", b"POST /v1/control HTTP/1.1\r\nContent-Length: 100\r\n\r\n{"
    async with server_directory() as directory, in_process_server(directory) as server:
        clock = Clock()
        half_head, half_body, silent, kept = [await open_raw(server.address) for _ in range(4)]
        half_head[1].write(head)
        half_body[1].write(body)
        kept[1].write(HEALTH)
        await kept[0].readuntil(b"\r\n\r\n")
        await clock.forward(KEPT - 1, server.address)
        half_head[1].write(b"A: b\r\n")
        half_body[1].write(b"{")
        await clock.forward(0, server.address)
        assert not any(reader.at_eof() for reader, _ in (half_head, half_body, silent, kept))
        await clock.forward(2, server.address)
        for reader, _ in (half_head, silent, kept):
            assert await until_end(reader) == b""
        assert not half_body[0].at_eof()
        await clock.forward(KEPT)
        assert await until_end(half_body[0]) == b""
        for _, writer in (half_head, half_body, silent, kept):
            writer.close()


async def test_malformed_body_gets_response() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        request = b"POST /v1/control HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nno number\r\n"
        assert (await exchange(server.address, request)).status == 400


async def test_idle_connections_yield_descriptors_to_active_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.server.http.connection._descriptors", lambda: 32)
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        workspace = await (await server.client()).create_workspace(directory.project())
        stream = raw_request(f"/v1/workspaces/{workspace.id}/events?since=0")
        busy = [await open_raw(server.address) for _ in range(12)]
        for reader, writer in busy:
            writer.write(stream)
            await asyncio.wait_for(reader.readuntil(b'"hello"'), TIMEOUT)
        for address, most in ((server.address, 4), (server.tcp, 8)):
            idle = [await open_raw(address) for _ in range(40)]
            gone = await asyncio.gather(*(is_cut(reader) for reader, _ in idle[: 40 - most]))
            assert all(gone), "the oldest make room"
            for reader, writer in idle[40 - most :]:
                writer.write(HEALTH)
                await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT)
            for _, writer in idle:
                writer.close()
        for reader, writer in busy:
            assert not reader.at_eof(), "who reads a stream stays"
            writer.close()


async def is_cut(reader: asyncio.StreamReader) -> bool:
    with suppress(ConnectionError):
        return await until_end(reader) == b""
    return True
