"""Rules of the presence state machine, checked at every edge of the exhaustive walk."""

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
    ViewSession,
    WorkEnded,
    WorkspacePresence,
    attached,
    is_idle,
    transition,
)
from server.presence_walk import CLIENTS, NO_CLAIM, VIEWED_SESSION, WORKSPACES, History, refusal_of, walk

# The rules


def test_presence_matches_history() -> None:
    """Rules 1 to 7: claims, streams, holds, releases and sessions equal those of the history, and there are no
    others.
    """
    for edge in walk().edges:
        after, now = edge.after, edge.now
        if after is edge.presence and now is edge.past:
            continue
        claims = {(room, client): claim for room in after.workspaces for client, claim in workspace_of(after, room)}
        assert claims.keys() == now.claims_history.keys(), edge
        for pair, claim in claims.items():
            story = now.claims_history[pair]
            hold = None if story.timer is None else story.timer.grace
            reported = (story.streams, hold, story.released, story.session)
            assert (claim.streams, claim.hold, claim.released, claim.session) == reported, edge
            assert story.timer is None or story.timer.generation == claim.generation, edge
            assert (story.timer is None) == (story.streams > 0), edge
        assert {*after.retired} == now.retired, edge
        assert (after.creating, after.leaving, after.linger) == (now.creating, now.left, now.linger), edge


def workspace_of(presence: Presence, room: WorkspaceId) -> list[tuple[ClientId, Claim]]:
    return [*presence.workspaces[room].claims.items()]


def test_workspace_is_known_while_claimed_working_or_changing() -> None:
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


def test_workspace_closes_once_when_unclaimed_and_idle() -> None:
    """Rule 8, C-39."""
    for edge in walk().edges:
        closed = {effect.workspace for effect in edge.of(CloseWorkspace)}
        assert len(closed) == len(edge.of(CloseWorkspace)), edge
        open_before = edge.now.entered - {room for room, what in edge.past.asked.items() if what == "close"}
        still_opening = {room for room, what in edge.now.asked.items() if what == "open"}
        assert closed == {room for room in open_before - still_opening if not edge.now.is_wanted(room)}, edge
        assert not closed & edge.past.working or isinstance(edge.event, WorkEnded | Opened), edge


def test_workspace_reopens_exactly_after_arrival_during_close() -> None:
    """Rule 9: no arrival during a close is lost, and nothing else opens a workspace."""
    for edge in walk().edges:
        match edge.event:
            case Closed(workspace=room) if edge.past.asked.get(room) == "close" and not edge.past.left:
                wanted = edge.past.is_wanted(room)
                assert edge.of(OpenWorkspace) == ([OpenWorkspace(room)] if wanted else []), edge
                assert not wanted or edge.now.claims_history == edge.past.claims_history, edge
            case _:
                assert not edge.of(OpenWorkspace), edge


def test_hold_begins_with_create_and_with_end_of_last_stream() -> None:
    """Rules 1 and 3; every timer has a new generation (rule 4)."""
    for edge in walk().edges:
        expected: list[Arm] = []
        if isinstance(edge.event, Create | Detach) and refusal_of(edge.past, edge.event) is None:
            room, client = edge.event.workspace, edge.event.client
            story = edge.past.claims_history.get((room, client), NO_CLAIM)
            if isinstance(edge.event, Create) and not story.streams:
                expected = [Arm(room, client, edge.past.newest + 1, "create")]
            elif isinstance(edge.event, Detach) and story.streams == 1 and not story.released:
                expected = [Arm(room, client, edge.past.newest + 1, "detach")]
        assert edge.of(Arm) == expected, edge
        given = [effect.generation for effect in edge.effects if isinstance(effect, Arm | ArmLinger)]
        assert given == sorted({*given}), edge
        assert all(generation > edge.past.newest for generation in given), edge
        assert edge.after.generation == edge.now.newest, edge


def test_stale_timer_has_no_effect() -> None:
    """Rules 4 and 10: only the newest timer of a pair without streams and only the current linger timer have an
    effect.
    """
    for edge in walk().edges:
        match edge.event:
            case HoldOver(workspace=room, client=client, generation=generation):
                timer = edge.past.claims_history.get((room, client), NO_CLAIM).timer
                acts = timer is not None and timer.generation == generation
            case LingerOver(generation=generation):
                acts = edge.past.linger == generation
            case _:
                continue
        assert (edge.after != edge.presence) == acts, edge
        assert acts or not edge.effects, edge


