"""Who runs, who waits, who stops: the life of the runs of one session. Pure.

A session is a *lane*: a *head*, the run that has the session, and a *queue* of those that wait.
`transition(lane, event)` answers the lane as it is from now on and the effects to be carried out.
Nothing else in Holdfast decides these things; `engine.py` carries them out and decides nothing.

The rules, which are also the tests:

1.  Every accepted run leaves through exactly one `End`, or is parked by a shutdown.
2.  A run is placed (head or queue) by the very call that accepts it, so no cancel can miss it.
3.  A cancel covers all that is in the lane now and nothing that comes later; when idle it does nothing.
4.  A cancel between acceptance and the first step is kept: `Enter` then answers `Interrupt`.
5.  One run at most is active; `queue` runs keep their order; only steering prompts fold, never into a
    run that is being cancelled.
6.  Whatever the head's outcome, the lane goes on with the next run, after the head's `End`.
7.  A shutdown interrupts only the head that has begun; what waits is parked and goes on at the next start.

The head is *accepted* (it has the lane, its task has not taken a step yet), *active*, or *cancelling*
(it was told to stop, for the first `cause` given, and is cleaning up).
"""

from typing import Literal, TypeAlias, assert_never

import msgspec

from holdfast.domain.ids import RunId
from holdfast.domain.runs import Delivery, Outcome, RunState

# fmt: off
__all__ = [
    "Accept", "Cancel", "CancelRun", "Cause", "ClearQueue", "Effect", "End", "Enter", "Finish", "Fold",
    "IllegalTransition", "Interrupt", "Lane", "LaneEvent", "Move", "Park", "Phase", "Redeliver", "Refuse",
    "RefuseReason", "Shutdown", "Spawn", "StepBoundary", "Waiting", "members", "state_of", "transition",
]
# fmt: on


Phase = Literal["accepted", "active", "cancelling"]
Cause = Literal["cancel", "shutdown"]
"""Why a head is being cancelled. It decides how the run ends, whatever its task still manages to do."""
RefuseReason = Literal["busy", "closing", "folded", "not waiting"]


class Waiting(msgspec.Struct, frozen=True):
    """A run in the queue. `reject` and `interrupt` have done their work by then and wait like `queue`."""

    run: RunId
    delivery: Literal["steer", "queue"]


class Lane(msgspec.Struct, frozen=True):
    """One session's single file. `folded` are the runs that share the head's turn and its end."""

    head: RunId | None = None
    phase: Phase | None = None
    cause: Cause | None = None
    folded: tuple[RunId, ...] = ()
    queue: tuple[Waiting, ...] = ()
    closing: bool = False


class Accept(msgspec.Struct, frozen=True):
    """A prompt is on disk. A run that is already in the lane changes nothing."""

    run: RunId
    delivery: Delivery


class Enter(msgspec.Struct, frozen=True):
    """The head's task takes its first step."""

    run: RunId


class StepBoundary(msgspec.Struct, frozen=True):
    """The head is about to ask the model: the moment to fold steering prompts in."""

    run: RunId


class Cancel(msgspec.Struct, frozen=True):
    """Cancel every run that is in the lane now."""


class CancelRun(msgspec.Struct, frozen=True):
    """Cancel one run; a folded run is refused."""

    run: RunId


class ClearQueue(msgspec.Struct, frozen=True):
    """Cancel the waiting runs; the head continues."""


class Move(msgspec.Struct, frozen=True):
    """A waiting run goes to a place in the queue; places beyond its ends mean the ends."""

    run: RunId
    position: int


class Redeliver(msgspec.Struct, frozen=True):
    """Change the delivery of a waiting run."""

    run: RunId
    delivery: Literal["steer", "queue"]


class Finish(msgspec.Struct, frozen=True):
    """The head's task is over. `outcome` counts unless the head was told to stop."""

    run: RunId
    outcome: Literal["completed", "failed"]


class Shutdown(msgspec.Struct, frozen=True):
    """Close the lane: interrupt an active head and park the waiting runs."""


LaneEvent: TypeAlias = (
    Accept | Enter | StepBoundary | Cancel | CancelRun | ClearQueue | Move | Redeliver | Finish | Shutdown
)


class Spawn(msgspec.Struct, frozen=True):
    """Start the task of the new head of the lane."""

    run: RunId


class Interrupt(msgspec.Struct, frozen=True):
    run: RunId


class Fold(msgspec.Struct, frozen=True):
    host: RunId
    runs: tuple[RunId, ...]


class End(msgspec.Struct, frozen=True):
    """The run is over. `host` is set for a folded run, `waited` for one that never had the lane."""

    run: RunId
    outcome: Outcome
    host: RunId | None = None
    waited: bool = False


class Refuse(msgspec.Struct, frozen=True):
    """Reject a prompt or a queue change, with the reason."""

    run: RunId
    reason: RefuseReason
    host: RunId | None = None


class Park(msgspec.Struct, frozen=True):
    """The run stays stored and goes on at the next start."""

    run: RunId


Effect: TypeAlias = Spawn | Interrupt | Fold | End | Refuse | Park
Step: TypeAlias = tuple[Lane, tuple[Effect, ...]]


class IllegalTransition(Exception):
    """An event that cannot happen in this lane: a bug in the shell, never a user's mistake."""

    def __init__(self, lane: Lane, event: LaneEvent) -> None:
        super().__init__(f"{event} cannot happen in {lane}")


