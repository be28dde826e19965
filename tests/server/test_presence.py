"""The presence state machine, rule by rule. `test_presence_walk.py` covers it exhaustively."""

import msgspec
import pytest

from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.server.presence import (
    RETIRED_LIMIT,
    Arm,
    ArmLinger,
    Attach,
    Claim,
    ClientId,
    Closed,
    CloseServer,
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
    attached,
    is_idle,
    start,
    transition,
)

A, B = ClientId("a"), ClientId("b")
V, W = WorkspaceId("v"), WorkspaceId("w")
S, T = SessionId("s"), SessionId("t")
STAYS = Presence(leaves_when_idle=False)


def after(presence: Presence, *events: PresenceEvent) -> tuple[Presence, tuple[Effect, ...]]:
    """Return the presence after several events, with all their effects."""
    effects: tuple[Effect, ...] = ()
    for event in events:
        presence, more = transition(presence, event)
        effects += more
    return presence, effects


def at(*events: PresenceEvent, presence: Presence = STAYS) -> Presence:
    return after(presence, *events)[0]


def claim(presence: Presence, client: ClientId = A, workspace: WorkspaceId = W) -> Claim | None:
    return presence.workspaces.get(workspace, WorkspacePresence()).claims.get(client)


# Claims


def test_a_create_claims_with_a_hold() -> None:
    presence, effects = after(STAYS, Create(W, A))
    assert claim(presence) == Claim(hold="create", generation=1)
    assert effects == (Arm(W, A, 1, "create"),)


def test_second_create_restarts_grace_and_old_timer_has_no_effect() -> None:
    """There is still one claim, and only the newer timer ends it."""
    presence, effects = after(STAYS, Create(W, A), Create(W, A))
    assert [*presence.workspaces[W].claims] == [A]
    assert effects[1:] == (Arm(W, A, 2, "create"),)
    assert after(presence, HoldOver(W, A, 1)) == (presence, ())
    assert after(presence, HoldOver(W, A, 2))[1] == (CloseWorkspace(W),)


def test_create_with_open_streams_only_revokes_release() -> None:
    presence = at(Create(W, A), Attach(W, A))
    assert after(presence, Create(W, A)) == (presence, ())
    assert after(presence, Release(W, A), Create(W, A)) == (presence, ())


def test_create_during_detach_grace_starts_create_grace() -> None:
    presence, effects = after(STAYS, Create(W, A), Attach(W, A), Detach(W, A), Create(W, A))
    assert claim(presence) == Claim(hold="create", generation=3)
    assert effects[-1] == Arm(W, A, 3, "create")


def test_an_attach_ends_the_hold() -> None:
    presence = at(Create(W, A), Attach(W, A))
    assert claim(presence) == Claim(streams=1, generation=1)
    assert after(presence, HoldOver(W, A, 1)) == (presence, ())


def test_an_attach_needs_no_create() -> None:
    presence, effects = after(at(Create(W, A)), Attach(W, B))
    assert (claim(presence, B), effects) == (Claim(streams=1), ())


def test_an_attach_needs_an_open_workspace() -> None:
    assert after(STAYS, Attach(W, A)) == (STAYS, (Refuse("not open"),))
    for closing in (at(Create(W, A), Release(W, A)), at(Create(W, A), Release(W, A), Create(W, A), Closed(W))):
        assert after(closing, Attach(W, A)) == (closing, (Refuse("not open"),))


def test_end_of_last_stream_begins_detach_grace() -> None:
    presence, effects = after(at(Create(W, A), Attach(W, A), Attach(W, A)), Detach(W, A))
    assert (claim(presence), effects) == (Claim(streams=1, generation=1), ())
    presence, effects = after(presence, Detach(W, A))
    assert (claim(presence), effects) == (Claim(hold="detach", generation=2), (Arm(W, A, 2, "detach"),))


def test_return_within_detach_grace_keeps_workspace_and_session() -> None:
    presence, effects = after(at(Create(W, A), Attach(W, A), ViewSession(W, A, S), Detach(W, A)), Attach(W, A))
    assert (claim(presence), effects) == (Claim(streams=1, generation=2, session=S), ())
    assert after(presence, HoldOver(W, A, 2)) == (presence, ())


