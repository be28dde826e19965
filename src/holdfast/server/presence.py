"""State machine for clients and workspaces: what keeps a workspace and the server alive. Pure.

A client has a *claim* on a workspace: open streams, or a *hold*, a grace in which it may connect (again).
`transition(presence, event)` returns the next presence and the effects to be carried out.
It names graces and does not know their length. The rules, which are also the tests:

1.  A create claims the workspace with a `create` hold. Another create of the same client restarts the full grace
    and revokes a release; while the client has streams no hold begins.
2.  An attach ends the hold and adds a stream, also for a client that never created.
3.  A detach removes a stream. After the last one a released claim ends at once, any other gets a `detach` hold.
4.  A hold that expires removes its claim. Each hold has a generation and expires by that one only, so a timer of an
    earlier hold, or one that fires while there are streams, does nothing.
5.  A release removes a claim without streams and marks one with streams. Unknown names are ignored.
6.  A retired client loses every claim, streams or not, and can never create or attach again; its streams that end
    later are ignored. The newest `RETIRED_LIMIT` retired clients are remembered.
7.  Viewing requires an open stream; "" means no session; the current session ends with the claim.
8.  A workspace closes, once, exactly when it has neither claim nor work: runs outlive their clients. One that
    was opened for a create which is then refused closes too, unless another client has a claim.
9.  A workspace that is being closed, or opened again, stays so until `Closed` or `Opened`. Meanwhile attaches are
    refused, and claims and work are kept: they open it again. If that fails they are removed with it.
10. An idle server (no workspace, no create in flight) that `leaves_when_idle` lingers, then stops. Any activity
    ends that linger for good: the next one has a new generation.
11. Leaving, by linger or `Stop`, is reported once and is final: creates and attaches are refused, nothing is opened
    again. Closing the workspaces that are still open is then the caller's task.
"""

from collections.abc import Mapping
from typing import Literal, NewType, TypeAlias, assert_never

import msgspec
from msgspec.structs import replace

from holdfast.domain.ids import SessionId, WorkspaceId

# fmt: off
__all__ = [
    "RETIRED_LIMIT", "Arm", "ArmLinger", "Attach", "Claim", "ClientId", "CloseServer", "CloseWorkspace", "Closed",
    "Create", "CreateBegan", "CreateOver", "Detach", "Effect", "Grace", "HoldOver", "IllegalTransition",
    "LingerOver", "OpenWorkspace", "Opened", "Phase", "Presence", "PresenceEvent", "Refuse", "RefuseReason", "Release",
    "Retire", "Step", "Stop", "ViewSession", "WorkBegan", "WorkEnded", "WorkspacePresence", "attached", "is_idle",
    "start", "transition",
]
# fmt: on

ClientId = NewType("ClientId", str)
Grace = Literal["create", "detach"]
Phase = Literal["open", "closing", "opening"]
RefuseReason = Literal["retired", "leaving", "not open", "not attached"]

RETIRED_LIMIT = 10_000


class Claim(msgspec.Struct, frozen=True):
    """Claim of one client on one workspace: streams or a hold, never both. `generation` is that of the last hold."""

    streams: int = 0
    hold: Grace | None = None
    generation: int = 0
    released: bool = False
    session: SessionId | None = None


class WorkspacePresence(msgspec.Struct, frozen=True):
    """State of one workspace: its phase, its claims, and whether runs or jobs are active."""

    phase: Phase = "open"
    claims: Mapping[ClientId, Claim] = {}
    working: bool = False


class Presence(msgspec.Struct, frozen=True):
    """State of all clients. `generation` is the last one assigned, `linger` that of the current linger, `creating`
    counts creates in flight.
    """

    leaves_when_idle: bool
    workspaces: Mapping[WorkspaceId, WorkspacePresence] = {}
    retired: tuple[ClientId, ...] = ()
    creating: int = 0
    generation: int = 0
    linger: int | None = None
    leaving: bool = False


# Events. Only a `CreateBegan` that is not refused is followed by a `CreateOver`, after the `Create`.


class _Place(msgspec.Struct, frozen=True):
    workspace: WorkspaceId


class _Pair(_Place, frozen=True):
    client: ClientId


class Create(_Pair, frozen=True):
    """The client requested the workspace, which is open or known here."""


class Attach(_Pair, frozen=True):
    """A stream of the client begins."""


class Detach(_Pair, frozen=True):
    """A stream that was not refused has ended, for any reason."""


class Release(_Pair, frozen=True):
    """The client does not need the workspace any more."""


class ViewSession(_Pair, frozen=True):
    """The client views a session."""

    session: SessionId


class HoldOver(_Pair, frozen=True):
    """The timer of `Arm` has fired; at once if the grace is zero."""

    generation: int


class Opened(_Place, frozen=True):
    """The workspace was opened: by recovery, without a client, or because of `OpenWorkspace`.

    `working`: it contains unfinished runs.
    """

    working: bool = True


class Closed(_Place, frozen=True):
    """The workspace was closed after `CloseWorkspace`, could not be opened, or the server stops."""


