"""Resources are released when the next step fails: descriptors, threads, tasks, locks, sockets, claims."""

import asyncio
import os
import socket
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.client import server_launcher
from holdfast.client.errors import ServerProblem
from holdfast.client.server_check import VersionMismatch
from holdfast.client.server_launcher import ServerLocation, find_or_start
from holdfast.client.sync_client import ServerInfo, SyncClient
from holdfast.domain.errors import HoldfastError
from holdfast.engine.recovery import recover
from holdfast.extensions.extensions import Extensions
from holdfast.lock_owner import read_owner
from holdfast.runtime import workspace as core
from holdfast.runtime import workspace_services
from holdfast.runtime.server_services import ServerServices
from holdfast.runtime.workspace_services import WorkspaceServices
from holdfast.server import serve as app_module
from holdfast.server import workspace_handle
from holdfast.server.http import listen
from holdfast.server.http.connection import HttpServer
from holdfast.server.http.listen import UnixListener, bind_tcp
from holdfast.server.serve import ServerOptions, serve
from holdfast.server.web import web_app
from holdfast.server.web.listener import WebListener
from holdfast.server.workspace_manager import GracePeriods, WorkspaceManager
from holdfast.testing.gates import Gate, start, until
from server.helpers import (
    EchoModel,
    RawStream,
    ServerDirectory,
    exchange,
    in_process_server,
    open_raw,
    raw_request,
    send_prompt,
    server_directory,
)

TIMEOUT = 20.0


