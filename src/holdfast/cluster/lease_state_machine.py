"""State machine for the membership of one node and its ownership of workspaces. Pure.

Theory of operation. Several servers (*nodes*) share one database. Each workspace has at most one owner, and its epoch
in the database is the fence: every write of an owner names the epoch, and each claim, eviction and release increases
it. So a stale owner cannot write, whatever this machine does. What the database cannot fence are tools, which change
files. For them each node holds a *lease*: its heartbeat, a counter in its row, which every other node observes.

`transition(view, event)` returns the next view of one node and the effects to execute, in order. Times are numbers of
one monotonic clock of this node; they come with the events and are never compared with the clock of another machine.

Why tools never run twice at once. A heartbeat that was *sent* at s and then stored extends the deadline of this node's
tools to s + lease - margin; at the deadline the guard freezes them. Another node first sees that heartbeat at a later
moment r, and counts from r. It evicts at r + lease at the earliest, when the tools have been frozen for the margin.
The margin covers the time that a freeze takes and different speeds of two clocks.

Why an outage of the database evicts no node. Silence counts only between successful reads that follow each other
closely, on a node whose own LISTEN connection holds. A failed read, a pause of this node, or the loss of its LISTEN
connection discards all observations, and every node has a full lease to be heard again. (Leases stored as times expire
together in an outage, and every node takes over from every other.)

The hint. A node holds an advisory lock through its LISTEN connection. If this lock was seen held and is gone, the
process probably died, and `hint` instead of `lease` seconds of silence suffice to evict. The node may also merely be
cut off, with running tools. Therefore an eviction by hint is recorded at the workspace, and later owners start no tool
before a full lease has passed since the heartbeat with which the node was evicted. In turn, a node that loses its
LISTEN connection freezes its tools until a heartbeat that it sent after the loss is stored.

Rules, which are also the tests:
1.  A heartbeat extends the deadline from the moment it was sent, not from its confirmation.
2.  Silence is counted from the end of the first read that showed a heartbeat to the begin of the latest one.
3.  Observations are discarded by a failed read, a gap between reads, and the loss of the own LISTEN connection.
4.  A node whose row is gone was declared dead: it drops everything and joins again under a new id.
5.  A node past its deadline evicts no node and claims nothing.
6.  Claims are limited to a fair share of the workspaces of a place. Workspaces that the database assigns to this node
    without its knowledge, because the outcome of a claim was unknown, are claimed again, with a new epoch.
7.  A release is repeated until its outcome is known. It is refused if an input arrived: then the workspace is kept.
8.  A draining node claims nothing, releases idle workspaces at once, and leaves when it holds none.
9.  Answers to an earlier incarnation of this node are ignored.
"""

from collections.abc import Callable, Mapping
from math import ceil, inf
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from holdfast.cluster.lease_events import (
    AllowTools,
    AwaitTools,
    Claim,
    Claimed,
    ClaimFailed,
    Close,
    Drain,
    Drop,
    Effect,
    Evict,
    EvictDone,
    EvictFailed,
    Freeze,
    HeartbeatDue,
    HeartbeatFailed,
    HeartbeatStored,
    Idle,
    Join,
    Joined,
    Keep,
    LeaseEvent,
    Leave,
    Listening,
    ListenLost,
    MarkDraining,
    Observed,
    OfNode,
    OfWorkspace,
    OwnershipLost,
    Read,
    ReadAt,
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
    Wanted,
)
from holdfast.domain.ids import NodeId, WorkspaceId

__all__ = [
    "RULES",
    "Holding",
    "IllegalTransition",
    "Peer",
    "Phase",
    "Step",
    "Timing",
    "View",
    "may_run_tools",
    "start",
    "transition",
]

Phase = Literal["joining", "member", "draining", "left"]

_REMEMBERED_LEASES = 10
"""Number of leases for which a node that is gone is remembered."""


