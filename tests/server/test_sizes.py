"""Sizes and page limits of the server: each constant that selects a branch, lowered to 1, to 0, or to the exact
bound.
"""

import asyncio
import contextlib
import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.bus.frames import Frame
from holdfast.client.errors import ServerProblem
from holdfast.domain.events import MessageDelta, MessageDeltaEvent, encode_event
from holdfast.domain.ids import MessageId, SessionId
from holdfast.http11.sse import SseReader
from holdfast.protocol.error_status import TooManyStreams
from holdfast.server import presence
from holdfast.server.http import application, connection
from holdfast.server.http.connection import Connection, ConnectionLimits, HttpServer, Receive, Scope, Send
from holdfast.server.http.request_cycle import RequestCycle
from holdfast.server.routes import files, prompts
from holdfast.server.routes import files as undo
from holdfast.server.routes import sessions as log
from holdfast.server.streams import frame_cache
from holdfast.server.telemetry import metrics as counters
from holdfast.server.telemetry.metrics import Metrics
from holdfast.server.web import web_auth
from holdfast.server.web.web_auth import Page, WebAuthState, digest
from holdfast.testing.gates import start
from server.api import Api, api
from server.helpers import (
    collect_run_ends,
    exchange,
    in_process_server,
    open_raw,
    raw_request,
    send_prompt,
    server_directory,
)

# Pages


async def pages(opened: Api, **query: object) -> tuple[list[dict[str, Any]], int]:
    """Return the log, page after page, and the number of pages."""
    found: list[dict[str, Any]] = []
    after, count = 0, 0
    while True:
        page = await opened.expect_ok("read_log", query={**query, "after": after})
        found += page["events"]
        count += 1
        if not page["more"]:
            return found, count
        assert page["next"] > after, "it goes on"
        after = page["next"]


async def test_log_pages_of_any_size_join_to_whole_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async with api() as opened:
        sessions = [await opened.approvals.session() for _ in range(2)]
        ended = [await opened.approvals.call_tools(session) for session in (*sessions, *sessions)]
        for run in ended:
            await opened.approvals.events_until_end(run)
        asked: list[dict[str, object]] = [{}, {"session_id": sessions[0]}, {"run_id": ended[1].run_id}]
        whole = [(await pages(opened, **query))[0] for query in asked]
        assert len(whole[0]) == await opened.last_event()
        assert whole[2][-1]["type"] == "run_complete"
        for viewer_counts, size, limit in (
            (1, 1 << 20, 1),
            (2, 1 << 20, 500),
            (5_000, 0, 500),
            (5_000, 1, 2),
            (3, 0, 1),
        ):
            monkeypatch.setattr(log, "_MAX_EXAMINED", viewer_counts)
            monkeypatch.setattr(log, "_MAX_PAGE_BYTES", size)
            for query, expected in zip(asked, whole, strict=True):
                found, count = await pages(opened, **query, limit=limit)
                assert found == expected, (viewer_counts, size, limit)
                assert count > 1
        monkeypatch.undo()
        monkeypatch.setattr(log, "_MAX_EVENTS", 2)
        assert len((await opened.expect_ok("read_log", query={"limit": 2}))["events"]) == 2
        assert "from 1 to 2" in await opened.expect_error(400, "read_log", query={"limit": 3})


async def test_run_pages_join_to_all_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace)).id
        names = [f"r{number}" for number in range(4)]
        for name in names:
            await send_prompt(client, workspace, session, "hi", name)
        await collect_run_ends(client, workspace, names)
        for state in (None, "ended"):
            found: list[str] = []
            before = None
            while page := await client.list_runs(workspace, limit=1, before=before, state=state):
                found += [run.run_id for run in page]
                before = page[-1].number
            assert found == names[::-1]
        monkeypatch.setattr(prompts, "_MAX_RUNS", 2)
        assert len(await client.list_runs(workspace, limit=4)) == 2
        assert len(await client.list_runs(workspace, limit=4, state="ended")) == 2


async def test_undo_reads_bounded_number_of_sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    async with api() as opened:
        for number in range(2):
            session = await opened.approvals.session()
            run = await opened.approvals.call_tools(session, ("write", {"file_path": f"{number}.txt", "content": "x"}))
            await opened.approvals.grant((await opened.approvals.pending_permissions())[0])
            await opened.approvals.events_until_end(run)
        monkeypatch.setattr(undo, "_MAX_SESSIONS", 1)
        for expected in (200, 400):
            answer = await opened.call("undo_changes", {})
            assert answer.status == expected, "only the latest session is looked at"


# Bodies and files


