"""The lifecycle state machine, cell by cell and rule by rule. `test_lifecycle_walk.py` enumerates its lanes."""

from collections.abc import Sequence
from typing import Literal, get_args

import msgspec
import pytest

from holdfast.domain.ids import RunId
from holdfast.domain.runs import Delivery
from holdfast.engine.run_lifecycle import (
    RULES,
    Accept,
    Cancel,
    CancelRun,
    Cause,
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
    Phase,
    Redeliver,
    Refuse,
    Shutdown,
    Spawn,
    StepBoundary,
    Waiting,
    members,
    state_of,
    transition,
)

A, B, C, D, E = (RunId(name) for name in "abcde")
STEER, QUEUE = (Waiting(B, "steer"), Waiting(C, "queue"))
BOTH = (STEER, QUEUE)
BOTH_CANCELLED = (End(B, "cancelled", waited=True), End(C, "cancelled", waited=True))


def busy(phase: Phase, queue: Sequence[Waiting] = BOTH, *, folded: tuple[RunId, ...] = ()) -> Lane:
    """Return a lane with head A; behind it wait B, which steers, and C, which does not."""
    return Lane(Head(A, phase, "cancel" if phase == "cancelling" else None), folded, tuple(queue))


def stopping_lane(cause: Cause = "shutdown", *, folded: tuple[RunId, ...] = ()) -> Lane:
    return Lane(Head(A, "cancelling", cause), folded, closing=True)


def run_events(lane: Lane, *events: LaneEvent) -> tuple[Lane, tuple[Effect, ...]]:
    """Return the lane after several events, and all their effects."""
    effects: tuple[Effect, ...] = ()
    for event in events:
        lane, more = transition(lane, event)
        effects += more
    return lane, effects


def cancelled_ends(*runs: RunId) -> tuple[End, ...]:
    return tuple(End(run, "cancelled", waited=True) for run in runs)


# The table: for each row and column the next lane and the effects. `None` is a bug of the caller.

ROWS: dict[str, Lane] = {
    "none": Lane(),
    "accepted": busy("accepted"),
    "active": busy("active"),
    "cancelling": busy("cancelling"),
    "closing": stopping_lane(),
    "closed": Lane(closing=True),
}
COLUMNS = (Accept, Enter, StepBoundary, Cancel, CancelRun, ClearQueue, Finish, Shutdown)