def test_timer_of_earlier_absence_does_not_shorten_next() -> None:
    """Away, back, away again: the first timer finds the state in which it was set, and still has no effect."""
    presence, effects = after(at(Create(W, A), Attach(W, A)), Detach(W, A), Attach(W, A), Detach(W, A))
    assert effects == (Arm(W, A, 2, "detach"), Arm(W, A, 3, "detach"))
    assert after(presence, HoldOver(W, A, 2)) == (presence, ())
    assert after(presence, HoldOver(W, A, 3))[1] == (CloseWorkspace(W),)


def test_a_timer_counts_for_its_own_pair_only() -> None:
    presence = at(Create(W, A), Create(W, B), Create(V, A))
    for stale in (HoldOver(W, A, 2), HoldOver(W, B, 1), HoldOver(V, A, 1), HoldOver(V, B, 3)):
        assert after(presence, stale) == (presence, ())


def test_zero_grace_ends_at_once() -> None:
    _, effects = after(at(Create(W, A), Attach(W, A)), Detach(W, A), HoldOver(W, A, 2))
    assert effects == (Arm(W, A, 2, "detach"), CloseWorkspace(W))


def test_release_without_streams_removes_claim_once() -> None:
    presence, effects = after(at(Create(W, A)), Release(W, A))
    assert (claim(presence), effects) == (None, (CloseWorkspace(W),))
    assert after(presence, Release(W, A)) == (presence, ())


def test_release_with_stream_takes_effect_at_its_end_without_grace() -> None:
    presence, effects = after(at(Create(W, A), Attach(W, A)), Release(W, A))
    assert (claim(presence), effects) == (Claim(streams=1, generation=1, released=True), ())
    assert after(presence, Detach(W, A))[1] == (CloseWorkspace(W),)


def test_release_of_unknown_client_has_no_effect() -> None:
    assert after(STAYS, Release(W, A)) == (STAYS, ())
    presence = at(Create(W, A))
    assert after(presence, Release(W, B)) == (presence, ())


def test_released_client_that_returns_has_new_claim() -> None:
    presence = at(
        Create(W, A), Attach(W, A), ViewSession(W, A, S), Create(W, B), Release(W, A), Detach(W, A), Attach(W, A)
    )
    assert claim(presence) == Claim(streams=1)


# Retired clients


def test_a_retired_client_loses_all_its_claims_even_with_streams() -> None:
    presence, effects = after(at(Create(V, A), Create(W, A), Attach(W, A), Create(W, B)), Retire(A))
    assert (claim(presence, A, V), claim(presence, A, W), effects) == (None, None, (CloseWorkspace(V),))
    assert after(presence, Detach(W, A)) == (presence, ())
    assert after(presence, HoldOver(V, A, 1)) == (presence, ())


def test_retired_client_is_refused_forever() -> None:
    presence = at(Create(W, B), Retire(A))
    for event in (Create(W, A), CreateBegan(A), Attach(W, A)):
        assert after(presence, event) == (presence, (Refuse("retired"),))


def test_a_client_retired_during_its_slow_create_leaves_no_workspace_behind() -> None:
    presence, effects = after(STAYS, CreateBegan(A), Retire(A), Create(W, A), CreateOver())
    assert effects == (Refuse("retired"), CloseWorkspace(W))
    assert is_idle(at(Closed(W), presence=presence))


def test_the_newest_retired_clients_are_remembered() -> None:
    """R11."""
    known = tuple(ClientId(str(number)) for number in range(RETIRED_LIMIT))
    presence = at(Retire(A), presence=msgspec.structs.replace(STAYS, retired=known))
    assert presence.retired == (*known[1:], A)
    assert after(presence, CreateBegan(known[0]))[1] == ()
    assert after(presence, CreateBegan(known[1]))[1] == (Refuse("retired"),)
    assert at(Retire(known[1]), presence=presence).retired == (*known[2:], A, known[1])


# Sessions on the screen


def test_viewing_needs_a_stream() -> None:
    for presence in (STAYS, at(Create(W, A)), at(Create(W, A), Attach(W, A), Detach(W, A)), at(Create(W, B))):
        assert after(presence, ViewSession(W, A, S)) == (presence, (Refuse("not attached"),))


