"""Views of one node as numbers, for the exhaustive walk of the lease machine (`lease_world`).

Views that differ only in how old something is are equal, and the steps of single views are remembered.
"""

from collections.abc import Callable
from math import inf

import msgspec

from holdfast.cluster.lease_events import (
    Effect,
    LeaseEvent,
)
from holdfast.cluster.lease_state_machine import Holding, Peer, View, transition
from holdfast.domain.ids import NodeId, WorkspaceId

__all__ = ["FLOOR", "Views", "outdated_epoch", "outdated_peer", "renamed", "shifted"]

FLOOR = -6.0
"""The time at which everything older is equal."""


class Views:
    """Numbers views, and remembers the steps of single views."""

    def __init__(self) -> None:
        self.all: list[View] = []
        self.steps = 0
        self._numbers: dict[object, int] = {}
        self._memory: dict[tuple[int, object], tuple[int, tuple[Effect, ...]]] = {}

    def number(self, view: View) -> int:
        """Return the number of a view, with old times made equal."""
        view = shifted(view, 0.0)
        key = tuple(
            tuple(sorted(value.items())) if isinstance(value, dict) else value
            for value in msgspec.structs.astuple(view)
        )
        number = self._numbers.setdefault(key, len(self.all))
        if number == len(self.all):
            self.all.append(view)
        return number

    def step(self, number: int, event: LeaseEvent, key: object) -> tuple[int, tuple[Effect, ...]]:
        """Return the result of an event. `key` identifies the event."""
        found = self._memory.get((number, key))
        if found is None:
            self.steps += 1
            view, effects = transition(self.all[number], event)
            found = self._memory[number, key] = self.number(view), effects
        return found

    def change(self, number: int, key: object, change: Callable[[View], View]) -> int:
        """Return a view that changed only in the names of things."""
        found = self._memory.get((number, key))
        if found is None:
            found = self._memory[number, key] = self.number(change(self.all[number])), ()
        return found[0]


def shifted(view: View, by: float) -> View:
    def shift(time: float) -> float:
        return time if time == inf else max(FLOOR, time - by)

    def shift_peer(peer: Peer) -> Peer:
        return msgspec.structs.replace(peer, since=shift(peer.since))

    def shift_holding(held: Holding) -> Holding:
        if held.tools_from is None:
            return held
        return msgspec.structs.replace(held, tools_from=shift(held.tools_from))

    return msgspec.structs.replace(
        view,
        sent=None if view.sent is None else shift(view.sent),
        deadline=shift(view.deadline),
        lost=None if view.lost is None else shift(view.lost),
        last_read=None if view.last_read is None else shift(view.last_read),
        peers={name: shift_peer(peer) for name, peer in view.peers.items()},
        gone={name: shift_peer(peer) for name, peer in view.gone.items()},
        held={name: shift_holding(held) for name, held in view.held.items()},
    )


def renamed(view: View, old: NodeId, new: NodeId) -> View:
    def rename(name: NodeId) -> NodeId:
        return new if name == old else name

    return msgspec.structs.replace(
        view,
        node=None if view.node is None else rename(view.node),
        peers={rename(name): peer for name, peer in view.peers.items()},
        gone={rename(name): peer for name, peer in view.gone.items()},
        evicting=frozenset(rename(name) for name in view.evicting),
    )


def outdated_peer(view: View, name: NodeId) -> View:
    if name not in view.peers:
        return view
    peer = msgspec.structs.replace(view.peers[name], heartbeat=-1)
    return msgspec.structs.replace(view, peers={**view.peers, name: peer})


def outdated_epoch(view: View, workspace: WorkspaceId) -> View:
    held = view.held.get(workspace)
    if held is None:
        return view
    releasing = None if held.releasing is None else msgspec.structs.replace(held.releasing, epoch=-1)
    held = msgspec.structs.replace(held, epoch=-1, releasing=releasing)
    return msgspec.structs.replace(view, held={**view.held, workspace: held})