class Timing(msgspec.Struct, frozen=True):
    """Durations in seconds. `gap` is the longest time between two reads of an unbroken observation."""

    heartbeat: float = 0.75
    lease: float = 3.0
    hint: float = 1.0
    margin: float = 0.5
    gap: float = 1.5


class Peer(msgspec.Struct, frozen=True):
    """Observation of another node: its heartbeat, the end of the first read that showed it, and whether its advisory
    lock was seen held since.
    """

    heartbeat: int
    since: float
    listened: bool = False


class Holding(msgspec.Struct, frozen=True):
    """A workspace that this node owns.

    `tools_from` is the time before which no tool may start; None if it is over. `releasing` is the release in flight,
    `is_repeated` whether it has to be sent again.
    """

    epoch: int
    tools_from: float | None = None
    releasing: Release | None = None
    is_repeated: bool = False


class View(msgspec.Struct, frozen=True):
    """State of this node.

    `sent` is when the heartbeat in flight was sent. `lost` is when the LISTEN connection was lost, until a later
    heartbeat is stored. `gone` are nodes whose rows vanished. `claiming` and `evicting` are requests in flight.
    """

    timing: Timing
    places: frozenset[str]
    phase: Phase = "joining"
    node: NodeId | None = None
    sent: float | None = None
    deadline: float = -inf
    listens: bool = False
    lost: float | None = None
    last_read: float | None = None
    peers: Mapping[NodeId, Peer] = {}
    gone: Mapping[NodeId, Peer] = {}
    evicting: frozenset[NodeId] = frozenset()
    claiming: bool = False
    held: Mapping[WorkspaceId, Holding] = {}


Step: TypeAlias = tuple[View, tuple[Effect, ...]]
Rule: TypeAlias = Callable[[View, Any], Step]


class IllegalTransition(Exception):
    """An event that cannot happen in this view: a bug in the driver."""


def start(timing: Timing, places: frozenset[str]) -> Step:
    """Return the view of a node that is not a member yet, and the request to become one."""
    return View(timing, places), (Join(),)


def transition(view: View, event: LeaseEvent) -> Step:
    """Return the view after the event, and the effects in the order of their execution."""
    if isinstance(event, OfNode) and not isinstance(event, Joined) and event.node != view.node:
        return view, ()
    return RULES[type(event)][_COLUMNS.index(view.phase)](view, event)


def may_run_tools(view: View, workspace: WorkspaceId, now: float) -> bool:
    """Return whether a tool of the workspace may act now."""
    held = view.held.get(workspace)
    return held is not None and held.tools_from is None and held.releasing is None and _is_alive(view, now)


def _is_alive(view: View, now: float) -> bool:
    return view.lost is None and now < view.deadline


def _illegal(view: View, event: LeaseEvent) -> Step:
    raise IllegalTransition(f"{event} cannot happen in {view}")


def _ignore(view: View, _: LeaseEvent) -> Step:
    return view, ()


# Membership


def _join(view: View, event: Joined) -> Step:
    view = replace(view, phase="member", node=event.node, lost=None)
    view, effects = _extend(view, event.sent)
    return view, (*effects, Read(event.node))


def _leave_unjoined(view: View, _: Drain) -> Step:
    return replace(view, phase="left"), ()


def _joined_too_late(view: View, event: Joined) -> Step:
    return view, (Leave(event.node),)


def _send(view: View, event: HeartbeatDue) -> Step:
    if view.sent is not None or view.node is None:
        return view, ()
    return replace(view, sent=event.now), (SendHeartbeat(view.node),)


def _confirm(view: View, event: HeartbeatStored) -> Step:
    if view.sent is None:
        return _illegal(view, event)
    sent = view.sent
    if view.lost is not None and sent >= view.lost:
        view = replace(view, lost=None)
    return _extend(replace(view, sent=None), sent)