def test_the_attached_clients_of_a_session_are_counted() -> None:
    presence = at(Create(W, A), Attach(W, A), Attach(W, A), Attach(W, B))
    assert attached(presence, W, S) == 0
    presence = at(ViewSession(W, A, S), ViewSession(W, B, S), presence=presence)
    assert (attached(presence, W, S), attached(presence, V, S)) == (2, 0)
    presence = at(ViewSession(W, A, T), presence=presence)
    assert (attached(presence, W, S), attached(presence, W, T)) == (1, 1)
    presence = at(ViewSession(W, A, SessionId("")), Detach(W, B), presence=presence)
    assert (attached(presence, W, S), attached(presence, W, T), attached(presence, W, SessionId(""))) == (0, 0, 0)


def test_viewed_session_ends_with_claim() -> None:
    presence = at(Create(W, B), Attach(W, A), ViewSession(W, A, S), Detach(W, A), HoldOver(W, A, 2), Attach(W, A))
    assert (claim(presence), attached(presence, W, S)) == (Claim(streams=1), 0)


# Workspaces


def test_workspace_stays_open_for_last_client() -> None:
    presence, effects = after(at(Create(W, A), Create(W, B)), HoldOver(W, A, 1))
    assert effects == ()
    assert after(presence, HoldOver(W, B, 2))[1] == (CloseWorkspace(W),)


def test_c39_run_continues_after_last_client_leaves() -> None:
    """C-39: the workspace closes at the end of the work, not when the last client leaves."""
    presence, effects = after(at(Create(W, A), Attach(W, A), WorkBegan(W)), Detach(W, A), HoldOver(W, A, 2), Retire(A))
    assert effects == (Arm(W, A, 2, "detach"),)
    presence, effects = after(presence, WorkEnded(W))
    assert (presence.workspaces[W].phase, effects) == ("closing", (CloseWorkspace(W),))
    assert after(presence, WorkEnded(W)) == (presence, ())


def test_c39_return_during_work_keeps_workspace() -> None:
    """C-39."""
    _, effects = after(at(Create(W, A), WorkBegan(W)), HoldOver(W, A, 1), Attach(W, B), WorkEnded(W))
    assert effects == ()


def test_work_keeps_a_workspace_that_recovery_opened() -> None:
    """No client has requested it; its unfinished runs continue, and it closes after them."""
    presence, effects = after(STAYS, Opened(W))
    assert (presence.workspaces, effects) == ({W: WorkspacePresence(working=True)}, ())
    assert after(presence, WorkEnded(W))[1] == (CloseWorkspace(W),)
    assert after(STAYS, Opened(W, working=False))[1] == (CloseWorkspace(W),)


def test_a_client_joins_a_workspace_that_recovery_opened() -> None:
    assert after(at(Opened(W), Create(W, A)), WorkEnded(W))[1] == ()


def test_work_may_begin_before_the_first_create() -> None:
    presence = at(CreateBegan(A), WorkBegan(W), Create(W, A), CreateOver())
    assert presence.workspaces == {W: WorkspacePresence(claims={A: Claim(hold="create", generation=1)}, working=True)}


def test_create_during_close_reopens_workspace() -> None:
    presence, effects = after(at(Create(W, A), Release(W, A)), Create(W, B), Closed(W))
    assert effects == (Arm(W, B, 2, "create"), OpenWorkspace(W))
    presence, effects = after(presence, Opened(W, working=False), Attach(W, B))
    assert effects == ()
    assert presence.workspaces == {W: WorkspacePresence(claims={B: Claim(streams=1, generation=2)})}


def test_work_during_close_reopens_workspace() -> None:
    _, effects = after(at(Opened(W), WorkEnded(W)), WorkBegan(W), Closed(W))
    assert effects == (OpenWorkspace(W),)


def test_departure_before_end_of_close_changes_nothing() -> None:
    presence, effects = after(at(Create(W, A), Release(W, A)), Create(W, B), HoldOver(W, B, 2), Closed(W))
    assert (presence.workspaces, effects) == ({}, (Arm(W, B, 2, "create"),))


