"""Servers of a cluster as processes: `holdfast serve` with data directories of their own, on one new database.

The model is the scripted one, whose prompts name the tools to call. A gated run ends when its gate is opened.
"""

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import asyncpg
import msgspec

from cli.isolated_home import IsolatedHome, isolated_home
from holdfast.client.client import Client
from holdfast.client.events import StreamEvent
from holdfast.client.server_launcher import locate
from holdfast.domain.events import RunCompleteEvent
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.protocol.bodies import AgentMessage, NodeBody
from postgres_server import new_database
from server.helpers import exchange, read_until, run_ended
from trials.hostile_commands import survivors

__all__ = ["TIMEOUT", "Cluster", "Gated", "NodeProcess", "cluster", "reached"]

TIMEOUT = 30.0
_POLL_SECONDS = 0.02


async def reached(condition: Callable[[], Awaitable[object]]) -> None:
    """Return when a condition that needs requests holds."""
    async with asyncio.timeout(TIMEOUT):
        # Another process does not report its state.
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(_POLL_SECONDS)


class NodeProcess:
    """One server."""

    def __init__(self, cluster: "Cluster", name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.data = cluster.home.home / name
        self.log = self.data.with_suffix(".log")
        self.process = process
        self._environment = cluster.home.environment
        self.client: Client
        self.id = ""

    async def joined(self, stack: AsyncExitStack) -> None:
        """Return when it answers and is a member."""
        request = b"GET /v1/version HTTP/1.1\r\nHost: x\r\n\r\n"

        async def answers() -> bool:
            assert self.process.returncode is None, self.log.read_text()
            try:
                return (await exchange(locate(None, str(self.data), self._environment).address, request)).status == 200
            except OSError:
                return False

        await reached(answers)
        self.client = Client(locate(None, str(self.data), self._environment).address)
        stack.push_async_callback(self.client.close)

        async def is_member() -> str:
            self.id = next((node.id for node in await self.nodes() if node.is_self), "")
            return self.id

        await reached(is_member)

    async def nodes(self) -> tuple[NodeBody, ...]:
        return (await self.client.list_nodes()).nodes

    async def node(self, node: str) -> NodeBody | None:
        """Return another node as this one lists it."""
        return next((item for item in await self.nodes() if item.id == node), None)

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    async def exit_code(self) -> int:
        async with asyncio.timeout(TIMEOUT):
            return await self.process.wait()


class Gated(msgspec.Struct, frozen=True):
    """An active run whose command waits for `open`."""

    workspace: WorkspaceId
    session: SessionId
    run: RunId
    gate: Path

    def open(self) -> None:
        with self.gate.open("w") as file:
            file.write("go\n")

    async def process_gone(self) -> None:
        """Return when no process of the command is left."""

        async def is_gone() -> bool:
            return not survivors(str(self.gate))

        await reached(is_gone)


class Cluster:
    """Several servers that share one volume."""

    def __init__(self, home: IsolatedHome, dsn: str, stack: AsyncExitStack) -> None:
        self.home = home
        self.dsn = dsn
        self._stack = stack

    async def add(self, name: str, *options: str, code: str | None = None) -> NodeProcess:
        """Start a server and wait until it is a member of the cluster. `code` replaces the program."""
        directory = self.home.home / name
        arguments = (*("-c", code),) if code else ("-P", "-m", "holdfast", "serve")
        arguments = (*arguments, "--data-dir", str(directory))
        options = options or ("--label", "place=shared")
        with directory.with_suffix(".log").open("ab") as log:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, *arguments, *options),
                cwd=self.home.work,
                env=self.home.environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        self._stack.push_async_callback(_end, process)
        node = NodeProcess(self, name, process)
        await node.joined(self._stack)
        return node

    async def open_workspace(self, node: NodeProcess, name: str) -> WorkspaceId:
        directory = self.home.work / name
        directory.mkdir(exist_ok=True)
        return (await node.client.create_workspace(str(directory), yolo=True)).id

    async def prompt(
        self, node: NodeProcess, workspace: WorkspaceId, text: str, run: str, session: SessionId | None = None
    ) -> SessionId:
        """Send a prompt and return its session."""
        session = session or (await node.client.create_session(workspace, run)).id
        message = AgentMessage(session, text, RunId(run), yolo=True)
        await node.client.send_prompt(workspace, message)
        return session

    async def gated_run(self, node: NodeProcess, workspace: WorkspaceId, run: str) -> Gated:
        """Start a run and return when its command runs."""
        gate, started = self.home.work / f"{run}.gate", self.home.work / f"{run}.started"
        os.mkfifo(gate)
        command = {"command": f"touch {started}; cat {gate}", "description": "wait"}
        session = await self.prompt(node, workspace, f"tool=bash {json.dumps(command)}", run)

        async def has_started() -> bool:
            return started.exists()

        await reached(has_started)
        assert survivors(str(gate))
        return Gated(workspace, session, RunId(run), gate)

    async def events_until_end(self, node: NodeProcess, workspace: WorkspaceId, run: str) -> list[StreamEvent]:
        """Return all events of a workspace up to the end of a run, as a node streams them."""
        async with node.client.events(workspace, since=0) as events:
            return await read_until(events, run_ended(run))

    async def outcome(self, node: NodeProcess, workspace: WorkspaceId, run: str) -> str:
        """Return the outcome of a run, whose end must occur once and without gaps before it."""
        seen = await self.events_until_end(node, workspace, run)
        numbers = [item.number for item in seen if item.number is not None]
        assert numbers == list(range(1, len(numbers) + 1))
        ends = [item.event.change.object for item in seen if isinstance(item.event, RunCompleteEvent)]
        assert [end.run_id for end in ends].count(RunId(run)) == 1
        return ends[-1].outcome

    async def fetch(self, statement: str) -> list[asyncpg.Record]:
        connection = await asyncpg.connect(self.dsn)
        try:
            return list(await connection.fetch(statement))
        finally:
            await connection.close()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
    await process.wait()


@asynccontextmanager
async def cluster() -> AsyncIterator[Cluster]:
    async with new_database() as dsn, AsyncExitStack() as stack:
        with isolated_home() as home:
            home.environment["HOLDFAST_STORE"] = dsn
            async with stack:
                yield Cluster(home, dsn, stack)