Cell = tuple[str, LaneEvent, Lane | None, tuple[Effect, ...]]
CELLS: list[Cell] = [
    ("none", Accept(A, "steer"), Lane(Head(A)), (Spawn(A),)),
    ("none", Enter(A), None, ()),
    ("none", StepBoundary(A), None, ()),
    ("none", Cancel(), Lane(), ()),
    ("none", CancelRun(A), Lane(), ()),
    ("none", ClearQueue(), Lane(), ()),
    ("none", Finish(A, "completed"), None, ()),
    ("none", Shutdown(), Lane(closing=True), ()),
    ("accepted", Accept(D, "steer"), busy("accepted", (*BOTH, Waiting(D, "steer"))), ()),
    ("accepted", Accept(D, "queue"), busy("accepted", (*BOTH, Waiting(D, "queue"))), ()),
    ("accepted", Enter(A), busy("active"), ()),
    ("accepted", Enter(B), None, ()),
    ("accepted", StepBoundary(A), None, ()),
    ("accepted", Cancel(), busy("cancelling", ()), BOTH_CANCELLED),
    ("accepted", CancelRun(A), busy("cancelling"), ()),
    ("accepted", CancelRun(B), busy("accepted", (QUEUE,)), cancelled_ends(B)),
    ("accepted", ClearQueue(), busy("accepted", ()), BOTH_CANCELLED),
    ("accepted", Finish(A, "failed"), Lane(Head(B), queue=(QUEUE,)), (End(A, "failed"), Spawn(B))),
    ("accepted", Finish(B, "failed"), None, ()),
    ("accepted", Shutdown(), Lane(closing=True), (Park(A), Park(B), Park(C))),
    ("active", Accept(D, "steer"), busy("active", (*BOTH, Waiting(D, "steer"))), ()),
    ("active", Accept(D, "queue"), busy("active", (*BOTH, Waiting(D, "queue"))), ()),
    ("active", Enter(A), None, ()),
    ("active", Enter(B), None, ()),
    ("active", StepBoundary(A), busy("active", (QUEUE,), folded=(B,)), (Fold(A, (B,)),)),
    ("active", StepBoundary(B), None, ()),
    ("active", Cancel(), busy("cancelling", ()), (Interrupt(A), *BOTH_CANCELLED)),
    ("active", CancelRun(A), busy("cancelling"), (Interrupt(A),)),
    ("active", CancelRun(C), busy("active", (STEER,)), cancelled_ends(C)),
    ("active", CancelRun(E), busy("active"), ()),
    ("active", ClearQueue(), busy("active", ()), BOTH_CANCELLED),
    ("active", Finish(A, "completed"), Lane(Head(B), queue=(QUEUE,)), (End(A, "completed"), Spawn(B))),
    ("active", Finish(C, "completed"), None, ()),
    ("active", Shutdown(), stopping_lane(), (Interrupt(A), Park(B), Park(C))),
    ("cancelling", Accept(D, "steer"), busy("cancelling", (*BOTH, Waiting(D, "steer"))), ()),
    ("cancelling", Accept(D, "queue"), busy("cancelling", (*BOTH, Waiting(D, "queue"))), ()),
    ("cancelling", Enter(A), busy("cancelling"), (Interrupt(A),)),
    ("cancelling", Enter(B), None, ()),
    ("cancelling", StepBoundary(A), busy("cancelling"), ()),
    ("cancelling", StepBoundary(B), None, ()),
    ("cancelling", Cancel(), busy("cancelling", ()), BOTH_CANCELLED),
    ("cancelling", CancelRun(A), busy("cancelling"), ()),
    ("cancelling", CancelRun(B), busy("cancelling", (QUEUE,)), cancelled_ends(B)),
    ("cancelling", ClearQueue(), busy("cancelling", ()), BOTH_CANCELLED),
    ("cancelling", Finish(A, "completed"), Lane(Head(B), queue=(QUEUE,)), (End(A, "cancelled"), Spawn(B))),
    ("cancelling", Finish(B, "completed"), None, ()),
    ("cancelling", Shutdown(), stopping_lane("cancel"), (Park(B), Park(C))),
    ("closing", Accept(D, "steer"), stopping_lane(), (Refuse(D, "closing"),)),
    ("closing", Enter(A), stopping_lane(), (Interrupt(A),)),
    ("closing", StepBoundary(A), stopping_lane(), ()),
    ("closing", Cancel(), stopping_lane(), ()),
    ("closing", CancelRun(A), stopping_lane(), ()),
    ("closing", ClearQueue(), stopping_lane(), ()),
    ("closing", Finish(A, "completed"), Lane(closing=True), (End(A, "interrupted"),)),
    ("closing", Shutdown(), stopping_lane(), ()),
    ("closed", Accept(A, "steer"), Lane(closing=True), (Refuse(A, "closing"),)),
    ("closed", Enter(A), None, ()),
    ("closed", StepBoundary(A), None, ()),
    ("closed", Cancel(), Lane(closing=True), ()),
    ("closed", CancelRun(A), Lane(closing=True), ()),
    ("closed", ClearQueue(), Lane(closing=True), ()),
    ("closed", Finish(A, "completed"), None, ()),
    ("closed", Shutdown(), Lane(closing=True), ()),
]


def cell_id(cell: Cell) -> str:
    row, event, *_ = cell
    return f"{row} {type(event).__name__} {' '.join(map(str, msgspec.structs.astuple(event)))}".strip()


@pytest.mark.parametrize("cell", CELLS, ids=cell_id)
def test_the_table(cell: Cell) -> None:
    row, event, then, effects = cell
    if then is None:
        with pytest.raises(IllegalTransition):
            transition(ROWS[row], event)
    else:
        assert transition(ROWS[row], event) == (then, effects)


def test_the_rules_name_every_event() -> None:
    assert set(RULES) == set(get_args(LaneEvent))


@pytest.mark.parametrize(("phase", "cause"), [("accepted", "cancel"), ("active", "shutdown"), ("cancelling", None)])
def test_a_head_has_a_cause_exactly_while_it_is_cancelling(phase: Phase, cause: Cause | None) -> None:
    with pytest.raises(AssertionError):
        Head(A, phase, cause)


def test_no_cell_of_the_table_is_missing() -> None:
    assert {(row, type(event)) for row, event, *_ in CELLS} == {(row, column) for row in ROWS for column in COLUMNS}
    assert len({cell_id(cell) for cell in CELLS}) == len(CELLS)


# Accepting


@pytest.mark.parametrize("delivery", ["steer", "queue", "reject", "interrupt"])
def test_a_run_accepted_in_an_idle_lane_becomes_head(delivery: Delivery) -> None:
    assert transition(Lane(), Accept(A, delivery)) == (Lane(Head(A)), (Spawn(A),))


