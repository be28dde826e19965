"""Exhaustive walk of the lifecycle: every lane that four runs can reach, every event, every rule on each edge.

Beside each lane the walk keeps the history of its runs (`Past`), computed from events and effects, never from the lane,
so that the rules can compare the two. Runs are accepted in the order of their names: any other order would be the same
walk with other names.
"""

from collections.abc import Iterator
from functools import cache
from typing import Literal, NamedTuple, TypeVar, get_args

from holdfast.domain.ids import RunId
from holdfast.domain.runs import Delivery
from holdfast.engine.run_lifecycle import (
    Accept,
    Cancel,
    CancelRun,
    ClearQueue,
    Effect,
    End,
    Enter,
    Finish,
    Fold,
    Head,
    IllegalTransition,
    Interrupt,
    Lane,
    LaneEvent,
    Move,
    Park,
    Redeliver,
    Refuse,
    Shutdown,
    Spawn,
    StepBoundary,
    members,
    state_of,
    transition,
)

RUNS = tuple(RunId(name) for name in "abcd")
UNKNOWN_RUN = RunId("stranger")
DELIVERIES: tuple[Delivery, ...] = ("steer", "queue", "reject", "interrupt")
OUTCOMES: tuple[Literal["completed", "failed"], ...] = ("completed", "failed")
POSITIONS = range(-1, len(RUNS))

NO_RUNS: frozenset[RunId] = frozenset()
Kind = TypeVar("Kind")


class Past(NamedTuple):
    """The history of the runs. `cancelled` and `stopped` are the runs being stopped, by their first cause."""

    accepted: int = 0
    spawned: frozenset[RunId] = NO_RUNS
    entered: frozenset[RunId] = NO_RUNS
    cancelled: frozenset[RunId] = NO_RUNS
    stopped: frozenset[RunId] = NO_RUNS
    folded: frozenset[RunId] = NO_RUNS
    ended: frozenset[RunId] = NO_RUNS
    parked: frozenset[RunId] = NO_RUNS

    @property
    def present(self) -> frozenset[RunId]:
        """Accepted, and neither ended nor parked."""
        return frozenset(RUNS[: self.accepted]) - self.ended - self.parked

    @property
    def stopping(self) -> frozenset[RunId]:
        return self.cancelled | self.stopped

    def forget(self) -> "Past":
        """Forget how ended and parked runs left: it makes no difference to the lane."""
        spawned, entered, cancelled, stopped, folded = (runs & self.present for runs in self[1:6])
        return Past(self.accepted, spawned, entered, cancelled, stopped, folded, self.ended, self.parked)


class Edge(NamedTuple):
    lane: Lane
    past: Past
    event: LaneEvent
    after: Lane
    effects: tuple[Effect, ...]
    now: Past

    def of(self, kind: type[Kind]) -> list[Kind]:
        return [] if not self.effects else [effect for effect in self.effects if isinstance(effect, kind)]


class Walk(NamedTuple):
    """Every edge by the kind of its event, every lane with its past, and the events that were illegal there."""

    edges: dict[type, list[Edge]]
    places: list[tuple[Lane, Past]]
    illegal: list[tuple[Lane, Past, LaneEvent]]

    def all(self) -> Iterator[Edge]:
        for edges in self.edges.values():
            yield from edges


def head_of(lane: Lane) -> RunId | None:
    return None if lane.head is None else lane.head.run


@cache
def events(accepted: int) -> list[LaneEvent]:
    """Return every event, legal or not, except a second acceptance of a run that has left."""
    known = RUNS[:accepted]
    events: list[LaneEvent] = [Cancel(), ClearQueue(), Shutdown()]
    events += [Accept(run, delivery) for run in RUNS[: accepted + 1] for delivery in DELIVERIES]
    for run in (*known, UNKNOWN_RUN):
        events += [Enter(run), StepBoundary(run), CancelRun(run), CancelRun(run, binding=True)]
        events += [Finish(run, outcome) for outcome in OUTCOMES]
        events += [Redeliver(run, "steer"), Redeliver(run, "queue")]
        events += [Move(run, position) for position in POSITIONS]
    return events


def stopped_by(past: Past, event: LaneEvent) -> frozenset[RunId]:
    """Return the runs that the event stops, unless it is refused. Folded runs stop with their host."""
    here, turn = past.present, past.spawned | past.folded
    match event:
        case Cancel():
            return here
        case Accept(run=run, delivery="interrupt"):
            return NO_RUNS if run in here else here
        case ClearQueue():
            return here - turn
        case CancelRun(run=run, binding=True) if run in past.folded:
            return NO_RUNS if past.stopping else here & {run}
        case CancelRun(run=run):
            return turn if run in past.spawned else here & {run}
        case Shutdown():
            return turn if past.entered else NO_RUNS
        case _:
            return NO_RUNS


