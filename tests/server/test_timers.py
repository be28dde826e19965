"""Timers of the server from each initial state, on a clock moved by the test: too early, and due.

The durations are the defaults.
"""

import asyncio
import json
from pathlib import Path

import pytest

from holdfast.domain.events import ToolOutput, ToolOutputEvent
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId, WorkspaceId
from holdfast.http11.sse import HEARTBEAT
from holdfast.server.web import web_app
from holdfast.server.workspace_manager import GracePeriods
from holdfast.testing.gates import until
from server.approval_client import approval_client, notices
from server.clock import Clock
from server.helpers import (
    FeedModel,
    RawStream,
    Server,
    exchange,
    in_process_server,
    open_raw,
    raw_request,
    send_prompt,
    server_directory,
)

CREATE, DETACH, LINGER, BEAT, ASK = 30.0, 10.0, 60.0, 15.0, 86_400.0


def test_the_durations_are_these() -> None:
    assert (GracePeriods().create, GracePeriods().detach, GracePeriods().linger, GracePeriods().check_interval) == (
        CREATE,
        DETACH,
        LINGER,
        2.0,
    )


async def attached(server: Server, workspace: str, client: str, since: str = "since=0&") -> RawStream:
    return await RawStream.open(server.address, f"/v1/workspaces/{workspace}/events?{since}client_id={client}")


async def wait_until_closed(server: Server) -> None:
    await until(lambda: not server.manager.handles)


async def test_workspace_without_attached_client() -> None:
    """From its creation; a second create by the same client restarts the period, one by another client does not."""
    async with server_directory() as directory, in_process_server(directory) as server:
        clock = Clock()
        client, _ = await server.open_workspace()
        await clock.forward(CREATE - 1, server.address)
        assert len(server.manager.handles) == 1
        await client.create_workspace(directory.project())
        await clock.forward(CREATE - 1, server.address)
        assert len(server.manager.handles) == 1
        await clock.forward(2)
        await wait_until_closed(server)


@pytest.mark.parametrize("form", ["since=0&", ""], ids=["resumable", "whole"])
async def test_a_workspace_whose_last_stream_has_ended(form: str) -> None:
    """A stream has no limit; the period after the last stream is shorter than after a create."""
    async with server_directory() as directory, in_process_server(directory) as server:
        clock = Clock()
        client, workspace = await server.open_workspace()
        one = await attached(server, workspace, client.client_id, form)
        two = await attached(server, workspace, client.client_id, form)
        await clock.forward(CREATE + DETACH, server.address)
        one.close()
        await until(lambda: _streams(server, workspace, client.client_id) == 1)
        await clock.forward(CREATE + DETACH, server.address)
        assert len(server.manager.handles) == 1, "the other one is still open"
        two.close()
        await until(lambda: _streams(server, workspace, client.client_id) == 0)
        await clock.forward(DETACH - 1, server.address)
        again = await attached(server, workspace, client.client_id, form)
        await clock.forward(CREATE + DETACH, server.address)
        assert len(server.manager.handles) == 1, "who comes back in time has not left"
        again.close()
        await until(lambda: _streams(server, workspace, client.client_id) == 0)
        await clock.forward(DETACH - 1, server.address)
        assert len(server.manager.handles) == 1
        await clock.forward(2)
        await wait_until_closed(server)


def _streams(server: Server, workspace: WorkspaceId, client: str) -> int:
    claims = server.manager.presence.workspaces[workspace].claims
    return next((claim.streams for name, claim in claims.items() if name == client), -1)


@pytest.mark.parametrize("before", ["nobody ever came", "a workspace was closed", "a create was refused"])
async def test_unused_server_started_by_client(before: str) -> None:
    async with server_directory() as directory, in_process_server(directory, leaves_when_idle=True) as server:
        clock = Clock()
        assert server.over is not None
        if before == "a workspace was closed":
            await clock.forward(LINGER - 1, server.address)
            client, workspace = await server.open_workspace()
            await clock.forward(CREATE - 1, server.address)
            await client.leave_workspace(workspace)
            await wait_until_closed(server)
        elif before == "a create was refused":
            await clock.forward(LINGER - 1, server.address)
            client = await server.client()
            with pytest.raises(Exception, match="not a directory"):
                await client.create_workspace(str(directory.root / "nothing"))
            await clock.forward(2)
            await asyncio.wait_for(asyncio.shield(server.over), 20)
            return
        await clock.forward(LINGER - 1, server.address)
        assert not server.over.done()
        await clock.forward(2)
        await asyncio.wait_for(asyncio.shield(server.over), 20)


