"""Presence over the wire: attach, detach, return, and the server that exits when unused."""

import asyncio
import os

import pytest

from holdfast.client.errors import ServerProblem
from holdfast.client.events import StreamEvent
from holdfast.domain.errors import StorageUnavailable
from holdfast.domain.events import AttachedEvent
from holdfast.domain.ids import RunId, SessionId
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.runtime.workspace import Workspace
from holdfast.server.presence import Stop, WorkBegan
from holdfast.server.workspace_manager import GracePeriods
from holdfast.testing.gates import Gate, GatedModel, until
from server.helpers import (
    RawStream,
    Server,
    collect_run_ends,
    in_process_server,
    read_until,
    run_ended,
    send_prompt,
    server_directory,
)

_SHORT = GracePeriods(create=60.0, detach=0.02, linger=0.02)
"""Connected clients have enough time to act; departed clients are removed quickly."""


def streams(server: Server) -> int:
    claims = [claim for here in server.manager.presence.workspaces.values() for claim in here.claims.values()]
    return sum(claim.streams for claim in claims)


async def test_unattached_workspace_closes() -> None:
    """Created and never attached to: only the hold of the create keeps it."""
    async with (
        server_directory() as directory,
        in_process_server(directory, graces=GracePeriods(create=0.02)) as server,
    ):
        await server.open_workspace()
        await until(lambda: not server.manager.handles)


async def test_reopened_workspace_keeps_id_and_numbers() -> None:
    async with server_directory() as directory, in_process_server(directory, graces=_SHORT) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        cursor = (await client.snapshot(workspace)).cursor
        await client.leave_workspace(workspace)
        await until(lambda: not server.manager.handles)
        with pytest.raises(ServerProblem) as caught:
            await client.get_workspace(workspace)
        assert caught.value.status == 404
        again = await client.create_workspace(directory.project())
        assert again.id == workspace
        raw = await RawStream.open(
            server.address, f"/v1/workspaces/{workspace}/events?since={cursor}&client_id={client.client_id}"
        )
        await send_prompt(client, workspace, session, "go", "r1")
        first = await raw.until(lambda item: item.number is not None)
        assert first.number == cursor + 1
        raw.close()


async def test_stream_keeps_workspace_open_until_its_end() -> None:
    async with server_directory() as directory, in_process_server(directory, graces=_SHORT) as server:
        client, workspace = await server.open_workspace()
        path = f"/v1/workspaces/{workspace}/events?since=0&client_id={client.client_id}"
        raw = await RawStream.open(server.address, path)
        other = await RawStream.open(server.address, path)
        session = (await client.create_session(workspace, "s")).id
        await client.set_current_session(workspace, session)
        assert (await client.get_session(workspace, session)).attached_clients == 1
        raw.close()
        await until(lambda: streams(server) == 1)
        assert (await client.get_session(workspace, session)).attached_clients == 1
        await client.set_current_session(workspace, SessionId(""))
        assert (await client.get_session(workspace, session)).attached_clients == 0
        other.close()
        await until(lambda: not server.manager.handles)


async def test_a_release_closes_at_once_and_a_run_keeps_the_workspace() -> None:
    """C-39: runs outlive their clients."""
    model = GatedModel(ScriptedModel(lambda _: Step((Say("a b c"),))))
    model.before.shut()
    async with (
        server_directory() as directory,
        in_process_server(directory, model, graces=GracePeriods(create=1000)) as server,
    ):
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        await send_prompt(client, workspace, session, "go", "r1")
        await client.leave_workspace(workspace)
        await client.leave_workspace(workspace)
        assert (await client.get_run(workspace, RunId("r1"))).state in ("accepted", "active")
        model.before.open()
        await until(lambda: not server.manager.handles)
        assert (await client.create_workspace(directory.project())).id == workspace
        assert (await client.get_run(workspace, RunId("r1"))).outcome == "completed"
        await client.leave_workspace(workspace)
        await until(lambda: not server.manager.handles)