def unseal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the server from sealing its process, which here is that of the tests."""
    monkeypatch.setattr(app_module, "deny_tracing", lambda: None)
    monkeypatch.setattr(app_module, "return_freed_memory", lambda: None)


@pytest.fixture(autouse=True)
def unsealed(monkeypatch: pytest.MonkeyPatch) -> None:
    unseal(monkeypatch)


class Refused(Exception):
    """The error of the failing step."""


def refuse(*_: object, **__: object) -> Any:  # noqa: ANN401 - in the place of anything
    raise Refused


async def refuse_later(*_: object, **__: object) -> Any:  # noqa: ANN401
    raise Refused


def open_descriptors() -> Counter[str]:
    """Return the open descriptors of this process by target, without those of the loop."""
    found: Counter[str] = Counter()
    for name in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue
        if not target.endswith(("-wal", "-shm")):
            # SQLite opens those at its first read.
            found[target.partition(":")[0] if ":[" in target else target] += 1
    return found


def threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast")}


@asynccontextmanager
async def no_leaks() -> AsyncIterator[None]:
    descriptors, names, tasks = open_descriptors(), threads(), set(asyncio.all_tasks())
    yield
    # The server's end of a connection closes a little after its client's. If it never does, the next lines fail.
    with suppress(AssertionError):
        await until(lambda: not open_descriptors() - descriptors and not asyncio.all_tasks() - tasks)
    assert {task.get_name() for task in asyncio.all_tasks() - tasks} == set()
    assert threads() <= names
    assert open_descriptors() - descriptors == Counter()


# A unix socket


@pytest.mark.parametrize("step", ["bind", "chmod", "stat", "socket"])
def test_failed_socket_bind_releases_resources(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "run" / "s"
    UnixListener(path).close()
    before = open_descriptors()
    if step == "bind":
        monkeypatch.setattr(socket.socket, "bind", refuse)
    elif step == "socket":
        monkeypatch.setattr("socket.socket", refuse)
    else:
        monkeypatch.setattr(f"os.{step}", refuse)
    with pytest.raises(Refused):
        UnixListener(path)
    monkeypatch.undo()
    assert open_descriptors() == before
    assert not path.exists()
    UnixListener(path).close()


def test_socket_of_other_server_is_kept(tmp_path: Path) -> None:
    first = UnixListener(tmp_path / "run" / "s", "/data")
    before = open_descriptors()
    for data_dir in ("/data", "/other", ""):
        with pytest.raises(listen.AddressTaken):
            UnixListener(tmp_path / "run" / "s", data_dir)
    assert open_descriptors() == before
    first.close()
    assert not (tmp_path / "run" / "s").exists()


@pytest.mark.parametrize("step", ["bind", "listen", "setsockopt"])
def test_failed_port_bind_releases_resources(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(98, "in use")

    before = open_descriptors()
    monkeypatch.setattr(socket.socket, step, fail)
    with pytest.raises(listen.AddressTaken, match="in use"):
        bind_tcp("127.0.0.1", 0)
    monkeypatch.undo()
    assert open_descriptors() == before


# A server


def _second_fails(patch: pytest.MonkeyPatch) -> None:
    listen_on, count = HttpServer.listen, [0]

    async def fail(server: HttpServer, *given: Any) -> None:  # noqa: ANN401
        count[0] += 1
        if count[0] > 1:
            raise Refused
        await listen_on(server, *given)

    patch.setattr(HttpServer, "listen", fail)


def _closing_fails(patch: pytest.MonkeyPatch) -> None:
    close = WorkspaceManager.close

    async def fail(manager: WorkspaceManager) -> None:
        await close(manager)
        raise Refused

    patch.setattr(WorkspaceManager, "close", fail)
    patch.setattr(app_module, "write_owner", refuse)


STARTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "the port is taken": lambda patch: patch.setattr(app_module, "bind_tcp", refuse),
    "the token cannot be made": lambda patch: patch.setattr(app_module, "read_or_make_token", refuse),
    "the manager cannot be made": lambda patch: patch.setattr(app_module, "WorkspaceManager", refuse),
    "the application cannot be made": lambda patch: patch.setattr(app_module, "Application", refuse),
    "the first socket cannot be served": lambda patch: patch.setattr(HttpServer, "listen", refuse_later),
    "the second socket cannot be served": _second_fails,
    "it cannot be announced": lambda patch: patch.setattr(app_module, "write_owner", refuse),
    "pages cannot come back": lambda patch: patch.setattr(WebListener, "reopen", refuse_later),
    "a signal cannot be handled": lambda patch: patch.setattr(
        asyncio.get_running_loop(), "add_signal_handler", refuse, raising=False
    ),
    "the manager cannot be closed": _closing_fails,
}


def options_in(directory: ServerDirectory) -> ServerOptions:
    return ServerOptions(directory.data, directory.socket, ("127.0.0.1", 0))


def is_owned(directory: ServerDirectory) -> bool:
    """Return whether a server has bound its sockets in this directory and has recorded that."""
    owner = read_owner(str(directory.data))
    return owner is not None and bool(owner.socket)


async def start_and_stop(directory: ServerDirectory) -> None:
    """Start a server, request its stop, and wait for its end."""
    over = start(serve(options_in(directory)))
    await until(lambda: over.done() or is_owned(directory))
    assert not over.done(), over.exception()
    answer = await exchange(directory.address, raw_request("/v1/control", "POST", b'{"command":"stop"}'))
    assert answer.status == 200
    await asyncio.wait_for(over, TIMEOUT)


@pytest.mark.parametrize("step", STARTS)
async def test_failed_start_releases_resources(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_directory() as directory:
        async with no_leaks():
            STARTS[step](monkeypatch)
            with pytest.raises(Refused):
                await serve(options_in(directory))
            monkeypatch.undo()
            unseal(monkeypatch)
            assert not directory.socket.exists()
        (directory.data / "lock").unlink()
        await start_and_stop(directory)


async def test_hosts_accepted_by_tcp_server(reserved_port: int) -> None:
    """The configured name and those of this machine; no others."""
    async with server_directory() as directory:
        port = reserved_port
        over = start(serve(ServerOptions(directory.data, directory.socket, ("127.0.0.1", port))))
        await until(lambda: over.done() or is_owned(directory))
        assert not over.done(), over.exception()
        bearer = f"Authorization: Bearer {(directory.data / 'token').read_text().strip()}"
        tcp = directory.address._replace(path="", host="127.0.0.1", port=port)
        found = {}
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", f"[::1]:{port}", "127.0.0.1", f"other:{port}"):
            found[host] = (await exchange(tcp, raw_request("/v1/health", headers=[f"Host: {host}", bearer]))).status
        assert list(found.values()) == [200, 200, 200, 403, 403]
        await exchange(directory.address, raw_request("/v1/control", "POST", b'{"command":"stop"}'))
        await asyncio.wait_for(over, TIMEOUT)


# A workspace


OPENINGS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "its services cannot be made": lambda patch: patch.setattr(ServerServices, "workspace_services", refuse),
    "its engine cannot be made": lambda patch: patch.setattr(WorkspaceServices, "run_context", refuse),
    "it cannot be recovered": lambda patch: patch.setattr(core, "recover", refuse_later),
    "its extensions cannot be started": lambda patch: patch.setattr(Extensions, "start", refuse),
    "its flags cannot be noted": lambda patch: patch.setattr(workspace_handle, "FrameCache", refuse),
}


@pytest.mark.parametrize("step", OPENINGS)
async def test_failed_open_releases_resources(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is left, and the next open starts from the same state."""
    closed: list[str] = []
    close = WorkspaceServices.close

    async def noted(self: WorkspaceServices) -> None:
        closed.append(self.record.path)
        await close(self)

    async with server_directory() as directory, in_process_server(directory) as server:
        client, _ = await server.open_workspace()
        monkeypatch.setattr(WorkspaceServices, "close", noted)
        presence = server.manager.presence
        async with no_leaks():
            OPENINGS[step](monkeypatch)
            with pytest.raises(ServerProblem) as caught:
                await client.create_workspace(directory.project("second"))
            assert caught.value.status == 500
            monkeypatch.undo()
        assert closed == ([] if step == "its services cannot be made" else [directory.project("second")])
        assert len(server.manager.handles) == 1
        assert server.manager.presence.workspaces == presence.workspaces
        assert server.manager.presence.creating == 0
        opened = await client.create_workspace(directory.project("second"))
        session = (await client.create_session(opened.id)).id
        await send_prompt(client, opened.id, session, "hi", "r1")


