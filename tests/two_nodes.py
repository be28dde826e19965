"""Two real servers on one PostgreSQL that share a volume, and a forwarder that can lose a response."""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from cli.isolated_home import IsolatedHome, isolated_home
from holdfast.client.client import Client
from holdfast.client.server_launcher import ServerLocation, locate
from holdfast.client.server_paths import parse_host
from holdfast.domain.ids import WorkspaceId
from postgres_server import new_database
from stream_servers import stream_server

__all__ = ["TIMEOUT", "LossyForwarder", "Node", "TwoNodes", "two_nodes"]

TIMEOUT = 30.0
_TOKEN = "t" * 43


class Node:
    """One `holdfast serve` of the cluster."""

    def __init__(self, home: IsolatedHome, name: str, environment: dict[str, str], port: int | None) -> None:
        self.socket = home.home / f"{name}.sock"
        self.host = f"unix://{self.socket}" if port is None else f"tcp://127.0.0.1:{port}"
        self.data = home.home / name
        _write_token(self.data)
        self.address = parse_host(self.host, _TOKEN)
        self._home = home
        self._environment = environment
        self.process: asyncio.subprocess.Process | None = None
        self._log = home.home / f"{name}.log"

    async def start(self, *options: str) -> None:
        """Start the server and wait until it listens."""
        command = ("-P", "-m", "holdfast", "serve", "--data-dir", str(self.data), "--label", "place=shared")
        with self._log.open("ab") as log:
            begin = log.tell()
            self.process = await asyncio.create_subprocess_exec(
                *(sys.executable, *command, "--host", self.host, *options),
                stdout=log,
                stderr=log,
                env=self._environment,
                cwd=self._home.work,
            )
        async with asyncio.timeout(TIMEOUT):
            while b", process " not in self._log.read_bytes()[begin:]:
                assert self.process.returncode is None, self._log.read_text()
                await asyncio.sleep(_poll_interval())

    async def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        """End the server and wait for its end."""
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(number)
            async with asyncio.timeout(TIMEOUT):
                await self.process.wait()

    def log(self) -> str:
        return self._log.read_text()


class TwoNodes:
    """A cluster of two. `hosts` is the value of --host. With `ports` they listen on TCP."""

    def __init__(self, home: IsolatedHome, dsn: str, ports: tuple[int, int] | None) -> None:
        self.home = home
        self.work = home.work
        self.environment = {**home.environment, "HOLDFAST_HOST": ""}
        serving = {**self.environment, "HOLDFAST_STORE": dsn}
        self.first, self.second = (Node(home, name, serving, ports and ports["ab".index(name)]) for name in "ab")
        _write_token(home.home / "d")
        self.hosts = f"{self.first.host},{self.second.host}"
        self.workspace = WorkspaceId("")
        """The workspace of `work`."""
        self._commands: list[asyncio.subprocess.Process] = []

    def location(self, hosts: str = "") -> ServerLocation:
        return locate(hosts or self.hosts, environment=self.environment)

    def client(self, *nodes: Node) -> Client:
        first, *others = nodes or (self.first, self.second)
        return Client(first.address, *(node.address for node in others), seconds=TIMEOUT)

    async def start(self, *arguments: str, hosts: str = "") -> asyncio.subprocess.Process:
        """Start a command with these hosts."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "holdfast", *arguments),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=self.work,
            env={**self.environment, "HOLDFAST_HOST": hosts or self.hosts},
        )
        self._commands.append(process)
        return process

    async def call(self, *arguments: str, hosts: str = "") -> tuple[int, str, str]:
        """Run a command. Returns its code and its outputs."""
        process = await self.start(*arguments, hosts=hosts)
        async with asyncio.timeout(TIMEOUT):
            out, errors = await process.communicate()
        return process.returncode or 0, out.decode(), errors.decode()

    async def close(self) -> None:
        for process in self._commands:
            if process.returncode is None:
                process.kill()
            await process.communicate()
        for node in (self.first, self.second):
            await node.kill()


@asynccontextmanager
async def two_nodes(ports: tuple[int, int] | None = None) -> AsyncIterator[TwoNodes]:
    """Start the cluster. The first node owns the workspace of `work`. Everything ends with the block."""
    async with new_database() as dsn:
        with isolated_home() as home:
            nodes = TwoNodes(home, dsn, ports)
            try:
                await nodes.first.start()
                async with nodes.client(nodes.first) as keeper:
                    # An owner keeps a workspace while it has clients.
                    nodes.workspace = (await keeper.create_workspace(str(home.work))).id
                    async with keeper.events(nodes.workspace, since=0) as events:
                        await anext(events)
                        await nodes.second.start()
                        yield nodes
            finally:
                await nodes.close()


class LossyForwarder:
    """Forwards connections of a socket to a node. While `loses` is set, the response to a request that contains it is
    not delivered: `lost` is called in its place, and the connection breaks.
    """

    def __init__(self, node: Node, path: Path) -> None:
        self._node = node
        self.path = path
        self.host = f"unix://{path}"
        self.loses = b""
        self.lost = asyncio.Event()

    async def kill_node(self) -> None:
        await self._node.kill()

    @asynccontextmanager
    async def running(self) -> AsyncIterator["LossyForwarder"]:
        async with stream_server(self._serve, path=str(self.path)):
            yield self

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_unix_connection(str(self._node.socket))
        except OSError:
            writer.transport.abort()
            return
        is_lossy = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                requests = group.create_task(self._copy_requests(reader, there[1], is_lossy))
                await self._copy_responses(there[0], writer, is_lossy)
                requests.cancel()
        finally:
            there[1].transport.abort()
            writer.transport.abort()

    async def _copy_requests(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_lossy: asyncio.Event
    ) -> None:
        while data := await reader.read(65536):
            if self.loses and self.loses in data:
                is_lossy.set()
            writer.write(data)
            await writer.drain()
        writer.transport.abort()

    async def _copy_responses(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, is_lossy: asyncio.Event
    ) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(65536):
                if is_lossy.is_set():
                    # The node has answered, so it has accepted; nothing of that reaches the client.
                    await self.kill_node()
                    self.lost.set()
                    return
                writer.write(data)
                await writer.drain()


def _write_token(data: Path) -> None:
    """Store the token that all nodes of the cluster accept, and that their clients have."""
    data.mkdir(mode=0o700)
    path = data / "token"
    path.touch(mode=0o600)
    path.write_text(_TOKEN)


def _poll_interval() -> float:
    """Return the polling interval: the process does not report when it is ready."""
    return 0.01
