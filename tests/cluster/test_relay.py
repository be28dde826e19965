"""Requests for a workspace that another node owns: relayed to it, answered by any node, or refused with 503."""

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cluster.fake_owner import FakeOwner, fake_owner
from cluster.relay_nodes import CLIENT, Node, execute, node, query
from holdfast.client.server_address import ServerAddress
from holdfast.cluster.ports import RelayTarget
from holdfast.domain.ids import NodeId, WorkspaceId
from holdfast.http11.client_messages import quote
from holdfast.protocol.routes import ROUTES, Route
from holdfast.server.relay.relay_address import RelayOptions
from holdfast.server.relay.served_routes import ACCEPTED, POLLED, SERVED_BY, SLOW
from holdfast.testing.gates import start, until
from postgres_server import new_database
from server.helpers import RawResponse, exchange, open_raw, raw_request

BY_NAME = {route.name: route for route in ROUTES}


def test_every_route_has_one_decision() -> None:
    assert set(SERVED_BY) == set(BY_NAME), "decide about new routes in served_routes.py"
    relayed = {name for name, served in SERVED_BY.items() if served != "here"}
    assert all("{id}" in BY_NAME[name].path for name in relayed), "only requests for a workspace have an owner"
    assert not any(BY_NAME[name].streams for name in relayed)
    assert relayed < ACCEPTED
    assert {name for name in ACCEPTED if SERVED_BY[name] == "here"} == {"get_workspace", "agent_info", "send_prompt"}
    assert SLOW <= ACCEPTED
    assert POLLED <= ACCEPTED


@pytest.fixture
async def dsn() -> AsyncIterator[str]:
    async with new_database() as made:
        yield made


class Pair:
    """An owner with a workspace, and another node of another place."""

    def __init__(self, dsn: str, owner: Node, other: Node, workspace: WorkspaceId) -> None:
        self.dsn = dsn
        self.owner = owner
        self.other = other
        self.workspace = workspace
        self.path = f"/workspaces/{workspace}"

    async def set_address(self, address: str, token: str | None = None) -> None:
        """Change the row of the owner."""
        await execute(self.dsn, "UPDATE holdfast.nodes SET address = $2 WHERE id = $1", self.owner.id, address)
        if token is not None:
            await execute(self.dsn, "UPDATE holdfast.nodes SET relay_token = $2 WHERE id = $1", self.owner.id, token)

    async def token(self) -> str:
        return str(await query(self.dsn, "SELECT relay_token FROM holdfast.nodes WHERE id = $1", self.owner.id))


@pytest.fixture
async def pair(dsn: str) -> AsyncIterator[Pair]:
    options = RelayOptions("http://127.0.0.1:0")
    async with node(dsn, options, with_tcp=True) as owner, node(dsn, with_tcp=True) as other:
        yield Pair(dsn, owner, other, await owner.open())


def _address(url: str) -> ServerAddress:
    host, _, port = url.removeprefix("http://").rpartition(":")
    return ServerAddress(host=host, port=int(port))


def assert_unavailable(response: RawResponse, part: str) -> None:
    assert response.status == 503, response.body
    assert response.head.headers["retry-after"] == "1"
    message = response.json["message"]
    assert part in message
    assert message.count(".") == 1, "one sentence"


# What the owner has


