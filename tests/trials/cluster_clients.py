"""Clients of a cluster whose processes fail: readers on every node, prompts, cancels and approvals through any of them.

They behave as real clients do: a reader that loses its node continues at another one with its cursor, and a request
without an answer is repeated elsewhere with the same id. Everything that they receive is recorded in a `ClientLog`.
"""

import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from cluster_processes import Lateness, NodeProcess, poll_until
from holdfast.client.backoff import Backoff
from holdfast.client.client import Client
from holdfast.client.errors import ClientError, ServerProblem
from holdfast.client.stream import EventStream
from holdfast.domain.approvals import PermissionRequest
from holdfast.domain.events import GapEvent, PermissionRequestEvent, RunCompleteEvent
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.runs import Delivery
from holdfast.protocol.bodies import AgentMessage, AnswerResult
from holdfast.tasks import TaskOwner
from trials.client_log_rules import Accepted, Cancelled, ClientLog, Received, ToolWrite

__all__ = ["MARKS", "ClusterClients", "Workspace", "marking_prompt"]

MARKS = "marks"
"""The file that tools write."""
_REQUEST_SECONDS = 1.5
_RETRY_SECONDS = 0.05
_GIVE_UP_SECONDS = 60.0
_MAX_UNFINISHED = 4
_REFUSED = (400, 409)
_MAX_MISSING = 3
T = TypeVar("T")


def marking_prompt(run: str, lines: int) -> str:
    """Return a prompt whose tool appends lines to a file, 25 a second, each with the run and the time.

    The shell needs no further processes for it. The time is taken before the write.
    """
    step = f'printf "%s %s\\n" {run} "$EPOCHREALTIME" >> {MARKS}; read -rt 0.04 -u 9'
    command = f"exec 9<> <(:); for ((i = 0; i < {lines}; i++)); do {step}; done; true"
    return f"tool=bash {json.dumps({'command': command})}"


class _Reader:
    """Follows one workspace, at its own node while that can be reached, and records every numbered event."""

    def __init__(self, clients: "ClusterClients", workspace: "Workspace", home: int) -> None:
        self._clients = clients
        self._workspace = workspace
        self._home = home
        self._node = home
        self._stream: EventStream | None = None
        self._is_returning = False
        self.cursor = 0
        nodes = clients.nodes
        self._client = Client(nodes[home].address, seconds=_REQUEST_SECONDS)
        self._log = clients.log.streams.setdefault((workspace.name, f"reader of {nodes[home].name}"), [])

    async def follow(self) -> None:
        """Record events until cancelled."""
        try:
            while True:
                with suppress(ClientError):
                    await self._client.create_workspace(str(self._workspace.path))
                    await self._read()
                await self._move_on()
        finally:
            await self._client.close()

    async def _read(self) -> None:
        backoff = _Impatient(self._fail)
        async with self._client.events(self._workspace.id, since=self.cursor, backoff=backoff) as stream:
            self._stream = stream
            async for item in stream:
                if item.number is not None or isinstance(item.event, GapEvent):
                    self._log.append(Received(time.time(), item))
                    self.cursor = stream.cursor
                    self._workspace.receive(item.event)

    def _fail(self) -> None:
        """End the stream, so that it is opened at the next node."""
        assert self._stream is not None
        self._clients.start_task(self._stream.close(), "close")

    async def _move_on(self) -> None:
        await asyncio.sleep(_RETRY_SECONDS)
        count = len(self._clients.nodes)
        self._node = self._home if self._is_returning else (self._node + 1) % count
        self._is_returning = False
        self._client.address = self._clients.nodes[self._node].address

    async def return_home(self) -> None:
        """Continue at the own node, which runs again."""
        if self._node != self._home and self._stream is not None:
            self._is_returning = True
            await self._stream.close()


class _Impatient(Backoff):
    """Calls a function instead of waiting for the same node."""

    def __init__(self, on_wait: Callable[[], None]) -> None:
        super().__init__(random.random, initial=0.01, maximum=0.01)
        self._on_wait = on_wait

    def wait(self) -> float:
        self._on_wait()
        return super().wait()


class Workspace:
    """A directory that several clients use, with two sessions, and a third one for the runs that a fault interrupts."""

    def __init__(self, name: str, path: Path, id: WorkspaceId, sessions: Sequence[SessionId]) -> None:
        self.name, self.path, self.id, self.sessions = name, path, id, sessions
        self.unfinished: dict[str, SessionId] = {}
        self.ended: set[str] = set()
        self.requests: asyncio.Queue[PermissionRequest] = asyncio.Queue()
        self._requested: set[str] = set()

    def receive(self, event: object) -> None:
        """Handle what any reader received first."""
        if isinstance(event, RunCompleteEvent):
            self.unfinished.pop(event.change.object.run_id, None)
            self.ended.add(event.change.object.run_id)
        elif isinstance(event, PermissionRequestEvent) and event.change.object.id not in self._requested:
            self._requested.add(event.change.object.id)
            self.requests.put_nowait(event.change.object)

    def marks(self) -> list[ToolWrite]:
        """Return the complete lines that tools have written."""
        with suppress(FileNotFoundError):
            lines = (self.path / MARKS).read_text().splitlines()
            words = [line.split() for line in lines]
            return [ToolWrite(self.name, found[0], float(found[1])) for found in words if len(found) == 2]
        return []


