"""The resumable stream: interrupted anywhere and resumed, it equals the log. Heartbeats, gaps, snapshots."""

import asyncio
import random

import pytest

from holdfast.client.client import Client
from holdfast.domain.events import RunCompleteEvent
from holdfast.domain.ids import RunId, WorkspaceId
from holdfast.domain.messages import text_of
from holdfast.http11.sse import HEARTBEAT, SseReader
from holdfast.server.streams import event_stream as stream_module
from holdfast.testing.gates import until
from server.helpers import (
    EchoModel,
    FeedModel,
    RawStream,
    Server,
    collect_run_ends,
    exchange,
    in_process_server,
    open_raw,
    raw_request,
    read_until,
    run_ended,
    send_prompt,
    server_directory,
)


async def filled(server: Server, runs: int = 6) -> tuple[Client, WorkspaceId]:
    client, workspace = await server.open_workspace()
    session = (await client.create_session(workspace, "s")).id
    for number in range(runs):
        await send_prompt(client, workspace, session, f"prompt {number} with some words “and more”", f"r{number}")
    await collect_run_ends(client, workspace, [f"r{number}" for number in range(runs)])
    return client, workspace


async def log_of(server: Server, workspace: WorkspaceId) -> list[tuple[int, bytes]]:
    return list(await server.manager.ledger.events_after(workspace, 0, 100_000))


async def test_a_stream_cut_at_every_event_and_resumed_is_the_log() -> None:
    """R6: by the parameter and by the header, from each number."""
    async with server_directory() as directory, in_process_server(directory) as server:
        _, workspace = await filled(server)
        log = await log_of(server, workspace)
        assert len(log) > 30
        path = f"/v1/workspaces/{workspace}/events"
        got: list[tuple[int, bytes]] = []
        for number, _ in log:
            cursor = got[-1][0] if got else 0
            is_header = number % 2 and got
            target, headers = (path, [f"Last-Event-ID: {cursor}"]) if is_header else (f"{path}?since={cursor}", [])
            raw = await RawStream.open(server.address, target, headers)
            event = await raw.until(lambda item: item.number is not None)
            got.append((event.number or 0, event.data))
            raw.close()
        assert got == log


async def test_a_stream_cut_at_random_bytes_and_resumed_is_the_log() -> None:
    """R6: complete events count; the rest is sent again."""
    chance = random.Random(4)
    async with server_directory() as directory, in_process_server(directory) as server:
        _, workspace = await filled(server, 12)
        log = await log_of(server, workspace)
        for _ in range(12):
            got: list[tuple[int, bytes]] = []
            while len(got) < len(log):
                raw = await RawStream.open(
                    server.address, f"/v1/workspaces/{workspace}/events?since={got[-1][0] if got else 0}"
                )
                most = chance.randrange(200, 9000)
                while len(raw.raw) < most and len(got) + sum(item.number is not None for item in raw.events) < len(log):
                    await raw.more()
                got += [
                    (item.number, item.data) for item in SseReader().feed(raw.raw[:most]) if item.number is not None
                ]
                raw.close()
            assert got == log


async def test_r6_cursor_no_longer_held_gets_one_gap_then_live_events() -> None:
    """R6."""
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await filled(server, 1)
        newest = (await log_of(server, workspace))[-1][0]
        raw = await RawStream.open(server.address, f"/v1/workspaces/{workspace}/events?since={newest + 500}")
        gap = await raw.until(lambda item: b'"type":"gap"' in item.data)
        assert gap.number is None
        session = (await client.create_session(workspace, "later")).id
        first = await raw.until(lambda item: item.number is not None)
        assert first.number == newest + 1
        assert session.encode() in first.data
        assert sum(b'"type":"gap"' in item.data for item in raw.events) == 1
        raw.close()