async def test_open_in_progress_at_shutdown(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, closed = Gate(), asyncio.Event()
    close = WorkspaceServices.close

    async def held_back(*given: Any, **more: Any) -> Any:  # noqa: ANN401
        await gate()
        return await recover(*given, **more)

    async def noted(self: WorkspaceServices) -> None:
        closed.set()
        await close(self)

    monkeypatch.setattr(core, "recover", held_back)
    monkeypatch.setattr(WorkspaceServices, "close", noted)
    async with server_directory() as directory, in_process_server(directory) as server:
        client = await server.client()
        creating = start(client.create_workspace(directory.project()))
        await gate.reached.wait()
        await asyncio.wait_for(server.stop(), TIMEOUT)
        with pytest.raises(HoldfastError):
            await creating
        assert closed.is_set()


# The page's port


@pytest.mark.parametrize("step", ["listen", "house"])
async def test_failed_page_port_releases_resources(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        async with no_leaks():
            if step == "listen":
                monkeypatch.setattr(HttpServer, "listen", refuse_later)
            else:
                monkeypatch.setattr(web_app, "WebSessions", refuse)
            assert (await exchange(server.address, raw_request("/v1/web", "POST", b'{"port":0}'))).status == 500
            monkeypatch.undo()
            await until(lambda: not server.application.web.sessions)
        assert server.application.web.sessions is None
        link = await (await server.client()).open_web()
        assert link.code


# Streams


@pytest.mark.parametrize("form", ["since=0&", ""], ids=["resumable", "whole"])
async def test_stream_refused_or_failing_at_start_releases_resources(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server_directory() as directory, in_process_server(directory, graces=GracePeriods(create=1e9)) as server:
        client, workspace = await server.open_workspace()
        other, _ = await server.open_workspace()
        await other.retire_client()
        bus, asks = server.manager.handle(workspace).workspace.bus, server.manager.handle(workspace).owned.approvals
        path = f"/v1/workspaces/{workspace}/events?{form}client_id="
        before = (bus._readers, asks._readers, server.manager.presence.workspaces[workspace])
        assert (await exchange(server.address, raw_request(path + other.client_id))).status == 409
        monkeypatch.setattr("holdfast.server.streams.event_stream._send_all", refuse_later)
        answer = await exchange(server.address, raw_request(path + client.client_id))
        assert answer.status == 500
        monkeypatch.undo()
        assert (bus._readers, asks._readers) == before[:2]
        claim = server.manager.presence.workspaces[workspace].claims
        assert [item.streams for item in claim.values()] == [0]
        stream = await RawStream.open(server.address, path + client.client_id)
        assert asks._readers == 1
        stream.close()
        await until(lambda: asks._readers == 0)


# Shutdown


async def test_shutdown_despite_reader_that_never_reads() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        writers = []
        for form in ("?since=0", ""):
            _, stalled = await open_raw(server.address)
            writers.append(stalled)
            stalled.transport.pause_reading()  # type: ignore[attr-defined]
            stalled.write(raw_request(f"/v1/workspaces/{workspace}/events{form}"))
        bus = server.manager.handle(workspace).workspace.bus
        await until(lambda: bus._readers == 2)
        for _ in range(3):
            await client.create_session(workspace, "x" * 500_000)
        await asyncio.wait_for(server.stop(), TIMEOUT)
        for stalled in writers:
            stalled.transport.abort()


@pytest.mark.parametrize(
    ("part", "how"),
    [("git_scan", "fails"), ("jobs", "never ends"), ("extensions", "never ends"), ("token_refresher", "fails")],
)
async def test_shutdown_despite_failing_workspace_component(
    part: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other components and the store are closed nevertheless."""
    closed: list[str] = []
    monkeypatch.setattr(workspace_services, "CLOSE_SECONDS", 0.05)

    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    async with server_directory() as directory:
        async with in_process_server(directory) as server:
            _, workspace = await server.open_workspace()
            owner = server.manager.handle(workspace).services
            for name in ("git_scan", "jobs", "extensions", "token_refresher"):
                thing = getattr(owner, name)

                async def noted(close: Callable[[], Any] = thing.close, name: str = name) -> None:
                    closed.append(name)
                    await close()

                monkeypatch.setattr(thing, "close", noted)
            bad = refuse_later if how == "fails" else never
            monkeypatch.setattr(getattr(owner, part), "close", bad)
        assert closed == [name for name in ("git_scan", "jobs", "extensions", "token_refresher") if name != part]
        async with in_process_server(directory) as server:
            assert (await (await server.client()).create_workspace(directory.project())).id == workspace


@pytest.mark.parametrize("part", ["guard", "discovery"])
async def test_store_is_closed_despite_failing_shared_service(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_directory() as directory:
        async with in_process_server(directory) as server:
            await server.open_workspace()
            shared = server.manager.services
            other = "discovery" if part == "guard" else "guard"
            closed = []
            thing = getattr(shared, other)
            close = thing.close

            async def noted() -> None:
                closed.append(other)
                await close()

            monkeypatch.setattr(thing, "close", noted)
            broken = getattr(shared, part)
            end = broken.close
            monkeypatch.setattr(broken, "close", refuse_later)
            assert server.over is not None
            server.manager.stopping.set()
            with pytest.raises(Refused):
                await asyncio.wait_for(asyncio.shield(server.over), TIMEOUT)
            server.over = None
            await end()
        assert closed == [other]
        async with in_process_server(directory) as server:
            await (await server.client()).health()


async def test_failing_close_of_one_workspace_does_not_affect_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """At shutdown each workspace is closed independently of the others."""
    closed: list[str] = []
    close = core.Workspace.close

    async def sometimes(workspace: core.Workspace) -> None:
        closed.append(workspace.record.path)
        if workspace.record.path.endswith("first"):
            raise Refused
        await close(workspace)

    async with server_directory() as directory:
        async with in_process_server(directory, EchoModel()) as server:
            client = await server.client()
            for name in ("first", "second"):
                await client.create_workspace(directory.project(name))
            monkeypatch.setattr(core.Workspace, "close", sometimes)
        assert sorted(closed) == [directory.project("first"), directory.project("second")]


# Clients


@pytest.mark.parametrize("what", ["too new", "breaks"])
def test_connection_to_incompatible_server_is_closed(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that gives up keeps no connection open."""
    closed: list[bool] = []

    class Known(SyncClient):
        def close(self) -> None:
            closed.append(True)

    thin = Known(ServerLocation(*([None] * 3)).address)  # type: ignore[arg-type]
    thin.server = ServerInfo("99.0.0", 99, os.getpid(), "x")
    monkeypatch.setattr(server_launcher, "find", lambda *_: thin)
    if what == "breaks":
        monkeypatch.setattr(server_launcher, "replace_outdated", refuse)
    directory = ServerLocation(thin.address, str(tmp_path), can_be_started=True)
    with pytest.raises((VersionMismatch, Refused)):
        find_or_start(directory)
    assert closed == [True]
