"""The lease machine with real durations, where the moments of sending, reading and confirming differ."""

from collections.abc import Iterable, Mapping

import pytest

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
    Freeze,
    Grant,
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
from holdfast.cluster.lease_state_machine import IllegalTransition, Timing, View, may_run_tools, start, transition
from holdfast.domain.ids import NodeId, WorkspaceId

ME, OTHER, THIRD = NodeId("me"), NodeId("other"), NodeId("third")
V, W = WorkspaceId("v"), WorkspaceId("w")
PLACE = frozenset({"p"})


class Subject:
    """A view and the effects of its last event."""

    def __init__(self, *, joined: bool = True) -> None:
        self.view, self.effects = start(Timing(), PLACE)
        if joined:
            self.do(Joined(ME, 0.0), Listening())

    def do(self, *events: LeaseEvent) -> tuple[Effect, ...]:
        for event in events:
            self.view, self.effects = transition(self.view, event)
        return self.effects

    def beat(self, sent: float) -> tuple[Effect, ...]:
        return self.do(HeartbeatDue(sent), HeartbeatStored(ME))

    def read(
        self,
        began: float,
        ended: float | None = None,
        *,
        wanted: int = 0,
        owned: int = 0,
        other: Row | None = None,
        rows: Mapping[str, Row] | None = None,
    ) -> tuple[Effect, ...]:
        others = {NodeId(name): row for name, row in (rows or {}).items()} | ({} if other is None else {OTHER: other})
        found = {ME: Row(0, places=PLACE, owned=owned), **others}
        return self.do(Observed(ME, began, began if ended is None else ended, found, {"p": wanted}))

    def claim(self, *grants: Grant, now: float = 0.5) -> tuple[Effect, ...]:
        self.read(now, wanted=1)
        return self.do(Claimed(ME, now, grants))


def other(heartbeat: int = 1, *, listens: bool = True) -> Row:
    return Row(heartbeat, listens, PLACE)


def evictions(effects: Iterable[Effect]) -> list[Effect]:
    return [effect for effect in effects if isinstance(effect, Evict)]


def test_a_lock_that_is_lost_with_the_last_heartbeat_is_a_hint() -> None:
    """The read that shows the last heartbeat may be the first one that shows that the lock is gone."""
    subject = Subject()
    subject.read(0.0, other=other(1))
    subject.read(0.75, other=other(2, listens=False))
    assert subject.read(1.5, other=other(2, listens=False)) == (ReadAt(ME, 1.75),)
    assert evictions(subject.read(1.75, other=other(2, listens=False))) == [Evict(ME, OTHER, 2, by_hint=True)]


def test_a_heartbeat_counts_from_when_it_was_sent() -> None:
    subject = Subject(joined=False)
    assert subject.effects == (Join(),)
    assert subject.do(Joined(ME, 1.0)) == (SetDeadline(3.5), Read(ME))
    assert subject.do(HeartbeatDue(2.0)) == (SendHeartbeat(ME),)
    assert subject.do(HeartbeatDue(2.75)) == ()
    assert subject.do(HeartbeatStored(ME)) == (SetDeadline(4.5),)
    subject.do(HeartbeatDue(3.0), HeartbeatFailed(ME))
    assert subject.view.deadline == 4.5


def test_silence_counts_from_the_end_of_a_read_to_the_begin_of_another() -> None:
    subject = Subject()
    subject.read(0.0, 0.5, other=other())
    for now in (0.75, 1.5, 2.25, 3.0, 3.49):
        subject.beat(now)
        assert not evictions(subject.read(now, now + 0.1, other=other())), now
    assert evictions(subject.read(3.5, 3.6, other=other())) == [Evict(ME, OTHER, 1, by_hint=False)]
    assert not evictions(subject.read(3.7, other=other())), "the eviction is in flight"
    assert subject.do(EvictDone(ME, OTHER)) == (Read(ME),)


def test_a_lost_lock_shortens_the_silence_only_if_it_was_seen_held() -> None:
    for seen, expected in ((True, [Evict(ME, OTHER, 1, by_hint=True)]), (False, [])):
        subject = Subject()
        subject.read(0.0, other=other(listens=seen))
        assert not evictions(subject.read(0.99, other=other(listens=False)))
        assert evictions(subject.read(1.0, other=other(listens=False))) == expected


