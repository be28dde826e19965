"""The machine, all of it: every rule at every edge of the walk."""

from typing import get_args

import msgspec

from holdfast.domain.ids import WorkspaceId
from holdfast.server.presence import (
    Arm,
    ArmLinger,
    Attach,
    Claim,
    ClientId,
    Closed,
    CloseServer,
    CloseWorkspace,
    Create,
    CreateOver,
    Detach,
    Effect,
    HoldOver,
    LingerOver,
    Opened,
    OpenWorkspace,
    Presence,
    PresenceEvent,
    Refuse,
    Release,
    Retire,
    Stop,
    View,
    WorkEnded,
    Workspace,
    attached,
    is_idle,
    transition,
)
from server.presence_walk import CLIENTS, NOTHING, ROOMS, SEEN, Past, refusal_of, walk

# The rules


def test_a_presence_is_what_happened() -> None:
    """Rules 1 to 7: claims, streams, holds, releases and sessions are those of the past, and nothing else is there."""
    for edge in walk().edges:
        after, now = edge.after, edge.now
        if after is edge.presence and now is edge.past:
            continue
        claims = {(room, client): claim for room in after.workspaces for client, claim in room_of(after, room)}
        assert claims.keys() == now.stories.keys(), edge
        for pair, claim in claims.items():
            story = now.stories[pair]
            hold = None if story.timer is None else story.timer.grace
            told = (story.streams, hold, story.released, story.session)
            assert (claim.streams, claim.hold, claim.released, claim.session) == told, edge
            assert story.timer is None or story.timer.generation == claim.generation, edge
            assert (story.timer is None) == (story.streams > 0), edge
        assert {*after.retired} == now.retired, edge
        assert (after.creating, after.leaving, after.linger) == (now.creating, now.left, now.linger), edge


def room_of(presence: Presence, room: WorkspaceId) -> list[tuple[ClientId, Claim]]:
    return [*presence.workspaces[room].claims.items()]


def test_a_workspace_is_there_as_long_as_anything_is_to_be_done_with_it() -> None:
    """Rules 8 and 9."""
    for edge in walk().edges:
        after, now = edge.after, edge.now
        if after is edge.presence and now is edge.past:
            continue
        assert after.workspaces.keys() == now.entered, edge
        for room, here in after.workspaces.items():
            phase = {None: "open", "close": "closing", "open": "opening"}[now.asked.get(room)]
            assert (here.phase, here.working) == (phase, room in now.working), edge
            assert room in now.asked or now.is_wanted(room), edge
            assert room not in now.asked or not any(claim.streams for claim in here.claims.values()), edge


def test_a_workspace_closes_once_and_exactly_when_nothing_keeps_it() -> None:
    """Rule 8, C-39."""
    for edge in walk().edges:
        closed = {effect.workspace for effect in edge.of(CloseWorkspace)}
        assert len(closed) == len(edge.of(CloseWorkspace)), edge
        open_before = edge.now.entered - {room for room, what in edge.past.asked.items() if what == "close"}
        still_opening = {room for room, what in edge.now.asked.items() if what == "open"}
        assert closed == {room for room in open_before - still_opening if not edge.now.is_wanted(room)}, edge
        assert not closed & edge.past.working or isinstance(edge.event, WorkEnded | Opened), edge


def test_a_workspace_opens_again_exactly_when_somebody_came_while_it_was_closed() -> None:
    """Rule 9: nothing that came is lost, and nothing else opens a workspace."""
    for edge in walk().edges:
        match edge.event:
            case Closed(workspace=room) if edge.past.asked.get(room) == "close" and not edge.past.left:
                wanted = edge.past.is_wanted(room)
                assert edge.of(OpenWorkspace) == ([OpenWorkspace(room)] if wanted else []), edge
                assert not wanted or edge.now.stories == edge.past.stories, edge
            case _:
                assert not edge.of(OpenWorkspace), edge


def test_a_hold_begins_with_a_create_and_with_the_end_of_the_last_stream() -> None:
    """Rules 1 and 3, and every timer has a number nobody had before (rule 4)."""
    for edge in walk().edges:
        expected: list[Arm] = []
        if isinstance(edge.event, Create | Detach) and refusal_of(edge.past, edge.event) is None:
            room, client = edge.event.workspace, edge.event.client
            story = edge.past.stories.get((room, client), NOTHING)
            if isinstance(edge.event, Create) and not story.streams:
                expected = [Arm(room, client, edge.past.newest + 1, "create")]
            elif isinstance(edge.event, Detach) and story.streams == 1 and not story.released:
                expected = [Arm(room, client, edge.past.newest + 1, "detach")]
        assert edge.of(Arm) == expected, edge
        given = [effect.generation for effect in edge.effects if isinstance(effect, Arm | ArmLinger)]
        assert given == sorted({*given}), edge
        assert all(generation > edge.past.newest for generation in given), edge
        assert edge.after.generation == edge.now.newest, edge


def test_a_stale_timer_does_nothing() -> None:
    """Rules 4 and 10: only the newest timer of a pair that has no stream, only the linger under way."""
    for edge in walk().edges:
        match edge.event:
            case HoldOver(workspace=room, client=client, generation=generation):
                timer = edge.past.stories.get((room, client), NOTHING).timer
                acts = timer is not None and timer.generation == generation
            case LingerOver(generation=generation):
                acts = edge.past.linger == generation
            case _:
                continue
        assert (edge.after != edge.presence) == acts, edge
        assert acts or not edge.effects, edge


