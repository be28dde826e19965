"""Load: many prompts, readers and stalled readers; the stream form of stock clients; shutdown."""

import asyncio
import json
import resource

import pytest

from holdfast.domain.ids import RunId
from holdfast.server.streams import event_stream as stream_module
from holdfast.testing.gates import until
from server.helpers import (
    FeedModel,
    RawStream,
    collect_run_ends,
    in_process_server,
    open_raw,
    raw_request,
    read_until,
    run_ended,
    send_prompt,
    server_directory,
)

_LONG = ("x" * 8000 + " ") * 10


def raise_descriptor_limit() -> None:
    """Raise the descriptor limit: both ends of every connection are in this process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 4096 if hard == resource.RLIM_INFINITY else min(4096, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def ends_of(raw: RawStream, most: int) -> int:
    """Read and discard a stream, counting run ends, until there are `most`."""
    ends = 0
    while ends < most and (data := await raw.reader.read(262_144)):
        ends += sum(b'"type":"run_complete"' in item.data for item in raw.sse.feed(raw.response.feed(data)))
    return ends


async def test_c51_hundred_sessions_and_one_busy_session_after_start() -> None:
    """C-51: all accepted, all end, in two workspaces, and the server survives."""
    async with server_directory() as directory, in_process_server(directory) as server:
        one, first = await server.open_workspace("one")
        two, second = await server.open_workspace("two")
        homes = [(one, first), (two, second)]
        sessions = await asyncio.gather(
            *(homes[number % 2][0].create_session(homes[number % 2][1], f"s{number}") for number in range(100))
        )
        crowded = (await one.create_session(first, "crowded")).id
        posts = [
            send_prompt(*homes[number % 2], session.id, f"prompt {number}", f"r{number}")
            for number, session in enumerate(sessions)
        ]
        posts += [send_prompt(one, first, crowded, f"crowd {number}", f"c{number}") for number in range(20)]
        accepted = await asyncio.gather(*posts)
        assert len({item.run_id for item in accepted}) == 120
        mine = [f"r{number}" for number in range(0, 100, 2)] + [f"c{number}" for number in range(20)]
        ends = await collect_run_ends(one, first, mine)
        ends += await collect_run_ends(two, second, [f"r{number}" for number in range(1, 100, 2)])
        assert len(ends) == 120
        assert {end.outcome for end in ends} == {"completed"}
        assert {end.text for end in ends if end.run_id == "r7"} == {"echo: prompt 7"}
        await one.health()


async def test_c52_prompts_of_client_run_in_order_of_202() -> None:
    """C-52."""
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        runs = [f"r{number}" for number in range(60)]
        for run in runs:
            await send_prompt(client, workspace, session, run, run)
        ends = await collect_run_ends(client, workspace, runs)
        assert [end.run_id for end in ends] == runs


@pytest.mark.parametrize("form", ["?since=0", ""])
async def test_c59_last_update_precedes_run_end_with_its_text(form: str) -> None:
    """C-59: in both forms of the stream, for each of many runs."""
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        raw = await RawStream.open(server.address, f"/v1/workspaces/{workspace}/events{form}")
        sessions = [(await client.create_session(workspace, f"s{number}")).id for number in range(5)]
        for number in range(50):
            await send_prompt(client, workspace, sessions[number % 5], f"prompt number {number}", f"r{number}")
        last: dict[str, str] = {}
        ended: set[str] = set()
        seen = 0
        while len(ended) < 50:
            await raw.more()
            for event in raw.events[seen:]:
                reported = json.loads(event.data)
                inner = reported["payload"].get("payload", {})
                if reported["type"] == "message" and inner["role"] == "assistant":
                    assert inner["run_id"] not in ended
                    last[inner["run_id"]] = "".join(
                        part["data"]["text"] for part in inner["parts"] if part["type"] == "text"
                    )
                if reported["type"] == "run_complete":
                    assert last[inner["run_id"]] == inner["text"] == f"echo: prompt number {inner['run_id'][1:]}"
                    ended.add(inner["run_id"])
            seen = len(raw.events)
        raw.close()


async def test_c50_stock_stream_has_bounded_number_of_whole_messages() -> None:
    """C-50: `data:` lines and blank lines, no numbers, no deltas, and O(n log n) bytes per response."""
    model = FeedModel()
    async with server_directory() as directory, in_process_server(directory, model) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        raw = await RawStream.open(server.address, f"/v1/workspaces/{workspace}/events")
        async with client.events(workspace, since=0) as events:
            await send_prompt(client, workspace, session, "go", "r1")
            size = 0
            for number in range(600):
                model.words.put_nowait(f"word{number:06} ")
                size += 11
                if number % 20 == 0:
                    await read_until(events, lambda item, last=f"word{number:06}": last in repr(item))  # type: ignore[misc]
            model.words.put_nowait(None)
            await read_until(events, run_ended("r1"))
        await raw.until(lambda item: b'"run_complete"' in item.data)
        assert raw.response.head is not None
        headers = raw.response.head.headers
        assert headers["content-type"] == "text/event-stream"
        assert headers["connection"] == "close"
        assert "transfer-encoding" not in headers
        assert "content-length" not in headers
        lines = set(raw.raw.split(b"\n")) - {b""}
        assert all(line.startswith(b'data: {"type":') for line in lines)
        kinds = {json.loads(item.data)["type"] for item in raw.events}
        assert kinds <= {"message", "session", "agent_event", "run_complete", "file"}
        texts = [
            "".join(part["data"]["text"] for part in inner["parts"] if part["type"] == "text")
            for item in raw.events
            if (reported := json.loads(item.data))["type"] == "message"
            and (inner := reported["payload"]["payload"])["role"] == "assistant"
        ]
        assert texts == sorted(texts, key=len)
        assert len(texts[-1]) == size
        assert sum(map(len, texts)) < 20 * size
        raw.close()


async def test_fifty_open_streams_end_properly_at_shutdown() -> None:
    """On shutdown every stream ends properly within a second; stalled ones are not awaited."""
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        path = f"/v1/workspaces/{workspace}/events"
        raws = [await RawStream.open(server.address, path + ("?since=0" if number % 2 else "")) for number in range(50)]
        stalled = []
        for _ in range(5):
            _, writer = await open_raw(server.address)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(raw_request(path + "?since=0"))
            stalled.append(writer)
        await send_prompt(client, workspace, session, _LONG * 2, "r1")
        await asyncio.gather(*(raw.until(lambda item: b'"type":"run_complete"' in item.data) for raw in raws))
        began = asyncio.get_running_loop().time()
        await asyncio.gather(server.stop(), *(raw.rest() for raw in raws))
        took = asyncio.get_running_loop().time() - began
        assert took < 1.0
        for raw in raws:
            assert raw.is_over
            raw.close()
        for writer in stalled:
            writer.transport.abort()


_LIVE, _STALLED = 500, 100


async def test_stalled_readers_are_disconnected_without_delaying_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """R6, R11: 500 readers read, 100 do not; every active reader receives every end while the stalled ones are
    connected; memory stays bounded; then the stalled ones are disconnected.
    """
    raise_descriptor_limit()
    monkeypatch.setattr(stream_module, "WRITE_SECONDS", 3600.0)
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        path = f"/v1/workspaces/{workspace}/events?since=0"
        stalled = []
        for _ in range(_STALLED):
            _, writer = await open_raw(server.address)
            writer.transport.pause_reading()  # type: ignore[attr-defined]
            writer.write(raw_request(path))
            stalled.append(writer)
        raws = [await RawStream.open(server.address, path) for _ in range(_LIVE)]
        bus = server.manager.handle(workspace).workspace.bus
        await until(lambda: bus._readers == _LIVE + _STALLED)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for number in range(2):
            await send_prompt(client, workspace, session, _LONG, f"r{number}")
        async with asyncio.timeout(50):
            assert await asyncio.gather(*(ends_of(raw, 2) for raw in raws)) == [2] * _LIVE
        assert (await client.get_run(workspace, RunId("r1"))).outcome == "completed"
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400 * 1024
        for raw in raws:
            raw.close()
        for writer in stalled:
            writer.transport.abort()
        await until(lambda: bus._readers == 0)


async def test_stalled_reader_is_disconnected(monkeypatch: pytest.MonkeyPatch) -> None:
    """R6: after its timeout, and no other reader."""
    monkeypatch.setattr(stream_module, "WRITE_SECONDS", 0.3)
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        path = f"/v1/workspaces/{workspace}/events?since=0"
        _, writer = await open_raw(server.address)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(raw_request(path))
        raw = await RawStream.open(server.address, path)
        bus = server.manager.handle(workspace).workspace.bus
        await until(lambda: bus._readers == 2)
        for number in range(6):
            await send_prompt(client, workspace, session, _LONG, f"r{number}")
        assert await ends_of(raw, 6) == 6
        await until(lambda: bus._readers == 1)
        raw.close()
        writer.transport.abort()
