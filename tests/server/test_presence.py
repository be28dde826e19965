"""The machine, sentence by sentence. `test_presence_walk.py` walks all of it."""

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
    View,
    WorkBegan,
    WorkEnded,
    Workspace,
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
    """The presence after several events, and all their effects."""
    effects: tuple[Effect, ...] = ()
    for event in events:
        presence, more = transition(presence, event)
        effects += more
    return presence, effects


def at(*events: PresenceEvent, presence: Presence = STAYS) -> Presence:
    return after(presence, *events)[0]


def claim(presence: Presence, client: ClientId = A, workspace: WorkspaceId = W) -> Claim | None:
    return presence.workspaces.get(workspace, Workspace()).claims.get(client)


# Claims


def test_a_create_claims_with_a_hold() -> None:
    presence, effects = after(STAYS, Create(W, A))
    assert claim(presence) == Claim(hold="create", generation=1)
    assert effects == (Arm(W, A, 1, "create"),)


def test_a_second_create_gives_a_full_grace_again_and_the_old_timer_is_harmless() -> None:
    """The claim stays one claim, and only the newer timer ends it."""
    presence, effects = after(STAYS, Create(W, A), Create(W, A))
    assert [*presence.workspaces[W].claims] == [A]
    assert effects[1:] == (Arm(W, A, 2, "create"),)
    assert after(presence, HoldOver(W, A, 1)) == (presence, ())
    assert after(presence, HoldOver(W, A, 2))[1] == (CloseWorkspace(W),)


def test_a_create_with_streams_open_only_takes_a_release_back() -> None:
    presence = at(Create(W, A), Attach(W, A))
    assert after(presence, Create(W, A)) == (presence, ())
    assert after(presence, Release(W, A), Create(W, A)) == (presence, ())


def test_a_create_in_the_detach_grace_makes_it_a_create_grace() -> None:
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


def test_the_last_of_two_streams_begins_the_detach_grace() -> None:
    presence, effects = after(at(Create(W, A), Attach(W, A), Attach(W, A)), Detach(W, A))
    assert (claim(presence), effects) == (Claim(streams=1, generation=1), ())
    presence, effects = after(presence, Detach(W, A))
    assert (claim(presence), effects) == (Claim(hold="detach", generation=2), (Arm(W, A, 2, "detach"),))


def test_who_comes_back_within_the_detach_grace_keeps_the_workspace_and_the_session() -> None:
    presence, effects = after(at(Create(W, A), Attach(W, A), View(W, A, S), Detach(W, A)), Attach(W, A))
    assert (claim(presence), effects) == (Claim(streams=1, generation=2, session=S), ())
    assert after(presence, HoldOver(W, A, 2)) == (presence, ())


def test_a_timer_of_an_earlier_absence_does_not_cut_the_next_one_short() -> None:
    """Away, back, away again: the first timer finds the same state as when it was set, and still does nothing."""
    presence, effects = after(at(Create(W, A), Attach(W, A)), Detach(W, A), Attach(W, A), Detach(W, A))
    assert effects == (Arm(W, A, 2, "detach"), Arm(W, A, 3, "detach"))
    assert after(presence, HoldOver(W, A, 2)) == (presence, ())
    assert after(presence, HoldOver(W, A, 3))[1] == (CloseWorkspace(W),)


def test_a_timer_counts_for_its_own_pair_only() -> None:
    presence = at(Create(W, A), Create(W, B), Create(V, A))
    for stale in (HoldOver(W, A, 2), HoldOver(W, B, 1), HoldOver(V, A, 1), HoldOver(V, B, 3)):
        assert after(presence, stale) == (presence, ())


def test_a_grace_of_no_time_ends_at_once() -> None:
    _, effects = after(at(Create(W, A), Attach(W, A)), Detach(W, A), HoldOver(W, A, 2))
    assert effects == (Arm(W, A, 2, "detach"), CloseWorkspace(W))


def test_a_release_without_streams_takes_the_claim_away_once() -> None:
    presence, effects = after(at(Create(W, A)), Release(W, A))
    assert (claim(presence), effects) == (None, (CloseWorkspace(W),))
    assert after(presence, Release(W, A)) == (presence, ())


def test_a_release_with_a_stream_waits_for_its_end_and_leaves_no_grace() -> None:
    presence, effects = after(at(Create(W, A), Attach(W, A)), Release(W, A))
    assert (claim(presence), effects) == (Claim(streams=1, generation=1, released=True), ())
    assert after(presence, Detach(W, A))[1] == (CloseWorkspace(W),)


def test_a_release_of_somebody_unknown_means_nothing() -> None:
    assert after(STAYS, Release(W, A)) == (STAYS, ())
    presence = at(Create(W, A))
    assert after(presence, Release(W, B)) == (presence, ())