@pytest.mark.parametrize(
    "between",
    [[ReadFailed(ME)], [ListenLost(1.0), Listening()], [ListenLost(1.0)]],
    ids=["failed read", "lost connection", "no connection"],
)
def test_observations_are_discarded(between: list[LeaseEvent]) -> None:
    subject = Subject()
    subject.read(0.0, other=other())
    subject.read(1.0, other=other())
    subject.do(*between)
    for now in (2.0, 3.0, 4.0):
        subject.beat(now)
        assert not evictions(subject.read(now, other=other())), now
    subject.do(Listening())
    for now in (4.5, 5.5, 6.5):
        subject.beat(now)
        subject.read(now, other=other())
    subject.beat(7.5)
    assert evictions(subject.read(7.5, other=other()))


def test_a_gap_between_reads_discards_observations() -> None:
    subject = Subject()
    subject.read(0.0, other=other())
    subject.read(1.4, 1.5, other=other())
    subject.beat(3.2)
    assert not evictions(subject.read(3.2, other=other()))


def test_a_node_past_its_deadline_evicts_and_claims_nothing() -> None:
    subject = Subject()
    for now in (0.0, 1.0, 2.0, 3.0):
        effects = subject.read(now, other=other(), wanted=1 if now == 3.0 else 0)
        assert not [effect for effect in effects if isinstance(effect, Evict | Claim)]
    subject.beat(3.1)
    assert len(subject.read(3.2, other=other(), wanted=1)) == 2


def test_a_lost_listen_connection_freezes_until_a_later_heartbeat() -> None:
    subject = Subject()
    subject.claim(Grant(V, 1))
    subject.do(HeartbeatDue(1.0))
    assert subject.do(ListenLost(1.1)) == (Freeze(),)
    assert subject.do(HeartbeatStored(ME)) == ()
    assert not may_run_tools(subject.view, V, 1.2)
    assert subject.beat(1.3) == (SetDeadline(3.8),)
    assert may_run_tools(subject.view, V, 3.79)
    assert not may_run_tools(subject.view, V, 3.8)
    assert not may_run_tools(subject.view, W, 1.4)


def test_a_share_is_fair_and_somebody_always_claims() -> None:
    def limit(mine: int, others: list[int], wanted: int) -> int:
        subject = Subject()
        rows = {f"n{place}": Row(0, True, PLACE, owned=owned) for place, owned in enumerate(others)}
        subject.claim(*(Grant(WorkspaceId(f"{number}"), 1) for number in range(mine)))
        claims = [
            effect
            for effect in subject.read(1.0, owned=mine, wanted=wanted, rows=rows)
            if isinstance(effect, Claim)
        ]  # fmt: skip
        return sum(count for claim in claims for _, count in claim.limits)

    assert limit(0, [], 5) == 5
    assert limit(0, [0, 0], 6) == 2
    assert limit(2, [0], 2) == 0
    assert limit(0, [2], 2) == 2
    assert limit(1, [1, 1], 1) == 1
    assert limit(0, [0], 0) == 0


def test_draining_nodes_and_other_places_do_not_count() -> None:
    subject = Subject()
    rows = {"other": Row(1, True, PLACE, is_draining=True), "third": Row(1, True, frozenset({"q"}))}
    assert subject.read(0.5, wanted=3, rows=rows) == (Claim(ME, (("p", 3),), frozenset()),)


def test_what_an_unknown_claim_obtained_is_claimed_again() -> None:
    subject = Subject()
    subject.read(0.5, wanted=1)
    subject.do(ClaimFailed(ME))
    assert subject.read(1.0, owned=1) == (Claim(ME, (), frozenset()),)


def test_tools_wait_for_the_leases_of_nodes_that_were_evicted_by_hint() -> None:
    subject = Subject()
    subject.read(0.2, 0.3, other=other(4))
    subject.read(0.5, wanted=1, other=other(4))
    assert subject.do(Claimed(ME, 1.4, (Grant(V, 7, ((OTHER, 4),)),))) == (AwaitTools(V, 7, 3.3),)
    assert not may_run_tools(subject.view, V, 1.5)
    assert subject.do(ToolsDue(V, 7, 3.2)) == ()
    assert subject.do(ToolsDue(V, 6, 3.4)) == ()
    assert subject.do(ToolsDue(V, 7, 3.3)) == (AllowTools(V, 7), Settle(V, 7))
    assert subject.do(ToolsDue(V, 7, 3.4)) == ()


