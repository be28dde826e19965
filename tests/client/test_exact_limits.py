"""Exact limits, defaults and first states of the client: each with a row on both sides."""

import os
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest

from client.scripted_server import ScriptedServer, answer, short_directory
from client.test_workspace_connection import LOOK, Harness, _ignore
from holdfast.client import server_launcher, view
from holdfast.client.client import Client
from holdfast.client.errors import ConnectionLost, ServerProblem, StartFailed
from holdfast.client.key_focus import Focus, edit, focus
from holdfast.client.request import OpenResponse, RouteMethods
from holdfast.client.server_address import ServerAddress
from holdfast.client.server_launcher import ServerLocation
from holdfast.client.sync_client import SyncClient
from holdfast.client.terminal_text import final_line
from holdfast.client.view import View
from holdfast.domain.events import MessageDelta
from holdfast.domain.ids import MessageId, SessionId, WorkspaceId
from holdfast.http11.client_messages import ConnectionBroken
from holdfast.testing.gates import settle_down, start
from server.clock import Clock
from tui.message_builders import message
from tui.test_block_table import text

W, S, M = WorkspaceId("w"), SessionId("s"), MessageId("m1")


@pytest.mark.parametrize(
    ("status", "is_error"),
    [(100, True), (199, True), (200, False), (204, False), (299, False), (300, True), (404, True)],
)
async def test_only_2xx_is_success(status: int, is_error: bool) -> None:
    methods = RouteMethods(ServerAddress(path="/none"), client_id="me", via="editor", seconds=1)

    async def exchange(message: bytes, **_: object) -> object:
        return SimpleNamespace(head=SimpleNamespace(status=status), body=b'{"message":"no"}')

    methods._pool = cast(Any, SimpleNamespace(exchange=exchange, has_alternatives=False, address=methods.address))
    if is_error:
        with pytest.raises(ServerProblem, match=rf"no \({status}\)"):
            await methods._send("list_sessions", id="w")
    else:
        await methods._send("list_sessions", id="w")


async def test_a_stream_is_requested_as_a_stream() -> None:
    heads: list[bytes] = []

    async def open_stream(message: bytes, **_: object) -> object:
        heads.append(message)
        raise ConnectionLost

    client = Client(ServerAddress(path="/none"), client_id="me")
    kept = SimpleNamespace(open=open_stream, has_alternatives=False, address=client.address, close=lambda: None)
    client._pool = cast(Any, kept)
    with pytest.raises(ConnectionLost):
        await client._open_events(W, 7)
    assert b"events?client_id=me&since=7 HTTP/1.1\r\n" in heads[0]
    assert b"\r\naccept: text/event-stream\r\n" in heads[0].lower()
    await client.close()


def test_requests_without_a_body_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[bytes] = []
    client = SyncClient(ServerAddress(path="/none"))
    monkeypatch.setattr(client, "_open", lambda _: None)

    def exchange(_: object, raw: bytes, *__: object) -> tuple[int, bytes]:
        sent.append(raw)
        return 200, b""

    monkeypatch.setattr(client, "_exchange", exchange)
    client.request("POST", "/a")
    client.request("POST", "/a", (), b"")
    client.request("POST", "/a", (), b"{}")
    assert [raw.endswith(b"{}") for raw in sent] == [False, False, True]
    assert [b"content-type: application/json" in raw.lower() for raw in sent] == [False, True, True]


async def test_a_broken_stream_closes_its_connection() -> None:
    aborted: list[int] = []
    pieces: list[object] = [b"a", b"", ConnectionBroken()]

    async def read() -> bytes:
        piece = pieces.pop(0)
        if isinstance(piece, Exception):
            raise piece
        return cast(bytes, piece)

    response = OpenResponse(cast(Any, SimpleNamespace(read=read, abort=lambda: aborted.append(1))), cast(Any, None))
    assert [await response.read(), await response.read(), aborted] == [b"a", None, []]
    with pytest.raises(ConnectionLost):
        await response.read()
    assert aborted == [1]