async def test_each_class_of_routes_is_answered_by_the_owner(pair: Pair) -> None:
    owner, other, path = pair.owner, pair.other, pair.path
    project = owner.directory.root / "project"
    (project / "a.txt").write_text("from the owner")
    session = (await other.call("POST", f"{path}/sessions", {"title": "s"})).json["id"]

    async def both(target: str) -> Any:  # noqa: ANN401 - any JSON
        found = await owner.get(target)
        assert await other.get(target) == found, target
        return found

    assert (await both(f"{path}/files"))["files"] == ["a.txt"]
    await both(f"{path}/files/read?path=a.txt")
    ran = await other.call("POST", f"{path}/agent/sessions/{session}/shell", {"command": "pwd; cat a.txt"})
    assert ran.json["output"].split() == [str(project), "from", "the", "owner"]
    assert await both(f"{path}/jobs") == []
    assert (await other.call("POST", f"{path}/permissions/skip", {"skip": True})).status == 200
    assert await both(f"{path}/permissions/skip") == {"skip": True}
    assert (await other.call("POST", f"{path}/lsps/stop")).status == 200
    assert await both(f"{path}/lsps") == await both(f"{path}/mcp/states") == {}
    settings = await both(f"{path}/config")
    assert settings["options"]["data_directory"].startswith(str(owner.directory.data))
    marked = await other.call("POST", f"{path}/filetracker/read", {"session_id": session, "path": "a.txt"})
    assert marked.status == 200
    assert await both(f"{path}/sessions/{session}/filetracker/files") == [str(project / "a.txt")]
    seen = await other.get(f"{path}/filetracker/lastread?session_id={session}&path=a.txt")
    assert not seen.startswith("0001")
    undone = await other.call("POST", f"{path}/undo", {"dry_run": True})
    assert (undone.status, "nothing to undo" in undone.json["message"]) == (400, True)
    missing = await other.call("GET", f"{path}/jobs/none")
    assert missing.status == 404
    # What concerns the client's connection to this node remains.
    body = await other.get(path)
    assert body["yolo"]
    assert body["data_dir"].startswith(str(other.directory.data))
    assert (await other.get(f"{path}/agent"))["is_ready"]


async def test_a_command_is_expanded_by_the_owner_and_stored_once(pair: Pair) -> None:
    commands = pair.owner.directory.root / "project/.holdfast/commands"
    commands.mkdir(parents=True)
    (commands / "greet.md").write_text("Say hello to $ARGUMENTS")
    session = (await pair.other.call("POST", f"{pair.path}/sessions", {"title": "s"})).json["id"]
    prompt = {"session_id": session, "prompt": "/greet you", "run_id": "once"}
    first = await pair.other.call("POST", f"{pair.path}/agent", prompt)
    assert (first.status, first.json["run_id"]) == (202, "once")
    again = await pair.other.call("POST", f"{pair.path}/agent", prompt)
    assert again.status == 202
    await pair.set_address("http://127.0.0.1:1")
    assert (await pair.other.call("POST", f"{pair.path}/agent", prompt)).status == 202
    runs = await pair.other.get(f"{pair.path}/runs")
    assert [(run["run_id"], run["prompt"]) for run in runs] == [("once", "/greet you")]
    refused = await pair.other.call("POST", f"{pair.path}/agent", {**prompt, "prompt": "/greet other"})
    assert refused.status == 409


async def test_a_prompt_whose_answer_is_lost_is_stored_under_the_same_id(pair: Pair) -> None:
    async def close(owner: FakeOwner, writer: asyncio.StreamWriter) -> None:
        await until(lambda: owner.body.endswith(b"}"))
        writer.transport.abort()

    session = (await pair.other.call("POST", f"{pair.path}/sessions", {"title": "s"})).json["id"]
    async with fake_owner(close) as owner:
        await pair.set_address(owner.address)
        accepted = await pair.other.call("POST", f"{pair.path}/agent", {"session_id": session, "prompt": "/greet"})
        assert accepted.status == 202
        assert json.loads(owner.body)["run_id"] == accepted.json["run_id"]


# What is sent


def _target(route: Route, workspace: str) -> str:
    """Return the path of a route with a value for each parameter, and its required query parameters."""
    path = route.path.replace("{id}", workspace)
    for name in ("sid", "run_id", "job_id", "lsp"):
        path = path.replace(f"{{{name}}}", f"{name}-1")
    query = "&".join(f"{item.name}=q-1" for item in route.query if item.is_required)
    return f"{path}?{query}" if query else path


_NOT_SENT = ("events", "control", "retire_client", "leave_workspace")
"""An endless response, and requests that end the server or the client."""


async def test_each_relayed_route_arrives_as_itself_and_no_other_one_does(pair: Pair) -> None:
    async with fake_owner() as owner:
        await pair.set_address(owner.address)
        for route in ROUTES:
            if "{id}" not in route.path or route.name in (*_NOT_SENT, "summarize", "delete_session"):
                continue
            owner.heads.clear()
            target = _target(route, pair.workspace)
            body: object = None if route.method == "GET" else {}
            await pair.other.call(route.method, target, body)
            sent = [item for item in owner.targets if SERVED_BY[route.name] != "here"]
            expected = [f"{route.method} /v1{target}"] if SERVED_BY[route.name] != "here" else []
            assert sent == expected, route.name
            if SERVED_BY[route.name] == "here":
                helpers = {f"GET /v1{pair.path}", f"GET /v1{pair.path}/jobs", f"GET /v1{pair.path}/agent"}
                assert set(owner.targets) <= helpers, route.name


