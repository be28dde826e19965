"""Exhaustive walk of the lease machine: three nodes, two workspaces and a model of the database (`lease_world`).

Without faults, every order of heartbeats, reads, claims, releases and drains is visited. With one fault of any kind at
any moment, every order of the nodes' turns is visited, until no trace of the fault is left. The invariants are checked
in every state; from a part of the states, the worlds continue without another fault until every workspace has an owner.
"""

import gc
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import pytest

from cluster.lease_world import NAMES, TIMING, WORKSPACES, Violation, World, Worlds

KINDS = ("pause", "cut", "kill", "lock", "reply", "slow", "outage", "blip")
MAX_STATES = 60_000
RECOVERY_TICKS = 12
SAMPLES = 25
"""So many states of each walk are continued to their recovery."""


class Walk(NamedTuple):
    worlds: Worlds
    states: list[World]
    steps: set[str]


def acting(world: World, place: int) -> list[int]:
    """Return the machines on which tools of the workspace may change files. A freeze may be late by the margin."""
    return [
        index
        for index, machine in enumerate(world.machines)
        if machine.tools >> place & 1 and machine.guard + TIMING.margin > 0
    ]


def check(worlds: Worlds, world: World) -> None:
    """Check the invariants that hold in every state."""
    for place, name in enumerate(WORKSPACES):
        if len(machines := acting(world, place)) > 1:
            raise Violation(f"tools of {name} run on {machines}")
        admitted = []
        for index, machine in enumerate(world.machines):
            held = worlds.views.all[machine.view].held.get(name)
            if held is not None and held.epoch == 0:
                admitted.append(index)
            elif held is None and machine.tools >> place & 1:
                raise Violation(f"{NAMES[index]} runs tools of {name}, which it does not hold")
        if admitted and admitted != [world.spaces[place].owner]:
            raise Violation(f"writes to {name} are admitted from {admitted}")


def is_complete(world: World) -> bool:
    """Return whether all nodes have joined and every workspace has an owner."""
    return all(row.exists and row.lock for row in world.nodes) and all(
        space.owner is not None for space in world.spaces
    )


def walk(worlds: Worlds, start: World, *, faults: int) -> Walk:
    """Visit every state, and check it. A violation names the steps to it.

    A state without a trace of what the walk is about is not continued: `healthy` does it.
    """
    # The states contain no cycles, and the collector would visit all of them again and again.
    gc.disable()
    try:
        return _walk(worlds, start, faults)
    finally:
        gc.enable()


def _walk(worlds: Worlds, start: World, faults: int) -> Walk:
    has_traces = faults > 0 or not worlds.is_healthy(start)
    came_from: dict[World, tuple[str, World] | None] = {start: None}
    states, names = [start], set[str]()
    for world in states:
        if (
            has_traces
            and len(world.faults) == faults
            and (worlds.is_healthy(world) or (not faults and is_complete(world)))
        ):
            continue
        try:
            for name, following in worlds.steps(world):
                if following not in came_from:
                    came_from[following] = name, world
                    states.append(following)
                    names.add(name)
                    check(worlds, following)
        except (Violation, AssertionError) as error:
            path, place = list[str](), came_from[world]
            while place is not None:
                path.insert(0, place[0])
                place = came_from[place[1]]
            error.add_note(" → ".join(path))
            raise
        assert len(states) < MAX_STATES, "the walk does not end"
    return Walk(worlds, states, names)


@cache
def healthy() -> Walk:
    worlds = Worlds(0, frozenset())
    return walk(worlds, worlds.settled((0, 1)), faults=0)


@cache
def joining() -> Walk:
    worlds = Worlds(0, frozenset(), turns=True)
    return walk(worlds, worlds.unjoined(), faults=0)


@cache
def ending() -> Walk:
    worlds = Worlds(0, frozenset(), ends=True, turns=True)
    return walk(worlds, worlds.settled((0, 1)), faults=0)


@cache
def faulty(kind: str) -> Walk:
    worlds = Worlds(1, frozenset({kind}), turns=True)
    return walk(worlds, worlds.settled((0, 1)), faults=1)


WALKS: list[Callable[[], Walk]] = [healthy, joining, ending, *(partial(faulty, kind) for kind in KINDS)]
LABELS = ["healthy", "joining", "ending", *KINDS]


@pytest.mark.parametrize("walked", WALKS, ids=LABELS)
def test_one_owner_one_place_of_tools_and_no_needless_eviction(walked: Callable[[], Walk]) -> None:
    """R8: the checks of every state, and of every eviction, in `walk` and `lease_world`."""
    assert walked().states


def recover(worlds: Worlds, world: World) -> World:
    """Let paused and cut nodes and the database recover, and time pass, without another fault."""
    machines = tuple(
        machine._replace(condition="dead" if machine.condition == "dead" else "up") for machine in world.machines
    )
    world = world._replace(machines=machines, database="up")
    for _ in range(RECOVERY_TICKS):
        while (following := worlds.work(world)) is not None:
            world = following
            check(worlds, world)
        world = worlds.tick(world)
    while (following := worlds.work(world)) is not None:
        world = following
    return world


@pytest.mark.parametrize("walked", WALKS, ids=LABELS)
def test_every_workspace_gets_an_owner_whose_tools_run(walked: Callable[[], Walk]) -> None:
    worlds, states, _ = walked()
    for state in states[:: max(1, len(states) // SAMPLES)]:
        world = recover(worlds, state)
        for place, name in enumerate(WORKSPACES):
            space = world.spaces[place]
            if space.owner is None and not space.wanted:
                continue
            assert space.owner is not None, (name, state, world)
            machine = world.machines[space.owner]
            held = worlds.views.all[machine.view].held.get(name)
            assert held is not None, (name, state)
            assert held.epoch == 0, (name, state)
            assert acting(world, place) == [space.owner] or held.releasing is not None, (name, state, world)


def test_a_node_that_was_replaced_joins_again() -> None:
    for kind in ("pause", "cut", "lock"):
        assert any(step.endswith(" Join") for step in faulty(kind).steps), kind


def test_the_walk_reaches_the_expected_states() -> None:
    """The invariants prove nothing if the walk visits few states."""
    assert len(healthy().states) >= 15_000
    assert len(joining().states) >= 4_000
    assert sum(len(faulty(kind).states) for kind in KINDS) >= 60_000
    steps = set[str]().union(*(walked().steps for walked in WALKS))
    works = {step.split(" ", 1)[1] for step in steps if " " in step}
    assert works >= {"heartbeat", "read", "Evict", "Claim", "Release", "Leave", "Join", "recovers", "listens", "drains"}
    hinted = [state for state in faulty("kill").states if any(space.hinted for space in state.spaces)]
    assert hinted
    assert any("tools of" in step for step in steps), "no node has waited for a lease"