def _extend(view: View, sent: float) -> Step:
    """Extend the deadline from the moment at which a stored heartbeat was sent."""
    deadline = sent + view.timing.lease - view.timing.margin
    effects = () if view.lost is not None else (SetDeadline(deadline),)
    return replace(view, deadline=deadline), effects


def _fail_heartbeat(view: View, event: HeartbeatFailed) -> Step:
    return _illegal(view, event) if view.sent is None else (replace(view, sent=None), ())


def _listen(view: View, _: Listening) -> Step:
    # Silence observed before may be that of an outage that has cut the connections of all nodes.
    return replace(_discard(view), listens=True), ()


def _lose_listener(view: View, event: ListenLost) -> Step:
    return replace(view, listens=False, lost=event.now), (Freeze(),)


def _forget_listener(view: View, _: ListenLost) -> Step:
    return replace(view, listens=False), ()


def _die(view: View, _: RowMissing) -> Step:
    drops = tuple(Drop(name, held.epoch) for name, held in view.held.items())
    if view.phase == "draining":
        return View(view.timing, view.places, phase="left"), (Freeze(), *drops)
    return View(view.timing, view.places), (Freeze(), *drops, Join())


# Observation


def _discard(view: View) -> View:
    return replace(view, peers={}, last_read=None)


def _fail_read(view: View, _: ReadFailed) -> Step:
    return _discard(view), ()


def _observe(view: View, event: Observed) -> Step:
    own = event.rows.get(event.node)
    if own is None:
        return _die(view, RowMissing(event.node))
    is_unbroken = view.last_read is not None and event.began - view.last_read <= view.timing.gap
    known = view.peers if is_unbroken and view.listens and own.listens else {}
    peers = {
        name: _observed(known.get(name), row, event.ended) for name, row in event.rows.items() if name != event.node
    }
    since = event.ended - _REMEMBERED_LEASES * view.timing.lease
    gone = {name: peer for name, peer in view.gone.items() if peer.since > since}
    gone |= {name: peer for name, peer in view.peers.items() if name not in peers}
    view = replace(view, peers=peers, gone=gone, last_read=event.ended)
    view, releases = _repeat_releases(view)
    view, evictions = _evict_silent(view, event)
    view, claims = _claim_share(view, event)
    return view, (*releases, *evictions, *claims)


def _observed(known: Peer | None, row: Row, ended: float) -> Peer:
    if known is None or known.heartbeat != row.heartbeat:
        return Peer(row.heartbeat, ended, row.listens or (known is not None and known.listened))
    return replace(known, listened=True) if row.listens and not known.listened else known


def _evict_silent(view: View, event: Observed) -> Step:
    if not _is_alive(view, event.ended):
        return view, ()
    effects: list[Effect] = []
    for name, peer in view.peers.items():
        silence = event.began - peer.since
        by_hint = event.began < peer.since + view.timing.lease
        has_hint = peer.listened and not event.rows[name].listens
        limit = view.timing.hint if has_hint else view.timing.lease
        if name in view.evicting:
            continue
        # As the time of `ReadAt`: the difference may be smaller than the limit by a rounding error.
        if event.began >= peer.since + limit:
            effects.append(Evict(event.node, name, peer.heartbeat, by_hint))
            view = replace(view, evicting=view.evicting | {name})
        elif limit - silence < view.timing.heartbeat and silence > view.timing.heartbeat / 2:
            effects.append(ReadAt(event.node, peer.since + limit))
    return view, tuple(effects)


def _end_evict(view: View, event: EvictDone | EvictFailed) -> Step:
    if event.dead not in view.evicting:
        return _illegal(view, event)
    view = replace(view, evicting=view.evicting - {event.dead})
    return view, (Read(event.node),) if isinstance(event, EvictDone) else ()


# Ownership