async def test_r6_snapshot_and_following_events_are_complete() -> None:
    """R6: taken during a response, with the text streamed so far."""
    model = FeedModel()
    async with server_directory() as directory, in_process_server(directory, model) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        await send_prompt(client, workspace, session, "go", "r1")
        async with client.events(workspace, since=0) as events:
            for word in ("one ", "two "):
                model.words.put_nowait(word)
            await read_until(events, lambda item: b"two " in repr(item).encode())
            snapshot = await client.snapshot(workspace, session)
            assert [text_of(item) for item in snapshot.messages] == ["go", "one two "]
            assert [run.state for run in snapshot.runs] == ["active"]
            model.words.put_nowait("three")
            model.words.put_nowait(None)
            items = await read_until(events, run_ended("r1"))
        log = await log_of(server, workspace)
        async with client.events(workspace, since=snapshot.cursor) as after:
            rest = await read_until(after, run_ended("r1"))
        assert [item.number for item in rest if item.number] == [
            number for number, _ in log if number > snapshot.cursor
        ]
        last = items[-1].event
        assert isinstance(last, RunCompleteEvent)
        assert last.change.object.text == "one two three"
        again = await client.snapshot(workspace, session)
        assert (again.cursor, [text_of(item) for item in again.messages]) == (log[-1][0], ["go", "one two three"])


async def test_c46_late_reader_receives_every_run_end() -> None:
    """C-46: from the log, long after; including a reader that never read a byte and was disconnected."""
    async with server_directory() as directory, in_process_server(directory, EchoModel()) as server:
        client, workspace = await server.open_workspace()
        sessions = [(await client.create_session(workspace, f"s{number}")).id for number in range(4)]
        _, stalled = await open_raw(server.address)
        stalled.write(f"GET /v1/workspaces/{workspace}/events?since=0 HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        stalled.transport.pause_reading()  # type: ignore[attr-defined]
        runs = [f"r{number}" for number in range(16)]
        for number, run in enumerate(runs):
            await send_prompt(client, workspace, sessions[number % 4], "long " * 600, run)
        await collect_run_ends(client, workspace, runs)
        stalled.transport.abort()
        late = await server.client()
        ends = await collect_run_ends(late, workspace, runs)
        assert sorted(end.run_id for end in ends) == sorted(runs)
        assert {end.outcome for end in ends} == {"completed"}
        assert (await late.get_run(workspace, RunId("r0"))).outcome == "completed"


async def test_heartbeats_keep_a_quiet_stream_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A comment in the resumable form, a blank line in the other."""
    monkeypatch.setattr(stream_module, "HEARTBEAT_SECONDS", 0.01)
    async with server_directory() as directory, in_process_server(directory) as server:
        _, workspace = await server.open_workspace()
        numbered = await RawStream.open(server.address, f"/v1/workspaces/{workspace}/events?since=0")
        whole = await RawStream.open(server.address, f"/v1/workspaces/{workspace}/events")
        while numbered.raw.count(b": ") < 5 or whole.raw.count(b"\n") < 5:
            await (numbered.more() if numbered.raw.count(b": ") < 5 else whole.more())
        assert set(whole.raw) == set(b"\n")
        output = {piece for piece in numbered.raw.split(b"\n\n") if piece and not piece.startswith(b"data: ")}
        assert output == {HEARTBEAT.strip()}
        numbered.close()
        whole.close()


async def test_stream_of_retired_client_is_refused_without_trace() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        other, _ = await server.open_workspace()
        await other.retire_client()
        bus = server.manager.handle(workspace).workspace.bus
        readers = bus._readers
        answer = await exchange(
            server.address, raw_request(f"/v1/workspaces/{workspace}/events?since=0&client_id={other.client_id}")
        )
        assert answer.status == 409
        assert bus._readers == readers
        await client.health()


async def test_r11_disconnected_reader_is_removed() -> None:
    """R11: its tasks, subscriptions and claims end with it."""
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        bus = server.manager.handle(workspace).workspace.bus
        before = len(asyncio.all_tasks())
        raws = [await RawStream.open(server.address, f"/v1/workspaces/{workspace}/events?since=0") for _ in range(30)]
        for raw in raws:
            raw.close()
        await until(lambda: not bus._readers and len(asyncio.all_tasks()) <= before)
        await client.health()
