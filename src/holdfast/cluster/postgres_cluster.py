"""Nodes and owners of workspaces in PostgreSQL.

Each method is one call of a function of migration 0002. Imported only when the store is on PostgreSQL.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any

import asyncpg
import msgspec

from holdfast import __version__
from holdfast.cluster.lease_events import Grant, Row
from holdfast.cluster.notifications import CHANNELS, CLIENTS_CHANNEL, DELTA_CHANNEL, EVENTS_CHANNEL
from holdfast.cluster.ports import NodeGone, NodeInfo, Observation, OwnerInfo, RelayTarget, WorkspaceState
from holdfast.domain.errors import StorageUnavailable
from holdfast.domain.ids import NodeId, WorkspaceId
from holdfast.storage.postgres.asyncpg_errors import ERRORS
from holdfast.storage.postgres.batch_keys import searchable
from holdfast.storage.postgres.connection_pool import Pool
from holdfast.tasks import TaskOwner

__all__ = ["LOCK_CLASS", "PostgresCluster", "application_name"]

LOCK_CLASS = 1213039694
"""First key of the advisory locks of nodes; migration 0002 contains it as well."""
_EVICT_ATTEMPTS = 10
_PING_SECONDS = 1.0
_PING_TIMEOUT = 2.0
_ABOUT_WORKSPACES = {EVENTS_CHANNEL, CLIENTS_CHANNEL, DELTA_CHANNEL}
"""Channels on which a node ignores its own notifications."""
_MAX_SENDERS = 8
"""Connections of this node that are remembered as senders of notifications; the pool has fewer."""


def application_name(process: str) -> str:
    """Return the name of all connections of a server process, by which an eviction ends them."""
    return f"holdfast {process}"[:63]


class PostgresCluster:
    """The store of the cluster as one node reaches it.

    `pool` is not that of the ledger, whose slow statements would delay heartbeats. Its connections, and all others of
    this process, have a name made by `application_name`.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._keys: dict[NodeId, int] = {}
        self._senders: dict[int, None] = {}
        """Process ids in PostgreSQL of the connections that have sent notifications, the latest one last."""

    @property
    def pool(self) -> Pool:
        """The connections, for metrics."""
        return self._pool

    async def join(self, node: NodeId, places: frozenset[str], address: str) -> None:
        """Insert the row of a new node."""
        arguments = node, sorted(places), address, __version__
        key = await self._call("SELECT holdfast.node_join($1, $2, $3, $4)", *arguments)
        self._keys = {node: key}

    async def heartbeat(self, node: NodeId) -> None:
        """Increase the heartbeat of the node."""
        await self._call("SELECT holdfast.node_heartbeat($1)", node)

    async def observe(self, node: NodeId) -> Observation:
        """Return all nodes. The row of `node` may be missing."""
        nodes: dict[NodeId, Row] = {}
        wanted: dict[str, int] = {}
        for item in await self._pool.fetch("SELECT * FROM holdfast.node_list()"):
            if item["id"] is None:
                wanted[item["places"][0]] = item["workspaces"]
                continue
            nodes[NodeId(item["id"])] = Row(
                item["heartbeat"], item["listens"], frozenset(item["places"]), item["is_draining"], item["workspaces"]
            )
        return Observation(nodes, wanted)

    async def evict(self, node: NodeId, dead: NodeId, heartbeat: int, *, by_hint: bool) -> bool:
        """Evict a node if its heartbeat has not changed."""
        return await self._call("SELECT holdfast.node_evict($1, $2, $3, $4)", node, dead, heartbeat, by_hint) == 1

    async def claim(
        self, node: NodeId, limits: tuple[tuple[str, int], ...], held: frozenset[WorkspaceId]
    ) -> tuple[Grant, ...]:
        """Own workspaces that need an owner."""
        # One row with arrays: `write` returns one row, and its errors tell an unknown outcome.
        row = await self._pool.write(
            "SELECT array_agg(id) AS ids, array_agg(epoch) AS epochs, array_agg(to_json(hinted_nodes)::text) AS nodes,"
            " array_agg(to_json(hinted_heartbeats)::text) AS beats FROM holdfast.node_claim($1, $2, $3, $4)",
            node,
            [place for place, _ in limits],
            [limit for _, limit in limits],
            sorted(held),
        )
        if row is None or row["ids"] is None:
            return ()
        if row["ids"] == [None]:
            raise NodeGone
        return tuple(
            _grant(*found) for found in zip(row["ids"], row["epochs"], row["nodes"], row["beats"], strict=True)
        )

    async def release(self, node: NodeId, workspace: WorkspaceId, epoch: int, newest: int | None) -> bool:
        """Give up a workspace unless it has an event after `newest`."""
        return await self._call("SELECT holdfast.node_release($1, $2, $3, $4)", node, workspace, epoch, newest) == 1

    async def settle(self, workspace: WorkspaceId, epoch: int) -> None:
        """Forget evictions by hint."""
        await self._pool.write("SELECT holdfast.node_settle($1, $2)", workspace, epoch)

    async def mark_draining(self, node: NodeId) -> None:
        """Store that the node drains."""
        # The id may come from a client.
        await self._call("SELECT holdfast.node_drain($1)", searchable(node))

    async def leave(self, node: NodeId) -> None:
        """Delete the row of the node."""
        await self._call("SELECT holdfast.node_leave($1)", node)

    async def list_nodes(self) -> list[NodeInfo]:
        """Return all members."""
        return [
            NodeInfo(
                NodeId(item["id"]),
                item["address"],
                tuple(item["places"]),
                item["since"],
                item["workspaces"],
                item["is_draining"],
                item["listens"],
                item["version"],
                item["runs"],
                item["clients"],
            )
            for item in await self._pool.fetch("SELECT * FROM holdfast.node_members()")
        ]

    async def evict_on_request(self, node: NodeId, other: NodeId) -> bool:
        """Evict a node that may be alive. Returns False if it is no member.

        Recorded like an eviction by hint, because its tools may run until it notices: later owners start none before
        its lease is over.
        """
        for _ in range(_EVICT_ATTEMPTS):
            row = (await self.observe(node)).rows.get(other)
            if row is None:
                return False
            # It may have sent a heartbeat since, or hold a lock on its row at this moment.
            if await self.evict(node, other, row.heartbeat, by_hint=True):
                return True
        raise StorageUnavailable("The node could not be evicted now: try again in a moment.")

    async def set_clients(self, node: NodeId, workspace: WorkspaceId, clients: Mapping[str, int]) -> None:
        """Replace the clients of the node in a workspace, counted by session."""
        arguments = list(clients), list(clients.values())
        await self._call("SELECT holdfast.node_set_clients($1, $2, $3, $4)", node, workspace, *arguments)

    async def workspace_states(self, workspaces: Iterable[WorkspaceId]) -> dict[WorkspaceId, WorkspaceState]:
        """Return newest event, owner and clients of workspaces. Unknown ones are missing."""
        states: dict[WorkspaceId, WorkspaceState] = {}
        for row in await self._pool.fetch("SELECT * FROM holdfast.node_workspaces($1)", list(workspaces)):
            name = WorkspaceId(row["id"])
            if name not in states:
                owner = None if row["owner"] is None else OwnerInfo(NodeId(row["owner"]), row["address"])
                states[name] = WorkspaceState(row["newest"], owner, {})
            if row["node"] is not None:
                states[name].clients.setdefault(NodeId(row["node"]), {})[row["session"]] = row["clients"]
        return states

    async def relay_target(self, workspace: WorkspaceId) -> RelayTarget | None:
        """Return the owner of a workspace for a request that is relayed to it, or None without an owner."""
        rows = await self._pool.fetch("SELECT * FROM holdfast.relay_target($1)", workspace)
        return RelayTarget(NodeId(rows[0]["node"]), rows[0]["address"], rows[0]["token"]) if rows else None

    async def relay_token(self, node: NodeId) -> str:
        """Return the token that a node accepts from others; empty if it is not a member."""
        rows = await self._pool.fetch("SELECT * FROM holdfast.relay_token($1)", node)
        return str(rows[0]["token"]) if rows else ""

    async def want(self, workspace: WorkspaceId) -> bool:
        """Mark a workspace as one that needs an owner. Returns whether it has none."""
        return await self._call("SELECT holdfast.node_want($1)", workspace) == 1

    async def label_place(self, own: str, label: str) -> None:
        """Move the workspaces of a place that has got a name to the place of that name."""
        await self._call("SELECT holdfast.node_label_place($1, $2)", own, label)

    async def notify(self, notifications: Iterable[tuple[str, str]]) -> None:
        """Send notifications, each of a channel and a payload of less than 8,000 bytes."""
        channels, payloads = zip(*notifications, strict=True)
        statement = "SELECT pg_backend_pid() FROM holdfast.node_notify($1, $2)"
        process = await self._call(statement, list(channels), list(payloads))
        self._senders.pop(process, None)
        self._senders[process] = None
        if len(self._senders) > _MAX_SENDERS:
            del self._senders[next(iter(self._senders))]

    async def listen(
        self, node: NodeId, received: Callable[[str, str], None], lost: Callable[[], None]
    ) -> "_ListenConnection":
        """Open the LISTEN connection. Notifications of this node itself about workspaces are left out: it knows what it
        has stored, and a read for each would only cost time.
        """
        try:
            connection = await asyncpg.connect(**self._pool.options, statement_cache_size=0)
        except (*ERRORS, ValueError):
            raise StorageUnavailable from None
        listener = _ListenConnection(connection, received, lost, self._senders)
        try:
            await listener.open(self._keys[node])
        except BaseException as error:
            connection.terminate()
            if isinstance(error, ERRORS):
                raise StorageUnavailable from None
            raise
        return listener

    async def _call(self, statement: str, *arguments: object) -> int:
        row = await self._pool.write(statement, *arguments)
        assert row is not None
        answer = int(row[0])
        if answer < 0:
            raise NodeGone
        return answer