def _claim_share(view: View, event: Observed) -> Step:
    if view.phase != "member" or view.claiming or not _is_alive(view, event.ended):
        return view, ()
    mine = event.rows[event.node].owned
    limits: dict[str, int] = {}
    for place in sorted(view.places):
        others = [
            row.owned
            for name, row in event.rows.items()
            if place in row.places and not row.is_draining and name not in view.evicting
        ]
        wanted = event.wanted.get(place, 0)
        share = ceil((sum(others) + wanted) / max(1, len(others)))
        if (limit := min(wanted, share - mine - sum(limits.values()))) > 0:
            limits[place] = limit
    if not limits and mine <= len(view.held):
        return view, ()
    return replace(view, claiming=True), (Claim(event.node, tuple(limits.items()), frozenset(view.held)),)


def _read_again(view: View, event: Wanted) -> Step:
    return view, (Read(view.node),) if event.place in view.places and view.node is not None else ()


def _hold(view: View, event: Claimed) -> Step:
    if not view.claiming:
        return _illegal(view, event)
    effects: list[Effect] = []
    held = dict(view.held)
    for workspace, epoch, hinted in ((grant.workspace, grant.epoch, grant.hinted) for grant in event.grants):
        if workspace in held:
            effects.append(Drop(workspace, held[workspace].epoch))
        tools_from = max((_end_of_lease(view, *node, event.now) for node in hinted), default=event.now)
        if tools_from > event.now:
            held[workspace] = Holding(epoch, tools_from)
            effects.append(AwaitTools(workspace, epoch, tools_from))
        else:
            held[workspace] = Holding(epoch)
            effects += [AllowTools(workspace, epoch), *([Settle(workspace, epoch)] if hinted else [])]
    return replace(view, claiming=False, held=held), tuple(effects)


def _end_of_lease(view: View, node: NodeId, heartbeat: int, now: float) -> float:
    """Return when the lease of an evicted node is over: a lease after this node first saw its last heartbeat.

    A heartbeat that this node has not seen was sent before now.
    """
    seen = view.peers.get(node) or view.gone.get(node)
    return (seen.since if seen is not None and seen.heartbeat == heartbeat else now) + view.timing.lease


def _hand_back(view: View, event: Claimed) -> Step:
    """Release what an earlier claim has obtained since this node drains."""
    if not view.claiming:
        return _illegal(view, event)
    held = dict(view.held)
    releases = tuple(Release(grant.workspace, grant.epoch, None) for grant in event.grants)
    held |= {release.workspace: Holding(release.epoch, releasing=release) for release in releases}
    return _leave_when_empty(replace(view, claiming=False, held=held), releases)


def _fail_claim(view: View, event: ClaimFailed) -> Step:
    if not view.claiming:
        return _illegal(view, event)
    return _leave_when_empty(replace(view, claiming=False), ())


def _allow_tools(view: View, event: ToolsDue) -> Step:
    held = _holding(view, event)
    if held is None or held.tools_from is None or event.now < held.tools_from:
        return view, ()
    view = _store(view, event.workspace, replace(held, tools_from=None))
    return view, (AllowTools(event.workspace, event.epoch), Settle(event.workspace, event.epoch))


def _lose(view: View, event: OwnershipLost) -> Step:
    if _holding(view, event) is None:
        return view, ()
    return _leave_when_empty(_store(view, event.workspace, None), (Drop(event.workspace, event.epoch),))


def _release(view: View, event: Idle) -> Step:
    held = _holding(view, event)
    if held is None or held.releasing is not None:
        return view, ()
    release = Release(event.workspace, event.epoch, event.newest)
    return _store(view, event.workspace, replace(held, releasing=release)), (release,)


def _end_release(view: View, event: Released) -> Step:
    if (held := _holding(view, event)) is None:
        return view, ()
    if held.releasing is None:
        return _illegal(view, event)
    return _leave_when_empty(_store(view, event.workspace, None), (Close(event.workspace, event.epoch),))