async def test_a_retired_client_is_refused_for_good() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        stays, _ = await server.open_workspace()
        await client.retire_client()
        await client.retire_client()
        for _ in range(2):
            with pytest.raises(ServerProblem) as caught:
                await client.create_workspace(directory.project())
            assert caught.value.status == 409
        with pytest.raises(ServerProblem) as caught:
            await client.set_current_session(workspace, SessionId("s"))
        assert caught.value.status == 409
        await stays.get_workspace(workspace)


async def test_concurrent_creates_share_workspace_with_first_flags() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        clients = [await server.client() for _ in range(10)]
        found = await asyncio.gather(
            *(
                client.create_workspace(directory.project(), yolo=number == 0, env=(f"N={number}",))
                for number, client in enumerate(clients)
            )
        )
        assert len({item.id for item in found}) == 1
        assert len({(item.yolo, item.env) for item in found}) == 1
        assert len(server.manager.handles) == 1
        os.symlink(directory.project(), directory.root / "link")
        assert (await clients[0].create_workspace(str(directory.root / "link"))).id == found[0].id


async def test_relative_path_is_resolved_against_client_directory() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client = await server.client()
        directory.project("sub")
        found = await client.create_workspace("sub", env=("A=1", f"PWD={directory.root}"))
        assert found.path == directory.project("sub")
        with pytest.raises(ServerProblem) as caught:
            await client.create_workspace("sub", env=("A=1",))
        assert caught.value.status == 400


async def test_create_during_close_waits_and_reopens() -> None:
    """With the same id and continued numbers, and no client keeps a closed workspace."""
    async with (
        server_directory() as directory,
        in_process_server(directory, graces=GracePeriods(create=1000)) as server,
    ):
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        for number in range(10):
            other = await server.client()
            _, opened = await asyncio.gather(
                client.leave_workspace(workspace), other.create_workspace(directory.project())
            )
            assert opened.id == workspace
            await send_prompt(other, workspace, session, "go", f"r{number}")
            async with other.events(workspace, since=0) as events:
                await read_until(events, run_ended(f"r{number}"))
            client = other
        await collect_run_ends(client, workspace, [f"r{number}" for number in range(10)])


async def test_work_during_close_reopens_workspace_over_the_wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise the work would wait until the next start."""
    async with server_directory() as directory, in_process_server(directory, graces=_SHORT) as server:
        client, workspace = await server.open_workspace()
        manager, gate = server.manager, Gate()
        close = manager.services.close_workspace

        async def held(closing: Workspace) -> None:
            await gate()
            await close(closing)

        monkeypatch.setattr(manager.services, "close_workspace", held)
        await client.leave_workspace(workspace)
        await gate.reached.wait()
        manager.apply(WorkBegan(workspace))
        monkeypatch.undo()
        gate.open()
        await until(lambda: workspace not in manager.presence.workspaces)
        assert not manager.handles


async def test_workspace_can_be_reopened_after_failed_close(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A disk may be full at that moment. Later prompts in that directory must not be affected."""
    async with server_directory() as directory, in_process_server(directory, graces=_SHORT) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id

        async def refused(*_: object) -> None:
            raise StorageUnavailable

        monkeypatch.setattr(server.manager.ledger, "close_workspace", refused)
        await client.leave_workspace(workspace)
        await until(lambda: not server.manager.handles)
        monkeypatch.undo()
        assert (await client.create_workspace(directory.project())).id == workspace
        await send_prompt(client, workspace, session, "go", "r1")
        await collect_run_ends(client, workspace, ["r1"])


