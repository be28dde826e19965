"""A model of three nodes and their database, for the exhaustive walk of the lease machine.

Time is counted in ticks. In each tick every healthy node sends a heartbeat, reads the nodes and completes its requests,
in any order; only then the tick ends. Faults may happen at any point: a node is paused, cut off, killed, or loses its
LISTEN connection; the database stops, with or without its connections; a heartbeat is slow; a reply is lost.

States are relative, so that they recur: the present is time 0, the stored heartbeat of each node and the stored epoch
of each workspace are 0, and earlier ones are -1. A view of one node is represented by a number (`Views`), and steps of
single views are remembered. A node that was evicted is renamed: `a` becomes `a-`.
"""

from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from cluster.lease_views import FLOOR, Views, outdated_epoch, outdated_peer, renamed, shifted
from holdfast.cluster.lease_events import (
    AllowTools,
    Claim,
    Claimed,
    ClaimFailed,
    Drain,
    Drop,
    Effect,
    Evict,
    EvictDone,
    EvictFailed,
    Freeze,
    Grant,
    HeartbeatDue,
    HeartbeatFailed,
    HeartbeatStored,
    Idle,
    Join,
    Joined,
    LeaseEvent,
    Leave,
    Listening,
    ListenLost,
    MarkDraining,
    Observed,
    Read,
    ReadFailed,
    Release,
    Released,
    ReleaseFailed,
    ReleaseRefused,
    Row,
    RowMissing,
    SendHeartbeat,
    SetDeadline,
    Settle,
    ToolsDue,
)
from holdfast.cluster.lease_state_machine import Holding, Peer, Timing, View
from holdfast.domain.ids import NodeId, WorkspaceId

__all__ = ["NAMES", "TIMING", "WORKSPACES", "Machine", "Node", "Space", "Step", "Violation", "World", "Worlds"]

TIMING = Timing(heartbeat=1, lease=3, hint=1, margin=1, gap=1)
NAMES = tuple(NodeId(name) for name in "abc")
WORKSPACES = tuple(WorkspaceId(name) for name in "vw")
PLACE = frozenset({"p"})


class Violation(AssertionError):
    """A state or a step that breaks an invariant."""


class Node(NamedTuple):
    """The row of a node in the database, and whether its advisory lock is held."""

    exists: bool = True
    lock: bool = True
    draining: bool = False


class Space(NamedTuple):
    """The row of a workspace. `owner` is the index of a machine."""

    owner: int | None = None
    wanted: bool = True
    hinted: tuple[tuple[NodeId, int], ...] = ()


class Machine(NamedTuple):
    """A node and its guard. `tools` are the workspaces with started tools, `guard` the deadline in effect.

    `excused`: the node had a fault of its own, so that it may be evicted.
    """

    view: int
    condition: str = "up"
    tools: int = 0
    guard: float = 0.0
    requests: tuple[Effect, ...] = ()
    has_beaten: bool = False
    has_read: bool = False
    excused: bool = False


class World(NamedTuple):
    """One state. `database` is up, stopped, or unreachable while its connections last."""

    machines: tuple[Machine, ...]
    nodes: tuple[Node, ...]
    spaces: tuple[Space, ...]
    faults: tuple[str, ...] = ()
    database: str = "up"


Step = tuple[str, World]


