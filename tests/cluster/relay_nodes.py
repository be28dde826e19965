"""Real servers of a cluster in the event loop of the test, each with a data directory and a place of its own."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from typing import Any

import asyncpg

from holdfast.client.server_address import ServerAddress
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.settings import Options
from holdfast.runtime.open_store import open_host, open_postgres
from holdfast.runtime.server_services import ServerServices, ServiceOverrides
from holdfast.server.http.application import Application
from holdfast.server.http.connection import HttpServer
from holdfast.server.http.listen import UnixListener, bind_tcp
from holdfast.server.http.token_auth import TokenAuth, read_or_make_token
from holdfast.server.presence import Stop
from holdfast.server.relay.relay_address import RelayOptions
from holdfast.server.relay.relay_listener import bind_relay
from holdfast.server.routes.handlers import HANDLERS
from holdfast.server.serve import run_server
from holdfast.server.streams.event_stream import stream
from holdfast.server.telemetry.observers import Observers
from holdfast.server.workspace_manager import WorkspaceManager
from holdfast.storage.postgres.store_address import StoreAddress
from holdfast.testing.gates import start, until
from holdfast.testing.harness import FixedModels
from server.helpers import QUICK, EchoModel, RawResponse, ServerDirectory, exchange, raw_request, server_directory

__all__ = ["CLIENT", "Node", "execute", "node", "query"]

CLIENT = "6a4de7a0-3c6f-4b0a-9a9e-0d4a5f0c1c11"


class Node:
    """A server of a cluster."""

    def __init__(self, directory: ServerDirectory, manager: WorkspaceManager, address: str) -> None:
        self.directory = directory
        self.manager = manager
        self.relay_address = address
        self.tcp = ServerAddress()
        self.over: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        assert self.manager.host is not None
        return str(self.manager.host.membership.view.node)

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        headers: tuple[str, ...] = (),
        address: ServerAddress | None = None,
    ) -> RawResponse:
        """Send a request to the unix socket, or to another address."""
        data = None if body is None else json.dumps(body).encode()
        kind = ("Content-Type: application/json",) if data is not None else ()
        request = raw_request(f"/v1{path}", method, data, (*kind, *headers))
        return await exchange(address or self.directory.address, request)

    async def get(self, path: str) -> Any:  # noqa: ANN401 - the JSON of a response that must be successful
        response = await self.call("GET", path)
        assert response.status == 200, response.body
        return response.json

    async def open(self, project: str = "project", env: Mapping[str, str] | None = None) -> WorkspaceId:
        """Open the workspace of a directory, and return when this node owns it."""
        environment = [f"{name}={value}" for name, value in (env or {}).items()]
        path = self.directory.project(project)
        response = await self.call("POST", "/workspaces", {"path": path, "client_id": CLIENT, "env": environment})
        assert response.status == 200, response.body
        workspace = WorkspaceId(response.json["id"])
        await until(lambda: self.manager.handle(workspace).is_local)
        return workspace

    async def stop(self) -> None:
        if self.over is not None:
            if not self.over.done():
                self.manager.apply(Stop())
            await self.over


@asynccontextmanager
async def node(
    dsn: str, options: RelayOptions | None = None, *, label: str = "", with_tcp: bool = False
) -> AsyncIterator[Node]:
    """Run a server of a cluster in this loop."""
    async with AsyncExitStack() as stack:
        directory = await stack.enter_async_context(server_directory())
        listener = UnixListener(directory.socket)
        stack.callback(listener.close)
        bound = stack.enter_context(ExitStack())
        relayed = bind_relay(options or RelayOptions(), str(directory.socket), bound)
        ledger = await open_postgres(directory.data, StoreAddress(dsn), 5, label)
        overrides = ServiceOverrides(QUICK, FixedModels(EchoModel()), None, warms_guard=False)
        services = ServerServices(directory.data, overrides, ledger=ledger)
        services.host = await open_host(services, ledger, relayed.address)
        manager = WorkspaceManager(services)
        relay = relayed.make_relay(manager)
        application = Application(manager, Observers(Options()), HttpServer(), HANDLERS, stream, relay)
        made = Node(directory, manager, relayed.address)
        sockets, guard = [listener.socket], None
        if with_tcp:
            tcp = bind_tcp("127.0.0.1", 0)
            stack.callback(tcp.close)
            sockets.append(tcp)
            port, token = tcp.getsockname()[1], read_or_make_token(directory.data)
            guard = TokenAuth(token, [f"127.0.0.1:{port}"])
            made.tcp = ServerAddress(host="127.0.0.1", port=port, token=token)
        listening = asyncio.Event()
        made.over = start(
            run_server(
                manager,
                application,
                sockets,
                guard,
                relay=relayed,
                on_listening=listening.set,
                handles_signals=False,
            )
        )
        stack.push_async_callback(made.stop)
        await listening.wait()
        yield made


async def execute(dsn: str, statement: str, *arguments: object) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement, *arguments)
    finally:
        await connection.close()


async def query(dsn: str, statement: str, *arguments: object) -> Any:  # noqa: ANN401 - the value of one row
    connection = await asyncpg.connect(dsn)
    try:
        return await connection.fetchval(statement, *arguments)
    finally:
        await connection.close()