def test_a_released_client_that_comes_again_has_a_fresh_claim() -> None:
    presence = at(Create(W, A), Attach(W, A), View(W, A, S), Create(W, B), Release(W, A), Detach(W, A), Attach(W, A))
    assert claim(presence) == Claim(streams=1)


# Retired clients


def test_a_retired_client_loses_all_its_claims_even_with_streams() -> None:
    presence, effects = after(at(Create(V, A), Create(W, A), Attach(W, A), Create(W, B)), Retire(A))
    assert (claim(presence, A, V), claim(presence, A, W), effects) == (None, None, (CloseWorkspace(V),))
    assert after(presence, Detach(W, A)) == (presence, ())
    assert after(presence, HoldOver(V, A, 1)) == (presence, ())


def test_a_retired_client_never_comes_again() -> None:
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
        assert after(presence, View(W, A, S)) == (presence, (Refuse("not attached"),))


def test_the_attached_clients_of_a_session_are_counted() -> None:
    presence = at(Create(W, A), Attach(W, A), Attach(W, A), Attach(W, B))
    assert attached(presence, W, S) == 0
    presence = at(View(W, A, S), View(W, B, S), presence=presence)
    assert (attached(presence, W, S), attached(presence, V, S)) == (2, 0)
    presence = at(View(W, A, T), presence=presence)
    assert (attached(presence, W, S), attached(presence, W, T)) == (1, 1)
    presence = at(View(W, A, SessionId("")), Detach(W, B), presence=presence)
    assert (attached(presence, W, S), attached(presence, W, T), attached(presence, W, SessionId(""))) == (0, 0, 0)


def test_the_current_session_goes_with_the_claim() -> None:
    presence = at(Create(W, B), Attach(W, A), View(W, A, S), Detach(W, A), HoldOver(W, A, 2), Attach(W, A))
    assert (claim(presence), attached(presence, W, S)) == (Claim(streams=1), 0)


# Workspaces


def test_a_workspace_lives_as_long_as_one_of_two_clients() -> None:
    presence, effects = after(at(Create(W, A), Create(W, B)), HoldOver(W, A, 1))
    assert effects == ()
    assert after(presence, HoldOver(W, B, 2))[1] == (CloseWorkspace(W),)


def test_a_run_outlives_everybodys_leaving() -> None:
    """C-39: the workspace closes with the end of the work, not with the last client."""
    presence, effects = after(at(Create(W, A), Attach(W, A), WorkBegan(W)), Detach(W, A), HoldOver(W, A, 2), Retire(A))
    assert effects == (Arm(W, A, 2, "detach"),)
    presence, effects = after(presence, WorkEnded(W))
    assert (presence.workspaces[W].phase, effects) == ("closing", (CloseWorkspace(W),))
    assert after(presence, WorkEnded(W)) == (presence, ())


def test_who_comes_back_while_work_goes_on_keeps_the_workspace() -> None:
    """C-39."""
    _, effects = after(at(Create(W, A), WorkBegan(W)), HoldOver(W, A, 1), Attach(W, B), WorkEnded(W))
    assert effects == ()


def test_work_keeps_a_workspace_that_recovery_opened() -> None:
    """Nobody has asked for it; its unfinished runs go on, and it closes after them."""
    presence, effects = after(STAYS, Opened(W))
    assert (presence.workspaces, effects) == ({W: Workspace(working=True)}, ())
    assert after(presence, WorkEnded(W))[1] == (CloseWorkspace(W),)
    assert after(STAYS, Opened(W, working=False))[1] == (CloseWorkspace(W),)


def test_a_client_joins_a_workspace_that_recovery_opened() -> None:
    assert after(at(Opened(W), Create(W, A)), WorkEnded(W))[1] == ()


def test_work_may_begin_before_the_first_create() -> None:
    presence = at(CreateBegan(A), WorkBegan(W), Create(W, A), CreateOver())
    assert presence.workspaces == {W: Workspace(claims={A: Claim(hold="create", generation=1)}, working=True)}


def test_a_workspace_that_is_wanted_again_while_it_is_closed_opens_again() -> None:
    presence, effects = after(at(Create(W, A), Release(W, A)), Create(W, B), Closed(W))
    assert effects == (Arm(W, B, 2, "create"), OpenWorkspace(W))
    presence, effects = after(presence, Opened(W, working=False), Attach(W, B))
    assert effects == ()
    assert presence.workspaces == {W: Workspace(claims={B: Claim(streams=1, generation=2)})}


def test_work_that_comes_while_a_workspace_is_closed_opens_it_again() -> None:
    _, effects = after(at(Opened(W), WorkEnded(W)), WorkBegan(W), Closed(W))
    assert effects == (OpenWorkspace(W),)