@pytest.mark.parametrize("most", [1, 22])
async def test_body_at_exact_limit(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(application, "_MAX_BODY_BYTES", most)
    async with server_directory() as directory, in_process_server(directory) as server:
        statuses = {}
        for size in (most, most + 1):
            body = (b'{"command":"shutdown"}' + b" " * size)[:size]
            length = raw_request("/v1/control", "POST", body)
            chunks = raw_request("/v1/control", "POST", headers=["Transfer-Encoding: chunked"])
            chunks += b"%x\r\n%b\r\n0\r\n\r\n" % (size, body)
            pieces = raw_request("/v1/control", "POST", headers=["Transfer-Encoding: chunked"])
            pieces += b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n"
            requests = (length, chunks, pieces)
            statuses[size] = [(await exchange(server.address, request)).status for request in requests]
        assert statuses == {most: [409 if most == 22 else 400] * 3, most + 1: [413] * 3}


@pytest.mark.parametrize("most", [0, 1])
async def test_body_is_read_in_pieces_of_any_size(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading pauses while a body waits for its handler, and then resumes."""
    monkeypatch.setattr(connection, "_MAX_UNREAD_BODY", most)
    async with server_directory() as directory, in_process_server(directory) as server:
        body = b'{"command":"shutdown"}' + b" " * 200_000
        request = raw_request("/v1/control", "POST", body) + raw_request("/v1/health", headers=["Connection: close"])
        reader, writer = await open_raw(server.address)
        writer.write(request)
        answers = await reader.read()
        assert answers.startswith(b"HTTP/1.1 409")
        assert answers.count(b"HTTP/1.1 200") == 1
        writer.close()


async def test_head_at_exact_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        line = "X-Filler: "
        size = len("/v1/healthHostx") + len("X-Filler")
        monkeypatch.setattr(connection, "_MAX_HEAD_BYTES", size + 100)
        request = raw_request("/v1/health", headers=["Host: x", line + "y" * 100])
        assert (await exchange(server.address, request)).status == 200
        reader, writer = await open_raw(server.address)
        writer.write(raw_request("/v1/health", headers=["Host: x", line + "y" * 101]))
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


async def test_file_at_exact_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LARGEST_FILE", 3)
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        for name in ("abc", "abcd"):
            (Path(directory.project()) / f"{name}.txt").write_text(name)
        assert (await client.read_file(workspace, "abc.txt")).content == b"abc"
        with pytest.raises(ServerProblem) as caught:
            await client.read_file(workspace, "abcd.txt")
        assert caught.value.status == 413
        for most, is_cut in ((1, True), (2, False), (3, False)):
            monkeypatch.setattr(files, "_MAX_FILES", most)
            found = await client.list_files(workspace)
            assert (len(found.files), found.is_cut) == (min(most, 2), is_cut)


# Streams


def delta(index: int, text: str = "x") -> Frame:
    event = MessageDeltaEvent(MessageDelta(SessionId("s"), MessageId("m"), 0, index, text))
    return Frame(index, event=event, body=encode_event(event))


@pytest.mark.parametrize(("few", "kept"), [(0, 0), (0, 1), (1, 1), (4, 8)])
def test_frame_bytes_do_not_depend_on_cache(few: int, kept: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The whole text, merged where there are more than a few frames; the same bytes for every reader, in any order."""
    monkeypatch.setattr(frame_cache, "_MERGE_THRESHOLD", few)
    monkeypatch.setattr(frame_cache, "_CACHE_SIZE", kept)
    cache = frame_cache.FrameCache()
    frames = [delta(number, str(number)) for number in range(1, 8)]
    for first, last in ((0, 7), (2, 5), (0, 7), (6, 7), (0, 1), (2, 5)):
        found = SseReader().feed(cache.join(frames[first:last]))
        texts = b"".join(item.data.partition(b'"text":"')[2].partition(b'"')[0] for item in found)
        assert texts == b"".join(b"%d" % number for number in range(first + 1, last + 1))
        assert len(found) == (last - first if last - first <= few else 1)
    assert len(cache._made) <= kept


def test_frames_with_gap_are_joined_for_one_reader_only() -> None:
    cache = frame_cache.FrameCache()
    whole = [delta(number) for number in range(1, 8)]
    with_hole = [*whole[:3], *whole[4:]]
    own = [delta(0), *whole[:6]]
    assert cache.join(whole).count(b"xxxxxxx") == 1
    assert b"xxxxxxx" not in cache.join(with_hole)
    for frames in (with_hole, own, whole):
        fresh = frame_cache.FrameCache().join(frames)
        assert cache.join(frames) == fresh


# Connections


class FakeConnection:
    """A connection with the attributes that the limits read."""

    def __init__(self, *, local: bool = True, unasked: bool = True, incomplete: bool = False) -> None:
        self.is_local = local
        self.is_unasked = unasked
        self.is_incomplete = incomplete


@pytest.mark.parametrize(("descriptors", "local", "tcp"), [(0, 0, 0), (2, 1, 0), (4, 2, 1), (8, 4, 2)])
def test_connection_limits_by_descriptors(
    descriptors: int, local: int, tcp: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "_descriptors", lambda: descriptors)
    for is_local, most in ((True, local), (False, tcp)):
        known: ConnectionLimits[FakeConnection] = ConnectionLimits()
        lines = [FakeConnection(local=is_local) for _ in range(most + 2)]
        closed = [known.add(line) for line in lines]
        assert closed == [None] * most + (lines[:2] if most else lines)
        assert len(list(known)) == most
        assert bool(known) is (most > 0)


@pytest.mark.parametrize(("descriptors", "streams"), [(0, 0), (2, 0), (4, 1), (16, 7), (32, 14), (64, 28)])
def test_stream_limits_by_descriptors(descriptors: int, streams: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "_descriptors", lambda: descriptors)
    known: ConnectionLimits[FakeConnection] = ConnectionLimits()
    held = [known.hold(FakeConnection()) for _ in range(streams + 1)]
    for one in held[:-1]:
        one.__enter__()
    with pytest.raises(TooManyStreams):
        held[-1].__enter__()
    if streams:
        held[0].__exit__(None, None, None)
        held.append(known.hold(FakeConnection()))
        held[-1].__enter__()
        with pytest.raises(TooManyStreams):
            known.hold(FakeConnection()).__enter__()


def test_connection_chosen_for_eviction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Among those without a complete request the one that has been idle longest; otherwise the new one."""
    monkeypatch.setattr(connection, "_descriptors", lambda: 6)
    for first, second, expected in (
        (FakeConnection(), FakeConnection(), 0),
        (FakeConnection(unasked=False), FakeConnection(), 1),
        (FakeConnection(unasked=False), FakeConnection(unasked=False, incomplete=True), 1),
        (FakeConnection(unasked=False), FakeConnection(unasked=False), 3),
    ):
        known: ConnectionLimits[FakeConnection] = ConnectionLimits()
        lines = [first, second, FakeConnection(unasked=False), FakeConnection(unasked=False)]
        assert [known.add(line) for line in lines] == [None, None, None, lines[expected]]
    known = ConnectionLimits()
    lines = [FakeConnection() for _ in range(4)]
    for line in lines[:3]:
        known.add(line)
    known.touch(lines[0])
    known.touch(FakeConnection())
    assert known.add(lines[3]) is lines[1], "who was heard of stays"
    known.remove(lines[1])
    known.remove(lines[2])
    assert list(known) == [lines[0], lines[3]]


IDLE_ENDS = (
    # unread bytes before and now, reading is paused, a response is pending, what becomes of the connection
    (0, 0, False, False, "closed"),
    (0, 0, False, True, "closed"),
    (0, 0, True, False, "closed"),
    (0, 0, True, True, "kept"),
    (9, 5, False, False, "kept"),
    (9, 5, True, False, "kept"),
    (9, 9, False, False, "aborted"),
    (9, 9, True, False, "aborted"),
    (9, 9, False, True, "aborted"),
    (9, 9, True, True, "kept"),
)


@pytest.mark.parametrize(("before", "unread", "is_paused", "is_pending", "expected"), IDLE_ENDS)
async def test_an_idle_connection_ends_unless_it_is_the_turn_of_the_server(
    before: int, unread: int, is_paused: bool, is_pending: bool, expected: str
) -> None:
    """A client that does not read its response is not waited for, although reading from it is paused."""
    done: list[str] = []
    line = Connection(HttpServer(), cast(Any, None))
    line.transport = cast(
        Any,
        SimpleNamespace(
            get_write_buffer_size=lambda: unread,
            close=lambda: done.append("closed"),
            abort=lambda: done.append("aborted"),
        ),
    )
    line._is_paused = is_paused
    line._exchanges.append(cast(Any, SimpleNamespace(is_over=not is_pending, is_whole=True)))
    line._idle_timeout(before)
    assert done == ([] if expected == "kept" else [expected])
    assert (line._idle is not None) is (expected == "kept")
    line._stop_idle_timer()


@pytest.mark.parametrize("end", ["answered", "cut short", "silent", "failed", "cancelled", "disconnected"])
async def test_a_connection_is_aborted_unless_its_response_is_complete(end: str) -> None:
    """The client of a response that never comes would wait for it."""
    done: list[str] = []

    async def room() -> None:
        """There is room."""

    line = SimpleNamespace(
        room=room, is_full=False, write=lambda _: None, finish=lambda _: done.append("finished"),
        abort=lambda: done.append("aborted"),
    )  # fmt: skip
    cycle = RequestCycle(cast(Any, line), {"method": "GET", "http_version": "1.1"}, keeps=True, waits=False)

    async def answer(_scope: Scope, _receive: Receive, send: Send) -> None:
        assert cycle.scope["exchange"] is cycle
        if end in ("answered", "cut short", "disconnected"):
            await send({"type": "http.response.start", "status": 200, "headers": []})
            await send({"type": "http.response.body", "body": b"x", "more_body": end == "cut short"})
        if end in ("failed", "cancelled"):
            raise ValueError if end == "failed" else asyncio.CancelledError

    cycle.is_over = end == "disconnected"
    running = start(cycle.run(answer))
    await asyncio.wait([running])
    assert (running.cancelled(), end == "failed") == (
        end == "cancelled",
        not running.cancelled() and bool(running.exception()),
    )
    assert done == {"answered": ["finished"], "disconnected": []}.get(end, ["aborted"])
    assert "exchange" not in cycle.scope


async def test_a_lost_connection_leaves_no_timer() -> None:
    """Neither that of an idle connection nor the check of a half-closed one, whose socket is gone."""
    loop = asyncio.get_running_loop()
    server = HttpServer()
    line = Connection(server, cast(Any, None))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        details = {"socket": ours, "peername": ""}
        transport = SimpleNamespace(
            get_extra_info=details.get, get_write_buffer_size=lambda: 0, is_closing=lambda: False, abort=lambda: None,
            resume_reading=lambda: None, pause_reading=lambda: None, close=lambda: None,
        )  # fmt: skip
        armed: list[asyncio.TimerHandle] = []

        def call_later(*given: Any) -> asyncio.TimerHandle:  # noqa: ANN401
            armed.append(loop.call_later(*given))
            return armed[-1]

        line.loop = cast(Any, SimpleNamespace(call_later=call_later))
        line.connection_made(cast(Any, transport))
        line._exchanges.append(
            cast(Any, SimpleNamespace(is_over=False, is_whole=True, keeps=True, size=0, wake=lambda: None, probe=b""))
        )
        assert line.eof_received()
        assert line._watch is not None
        line._start_idle_timer()
        line.connection_lost(None)
    assert len(armed) == 3
    assert all(timer.cancelled() for timer in armed)


# Bounded caches


def test_caches_with_capacity_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_auth, "MAX_CODES", 1)
    monkeypatch.setattr(web_auth, "MAX_PAGES", 1)
    auth = web_auth.add_code(web_auth.add_code(WebAuthState(), digest("a"), (), 0.0), digest("b"), (), 0.0)
    assert web_auth.exchange(auth, digest("a"), Page("p", "k", 0.0), 0.0)[1] is None
    auth, page = web_auth.exchange(auth, digest("b"), Page("p", "k", 0.0, digest("t")), 0.0)
    assert page is not None
    auth, page = web_auth.exchange(web_auth.add_code(auth, digest("c"), (), 1.0), digest("c"), Page("q", "k", 0.0), 1.0)
    assert (page is not None, list(auth.pages)) == (True, ["q"])
    assert list(web_auth.restore((Page("p", "k", 1.0), Page("q", "k", 2.0)), 3.0).pages) == ["q"]

    monkeypatch.setattr(presence, "RETIRED_LIMIT", 1)
    state = presence.start(leaves_when_idle=False)[0]
    for client in ("a", "b"):
        state = presence.transition(state, presence.Retire(presence.ClientId(client)))[0]
    assert state.retired == ("b",)

    monkeypatch.setattr(counters, "_MAX_SESSIONS", 1)
    metrics = Metrics()
    for session, cost in (("a", 1.0), ("b", 2.0), ("b", 5.0), ("a", 4.0)):
        metrics._add_cost(SessionId(session), cost, is_new=cost < 3.0)
    total = next(family for family in metrics.families() if family.name.endswith("cost_dollars_total"))
    assert list(total.values.values()) == [6.0], "of a session that is not remembered only what comes later counts"


def test_descriptor_limit_follows_system_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    infinity = connection.resource.RLIM_INFINITY  # type: ignore[attr-defined]
    for allowed, expected in ((100, 100), (65_536, 65_536), (70_000, 65_536), (infinity, 65_536)):
        monkeypatch.setattr("resource.getrlimit", lambda _, allowed=allowed: (allowed, allowed))
        assert connection._descriptors() == expected
    assert os.getpid()
