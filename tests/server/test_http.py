"""HTTP itself, over real sockets: what comes in pieces, in a row, half, or not at all."""

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
"""Seconds for which a connection stays open on which nothing happens."""


async def until_end(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.read(), TIMEOUT)


async def test_a_request_that_never_comes_to_its_end_does_not_keep_the_server() -> None:
    """It may wait for something that a full disk keeps from happening."""
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


async def test_requests_in_a_row_are_answered_in_a_row() -> None:
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


async def test_a_request_may_come_byte_by_byte() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        reader, writer = await open_raw(server.address)
        body = json.dumps({"command": "no such command"}).encode()
        for byte in raw_request("/v1/control", "POST", body, ["Connection: close"]):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert b"HTTP/1.1 400 Bad Request" in await until_end(reader)
        writer.close()


async def test_a_body_in_chunks_is_one_body() -> None:
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


async def test_who_asks_before_sending_is_told_to_go_on() -> None:
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


async def test_old_clients_and_those_who_want_it_get_the_end_of_the_connection() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        for request in (b"GET /v1/health HTTP/1.0\r\n\r\n", raw_request("/v1/health", headers=["Connection: close"])):
            reader, writer = await open_raw(server.address)
            writer.write(request)
            answer = await until_end(reader)
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"connection: close" in answer
            writer.close()


async def test_another_protocol_is_not_spoken_here() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        headers = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13"]
        reader, writer = await open_raw(server.address)
        writer.write(raw_request("/v1/health", headers=headers) + b"\x81\x05hello")
        answer = await until_end(reader)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.count(b"HTTP/1.1") == 1
        writer.close()


async def test_nothing_is_said_after_a_head() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        answer = await exchange(server.address, raw_request("/v1/version", "HEAD", headers=["Connection: close"]))
        assert (answer.status, answer.body) == (405, b"")
        assert (await exchange(server.address, HEALTH)).status == 200


async def test_a_body_that_nobody_wants_is_passed_over() -> None:
    """A refusal comes at once; what is still on its way is read, and the connection goes on."""
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
async def test_what_never_ends_is_not_kept(beginning: bytes) -> None:
    """Far more than a head may be long, in pieces that each say nothing new."""
    async with server_directory() as directory, in_process_server(directory) as server:
        _, writer = await open_raw(server.address)
        writer.write(beginning)
        with pytest.raises(ConnectionError):
            await _go_on(writer)
        writer.transport.abort()
        assert (await exchange(server.address, HEALTH)).status == 200


async def _go_on(writer: asyncio.StreamWriter) -> None:
    for _ in range(400):
        writer.write(b"x" * 50_000)
        await asyncio.wait_for(writer.drain(), TIMEOUT)
        await asyncio.sleep(0)


async def test_who_asks_on_without_reading_is_not_heard_on() -> None:
    """What they are owed must not grow for ever; when they read, all that was heard is answered."""
    async with server_directory() as directory, in_process_server(directory):
        with socket.socket(socket.AF_UNIX) as asker:
            asker.connect(str(directory.socket))
            asker.setblocking(False)
            loop = asyncio.get_running_loop()
            with pytest.raises(TimeoutError):
                await _ask_on(asker)
            asker.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(TIMEOUT):
                while await loop.sock_recv(asker, 1 << 20):
                    pass


async def _ask_on(asker: socket.socket) -> None:
    """Far more than fits into a connection."""
    for _ in range(1_000):
        async with asyncio.timeout(1):
            await asyncio.get_running_loop().sock_sendall(asker, VERSION * 1_000)


async def test_what_follows_a_body_is_no_header() -> None:
    async with server_directory() as directory, in_process_server(directory, with_tcp=True) as server:
        head = f"Host: 127.0.0.1:{server.tcp.port}\r\nAuthorization: Bearer {server.tcp.token}\r\n"
        head += "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n"
        request = f"POST /v1/control HTTP/1.1\r\n{head}\r\n2\r\n{{}}\r\n0\r\nOrigin: http://x\r\n\r\n"
        assert (await exchange(server.tcp, request.encode())).status == 400


async def test_half_a_body_behind_an_answer_is_not_waited_for() -> None:
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


async def test_half_a_body_gains_time_by_growing_and_half_a_head_does_not() -> None:
    """Nor does a connection on which nothing was asked, or nothing is asked any more."""
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


async def test_a_body_that_makes_no_sense_is_answered() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        request = b"POST /v1/control HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\nno number\r\n"
        assert (await exchange(server.address, request)).status == 400


async def test_who_asks_for_nothing_takes_no_descriptors_from_who_does(monkeypatch: pytest.MonkeyPatch) -> None:
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