@pytest.mark.parametrize("phase", ["accepted", "active", "cancelling"])
def test_reject_is_refused_while_anything_is_in_the_lane(phase: Phase) -> None:
    """A run that is being cancelled counts."""
    lane = busy(phase, ())
    assert transition(lane, Accept(D, "reject")) == (lane, (Refuse(D, "busy"),))


@pytest.mark.parametrize("delivery", ["steer", "queue", "reject", "interrupt"])
@pytest.mark.parametrize("row", ["closing", "closed"])
def test_a_closing_lane_refuses_every_delivery(row: str, delivery: Delivery) -> None:
    assert transition(ROWS[row], Accept(D, delivery)) == (ROWS[row], (Refuse(D, "closing"),))


@pytest.mark.parametrize("row", ["none", "accepted", "active", "cancelling"])
def test_interrupt_is_a_cancel_and_then_an_accept(row: str) -> None:
    one_by_one = run_events(ROWS[row], Cancel(), Accept(D, "queue"))
    assert transition(ROWS[row], Accept(D, "interrupt")) == one_by_one


def test_interrupt_waits_for_the_head_to_stop_and_then_runs() -> None:
    lane, effects = run_events(busy("active"), Accept(D, "interrupt"), Finish(A, "completed"))
    assert lane == Lane(Head(D))
    assert effects == (Interrupt(A), *BOTH_CANCELLED, End(A, "cancelled"), Spawn(D))


@pytest.mark.parametrize("delivery", ["steer", "queue", "reject", "interrupt"])
@pytest.mark.parametrize("run", [A, B, D])
def test_accepting_a_present_run_changes_nothing(run: RunId, delivery: Delivery) -> None:
    """A retried request: for head, waiting and folded runs, in a closing lane as well."""
    for lane in (busy("active", folded=(D,)), msgspec.structs.replace(busy("active", folded=(D,)), closing=True)):
        assert transition(lane, Accept(run, delivery)) == (lane, ())


def test_run_is_queued_by_the_call_that_accepts_it() -> None:
    lane, _ = transition(Lane(), Accept(A, "queue"))
    assert state_of(lane, A) == "accepted"
    lane, _ = transition(lane, Accept(B, "steer"))
    assert state_of(lane, B) == "waiting"


# Cancelling


@pytest.mark.parametrize("event", [Cancel(), CancelRun(A), ClearQueue()])
def test_c02_c13_an_idle_cancel_leaves_nothing_behind(event: LaneEvent) -> None:
    """C-02: nothing happens. C-13: the next prompt runs and ends as if there had been none."""
    assert transition(Lane(), event) == (Lane(), ())
    lane, effects = run_events(Lane(), event, Accept(A, "queue"), Enter(A), Finish(A, "completed"))
    assert (lane, effects) == (Lane(), (Spawn(A), End(A, "completed")))


@pytest.mark.parametrize("cancel", [Cancel(), CancelRun(A)])
def test_c03_a_cancel_before_the_first_step_is_kept(cancel: LaneEvent) -> None:
    """C-03: it is recorded, a second one adds nothing, and the run is interrupted as soon as it enters."""
    lane, effects = transition(Lane(Head(A)), cancel)
    assert (lane, effects) == (busy("cancelling", ()), ())
    assert transition(lane, cancel) == (lane, ())
    assert run_events(lane, Enter(A), Finish(A, "completed")) == (Lane(), (Interrupt(A), End(A, "cancelled")))


def test_a_cancelled_run_need_not_enter_to_end() -> None:
    """A task cancelled before its first step never enters."""
    assert run_events(busy("accepted", ()), Cancel(), Finish(A, "failed")) == (Lane(), (End(A, "cancelled"),))


def test_c07_one_cancel_stops_the_active_run_and_the_one_behind_it() -> None:
    """C-07."""
    lane, effects = run_events(busy("active", (QUEUE,)), Cancel(), Finish(A, "completed"))
    assert lane == Lane()
    assert effects == (Interrupt(A), *cancelled_ends(C), End(A, "cancelled"))