def test_who_goes_again_before_it_is_closed_changes_nothing() -> None:
    presence, effects = after(at(Create(W, A), Release(W, A)), Create(W, B), HoldOver(W, B, 2), Closed(W))
    assert (presence.workspaces, effects) == ({}, (Arm(W, B, 2, "create"),))


def test_who_goes_while_it_is_opened_again_closes_it_when_it_is_open() -> None:
    opening = at(Create(W, A), Release(W, A), Create(W, B), Closed(W))
    presence, effects = after(opening, Release(W, B))
    assert (presence.workspaces[W], effects) == (Workspace("opening"), ())
    assert after(presence, Opened(W, working=False))[1] == (CloseWorkspace(W),)


def test_a_workspace_that_cannot_be_opened_again_is_gone_with_its_claims() -> None:
    presence, effects = after(at(Create(W, A), Release(W, A), Create(W, B), Closed(W)), Closed(W), HoldOver(W, B, 2))
    assert (presence.workspaces, effects) == ({}, ())


def test_an_unasked_close_is_a_bug_unless_the_server_leaves() -> None:
    presence = at(Create(W, A), Attach(W, A))
    with pytest.raises(IllegalTransition):
        transition(presence, Closed(W))
    assert at(Stop(), Closed(W), presence=presence).workspaces == {}


# The server


def test_the_last_one_out_begins_the_linger_and_its_end_closes_the_server() -> None:
    presence, effects = start(leaves_when_idle=True)
    assert effects == (ArmLinger(1),)
    presence, effects = after(presence, Create(W, A), Release(W, A), Closed(W))
    assert effects == (Arm(W, A, 2, "create"), CloseWorkspace(W), ArmLinger(3))
    presence, effects = after(presence, LingerOver(3))
    assert (presence.leaving, effects) == (True, (CloseServer(),))


def test_a_server_that_nobody_ever_comes_to_leaves() -> None:
    presence, _ = start(leaves_when_idle=True)
    assert after(presence, LingerOver(1))[1] == (CloseServer(),)


def test_a_server_that_was_asked_for_stays() -> None:
    presence, effects = start(leaves_when_idle=False)
    assert (presence, effects) == (STAYS, ())
    _, effects = after(presence, Opened(W), WorkEnded(W), Closed(W), LingerOver(0), LingerOver(1))
    assert effects == (CloseWorkspace(W),)


@pytest.mark.parametrize("event", [CreateBegan(A), Create(W, A), Opened(W), WorkBegan(W)], ids=repr)
def test_whatever_comes_within_the_linger_ends_it(event: PresenceEvent) -> None:
    presence = at(event, presence=start(leaves_when_idle=True)[0])
    assert presence.linger is None
    assert after(presence, LingerOver(1)) == (presence, ())


def test_a_create_in_flight_keeps_the_server() -> None:
    presence = at(Create(W, A), CreateBegan(B), CreateBegan(B), presence=start(leaves_when_idle=True)[0])
    presence, effects = after(presence, Release(W, A), Closed(W), CreateOver())
    assert effects == (CloseWorkspace(W),)
    assert after(presence, CreateOver())[1] == (ArmLinger(3),)


def test_a_create_that_was_not_begun_cannot_be_over() -> None:
    with pytest.raises(IllegalTransition):
        transition(STAYS, CreateOver())


def test_a_failed_create_begins_a_new_linger() -> None:
    presence, effects = after(start(leaves_when_idle=True)[0], CreateBegan(A), CreateOver())
    assert effects == (ArmLinger(2),)
    assert after(presence, LingerOver(1)) == (presence, ())


def test_leaving_is_told_once_and_for_ever() -> None:
    presence, effects = after(at(Create(W, A), Attach(W, A), Retire(B)), Stop(), Stop())
    assert effects == (CloseServer(),)
    for event in (CreateBegan(A), CreateBegan(B), Create(W, A), Attach(W, A)):
        assert after(presence, event) == (presence, (Refuse("leaving"),))


def test_a_slow_create_that_ends_while_the_server_leaves_leaves_no_workspace_behind() -> None:
    presence, effects = after(at(CreateBegan(A)), Stop(), Create(W, A), CreateOver(), Closed(W))
    assert effects == (CloseServer(), Refuse("leaving"), CloseWorkspace(W))
    assert is_idle(presence)


def test_nothing_is_opened_again_when_the_server_leaves() -> None:
    presence, effects = after(at(Create(W, A), Release(W, A), Create(W, B)), Stop(), Closed(W))
    assert (presence.workspaces, effects) == ({}, (CloseServer(),))


def test_a_presence_does_not_change() -> None:
    presence = at(Create(W, A))
    encoded = msgspec.json.encode(presence)
    after(presence, Create(V, B), Attach(W, A), Retire(A), Stop())
    assert msgspec.json.encode(presence) == encoded