async def test_server_closes_each_workspace_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A close that uses its whole timeout uses it once, even if it fails."""
    closed: list[str] = []

    async def refused(workspace: Workspace) -> None:
        closed.append(workspace.record.id)
        raise StorageUnavailable

    async with server_directory() as directory, in_process_server(directory) as server:
        _, workspace = await server.open_workspace()
        monkeypatch.setattr(Workspace, "close", refused)
    assert closed == [workspace]


async def test_server_started_by_client_exits_when_unused() -> None:
    async with (
        server_directory() as directory,
        in_process_server(directory, graces=_SHORT, leaves_when_idle=True) as server,
    ):
        assert server.over is not None
        await asyncio.wait_for(asyncio.shield(server.over), 10)
        assert server.manager.presence.leaving


async def test_a_run_keeps_a_server_that_a_client_started() -> None:
    model = GatedModel(ScriptedModel(lambda _: Step((Say("a b c"),))))
    model.before.shut()
    graces = GracePeriods(create=60.0, detach=0.01, linger=0.3)
    async with (
        server_directory() as directory,
        in_process_server(directory, model, graces=graces, leaves_when_idle=True) as server,
    ):
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        await send_prompt(client, workspace, session, "go", "r1")
        await client.retire_client()
        await until(lambda: not server.manager.presence.workspaces[workspace].claims)
        assert server.over is not None
        assert not server.over.done()
        model.before.open()
        await asyncio.wait_for(asyncio.shield(server.over), 10)


async def test_exiting_server_refuses_clients() -> None:
    """503, so that clients start a new server."""
    async with server_directory() as directory, in_process_server(directory) as server:
        client, _ = await server.open_workspace()
        leave, server.manager.stopping = server.manager.stopping.set, asyncio.Event()
        server.manager.apply(Stop())
        with pytest.raises(ServerProblem) as caught:
            await client.create_workspace(directory.project())
        assert caught.value.status == 503
        leave()


async def test_stop_is_accepted_and_stock_shutdown_refused() -> None:
    """A shutdown by a stock client is always refused; ours skips waiting only when forced."""
    model = GatedModel(ScriptedModel(lambda _: Step((Say("a b c"),))))
    model.before.shut()
    async with server_directory() as directory, in_process_server(directory, model) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        await send_prompt(client, workspace, session, "go", "r1")
        for command, status in (("shutdown", 409), ("shutdown_if_idle", 409), ("stop", 409), ("other", 400)):
            with pytest.raises(ServerProblem) as caught:
                await client.control(command)
            assert caught.value.status == status
        await client.control("stop", force=True)
        assert server.over is not None
        await asyncio.wait_for(asyncio.shield(server.over), 10)
    async with server_directory() as directory, in_process_server(directory) as server:
        await (await server.client()).control("stop")
        assert server.over is not None
        await asyncio.wait_for(asyncio.shield(server.over), 10)


async def test_viewers_of_session_are_published() -> None:
    """By an event without a number; stock clients, which do not know it, do not receive it."""
    async with server_directory() as directory, in_process_server(directory) as server:
        one, workspace = await server.open_workspace()
        two, _ = await server.open_workspace()
        session = (await one.create_session(workspace, "s")).id
        stock = await RawStream.open(server.address, f"/v1/workspaces/{workspace}/events")
        received: list[int] = []

        def count_of(item: StreamEvent) -> bool:
            if isinstance(item.event, AttachedEvent):
                assert item.number is None
                assert item.event.change.object.session_id == session
                received.append(item.event.change.object.clients)
            return isinstance(item.event, AttachedEvent)

        async with one.events(workspace, since=0) as events:
            await events.__anext__()
            await one.set_current_session(workspace, session)
            await read_until(events, count_of)
            async with two.events(workspace, since=0) as others:
                await others.__anext__()
                await two.set_current_session(workspace, session)
                await read_until(events, count_of)
            await read_until(events, count_of)
            await one.create_session(workspace, "after all that")
        await stock.until(lambda item: b"after all that" in item.data)
        stock.close()
        assert received == [1, 2, 1]
        assert b'"type":"attached"' not in stock.raw