def test_c14_a_run_accepted_after_a_cancel_is_not_affected() -> None:
    """C-14: A and B are cancelled, C is not."""
    lane, effects = run_events(Lane(), Accept(A, "queue"), Accept(B, "queue"), Cancel(), Accept(C, "queue"))
    assert effects == (Spawn(A), *cancelled_ends(B))
    lane, effects = run_events(lane, Enter(A), Finish(A, "completed"))
    assert (lane, effects) == (Lane(Head(C)), (Interrupt(A), End(A, "cancelled"), Spawn(C)))
    assert run_events(lane, Enter(C), Finish(C, "completed")) == (Lane(), (End(C, "completed"),))


def test_a_second_cancel_covers_the_runs_accepted_since_the_first() -> None:
    lane, effects = run_events(busy("active", ()), Cancel(), Accept(B, "queue"), Cancel(), Accept(C, "queue"))
    assert lane == busy("cancelling", (Waiting(C, "queue"),))
    assert effects == (Interrupt(A), *cancelled_ends(B))


@pytest.mark.parametrize("waiting", [STEER, QUEUE])
def test_c17_c18_a_waiting_prompt_that_is_cancelled_ends_once(waiting: Waiting) -> None:
    """C-17: however it is cancelled, whatever its delivery; C-18: clearing the queue is one of the ways."""
    for cancel in (Cancel(), CancelRun(waiting.run), ClearQueue()):
        lane, effects = transition(busy("active", (waiting,)), cancel)
        assert [effect for effect in effects if isinstance(effect, End)] == [*cancelled_ends(waiting.run)]
        assert transition(lane, CancelRun(waiting.run)) == (lane, ())


# Folding


def test_c16_at_a_step_boundary_steering_prompts_fold_and_the_others_stay_in_order() -> None:
    """C-16: cancelled runs are removed, steering prompts fold, the others keep their order."""
    queue = (Waiting(B, "queue"), Waiting(C, "steer"), Waiting(D, "queue"), Waiting(E, "steer"))
    lane, effects = transition(busy("active", queue), StepBoundary(A))
    assert lane == busy("active", (Waiting(B, "queue"), Waiting(D, "queue")), folded=(C, E))
    assert effects == (Fold(A, (C, E)),)
    lane, effects = run_events(busy("active", queue), CancelRun(B), CancelRun(C), StepBoundary(A))
    assert lane == busy("active", (Waiting(D, "queue"),), folded=(E,))
    assert effects == (*cancelled_ends(B, C), Fold(A, (E,)))


def test_each_boundary_folds_the_prompts_accepted_since() -> None:
    lane, effects = run_events(busy("active", (STEER,)), StepBoundary(A), Accept(D, "steer"), StepBoundary(A))
    assert (lane, effects) == (busy("active", (), folded=(B, D)), (Fold(A, (B,)), Fold(A, (D,))))
    assert transition(lane, StepBoundary(A)) == (lane, ())


@pytest.mark.parametrize("cancel", [Cancel(), CancelRun(B), ClearQueue()])
def test_c09_a_follow_up_cancelled_while_it_waits_is_not_folded(cancel: LaneEvent) -> None:
    """C-09."""
    _, effects = run_events(busy("active", (STEER,)), cancel, StepBoundary(A))
    assert not [effect for effect in effects if isinstance(effect, Fold)]


def test_nothing_folds_into_a_run_that_is_being_cancelled() -> None:
    lane, effects = run_events(
        busy("active", ()), CancelRun(A), Accept(B, "steer"), StepBoundary(A), Finish(A, "failed")
    )
    assert (lane, effects) == (Lane(Head(B)), (Interrupt(A), End(A, "cancelled"), Spawn(B)))


@pytest.mark.parametrize("outcome", ["completed", "failed"])
def test_a_folded_run_shares_the_end_of_its_host(outcome: Literal["completed", "failed"]) -> None:
    lane, effects = transition(busy("active", (), folded=(B, C)), Finish(A, outcome))
    assert lane == Lane()
    assert effects == (End(A, outcome), End(B, outcome, host=A), End(C, outcome, host=A))


def test_a_folded_run_is_stopped_with_its_host() -> None:
    _, effects = run_events(busy("active", (), folded=(B,)), Cancel(), Finish(A, "completed"))
    assert effects == (Interrupt(A), End(A, "cancelled"), End(B, "cancelled", host=A))
    _, effects = run_events(busy("active", (), folded=(B,)), Shutdown(), Finish(A, "completed"))
    assert effects == (Interrupt(A), End(A, "interrupted"), End(B, "interrupted", host=A))


def test_cancelling_a_folded_run_is_refused_and_names_its_host() -> None:
    lane = busy("active", folded=(D,))
    assert transition(lane, CancelRun(D)) == (lane, (Refuse(D, "folded", A),))


# The queue