def past_after(past: Past, event: LaneEvent, effects: tuple[Effect, ...]) -> Past:
    """Return the past after one more event."""
    if isinstance(event, Move | Redeliver) or (effects and isinstance(effects[0], Refuse)):
        return past
    accepted, spawned, entered, cancelled, stopped, folded, ended, parked = past
    affected = stopped_by(past, event) - cancelled - stopped
    if affected and isinstance(event, Shutdown):
        stopped |= affected
    elif affected:
        cancelled |= affected
    if isinstance(event, Enter):
        entered |= {event.run}
    elif isinstance(event, Accept):
        accepted += event.run not in past.present
    if effects:
        spawned |= {effect.run for effect in effects if isinstance(effect, Spawn)}
        ended |= {effect.run for effect in effects if isinstance(effect, End)}
        parked |= {effect.run for effect in effects if isinstance(effect, Park)}
        folded |= {run for effect in effects if isinstance(effect, Fold) for run in effect.runs}
    now = Past(accepted, spawned, entered, cancelled, stopped, folded, ended, parked)
    return past if now == past else now


@cache
def walk() -> Walk:
    places = [(Lane(), Past())]
    visited = set(places)
    found = Walk({}, places, [])
    for lane, past in places:
        assert len(places) < 2_000, "the walk does not end"
        for event in events(past.accepted):
            if isinstance(event, Accept) and event.run in past.ended | past.parked:
                continue
            try:
                after, effects = transition(lane, event)
            except IllegalTransition:
                found.illegal.append((lane, past, event))
                continue
            now = past_after(past, event, effects)
            found.edges.setdefault(type(event), []).append(Edge(lane, past, event, after, effects, now))
            if (place := (after, past if now is past else now.forget())) not in visited:
                visited.add(place)
                places.append(place)
    return found


def waiting(lane: Lane) -> list[RunId]:
    return [item.run for item in lane.queue]


def test_every_accepted_run_leaves_exactly_once() -> None:
    """Rule 1, R2, C-01: by one end or by being parked; only present runs leave."""
    for edge in walk().all():
        gone = [effect.run for effect in edge.effects if isinstance(effect, End | Park)]
        assert len(gone) == len({*gone}), edge
        assert edge.past.present.issuperset(gone), edge


def test_run_is_in_the_lane_once_from_acceptance_until_it_leaves() -> None:
    """Rule 2: in the lane, once, exactly as long as it has neither ended nor been parked."""
    for lane, past in walk().places:
        assert sorted(members(lane)) == sorted(past.present), (lane, past)
        assert {run for run in RUNS if state_of(lane, run)} == past.present, (lane, past)


def test_a_lane_agrees_with_the_history_of_its_runs() -> None:
    """Rules 3 and 4: the head has its first cause, folded runs share it, waiting runs have none."""
    for lane, past in walk().places:
        if lane.head is None:
            assert lane == Lane(closing=lane.closing), past
            continue
        run = lane.head.run
        phase = "cancelling" if run in past.stopping else "active" if run in past.entered else "accepted"
        cause = "cancel" if run in past.cancelled else "shutdown" if run in past.stopped else None
        assert (lane.head.phase, lane.head.cause) == (phase, cause), (lane, past)
        assert {*lane.folded} == past.folded, (lane, past)
        together = past.cancelled if cause == "cancel" else past.stopped if cause else NO_RUNS
        assert past.stopping == together == ({run, *lane.folded} if cause else NO_RUNS), (lane, past)
        assert past.entered <= past.spawned == {run}, (lane, past)


def test_the_outcome_is_the_first_cause_or_the_result_of_the_task() -> None:
    for edge in walk().all():
        for end in edge.of(End):
            expected = edge.event.outcome if isinstance(edge.event, Finish) else None
            caused = "cancelled" if end.run in edge.now.cancelled else "interrupted"
            assert end.outcome == (caused if end.run in edge.now.stopping else expected), edge


def test_a_cancel_covers_every_run_and_a_second_one_changes_nothing() -> None:
    """Rule 3, R3, C-07: only the head with its folded runs is left, and it is cancelling."""
    for edge in walk().edges[Cancel]:
        assert members(edge.lane) == (*members(edge.after), *waiting(edge.lane)), edge
        assert edge.after.head is None or edge.after.head.phase == "cancelling", edge
        assert transition(edge.after, Cancel()) == (edge.after, ()), edge


def test_an_idle_cancel_leaves_nothing_behind() -> None:
    """Rule 3, C-02."""
    for kind in (Cancel, CancelRun, ClearQueue):
        for edge in walk().edges[kind]:
            if not edge.past.present:
                assert (edge.after, edge.effects, edge.now) == (edge.lane, (), edge.past), edge