def test_departure_during_reopen_closes_workspace_afterwards() -> None:
    opening = at(Create(W, A), Release(W, A), Create(W, B), Closed(W))
    presence, effects = after(opening, Release(W, B))
    assert (presence.workspaces[W], effects) == (WorkspacePresence("opening"), ())
    assert after(presence, Opened(W, working=False))[1] == (CloseWorkspace(W),)


def test_failed_reopen_removes_workspace_and_claims() -> None:
    presence, effects = after(at(Create(W, A), Release(W, A), Create(W, B), Closed(W)), Closed(W), HoldOver(W, B, 2))
    assert (presence.workspaces, effects) == ({}, ())


def test_unrequested_close_is_illegal_unless_server_exits() -> None:
    presence = at(Create(W, A), Attach(W, A))
    with pytest.raises(IllegalTransition):
        transition(presence, Closed(W))
    assert at(Stop(), Closed(W), presence=presence).workspaces == {}


# The server


def test_last_departure_begins_linger_and_its_end_stops_server() -> None:
    presence, effects = start(leaves_when_idle=True)
    assert effects == (ArmLinger(1),)
    presence, effects = after(presence, Create(W, A), Release(W, A), Closed(W))
    assert effects == (Arm(W, A, 2, "create"), CloseWorkspace(W), ArmLinger(3))
    presence, effects = after(presence, LingerOver(3))
    assert (presence.leaving, effects) == (True, (CloseServer(),))


def test_server_without_any_client_exits() -> None:
    presence, _ = start(leaves_when_idle=True)
    assert after(presence, LingerOver(1))[1] == (CloseServer(),)


def test_explicitly_started_server_stays() -> None:
    presence, effects = start(leaves_when_idle=False)
    assert (presence, effects) == (STAYS, ())
    _, effects = after(presence, Opened(W), WorkEnded(W), Closed(W), LingerOver(0), LingerOver(1))
    assert effects == (CloseWorkspace(W),)


@pytest.mark.parametrize("event", [CreateBegan(A), Create(W, A), Opened(W), WorkBegan(W)], ids=repr)
def test_any_arrival_during_linger_ends_it(event: PresenceEvent) -> None:
    presence = at(event, presence=start(leaves_when_idle=True)[0])
    assert presence.linger is None
    assert after(presence, LingerOver(1)) == (presence, ())


def test_a_create_in_flight_keeps_the_server() -> None:
    presence = at(Create(W, A), CreateBegan(B), CreateBegan(B), presence=start(leaves_when_idle=True)[0])
    presence, effects = after(presence, Release(W, A), Closed(W), CreateOver())
    assert effects == (CloseWorkspace(W),)
    assert after(presence, CreateOver())[1] == (ArmLinger(3),)


def test_end_of_unknown_create_is_illegal() -> None:
    with pytest.raises(IllegalTransition):
        transition(STAYS, CreateOver())


def test_a_failed_create_begins_a_new_linger() -> None:
    presence, effects = after(start(leaves_when_idle=True)[0], CreateBegan(A), CreateOver())
    assert effects == (ArmLinger(2),)
    assert after(presence, LingerOver(1)) == (presence, ())


def test_exit_effect_occurs_once() -> None:
    presence, effects = after(at(Create(W, A), Attach(W, A), Retire(B)), Stop(), Stop())
    assert effects == (CloseServer(),)
    for event in (CreateBegan(A), CreateBegan(B), Create(W, A), Attach(W, A)):
        assert after(presence, event) == (presence, (Refuse("leaving"),))


def test_create_that_ends_during_exit_leaves_no_workspace() -> None:
    presence, effects = after(at(CreateBegan(A)), Stop(), Create(W, A), CreateOver(), Closed(W))
    assert effects == (CloseServer(), Refuse("leaving"), CloseWorkspace(W))
    assert is_idle(presence)


def test_no_workspace_reopens_during_exit() -> None:
    presence, effects = after(at(Create(W, A), Release(W, A), Create(W, B)), Stop(), Closed(W))
    assert (presence.workspaces, effects) == ({}, (CloseServer(),))


def test_presence_is_immutable() -> None:
    presence = at(Create(W, A))
    encoded = msgspec.json.encode(presence)
    after(presence, Create(V, B), Attach(W, A), Retire(A), Stop())
    assert msgspec.json.encode(presence) == encoded
