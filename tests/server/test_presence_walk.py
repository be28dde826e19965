"""The machine, all of it: every presence that two clients can reach, every event in each, every rule at every edge.

Two walks. In *one room* there is one workspace and everything about claims: two streams, releases, a session, a
create in flight, the server's leaving. In *two rooms* there are two workspaces and less about each claim. A place
beyond these limits is still held against the rules, but the walk does not go on from there. Generations count up for
ever, so places that differ in them alone are one place, and so are those that differ in names alone.

Beside the presence the walk keeps what has happened (`Past`), known from events and effects and never from the
presence, so that the rules can hold the one against the other.
"""

import gc
from collections.abc import Iterator
from functools import cache
from itertools import permutations
from typing import Literal, NamedTuple, TypeVar, get_args

import msgspec

from holdfast.domain.ids import SessionId, WorkspaceId

# fmt: off
# isort: off
from holdfast.server.presence import (
    Arm, ArmLinger, Attach, Claim, ClientId, CloseServer, CloseWorkspace, Closed, Create, CreateBegan, CreateOver,
    Detach, Effect, HoldOver, IllegalTransition, LingerOver, OpenWorkspace, Opened, Presence, PresenceEvent, Refuse,
    Release, Retire, Stop, View, WorkBegan, WorkEnded, Workspace, attached, is_idle, start, transition,
)
# isort: on
# fmt: on

CLIENTS = (ClientId("a"), ClientId("b"))
ROOMS = (WorkspaceId("v"), WorkspaceId("w"))
SEEN = SessionId("seen")
Pair = tuple[WorkspaceId, ClientId]
Code = tuple[tuple[int, ...], ...]
Kind = TypeVar("Kind")


class Story(NamedTuple):
    """What is known of a client in a workspace: streams that count, the timer that counts, and what it said."""

    streams: int = 0
    timer: Arm | None = None
    released: bool = False
    session: SessionId | None = None


NOTHING = Story()


class Past(NamedTuple):
    """`asked` is what was told to be done with a workspace and is not done; `entered` are those that are there."""

    leaves: bool
    linger: int | None
    newest: int
    stories: dict[Pair, Story]
    asked: dict[WorkspaceId, Literal["close", "open"]]
    entered: frozenset[WorkspaceId] = frozenset()
    working: frozenset[WorkspaceId] = frozenset()
    retired: frozenset[ClientId] = frozenset()
    creating: int = 0
    left: bool = False

    def is_wanted(self, room: WorkspaceId) -> bool:
        return room in self.working or any(pair[0] == room for pair in self.stories)

    @property
    def is_idle(self) -> bool:
        return not self.entered and not self.creating


class Edge(NamedTuple):
    presence: Presence
    past: Past
    event: PresenceEvent
    after: Presence
    effects: tuple[Effect, ...]
    now: Past

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [effect for effect in self.effects if isinstance(effect, kind)] if self.effects else []


class Walk(NamedTuple):
    edges: list[Edge]
    places: list[tuple[Presence, Past]]
    illegal: list[tuple[Past, PresenceEvent]]


# What can be said


def claim_of(presence: Presence, room: WorkspaceId, client: ClientId) -> Claim:
    return presence.workspaces.get(room, Workspace()).claims.get(client, Claim())


def events(presence: Presence, rooms: tuple[WorkspaceId, ...]) -> Iterator[PresenceEvent]:
    """All that can be said, right or wrong: each timer with the newest generation it was given and with others."""
    yield from (Stop(), CreateOver())
    yield from (LingerOver(generation) for generation in {presence.linger or 0, presence.generation, -1})
    for client in CLIENTS:
        yield from (Retire(client), CreateBegan(client))
        for room in rooms:
            yield from (Create(room, client), Attach(room, client), Detach(room, client), Release(room, client))
            if len(rooms) == 1:
                yield from (View(room, client, SEEN), View(room, client, SessionId("")))
            newest = claim_of(presence, room, client).generation
            yield from (HoldOver(room, client, generation) for generation in {newest, newest - 1, presence.generation})
    for room in rooms:
        yield from (Opened(room), Opened(room, working=False), Closed(room), WorkBegan(room), WorkEnded(room))


# What happens, seen from outside


def refusal_of(past: Past, event: PresenceEvent) -> Refuse | None:
    match event:
        case Create() | CreateBegan() | Attach() if past.left:
            return Refuse("leaving")
        case Create(client=client) | CreateBegan(client=client) | Attach(client=client) if client in past.retired:
            return Refuse("retired")
        case Attach(workspace=room) if room not in past.entered or room in past.asked:
            return Refuse("not open")
        case View(workspace=room, client=client) if not past.stories.get((room, client), NOTHING).streams:
            return Refuse("not attached")
        case _:
            return None


def story_after(story: Story, event: PresenceEvent, timer: Arm | None) -> Story:
    """One client in one workspace, after an event that names both and is not refused."""
    match event:
        case Create():
            return story._replace(timer=timer, released=False)
        case Attach():
            return story._replace(streams=story.streams + 1, timer=None)
        case Detach() if story.streams == 1 and story.released:
            return NOTHING
        case Detach() if story.streams:
            return story._replace(streams=story.streams - 1, timer=timer)
        case Release():
            return story._replace(released=True) if story.streams else NOTHING
        case View(session=session):
            return story._replace(session=session or None)
        case HoldOver(generation=generation) if story.timer is not None and story.timer.generation == generation:
            return NOTHING
        case _:
            return story


