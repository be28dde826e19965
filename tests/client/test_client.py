"""The async client against a real socket."""

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, get_type_hints

import pytest

from client.scripted_server import Exchange, ScriptedServer, answer
from holdfast.client.client import Client, new_client_id
from holdfast.client.errors import BrokenResponse, ConnectionLost, ServerProblem, TimedOut, Unreachable
from holdfast.client.server_address import ServerAddress
from holdfast.client.stream import EventStream
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.protocol.bodies import AgentMessage, ConfigModelRequest, PromptAccepted, RunChange, SelectedModel
from holdfast.protocol.routes import ROUTES, Route
from holdfast.testing.gates import start, until
from stream_servers import stream_server

T = TypeVar("T")
W, S = WorkspaceId("w"), SessionId("s")
ACCEPTED = b'{"run_id":"r","session_id":"s","delivery":"queue","position":2}'
ROUTES_BY_NAME = {route.name: route for route in ROUTES}

ARGUMENTS: dict[str, Any] = {
    "workspace": W,
    "session": S,
    "run": RunId("r"),
    "path": "/some/where",
    "title": "title",
    "key": "a.b",
    "value": 1,
    "command": "stop",
    "prompt": AgentMessage(S, "hello"),
    "patch": RunChange(position=1),
    "choice": ConfigModelRequest("large", SelectedModel("m", "p")),
    "answer": {},
    "body": {},
    "skip": True,
    "since": 0,
}


def required(method: Callable[..., Any]) -> dict[str, Any]:
    """A value for every argument that has no default."""
    parameters = inspect.signature(method).parameters.values()
    return {
        item.name: ARGUMENTS.get(item.name, "x")
        for item in parameters
        if item.default is item.empty and item.name != "self"
    }


def test_every_route_has_its_method_and_every_method_its_route() -> None:
    own = {"close"}
    methods = {name for name, _ in inspect.getmembers(Client, inspect.isfunction) if not name.startswith("_")}
    assert methods - own == set(ROUTES_BY_NAME)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.name)
def test_methods_answer_with_the_type_of_their_route(route: Route) -> None:
    hints = get_type_hints(getattr(Client, route.name))
    expected = EventStream if route.streams else (route.answer or type(None))
    assert hints["return"] == expected


async def test_every_method_calls_its_route() -> None:
    asked: dict[str, tuple[str, str, bool]] = {}
    name = ""

    async def script(exchange: Exchange) -> None:
        while (request := await exchange.asked()) is not None:
            asked[name] = (request.method, request.path, bool(request.body))
            missing = {item.name for item in ROUTES_BY_NAME[name].query if item.is_required} - set(request.query)
            assert not missing
            await exchange.send(answer(b'{"message":"no"}', 418))

    async with ScriptedServer(script) as address, Client(address, client_id="c") as client:
        for route in ROUTES:
            if route.streams:
                continue
            name = route.name
            method = getattr(client, name)
            with pytest.raises(ServerProblem):
                await method(**required(method))
    for route in ROUTES:
        if not route.streams:
            method_name, path, has_body = asked[route.name]
            pattern = re.sub(r"\{\w+\}", "[^/]+", route.full_path.replace(".", r"\."))
            assert method_name == route.method
            assert re.fullmatch(pattern, path)
            assert has_body == (route.request is not None)


async def with_answer(raw: bytes, call: Callable[[Client], Awaitable[T]]) -> T:
    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        await exchange.send(raw)

    async with ScriptedServer(script) as address, Client(address) as client:
        return await call(client)


def send(client: Client) -> Awaitable[PromptAccepted]:
    return client.send_prompt(W, AgentMessage(S, "hello", RunId("r")))


@pytest.mark.parametrize("status", [200, 202])
async def test_c28_200_and_202_are_accepted(status: int) -> None:
    accepted = await with_answer(answer(ACCEPTED, status), send)
    assert (accepted.run_id, accepted.position) == ("r", 2)
    silent = await with_answer(answer(b"", status), send)
    assert (silent.run_id, silent.session_id, silent.delivery) == ("r", "s", "queue")


