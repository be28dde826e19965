"""Dependencies of the membership of a node, as Protocols."""

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from holdfast.cluster.lease_events import Grant, Row
from holdfast.domain.ids import NodeId, WorkspaceId

__all__ = [
    "ClusterStore",
    "ListenConnection",
    "NodeGone",
    "NodeInfo",
    "Observation",
    "OwnerInfo",
    "RelayTarget",
    "WorkspaceHost",
    "WorkspaceState",
]


class NodeGone(Exception):
    """This server was declared dead by another one, which has taken over its workspaces."""


class Observation(msgspec.Struct, frozen=True):
    """The nodes at one moment, and how many workspaces of each place need an owner."""

    rows: Mapping[NodeId, Row]
    wanted: Mapping[str, int]


class NodeInfo(msgspec.Struct, frozen=True):
    """A member as `holdfast nodes` shows it. `since` is the number of seconds since it joined, by the clock of the
    database. `runs` are active ones, `clients` those of all its workspaces.
    """

    node: NodeId
    address: str
    places: tuple[str, ...]
    since: float
    workspaces: int
    is_draining: bool
    listens: bool
    version: str = ""
    runs: int = 0
    clients: int = 0


class OwnerInfo(msgspec.Struct, frozen=True):
    """The node that owns a workspace, and the address at which it answers requests of other nodes."""

    node: NodeId
    address: str


class RelayTarget(msgspec.Struct, frozen=True):
    """The owner of a workspace with its address, and the token that it accepts from other nodes."""

    node: NodeId
    address: str
    token: str

    def __repr__(self) -> str:
        return f"RelayTarget({self.node}, {self.address})"


class WorkspaceState(msgspec.Struct, frozen=True):
    """Newest event, owner, and the clients of each node by session ("" without one)."""

    newest: int
    owner: OwnerInfo | None
    clients: dict[NodeId, dict[str, int]]


class ListenConnection(Protocol):
    """The LISTEN connection of a node, which holds its advisory lock."""

    async def close(self) -> None:
        """Close the connection, which releases the lock."""
        ...


class ClusterStore(Protocol):
    """The rows of nodes and the owners of workspaces.

    Every method raises `StorageError` if its outcome is unknown or the database cannot be reached, and those with a
    `node` raise `NodeGone` if it has no row, except `join` and `leave`.
    """

    async def join(self, node: NodeId, places: frozenset[str], address: str) -> None:
        """Insert the row of a new node."""
        ...

    async def heartbeat(self, node: NodeId) -> None:
        """Increase the heartbeat of the node."""
        ...

    async def observe(self, node: NodeId) -> Observation:
        """Return all nodes. The row of `node` may be missing."""
        ...

    async def evict(self, node: NodeId, dead: NodeId, heartbeat: int, *, by_hint: bool) -> bool:
        """Delete the row of `dead`, end its connections and free its workspaces, if `heartbeat` is its heartbeat."""
        ...

    async def claim(
        self, node: NodeId, limits: tuple[tuple[str, int], ...], held: frozenset[WorkspaceId]
    ) -> tuple[Grant, ...]:
        """Own workspaces that need an owner, up to the limit of each place, and those that belong to the node and are
        not in `held`.
        """
        ...

    async def release(self, node: NodeId, workspace: WorkspaceId, epoch: int, newest: int | None) -> bool:
        """Give up a workspace. Returns False if it has an event after `newest`, True if the node does not own it now.

        Without `newest` the workspace has work left and needs an owner.
        """
        ...

    async def settle(self, workspace: WorkspaceId, epoch: int) -> None:
        """Forget evictions by hint of earlier owners of a workspace."""
        ...

    async def mark_draining(self, node: NodeId) -> None:
        """Store that the node drains."""
        ...

    async def leave(self, node: NodeId) -> None:
        """Delete the row of the node and free its workspaces, which need an owner."""
        ...

    async def list_nodes(self) -> list[NodeInfo]:
        """Return all members."""
        ...

    async def listen(
        self, node: NodeId, received: Callable[[str, str], None], lost: Callable[[], None]
    ) -> ListenConnection:
        """Open the LISTEN connection of the node and take its lock.

        `received` is called with the channel and payload of each notification, `lost` once if the connection breaks.
        """
        ...


class WorkspaceHost(Protocol):
    """The workspaces of this node, as membership needs them. No method raises."""

    def set_deadline(self, at: float) -> None:
        """Let tools run until `at`, a time of the clock of the membership."""
        ...

    def freeze(self) -> None:
        """Freeze all tools until the next deadline."""
        ...

    def open(self, workspace: WorkspaceId, epoch: int, *, may_run_tools: bool) -> None:
        """Recover a workspace that this node owns, and start tools only if it may. Called again when it may."""
        ...

    async def drop(self, workspace: WorkspaceId, epoch: int) -> None:
        """Kill the tools of a workspace and discard its state. Returns when no process of them is left."""
        ...

    def close(self, workspace: WorkspaceId, epoch: int) -> None:
        """Discard the state of a workspace that was released."""
        ...

    def keep(self, workspace: WorkspaceId, epoch: int) -> None:
        """Continue a workspace whose release was refused: it has new events."""
        ...

    def handle_notification(self, channel: str, payload: str) -> None:
        """Handle a notification that is not about membership."""
        ...

    def request_drain(self) -> None:
        """Start to drain: an operator has requested it through the database. May be called several times."""
        ...