def test_only_steering_prompts_fold_and_only_into_an_active_run() -> None:
    """Rule 5, C-09, C-16."""
    for edge in walk().all():
        if not isinstance(edge.event, StepBoundary):
            assert not edge.of(Fold), edge
            if unfolded_by(edge) is None:
                assert edge.after.folded in (edge.lane.folded, ()), edge
            continue
        steering = tuple(item.run for item in edge.lane.queue if item.delivery == "steer")
        if edge.lane.head is not None and edge.lane.head.phase == "active" and steering:
            assert edge.effects == (Fold(edge.event.run, steering),), edge
            assert edge.after.queue == tuple(item for item in edge.lane.queue if item.delivery == "queue"), edge
        else:
            assert (edge.after, edge.effects) == (edge.lane, ()), edge


def unfolded_by(edge: Edge) -> RunId | None:
    """Return the folded run that a binding cancel takes out of a turn, unless the turn is stopping anyway."""
    match edge.event:
        case CancelRun(run=run, binding=True) if run in edge.past.folded and not edge.past.stopping:
            return run
        case _:
            return None


def test_a_binding_cancel_takes_a_folded_run_out_of_the_turn() -> None:
    """R3: its host and the other folded runs continue."""
    unfolding = [(edge, run) for edge in walk().edges[CancelRun] if (run := unfolded_by(edge)) is not None]
    assert unfolding
    for edge, run in unfolding:
        assert edge.after.head == edge.lane.head, edge
        assert edge.after.folded == tuple(other for other in edge.lane.folded if other != run), edge
        assert edge.after.queue == edge.lane.queue, edge


def test_the_queue_keeps_its_order() -> None:
    """Rule 5: waiting runs keep position and delivery, a new one is last; only `Move` and `Redeliver` differ."""
    for edge in walk().all():
        if edge.after is edge.lane:
            continue
        old, new = list(edge.lane.queue), list(edge.after.queue)
        match edge.event:
            case Move(run=run, position=position):
                place = min(max(position, 0), len(new) - 1)
                assert new[place].run == run, edge
                old.remove(new.pop(place))
            case Redeliver(run=run, delivery=delivery):
                index = waiting(edge.lane).index(run)
                assert (new[index].run, new[index].delivery) == (run, delivery), edge
                del new[index], old[index]
            case Accept(run=run, delivery=delivery) if head_of(edge.after) != run:
                assert (new[-1].run, new[-1].delivery) == (run, "steer" if delivery == "steer" else "queue"), edge
                del new[-1]
            case _:
                pass
        assert new == [item for item in old if item in new], edge


def test_a_run_is_spawned_exactly_when_it_gets_the_lane() -> None:
    """Rules 5 and 6, R8: one head at most, the longest waiting first, after the end of the one before."""
    for edge in walk().all():
        before, after = head_of(edge.lane), head_of(edge.after)
        gets_it = [after] if after and after != before else []
        assert [spawn.run for spawn in edge.of(Spawn)] == gets_it, edge
        if not gets_it:
            continue
        assert isinstance(edge.effects[-1], Spawn), edge
        assert edge.after.head == Head(gets_it[0]), edge
        if edge.lane.head is not None:
            assert edge.effects[0] == End(edge.lane.head.run, edge.of(End)[0].outcome), edge
            assert gets_it == waiting(edge.lane)[:1], edge


def test_a_head_ends_with_its_folded_runs_and_the_lane_continues() -> None:
    """Rule 6, whatever the outcome."""
    for edge in walk().edges[Finish]:
        assert edge.lane.head is not None
        ends = [(end.run, end.host, end.waited) for end in edge.of(End)]
        assert ends == [
            (edge.lane.head.run, None, False),
            *((run, edge.lane.head.run, False) for run in edge.lane.folded),
        ]
        assert list(members(edge.after)) == waiting(edge.lane), edge


def test_cancelled_waiting_runs_end_at_once() -> None:
    """Rule 3, C-17, C-18: for every cancelling event. Only a finish ends the head and its folded runs."""
    for edge in walk().all():
        if not isinstance(edge.event, Finish):
            affected = [run for run in waiting(edge.lane) if run in edge.now.stopping]
            if (unfolded := unfolded_by(edge)) is not None:
                affected = [unfolded]
            assert edge.of(End) == [End(run, "cancelled", waited=True) for run in affected], edge


def test_head_is_interrupted_exactly_when_active_and_cancelled() -> None:
    """Rule 4, C-03: cancelled while active, or entering after a cancel."""
    for edge in walk().all():
        head, past, now = head_of(edge.lane), edge.past, edge.now
        is_interrupted_now = head in now.stopping and head not in past.stopping and head in past.entered
        enters_cancelled = isinstance(edge.event, Enter) and head in past.stopping
        assert edge.of(Interrupt) == ([Interrupt(head)] if head and (is_interrupted_now or enters_cancelled) else []), (
            edge
        )