@pytest.mark.parametrize("status", [400, 404, 409, 413, 500, 503])
async def test_c28_an_error_is_shown_with_its_status(status: int) -> None:
    with pytest.raises(ServerProblem) as caught:
        await with_answer(answer(b'{"message":"The session is busy.","more":1}\n', status), send)
    assert (caught.value.status, caught.value.message) == (status, "The session is busy.")
    assert str(caught.value) == f"The session is busy. ({status})"


MALFORMED = [
    b"",
    b"<html>secret</html>",
    b'{"message":',
    b'{"error":"secret"}',
    b"[]",
    b'{"message":"\xff"}',
    b'{"message":""}',
]


@pytest.mark.parametrize("body", MALFORMED)
async def test_c28_a_malformed_error_body_is_never_echoed(body: bytes) -> None:
    with pytest.raises(ServerProblem) as caught:
        await with_answer(answer(body, 500), send)
    assert str(caught.value) == "The server answered with status 500."
    assert caught.value.message == ""


@pytest.mark.parametrize("body", [b"", b"nonsense", b"{}", b"null", b'"\xff"'])
async def test_an_undecodable_response_is_an_error(body: bytes) -> None:
    with pytest.raises(BrokenResponse):
        await with_answer(answer(body), lambda client: client.get_session(W, S))


async def test_connections_are_kept() -> None:
    connections: list[int] = []

    async def script(exchange: Exchange) -> None:
        connections.append(exchange.number)
        while await exchange.asked() is not None:
            await exchange.send(answer(b"3"))

    async with ScriptedServer(script) as address, Client(address) as client:
        for _ in range(5):
            assert await client.count_queued(W, S) == 3
    assert connections == [0]