def test_a_heartbeat_that_was_not_seen_counts_from_the_claim() -> None:
    for seen in (3, None):
        subject = Subject()
        if seen is not None:
            subject.read(0.2, other=other(seen))
        assert subject.claim(Grant(V, 7, ((OTHER, 4),)), now=1.0) == (AwaitTools(V, 7, 4.0),)


def test_a_node_that_is_gone_is_remembered() -> None:
    subject = Subject()
    subject.read(0.2, other=other(4))
    subject.read(0.3)
    assert subject.claim(Grant(V, 7, ((OTHER, 4),)), now=1.0) == (AwaitTools(V, 7, 3.2),)
    subject = Subject()
    subject.read(0.2, other=other(4))
    subject.beat(9.0)
    subject.read(9.0)
    assert subject.claim(Grant(V, 7, ((OTHER, 4),)), now=9.1) == (AllowTools(V, 7), Settle(V, 7))


def test_a_missing_row_drops_everything_and_joins_again() -> None:
    subject = Subject()
    subject.claim(Grant(V, 1), Grant(W, 2))
    for event in (RowMissing(ME), Observed(ME, 1.0, 1.0, {OTHER: other()})):
        view, effects = transition(subject.view, event)
        assert effects == (Freeze(), Drop(V, 1), Drop(W, 2), Join())
        assert (view.phase, view.node, view.listens) == ("joining", None, False)
        # Answers to the earlier incarnation change nothing.
        assert transition(view, HeartbeatStored(ME)) == (view, ())


def test_a_release_is_repeated_until_its_outcome_is_known() -> None:
    subject = Subject()
    subject.claim(Grant(V, 1))
    release = Release(V, 1, 9)
    assert subject.do(Idle(V, 1, 9)) == (release,)
    assert not may_run_tools(subject.view, V, 0.6)
    assert subject.do(Idle(V, 1, 9)) == ()
    assert subject.read(1.0, owned=1) == ()
    subject.do(ReleaseFailed(V, 1))
    assert subject.read(1.5, owned=1) == (release,)
    assert subject.read(1.6, owned=1) == ()
    assert subject.do(ReleaseRefused(V, 1)) == (Keep(V, 1),)
    assert subject.do(Idle(V, 1, 10), Released(V, 1)) == (Close(V, 1),)
    assert subject.do(Released(V, 1)) == ()


def test_a_lost_workspace_is_dropped_once() -> None:
    subject = Subject()
    subject.claim(Grant(V, 1))
    assert subject.do(OwnershipLost(V, 0)) == ()
    assert subject.do(OwnershipLost(V, 1)) == (Drop(V, 1),)
    assert subject.do(OwnershipLost(V, 1)) == ()


def test_a_draining_node_leaves_when_it_holds_nothing() -> None:
    subject = Subject()
    subject.claim(Grant(V, 1))
    subject.read(1.0, owned=1, wanted=1)
    assert subject.do(Drain()) == (MarkDraining(ME),)
    assert subject.do(Claimed(ME, 1.1, (Grant(W, 1),))) == (Release(W, 1, None),)
    assert subject.do(Released(W, 1)) == (Close(W, 1),)
    assert not subject.read(1.2, owned=1, wanted=5)
    assert subject.do(Idle(V, 1, 3)) == (Release(V, 1, 3),)
    assert subject.do(Released(V, 1)) == (Close(V, 1), Leave(ME))
    assert subject.view.phase == "left"
    assert subject.do(Drain(), HeartbeatDue(2.0), ListenLost(2.0)) == ()
    assert Subject().do(Drain()) == (MarkDraining(ME), Leave(ME))
    assert Subject(joined=False).do(Drain(), Joined(ME, 1.0)) == (Leave(ME),)


def test_a_notification_of_a_known_place_causes_a_read() -> None:
    assert Subject().do(Wanted("p")) == (Read(ME),)
    assert Subject().do(Wanted("q")) == ()


@pytest.mark.parametrize(
    "event",
    [HeartbeatStored(ME), HeartbeatFailed(ME), EvictDone(ME, OTHER), Claimed(ME, 0.0, ()), ClaimFailed(ME)],
    ids=lambda event: type(event).__name__,
)
def test_answers_without_a_request_are_impossible(event: LeaseEvent) -> None:
    with pytest.raises(IllegalTransition, match=f"{type(event).__name__}.* cannot happen"):
        Subject().do(event)


def test_a_view_is_joined_once() -> None:
    with pytest.raises(IllegalTransition):
        Subject().do(Joined(THIRD, 1.0))
    assert View(Timing(), PLACE) == start(Timing(), PLACE)[0]