def expected_refusal(lane: Lane, past: Past, event: LaneEvent) -> Refuse | None:
    match event:
        case Accept(run=run) if run not in past.present and lane.closing:
            return Refuse(run, "closing")
        case Accept(run=run, delivery="reject") if run not in past.present and past.present:
            return Refuse(run, "busy")
        case CancelRun(run=run, binding=False) if run in past.folded:
            return Refuse(run, "folded", head_of(lane))
        case Move(run=run) | Redeliver(run=run) if run not in waiting(lane):
            return Refuse(run, "not waiting")
        case _:
            return None


def test_a_refusal_changes_nothing() -> None:
    for edge in walk().all():
        refusal = expected_refusal(edge.lane, edge.past, edge.event)
        assert edge.of(Refuse) == ([] if refusal is None else [refusal]), edge
        if refusal is not None:
            assert (edge.after, edge.effects) == (edge.lane, (refusal,)), edge


def test_accepted_run_is_queued_and_a_retry_changes_nothing() -> None:
    """Rule 2; interrupting is a cancel, then an accept."""
    for edge in walk().edges[Accept]:
        assert isinstance(edge.event, Accept)
        run, delivery = edge.event.run, edge.event.delivery
        if run in edge.past.present:
            assert (edge.after, edge.effects) == (edge.lane, ()), edge
        elif delivery == "interrupt" and not edge.lane.closing:
            lane, before = transition(edge.lane, Cancel())
            lane, effects = transition(lane, Accept(run, "queue"))
            assert (edge.after, edge.effects) == (lane, before + effects), edge
        elif not edge.of(Refuse):
            assert members(edge.after) == (*members(edge.lane), run), edge


def test_a_shutdown_parks_exactly_the_runs_that_have_not_entered() -> None:
    """Rule 7: a head that has entered or was cancelled before ends through its finish."""
    for edge in walk().edges[Shutdown]:
        parked = edge.now.parked - edge.past.parked
        assert parked == edge.past.present - edge.past.entered - edge.past.stopping - edge.past.folded, edge
        assert not edge.of(End), edge
        assert transition(edge.after, Shutdown()) == (edge.after, ()), edge


def test_a_closing_lane_stays_closed() -> None:
    for edge in walk().all():
        if edge.lane.closing:
            assert edge.after.closing, edge
            assert not edge.of(Spawn), edge
            assert edge.now.accepted == edge.past.accepted, edge
            assert not edge.after.queue, edge
        else:
            assert edge.after.closing == isinstance(edge.event, Shutdown), edge


def can_happen(lane: Lane, past: Past, event: LaneEvent) -> bool:
    match event:
        case Enter(run=run):
            return run == head_of(lane) and (run not in past.entered or run in past.stopping)
        case StepBoundary(run=run):
            return run == head_of(lane) and (run in past.entered or run in past.stopping)
        case Finish(run=run):
            return run == head_of(lane)
        case _:
            return True


def test_exactly_the_impossible_events_are_illegal() -> None:
    """C-01: a run that has ended, or is not the head, cannot enter, step or finish."""
    found = walk()
    for edge in found.all():
        assert can_happen(edge.lane, edge.past, edge.event), edge
    for lane, past, event in found.illegal:
        assert not can_happen(lane, past, event), (lane, past, event)


def test_no_lane_is_stuck() -> None:
    """From every lane, finishing one head after the other makes it idle, with one finish per turn."""
    for start, _ in walk().places:
        lane, turns = start, 0
        while lane.head is not None and turns <= len(RUNS):
            lane, _ = transition(lane, Finish(lane.head.run, "failed"))
            turns += 1
        assert turns == bool(start.head) + len(start.queue), start


def test_walk_reaches_the_expected_number_of_states() -> None:
    """The rules above prove nothing if the walk visits few states."""
    found = walk()
    lanes = {lane for lane, _ in found.places}
    assert len(lanes) >= 590
    assert len(found.places) >= 1_000
    assert sum(len(edges) for edges in found.edges.values()) >= 56_000
    assert len(found.illegal) >= 15_000
    assert found.edges.keys() == {type(event) for event in events(1)}
    assert {type(effect) for edge in found.all() for effect in edge.effects} == {*get_args(Effect)}
    heads = [lane.head for lane in lanes]
    assert {head and (head.phase, head.cause) for head in heads} == {
        None,
        ("accepted", None),
        ("active", None),
        ("cancelling", "cancel"),
        ("cancelling", "shutdown"),
    }
    assert max(len(past.ended) for _, past in found.places) == len(RUNS)
