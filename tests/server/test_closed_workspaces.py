"""R11: memory of a server after its workspaces have been closed."""

import asyncio
import gc
from collections import Counter

import pytest

from holdfast.domain.events import RunCompleteEvent
from holdfast.server import workspace_manager
from holdfast.server.workspace_manager import release_memory
from server.helpers import EchoModel, Server, collect_run_ends, in_process_server, send_prompt, server_directory

TIMEOUT = 20.0
NOT_THE_SERVERS = ("holdfast.client.", "holdfast.http11.", "holdfast.testing.")


def _objects() -> Counter[str]:
    """Count the objects of our own classes that the collector knows."""
    gc.collect()
    kinds = Counter(type(item) for item in gc.get_objects())
    return Counter(
        {
            f"{kind.__module__}.{kind.__qualname__}": count
            for kind, count in kinds.items()
            if str(kind.__module__).startswith("holdfast.") and not str(kind.__module__).startswith(NOT_THE_SERVERS)
        }
    )


async def _open_and_close(server: Server, names: list[str], released: asyncio.Event) -> None:
    """Open workspaces, work in them with an open stream, and close them."""
    for name in names:
        client, workspace = await server.open_workspace(name)
        session = (await client.create_session(workspace, name)).id
        runs = [f"r{number}" for number in range(3)]
        async with client.events(workspace, since=0):
            for run in runs:
                await send_prompt(client, workspace, session, "words=5", run)
            await collect_run_ends(client, workspace, runs)
        released.clear()
        await client.leave_workspace(workspace)
        await client.close()
        await asyncio.wait_for(released.wait(), TIMEOUT)


async def test_r11_a_closed_workspace_leaves_no_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    released = asyncio.Event()

    def release() -> None:
        release_memory()
        released.set()

    monkeypatch.setattr(workspace_manager, "_RELEASE_SECONDS", 0.0)
    monkeypatch.setattr(workspace_manager, "release_memory", release)
    model = EchoModel()
    async with server_directory() as directory, in_process_server(directory, model) as server:
        await _open_and_close(server, ["warm"], released)
        model.requests.clear()
        before = _objects()
        await _open_and_close(server, ["a", "b", "c"], released)
        model.requests.clear()
        more = _objects() - before
    assert not {name: count for name, count in more.items() if count > 2}, "fewer than one for each workspace"


async def test_r11_frames_sent_to_every_reader_are_dropped() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        bus = server.manager.handle(workspace).workspace.bus
        for run in ("a", "b"):
            async with client.events(workspace, since=0) as events:
                await send_prompt(client, workspace, session, "words=50", run)
                async for item in events:
                    if isinstance(item.event, RunCompleteEvent):
                        break
                async with asyncio.timeout(TIMEOUT):
                    while bus.waiting < 1:
                        await client.health()
                assert bus.held == 0, "the reader has everything"
        await send_prompt(client, workspace, session, "words=50", "c")
        await collect_run_ends(client, workspace, ["c"])
        async with asyncio.timeout(TIMEOUT):
            while bus.held:
                await client.health()
