"""One random schedule of a whole cluster: three servers with their membership, hosts and workspace managers.

In contrast to `cluster_schedules`, nothing decides for the servers who owns the workspace: heartbeats, leases, claims,
releases of idle workspaces and drains are the real ones, in virtual time. Faults are suspended servers, servers that
are cut off from the database, a database that is down, lost LISTEN connections and notifications, evictions by an
operator, and servers that are stopped in order and replaced. Commands run outside of their servers, as real processes
do: they continue while the server is suspended, until their guard freezes them.
"""

import asyncio
import contextvars
import random
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, TypeVar

from cluster.host_world import NODE, HostNode, HostWorld
from holdfast.cluster.remote_workspace import RemoteWorkspace
from holdfast.domain.errors import HoldfastError, StorageUnknown
from holdfast.domain.ids import WorkspaceId
from holdfast.domain.tools import ToolContext, ToolOutcome
from holdfast.runtime.workspace import Workspace
from holdfast.server.presence import Attach, ClientId, Detach
from holdfast.tasks import TaskOwner
from holdfast.testing.seeded_loop import SeededLoop, elapse, run_seeded
from trials.cluster_invariants import check_cluster
from trials.cluster_schedules import ClusterSchedule

__all__ = ["HostSchedule", "try_host_schedule"]

T = TypeVar("T")
_REQUEST_TIMEOUT = 3.0
_STEP = 0.1


def try_host_schedule(seed: int) -> None:
    """Play one schedule and check it."""
    run_seeded(lambda dice: HostSchedule(dice).play(), seed)


