"""Exhaustive walk of the presence state machine: every state two clients can reach, every event in each.

There are two walks. The first has one workspace and everything about claims: two streams, releases, a session, a
create in flight, the end of the server. The second has two workspaces and less about each claim. A state beyond these
limits is checked against the rules, but the walk does not continue from it. Generations increase without limit, so
states that differ only in generations or names count as one.

The walk also keeps a history (`History`), derived from events and effects and never from the presence, so that the
rules can compare the two.
"""

import gc
from collections.abc import Iterator
from functools import cache
from itertools import permutations
from typing import Literal, NamedTuple, TypeVar

from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.server.presence import (
    Arm,
    ArmLinger,
    Attach,
    Claim,
    ClientId,
    Closed,
    CloseWorkspace,
    Create,
    CreateBegan,
    CreateOver,
    Detach,
    Effect,
    HoldOver,
    IllegalTransition,
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
    WorkBegan,
    WorkEnded,
    WorkspacePresence,
    start,
    transition,
)

CLIENTS = (ClientId("a"), ClientId("b"))
WORKSPACES = (WorkspaceId("v"), WorkspaceId("w"))
VIEWED_SESSION = SessionId("seen")
Pair = tuple[WorkspaceId, ClientId]
Code = tuple[tuple[int, ...], ...]
Kind = TypeVar("Kind")


class ClaimHistory(NamedTuple):
    """History of a client in a workspace: counted streams, the current timer, the release and the session."""

    streams: int = 0
    timer: Arm | None = None
    released: bool = False
    session: SessionId | None = None


NO_CLAIM = ClaimHistory()


class History(NamedTuple):
    """Expected state of the server.

    `requested` are opens and closes that are not done; `entered` are the known workspaces.
    """

    leaves: bool
    linger: int | None
    newest: int
    claims_history: dict[Pair, ClaimHistory]
    asked: dict[WorkspaceId, Literal["close", "open"]]
    entered: frozenset[WorkspaceId] = frozenset()
    working: frozenset[WorkspaceId] = frozenset()
    retired: frozenset[ClientId] = frozenset()
    creating: int = 0
    left: bool = False

    def is_wanted(self, room: WorkspaceId) -> bool:
        return room in self.working or any(pair[0] == room for pair in self.claims_history)

    @property
    def is_idle(self) -> bool:
        return not self.entered and not self.creating


class Edge(NamedTuple):
    presence: Presence
    past: History
    event: PresenceEvent
    after: Presence
    effects: tuple[Effect, ...]
    now: History

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [effect for effect in self.effects if isinstance(effect, kind)] if self.effects else []


class Walk(NamedTuple):
    edges: list[Edge]
    places: list[tuple[Presence, History]]
    illegal: list[tuple[History, PresenceEvent]]


# Events


def claim_of(presence: Presence, room: WorkspaceId, client: ClientId) -> Claim:
    return presence.workspaces.get(room, WorkspacePresence()).claims.get(client, Claim())


def events(presence: Presence, rooms: tuple[WorkspaceId, ...]) -> Iterator[PresenceEvent]:
    """Return all events, legal or not: each timer with the newest generation and with others."""
    yield from (Stop(), CreateOver())
    yield from (LingerOver(generation) for generation in {presence.linger or 0, presence.generation, -1})
    for client in CLIENTS:
        yield from (Retire(client), CreateBegan(client))
        for room in rooms:
            yield from (Create(room, client), Attach(room, client), Detach(room, client), Release(room, client))
            if len(rooms) == 1:
                yield from (ViewSession(room, client, VIEWED_SESSION), ViewSession(room, client, SessionId("")))
            newest = claim_of(presence, room, client).generation
            yield from (HoldOver(room, client, generation) for generation in {newest, newest - 1, presence.generation})
    for room in rooms:
        yield from (Opened(room), Opened(room, working=False), Closed(room), WorkBegan(room), WorkEnded(room))


# Expected outcome, independent of the presence