def test_deltas_are_joined_at_doubling_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounded memory, and a cost that is proportional to the length of the text."""
    sizes: list[int] = []
    real: Any = vars(view)["grow"]

    def grow(given: Any, growth: list[Any]) -> Any:  # noqa: ANN401
        sizes.append(len(growth))
        return real(given, growth)

    monkeypatch.setattr(view, "_FOLD_AFTER", 2)
    monkeypatch.setattr(view, "grow", grow)
    draft = view._Draft(message("assistant", text("")))
    for at in range(15):
        draft.add(MessageDelta(S, M, 0, at, "x"))
    assert sizes == [2, 4, 8]
    assert draft.render().parts == (text("x" * 15),)
    assert draft.render().parts == (text("x" * 15),)
    assert sizes == [2, 4, 8, 1], "what is joined is not joined again"


async def test_the_reason_of_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    harness = Harness(monkeypatch, can_be_started=False)
    clock = Clock()
    await harness.stay.enter()
    assert (harness.stay.cursor, View().cursor) == (0, 0)
    reasons: list[str] = []
    following = start(harness.stay.follow(_ignore, reasons.append))
    await settle_down()
    for trouble in (None, ConnectionLost("It broke.")):
        harness.streams[0].is_connected = False
        harness.streams[0].trouble = trouble  # type: ignore[assignment]
        await clock.forward(LOOK * 1.01)
        await settle_down()
    assert reasons == ["", "It broke."]
    assert harness.since == [0]
    following.cancel()
    await harness.stay.leave()


def test_reports_without_a_change_keep_the_state() -> None:
    state = Focus(request="r", is_empty=True, quiet_since=5, is_settled=True, digits="1", held_at=7)
    assert edit(state, is_empty=True, at=9) == state
    writing = edit(state, is_empty=False, at=9)
    assert writing == state._replace(is_empty=False, is_settled=False, digits="", held_at=None)
    assert edit(writing._replace(digits="2", held_at=8), is_empty=False, at=10) == writing._replace(
        digits="2", held_at=8
    )
    assert edit(writing, is_empty=True, at=9) == writing._replace(is_empty=True, quiet_since=9)
    assert edit(writing, is_empty=True, at=4) == writing._replace(is_empty=True, quiet_since=5)
    assert focus(state) == state._replace(is_focused=True, is_settled=False, digits="", held_at=None)
    assert not focus(state._replace(request="")).is_focused


def test_a_retry_ends_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_launcher, "time", SimpleNamespace(monotonic=lambda: 5.0))
    for deadline, expected in ((4.9, False), (5.0, False), (5.1, True)):
        assert server_launcher._pause(deadline, 0.0) == expected


@pytest.mark.parametrize(
    ("acquired", "ready", "pauses", "expected"),
    [
        ([True], [None], [], None),
        ([True], ["client"], [], "client"),
        ([False, False, True], [None, None, "late"], [True, True], "late"),
        ([False, False], [None, "other"], [True, True], "other"),
        ([False], [], [False], StartFailed),
    ],
)
def test_the_lock_of_a_start(
    acquired: list[bool], ready: list[Any], pauses: list[bool], expected: Any, monkeypatch: pytest.MonkeyPatch  # noqa: ANN401
) -> None:  # fmt: skip
    """A server that another client has started meanwhile is used, and the lock is released in every case."""
    closed: list[int] = []
    monkeypatch.setattr(server_launcher, "_try_lock", lambda _: acquired.pop(0))
    monkeypatch.setattr(server_launcher, "_connect_if_ready", lambda *_: ready.pop(0))
    monkeypatch.setattr(server_launcher, "_pause", lambda _: pauses.pop(0))
    close = os.close
    with short_directory() as directory:
        where = ServerLocation(ServerAddress(path=f"{directory}/s"), "", can_be_started=True)

        def record_close(lock: int) -> None:
            closed.append(lock)
            close(lock)

        monkeypatch.setattr(os, "close", record_close)
        if expected is StartFailed:
            with pytest.raises(StartFailed), server_launcher._hold_start_lock(where, 1.0):
                pass
        else:
            with server_launcher._hold_start_lock(where, 1.0) as client:
                assert client == expected
                assert closed == []
        assert len(closed) == 1
    assert (acquired, ready, pauses) == ([], [], [])


@pytest.mark.parametrize(
    ("line", "expected"),
    [("", ""), ("a", "a"), ("a\r", "a"), ("a\rb", "b"), ("a\rb\r", "b"), ("\x1b[31ma\x1b[0m", "a"),
     ("a\x1b[2K\rb\tc", "b\tc"), ("a\r\r", "a")],
)  # fmt: skip
def test_the_final_state_of_a_line(line: str, expected: str) -> None:
    assert final_line(line) == expected


async def test_prompts_of_mcp_servers_without_arguments() -> None:
    bodies: list[bytes] = []

    async def script(exchange: Any) -> None:  # noqa: ANN401
        request = await exchange.asked()
        bodies.append(request.body)
        await exchange.send(answer(b"{}", 404))

    for arguments in ((), ({"a": "b"},)):
        async with ScriptedServer(script) as address, Client(address) as client:
            with pytest.raises(ServerProblem):
                await client.mcp_get_prompt(W, "db", "ask", *arguments)
    assert [msgspec.json.decode(body).get("args") for body in bodies] == [{}, {"a": "b"}]