def test_refusal_has_correct_reason_and_no_effect() -> None:
    """Rules 6, 7, 9, 11; the only effect is to close a workspace that was opened for nothing."""
    for edge in walk().edges:
        refusal = refusal_of(edge.past, edge.event)
        assert edge.of(Refuse) == ([] if refusal is None else [refusal]), edge
        if refusal is None:
            continue
        if isinstance(edge.event, Create) and edge.event.workspace not in edge.past.entered:
            assert edge.effects == (refusal, CloseWorkspace(edge.event.workspace)), edge
            assert edge.after.workspaces[edge.event.workspace] == WorkspacePresence("closing"), edge
        else:
            assert (edge.after, edge.effects) == (edge.presence, (refusal,)), edge


def test_retired_client_has_no_claims() -> None:
    """Rule 6."""
    for edge in walk().edges:
        for client in edge.past.retired:
            assert client in edge.after.retired, edge
            assert all(client not in here.claims for here in edge.after.workspaces.values()), edge


def test_server_lingers_exactly_while_idle() -> None:
    """Rule 10: a linger begins when the server becomes idle, lasts while it is idle and never returns."""
    for edge in walk().edges:
        lingers = edge.now.leaves and edge.now.is_idle and not edge.now.left
        assert is_idle(edge.after) == edge.now.is_idle, edge
        assert (edge.after.linger is not None) == lingers, edge
        begins = lingers and not (edge.past.is_idle and edge.past.linger == edge.after.linger)
        assert edge.of(ArmLinger) == ([ArmLinger(edge.now.newest)] if begins else []), edge


def test_server_exits_once_and_only_when_idle_or_stopped() -> None:
    """Rules 10 and 11."""
    for edge in walk().edges:
        leaves = edge.now.left and not edge.past.left
        assert edge.of(CloseServer) == ([CloseServer()] if leaves else []), edge
        assert edge.now.left >= edge.past.left, edge
        if leaves and not isinstance(edge.event, Stop):
            assert edge.past.leaves, edge
            assert edge.past.is_idle, edge


def test_event_changes_only_claims_it_names() -> None:
    """An event changes only the claims it names; a closed workspace loses all of its claims."""
    for edge in walk().edges:
        before, after, event = edge.presence, edge.after, edge.event
        for room, here in before.workspaces.items():
            if room not in after.workspaces or after.workspaces[room].claims == here.claims:
                continue
            changed = {c for c in CLIENTS if here.claims.get(c) != after.workspaces[room].claims.get(c)}
            assert isinstance(event, Create | Attach | Detach | Release | ViewSession | HoldOver | Retire), edge
            assert changed == {event.client}, edge
            assert isinstance(event, Retire) or event.workspace == room, edge


def test_attached_clients_have_stream_and_view_session() -> None:
    """Rule 7."""
    for presence, past in walk().places:
        for room in WORKSPACES:
            looking = [
                s
                for (where, _), s in past.claims_history.items()
                if where == room and s.streams and s.session == VIEWED_SESSION
            ]
            assert attached(presence, room, VIEWED_SESSION) == len(looking), (presence, past)


def test_exactly_impossible_events_are_illegal() -> None:
    def is_illegal(past: History, event: PresenceEvent) -> bool:
        match event:
            case CreateOver():
                return not past.creating
            case Closed(workspace=room):
                return room in past.entered and room not in past.asked and not past.left
            case _:
                return False

    assert not [edge for edge in walk().edges if is_illegal(edge.past, edge.event)]
    assert not [(past, event) for past, event in walk().illegal if not is_illegal(past, event)]


def next_ending_event(presence: Presence) -> list[PresenceEvent]:
    """Return an event that ends one thing: a create, a claim, work, a close, an open, the linger."""
    ends: list[PresenceEvent] = [CreateOver()] if presence.creating else []
    for room, here in presence.workspaces.items():
        if here.phase != "open":
            ends.append(Opened(room, working=here.working) if here.phase == "opening" else Closed(room))
        elif here.working:
            ends.append(WorkEnded(room))
        for client, claim in here.claims.items():
            ends.append(Detach(room, client) if claim.streams else HoldOver(room, client, claim.generation))
    return ends or ([] if presence.linger is None else [LingerOver(presence.linger)])


def test_every_presence_can_reach_server_exit() -> None:
    """From every state: when all clients have left and all work is done, every workspace is closed and the server
    exits.
    """
    for place, _ in walk().places:
        presence, steps = place, 0
        while (ends := next_ending_event(presence)) and steps < 30:
            presence, _ = transition(presence, ends[0])
            steps += 1
        left = presence.leaves_when_idle or place.leaving
        rest = Presence(place.leaves_when_idle, retired=place.retired, leaving=left)
        assert msgspec.structs.replace(presence, generation=0) == rest, place


def test_walk_reaches_expected_number_of_states() -> None:
    """The rules prove little unless the walk reaches many states."""
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