def test_a_refusal_is_the_right_one_and_changes_nothing() -> None:
    """Rules 6, 7, 9, 11; only a workspace that was opened for nothing is closed then."""
    for edge in walk().edges:
        refusal = refusal_of(edge.past, edge.event)
        assert edge.of(Refuse) == ([] if refusal is None else [refusal]), edge
        if refusal is None:
            continue
        if isinstance(edge.event, Create) and edge.event.workspace not in edge.past.entered:
            assert edge.effects == (refusal, CloseWorkspace(edge.event.workspace)), edge
            assert edge.after.workspaces[edge.event.workspace] == Workspace("closing"), edge
        else:
            assert (edge.after, edge.effects) == (edge.presence, (refusal,)), edge


def test_a_retired_client_has_nothing_anywhere() -> None:
    """Rule 6."""
    for edge in walk().edges:
        for client in edge.past.retired:
            assert client in edge.after.retired, edge
            assert all(client not in here.claims for here in edge.after.workspaces.values()), edge


def test_the_server_lingers_exactly_while_it_is_idle() -> None:
    """Rule 10: a linger begins with idleness, goes on while it lasts and never comes back."""
    for edge in walk().edges:
        lingers = edge.now.leaves and edge.now.is_idle and not edge.now.left
        assert is_idle(edge.after) == edge.now.is_idle, edge
        assert (edge.after.linger is not None) == lingers, edge
        begins = lingers and not (edge.past.is_idle and edge.past.linger == edge.after.linger)
        assert edge.of(ArmLinger) == ([ArmLinger(edge.now.newest)] if begins else []), edge


def test_the_server_leaves_once_and_only_when_it_is_idle_or_told_to() -> None:
    """Rules 10 and 11."""
    for edge in walk().edges:
        leaves = edge.now.left and not edge.past.left
        assert edge.of(CloseServer) == ([CloseServer()] if leaves else []), edge
        assert edge.now.left >= edge.past.left, edge
        if leaves and not isinstance(edge.event, Stop):
            assert edge.past.leaves, edge
            assert edge.past.is_idle, edge


def test_others_are_left_alone() -> None:
    """An event changes only the claims it names; a workspace that goes takes all of its claims."""
    for edge in walk().edges:
        before, after, event = edge.presence, edge.after, edge.event
        for room, here in before.workspaces.items():
            if room not in after.workspaces or after.workspaces[room].claims == here.claims:
                continue
            changed = {c for c in CLIENTS if here.claims.get(c) != after.workspaces[room].claims.get(c)}
            assert isinstance(event, Create | Attach | Detach | Release | View | HoldOver | Retire), edge
            assert changed == {event.client}, edge
            assert isinstance(event, Retire) or event.workspace == room, edge


def test_the_attached_are_those_with_a_stream_who_look_at_the_session() -> None:
    """Rule 7."""
    for presence, past in walk().places:
        for room in ROOMS:
            looking = [s for (where, _), s in past.stories.items() if where == room and s.streams and s.session == SEEN]
            assert attached(presence, room, SEEN) == len(looking), (presence, past)


def test_exactly_the_impossible_events_are_illegal() -> None:
    def cannot(past: Past, event: PresenceEvent) -> bool:
        match event:
            case CreateOver():
                return not past.creating
            case Closed(workspace=room):
                return room in past.entered and room not in past.asked and not past.left
            case _:
                return False

    assert not [edge for edge in walk().edges if cannot(edge.past, edge.event)]
    assert not [(past, event) for past, event in walk().illegal if not cannot(past, event)]


def leave_all(presence: Presence) -> list[PresenceEvent]:
    """One thing that ends: a create, a claim, work, a closing, an opening, the linger."""
    ends: list[PresenceEvent] = [CreateOver()] if presence.creating else []
    for room, here in presence.workspaces.items():
        if here.phase != "open":
            ends.append(Opened(room, working=here.working) if here.phase == "opening" else Closed(room))
        elif here.working:
            ends.append(WorkEnded(room))
        for client, claim in here.claims.items():
            ends.append(Detach(room, client) if claim.streams else HoldOver(room, client, claim.generation))
    return ends or ([] if presence.linger is None else [LingerOver(presence.linger)])


def test_no_presence_is_stuck() -> None:
    """From everywhere: when everybody is gone and all work is done, every workspace is closed and the server leaves."""
    for place, _ in walk().places:
        presence, steps = place, 0
        while (ends := leave_all(presence)) and steps < 30:
            presence, _ = transition(presence, ends[0])
            steps += 1
        left = presence.leaves_when_idle or place.leaving
        rest = Presence(place.leaves_when_idle, retired=place.retired, leaving=left)
        assert msgspec.structs.replace(presence, generation=0) == rest, place


def test_the_walk_gets_everywhere() -> None:
    """The rules above are worth nothing if there is little to hold them against."""
    found = walk()
    assert len(found.places) >= 1_500
    assert len(found.edges) >= 55_000
    assert len(found.illegal) >= 2_000
    assert {type(edge.event) for edge in found.edges} == {*get_args(PresenceEvent)}
    assert {type(effect) for edge in found.edges for effect in edge.effects} == {*get_args(Effect)}
    rooms = [here for presence, _ in found.places for here in presence.workspaces.values()]
    assert {here.phase for here in rooms} == {"open", "closing", "opening"}
    claims = [claim for here in rooms for claim in here.claims.values()]
    assert {(claim.streams, claim.hold) for claim in claims} == {(0, "create"), (0, "detach"), (1, None), (2, None)}
    assert max(sum(len(here.claims) for here in presence.workspaces.values()) for presence, _ in found.places) == 4