async def test_nothing_of_the_client_is_sent_but_what_the_route_declares(pair: Pair) -> None:
    async with fake_owner() as owner:
        await pair.set_address(owner.address, "0123abc")
        token = pair.other.tcp.token
        headers = (
            f"Host: 127.0.0.1:{pair.other.tcp.port}",
            f"Authorization: Bearer {token}",
            "Cookie: a=b",
            "X-Forwarded-For: 10.0.0.1",
            "Holdfast-Node: somebody",
            "Last-Event-Id: 3",
        )
        target = f"{pair.path}/files/read?path=a%0d%0aX:%20y&secret=1&path=b%20%26c"
        assert (await pair.other.call("GET", target, headers=headers, address=pair.other.tcp)).status == 200
        body = {"command": "x", "term_width": 80}
        shell = f"{pair.path}/agent/sessions/a%2Fb%0D%0AX/shell"
        assert (await pair.other.call("POST", shell, body, headers=headers, address=pair.other.tcp)).status == 200
        common = f"host: {owner.address[7:]}\r\nauthorization: Bearer 0123abc\r\nholdfast-node: {pair.other.id}\r\n"
        common += "connection: close\r\n"
        assert owner.heads == [
            f"GET /v1{pair.path}/files/read?path=b+%26c HTTP/1.1\r\n{common}\r\n",
            f"POST /v1{pair.path}/agent/sessions/a%2Fb%0D%0AX/shell HTTP/1.1\r\n{common}"
            "content-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n",
        ]
        assert json.loads(owner.body) == body
        assert token not in "".join(owner.heads)


_NO_ADDRESSES = (
    "", "nonsense", "ftp://127.0.0.1:{port}", "file:///etc/passwd", "http://user@127.0.0.1:{port}",
    "http://127.0.0.1:{port}/v1/control?", "http://127.0.0.1:{port}#x", "http://127.0.0.1:99999",
    "http://127.0.0.1:{port}\r\nX: y", "unix://relative", "unix:///nowhere/at/all", "http://[::1", "http://",
)  # fmt: skip


async def test_segments_and_addresses_that_lead_elsewhere_are_refused(pair: Pair) -> None:
    async with fake_owner() as owner:
        await pair.set_address(owner.address)
        for segment in (".", "..", "%2e%2e", ""):
            target = f"{pair.path}/agent/sessions/{segment}/shell"
            response = await pair.other.call("POST", target, {"command": "x"})
            assert response.status == 400, segment
        for address in _NO_ADDRESSES:
            await pair.set_address(address.format(port=_address(owner.address).port))
            response = await pair.other.call("GET", f"{pair.path}/files")
            assert_unavailable(response, "The server that owns this workspace")
        await pair.set_address(owner.address, "a\r\nX: y")
        assert_unavailable(await pair.other.call("GET", f"{pair.path}/files"), "cannot be reached")
        assert owner.heads == []


# Streams


async def test_a_body_and_a_response_are_passed_on_as_they_arrive(pair: Pair) -> None:
    more = asyncio.Event()

    async def answer(owner: FakeOwner, writer: asyncio.StreamWriter) -> None:
        await until(lambda: owner.body)
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n3\r\n[1,\r\n"
        )
        await more.wait()
        writer.write(b"2\r\n2]\r\n0\r\n\r\n")

    async with fake_owner(answer) as owner:
        await pair.set_address(owner.address)
        reader, writer = await open_raw(pair.other.directory.address)
        head = raw_request(f"/v1{pair.path}/agent/sessions/s/shell", "POST", headers=["Transfer-Encoding: chunked"])
        writer.write(head + b"5\r\n12345\r\n")
        assert b"[1," in await reader.readuntil(b"[1,")
        assert owner.body == b"12345"
        more.set()
        writer.write(b"3\r\n678\r\n0\r\n\r\n")
        assert (await reader.readuntil(b"0\r\n\r\n")).startswith(b"\r\n2\r\n2]")
        await until(lambda: owner.body == b"12345678")
        writer.transport.abort()