async def test_server_started_by_hand_stays() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        clock = Clock()
        await clock.forward(10 * LINGER, server.address)
        assert server.over is not None
        assert not server.over.done()


@pytest.mark.parametrize("reader", ["never came", "came and left", "is there"])
async def test_unanswered_approval(reader: str) -> None:
    """It waits for a day while no client is attached, whether or not one ever was, and without limit while one is."""
    async with approval_client(graces=GracePeriods(create=1e9, detach=1e9)) as here:
        clock, address = Clock(), here.server.address
        session = await here.session()
        if reader != "never came":
            stream = await attached(here.server, here.workspace, here.client.client_id)
            if reader == "came and left":
                stream.close()
                await until(lambda: _streams(here.server, here.workspace, here.client.client_id) == 0)
        await here.bash(session, "line")
        await here.pending_permissions()
        await clock.forward(ASK - 1, address)
        assert len(await here.client.pending_permissions(here.workspace)) == 1
        await clock.forward(2, address)
        if reader == "is there":
            assert len(await here.client.pending_permissions(here.workspace)) == 1
            stream.close()
            await until(lambda: _streams(here.server, here.workspace, here.client.client_id) == 0)
            await clock.forward(ASK - 1, address)
            assert len(await here.client.pending_permissions(here.workspace)) == 1, "the whole day begins now"
            await clock.forward(2, address)
        await here.pending_permissions(0)
        (run,) = await here.client.list_runs(here.workspace)
        last = notices(await here.events_until_end(run))[-1]  # type: ignore[arg-type]
        assert (last.denied, last.withdrawn, here.ran) == (True, True, [])


async def test_approval_timeout_is_read_when_requested() -> None:
    async with approval_client(graces=GracePeriods(create=1e9, detach=1e9)) as here:
        clock, address = Clock(), here.server.address
        await here.client.config_set(here.workspace, "options.ask_timeout", 100)
        await here.bash(await here.session(), "line")
        await here.pending_permissions()
        await clock.forward(99, address)
        assert len(await here.client.pending_permissions(here.workspace)) == 1
        await clock.forward(2, address)
        await here.pending_permissions(0)


@pytest.mark.parametrize("form", ["since=0", ""], ids=["resumable", "whole"])
async def test_idle_stream_gets_heartbeat(form: str) -> None:
    """A heartbeat after the period, also while events occur that this form omits; none before."""
    async with server_directory() as directory, in_process_server(directory, graces=GracePeriods(create=1e9)) as server:
        clock = Clock()
        client, workspace = await server.open_workspace()
        stream = await RawStream.open(server.address, f"/v1/workspaces/{workspace}/events?{form}")
        session = (await client.create_session(workspace)).id
        await stream.until(lambda item: b'"session"' in item.data)
        sign = HEARTBEAT if form else b"\n"
        for _ in range(3):
            await until(lambda: server.manager.handle(workspace).workspace.bus.waiting == 1)
            before = len(stream.raw)
            for _ in range(7):
                await clock.forward(2, server.address)
                if not form:
                    await _publish_unknown_event(server, workspace, session)
            assert len(stream.raw) == before
            await clock.forward(2)
            while len(stream.raw) == before:
                await stream.more()
            assert stream.raw[before:] == sign
        stream.close()


async def _publish_unknown_event(server: Server, workspace: str, session: SessionId) -> None:
    """Publish an event that stock clients do not know."""
    output = ToolOutput(session, MessageId("m"), ToolCallId("c"), 0, "text")
    handle = server.manager.handle(workspace)
    handle.owned.engine.outlet.publish_live(ToolOutputEvent(output))
    await until(lambda: handle.workspace.bus.waiting == 1)