def with_rooms(past: Past, event: PresenceEvent) -> Past:
    match event:
        case Opened(workspace=room, working=working):
            asked = {name: what for name, what in past.asked.items() if (name, what) != (room, "open")}
            now = past.working | {room} if working else past.working - {room}
            return past._replace(entered=past.entered | {room}, working=now, asked=asked)
        case WorkBegan(workspace=room):
            return past._replace(entered=past.entered | {room}, working=past.working | {room})
        case WorkEnded(workspace=room):
            return past._replace(working=past.working - {room})
        case Closed(workspace=room) if past.asked.get(room) != "close" or past.left or not past.is_wanted(room):
            asked = {name: what for name, what in past.asked.items() if name != room}
            stories = {pair: story for pair, story in past.stories.items() if pair[0] != room}
            return past._replace(
                stories=stories, entered=past.entered - {room}, working=past.working - {room}, asked=asked
            )
        case _:
            return past


def with_server(past: Past, event: PresenceEvent) -> Past:
    match event:
        case Retire(client=client):
            stories = {pair: story for pair, story in past.stories.items() if pair[1] != client}
            return past._replace(retired=past.retired | {client}, stories=stories)
        case CreateBegan():
            return past._replace(creating=past.creating + 1)
        case CreateOver():
            return past._replace(creating=past.creating - 1)
        case LingerOver(generation=generation) if generation == past.linger:
            return past._replace(left=True)
        case Stop():
            return past._replace(left=True)
        case _:
            return past


def lived(past: Past, event: PresenceEvent, effects: tuple[Effect, ...]) -> Past:
    """The past after one more event. The effects tell the numbers of timers and what was asked for."""
    refused = refusal_of(past, event)
    if isinstance(event, Create):
        past = past._replace(entered=past.entered | {event.workspace})
    if not refused and isinstance(event, Create | Attach | Detach | Release | View | HoldOver):
        pair = (event.workspace, event.client)
        timer = next((effect for effect in effects if isinstance(effect, Arm)), None)
        story = story_after(past.stories.get(pair, NOTHING), event, timer)
        rest = {other: known for other, known in past.stories.items() if other != pair}
        past = past._replace(stories=rest if story == NOTHING else {**rest, pair: story})
    elif not refused:
        past = with_server(with_rooms(past, event), event)
    if past.linger is not None and (past.left or not past.is_idle):
        past = past._replace(linger=None)
    for effect in effects:
        match effect:
            case Arm(generation=generation):
                past = past._replace(newest=generation)
            case ArmLinger(generation=generation):
                past = past._replace(newest=generation, linger=generation)
            case CloseWorkspace(workspace=room):
                past = past._replace(asked={**past.asked, room: "close"})
            case OpenWorkspace(workspace=room):
                past = past._replace(asked={**past.asked, room: "open"})
            case _:
                pass
    return past


# The walk


def code(presence: Presence, rooms: tuple[WorkspaceId, ...], clients: tuple[ClientId, ...]) -> Code:
    """The place without its generations, by these names."""
    server = (presence.leaves_when_idle, presence.leaving, presence.creating)
    coded: list[tuple[int, ...]] = [(*server, *(client in presence.retired for client in clients))]
    for room in rooms:
        here = presence.workspaces.get(room)
        if here is None:
            coded.append(())
            continue
        claims: list[int] = [("open", "closing", "opening").index(here.phase), here.working]
        for client in clients:
            claim = here.claims.get(client, Claim())
            claims += (claim.streams, (None, "create", "detach").index(claim.hold), claim.released, bool(claim.session))
        coded.append(tuple(claims))
    return tuple(coded)


def is_within(presence: Presence, rooms: tuple[WorkspaceId, ...]) -> bool:
    claims = [claim for here in presence.workspaces.values() for claim in here.claims.values()]
    streams = sum(claim.streams for claim in claims)
    if len(rooms) == 1 and presence.leaves_when_idle:
        return streams <= 2 and sum(bool(claim.session) for claim in claims) <= 1 and presence.creating <= 1
    if streams > 1 or any(claim.released or claim.session for claim in claims):
        return False
    return presence.creating <= 1 if len(rooms) == 1 else not presence.creating and not presence.leaving


def go(rooms: tuple[WorkspaceId, ...], *starts: bool) -> Walk:
    names = [(places, clients) for places in permutations(rooms) for clients in permutations(CLIENTS)]
    walk = Walk([], [], [])
    seen: set[Code] = set()
    for leaves in starts:
        presence, effects = start(leaves_when_idle=leaves)
        assert effects == ((ArmLinger(1),) if leaves else ())
        walk.places.append((presence, Past(leaves, 1 if leaves else None, presence.generation, {}, {})))
    for presence, past in walk.places:
        assert len(walk.places) < 5_000, "the walk does not end"
        for event in events(presence, rooms):
            try:
                after, effects = transition(presence, event)
            except IllegalTransition:
                walk.illegal.append((past, event))
                continue
            now = lived(past, event, effects)
            if after == presence and now == past:
                walk.edges.append(Edge(presence, past, event, presence, effects, past))
                continue
            walk.edges.append(Edge(presence, past, event, after, effects, now))
            if code(after, *names[0]) in seen or not is_within(after, rooms):
                continue
            seen |= {code(after, *name) for name in names}
            walk.places.append((after, now))
    return walk


@cache
def walk() -> Walk:
    gc.disable()  # Everything is kept: looking for garbage takes as long as the walk.
    try:
        one, two = go(ROOMS[:1], True, False), go(ROOMS, True)
    finally:
        gc.enable()
    return Walk(one.edges + two.edges, one.places + two.places, one.illegal + two.illegal)


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


def test_what_cannot_happen_is_illegal_and_nothing_else() -> None:
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
