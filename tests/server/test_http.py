"""HTTP itself, over real sockets: what comes in pieces, in a row, half, or not at all."""

import asyncio
import json
import socket
import threading
from pathlib import Path

from holdfast.server.listen import UnixListener
from holdfast.server.porch import HEALTHY, Porch
from server.helpers import exchange, inside, open_raw, place, serving

HEALTH = b"GET /v1/health HTTP/1.1\r\nHost: x\r\n\r\n"
VERSION = b"GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n"
PATIENCE = 20.0


async def until_end(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.read(), PATIENCE)


async def test_requests_in_a_row_are_answered_in_a_row() -> None:
    async with place() as where, serving(where) as server:
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
    async with place() as where, serving(where) as server:
        reader, writer = await open_raw(server.address)
        body = json.dumps({"command": "no such command"}).encode()
        for byte in inside("/v1/control", "POST", body, ["Connection: close"]):
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        assert b"HTTP/1.1 400 Bad Request" in await until_end(reader)
        writer.close()


async def test_a_body_in_chunks_is_one_body() -> None:
    async with place() as where, serving(where) as server:
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
    async with place() as where, serving(where) as server:
        reader, writer = await open_raw(server.address)
        body = b'{"command":"shutdown"}'
        head = f"POST /v1/control HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode())
        assert await asyncio.wait_for(reader.readline(), PATIENCE) == b"HTTP/1.1 100 Continue\r\n"
        assert await reader.readline() == b"\r\n"
        writer.write(body)
        assert await asyncio.wait_for(reader.readline(), PATIENCE) == b"HTTP/1.1 409 Conflict\r\n"
        writer.close()


async def test_old_clients_and_those_who_want_it_get_the_end_of_the_connection() -> None:
    async with place() as where, serving(where) as server:
        for request in (b"GET /v1/health HTTP/1.0\r\n\r\n", inside("/v1/health", headers=["Connection: close"])):
            reader, writer = await open_raw(server.address)
            writer.write(request)
            answer = await until_end(reader)
            assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
            assert b"connection: close" in answer
            writer.close()


async def test_another_protocol_is_not_spoken_here() -> None:
    async with place() as where, serving(where) as server:
        headers = ["Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Key: x", "Sec-WebSocket-Version: 13"]
        reader, writer = await open_raw(server.address)
        writer.write(inside("/v1/health", headers=headers) + b"\x81\x05hello")
        answer = await until_end(reader)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.count(b"HTTP/1.1") == 1
        writer.close()


async def test_nothing_is_said_after_a_head() -> None:
    async with place() as where, serving(where) as server:
        answer = await exchange(server.address, inside("/v1/version", "HEAD", headers=["Connection: close"]))
        assert (answer.status, answer.body) == (405, b"")
        assert (await exchange(server.address, HEALTH)).status == 200


async def test_a_body_that_nobody_wants_is_passed_over() -> None:
    """A refusal comes at once; what is still on its way is read, and the connection goes on."""
    async with place() as where, serving(where) as server:
        reader, writer = await open_raw(server.address)
        writer.write(inside("/v1/nothing", "POST", b"x" * 500_000))
        writer.write(HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        answers = await until_end(reader)
        assert answers.startswith(b"HTTP/1.1 404 Not Found")
        assert answers.count(b"HTTP/1.1 200 OK") == 1
        writer.close()


def _heard(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size and (piece := connection.recv(size - len(data))):
        data += piece
    return data


def test_the_porch_tells_that_somebody_is_there_and_keeps_the_rest(tmp_path: Path) -> None:
    listener = UnixListener(tmp_path / "run" / "s")
    porch = Porch(listener.socket)
    porch.open()
    with socket.socket(socket.AF_UNIX) as asking, socket.socket(socket.AF_UNIX) as waiting:
        for connection in (asking, waiting):
            connection.settimeout(PATIENCE)
            connection.connect(str(tmp_path / "run" / "s"))
        for _ in range(3):
            asking.sendall(HEALTH)
            assert _heard(asking, len(HEALTHY)) == HEALTHY
        waiting.sendall(VERSION)
        asking.sendall(HEALTH)
        assert _heard(asking, len(HEALTHY)) == HEALTHY
        asking.sendall(HEALTH.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
        guests = porch.close()
        assert len(guests) == 2
        for guest in guests:
            guest.setblocking(True)
            guest.settimeout(PATIENCE)
        assert sorted(guest.recv(1024)[:7] for guest in guests) == [b"GET /v1", b"GET /v1"]
        for guest in guests:
            guest.close()
    listener.close()
    assert "porch" not in {thread.name for thread in threading.enumerate()}


async def test_the_porch_says_exactly_what_the_server_says() -> None:
    async with place() as where, serving(where) as server:
        reader, writer = await open_raw(server.address)
        writer.write(HEALTH)
        assert await asyncio.wait_for(reader.readexactly(len(HEALTHY)), PATIENCE) == HEALTHY
        writer.close()


async def test_guests_of_the_porch_are_answered_by_the_server() -> None:
    """What they said before it was there, they need not say again."""
    async with place() as where:
        listener = UnixListener(where.socket)
        porch = Porch(listener.socket)
        porch.open()
        reader, writer = await open_raw(where.address)
        writer.write(HEALTH + VERSION)
        assert await asyncio.wait_for(reader.readexactly(len(HEALTHY)), PATIENCE) == HEALTHY
        guests = porch.close()
        listener.close()
        async with serving(where, guests=guests) as server:
            assert (await exchange(server.address, HEALTH)).status == 200
            assert await asyncio.wait_for(reader.readline(), PATIENCE) == b"HTTP/1.1 200 OK\r\n"
            writer.close()
