"""Servers of a cluster without processes: the real workspace hosts and managers on one store in memory.

Everything a node does runs in its own context, so a loop can suspend it. Its services are fixed, its guard is a number:
the moment until which processes run. A "process" of a tool belongs to no node, as a real one continues while its server
is suspended.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec

from holdfast.cluster.ports import OwnerInfo, WorkspaceState
from holdfast.domain.approvals import Verdict
from holdfast.domain.errors import OwnerChanged, StorageUnavailable, StorageUnknown
from holdfast.domain.ids import NodeId, SessionId, WorkspaceId
from holdfast.domain.store_operations import Answer, WorkspaceRecord, Write
from holdfast.domain.tools import Tool
from holdfast.engine.ports import Ledger, Model, SharedLedger
from holdfast.engine.settings import EngineSettings
from holdfast.protocol.bodies import WorkspaceBody
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.runtime.node_workspace import NodeWorkspace
from holdfast.runtime.workspace import FixedServices
from holdfast.runtime.workspace_host import WorkspaceHost
from holdfast.server.workspace_handle import WorkspaceHandle
from holdfast.server.workspace_manager import GracePeriods, WorkspaceManager
from holdfast.tasks import TaskOwner
from holdfast.testing.harness import CountingClock, FixedModels, FixedTools, counting_ids
from holdfast.testing.memory_cluster import MemoryCluster, MemoryClusterStore, OwnedWorkspace
from holdfast.testing.memory_ledger import MemoryLedger

if TYPE_CHECKING:
    from holdfast.cluster.postgres_cluster import PostgresCluster
    from holdfast.engine.approvals import Approvals
    from holdfast.engine.run_context import RunContext
    from holdfast.runtime.server_services import ServerServices
    from holdfast.storage.postgres.postgres_ledger import PostgresLedger

__all__ = ["NODE", "SETTINGS", "ClusterLedger", "HostNode", "HostWorld"]

T = TypeVar("T")
NODE: contextvars.ContextVar[str] = contextvars.ContextVar("node", default="")
SETTINGS = EngineSettings(grace=0.5, margin=0.1, titles=False, retry_longest=0.1, closing=1.0, cancel_write=30.0)
_GRACES = GracePeriods(create=1.0, detach=0.3, linger=1.0, check_interval=1e6)
_METHODS = [name for name in vars(SharedLedger) | vars(Ledger) if not name.startswith("_")]


class ClusterLedger(MemoryLedger):
    """The ledger in memory on the same rows as a `MemoryCluster`: the epoch is that of the owner."""

    def __init__(self, cluster: MemoryCluster, pace: Callable[[], Awaitable[None]] | None = None) -> None:
        super().__init__(jump=0, pace=pace or _no_delay)
        self.cluster = cluster

    async def own_workspace(self, workspace: WorkspaceId, epoch: int) -> WorkspaceRecord:
        """Open a workspace under the epoch of its owner."""
        return await self._run_in_order(lambda: self._own(workspace, epoch))

    async def find_workspace(self, workspace: WorkspaceId) -> WorkspaceRecord | None:
        """Return a workspace by its id."""
        return await self._read_after_pace(lambda: self._find(workspace))

    def _own(self, workspace: WorkspaceId, epoch: int) -> WorkspaceRecord:
        owner = self._require_owner(workspace, epoch)
        self._owners.set(workspace, msgspec.structs.replace(owner, epoch=epoch, ticket=0, answers=(), clean=False))
        self._journal.forget()
        return WorkspaceRecord(workspace, owner.path, epoch, self._oldest(owner), owner.newest)

    def _find(self, workspace: WorkspaceId) -> WorkspaceRecord | None:
        owner = self._owners.get(workspace)
        if owner is None:
            return None
        epoch = self.cluster.workspaces[workspace].epoch
        return WorkspaceRecord(workspace, owner.path, epoch, self._oldest(owner), owner.newest)

    def _join(self, path: str) -> WorkspaceRecord:
        record = super()._join(path)
        self.cluster.workspaces.setdefault(record.id, OwnedWorkspace())
        return record

    def _require_owner(self, workspace: WorkspaceId, epoch: int) -> Any:  # noqa: ANN401
        row, owner = self.cluster.workspaces.get(workspace), self._owners.get(workspace)
        if row is None or owner is None or row.owner is None or row.epoch != epoch:
            raise OwnerChanged
        return owner

    def _commit(self, workspace: WorkspaceId, epoch: int, ticket: int, writes: tuple[Write, ...]) -> tuple[Answer, ...]:
        try:
            return super()._commit(workspace, epoch, ticket, writes)
        finally:
            self._update_row(workspace)

    def _accept(self, workspace: WorkspaceId, writes: tuple[Write, ...]) -> tuple[Answer, ...]:
        try:
            return super()._accept(workspace, writes)
        finally:
            self._update_row(workspace)

    def _update_row(self, workspace: WorkspaceId) -> None:
        """Keep the newest number, and want an owner for new events, as the trigger of the real store does."""
        row, owner = self.cluster.workspaces.get(workspace), self._owners.get(workspace)
        if row is not None and owner is not None and row.newest != owner.newest:
            row.newest = owner.newest
            row.wanted = row.wanted or row.owner is None


async def _no_delay() -> None:
    """Do not delay."""


class NodeLedger:
    """The ledger as one node reaches it."""

    place = "p"

    def __init__(self, store: ClusterLedger, node: "HostNode") -> None:
        self._store = store
        for name in (*_METHODS, "own_workspace", "find_workspace"):
            setattr(self, name, partial(self._call, getattr(store, name), node))

    async def _call(self, method: Callable[..., Awaitable[object]], node: "HostNode", *arguments: object) -> object:
        if node.is_cut or not node.world.cluster.is_up:
            raise StorageUnavailable
        cuts = node.cuts
        result = await method(*arguments)
        if node.cuts != cuts:
            raise StorageUnknown
        return result

    async def problem(self) -> str:
        return ""


class NodeStore(MemoryClusterStore):
    """The rows of nodes as one node reaches them, with the reads of a workspace host."""

    def __init__(self, world: "HostWorld", context: contextvars.Context) -> None:
        super().__init__(world.cluster)
        self._world = world
        self._context = context

    async def set_clients(self, node: NodeId, workspace: WorkspaceId, clients: Mapping[str, int]) -> None:
        """Replace the clients of the node in a workspace."""

        def store() -> None:
            self._own(node)
            self._world.clients[node, workspace] = dict(clients)

        await self._call(store)

    async def workspace_states(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, WorkspaceState]:
        """Return newest event, owner and clients of workspaces."""
        wanted = list(workspaces)
        return await self._call(lambda: {name: self._world.state(name) for name in wanted if self._world.has(name)})

    async def want(self, workspace: WorkspaceId) -> bool:
        """Mark a workspace as one that needs an owner."""

        def mark() -> bool:
            row = self._world.cluster.workspaces[workspace]
            row.wanted = row.wanted or row.owner is None
            return row.owner is None

        return await self._call(mark)

    async def notify(self, notifications: Iterable[tuple[str, str]]) -> None:
        """Send notifications to all nodes; some may be lost."""

        def deliver() -> None:
            for channel, payload in notifications:
                for store in self._world.cluster.stores:
                    if not self._world.loses_notification():
                        store.deliver(channel, payload)

        await self._call(deliver)

    def deliver(self, channel: str, payload: str) -> None:
        """Deliver a notification in the context of this node."""
        asyncio.get_running_loop().call_soon(super().deliver, channel, payload, context=self._context)


class NodeServices:
    """The services of a workspace at one node: those of an engine, and a few that the server uses."""

    def __init__(self, node: "HostNode", record: WorkspaceRecord, environment: Mapping[str, str]) -> None:
        self.record = record
        self.environment = environment
        self.node = node
        self.await_tools: Callable[[], Awaitable[None]] | None = None
        self.is_started = self.is_closed = self.skips_graces = False
        self.removed: list[SessionId] = []
        self.jobs = SimpleNamespace(is_busy=False)
        self.settings = SimpleNamespace(options=SimpleNamespace(job_linger=1.0))
        self.extensions = SimpleNamespace()
        self.data_dir = Path("/nowhere")
        self._fixed = FixedServices(
            cast("Ledger", node.ledger),
            FixedModels(node.world.model),
            FixedTools(node.world.tools),
            SETTINGS,
            node.clock,
            node.new_id,
            judge=lambda _: Verdict("ask", "No rule.", ("bash(make)",)),
        )
        self.ledger, self.clock, self.new_id = self._fixed.ledger, node.clock, node.new_id
        self.judge, self.save_rule = self._fixed.judge, None
        node.services.append(self)

    def approval_timeout(self) -> float:
        return 60.0

    def run_context(self, record: WorkspaceRecord, approvals: "Approvals") -> "RunContext":
        return msgspec.structs.replace(self._fixed.run_context(record, approvals), await_tools=self.await_tools)

    def start(self) -> None:
        assert not self.is_started, "started twice"
        self.is_started = True

    def skip_graces(self) -> None:
        assert not self.is_closed, "closed already"
        self.skips_graces = True

    async def close(self) -> None:
        assert not self.is_closed, "closed twice"
        self.is_closed = True
        await asyncio.sleep(self.node.world.close_seconds)

    def add_client_keys(self, environment: Mapping[str, str]) -> None:
        pass

    def remove_session(self, session: SessionId) -> None:
        self.removed.append(session)


class NodeServer:
    """The services of one server."""

    def __init__(self, node: "HostNode") -> None:
        self.node = node
        self.data_dir = Path("/")
        self.overrides = SimpleNamespace(observe=None)
        self.ledger = node.ledger
        self.guard = self
        self.host: WorkspaceHost | None = None
        self.shared = None
        self.is_closed = False

    def set_deadline(self, at: float) -> None:
        self.node.deadline = at

    def workspace_services(
        self, record: WorkspaceRecord, environment: Mapping[str, str], _: object, __: object
    ) -> NodeServices:
        if self.node.fault is not None:
            error, self.node.fault = self.node.fault, None
            raise error
        return NodeServices(self.node, record, environment)

    async def close(self) -> None:
        self.is_closed = True


class _Manager(WorkspaceManager):
    def _release(self) -> None:
        """Keep the memory: a collection in each of thousands of tests takes too long."""
        del self._timers["release"]


class HostNode:
    """One server: host and manager. A closed one is replaced by a new object."""

    def __init__(self, world: "HostWorld", name: str) -> None:
        self.world = world
        self.name = name
        self.is_cut = self.is_suspended = False
        self.cuts = 0
        self.deadline = 0.0
        """The moment at which the guard freezes the processes."""
        self.services: list[NodeServices] = []
        self.fault: Exception | None = None
        """Raised when the services of a workspace are made the next time."""
        self.clock = CountingClock()
        self.new_id = counting_ids(name)
        self.ledger = NodeLedger(world.ledger, self)
        self._context = contextvars.copy_context()
        self._context.run(NODE.set, name)
        self.store = NodeStore(world, self._context)
        world.cluster.stores.append(self.store)
        self._tasks = TaskOwner()
        server = NodeServer(self)
        store = cast("PostgresCluster", self.store)
        self.host = WorkspaceHost(
            cast("ServerServices", server),
            cast("PostgresLedger", self.ledger),
            store,
            clock=asyncio.get_running_loop().time,
            new_id=counting_ids(f"{name}-node"),
        )
        server.host = self.host
        self.manager = _Manager(cast("ServerServices", server), graces=_GRACES)
        self._context.run(self.manager.start)

    def start(self, request: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task of this server for a client, who handles its errors."""
        return self._context.run(lambda: self._tasks.start(request, name=f"request to {self.name}", done=_retrieve))

    def call(self, act: Callable[[], T]) -> T:
        """Call a function of this server."""
        return self._context.run(act)

    async def create(self, path: str = "/", client: str = "") -> WorkspaceHandle:
        """Open a workspace for a client."""
        name = client or self.world.new_client()
        return await self.start(self.manager.create(WorkspaceBody(WorkspaceId(""), path, client_id=name)))

    def node_of(self, workspace: WorkspaceId) -> NodeWorkspace | None:
        """Return the workspace as it is open here."""
        return self.host.get(workspace)

    def owns(self, workspace: WorkspaceId) -> bool:
        """Return whether the workspace is open here as its owner."""
        node = self.host.get(workspace)
        return node is not None and node.is_local

    def cut(self) -> None:
        """Cut the server off from the database."""
        self.is_cut = self.store.is_cut = True
        self.cuts += 1

    def heal(self) -> None:
        """Connect and resume the server."""
        self.is_cut = self.store.is_cut = self.is_suspended = False

    async def close(self) -> None:
        """Stop the server in order."""
        await self.start(self.manager.close())
        self._tasks.cancel_all()