class HostSchedule(ClusterSchedule):
    """Clients that use any server, readers that move between servers, and faults."""

    def __init__(self, dice: random.Random) -> None:
        super().__init__(dice)
        self.world = HostWorld(pace=self._pace, loses_notification=lambda: dice.random() < 0.1)
        self.world.model, self.world.tools = self.model, self.tools
        self.workspace = WorkspaceId("")
        self.acts: list[tuple[float, int, str]] = []
        """Time, epoch and server of each change of a file by a command."""
        self.met: set[str] = set()
        self._processes = TaskOwner()
        self._suspended: set[str] = set()
        self._names = iter(f"{name}{number}" for number in range(1, 100) for name in "ABC")

    async def play(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop)
        for _ in range(3):
            self.world.add(next(self._names))
        self.workspace = (await self.world.nodes[0].create()).id
        for _ in range(2):
            self.sessions.append((await self._retried(lambda workspace: workspace.sessions.create())).id)
        tasks = TaskOwner()
        readers = [tasks.start(self._read(name), name=name) for name in ("reader 1", "reader 2")]
        faults = tasks.start(self._break(loop), name="faults")
        clients = [tasks.start(self._client(name), name=name) for name in ("x", "y")]
        await asyncio.wait([*clients, faults])
        self._heal_all(loop)
        await self._settle()
        self.log.newest = (await self.world.ledger.bounds(self.workspace))[1]
        self._is_over = True
        await asyncio.wait(readers)
        for task in (*clients, *readers, faults):
            task.result()
        await self._check_idle()
        await self.world.close()
        tasks.cancel_all()
        for session in self.sessions:
            self.log.messages[session] = await self.world.ledger.messages(self.workspace, session)
        check_cluster(self.log)
        self._check_commands()

    async def _settle(self) -> None:
        """Wait until every run has an end."""
        for _ in range(300):
            await elapse(0.1)
            if not await self.world.ledger.open_runs(self.workspace):
                return
            await self._answer_all()
        raise AssertionError("R2: runs without an end are left")

    async def _answer_all(self) -> None:
        for node in self.world.nodes:
            with suppress(HoldfastError):
                workspace = (await node.start(node.manager.find(self.workspace))).workspace
                for request in workspace.approvals.permissions:
                    await node.start(workspace.approvals.grant(request.id, "allow"))
                for batch in workspace.approvals.questions:
                    await node.start(workspace.approvals.answer(batch.id, ()))

    async def _check_idle(self) -> None:
        """Without clients and runs the workspace is released, and nothing of it is left on any server."""
        for _ in range(24):
            await elapse(0.5)
            if self.world.cluster.workspaces[self.workspace].owner is None and not any(
                node.node_of(self.workspace) for node in self.world.nodes
            ):
                break
        assert self.world.cluster.workspaces[self.workspace].owner is None, "an idle workspace was not released"
        for node in self.world.nodes:
            assert not node.manager.handles, f"{node.name} keeps a workspace open"
            assert not node.manager.presence.workspaces, f"{node.name} keeps the presence of a workspace"
            assert node.node_of(self.workspace) is None, f"{node.name} keeps a workspace"
            assert all(services.is_closed for services in node.services), f"{node.name} keeps services"
        assert not any(self.world.state(self.workspace).clients.values()), "clients are still counted"

    def _check_commands(self) -> None:
        epochs = [epoch for _, epoch, _ in self.acts]
        assert epochs == sorted(epochs), f"a command of a former owner has changed a file: {self.acts}"

    # Faults.

    async def _break(self, loop: SeededLoop) -> None:
        faults: tuple[tuple[str, Callable[[HostNode], Coroutine[Any, Any, None]]], ...] = (
            ("cut", self._cut),
            ("suspended", self._suspend),
            ("evicted", self._evict),
            ("listener lost", self._lose_listener),
            ("outage", self._outage),
            ("restarted", self._restart),
        )
        for _ in range(self.dice.randint(0, 3)):
            await elapse(self.dice.random() * self.dice.choice((0.05, 0.5, 1.5)))
            kind, fault = self.dice.choice(faults)
            self.met.add(kind)
            await fault(self.dice.choice(self.world.nodes))
            await elapse(self.dice.choice((0.0, 0.3, 1.2, 3.5)))
            if self.dice.random() < 0.7:
                self._heal_all(loop)
        await elapse(0.5)
        self._heal_all(loop)

    async def _cut(self, node: HostNode) -> None:
        node.cut()

    async def _suspend(self, node: HostNode) -> None:
        node.is_suspended = True
        self._suspended.add(node.name)
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SeededLoop)
        loop.is_suspended = self._is_suspended

    async def _evict(self, _: HostNode) -> None:
        self.world.evict_owner(self.workspace)

    async def _lose_listener(self, node: HostNode) -> None:
        node.store.lose_listener()

    async def _outage(self, _: HostNode) -> None:
        self.world.cluster.stop(cuts=self.dice.random() < 0.5)

    async def _restart(self, node: HostNode) -> None:
        """Stop a server in order, and start another one."""
        if node.is_suspended or node.is_cut:
            return
        node.call(lambda: node.manager.drain(self.dice.choice((0.0, 0.5))))
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await node.manager.stopping.wait()
        self.world.nodes.remove(node)
        self.world.add(next(self._names))
        await node.close()

    def _is_suspended(self, handle: asyncio.Handle) -> bool:
        return handle._context.get(NODE, "") in self._suspended  # type: ignore[attr-defined]

    def _heal_all(self, loop: SeededLoop) -> None:
        self.world.cluster.is_up = True
        for node in self.world.nodes:
            node.heal()
        self._suspended.clear()
        loop.is_suspended = None
        loop.resume()

    # Clients.

    async def _request(self, act: Callable[[Workspace | RemoteWorkspace], Coroutine[Any, Any, T]]) -> T:
        """Send a request to some server. Raises `StorageUnknown` if no response comes in time."""
        node = self.dice.choice(self.world.nodes)

        async def respond() -> T:
            return await act((await node.manager.find(self.workspace)).workspace)

        task = node.start(respond())
        await asyncio.wait([task], timeout=_REQUEST_TIMEOUT)
        if not task.done() or task.cancelled():
            raise StorageUnknown
        return task.result()

    async def _answer(self, _: str) -> None:
        forms = [
            node.opened.workspace for host in self.world.nodes if (node := host.node_of(self.workspace)) and node.opened
        ]
        for workspace in forms:
            if workspace.approvals.permissions:
                await self._answer_permission(workspace.approvals.permissions[0].id)
                return
            if workspace.approvals.questions:
                await self._answer_questions(workspace.approvals.questions[0])
                return

    # Readers.

    async def _read(self, name: str) -> None:
        """Follow the events on some server, then on another one, with the cursor of the last event."""
        seen = self.log.seen[name] = []
        client = ClientId(self.world.new_client())
        while not self._is_over or len(seen) < self.log.newest:
            node = self.dice.choice(self.world.nodes)
            task = node.start(self._follow(node, client, seen, self.dice.randint(1, 30)))
            await asyncio.wait([task], timeout=self.dice.choice((0.5, 2.0)))
            task.cancel()
            await asyncio.wait([task], timeout=0.01)
            await elapse(0.01)

    async def _follow(self, node: HostNode, client: ClientId, seen: list[tuple[int, bytes]], number: int) -> None:
        """Serve a stream, as the route does."""
        manager = node.manager
        with suppress(HoldfastError):
            handle = await manager.find(self.workspace)
            cursor = seen[-1][0] if seen else 0
            subscription = handle.workspace.bus.subscribe(cursor)
            try:
                manager.apply(Attach(handle.id, client))
                handle.client_attached()
                try:
                    while frames := await subscription.take():
                        for frame in frames:
                            if frame.number:
                                seen.append((frame.number, frame.body))
                            elif frame.body.startswith(b'{"type":"gap"'):
                                self.log.gaps += 1
                        if len(seen) >= number + cursor:
                            return
                finally:
                    handle.client_detached()
                    manager.apply(Detach(handle.id, client))
            finally:
                subscription.close()

    # Commands.

    async def _work(self, _: ToolContext, __: dict[str, object]) -> ToolOutcome:
        """Run a command, which belongs to no server."""
        node = self.world.known[NODE.get()]
        owned = node.node_of(self.workspace)
        assert owned is not None, "a tool acts in a workspace that is not open"
        assert owned.grant is not None, "a tool acts in a workspace that this server does not own"
        steps = self.dice.choice((1, 3, 8))
        run = self._command(node, owned.grant, steps)
        command = contextvars.Context().run(lambda: self._processes.start(run, name="command"))
        try:
            await asyncio.wait([command])
        finally:
            command.cancel()
        return ToolOutcome("done")

    async def _command(self, node: HostNode, epoch: int, steps: int) -> None:
        loop = asyncio.get_running_loop()
        while steps:
            # The guard has frozen it otherwise.
            if loop.time() < node.deadline:
                self.acts.append((loop.time(), epoch, node.name))
                steps -= 1
            await elapse(_STEP)
