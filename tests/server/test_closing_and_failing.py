"""Requests that fail while the server is open or closing, and connections that a closing server ends."""

import asyncio
import logging
import socket

import pytest

from holdfast.client.server_address import ServerAddress
from holdfast.domain.errors import BadRequest, Conflict, StorageDetached
from holdfast.domain.events import AgentEvent, HelloEvent
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.protocol.error_status import UnknownWorkspace
from holdfast.server.http.connection import Connection, HttpServer, Receive, Scope, Send
from holdfast.server.http.listen import UnixListener, bind_tcp
from holdfast.server.http.request import Request
from holdfast.server.presence import Stop
from holdfast.server.routes.handlers import HANDLERS
from holdfast.server.workspace_manager import GracePeriods
from holdfast.testing.gates import Gate, settle_down, start, until
from server import helpers
from server.helpers import exchange, in_process_server, open_raw, raw_request, read_until, server_directory

TIMEOUT = 20.0
NO_PERIODIC_CHECK = GracePeriods(check_interval=1e9)
"""Disables the periodic check of the storage, so that the request itself detects the failure."""


@pytest.mark.parametrize(
    ("error", "status", "while_closing"),
    [
        (RuntimeError("torn"), 500, 503),
        (KeyError("torn"), 500, 503),
        (OSError("torn"), 500, 503),
        (BadRequest("torn"), 400, 400),
        (UnknownWorkspace(), 404, 404),
        (Conflict("torn"), 409, 409),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
async def test_unexpected_request_error_is_503_during_close(
    error: Exception,
    status: int,
    while_closing: int,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Errors caused by the request keep their own status."""
    gates = [Gate(), Gate()]
    waiting = iter(gates)

    async def fail_request(_: Request) -> None:
        await next(waiting)()
        raise error

    monkeypatch.setattr(helpers, "HANDLERS", {**HANDLERS, "list_workspaces": fail_request})
    async with server_directory() as directory, in_process_server(directory) as server:
        for gate, expected in zip(gates, (status, while_closing), strict=True):
            asked = start(exchange(server.address, raw_request("/v1/workspaces")))
            await gate.reached.wait()
            if gate is gates[1]:
                server.manager.apply(Stop())
                await until(lambda: server.manager.is_closed)
                caplog.clear()
            gate.open()
            answer = await asked
            assert answer.status == expected
            assert ("shutting down" in answer.json["message"]) is (expected == 503)
            assert any("failed" in item.getMessage() for item in caplog.records) is (expected == 500)


@pytest.mark.parametrize("route", ["create_session", "update_session", "send_prompt"])
async def test_request_that_detects_missing_storage_notifies_clients_before_response(
    route: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR, "holdfast.server")
    async with server_directory() as directory, in_process_server(directory, graces=NO_PERIODIC_CHECK) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace)).id
        async with client.events(workspace, since=0) as events:
            await read_until(events, lambda item: isinstance(item.event, HelloEvent))
            directory.data.rename(directory.data.with_name("away"))
            answer = await exchange(server.address, _writing(route, workspace, session))
            assert (answer.status, "is gone" in answer.json["message"]) == (503, True)
            assert caplog.text.count("nothing can be stored") == 1
            seen = await read_until(events, lambda item: isinstance(item.event, AgentEvent))
            assert "is gone" in str(seen[-1].event)
            await exchange(server.address, _writing(route, workspace, session))
        assert caplog.text.count("nothing can be stored") == 1, "a change is reported once"
        directory.data.with_name("away").rename(directory.data)


def _writing(route: str, workspace: WorkspaceId, session: SessionId) -> bytes:
    base = f"/v1/workspaces/{workspace}"
    if route == "create_session":
        return raw_request(f"{base}/sessions", "POST", b'{"title":"x"}')
    if route == "update_session":
        return raw_request(f"{base}/sessions/{session}", "PUT", b'{"id":"%s","title":"y"}' % session.encode())
    return raw_request(f"{base}/agent", "POST", b'{"session_id":"%s","prompt":"x","run_id":"r1"}' % session.encode())


async def test_failed_request_checks_storage_only_after_storage_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    errors = iter([Conflict("torn"), RuntimeError("torn"), StorageDetached("It is gone.")])

    async def fail_request(_: Request) -> None:
        raise next(errors)

    monkeypatch.setattr(helpers, "HANDLERS", {**HANDLERS, "list_workspaces": fail_request})
    async with server_directory() as directory, in_process_server(directory, graces=NO_PERIODIC_CHECK) as server:
        looks: list[int] = []
        original = server.manager.ledger.problem

        async def problem() -> str:
            looks.append(0)
            return await original()

        monkeypatch.setattr(server.manager.ledger, "problem", problem)
        seen = []
        for _ in range(3):
            answer = await exchange(server.address, raw_request("/v1/workspaces"))
            seen.append((answer.status, len(looks)))
        assert seen == [(409, 0), (500, 0), (503, 1)]


@pytest.mark.parametrize("closing", ["stop", "leave"])
async def test_a_connection_that_is_reported_after_the_server_closed_is_aborted(closing: str) -> None:
    """The event loop accepts a connection some iterations before it reports it."""

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})

    async with server_directory() as directory:
        listener = UnixListener(directory.socket)
        server = HttpServer()
        await server.listen(listener.socket, answer)
        if closing == "stop":
            await server.stop(0.0)
        else:
            server.leave(answer)
        client, accepted = socket.socketpair()
        await server.loop.connect_accepted_socket(lambda: Connection(server, answer), accepted)
        client.setblocking(False)
        assert await asyncio.wait_for(server.loop.sock_recv(client, 1), TIMEOUT) == b""
        assert not server.connections
        client.close()
        await server.stop(0.0)
        listener.close()


async def test_a_port_that_a_request_opens_during_the_stop_is_closed() -> None:
    """As that of the web page: nothing else would close it."""

    async def page(_scope: Scope, _receive: Receive, _send: Send) -> None:
        raise AssertionError("nobody connects")

    with bind_tcp("127.0.0.1", 0) as port:

        async def answer(_scope: Scope, _receive: Receive, _send: Send) -> None:
            try:
                await asyncio.get_running_loop().create_future()
            finally:
                await server.listen(port, page)

        async with server_directory() as directory:
            listener = UnixListener(directory.socket)
            server = HttpServer()
            await server.listen(listener.socket, answer)
            _, client = await open_raw(ServerAddress(path=str(directory.socket)))
            client.write(raw_request("/", "GET"))
            await until(lambda: any(not line.is_unasked for line in server.connections))
            await server.stop(0.0)
            assert [one.is_serving() for one in server._servers[page]] == [False]
            client.close()
            listener.close()


BODY = 5
WHOLE = raw_request("/", "POST", b"x" * BODY)
STATES: dict[str, tuple[bytes, bytes, int]] = {
    "idle": (b"", b"", 0),
    "answered and kept": (WHOLE, b"", 1),
    "asked": (WHOLE, b"", 1),
    "asked twice at once": (WHOLE + WHOLE, b"", 1),
    "asked, its body half sent": (WHOLE[:-2], WHOLE[-2:], 1),
    "its head half sent": (WHOLE[:20], b"", 0),
}
"""Bytes sent before the server began to close, bytes sent afterwards, and the expected number of responses."""


@pytest.mark.parametrize("state", STATES)
async def test_closing_server_ends_connections_after_due_response(state: str) -> None:
    """At once if no response is due; the grace period for slow readers is not used."""
    before, after, answers = STATES[state]
    gate = Gate()

    async def slow(_scope: Scope, receive: Receive, send: Send) -> None:
        if state != "answered and kept":
            await gate()
        while (await receive()).get("more_body"):
            pass
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async with server_directory() as directory:
        listener = UnixListener(directory.socket)
        server = HttpServer()
        await server.listen(listener.socket, slow)
        reader, writer = await open_raw(directory.address)
        await until(lambda: len(list(server.connections)) == 1)
        writer.write(before)
        output = b""
        if state == "answered and kept":
            output = await reader.readuntil(b"ok")
        elif state.startswith("asked"):
            await gate.reached.wait()
        await settle_down()
        ending = start(server.stop(1e9))
        await asyncio.sleep(0)
        writer.write(after)
        gate.open()
        output += await asyncio.wait_for(reader.read(), TIMEOUT)
        await asyncio.wait_for(ending, TIMEOUT)
        assert output.count(b"200 OK") == output.count(b"\r\n\r\nok") == answers
        assert output.count(b"connection: close") == (answers if state.startswith("asked") else 0)
        writer.close()
        listener.close()