class WorkBegan(_Place, frozen=True):
    """Runs or jobs are active; possibly before the first create."""


class WorkEnded(_Place, frozen=True):
    """No run is left, and no job that keeps the workspace open."""


class Retire(msgspec.Struct, frozen=True):
    """The client is gone for good."""

    client: ClientId


class CreateBegan(msgspec.Struct, frozen=True):
    """A create is about to open its workspace, which may be slow."""

    client: ClientId


class CreateOver(msgspec.Struct, frozen=True):
    """The create that began has ended. Follows its `Create`."""


class LingerOver(msgspec.Struct, frozen=True):
    """The timer of `ArmLinger` has fired."""

    generation: int


class Stop(msgspec.Struct, frozen=True):
    """A client or a signal requested that the server stops."""


# Effects.


class Arm(_Pair, frozen=True):
    """Start the timer of a claim; it replaces the earlier one of this client and workspace."""

    generation: int
    grace: Grace


class ArmLinger(msgspec.Struct, frozen=True):
    """Start the timer after which an unused server exits."""

    generation: int


class CloseWorkspace(_Place, frozen=True):
    """Close the workspace: no client claims it and no work keeps it open."""


class OpenWorkspace(_Place, frozen=True):
    """Open the workspace again: a client attached or work began while it was being closed."""


class CloseServer(msgspec.Struct, frozen=True):
    """Stop the server."""


class Refuse(msgspec.Struct, frozen=True):
    """Refuse the event, which has no other effect."""

    reason: RefuseReason


_PairEvent: TypeAlias = Create | Attach | Detach | Release | ViewSession | HoldOver
_PlaceEvent: TypeAlias = Opened | Closed | WorkBegan | WorkEnded
_ServerEvent: TypeAlias = Retire | CreateBegan | CreateOver | LingerOver | Stop
PresenceEvent: TypeAlias = _PairEvent | _PlaceEvent | _ServerEvent
Effect: TypeAlias = Arm | ArmLinger | CloseWorkspace | OpenWorkspace | CloseServer | Refuse
Step: TypeAlias = tuple[Presence, tuple[Effect, ...]]


class IllegalTransition(Exception):
    """An event that cannot occur in this state: a bug in the manager, never a client's mistake."""

    def __init__(self, presence: Presence, event: PresenceEvent) -> None:
        super().__init__(f"{event} cannot happen in {presence}")


def start(*, leaves_when_idle: bool) -> Step:
    """Return the initial state. No client is attached, so the linger may begin at once."""
    return _linger(Presence(leaves_when_idle), ())


def transition(presence: Presence, event: PresenceEvent) -> Step:
    """Return the next state and the effects of an event."""
    match event:
        case Create() | Attach() | Detach() | Release() | ViewSession() | HoldOver():
            return _linger(*_client_transition(presence, event))
        case Opened() | Closed() | WorkBegan() | WorkEnded():
            return _linger(*_workspace_transition(presence, event))
        case Retire() | CreateBegan() | CreateOver() | LingerOver() | Stop():
            return _linger(*_server_transition(presence, event))
        case _:
            assert_never(event)


def attached(presence: Presence, workspace: WorkspaceId, session: SessionId) -> int:
    """Count the clients that view the session: those with a stream whose current session it is."""
    here = presence.workspaces.get(workspace, WorkspacePresence())
    return sum(claim.streams > 0 and claim.session == session for claim in here.claims.values())


def viewer_counts(presence: Presence, workspace: WorkspaceId) -> dict[SessionId, int]:
    """Return the number of viewing clients for each session that has any."""
    here = presence.workspaces.get(workspace, WorkspacePresence())
    sessions = {claim.session for claim in here.claims.values() if claim.session}
    counts = {session: attached(presence, workspace, session) for session in sessions}
    return {session: count for session, count in counts.items() if count}


def is_idle(presence: Presence) -> bool:
    """Return True without workspaces and creates in flight."""
    return not presence.workspaces and not presence.creating


def _client_transition(presence: Presence, event: _PairEvent) -> Step:
    here = presence.workspaces.get(event.workspace, WorkspacePresence())
    claim = here.claims.get(event.client, Claim())
    match event:
        case Create() | Attach():
            return _attach(presence, event, claim)
        case Detach() if claim.streams == 1 and not claim.released:
            return _hold_claim(presence, event, claim, "detach")
        case Detach() if claim.streams:
            return _replace_claim(presence, event, replace(claim, streams=claim.streams - 1))
        case Release() if claim.streams:
            return _replace_claim(presence, event, replace(claim, released=True))
        case ViewSession() if claim.streams:
            return _replace_claim(presence, event, replace(claim, session=event.session or None))
        case ViewSession():
            return presence, (Refuse("not attached"),)
        case Release() if claim.hold:
            return _replace_claim(presence, event, Claim())
        case HoldOver() if claim.hold and claim.generation == event.generation:
            return _replace_claim(presence, event, Claim())
        case _:
            return presence, ()


