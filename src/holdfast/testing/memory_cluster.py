"""The rows of nodes and owners in memory, for tests of several nodes in virtual time, with faults."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec

from holdfast.cluster.lease_events import Grant, Row
from holdfast.cluster.ports import NodeGone, NodeInfo, Observation
from holdfast.domain.errors import StorageUnavailable, StorageUnknown
from holdfast.domain.ids import NodeId, WorkspaceId

__all__ = ["MemoryCluster", "MemoryClusterStore", "OwnedWorkspace"]

T = TypeVar("T")


class OwnedWorkspace(msgspec.Struct):
    """The row of a workspace."""

    place: str = "p"
    owner: NodeId | None = None
    epoch: int = 0
    newest: int = 0
    wanted: bool = True
    hinted: tuple[tuple[NodeId, int], ...] = ()


class _Node(msgspec.Struct):
    places: frozenset[str]
    address: str
    joined: float
    heartbeat: int = 0
    is_draining: bool = False


class MemoryCluster:
    """The database. `connect` returns the store of one node."""

    def __init__(self) -> None:
        self.is_up = True
        self.nodes: dict[NodeId, _Node] = {}
        self.workspaces: dict[WorkspaceId, OwnedWorkspace] = {}
        self.evicted: list[NodeId] = []
        self.stores: list[MemoryClusterStore] = []

    def connect(self) -> "MemoryClusterStore":
        """Return the store as one node reaches it."""
        self.stores.append(MemoryClusterStore(self))
        return self.stores[-1]

    def stop(self, *, cuts: bool = True) -> None:
        """Refuse everything from now on; with `cuts` all LISTEN connections break as well."""
        self.is_up = False
        if cuts:
            for store in self.stores:
                store.lose_listener()

    def add_input(self, workspace: WorkspaceId) -> None:
        """Store an event of a workspace as any node may, and notify the others if it needs an owner."""
        row = self.workspaces[workspace]
        row.newest += 1
        if row.owner is None:
            row.wanted = True
            for store in self.stores:
                store.deliver("holdfast_wanted", row.place)

    def free(self, node: NodeId, hinted: tuple[tuple[NodeId, int], ...] = ()) -> None:
        """Delete a node and take its workspaces from it."""
        del self.nodes[node]
        for row in self.workspaces.values():
            if row.owner == node:
                row.owner, row.wanted, row.epoch, row.hinted = None, True, row.epoch + 1, row.hinted + hinted


class MemoryClusterStore:
    """The store as one node reaches it.

    `is_cut`: nothing of the node arrives, and nothing returns. `delay` is the time of each request in one direction.
    `loses_reply`: the next request is executed, but its outcome is unknown.
    """

    def __init__(self, cluster: MemoryCluster) -> None:
        self._cluster = cluster
        self.is_cut = False
        self.delay = 0.0
        self.loses_reply = False
        self._listener: tuple[NodeId, Callable[[str, str], None], Callable[[], None]] | None = None

    async def join(self, node: NodeId, places: frozenset[str], address: str) -> None:
        """Insert the row of a new node."""

        def insert() -> None:
            self._cluster.nodes[node] = _Node(places, address, asyncio.get_running_loop().time())

        await self._call(insert)

    async def heartbeat(self, node: NodeId) -> None:
        """Increase the heartbeat of the node."""

        def increase() -> None:
            self._own(node).heartbeat += 1

        await self._call(increase)

    async def observe(self, node: NodeId) -> Observation:
        """Return all nodes."""
        return await self._call(self._observe)

    def _observe(self) -> Observation:
        rows = {
            name: Row(
                row.heartbeat,
                any(store.listens(name) for store in self._cluster.stores),
                row.places,
                row.is_draining,
                sum(workspace.owner == name for workspace in self._cluster.workspaces.values()),
            )
            for name, row in self._cluster.nodes.items()
        }
        wanted: dict[str, int] = {}
        for workspace in self._cluster.workspaces.values():
            if workspace.owner is None and workspace.wanted:
                wanted[workspace.place] = wanted.get(workspace.place, 0) + 1
        return Observation(rows, wanted)

    async def evict(self, node: NodeId, dead: NodeId, heartbeat: int, *, by_hint: bool) -> bool:
        """Evict a node if its heartbeat has not changed."""

        def evict() -> bool:
            self._own(node)
            row = self._cluster.nodes.get(dead)
            if row is None or row.heartbeat != heartbeat:
                return False
            self._cluster.free(dead, ((dead, heartbeat),) if by_hint else ())
            self._cluster.evicted.append(dead)
            for store in self._cluster.stores:
                if store.listens(dead):
                    store.lose_listener()
            return True

        return await self._call(evict)

    async def claim(
        self, node: NodeId, limits: tuple[tuple[str, int], ...], held: frozenset[WorkspaceId]
    ) -> tuple[Grant, ...]:
        """Own workspaces that need an owner."""

        def claim() -> tuple[Grant, ...]:
            self._own(node)
            left, grants = dict(limits), list[Grant]()
            for name, row in self._cluster.workspaces.items():
                is_lost = row.owner == node and name not in held
                is_free = row.owner is None and row.wanted and left.get(row.place, 0) > 0
                if is_free:
                    left[row.place] -= 1
                if is_lost or is_free:
                    row.owner, row.wanted, row.epoch = node, False, row.epoch + 1
                    grants.append(Grant(name, row.epoch, row.hinted))
            return tuple(grants)

        return await self._call(claim)

    async def release(self, node: NodeId, workspace: WorkspaceId, epoch: int, newest: int | None) -> bool:
        """Give up a workspace unless it has an event after `newest`."""

        def release() -> bool:
            row = self._cluster.workspaces[workspace]
            if (row.owner, row.epoch) != (node, epoch):
                return True
            if newest is not None and row.newest != newest:
                return False
            row.owner, row.wanted, row.epoch = None, newest is None, row.epoch + 1
            return True

        return await self._call(release)

    async def settle(self, workspace: WorkspaceId, epoch: int) -> None:
        """Forget evictions by hint."""

        def settle() -> None:
            row = self._cluster.workspaces[workspace]
            if row.epoch == epoch:
                row.hinted = ()

        await self._call(settle)

    async def mark_draining(self, node: NodeId) -> None:
        """Store that the node drains."""

        def mark() -> None:
            self._own(node).is_draining = True

        await self._call(mark)

    async def leave(self, node: NodeId) -> None:
        """Delete the row of the node."""
        await self._call(lambda: self._cluster.free(node) if node in self._cluster.nodes else None)

    async def list_nodes(self) -> list[NodeInfo]:
        """Return all members."""
        rows, now = (await self._call(self._observe)).rows, asyncio.get_running_loop().time()
        return [
            NodeInfo(
                name,
                node.address,
                tuple(sorted(node.places)),
                now - node.joined,
                rows[name].owned,
                node.is_draining,
                rows[name].listens,
            )
            for name, node in self._cluster.nodes.items()
        ]

    async def listen(self, node: NodeId, received: Callable[[str, str], None], lost: Callable[[], None]) -> "_Listener":
        """Open the LISTEN connection."""

        def listen() -> _Listener:
            self._listener = node, received, lost
            return _Listener(self)

        return await self._call(listen)

    # Faults

    def listens(self, node: NodeId) -> bool:
        """Return whether this is the LISTEN connection of a node."""
        return self._listener is not None and self._listener[0] == node

    def lose_listener(self) -> None:
        """Break the LISTEN connection."""
        if self._listener is not None:
            _, _, lost = self._listener
            self._listener = None
            lost()

    def deliver(self, channel: str, payload: str) -> None:
        """Deliver a notification."""
        if self._listener is not None and not self.is_cut:
            self._listener[1](channel, payload)

    def _own(self, node: NodeId) -> _Node:
        try:
            return self._cluster.nodes[node]
        except KeyError:
            raise NodeGone from None

    async def _call(self, request: Callable[[], T]) -> T:
        await self._travel()
        answer = request()
        if self.loses_reply:
            self.loses_reply = False
            raise StorageUnknown
        await self._travel()
        return answer

    async def _travel(self) -> None:
        await asyncio.sleep(self.delay)
        if self.is_cut:
            # A packet that is dropped; the caller gives up.
            await asyncio.get_running_loop().create_future()
        if not self._cluster.is_up:
            raise StorageUnavailable


class _Listener:
    def __init__(self, store: MemoryClusterStore) -> None:
        self._store = store

    async def close(self) -> None:
        self._store.lose_listener()