class HostWorld:
    """The database and the servers."""

    def __init__(
        self, *, pace: Callable[[], Awaitable[None]] | None = None, loses_notification: Callable[[], bool] | None = None
    ) -> None:
        self.cluster = MemoryCluster()
        self.ledger = ClusterLedger(self.cluster, pace)
        self.clients: dict[tuple[NodeId, WorkspaceId], dict[str, int]] = {}
        self.loses_notification = loses_notification or (lambda: False)
        self.model: Model = ScriptedModel(lambda _: Step((Say("words"),)))
        self.tools: Sequence[Tool] = ()
        self.nodes: list[HostNode] = []
        self.known: dict[str, HostNode] = {}
        """Also those that were stopped."""
        self.close_seconds = 0.0
        """How long the services of a workspace take to end."""
        self._numbers = count(1)

    def add(self, name: str) -> HostNode:
        """Start a server."""
        node = self.known[name] = HostNode(self, name)
        self.nodes.append(node)
        return node

    def new_client(self) -> str:
        """Return the id of a new client."""
        return f"00000000-0000-4000-8000-{next(self._numbers):012}"

    def has(self, workspace: WorkspaceId) -> bool:
        """Return whether there is such a workspace."""
        return workspace in self.cluster.workspaces

    def state(self, workspace: WorkspaceId) -> WorkspaceState:
        """Return newest event, owner and clients of a workspace."""
        row = self.cluster.workspaces[workspace]
        owner = None if row.owner is None else OwnerInfo(row.owner, "")
        clients = {
            node: dict(counts)
            for (node, name), counts in self.clients.items()
            if name == workspace and node in self.cluster.nodes and counts
        }
        return WorkspaceState(row.newest, owner, clients)

    def evict_owner(self, workspace: WorkspaceId) -> None:
        """Declare the owner of a workspace dead, as an operator may."""
        owner = self.cluster.workspaces[workspace].owner
        if owner is not None:
            self.cluster.free(owner)

    async def close(self) -> None:
        """Stop all servers."""
        for node in self.nodes:
            node.heal()
            await node.close()


def _retrieve(task: "asyncio.Task[Any]") -> None:
    if not task.cancelled():
        task.exception()
