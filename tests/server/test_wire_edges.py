"""Edge cases of the wire at both ends: state after a failure, and precedence of two values."""

import asyncio
import json
import os
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from client.scripted_server import Exchange, ScriptedServer, answer, short_directory, stream_head
from holdfast import __version__
from holdfast.client import server_check, server_launcher, workspace_connection
from holdfast.client.client import Client
from holdfast.client.errors import ServerProblem, TimedOut
from holdfast.client.request import ServerConnections
from holdfast.client.server_address import ServerAddress, build_request
from holdfast.client.server_launcher import ServerLocation, find, find_or_start
from holdfast.client.sync_client import ServerInfo, SyncClient
from holdfast.client.workspace_connection import WorkspaceConnection
from holdfast.domain.events import AgentEvent, HelloEvent
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.lock_owner import LOCK_NAME, directory_id, write_owner
from holdfast.protocol import PROTOCOL
from holdfast.server.http.connection import HttpServer, Receive, Scope, Send
from holdfast.server.http.listen import UnixListener
from holdfast.server.workspace_manager import GracePeriods
from holdfast.testing.gates import Gate, settle_down, start
from server.clock import Clock
from server.helpers import (
    RawStream,
    exchange,
    in_process_server,
    open_raw,
    raw_request,
    read_until,
    send_prompt,
    server_directory,
)

TIMEOUT = 20.0


# The server


@pytest.mark.parametrize("is_begun", [False, True])
async def test_failed_request_ends_its_connection(is_begun: bool) -> None:
    async def breaks(_scope: Scope, _receive: Receive, send: Send) -> None:
        if is_begun:
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"begun", "more_body": True})
        raise RuntimeError

    async with server_directory() as directory:
        listener = UnixListener(directory.socket)
        server = HttpServer()
        await server.listen(listener.socket, breaks)
        reader, writer = await open_raw(directory.address)
        writer.write(raw_request("/"))
        try:
            output = await asyncio.wait_for(reader.read(), TIMEOUT)
        except ConnectionError:
            output = b""
        assert not output.endswith(b"0\r\n\r\n")
        await server.stop(0.0)
        writer.close()
        listener.close()


async def test_query_cursor_precedes_header_cursor() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        for _ in range(3):
            await client.create_session(workspace)
        path = f"/v1/workspaces/{workspace}/events"
        for query, header, expected in (("?since=1", 2, 2), ("", 2, 3), ("?since=2", 0, 3)):
            stream = await RawStream.open(server.address, path + query, [f"Last-Event-ID: {header}"])
            assert (await stream.until(lambda item: item.number is not None)).number == expected
            stream.close()


async def test_stream_for_http10_client_ends_with_connection() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        _, workspace = await server.open_workspace()
        for form in ("?since=0", ""):
            reader, writer = await open_raw(server.address)
            writer.write(f"GET /v1/workspaces/{workspace}/events{form} HTTP/1.0\r\n\r\n".encode())
            head = await reader.readuntil(b"\r\n\r\n")
            assert b"chunked" not in head
            assert b"connection: close" in head
            writer.transport.abort()


async def test_first_request_that_detects_missing_data_directory_publishes_it() -> None:
    """All clients are notified at once, not at the next periodic check."""
    async with (
        server_directory() as directory,
        in_process_server(directory, graces=GracePeriods(check_interval=1e9)) as server,
    ):
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace)).id
        async with client.events(workspace, since=0) as events:
            await read_until(events, lambda item: isinstance(item.event, HelloEvent))
            directory.data.rename(directory.data.with_name("away"))
            with pytest.raises(ServerProblem):
                await send_prompt(client, workspace, session, "lost", "r1")
            await read_until(events, lambda item: isinstance(item.event, AgentEvent))
        directory.data.with_name("away").rename(directory.data)
        assert (await exchange(server.address, raw_request("/v1/health"))).status == 200


# The client


async def test_long_response_is_read_to_its_end() -> None:
    size = 3_000_000

    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        await exchange.send(answer(b"x" * size))
        await exchange.wait_for_disconnect()

    async with ScriptedServer(script) as address:
        pool = ServerConnections(address)
        response = await pool.open(build_request(address, "GET", "/"), seconds=TIMEOUT)
        for _ in range(20):
            await settle_down()
        found = 0
        async with asyncio.timeout(TIMEOUT):
            while (piece := await response.read()) is not None:
                found += len(piece)
        assert found == size
        response.close()
        pool.close()


async def test_stream_without_response_leaves_no_connection() -> None:
    left = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        await exchange.wait_for_disconnect()
        left.set()

    async with ScriptedServer(script) as address:
        pool = ServerConnections(address)
        with pytest.raises(TimedOut):
            await pool.open(build_request(address, "GET", "/"), seconds=0.01)
        await asyncio.wait_for(left.wait(), TIMEOUT)
        pool.close()


