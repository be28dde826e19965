"""Several addresses of one cluster: which lists are valid, and which requests are sent to which server."""

import asyncio
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

import pytest

from client.scripted_server import (
    Exchange,
    Handler,
    ScriptedServer,
    answer,
    chunk,
    frame_of,
    session_event,
    stream_head,
)
from holdfast.cli import server_connection
from holdfast.cli.server_connection import ServerConnection
from holdfast.client import stream
from holdfast.client.backoff import Backoff
from holdfast.client.client import Client
from holdfast.client.errors import ConnectionLost, ServerProblem, TimedOut, Unreachable
from holdfast.client.failover import AllFailed, Round
from holdfast.client.server_address import ServerAddress
from holdfast.client.server_launcher import ServerLocation, listen_addresses, locate
from holdfast.client.server_paths import BadHost
from holdfast.domain.events import Hello, HelloEvent
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.protocol.bodies import AgentMessage

W = WorkspaceId("w")
GONE = ServerAddress(path="/nowhere/s")

LISTS: list[tuple[str, list[str]]] = [
    ("tcp://a:1,tcp://b:2", ["tcp://a:1", "tcp://b:2"]),
    ("tcp://[::1]:1, tcp://[fe80::2]:2", ["tcp://[::1]:1", "tcp://[fe80::2]:2"]),
    ("unix:///a,b,tcp://c:1", []),
    ("unix:///run/a,unix:///run/b,tcp://c:1", ["unix:///run/a", "unix:///run/b", "tcp://c:1"]),
    ("tcp://a:1,ssh://me@far:2222", ["tcp://a:1", "ssh://me@far:2222"]),
    ("ssh://far/d,ssh://near/d", ["ssh://far", "ssh://near"]),
]