class DisconnectingScript:
    """Answers the first request of each connection; on the first connection it disconnects at the second one."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        self.connections = 0

    async def __call__(self, exchange: Exchange) -> None:
        self.connections += 1
        while (asked := await exchange.asked()) is not None:
            self.bodies.append(asked.body)
            if exchange.number == 0 and len(self.bodies) == 2:
                return
            await exchange.send(answer(b"0" if asked.method == "GET" else ACCEPTED))


async def test_an_idempotent_request_is_repeated_on_a_new_connection() -> None:
    script = DisconnectingScript()
    async with ScriptedServer(script) as address, Client(address) as client:
        await client.count_queued(W, S)
        assert await client.count_queued(W, S) == 0
    assert script.connections == 2


async def test_a_prompt_without_a_run_id_is_never_sent_twice() -> None:
    script = DisconnectingScript()
    async with ScriptedServer(script) as address, Client(address) as client:
        await client.count_queued(W, S)
        with pytest.raises(ConnectionLost):
            await client.send_prompt(W, AgentMessage(S, "hello"))
    assert len(script.bodies) == 2


async def test_a_prompt_with_a_run_id_is_sent_again() -> None:
    script = DisconnectingScript()
    async with ScriptedServer(script) as address, Client(address) as client:
        await client.count_queued(W, S)
        accepted = await client.send_prompt(W, AgentMessage(S, "hello", RunId("r")))
    assert accepted.run_id == "r"
    assert script.bodies[1] == script.bodies[2]


async def test_a_prompt_goes_out_on_a_new_connection_when_the_kept_one_is_known_to_be_closed() -> None:
    closed = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        await exchange.send(answer(ACCEPTED))
        if exchange.number == 0:
            closed.set()
        else:
            await exchange.wait_for_disconnect()

    async with ScriptedServer(script) as address, Client(address) as client:
        await client.send_prompt(W, AgentMessage(S, "hello"))
        await closed.wait()
        await until(lambda: not client._pool._pool)
        await client.send_prompt(W, AgentMessage(S, "again"))


async def test_a_connection_with_unsolicited_data_is_closed() -> None:
    kept_by_client = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        await exchange.send(answer(b"1"))
        if exchange.number == 0:
            await kept_by_client.wait()
            await exchange.send(answer(b"99"))
        await exchange.wait_for_disconnect()

    async with ScriptedServer(script) as address, Client(address) as client:
        assert await client.count_queued(W, S) == 1
        kept_by_client.set()
        await until(lambda: not client._pool._pool)
        assert await client.count_queued(W, S) == 1


async def test_no_server_listens() -> None:
    async with Client(ServerAddress(path="/nowhere/at/all")) as client:
        with pytest.raises(Unreachable, match="unix:///nowhere/at/all"):
            await client.health()


@pytest.mark.parametrize("cut", [0, 10, -1])
async def test_an_incomplete_response_is_an_error(cut: int) -> None:
    with pytest.raises(ConnectionLost):
        await with_answer(answer(b'{"a":1}')[:cut], lambda client: client.server_config())


async def test_a_large_request_that_is_refused_before_it_is_read() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.asked(reads_body=False)
        await exchange.send(answer(b'{"message":"Too large."}', 413, "Connection: close\r\n"))

    async with ScriptedServer(script) as address, Client(address) as client:
        with pytest.raises(ServerProblem, match="Too large"):
            await client.send_prompt(W, AgentMessage(S, "x" * 5_000_000))


async def test_no_answer_in_time() -> None:
    async def script(exchange: Exchange) -> None:
        await exchange.wait_for_disconnect()

    async with ScriptedServer(script) as address, Client(address, seconds=0.001) as client:
        with pytest.raises(TimedOut):
            await client.health()


async def test_a_cancelled_request_does_not_spoil_the_next() -> None:
    reached = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        while await exchange.asked() is not None:
            if exchange.number == 0:
                reached.set()
                await exchange.wait_for_disconnect()
            await exchange.send(answer(b"5"))

    async with ScriptedServer(script) as address, Client(address) as client:
        task = start(client.count_queued(W, S))
        await reached.wait()
        task.cancel()
        assert await client.count_queued(W, S) == 5


async def test_closing_ends_requests_under_way() -> None:
    reached = asyncio.Event()

    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        reached.set()
        await exchange.wait_for_disconnect()

    async with ScriptedServer(script) as address:
        client = Client(address)
        task = start(client.health())
        await reached.wait()
        await client.close()
        with pytest.raises(ConnectionLost):
            await task
        with pytest.raises(ConnectionLost, match="closed"):
            await client.health()


async def test_closing_ends_a_request_whose_connection_is_being_opened() -> None:
    """No connection is left open behind the closed client."""

    async def script(exchange: Exchange) -> None:
        await exchange.asked()
        await exchange.send(answer())

    async with ScriptedServer(script) as address:
        client = Client(address)
        task = start(client.health())
        await asyncio.sleep(0)
        await client.close()
        with pytest.raises(ConnectionLost, match="closed"):
            await task
        assert not len(client._pool._pool)


async def test_concurrent_requests() -> None:
    async def script(exchange: Exchange) -> None:
        while (asked := await exchange.asked()) is not None:
            await exchange.send(answer(asked.path.rpartition("/sessions/")[2].partition("/")[0].encode()))

    async with ScriptedServer(script) as address, Client(address) as client:
        counts = await asyncio.gather(*(client.count_queued(W, SessionId(str(number))) for number in range(40)))
        assert counts == list(range(40))
        assert len(client._pool._pool) <= 4


async def test_over_tcp_with_a_token() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        writer.write(answer(status=200 if "Authorization: Bearer t0ken\r\n" in head else 401))
        await writer.drain()
        writer.close()

    async with stream_server(serve) as port:
        async with Client(ServerAddress(host="127.0.0.1", port=port, token="t0ken")) as client:
            await client.health()
        async with Client(ServerAddress(host="127.0.0.1", port=port)) as client:
            with pytest.raises(ServerProblem):
                await client.health()


def test_client_ids_are_uuids() -> None:
    assert re.fullmatch(r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", new_client_id())
    assert new_client_id() != new_client_id()