class Worlds:
    """The steps between worlds.

    `faults` limits the faults of one path, `kinds` are those that may happen. With `turns` each node sends its
    heartbeat and reads without a step of another node in between.
    """

    def __init__(self, faults: int, kinds: frozenset[str], *, ends: bool = False, turns: bool = False) -> None:
        self.views = Views()
        self._faults = faults
        self._kinds = kinds
        self._ends = ends
        self._in_turns = turns
        """Whether workspaces become idle and nodes drain."""
        self.last_name = NAMES[0]
        """The name that the node evicted last has got."""

    def settled(self, owners: tuple[int | None, ...]) -> World:
        """Return a world of three nodes that know each other, with the given owners of the workspaces."""
        machines = []
        for index, name in enumerate(NAMES):
            peers = {other: Peer(0, 0.0, listened=True) for other in NAMES if other != name}
            held = {WORKSPACES[place]: Holding(0) for place, owner in enumerate(owners) if owner == index}
            view = View(
                TIMING, PLACE, "member", name, deadline=2.0, listens=True, last_read=0.0, peers=peers, held=held
            )  # fmt: skip
            tools = sum(1 << place for place, owner in enumerate(owners) if owner == index)
            machines.append(Machine(self.views.number(view), tools=tools, guard=2.0, has_beaten=True, has_read=True))
        spaces = tuple(Space(owner, wanted=owner is None) for owner in owners)
        return World(tuple(machines), (Node(),) * 3, spaces)

    def unjoined(self) -> World:
        """Return a world whose nodes have just been started."""
        machine = Machine(self.views.number(View(TIMING, PLACE)), requests=(Join(),))
        return World((machine,) * 3, (Node(exists=False, lock=False),) * 3, (Space(),) * 2)

    # Steps

    def steps(self, world: World) -> Iterator[Step]:
        """Yield everything that can happen next."""
        is_complete = True
        for index, machine in enumerate(world.machines):
            if machine.condition in {"up", "cut"}:
                for name, following in self._work(world, index):
                    is_complete = is_complete and machine.condition == "cut"
                    yield name, following
                if self._ends:
                    yield from self._end(world, index)
            if machine.condition in {"paused", "cut"}:
                yield f"{NAMES[index]} recovers", _with(world, index, machine._replace(condition="up"))
        if is_complete:
            yield "tick", self.tick(world)
        if world.database != "up":
            # A heartbeat that failed is repeated before its next interval.
            machines = tuple(machine._replace(has_beaten=False) for machine in world.machines)
            yield "database starts", world._replace(database="up", machines=machines)
        if len(world.faults) < self._faults:
            yield from (step for step in self._fail(world) if len({*step[1].faults}) == len(step[1].faults))

    def is_healthy(self, world: World) -> bool:
        """Return whether no fault has left a trace, apart from who owns what."""
        return (
            world.database == "up"
            and all(row == Node() for row in world.nodes)
            and not any(space.hinted or space.owner is None for space in world.spaces)
            and all(self._is_healthy(world, index) for index in range(len(NAMES)))
        )

    def _is_healthy(self, world: World, index: int) -> bool:
        machine = world.machines[index]
        view = self.views.all[machine.view]
        owned = {name for name, space in zip(WORKSPACES, world.spaces, strict=True) if space.owner == index}
        return (
            machine.condition == "up"
            and not machine.requests
            and view.phase == "member"
            and view.node == NAMES[index]
            and view.listens
            and view.lost is None
            and not view.evicting
            and view.deadline >= 1
            and view.last_read is not None
            and machine.guard == view.deadline
            and {name for name, held in view.held.items() if held == Holding(0)} == owned == {*view.held}
            and len(view.peers) == len(NAMES) - 1
            and all(peer.since >= -1 and peer.listened for peer in view.peers.values())
        )

    def work(self, world: World) -> World | None:
        """Return the world after the first piece of work of a healthy node; None if all is done."""
        for index, machine in enumerate(world.machines):
            if machine.condition == "up":
                for _, following in self._work(world, index):
                    return following
        return None

    def _work(self, world: World, index: int) -> Iterator[Step]:
        machine, name = world.machines[index], NAMES[index]
        view = self.views.all[machine.view]
        reaches = machine.condition == "up" and world.database == "up"
        if machine.requests and (reaches or not isinstance(machine.requests[0], Join | Leave)):
            yield f"{name} {type(machine.requests[0]).__name__}", self._request(world, index, reaches=reaches)
        if view.node is not None and view.phase in {"member", "draining"}:
            if self._in_turns and not machine.has_beaten and not machine.has_read:
                yield from self._take_turn(world, index, reaches=reaches)
            elif not machine.has_beaten:
                yield f"{name} heartbeat", self._beat(world, index, reaches=reaches)
            elif not machine.has_read:
                yield f"{name} read", self._read(world, index, reaches=reaches)
            if not self._in_turns and not machine.has_beaten and not machine.has_read:
                yield f"{name} read", self._read(world, index, reaches=reaches)
            if reaches and view.node == name and not (view.listens and world.nodes[index].lock):
                yield f"{name} listens", self._listen(world, index)
            for workspace, held in view.held.items():
                if held.tools_from is not None and held.tools_from <= 0:
                    event = ToolsDue(workspace, held.epoch, 0.0)
                    yield f"{name} tools of {workspace}", self._apply(world, index, event, event)

    def _take_turn(self, world: World, index: int, *, reaches: bool) -> Iterator[Step]:
        """Yield the orders within a turn. Few of them keep the number of states small: without turns all are walked."""
        after = self._beat(world, index, reaches=reaches)
        if self._is_member(after.machines[index]):
            after = self._read(after, index, reaches=reaches)
        yield f"{NAMES[index]} heartbeat, read", after
        if index > 0 or not self._kinds & {"pause", "kill", "slow", "blip"}:
            return
        after = self._read(world, index, reaches=reaches)
        if self._is_member(after.machines[index]):
            after = self._beat(after, index, reaches=reaches)
        yield f"{NAMES[index]} read, heartbeat", after

    def tick(self, world: World) -> World:
        """Return the world one tick later."""
        machines = tuple(
            machine._replace(
                view=self.views.change(machine.view, "tick", lambda view: shifted(view, 1.0)),
                guard=max(FLOOR, machine.guard - 1),
                has_beaten=False,
                has_read=False,
            )
            for machine in world.machines
        )
        return world._replace(machines=machines)

    def _end(self, world: World, index: int) -> Iterator[Step]:
        view = self.views.all[world.machines[index].view]
        for place, workspace in enumerate(WORKSPACES[:1]):
            held = view.held.get(workspace)
            if held is not None and held.releasing is None and held.tools_from is None and index < len(NAMES) - 1:
                stopped = _with(world, index, world.machines[index]._replace(
                    tools=world.machines[index].tools & ~(1 << place)))  # fmt: skip
                newest = None if view.phase == "draining" else 0
                event = Idle(workspace, held.epoch, newest)
                yield f"{NAMES[index]} idle {workspace}", self._apply(stopped, index, event, event)
        if view.phase == "member" and index == 0 and not world.machines[1].tools & 1:
            yield f"{NAMES[index]} drains", self._apply(world, index, Drain(), "drain")
        for place, space in enumerate(world.spaces):
            if space.owner is None and not space.wanted:
                yield f"input to {WORKSPACES[place]}", _with_space(world, place, space._replace(wanted=True))

    def _fail(self, world: World) -> Iterator[Step]:
        for index, machine in enumerate(world.machines):
            if machine.condition != "up":
                continue
            if index == len(NAMES) - 1 and self._kinds & {"cut", "lock"}:
                # The last node owns nothing; pauses and kills of such a node are walked.
                continue
            yield from self._fail_machine(world, index)
        if "outage" in self._kinds and world.database == "up":
            stopped = world._replace(database="stopped")
            for index in range(len(NAMES)):
                stopped = _with_node(stopped, index, stopped.nodes[index]._replace(lock=False))
                if stopped.machines[index].condition == "up":
                    stopped = self._lose_listener(stopped, index)
            yield self._fault("outage", -1, stopped)
        if "blip" in self._kinds and world.database == "up":
            yield self._fault("blip", -1, world._replace(database="unreachable"))

    def _fail_machine(self, world: World, index: int) -> Iterator[Step]:
        machine = world.machines[index]
        for kind, condition in (("pause", "paused"), ("cut", "cut"), ("kill", "dead")):
            if kind in self._kinds:
                hit = machine._replace(condition=condition, excused=True)
                after = _with(world, index, hit)
                if kind == "kill":
                    dead = Machine(self.views.number(View(TIMING, PLACE)), condition, excused=True)
                    after = _with_node(_with(world, index, dead), index, world.nodes[index]._replace(lock=False))
                yield self._fault(kind, index, after)
        if "lock" in self._kinds and world.nodes[index].lock:
            # The node notices it at any later moment of the tick, or when it cannot read.
            lost = _with_node(world, index, world.nodes[index]._replace(lock=False))
            lost = _with(lost, index, machine._replace(excused=True))
            yield self._fault("lock", index, lost)
        if "reply" in self._kinds and machine.requests and world.database == "up":
            yield self._fault("reply", index, self._request(world, index, reaches=True, is_lost=True))
        if "slow" in self._kinds and not machine.has_beaten and self._is_member(machine):
            yield self._fault("slow", index, self._send_slowly(world, index))

    def _fault(self, kind: str, index: int, world: World) -> Step:
        name = kind if index < 0 else f"{kind} {NAMES[index]}"
        return name, world._replace(faults=(*world.faults, kind))

    def _is_member(self, machine: Machine) -> bool:
        return self.views.all[machine.view].phase in {"member", "draining"}

    # Requests

    def _beat(self, world: World, index: int, *, reaches: bool) -> World:
        machine = world.machines[index]._replace(has_beaten=True)
        view, effects = self.views.step(machine.view, HeartbeatDue(0.0), "beat")
        world = _with(world, index, machine._replace(view=view))
        return self._complete_beat(world, index, reaches=reaches) if effects else world

    def _send_slowly(self, world: World, index: int) -> World:
        machine = world.machines[index]._replace(has_beaten=True, excused=True)
        view, effects = self.views.step(machine.view, HeartbeatDue(0.0), "beat")
        return _with(world, index, machine._replace(view=view, requests=(*machine.requests, *effects)))

    def _complete_beat(self, world: World, index: int, *, reaches: bool) -> World:
        node = self._node(world, index)
        if not reaches:
            return self._apply(world, index, HeartbeatFailed(node), ("beat failed", node))
        if not self._row_exists(world, index):
            return self._apply(world, index, RowMissing(node), ("missing", node))
        machines = tuple(
            machine._replace(
                view=self.views.change(machine.view, ("outdated", node), lambda view: outdated_peer(view, node)),
                requests=tuple(
                    msgspec.structs.replace(request, heartbeat=-1)
                    if isinstance(request, Evict) and request.dead == node else request
                    for request in machine.requests
                ),
            )
            for machine in world.machines
        )  # fmt: skip
        return self._apply(world._replace(machines=machines), index, HeartbeatStored(node), ("stored", node))

    def _read(self, world: World, index: int, *, reaches: bool) -> World:
        node = self._node(world, index)
        world = _with(world, index, world.machines[index]._replace(has_read=True))
        if not reaches:
            world = self._apply(world, index, ReadFailed(node), ("read failed", node))
            # A node that cannot reach the database finds out about its LISTEN connection as well.
            return self._lose_listener(world, index)
        rows = {
            name: Row(0, row.lock, PLACE, row.draining, sum(space.owner == place for space in world.spaces))
            for place, (name, row) in enumerate(zip(NAMES, world.nodes, strict=True))
            if row.exists
        }
        wanted = sum(space.owner is None and space.wanted for space in world.spaces)
        owners = tuple(space.owner for space in world.spaces)
        event = Observed(node, 0.0, 0.0, rows, {"p": wanted})
        world = self._apply(world, index, event, (node, world.nodes, owners, wanted))
        return self._forget(world)

    def _listen(self, world: World, index: int) -> World:
        if not world.nodes[index].exists:
            return world
        if self.views.all[world.machines[index].view].listens:
            # The node finds out that its connection was lost before it opens another.
            return self._lose_listener(world, index)
        world = _with_node(world, index, world.nodes[index]._replace(lock=True))
        return self._apply(world, index, Listening(), "listening")

    def _lose_listener(self, world: World, index: int) -> World:
        if not self.views.all[world.machines[index].view].listens:
            return world
        return self._apply(world, index, ListenLost(0.0), "listen lost")

    def _request(self, world: World, index: int, *, reaches: bool, is_lost: bool = False) -> World:
        """Execute the oldest request of a machine. `is_lost`: the node does not receive the reply."""
        machine = world.machines[index]
        request, node = machine.requests[0], self._node(world, index)
        world = _with(world, index, machine._replace(requests=machine.requests[1:]))
        if isinstance(request, SendHeartbeat):
            return self._complete_beat(world, index, reaches=reaches)
        if isinstance(request, Join):
            world = _with_node(world, index, Node(lock=False))
            return self._apply(world, index, Joined(NAMES[index], 0.0), ("joined", index))
        if isinstance(request, Leave):
            return self._delete(world, index, by_hint=False) if world.nodes[index].exists else world
        answer: LeaseEvent = RowMissing(node)
        if reaches and (isinstance(request, Release) or self._row_exists(world, index)):
            world, answer = self._execute(world, index, request)
        if not reaches or is_lost:
            answer = self._failure(request, answer, node)
        if isinstance(answer, RowMissing):
            return self._apply(world, index, answer, ("missing", node))
        return self._apply(world, index, answer, answer)

    def _failure(self, request: Effect, answer: LeaseEvent, node: NodeId) -> LeaseEvent:
        if isinstance(request, Evict):
            return EvictFailed(node, answer.dead if isinstance(answer, EvictDone) else request.dead)
        if isinstance(request, Release):
            return ReleaseFailed(request.workspace, request.epoch)
        return ClaimFailed(node)

    def _execute(self, world: World, index: int, request: Effect) -> tuple[World, LeaseEvent]:
        node = self._node(world, index)
        match request:
            case Evict(dead=dead, heartbeat=heartbeat, by_hint=by_hint):
                if dead in NAMES and world.nodes[NAMES.index(dead)].exists and heartbeat == 0:
                    if not world.machines[NAMES.index(dead)].excused:
                        raise Violation(f"{dead} is evicted without a fault of its own")
                    world = self._delete(world, NAMES.index(dead), by_hint=by_hint)
                    dead = self.last_name
                return world, EvictDone(node, dead)
            case Claim(limits=limits, held=held):
                grants: list[Grant] = []
                left = dict(limits).get("p", 0)
                for place, workspace in enumerate(WORKSPACES):
                    space = world.spaces[place]
                    is_lost = space.owner == index and workspace not in held
                    if is_lost or (space.owner is None and space.wanted and left > 0):
                        left -= not is_lost
                        world = self._bump(world, place, space._replace(owner=index, wanted=False))
                        grants.append(Grant(workspace, 0, space.hinted))
                return world, Claimed(node, 0.0, tuple(grants))
            case Release(workspace=workspace, epoch=epoch, newest=newest):
                place = WORKSPACES.index(workspace)
                space = world.spaces[place]
                if space.owner == index and epoch == 0:
                    if newest is not None and space.wanted:
                        return world, ReleaseRefused(workspace, epoch)
                    # An owned workspace is not wanted; a refusal is possible only in the unit tests.
                    world = self._bump(world, place, space._replace(owner=None, wanted=newest is None))
                    return world, Released(workspace, -1)
                return world, Released(workspace, epoch)
            case _:
                raise AssertionError(request)

    def _delete(self, world: World, index: int, *, by_hint: bool) -> World:
        """Delete the row of a node and free its workspaces."""
        name = NAMES[index]
        old = NodeId(f"{name}-")
        while any(other == old for space in world.spaces for other, _ in space.hinted):
            old = NodeId(f"{old}-")
        self.last_name = old
        machines = tuple(
            machine._replace(
                view=self.views.change(machine.view, ("renamed", old), lambda view: renamed(view, name, old)),
                requests=tuple(
                    msgspec.structs.replace(request, dead=old)
                    if isinstance(request, Evict) and request.dead == name else request
                    for request in machine.requests
                ),
            )
            for machine in world.machines
        )  # fmt: skip
        world = _with_node(world._replace(machines=machines), index, Node(exists=False, lock=False))
        for place, space in enumerate(world.spaces):
            if space.owner == index:
                hinted = (*space.hinted, (old, 0)) if by_hint else space.hinted
                world = self._bump(world, place, Space(None, wanted=True, hinted=hinted))
        return world

    def _bump(self, world: World, place: int, space: Space) -> World:
        """Store a workspace with the next epoch: what nodes hold of it becomes old."""
        name = WORKSPACES[place]
        machines = tuple(
            machine._replace(
                view=self.views.change(machine.view, ("bumped", name), lambda view: outdated_epoch(view, name)),
                requests=tuple(
                    msgspec.structs.replace(request, epoch=-1)
                    if isinstance(request, Release) and request.workspace == name else request
                    for request in machine.requests
                ),
            )
            for machine in world.machines
        )  # fmt: skip
        return _with_space(world._replace(machines=machines), place, space)

    def _forget(self, world: World) -> World:
        """Let views forget nodes that are gone and that no workspace names: they make no difference."""
        hinted = frozenset(name for space in world.spaces for name, _ in space.hinted)

        def forget(view: View) -> View:
            return msgspec.structs.replace(
                view, gone={name: peer for name, peer in view.gone.items() if name in hinted}
            )

        machines = tuple(
            machine._replace(view=self.views.change(machine.view, ("forget", hinted), forget))
            for machine in world.machines
        )
        return world._replace(machines=machines)

    def _node(self, world: World, index: int) -> NodeId:
        return self.views.all[world.machines[index].view].node or NAMES[index]

    def _row_exists(self, world: World, index: int) -> bool:
        return self._node(world, index) == NAMES[index] and world.nodes[index].exists

    # Effects

    def _apply(self, world: World, index: int, event: LeaseEvent, key: object) -> World:
        machine = world.machines[index]
        view, effects = self.views.step(machine.view, event, key)
        machine = machine._replace(view=view)
        for effect in effects:
            match effect:
                case SetDeadline(at=at):
                    machine = machine._replace(guard=at)
                case Freeze():
                    machine = machine._replace(guard=FLOOR)
                case AllowTools(workspace=workspace):
                    machine = machine._replace(tools=machine.tools | 1 << WORKSPACES.index(workspace))
                case Drop(workspace=workspace):
                    machine = machine._replace(tools=machine.tools & ~(1 << WORKSPACES.index(workspace)))
                case Read():
                    machine = machine._replace(has_read=False)
                case Evict() | Claim() | Release() | Join() | Leave():
                    kept = () if isinstance(effect, Join | Leave) else machine.requests
                    machine = machine._replace(requests=(*kept, effect))
                case Settle(workspace=workspace, epoch=epoch):
                    place = WORKSPACES.index(workspace)
                    if epoch == 0 and machine.condition == "up" and world.database == "up":
                        world = _with_space(world, place, world.spaces[place]._replace(hinted=()))
                case MarkDraining():
                    world = _with_node(world, index, world.nodes[index]._replace(draining=True))
                case _:
                    pass
        return _with(world, index, machine)


def _with(world: World, index: int, machine: Machine) -> World:
    machines = world.machines
    return world._replace(machines=(*machines[:index], machine, *machines[index + 1 :]))


def _with_node(world: World, index: int, node: Node) -> World:
    return world._replace(nodes=(*world.nodes[:index], node, *world.nodes[index + 1 :]))


def _with_space(world: World, place: int, space: Space) -> World:
    return world._replace(spaces=(*world.spaces[:place], space, *world.spaces[place + 1 :]))