@pytest.mark.parametrize(("form", "seconds"), [("?since=0", 30.0), ("", 60.0)], ids=["resumable", "whole"])
async def test_stalled_reader_timeout(form: str, seconds: float) -> None:
    """It is disconnected after the timeout, and not before; no other reader waits for it."""
    async with server_directory() as directory, in_process_server(directory, graces=GracePeriods(create=1e9)) as server:
        clock = Clock()
        client, workspace = await server.open_workspace()
        _, stalled = await open_raw(server.address)
        stalled.transport.pause_reading()  # type: ignore[attr-defined]
        stalled.write(raw_request(f"/v1/workspaces/{workspace}/events{form}"))
        bus = server.manager.handle(workspace).workspace.bus
        await until(lambda: bus.waiting == 1)
        for _ in range(3):
            await client.create_session(workspace, "x" * 500_000)
        other = await RawStream.open(server.address, f"/v1/workspaces/{workspace}/events?since=2")
        await other.until(lambda item: item.number == 3)
        await until(lambda: bus.waiting == 1)
        assert bus._readers == 2
        await clock.forward(seconds - 1, server.address)
        assert bus._readers == 2
        await clock.forward(2, server.address)
        await until(lambda: bus._readers == 1)
        stalled.transport.abort()
        other.close()


async def test_server_without_data_directory_exits_when_unused() -> None:
    """A run whose end cannot be stored would keep it running forever."""
    model = FeedModel()
    async with (
        server_directory() as directory,
        in_process_server(directory, model, leaves_when_idle=True, graces=GracePeriods(check_interval=0.01)) as server,
    ):
        clock = Clock()
        client, workspace = await server.open_workspace()
        stream = await attached(server, workspace, client.client_id)
        session = (await client.create_session(workspace)).id
        await send_prompt(client, workspace, session, "go", RunId("r1"))
        await model.asked.wait()
        directory.data.rename(directory.data.with_name("away"))
        model.words.put_nowait(None)
        await until(lambda: server.manager.storage_problem)
        await clock.forward(2 * LINGER, server.address)
        assert server.over is not None
        assert not server.over.done(), "somebody is there who may restore it"
        stream.close()
        await until(lambda: _streams(server, workspace, client.client_id) == 0)
        await clock.forward(DETACH + 1, server.address)
        assert await server.manager.check_storage()
        await clock.forward(LINGER - 1, server.address)
        assert not server.over.done()
        await clock.forward(2)
        await asyncio.wait_for(asyncio.shield(server.over), 20)


async def test_a_server_whose_data_directory_is_restored_stays() -> None:
    async with (
        server_directory() as directory,
        in_process_server(directory, leaves_when_idle=True, graces=GracePeriods(check_interval=0.01)) as server,
    ):
        clock = Clock()
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace)).id
        directory.data.rename(directory.data.with_name("away"))
        await until(lambda: server.manager.storage_problem)
        directory.data.with_name("away").rename(directory.data)
        await until(lambda: not server.manager.storage_problem)
        await clock.forward(CREATE - 1, server.address)
        await send_prompt(client, workspace, session, "go", RunId("r1"))


async def test_saved_pages_are_written_periodically(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When a page enters, and while it is used at most every ten minutes."""
    monkeypatch.setattr(web_app, "BUNDLE", tmp_path)
    now = [1_000_000.0]
    async with server_directory() as directory, in_process_server(directory) as server:
        opened = await server.application.web.open()
        opened._clock = opened.app._clock = lambda: now[0]
        opened._noted = now[0]
        assert not (directory.data / "web.json").exists()
        token = opened.exchange(opened.link(()).code).token
        headers = [f"Host: 127.0.0.1:{opened.app.port}", f"Authorization: Bearer {token}"]
        address = server.address._replace(path="", host="127.0.0.1", port=opened.app.port)
        seen = []
        for later in (0, 600, 601, 602, 1201, 1202):
            now[0] = 1_000_000.0 + later
            assert (await exchange(address, raw_request("/v1/health", headers=headers))).status == 200
            seen.append(json.loads((directory.data / "web.json").read_text())["pages"][0]["seen"] - 1_000_000)
        assert seen == [0, 0, 601, 601, 601, 1202]