@pytest.mark.parametrize(("text", "expected"), LISTS)
def test_lists_of_hosts(text: str, expected: list[str], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t0ken")
    program = tmp_path / "ssh"
    program.write_text("#!/bin/sh\nexit 255\n")
    program.chmod(0o755)
    environment = {"HOLDFAST_SSH": str(program), "HOLDFAST_DATA_DIR": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    if not expected:
        with pytest.raises(BadHost):
            locate(text, environment=environment)
        return
    found = locate(environment={**environment, "HOLDFAST_HOST": text})
    assert [str(address) for address in found.addresses] == expected
    assert [address.token for address in found.addresses] == ["t0ken" * bool(item.host) for item in found.addresses]
    assert found == locate(text, environment=environment)._replace(**found._asdict())
    assert (found.can_be_started, found.directory) == (False, "/d" if "/d" in text else "")
    assert found.is_local == all(item.startswith("unix") for item in expected)


BAD_LISTS = [
    ("tcp://a:1,", "empty element"),
    (",tcp://a:1", "empty element"),
    ("tcp://a:1,,tcp://b:2", "empty element"),
    ("unix:///a,,unix:///b", "empty element"),
    ("tcp://a:1,b:2", "Host 2 of the list is not valid. A host is"),
    ("tcp://a:0,tcp://b:2", "Host 1 of the list is not valid"),
    ("tcp://a:1,tcp://b:65536", "Host 2 of the list is not valid"),
    ("tcp://a:1,http://ada:secret@b:2", "Host 2 of the list is not valid"),
    ("tcp://a:1,tcp://b:2,tcp://a:1", "names tcp://a:1 twice"),
    ("unix:///a,unix:///a", "names unix:///a twice"),
    ("ssh://far/d,ssh://near/e", "the same directory"),
    ("ssh://far/d,tcp://a:1", "the same directory"),
    ("ssh://far,ssh://-oProxyCommand=x", "Host 2 of the list is not valid. A host over ssh is"),
]


@pytest.mark.parametrize(("text", "words"), BAD_LISTS)
def test_bad_lists_of_hosts(text: str, words: str, tmp_path: Path) -> None:
    """One sentence or two that say what to do, without a secret, before anything is opened."""
    with pytest.raises(BadHost) as caught:
        locate(text, environment={"HOLDFAST_DATA_DIR": str(tmp_path), "HOLDFAST_SSH": "true", "PATH": "/bin:/usr/bin"})
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_path_may_contain_commas_and_a_server_listens_at_one_address(tmp_path: Path) -> None:
    environment = {"HOLDFAST_DATA_DIR": str(tmp_path)}
    for path in ("/run/a,b", "/run/a,", "/run/a,tcp:b"):
        assert locate(f"unix://{path}", environment=environment) == ServerLocation(
            ServerAddress(path=path), str(tmp_path), can_be_started=False
        )
    for given, known in (
        ("tcp://a:1,tcp://b:2", environment),
        (None, {**environment, "HOLDFAST_HOST": "unix:///a,tcp://b:2"}),
    ):
        with pytest.raises(BadHost, match="one address"):
            listen_addresses(given, None, known)


def test_a_round_begins_with_the_current_address_and_names_each_reason() -> None:
    a, b, c = (ServerAddress(host="h", port=port, token="t0ken") for port in (1, 2, 3))
    attempts = Round((a, b, c), b)
    assert attempts.addresses == (b, c, a)
    attempts.fail(Unreachable("No server.", reason="Connection refused"))
    attempts.fail(ServerProblem(503, "The store cannot be reached."))
    assert attempts.address == a
    with pytest.raises(AllFailed) as caught:
        attempts.fail(TimedOut("It did not respond."))
    assert str(caught.value) == (
        "No Holdfast server can be used: tcp://h:2: Connection refused; tcp://h:3: The store cannot be reached; "
        "tcp://h:1: It did not respond."
    )
    assert caught.value.is_temporary
    with pytest.raises(AllFailed) as caught:
        Round((a,), a).fail(Unreachable("No server."))
    assert not caught.value.is_temporary


class Recorder:
    """A server that records requests, each as its method and the last part of its path."""

    def __init__(self, respond: Callable[[str], bytes | None]) -> None:
        self.seen: list[str] = []
        self._respond = respond

    async def __call__(self, exchange: Exchange) -> None:
        while (asked := await exchange.asked()) is not None:
            name = f"{asked.method} {asked.path.rpartition('/')[2]}"
            self.seen.append(name)
            response = self._respond(name)
            if response is None:
                return
            await exchange.send(response)


def _works(name: str) -> bytes:
    bodies = {
        "POST agent": b"",
        "GET health": b"",
        "POST sessions": b'{"id":"s","parent_session_id":"","title":"t","message_count":0,"prompt_tokens":0,'
        b'"completion_tokens":0,"summary_message_id":"","cost":0,"created_at":1,"updated_at":1,"is_busy":false,'
        b'"attached_clients":0}',
        "POST workspaces": b'{"id":"w","path":"/p"}',
    }
    return answer(bodies.get(name, b"[]"))


def _unavailable(_: str) -> bytes:
    return answer(b'{"message":"The store cannot be reached."}', 503)


def _lost(_: str) -> None:
    return None


async def _prompt(client: Client) -> None:
    await client.send_prompt(W, AgentMessage(SessionId("s"), "hi", RunId("r")))


async def _session(client: Client) -> None:
    await client.create_session(W)


async def _runs(client: Client) -> None:
    assert await client.list_runs(W) == ()


REQUESTS = [
    # What is requested, how the first server responds, the requests at both, and an error.
    (_prompt, _works, ["POST agent"], [], None),
    (_prompt, _unavailable, ["POST agent"], ["GET health", "POST agent"], None),
    (_prompt, _lost, ["POST agent"], ["GET health", "POST agent"], None),
    (_runs, _lost, ["GET runs"], ["GET health", "GET runs"], None),
    (_session, _unavailable, ["POST sessions"], ["GET health", "POST sessions"], None),
    (_session, _lost, ["POST sessions"], [], ConnectionLost),
    (_runs, lambda _: answer(b'{"message":"no"}', 409), ["GET runs"], [], ServerProblem),
]


@pytest.mark.parametrize(("request_", "respond", "first", "second", "error"), REQUESTS)
async def test_which_requests_are_sent_to_the_next_server(
    request_: Callable[[Client], asyncio.Future[None]],
    respond: Callable[[str], bytes | None],
    first: list[str],
    second: list[str],
    error: type[Exception] | None,
) -> None:
    """A request is repeated if it was not executed or may be executed twice. The server that works is kept."""
    one, two = Recorder(respond), Recorder(_works)
    async with ScriptedServer(one) as a, ScriptedServer(two) as b, Client(a, b) as client:
        if error is not None:
            with pytest.raises(error):
                await request_(client)
        else:
            await request_(client)
            assert client.address == (b if second else a)
        assert (one.seen, two.seen) == (first, second)
        await client.list_runs(W) if error is None else None
        assert len(one.seen) == len(first) + (not second and error is None)


COMMANDS = [
    # What is requested, whether it may be repeated, how the first server responds, the requests at both, and an error.
    ("POST agent", True, _works, ["POST agent"], [], None),
    ("POST agent", True, _unavailable, ["POST agent"], ["GET health", "POST agent"], None),
    ("POST agent", True, _lost, ["POST agent", "POST agent"], ["GET health", "POST agent"], None),
    ("GET runs", False, _lost, ["GET runs", "GET runs"], ["GET health", "GET runs"], None),
    ("POST sessions", False, _unavailable, ["POST sessions"], ["GET health", "POST sessions"], None),
    ("POST sessions", False, _lost, ["POST sessions"], [], ConnectionLost),
    ("GET runs", False, lambda _: answer(b'{"message":"no"}', 409), ["GET runs"], [], ServerProblem),
]


@pytest.mark.parametrize(("request_", "can_repeat", "respond", "first", "second", "error"), COMMANDS)
async def test_which_requests_of_commands_are_sent_to_the_next_server(
    request_: str,
    can_repeat: bool,
    respond: Callable[[str], bytes | None],
    first: list[str],
    second: list[str],
    error: type[Exception] | None,
) -> None:
    """The same as above for commands, which keep the connection that they have checked: it is replaced once."""
    is_sick = [False]
    one = Recorder(lambda name: respond(name) if is_sick[0] else _works(name))
    two = Recorder(_works)
    async with ScriptedServer(one) as a, ScriptedServer(two) as b:
        connection = ServerConnection(_several(a, b))
        await asyncio.to_thread(connection.connect)
        is_sick[0] = True
        method, name = request_.split()
        failure = pytest.raises(error) if error is not None else nullcontext()
        with failure:
            await asyncio.to_thread(connection.send, method, f"/v1/{name}", can_repeat=can_repeat)
        assert (one.seen, two.seen) == (["GET health", *first], second)
        assert connection.address == (b if second else a)
        connection.close()


async def test_a_command_continues_at_the_next_server_in_the_same_workspace() -> None:
    """A server with other disks has another workspace in the directory, and knows the first one by its id."""
    two = Recorder(lambda name: answer(b'{"id":"x","path":"/p"}') if name == "POST workspaces" else _works(name))
    async with ScriptedServer(two) as b:
        async with ScriptedServer(Recorder(_works)) as a:
            connection = ServerConnection(_several(a, b), "/p")
            await asyncio.to_thread(connection.open)
        await asyncio.to_thread(connection.open)
        assert (connection.workspace, connection.address) == ("w", b)
        assert two.seen == ["GET health", "POST workspaces", "GET w"]
        connection.close()


async def test_a_command_reports_each_server_at_once_or_after_a_moment() -> None:
    """No server runs: at once. One runs and is not ready: it is tried again, as one server is."""
    pauses: list[float] = []
    with pytest.raises(AllFailed, match=r"/nowhere/s: .*; unix:///nowhere/t: .*"):
        ServerConnection(_several(GONE, ServerAddress(path="/nowhere/t")), "/p").open(pauses.append)
    assert pauses == []
    sick = Recorder(lambda name: _works(name) if pauses else _unavailable(name))
    async with ScriptedServer(sick) as a:
        connection = ServerConnection(_several(a, GONE), "/p")
        await asyncio.to_thread(connection.open, pauses.append)
        assert len(pauses) == 1
        assert connection.workspace == "w"
        connection.close()
        connection.deadline = 0.001
        pauses.clear()
        with pytest.raises(TimedOut):
            await asyncio.to_thread(connection.open, pauses.append)


async def test_a_command_leaves_a_silent_stream_if_another_server_is_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_connection, "CHECK_INTERVAL", 0.0)
    is_sick = [False]

    async def silent(exchange: Exchange) -> None:
        while (asked := await exchange.asked()) is not None:
            if asked.path.endswith("/events"):
                await exchange.send(stream_head())
                await exchange.wait_for_disconnect()
            else:
                await exchange.send(_unavailable("") if is_sick[0] else _works(""))

    async with ScriptedServer(silent) as a, ScriptedServer(silent) as b:
        connection = ServerConnection(_several(a, b))
        connection.workspace = "w"
        await asyncio.to_thread(connection.connect)
        with await asyncio.to_thread(connection.stream, 0) as events:
            await asyncio.to_thread(connection.check_stream, events)
            # Without a better server the stream is kept: it continues when its server does.
            is_sick[0] = True
            await asyncio.to_thread(connection.check_stream, events)
            assert connection.address == a
        async with ScriptedServer(Recorder(_works)) as healthy:
            connection.location = _several(a, healthy)
            with await asyncio.to_thread(connection.stream, 0) as events:
                for interval in (0.0, 1000.0):
                    # The second time it is not checked: another server is used already.
                    monkeypatch.setattr(server_connection, "CHECK_INTERVAL", interval)
                    with pytest.raises(ConnectionLost):
                        await asyncio.to_thread(connection.check_stream, events)
                assert connection.address == healthy
        connection.close()


def _several(*addresses: ServerAddress) -> ServerLocation:
    found = tuple(ServerLocation(address, "", can_be_started=False) for address in addresses)
    return found[0]._replace(alternatives=found)


async def test_a_server_that_is_not_healthy_gets_no_request() -> None:
    """It accepts connections and would keep a request waiting."""
    sick = Recorder(_unavailable)
    async with ScriptedServer(sick) as a, ScriptedServer(Recorder(_works)) as b, Client(GONE, a, b) as client:
        await client.list_runs(W)
        assert client.address == b
        assert sick.seen == ["GET health"]


async def test_workspaces_are_opened_again_at_the_next_server() -> None:
    """With the same id, or, where the server has other disks, not at all: it knows the workspace by its id."""
    one, two = Recorder(_works), Recorder(_works)
    other = Recorder(lambda name: answer(b'{"id":"x","path":"/p"}') if name == "POST workspaces" else _works(name))
    missing = Recorder(lambda name: answer(b'{"message":"no"}', 400) if name == "POST workspaces" else _works(name))
    for following, expected in (
        (two, ["GET health", "POST workspaces", "GET runs", "GET runs"]),
        (other, ["GET health", "POST workspaces", "DELETE x", "GET runs", "GET runs"]),
        (missing, ["GET health", "POST workspaces", "GET runs", "GET runs"]),
    ):
        async with ScriptedServer(following) as b:
            async with ScriptedServer(one) as a:
                client = Client(a, b)
                await client.create_workspace("/p")
            await client.list_runs(W)
            await client.list_runs(W)
            await client.close()
            assert following.seen == expected


class CountedBackoff(Backoff):
    """Records a mark instead of waiting. The servers are ready after the second one."""

    def __init__(self, log: list[str], ready: list[bool]) -> None:
        super().__init__(lambda: 0.0, initial=0.0)
        self._log = log
        self._ready = ready

    def wait(self) -> float:
        self._ready[0] = "pause" in self._log
        self._log.append("pause")
        return 0.0


def _logged(log: list[str], name: str, ready: list[bool]) -> Handler:
    async def script(exchange: Exchange) -> None:
        asked = await exchange.asked()
        if asked is None:
            return
        log.append(f"{name} {asked.query.get('since', 'health')}")
        if not ready[0]:
            await exchange.send(answer(b'{"message":"no"}', 503))
        elif asked.path.endswith("/health"):
            await exchange.send(answer())
        else:
            number = int(asked.query["since"]) + 1
            body = frame_of(HelloEvent(Hello(9, 1, 1))) + frame_of(session_event("s"), number)
            # The stream breaks after one event.
            await exchange.send(stream_head() + chunk(body))

    return script


async def test_a_stream_waits_only_after_a_whole_round() -> None:
    """Two rounds without a server, then each connection breaks after one event: no wait, and no event twice."""
    log: list[str] = []
    ready = [False]
    async with (
        ScriptedServer(_logged(log, "a", ready)) as a,
        ScriptedServer(_logged(log, "b", ready)) as b,
        Client(a, b) as client,
        client.events(W, since=0, backoff=CountedBackoff(log, ready)) as events,
    ):
        numbers = []
        async for item in events:
            if item.number is not None:
                numbers.append(item.number)
            if item.number == 4:
                break
    assert numbers == [1, 2, 3, 4]
    assert log == ["a 0", "b health", "pause", "a 0", "b health", "pause", "a 0", "a 1", "a 2", "a 3"]


async def test_a_stream_follows_the_requests_to_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client reports its session where its stream is."""
    monkeypatch.setattr(stream, "_CHECK_INTERVAL", 1000.0)
    is_sick = [False]
    opened: list[str] = []

    def script(name: str) -> Handler:
        async def serve(exchange: Exchange) -> None:
            while (asked := await exchange.asked()) is not None:
                if asked.path.endswith("/events"):
                    opened.append(f"{name} {asked.query['since']}")
                    number = int(asked.query["since"]) + 1
                    body = frame_of(HelloEvent(Hello(9, 1, 1))) + frame_of(session_event("s"), number)
                    await exchange.send(stream_head() + chunk(body))
                    await exchange.wait_for_disconnect()
                    return
                await exchange.send(_unavailable("") if is_sick[0] and name == "a" else _works(""))

        return serve

    async with (
        ScriptedServer(script("a")) as a,
        ScriptedServer(script("b")) as b,
        Client(a, b) as client,
        client.events(W, since=0) as events,
        asyncio.timeout(10),
    ):
        async for item in events:
            if item.number == 1:
                is_sick[0] = True
                await client.list_runs(W)
            if item.number == 2:
                break
    assert opened == ["a 0", "b 1"]


async def test_a_silent_server_is_left_if_another_one_is_healthy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "_CHECK_INTERVAL", 0.01)
    hangs = [False]
    checks: list[str] = []

    def script(name: str) -> Handler:
        async def serve(exchange: Exchange) -> None:
            asked = await exchange.asked()
            if asked is None:
                return
            if asked.path.endswith("/health"):
                checks.append(name)
                is_well = name == "b" or not hangs[0]
                await exchange.send(answer(b"", 200 if is_well else 503))
                hangs[0] = len(checks) > 2
                return
            number = int(asked.query["since"]) + 1
            await exchange.send(
                stream_head() + chunk(frame_of(HelloEvent(Hello(9, 1, 1))) + frame_of(session_event("s"), number))
            )
            await exchange.wait_for_disconnect()

        return serve

    async with ScriptedServer(script("a")) as a, ScriptedServer(script("b")) as b, Client(a, b) as client:
        async with client.events(W, since=0) as events, asyncio.timeout(10):
            numbers: list[int] = []
            async for item in events:
                numbers += [item.number] if item.number is not None else []
                if len(numbers) == 2:
                    break
        assert client.address == b
    assert numbers == [1, 2]
    assert checks[:5] == ["a", "a", "a", "a", "b"], "three times it was well"
