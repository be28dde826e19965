"""Real servers on one PostgreSQL, in the event loop of the test: each with its own data directory and socket."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from holdfast.client.client import Client
from holdfast.client.errors import Unreachable
from holdfast.client.server_address import ServerAddress
from holdfast.domain.ids import WorkspaceId
from holdfast.engine.ports import Models
from holdfast.server.serve import ServerOptions, serve
from holdfast.testing.gates import start
from holdfast.testing.harness import FixedModels
from postgres_server import new_database
from scratch import scratch_directory
from server.helpers import QUICK, EchoModel

__all__ = ["POLL_SECONDS", "NodeServer", "Nodes", "nodes"]

_TIMEOUT = 20.0
POLL_SECONDS = 0.02
"""Interval at which a condition of another server is tested."""


class NodeServer:
    """One server. `client` is connected to its socket."""

    def __init__(self, directory: Path, options: ServerOptions) -> None:
        self.directory = directory
        self.options = options
        self.client: Client
        self._server: asyncio.Task[None] | None = None
        self._stack = AsyncExitStack()

    async def start(self, models: Models | None) -> None:
        """Start it, and wait until it answers."""
        self._server = start(serve(self.options, models))
        address = ServerAddress(path=str(self.options.socket))
        self.client = await self._stack.enter_async_context(Client(address, seconds=_TIMEOUT))
        async with asyncio.timeout(_TIMEOUT):
            while not await self._answers():  # noqa: ASYNC110 - a condition of another server
                await asyncio.sleep(POLL_SECONDS)

    async def stop(self) -> None:
        """Let it leave the cluster and end."""
        await self.client.control("stop", force=True)
        await self._stack.aclose()
        assert self._server is not None
        async with asyncio.timeout(_TIMEOUT):
            await self._server

    async def _answers(self) -> bool:
        assert self._server is not None
        if self._server.done():
            self._server.result()
        try:
            await self.client.version()
        except Unreachable:
            return False
        return True


class Nodes:
    """The servers of a cluster in `root`, which share one volume."""

    def __init__(self, root: Path, dsn: str) -> None:
        self.root = root
        self.dsn = dsn
        self.running: list[NodeServer] = []
        self.project = str(root / "project")
        Path(self.project).mkdir()

    async def start(
        self, name: str, models: Models | None = None, *, selects: bool = False, **options: object
    ) -> NodeServer:
        """Start a server. `selects`: the settings select its models. `options` are more options of it; an empty `place`
        is its own disk.
        """
        directory = self.root / name
        given: dict[str, Any] = {"place": "shared", **options}
        server = NodeServer(
            directory, ServerOptions(directory / "data", directory / "s", store=self.dsn, settings=QUICK, **given)
        )
        await server.start(None if selects else models or FixedModels(EchoModel()))
        self.running.append(server)
        return server

    async def open(self, server: NodeServer) -> WorkspaceId:
        """Open the project at a server."""
        return (await server.client.create_workspace(self.project)).id


@asynccontextmanager
async def nodes() -> AsyncIterator[Nodes]:
    """Yield an empty cluster. Its servers are stopped at the end."""
    async with new_database() as dsn:
        with scratch_directory() as root:
            made = Nodes(root, dsn)
            try:
                yield made
            finally:
                for server in made.running:
                    await server.stop()