async def _grant(workspace: WorkspaceId, body: dict[str, Any], client: Client) -> AnswerResult:
    return await client.grant(workspace, body)


class ClusterClients:
    """All clients of one trial. `rate` is the number of prompts per second and workspace."""

    def __init__(self, nodes: Sequence[NodeProcess], directory: Path, seed: int, rate: float) -> None:
        self.nodes = nodes
        self.log = ClientLog()
        self.random = random.Random(seed)
        self.workspaces: list[Workspace] = []
        self.lateness = Lateness()
        self._directory = directory
        self._rate = rate
        self._tasks = TaskOwner()
        self._readers: list[_Reader] = []
        self._finishing = asyncio.Event()
        self._number = 0
        self._clients = [Client(node.address, seconds=_REQUEST_SECONDS) for node in nodes]
        self._refusals: list[str] = []
        self.failures: list[BaseException] = []

    async def start(self, workspaces: int) -> None:
        """Open the workspaces on all nodes, and start prompting."""
        for number in range(1, workspaces + 1):
            await self._open(f"w{number}")
        self.start_task(self.lateness.measure(), "lateness")
        for workspace in self.workspaces:
            for home in range(len(self.nodes)):
                reader = _Reader(self, workspace, home)
                self._readers.append(reader)
                self.start_task(reader.follow(), "reader")
            self.start_task(self._answer(workspace), "approvals")
            self.start_task(self._prompt(workspace), "prompts")

    async def send(self, workspace: Workspace, prompt: str, run: str, *, session: int = 0, yolo: bool = True) -> None:
        """Send a prompt to any node until one accepts it, and record that."""
        id = workspace.sessions[session]
        workspace.unfinished[run] = id
        delivery: Delivery = "steer" if self.random.random() < 0.2 else "queue"
        message = AgentMessage(id, prompt, run_id=RunId(run), yolo=yolo, delivery=delivery)
        accepted, node = await self._repeat(workspace, lambda client: client.send_prompt(workspace.id, message))
        if accepted is not None:
            self.log.accepted.append(Accepted(workspace.name, run, node, time.time()))
        else:
            workspace.unfinished.pop(run, None)

    async def send_to(self, workspace: Workspace, run: str, number: int) -> None:
        """Send a prompt to one node until it accepts."""
        message = AgentMessage(workspace.sessions[0], "words=1", run_id=RunId(run))
        while True:
            with suppress(ClientError):
                await self._clients[number].create_workspace(str(workspace.path))
                await self._clients[number].send_prompt(workspace.id, message)
                self.record_accepted(workspace, run, self.nodes[number])
                return
            await asyncio.sleep(_RETRY_SECONDS)

    def record_accepted(self, workspace: Workspace, run: str, node: NodeProcess) -> None:
        """Record a prompt with 202."""
        self.log.accepted.append(Accepted(workspace.name, run, node.name, time.time()))
        if run not in workspace.ended:
            workspace.unfinished[run] = workspace.sessions[0]

    async def cancel(self, workspace: Workspace, run: str) -> None:
        """Cancel a run through any node."""
        cancelled, _ = await self._repeat(workspace, lambda client: client.cancel_run(workspace.id, RunId(run)))
        if cancelled is not None:
            self.log.cancelled.append(Cancelled(workspace.name, run, cancelled.outcome))

    def new_run(self) -> str:
        """Return an unused run id."""
        self._number += 1
        return f"run-{self._number}"

    async def return_home(self) -> None:
        """Let readers use the nodes that run again."""
        for reader in self._readers:
            await reader.return_home()

    async def finish(self, seconds: float) -> list[str]:
        """Stop prompting, wait for the ends of all prompts on every reader, read everything once more on each node, and
        close the clients. Returns a description of the prompts without an end, if there are some.
        """
        unfinished: list[str] = []
        self._finishing.set()
        if not await poll_until(self._is_finished, seconds):
            unfinished = self._describe_unfinished()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._read_again()
        for workspace in self.workspaces:
            self.log.writes += workspace.marks()
        self._tasks.cancel_all()
        await self._tasks.drain()
        for client in self._clients:
            await client.close()
        return unfinished

    def _describe_unfinished(self) -> list[str]:
        runs = {workspace.name: list(workspace.unfinished) for workspace in self.workspaces if workspace.unfinished}
        lines = [f"unfinished: {runs}, cursors: {[reader.cursor for reader in self._readers]}"]
        lines += self._refusals
        for (name, reader), stream in self.log.streams.items():
            for run in runs.get(name, ()) if reader == f"reader of {self.nodes[0].name}" else ():
                lines += [f"{name} {run}: {found.item}"[:400] for found in stream if f"'{run}'" in str(found.item)]
        return lines

    async def _is_finished(self) -> bool:
        """Return whether each prompt has its end, and all readers of a workspace have received the same number."""
        if any(workspace.unfinished for workspace in self.workspaces):
            return False
        count = len(self.nodes)
        cursors = [reader.cursor for reader in self._readers]
        return all(len(set(cursors[at : at + count])) == 1 for at in range(0, len(cursors), count))

    async def _read_again(self) -> None:
        """Record the whole log of each workspace as a new client of each node receives it."""
        for number, workspace in enumerate(self.workspaces):
            newest = max(reader.cursor for reader in self._readers[number * len(self.nodes) :][: len(self.nodes)])
            for node in self.nodes:
                log = self.log.streams.setdefault((workspace.name, f"new reader of {node.name}"), [])
                async with (
                    Client(node.address, seconds=_REQUEST_SECONDS) as client,
                    client.events(workspace.id, since=0) as stream,
                ):
                    while stream.cursor < newest:
                        item = await anext(stream)
                        if item.number is not None or isinstance(item.event, GapEvent):
                            log.append(Received(time.time(), item))

    async def _open(self, name: str) -> None:
        path = self._directory / name
        path.mkdir()
        opened = [await client.create_workspace(str(path)) for client in self._clients]
        sessions = [(await self._clients[0].create_session(opened[0].id)).id for _ in range(3)]
        self.workspaces.append(Workspace(name, path, opened[0].id, sessions))

    def start_task(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Start a task that ends with the clients. Its failure is recorded."""

        def record(task: asyncio.Task[None]) -> None:
            if not task.cancelled() and (error := task.exception()) is not None:
                self.failures.append(error)

        return self._tasks.start(work, name=name, done=record)

    async def _prompt(self, workspace: Workspace) -> None:
        """Send prompts of several kinds; cancel some of them."""
        while not self._finishing.is_set():
            await asyncio.sleep(self.random.expovariate(self._rate))
            if self._finishing.is_set() or len(workspace.unfinished) >= _MAX_UNFINISHED:
                continue
            run, session = self.new_run(), self.random.randrange(2)
            match self.random.choices(("words", "marks", "approval"), (6, 3, 1))[0]:
                case "words":
                    await self.send(workspace, f"words={self.random.randint(1, 20)} pause=10", run, session=session)
                case "marks":
                    await self.send(workspace, marking_prompt(run, self.random.randint(5, 40)), run, session=session)
                case _:
                    call = json.dumps({"file_path": f"{run}.txt", "content": "x"})
                    await self.send(workspace, f"tool=write {call}", run, session=session, yolo=False)
            if self.random.random() < 0.15:
                self.start_task(self.cancel(workspace, run), "cancel")

    async def _answer(self, workspace: Workspace) -> None:
        """Allow what tools request, through any node."""
        while True:
            request = await workspace.requests.get()
            body = {"permission": {"id": request.id, "params": request.params}, "action": "allow"}
            result, node = await self._repeat(workspace, partial(_grant, workspace.id, body))
            if result is None or not result.resolved:
                self._refusals.append(f"{workspace.name}, {node}: {request.run_id} {request.id} {result}")

    async def _repeat(self, workspace: Workspace, request: Callable[[Client], Awaitable[T]]) -> tuple[T | None, str]:
        """Send a request to nodes in random order until one answers. Returns None if it is refused."""
        end = time.monotonic() + _GIVE_UP_SECONDS
        missing = 0
        while time.monotonic() < end:
            number = self.random.randrange(len(self._clients))
            try:
                return await request(self._clients[number]), self.nodes[number].name
            except ServerProblem as problem:
                missing += problem.status == 404
                if problem.status in _REFUSED or missing > _MAX_MISSING:
                    self._refusals.append(f"{workspace.name}, {self.nodes[number].name}: {problem.status} {problem}")
                    return None, ""
                if problem.status == 404:
                    # The node was started again, and no client has opened the workspace there.
                    with suppress(ClientError):
                        await self._clients[number].create_workspace(str(workspace.path))
            except ClientError:
                pass
            await asyncio.sleep(_RETRY_SECONDS)
        raise AssertionError("no node has answered for a minute")