async def test_a_slow_owner_slows_down_the_client(pair: Pair) -> None:
    """A large body does not pile up in the node that relays it."""
    gate, ended = asyncio.Event(), asyncio.Event()

    async def stall(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        total = 0
        while not (data := await reader.read(65536)).endswith(b"0\r\n\r\n"):
            total += len(data)
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
        await reader.read()
        writer.transport.abort()
        ended.set()

    server = await asyncio.start_server(stall, "127.0.0.1", 0, limit=65536)
    await pair.set_address(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    size = 30 * 1024 * 1024
    reader, writer = await open_raw(pair.other.directory.address)
    writer.transport.set_write_buffer_limits(0)
    writer.write(raw_request(f"/v1{pair.path}/undo", "POST", headers=[f"Content-Length: {size}"]))
    sent = 0
    piece = bytes(1024 * 1024)

    async def send() -> None:
        nonlocal sent
        while sent < size:
            writer.write(piece)
            sent += len(piece)
            await writer.drain()

    sending = start(send())
    await asyncio.wait((sending,), timeout=0.5)
    assert sent < size / 2, "the buffers of the kernel hold less"
    gate.set()
    await sending
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    writer.transport.abort()
    await ended.wait()
    server.close()


async def test_a_response_that_breaks_off_is_not_completed(pair: Pair) -> None:
    async def answer(_: FakeOwner, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n12345")
        await writer.drain()
        writer.transport.close()

    async with fake_owner(answer) as owner:
        await pair.set_address(owner.address)
        reader, writer = await open_raw(pair.other.directory.address)
        writer.write(raw_request(f"/v1{pair.path}/files"))
        received = await reader.read()
        assert received.endswith(b"\r\n\r\n12345")
        writer.transport.abort()


def _grows(owner: FakeOwner, heads: int, ended: int) -> bool:
    return len(owner.heads) > heads and owner.ended > ended


async def test_the_client_that_disconnects_ends_the_request(pair: Pair) -> None:
    async def never(_: FakeOwner, __: asyncio.StreamWriter) -> None:
        pass

    async with fake_owner(never) as owner:
        await pair.set_address(owner.address)
        for request in (raw_request(f"/v1{pair.path}/files"), raw_request(f"/v1{pair.path}/undo", "POST", b"{}")):
            ended = owner.ended
            _, writer = await open_raw(pair.other.directory.address)
            writer.write(request)
            heads = len(owner.heads)
            await until(partial(_grows, owner, heads, ended - 1))
            writer.transport.abort()
            # Much sooner than the owner would be replaced.
            async with asyncio.timeout(10):
                await until(partial(_grows, owner, 0, ended))


def _processes(text: str) -> list[str]:
    """Return the running processes with a text in their command line."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if f"sleep\0{text}\0".encode() in entry.read_bytes():
                found.append(str(entry))
    return found


async def test_a_command_ends_with_its_client_at_another_node(pair: Pair) -> None:
    started = pair.owner.directory.root / "started"
    session = (await pair.other.call("POST", f"{pair.path}/sessions", {"title": "s"})).json["id"]
    seconds = f"{1000 + os.getpid()}.25"
    command = json.dumps({"command": f"touch {started}; exec sleep {seconds}"}).encode()
    _, writer = await open_raw(pair.other.directory.address)
    writer.write(raw_request(f"/v1{pair.path}/agent/sessions/{session}/shell", "POST", command))
    await until(lambda: started.exists() and _processes(seconds))
    writer.transport.abort()
    await until(lambda: not _processes(seconds))


# Failures


async def test_an_owner_that_is_gone_is_503_or_replaced_by_what_this_node_knows(pair: Pair) -> None:
    async with fake_owner() as gone:
        pass
    await pair.set_address(gone.address)
    # Nor does this node have the directory of the workspace.
    (pair.owner.directory.root / "project").rename(pair.owner.directory.root / "elsewhere")
    assert_unavailable(await pair.other.call("GET", f"{pair.path}/files"), "cannot be reached")
    assert_unavailable(await pair.other.call("POST", f"{pair.path}/undo", {}), "cannot be reached")
    for route in ROUTES:
        if SERVED_BY[route.name] == "owner_first" or route.name in ("get_workspace", "agent_info", "snapshot"):
            target = _target(route, pair.workspace)
            body: object = None if route.method == "GET" else {}
            response = await pair.other.call(route.method, target, body)
            assert response.status in (200, 400), (route.name, response.body)
    assert (await pair.other.get(pair.path))["config"]["options"]["data_directory"].startswith(
        str(pair.other.directory.data)
    )
    session = (await pair.other.call("POST", f"{pair.path}/sessions", {"title": "s"})).json["id"]
    prompt = {"session_id": session, "prompt": "hello"}
    assert (await pair.other.call("POST", f"{pair.path}/agent", prompt)).status == 202
    lent = await pair.other.call("POST", f"{pair.path}/mcp/lend", {"client_id": CLIENT, "servers": {}})
    assert (lent.status, "only there" in lent.json["message"]) == (409, True)
    assert (await pair.other.call("GET", "/workspaces/none/files")).status == 404
    assert (await pair.other.call("GET", "/workspaces/none/mcp/states")).json == {}


async def test_a_workspace_without_an_owner_is_503(pair: Pair) -> None:
    await pair.other.get(pair.path)
    await execute(
        pair.dsn, "UPDATE holdfast.workspaces SET owner = NULL, place = 'nowhere' WHERE id = $1", pair.workspace
    )
    assert_unavailable(await pair.other.call("GET", f"{pair.path}/files"), "No server owns this workspace")
    assert (await pair.other.call("GET", f"{pair.path}/config")).status == 200


async def test_a_suspended_owner_costs_a_bounded_time(pair: Pair) -> None:
    async def never(_: FakeOwner, __: asyncio.StreamWriter) -> None:
        pass

    async with fake_owner(never) as owner:
        await pair.set_address(owner.address)
        loop = asyncio.get_running_loop()
        session = (await pair.other.call("POST", f"{pair.path}/sessions", {"title": "s"})).json["id"]
        prompting = start(pair.other.call("POST", f"{pair.path}/agent", {"session_id": session, "prompt": "/x"}))
        await until(lambda: owner.heads)
        begin = loop.time()
        assert (await pair.other.call("GET", f"{pair.path}/config")).status == 200
        assert 2.5 < loop.time() - begin < 10
        # It is not tried again at once.
        begin = loop.time()
        assert (await pair.other.call("GET", f"{pair.path}/config")).status == 200
        assert loop.time() - begin < 2.5
        reading, writing = (
            start(pair.other.call("GET", f"{pair.path}/files")),
            start(pair.other.call("POST", f"{pair.path}/undo", {})),
        )
        seen = len(owner.heads)
        await until(lambda: len(owner.heads) >= seen + 2)
        await execute(
            pair.dsn, "UPDATE holdfast.workspaces SET owner = NULL, place = 'nowhere' WHERE id = $1", pair.workspace
        )
        begin = loop.time()
        assert_unavailable(await reading, "cannot be reached")
        outcome = await writing
        assert outcome.status == 503
        accepted = await prompting
        assert accepted.status == 202, "a prompt needs no owner"
        assert loop.time() - begin < 10


async def test_a_request_that_was_sent_is_not_repeated(pair: Pair) -> None:
    async def close(_: FakeOwner, writer: asyncio.StreamWriter) -> None:
        writer.transport.abort()

    async with fake_owner(close) as owner:
        await pair.set_address(owner.address)
        assert_unavailable(await pair.other.call("POST", f"{pair.path}/undo", {}), "see whether the request had")
        assert_unavailable(await pair.other.call("GET", f"{pair.path}/files"), "cannot be reached")
        assert len(owner.heads) == 2


async def test_an_attempt_to_connect_is_repeated_at_the_next_owner(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pair.other.manager.host is not None
    cluster = pair.other.manager.host.cluster
    owner = await cluster.relay_target(pair.workspace)
    found: list[RelayTarget | None] = [RelayTarget(NodeId("earlier"), "http://127.0.0.1:1", "t"), owner]

    async def relay_target(_: WorkspaceId) -> RelayTarget | None:
        return found.pop(0)

    monkeypatch.setattr(cluster, "relay_target", relay_target)
    stopped = await pair.other.call("POST", f"{pair.path}/lsps/stop")
    assert (stopped.status, found) == (200, [])


async def test_nodes_of_one_user_need_no_options(dsn: str) -> None:
    async with node(dsn) as owner, node(dsn) as other:
        path = f"/workspaces/{await owner.open(env={'SECRET': 'x'})}"
        assert "SECRET=x" in (await owner.get(path))["env"]
        assert owner.relay_address.startswith("unix:///")
        (owner.directory.root / "project" / "a.txt").write_text("x")
        assert (await other.get(f"{path}/files"))["files"] == ["a.txt"]
        # The environment of the owner's client may contain secrets: only its own socket shows it.
        assert not (await other.get(path)).get("env")


# Admission


async def test_only_the_token_of_the_node_is_admitted_at_its_port(pair: Pair) -> None:
    address, token = _address(pair.owner.relay_address), await pair.token()
    host = f"Host: 127.0.0.1:{address.port}"

    async def status(*headers: str, target: str = f"/v1{pair.path}/files", host: str = host) -> int:
        return (await exchange(address, raw_request(target, headers=[host, *headers]))).status

    bearer = f"Authorization: Bearer {token}"
    assert await status(bearer) == 200
    assert (
        await status() == await status("Authorization: Bearer ") == await status(f"Authorization: Basic {token}") == 401
    )
    assert await status(f"Authorization: Bearer {token[:-1]}") == await status(f"Authorization: Bearer {token}0") == 401
    users = (pair.owner.tcp.token, pair.other.tcp.token)
    assert [await status(f"Authorization: Bearer {user}") for user in users] == [401, 401]
    others = await query(pair.dsn, "SELECT relay_token FROM holdfast.nodes WHERE id = $1", pair.other.id)
    assert others != token
    assert await status(f"Authorization: Bearer {others}") == 401
    assert await status(bearer, bearer) == 400
    assert await status(bearer, "Origin: http://evil.example") == 403
    assert await status(bearer, host="Host: evil.example") == 403
    # It is for relayed requests of workspaces of this node only, also with a header of ours.
    for target in (
        "/v1/version",
        "/v1/config",
        "/v1/workspaces",
        f"/v1{pair.path}/events",
        f"/v1{pair.path}/messages/user",
    ):
        assert await status(bearer, target=target) == 400, target
    assert await status(bearer, target="/v1/workspaces/none/files") == 503
    assert await status(bearer, f"Holdfast-Node: {pair.owner.id}") == 503


async def test_a_client_cannot_relay(pair: Pair) -> None:
    """Neither the token of a node nor its headers have a meaning at the port of clients."""
    port, token = pair.owner.tcp.port, await pair.token()
    host = f"Host: 127.0.0.1:{port}"
    faked = await exchange(
        pair.owner.tcp, raw_request("/v1/version", headers=[host, f"Authorization: Bearer {token}", "Holdfast-Node: n"])
    )
    assert faked.status == 401
    # With the header of a relayed request, a client's request is still relayed to the owner, and answered by it.
    (pair.owner.directory.root / "project" / "a.txt").write_text("x")
    found = await pair.other.call("GET", f"{pair.path}/files", headers=(f"Holdfast-Node: {pair.owner.id}",))
    assert found.json["files"] == ["a.txt"]


async def test_a_request_is_relayed_once(pair: Pair) -> None:
    """The row of the owner leads to a third node, and to the node that relays."""
    async with node(pair.dsn, RelayOptions("http://127.0.0.1:0")) as third:
        # It refuses the token.
        await pair.set_address(third.relay_address)
        assert_unavailable(await pair.other.call("GET", f"{pair.path}/files"), "cannot be reached")
        # With its token it finds that it is not the owner; it has the workspace open, and would relay it for a client.
        assert (await third.call("GET", pair.path)).status == 200
        own = await query(pair.dsn, "SELECT relay_token FROM holdfast.nodes WHERE id = $1", third.id)
        await pair.set_address(third.relay_address, own)
        assert_unavailable(await pair.other.call("GET", f"{pair.path}/files"), "No server owns this workspace")
        assert (await pair.other.call("GET", f"{pair.path}/config")).status == 200, "this node answers it then"
        await pair.set_address(pair.other.relay_address)
        assert_unavailable(await pair.other.call("GET", f"{pair.path}/files"), "has the address of this one")


async def test_a_node_has_a_new_token_whenever_it_joins(dsn: str) -> None:
    seen = set()
    for _ in range(2):
        async with node(dsn):
            token = await query(dsn, "SELECT max(relay_token) FROM holdfast.nodes")
            assert len(token) == 64
            seen.add(token)
    assert len(seen) == 2
    assert quote(next(iter(seen))) in seen, "it is safe in a header"
