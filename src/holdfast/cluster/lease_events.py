"""Events and effects of the lease state machine (`lease_state_machine`). Pure."""

from collections.abc import Mapping
from typing import TypeAlias

import msgspec

from holdfast.domain.ids import NodeId, WorkspaceId

# fmt: off
__all__ = [
    "AllowTools",
    "AwaitTools",
    "Claim",
    "ClaimFailed",
    "Claimed",
    "Close",
    "Drain",
    "Drop",
    "Effect",
    "Evict",
    "EvictDone",
    "EvictFailed",
    "Freeze",
    "Grant",
    "HeartbeatDue",
    "HeartbeatFailed",
    "HeartbeatStored",
    "Idle",
    "Join",
    "Joined",
    "Keep",
    "LeaseEvent",
    "Leave",
    "ListenLost",
    "Listening",
    "MarkDraining",
    "Observed",
    "OfNode",
    "OfWorkspace",
    "OwnershipLost",
    "Read", "ReadAt",
    "ReadFailed",
    "Release",
    "ReleaseFailed",
    "ReleaseRefused",
    "Released",
    "Row",
    "RowMissing",
    "SendHeartbeat",
    "SetDeadline",
    "Settle",
    "ToolsDue",
    "Wanted",
]
# fmt: on


class Row(msgspec.Struct, frozen=True):
    """A node as the database shows it. `listens` is whether its advisory lock is held."""

    heartbeat: int
    listens: bool = True
    places: frozenset[str] = frozenset()
    is_draining: bool = False
    owned: int = 0


class Grant(msgspec.Struct, frozen=True):
    """A claimed workspace. `hinted` are the earlier owners that were evicted by hint, with their last heartbeats."""

    workspace: WorkspaceId
    epoch: int
    hinted: tuple[tuple[NodeId, int], ...] = ()


# Events. Those with a node are answers to an effect, or readings, for that incarnation of this node.


class OfNode(msgspec.Struct, frozen=True):
    """Base of an answer to, or a request of, one incarnation of this node."""

    node: NodeId


class OfWorkspace(msgspec.Struct, frozen=True):
    """Base of events and effects of a workspace under one epoch."""

    workspace: WorkspaceId
    epoch: int


class Joined(OfNode, frozen=True):
    """The row of this node was inserted, by a request that was sent at `sent`."""

    sent: float


class HeartbeatDue(msgspec.Struct, frozen=True):
    """The interval of heartbeats has passed."""

    now: float


class HeartbeatStored(OfNode, frozen=True):
    """The heartbeat in flight was stored."""


class HeartbeatFailed(OfNode, frozen=True):
    """The outcome of the heartbeat in flight is unknown; it does not extend the deadline."""


class RowMissing(OfNode, frozen=True):
    """A request found no row of this node: it was declared dead."""


class Listening(msgspec.Struct, frozen=True):
    """The LISTEN connection holds the advisory lock of this node."""


class ListenLost(msgspec.Struct, frozen=True):
    """The LISTEN connection broke."""

    now: float


class Observed(OfNode, frozen=True):
    """A read of all nodes, from `began` to `ended`. `wanted` counts the workspaces of each place that need an owner."""

    began: float
    ended: float
    rows: Mapping[NodeId, Row]
    wanted: Mapping[str, int] = {}


class ReadFailed(OfNode, frozen=True):
    """The nodes could not be read."""


class EvictDone(OfNode, frozen=True):
    """The eviction of `dead` was decided: done, or refused because its heartbeat had changed."""

    dead: NodeId


class EvictFailed(OfNode, frozen=True):
    """The outcome of the eviction of `dead` is unknown; the next reads show it."""

    dead: NodeId


class Wanted(msgspec.Struct, frozen=True):
    """A notification: a workspace of this place needs an owner."""

    place: str


class Claimed(OfNode, frozen=True):
    """The claim in flight was stored."""

    now: float
    grants: tuple[Grant, ...]


class ClaimFailed(OfNode, frozen=True):
    """The outcome of the claim in flight is unknown; reads show workspaces that it obtained."""


class ToolsDue(OfWorkspace, frozen=True):
    """The timer of `AwaitTools` has fired."""

    now: float