@pytest.mark.parametrize(
    ("position", "order"),
    [(-1, "dbc"), (0, "dbc"), (1, "bdc"), (2, "bcd"), (3, "bcd"), (9, "bcd"), (1 << 64, "bcd"), (-1 << 64, "dbc")],
)
def test_moving_changes_only_the_position(position: int, order: str) -> None:
    """Positions beyond the ends of the queue mean the ends."""
    third = Waiting(D, "steer")
    lane, effects = transition(busy("active", (*BOTH, third)), Move(D, position))
    by_name = {waiting.run: waiting for waiting in (*BOTH, third)}
    assert (lane, effects) == (busy("active", [by_name[RunId(name)] for name in order]), ())


@pytest.mark.parametrize("phase", ["accepted", "active", "cancelling"])
def test_redelivering_changes_only_the_delivery(phase: Phase) -> None:
    lane, effects = run_events(busy(phase), Redeliver(B, "queue"), Redeliver(C, "steer"))
    assert (lane, effects) == (busy(phase, (Waiting(B, "queue"), Waiting(C, "steer"))), ())


@pytest.mark.parametrize("run", [A, D, E])
def test_only_a_waiting_run_can_be_moved_or_redelivered(run: RunId) -> None:
    """Neither the head nor a folded run nor an unknown run."""
    lane = busy("active", folded=(D,))
    for event in (Move(run, 0), Redeliver(run, "steer")):
        assert transition(lane, event) == (lane, (Refuse(run, "not waiting"),))


def test_a_lane_continues_for_every_outcome_of_the_head() -> None:
    """R2: each end belongs to its own run, and is decided before the next run begins."""
    lane, effects = run_events(
        busy("active"),
        Finish(A, "failed"),
        Enter(B),
        CancelRun(B),
        Finish(B, "failed"),
        Enter(C),
        Finish(C, "completed"),
    )
    assert lane == Lane()
    ends = (End(A, "failed"), Spawn(B), Interrupt(B), End(B, "cancelled"), Spawn(C), End(C, "completed"))
    assert effects == ends


# Ending


@pytest.mark.parametrize("outcome", ["completed", "failed"])
def test_c01_a_run_ends_once(outcome: Literal["completed", "failed"]) -> None:
    """C-01: a second finish is refused, whether or not another run has the lane by then; a cancel finds nothing."""
    for queue, then in (((), Lane()), ((QUEUE,), Lane(Head(C)))):
        lane, _ = transition(busy("active", queue), Finish(A, outcome))
        assert lane == then
        with pytest.raises(IllegalTransition):
            transition(lane, Finish(A, outcome))
        assert transition(lane, CancelRun(A)) == (lane, ())


@pytest.mark.parametrize("outcome", ["completed", "failed"])
@pytest.mark.parametrize("cause", ["cancel", "shutdown"])
def test_the_cause_decides_how_a_stopped_run_ends(cause: Cause, outcome: Literal["completed", "failed"]) -> None:
    """Whatever its task still completes."""
    stop: LaneEvent = Cancel() if cause == "cancel" else Shutdown()
    _, effects = run_events(busy("active", ()), stop, Finish(A, outcome))
    assert effects == (Interrupt(A), End(A, "cancelled" if cause == "cancel" else "interrupted"))


@pytest.mark.parametrize("cancel", [Cancel(), CancelRun(A)])
def test_the_first_cause_stays(cancel: LaneEvent) -> None:
    _, effects = run_events(busy("active", ()), cancel, Shutdown(), Finish(A, "completed"))
    assert effects == (Interrupt(A), End(A, "cancelled"))
    _, effects = run_events(busy("active", ()), Shutdown(), cancel, Finish(A, "completed"))
    assert effects == (Interrupt(A), End(A, "interrupted"))


def test_second_shutdown_changes_nothing() -> None:
    for row, lane in ROWS.items():
        once, _ = transition(lane, Shutdown())
        assert transition(once, Shutdown()) == (once, ()), row


# Reading a lane


def test_members_and_states() -> None:
    lane = busy("active", (QUEUE,), folded=(B,))
    assert members(lane) == (A, B, C)
    assert [state_of(lane, run) for run in (A, B, C, D)] == ["active", "folded", "waiting", None]
    assert members(Lane()) == ()


def test_an_illegal_event_names_event_and_lane() -> None:
    with pytest.raises(IllegalTransition, match=r"Enter\(run='b'\) cannot happen in Lane\(head=Head\(run='a'"):
        transition(busy("accepted"), Enter(B))