class _ListenConnection:
    def __init__(
        self,
        connection: Any,  # noqa: ANN401
        received: Callable[[str, str], None],
        lost: Callable[[], None],
        own: Collection[int],
    ) -> None:
        self._connection = connection
        self._own = own
        self._received = received
        self._lost = lost
        self._tasks = TaskOwner()

    async def open(self, key: int) -> None:
        await self._connection.execute(f"SELECT pg_advisory_lock({LOCK_CLASS}, {key})")
        self._connection.add_termination_listener(lambda _: self._lost())
        for channel in CHANNELS:
            await self._connection.add_listener(channel, self._receive)
        self._tasks.start(self._ping(), name="cluster: ping")

    async def close(self) -> None:
        self._tasks.cancel_all()
        await self._tasks.drain()
        with suppress(*ERRORS):
            await self._connection.close(timeout=_PING_TIMEOUT)

    def _receive(self, _: object, process: int, channel: str, payload: str) -> None:
        if channel not in _ABOUT_WORKSPACES or process not in self._own:
            self._received(channel, payload)

    async def _ping(self) -> None:
        """Find out that the connection was cut: without a statement nothing would show it for hours."""
        while True:
            await asyncio.sleep(_PING_SECONDS)
            try:
                await self._connection.execute("SELECT 1", timeout=_PING_TIMEOUT)
            except ERRORS:
                self._connection.terminate()
                self._lost()
                return


def _grant(name: str, epoch: int, nodes: str, heartbeats: str) -> Grant:
    hinted = zip(
        msgspec.json.decode(nodes, type=list[NodeId]), msgspec.json.decode(heartbeats, type=list[int]), strict=True
    )
    return Grant(WorkspaceId(name), epoch, tuple(hinted))