async def test_requests_without_time_limit_are_awaited() -> None:
    """Summaries, commands and logins; other responses have a timeout."""
    gate = Gate()

    async def script(exchange: Exchange) -> None:
        while (request := await exchange.asked()) is not None:
            await gate()
            await exchange.send(answer(b'{"output":"","exit_code":0}' if request.path.endswith("shell") else b"{}"))

    workspace, session = WorkspaceId("w"), SessionId("s")
    async with ScriptedServer(script) as address, Client(address) as client:
        clock = Clock()
        patient = [
            start(client.summarize(workspace, session)),
            start(client.run_shell(workspace, session, "true")),
            start(client.mcp_auth(workspace, "x")),
        ]
        quick = start(client.update_agent(workspace))
        await settle_down()
        await clock.forward(31)
        with pytest.raises(TimedOut):
            await quick
        gate.open()
        for waiting in patient:
            await asyncio.wait_for(waiting, TIMEOUT)


@pytest.mark.parametrize(("status", "is_done"), [(200, True), (299, True), (300, False), (404, False)])
async def test_success_statuses(status: int, is_done: bool) -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        await exchange.send(answer(b"", status))

    async with ScriptedServer(script) as address, Client(address) as client:
        with nullcontext() if is_done else pytest.raises(ServerProblem, match=str(status)):
            await client.health()


async def test_socket_in_directory_of_others_is_not_used() -> None:
    async def script(exchange: Exchange) -> None:
        while await exchange.asked() is not None:
            known = {"version": "1", "protocol": PROTOCOL, "pid": os.getpid(), "data_id": directory_id(data)}
            await exchange.send(answer(json.dumps(known).encode()))

    with short_directory() as root:
        data = str(root / "data")
        os.mkdir(data)
        async with ScriptedServer(script) as address:
            (Path(data) / LOCK_NAME).write_text("")
            write_owner(data, address.path)
            folder = Path(address.path).parent
            directory = ServerLocation(ServerAddress(), data, can_be_started=True, directories=(str(root),))
            for mode, is_found in ((0o755, False), (0o700, True)):
                folder.chmod(mode)
                thin = await asyncio.to_thread(find, directory)
                assert (thin is not None) is is_found
                if thin is not None:
                    thin.close()


def test_ssh_connection_is_reopened_once(monkeypatch: pytest.MonkeyPatch) -> None:
    found, opened = [None, SyncClient(ServerAddress())], []
    monkeypatch.setattr(server_launcher, "_connect", lambda _: found.pop(0))
    directory = ServerLocation(ServerAddress(path="/x"), "", can_be_started=False, again=lambda: opened.append(True))
    assert find(directory) is not None
    assert opened == [True]


def test_server_started_while_waiting_for_lock_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    thin = SyncClient(ServerAddress())
    found = [None, thin]
    monkeypatch.setattr(server_launcher, "find", lambda *_: found.pop(0))
    monkeypatch.setattr("holdfast.client.server_launcher.spawn", lambda *_: pytest.fail("it is there"))
    directory = ServerLocation(
        ServerAddress(), str(tmp_path), can_be_started=True, directories=(str(tmp_path / "run"),)
    )
    assert find_or_start(directory) is thin


@pytest.mark.parametrize(
    ("version", "protocol", "data_id", "is_asked"),
    [
        (__version__, PROTOCOL, "1-2", False),
        (__version__, PROTOCOL, "", True),
        ("0.0.1", PROTOCOL, "1-2", True),
        ("not a version", PROTOCOL, "1-2", False),
    ],
)
def test_outdated_servers_are_replaced(
    version: str, protocol: int, data_id: str, is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    thin = SyncClient(ServerAddress())
    thin.server = ServerInfo(version, protocol, 7, data_id)

    def leaves(_: SyncClient, process: int) -> bool:
        asked.append(process)
        return True

    monkeypatch.setattr(server_check, "_has_exited", leaves)
    assert server_check.replace_outdated(thin) is is_asked
    assert asked == [7] * is_asked


async def test_connection_continues_at_new_server(monkeypatch: pytest.MonkeyPatch) -> None:
    entered: list[tuple[str, Any]] = []

    def named(name: str) -> ScriptedServer:
        async def script(exchange: Exchange) -> None:
            while (request := await exchange.asked()) is not None:
                entered.append((name, json.loads(request.body or b"{}").get("env")))
                await exchange.send(answer(b'{"id":"w","path":"/p"}'))

        return ScriptedServer(script)

    async with named("old") as old, named("new") as new:
        places = [old, new]
        monkeypatch.setattr(workspace_connection, "find_or_start", lambda _: SyncClient(places.pop(0)))
        stay = WorkspaceConnection(ServerLocation(old, "", can_be_started=True), "/p", ("A=1",))
        for _ in range(2):
            await stay.enter()
        await stay.leave()
        assert entered == [("old", ["A=1"]), ("new", ["A=1"]), ("new", None)]
        for directory in (
            ServerLocation(ServerAddress(host="h", port=1), "", can_be_started=False),
            ServerLocation(old, "", can_be_started=False, again=lambda: None),
        ):
            assert WorkspaceConnection(directory, "/p", ("A=1",))._environment == (), (
                "an environment goes to no other machine"
            )


async def test_refused_stream_raises() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        await exchange.send(stream_head(401))

    async with ScriptedServer(script) as address, Client(address) as client:
        stream = client.events(WorkspaceId("w"), since=0)
        with pytest.raises(ServerProblem) as caught:
            await stream.__anext__()
        assert caught.value.status == 401
        await stream.close()