def _keep(view: View, event: ReleaseRefused) -> Step:
    if (held := _holding(view, event)) is None:
        return view, ()
    if held.releasing is None:
        return _illegal(view, event)
    held = replace(held, releasing=None, is_repeated=False)
    return _store(view, event.workspace, held), (Keep(event.workspace, event.epoch),)


def _fail_release(view: View, event: ReleaseFailed) -> Step:
    if (held := _holding(view, event)) is None:
        return view, ()
    if held.releasing is None:
        return _illegal(view, event)
    return _store(view, event.workspace, replace(held, is_repeated=True)), ()


def _repeat_releases(view: View) -> Step:
    repeated = {name: held for name, held in view.held.items() if held.is_repeated}
    for name, held in repeated.items():
        view = _store(view, name, replace(held, is_repeated=False))
    return view, tuple(held.releasing for held in repeated.values() if held.releasing is not None)


def _drain(view: View, _: Drain) -> Step:
    assert view.node is not None
    return _leave_when_empty(replace(view, phase="draining"), (MarkDraining(view.node),))


def _leave_when_empty(view: View, effects: tuple[Effect, ...]) -> Step:
    """Leave if this node drains and holds nothing; the only place that does."""
    if view.phase != "draining" or view.held or view.claiming or view.node is None:
        return view, effects
    return View(view.timing, view.places, phase="left"), (*effects, Leave(view.node))


def _holding(view: View, event: OfWorkspace) -> Holding | None:
    """Return the holding that the event is about; None if it was dropped or claimed again since."""
    held = view.held.get(event.workspace)
    return held if held is not None and held.epoch == event.epoch else None


def _store(view: View, workspace: WorkspaceId, holding: Holding | None) -> View:
    held = {**view.held, workspace: holding} if holding is not None else {**view.held}
    if holding is None:
        del held[workspace]
    return replace(view, held=held)


_COLUMNS = ("joining", "member", "draining", "left")

# fmt: off
RULES: Mapping[type[LeaseEvent], tuple[Rule, Rule, Rule, Rule]] = {
    # phase:          joining           member          draining        left
    Joined:          (_join,            _illegal,       _illegal,       _joined_too_late),
    HeartbeatDue:    (_ignore,          _send,          _send,          _ignore),
    HeartbeatStored: (_illegal,         _confirm,       _confirm,       _illegal),
    HeartbeatFailed: (_illegal,         _fail_heartbeat, _fail_heartbeat, _illegal),
    RowMissing:      (_illegal,         _die,           _die,           _illegal),
    Listening:       (_listen,          _listen,        _listen,        _ignore),
    ListenLost:      (_forget_listener, _lose_listener, _lose_listener, _ignore),
    Observed:        (_illegal,         _observe,       _observe,       _illegal),
    ReadFailed:      (_illegal,         _fail_read,     _fail_read,     _illegal),
    EvictDone:       (_illegal,         _end_evict,     _end_evict,     _illegal),
    EvictFailed:     (_illegal,         _end_evict,     _end_evict,     _illegal),
    Wanted:          (_ignore,          _read_again,    _ignore,        _ignore),
    Claimed:         (_illegal,         _hold,          _hand_back,     _illegal),
    ClaimFailed:     (_illegal,         _fail_claim,    _fail_claim,    _illegal),
    ToolsDue:        (_ignore,          _allow_tools,   _allow_tools,   _ignore),
    OwnershipLost:   (_ignore,          _lose,          _lose,          _ignore),
    Idle:            (_ignore,          _release,       _release,       _ignore),
    Released:        (_ignore,          _end_release,   _end_release,   _ignore),
    ReleaseRefused:  (_ignore,          _keep,          _keep,          _ignore),
    ReleaseFailed:   (_ignore,          _fail_release,  _fail_release,  _ignore),
    Drain:           (_leave_unjoined,  _drain,         _ignore,        _ignore),
}
# fmt: on