class OwnershipLost(OfWorkspace, frozen=True):
    """A write with this epoch was refused by the fence."""


class Idle(OfWorkspace, frozen=True):
    """The workspace has no work and starts none before `Keep`. `newest` is the last event number it has processed;
    None if it was stopped with work left, which the next owner continues.
    """

    newest: int | None


class Released(OfWorkspace, frozen=True):
    """This node does not own the workspace any more."""


class ReleaseRefused(OfWorkspace, frozen=True):
    """The workspace has an event after `newest`."""


class ReleaseFailed(OfWorkspace, frozen=True):
    """The outcome of the release is unknown; it is repeated with the next read."""


class Drain(msgspec.Struct, frozen=True):
    """Stop claiming, and leave when no workspace is held."""


LeaseEvent: TypeAlias = (
    Joined | HeartbeatDue | HeartbeatStored | HeartbeatFailed | RowMissing | Listening | ListenLost | Observed
    | ReadFailed | EvictDone | EvictFailed | Wanted | Claimed | ClaimFailed | ToolsDue | OwnershipLost | Idle
    | Released | ReleaseRefused | ReleaseFailed | Drain
)  # fmt: skip


# Effects.


class Join(msgspec.Struct, frozen=True):
    """Insert a row under a new id, until it succeeds. `Joined` follows."""


class SendHeartbeat(OfNode, frozen=True):
    """Increase the heartbeat. `HeartbeatStored`, `HeartbeatFailed` or `RowMissing` follows."""


class SetDeadline(msgspec.Struct, frozen=True):
    """Let tools run until `at`; resume frozen ones if it is in the future."""

    at: float


class Freeze(msgspec.Struct, frozen=True):
    """Freeze all tools until the next `SetDeadline`."""


class Read(OfNode, frozen=True):
    """Read the nodes now, without waiting for the interval. `Observed` or `ReadFailed` follows."""


class ReadAt(OfNode, frozen=True):
    """Read the nodes at a time before the next interval, when a silence becomes long enough to evict."""

    at: float


class Evict(OfNode, frozen=True):
    """Evict `dead` if `heartbeat` is still its heartbeat. `EvictDone`, `EvictFailed` or `RowMissing` follows."""

    dead: NodeId
    heartbeat: int
    by_hint: bool


class Claim(OfNode, frozen=True):
    """Claim workspaces that need an owner, for each place up to its limit, and all that the database assigns to this
    node and that are not in `held`. `Claimed`, `ClaimFailed` or `RowMissing` follows.
    """

    limits: tuple[tuple[str, int], ...]
    held: frozenset[WorkspaceId]


class AwaitTools(OfWorkspace, frozen=True):
    """Accept inputs and store ends, but start no tool. Start a timer; `ToolsDue` follows at `at`."""

    at: float


class AllowTools(OfWorkspace, frozen=True):
    """Recover the workspace if that has not begun, and start tools as needed."""


class Settle(OfWorkspace, frozen=True):
    """Forget the evictions by hint of earlier owners: their leases are over. No answer; a failure only costs time."""


class Drop(OfWorkspace, frozen=True):
    """Kill the tools of the workspace at once and discard its state. Nothing is stored."""


class Release(OfWorkspace, frozen=True):
    """Give up the workspace if `newest` is still its newest event; in any case if that is None. `Released`,
    `ReleaseRefused` or `ReleaseFailed` follows.
    """

    newest: int | None


class Close(OfWorkspace, frozen=True):
    """The release is stored: discard the state of the workspace."""


class Keep(OfWorkspace, frozen=True):
    """The release was refused: process the new events."""


class MarkDraining(OfNode, frozen=True):
    """Store that this node drains, so that the others do not count it. No answer."""


class Leave(OfNode, frozen=True):
    """Delete the row and free every workspace that the database assigns to this node. No answer."""


Effect: TypeAlias = (
    Join | SendHeartbeat | SetDeadline | Freeze | Read | ReadAt | Evict | Claim | AwaitTools | AllowTools | Settle
    | Drop | Release | Close | Keep | MarkDraining | Leave
)  # fmt: skip