def _attach(presence: Presence, event: Create | Attach, claim: Claim) -> Step:
    refusal = _refusal(presence, event.client)
    here = presence.workspaces.get(event.workspace)
    match event:
        case Create() if refusal and here is None:
            presence, effects = _store_workspace(presence, event.workspace, WorkspacePresence())
            return presence, refusal + effects
        case Create() if not refusal and not claim.streams:
            return _hold_claim(presence, event, claim, "create")
        case Create() if not refusal:
            return _replace_claim(presence, event, replace(claim, released=False))
        case Attach() if not refusal and (here is None or here.phase != "open"):
            return presence, (Refuse("not open"),)
        case Attach() if not refusal:
            return _replace_claim(presence, event, replace(claim, streams=claim.streams + 1, hold=None))
        case _:
            return presence, refusal


def _workspace_transition(presence: Presence, event: _PlaceEvent) -> Step:
    here = presence.workspaces.get(event.workspace)
    match event:
        case Opened():
            phase: Phase = "closing" if here and here.phase == "closing" else "open"
            return _store_workspace(
                presence, event.workspace, replace(here or WorkspacePresence(), phase=phase, working=event.working)
            )
        case WorkBegan():
            return _store_workspace(presence, event.workspace, replace(here or WorkspacePresence(), working=True))
        case WorkEnded() if here is not None:
            return _store_workspace(presence, event.workspace, replace(here, working=False))
        case Closed() if here is not None:
            return _workspace_closed(presence, event, here)
        case _:
            return presence, ()


def _workspace_closed(presence: Presence, event: Closed, here: WorkspacePresence) -> Step:
    if here.phase == "open" and not presence.leaving:
        raise IllegalTransition(presence, event)
    if here.phase == "closing" and (here.claims or here.working) and not presence.leaving:
        presence, _ = _store_workspace(presence, event.workspace, replace(here, phase="opening"))
        return presence, (OpenWorkspace(event.workspace),)
    rest = {name: workspace for name, workspace in presence.workspaces.items() if name != event.workspace}
    return replace(presence, workspaces=rest), ()


def _server_transition(presence: Presence, event: _ServerEvent) -> Step:
    match event:
        case Retire():
            return _retire(presence, event.client)
        case CreateBegan():
            refusal = _refusal(presence, event.client)
            return (presence, refusal) if refusal else (replace(presence, creating=presence.creating + 1), ())
        case CreateOver():
            if not presence.creating:
                raise IllegalTransition(presence, event)
            return replace(presence, creating=presence.creating - 1), ()
        case LingerOver() if presence.linger != event.generation:
            return presence, ()
        case LingerOver() | Stop():
            return replace(presence, leaving=True), () if presence.leaving else (CloseServer(),)
        case _:
            assert_never(event)


def _retire(presence: Presence, client: ClientId) -> Step:
    others = tuple(other for other in presence.retired if other != client)
    presence = replace(presence, retired=(*others, client)[-RETIRED_LIMIT:])
    effects: tuple[Effect, ...] = ()
    for name in presence.workspaces:
        presence, more = _replace_claim(presence, Release(name, client), Claim())
        effects += more
    return presence, effects


def _refusal(presence: Presence, client: ClientId) -> tuple[Refuse, ...]:
    if presence.leaving:
        return (Refuse("leaving"),)
    return (Refuse("retired"),) if client in presence.retired else ()


def _hold_claim(presence: Presence, event: _PairEvent, claim: Claim, grace: Grace) -> Step:
    generation = presence.generation + 1
    held = replace(claim, streams=0, hold=grace, generation=generation)
    presence, _ = _replace_claim(replace(presence, generation=generation), event, held)
    return presence, (Arm(event.workspace, event.client, generation, grace),)


def _replace_claim(presence: Presence, event: _PairEvent, claim: Claim) -> Step:
    """Replace the client's claim. A claim without stream and hold is removed."""
    here = presence.workspaces.get(event.workspace, WorkspacePresence())
    claims = {**here.claims, event.client: claim}
    if not claim.streams and not claim.hold:
        del claims[event.client]
    return _store_workspace(presence, event.workspace, replace(here, claims=claims))


def _store_workspace(presence: Presence, name: WorkspaceId, here: WorkspacePresence) -> Step:
    """Store a workspace; the only place that closes one without claims and work."""
    effects: tuple[Effect, ...] = ()
    if here.phase == "open" and not here.claims and not here.working:
        here, effects = replace(here, phase="closing"), (CloseWorkspace(name),)
    return replace(presence, workspaces={**presence.workspaces, name: here}), effects


def _linger(presence: Presence, effects: tuple[Effect, ...]) -> Step:
    """Start or end the linger; the only place that does."""
    if not presence.leaves_when_idle or presence.leaving or not is_idle(presence):
        return (presence if presence.linger is None else replace(presence, linger=None)), effects
    if presence.linger is not None:
        return presence, effects
    generation = presence.generation + 1
    return replace(presence, generation=generation, linger=generation), (*effects, ArmLinger(generation))