def transition(lane: Lane, event: LaneEvent) -> Step:
    match event:
        case Accept():
            return _accept(lane, event)
        case Enter():
            return _enter(lane, event)
        case StepBoundary():
            return _step_boundary(lane, event)
        case Cancel():
            return _cancel(lane)
        case CancelRun():
            return _cancel_run(lane, event)
        case ClearQueue():
            return msgspec.structs.replace(lane, queue=()), _ends(lane.queue)
        case Move() | Redeliver():
            return _rearrange(lane, event)
        case Finish():
            return _finish(lane, event)
        case Shutdown():
            return _shutdown(lane)
        case _:
            assert_never(event)


def members(lane: Lane) -> tuple[RunId, ...]:
    """Every run in the lane: the head, those folded into it, those that wait, in order."""
    head = () if lane.head is None else (lane.head,)
    return head + lane.folded + tuple(waiting.run for waiting in lane.queue)


def state_of(lane: Lane, run: RunId) -> RunState | None:
    """What the lane knows of a run; None if it is not in it."""
    if run == lane.head and lane.phase is not None:
        return lane.phase
    if run in lane.folded:
        return "folded"
    return "waiting" if any(waiting.run == run for waiting in lane.queue) else None


def _accept(lane: Lane, event: Accept) -> Step:
    if event.run in members(lane):
        return lane, ()
    if lane.closing:
        return lane, (Refuse(event.run, "closing"),)
    if event.delivery == "reject" and lane.head is not None:
        return lane, (Refuse(event.run, "busy"),)
    before: tuple[Effect, ...] = ()
    if event.delivery == "interrupt":
        lane, before = _cancel(lane)
    if lane.head is None:
        return Lane(head=event.run, phase="accepted"), (*before, Spawn(event.run))
    waiting = Waiting(event.run, "steer" if event.delivery == "steer" else "queue")
    return msgspec.structs.replace(lane, queue=(*lane.queue, waiting)), before


def _enter(lane: Lane, event: Enter) -> Step:
    if lane.head != event.run or lane.phase == "active":
        raise IllegalTransition(lane, event)
    if lane.phase == "cancelling":
        return lane, (Interrupt(event.run),)
    return msgspec.structs.replace(lane, phase="active"), ()


def _step_boundary(lane: Lane, event: StepBoundary) -> Step:
    if lane.head != event.run or lane.phase == "accepted":
        raise IllegalTransition(lane, event)
    steering = tuple(waiting.run for waiting in lane.queue if waiting.delivery == "steer")
    if lane.phase == "cancelling" or not steering:
        return lane, ()
    rest = tuple(waiting for waiting in lane.queue if waiting.delivery == "queue")
    folded = msgspec.structs.replace(lane, folded=lane.folded + steering, queue=rest)
    return folded, (Fold(event.run, steering),)


def _cancel(lane: Lane) -> Step:
    stopped, effects = _stop_head(lane, "cancel")
    return msgspec.structs.replace(stopped, queue=()), effects + _ends(lane.queue)


def _cancel_run(lane: Lane, event: CancelRun) -> Step:
    if event.run == lane.head:
        return _stop_head(lane, "cancel")
    if event.run in lane.folded:
        return lane, (Refuse(event.run, "folded", lane.head),)
    rest = tuple(waiting for waiting in lane.queue if waiting.run != event.run)
    if len(rest) == len(lane.queue):
        return lane, ()
    return msgspec.structs.replace(lane, queue=rest), (End(event.run, "cancelled", waited=True),)


def _rearrange(lane: Lane, event: Move | Redeliver) -> Step:
    found = next((waiting for waiting in lane.queue if waiting.run == event.run), None)
    if found is None:
        return lane, (Refuse(event.run, "not waiting"),)
    queue = list(lane.queue)
    place = queue.index(found)
    del queue[place]
    if isinstance(event, Move):
        # Clamp the position to the queue.
        queue.insert(min(max(0, event.position), len(queue)), found)
    else:
        queue.insert(place, Waiting(event.run, event.delivery))
    return msgspec.structs.replace(lane, queue=tuple(queue)), ()


def _finish(lane: Lane, event: Finish) -> Step:
    if lane.head is None or lane.head != event.run:
        raise IllegalTransition(lane, event)
    outcome: Outcome = event.outcome
    if lane.phase == "cancelling":
        outcome = "cancelled" if lane.cause == "cancel" else "interrupted"
    ends = (End(event.run, outcome), *(End(run, outcome, host=event.run) for run in lane.folded))
    if not lane.queue:
        return Lane(closing=lane.closing), ends
    following, *rest = lane.queue
    return Lane(head=following.run, phase="accepted", queue=tuple(rest)), (*ends, Spawn(following.run))


def _shutdown(lane: Lane) -> Step:
    parked = tuple(Park(waiting.run) for waiting in lane.queue)
    if lane.phase == "accepted" and lane.head is not None:
        return Lane(closing=True), (Park(lane.head), *parked)
    stopped, effects = _stop_head(lane, "shutdown")
    return msgspec.structs.replace(stopped, queue=(), closing=True), effects + parked


def _stop_head(lane: Lane, cause: Cause) -> Step:
    """Stop the head. No-op without a head or if it is stopping; a head not yet entered is interrupted by Enter."""
    if lane.head is None or lane.phase == "cancelling":
        return lane, ()
    effects = (Interrupt(lane.head),) if lane.phase == "active" else ()
    return msgspec.structs.replace(lane, phase="cancelling", cause=cause), effects


def _ends(queue: tuple[Waiting, ...]) -> tuple[Effect, ...]:
    return tuple(End(waiting.run, "cancelled", waited=True) for waiting in queue)