def refusal_of(past: History, event: PresenceEvent) -> Refuse | None:
    match event:
        case Create() | CreateBegan() | Attach() if past.left:
            return Refuse("leaving")
        case Create(client=client) | CreateBegan(client=client) | Attach(client=client) if client in past.retired:
            return Refuse("retired")
        case Attach(workspace=room) if room not in past.entered or room in past.asked:
            return Refuse("not open")
        case ViewSession(workspace=room, client=client) if not past.claims_history.get(
            (room, client), NO_CLAIM
        ).streams:
            return Refuse("not attached")
        case _:
            return None


def claim_history_after(story: ClaimHistory, event: PresenceEvent, timer: Arm | None) -> ClaimHistory:
    """Return the history of one client in one workspace after an event that names both and is not refused."""
    match event:
        case Create():
            return story._replace(timer=timer, released=False)
        case Attach():
            return story._replace(streams=story.streams + 1, timer=None)
        case Detach() if story.streams == 1 and story.released:
            return NO_CLAIM
        case Detach() if story.streams:
            return story._replace(streams=story.streams - 1, timer=timer)
        case Release():
            return story._replace(released=True) if story.streams else NO_CLAIM
        case ViewSession(session=session):
            return story._replace(session=session or None)
        case HoldOver(generation=generation) if story.timer is not None and story.timer.generation == generation:
            return NO_CLAIM
        case _:
            return story


def with_workspace_event(past: History, event: PresenceEvent) -> History:
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
            claims_history = {pair: story for pair, story in past.claims_history.items() if pair[0] != room}
            return past._replace(
                claims_history=claims_history, entered=past.entered - {room}, working=past.working - {room}, asked=asked
            )
        case _:
            return past


def with_server_event(past: History, event: PresenceEvent) -> History:
    match event:
        case Retire(client=client):
            claims_history = {pair: story for pair, story in past.claims_history.items() if pair[1] != client}
            return past._replace(retired=past.retired | {client}, claims_history=claims_history)
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


def history_after(past: History, event: PresenceEvent, effects: tuple[Effect, ...]) -> History:
    """Return the history after one more event. The effects contain timer generations and requested opens and closes."""
    refused = refusal_of(past, event)
    if isinstance(event, Create):
        past = past._replace(entered=past.entered | {event.workspace})
    if not refused and isinstance(event, Create | Attach | Detach | Release | ViewSession | HoldOver):
        pair = (event.workspace, event.client)
        timer = next((effect for effect in effects if isinstance(effect, Arm)), None)
        story = claim_history_after(past.claims_history.get(pair, NO_CLAIM), event, timer)
        rest = {other: known for other, known in past.claims_history.items() if other != pair}
        past = past._replace(claims_history=rest if story == NO_CLAIM else {**rest, pair: story})
    elif not refused:
        past = with_server_event(with_workspace_event(past, event), event)
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
    """Encode a state without its generations, with these names."""
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


def walk_from(rooms: tuple[WorkspaceId, ...], *starts: bool) -> Walk:
    names = [(places, clients) for places in permutations(rooms) for clients in permutations(CLIENTS)]
    walk = Walk([], [], [])
    seen: set[Code] = set()
    for leaves in starts:
        presence, effects = start(leaves_when_idle=leaves)
        assert effects == ((ArmLinger(1),) if leaves else ())
        walk.places.append((presence, History(leaves, 1 if leaves else None, presence.generation, {}, {})))
    for presence, past in walk.places:
        assert len(walk.places) < 5_000, "the walk does not end"
        for event in events(presence, rooms):
            try:
                after, effects = transition(presence, event)
            except IllegalTransition:
                walk.illegal.append((past, event))
                continue
            now = history_after(past, event, effects)
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
    gc.disable()  # All objects are kept: garbage collection would take as long as the walk.
    try:
        one, two = walk_from(WORKSPACES[:1], True, False), walk_from(WORKSPACES, True)
    finally:
        gc.enable()
    return Walk(one.edges + two.edges, one.places + two.places, one.illegal + two.illegal)
