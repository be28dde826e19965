"""State machine for the runs of one session: scheduling, cancellation, shutdown. Pure.

Theory of operation. The runs of a session form a *lane*: a *head*, the run that owns the session, and a *queue* of
waiting runs. `transition(lane, event)` returns the next lane and the effects to execute. No other code decides which
run is active, waits or stops; `engine.py` executes the effects. Each event is decided completely before the next one,
and every lane that a few runs can reach can be enumerated: `tests/engine/test_lifecycle_walk.py` does it.

The head has three phases, because a task cannot be stopped in the same way at every moment:
* accepted: its task has not executed its first step. An asyncio task that is cancelled now never enters its body, so
  a cancel is only noted here and takes effect through `Enter`.
* active: its task is running. A cancel interrupts the task at once.
* cancelling: it was cancelled and cleans up. The first cause is kept. Runs accepted from now on wait and survive.

A steering prompt that waits when the head reaches a step boundary is *folded* into it: both share one turn and one
outcome. `RULES` maps each event and phase to a rule. (A busy flag cannot express a cancel before the first step.)

Rules, which are also the tests:
1.  Every accepted run leaves through exactly one `End`, or is parked by a shutdown.
2.  A run is placed (head or queue) by the call that accepts it, so no cancel can miss it.
3.  A cancel covers every run in the lane now and no later run; in an idle lane it does nothing.
4.  A cancel between acceptance and the first step is never lost: `Enter` then returns `Interrupt`.
5.  At most one run is active. `queue` runs keep their order. Only steering prompts fold, never into a cancelled run.
6.  For every outcome of the head, the lane continues with the next waiting run, after the head's `End`.
7.  A shutdown interrupts only an active head; the other runs are parked and continue at the next start.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from holdfast.domain.ids import RunId
from holdfast.domain.runs import Delivery, Outcome, RunState

# fmt: off
__all__ = [
    "RULES", "Accept", "Cancel", "CancelRun", "ClearQueue", "Effect", "End", "Enter", "Finish", "Fold", "Head",
    "IllegalTransition", "Interrupt", "Lane", "LaneEvent", "Move", "Park", "Redeliver", "Refuse", "Shutdown", "Spawn",
    "StepBoundary", "Waiting", "members", "state_of", "transition"]
# fmt: on

Phase = Literal["accepted", "active", "cancelling"]
Cause = Literal["cancel", "shutdown"]  # It determines the outcome of the run, whatever its task still achieves.
RefuseReason = Literal["busy", "closing", "folded", "not waiting"]


class Head(msgspec.Struct, frozen=True):
    """The run that owns the lane. A head has a cause exactly while it is cancelling."""

    run: RunId
    phase: Phase = "accepted"
    cause: Cause | None = None

    def __post_init__(self) -> None:
        assert (self.cause is not None) == (self.phase == "cancelling"), self


class Waiting(msgspec.Struct, frozen=True):
    """A run in the queue. `reject` and `interrupt` have taken effect on acceptance and wait like `queue`."""

    run: RunId
    delivery: Literal["steer", "queue"]


class Lane(msgspec.Struct, frozen=True):
    """The runs of one session. `folded` runs share the head's turn and end. A closing lane accepts no prompts."""

    head: Head | None = None
    folded: tuple[RunId, ...] = ()
    queue: tuple[Waiting, ...] = ()
    closing: bool = False


class _OfRun(msgspec.Struct, frozen=True):
    run: RunId


class Accept(_OfRun, frozen=True):
    """A prompt is stored. No change if the run is already in the lane: the request was retried."""

    delivery: Delivery


class Enter(_OfRun, frozen=True):
    """The head's task executes its first step. Once per run, before any other event of its task."""


class StepBoundary(_OfRun, frozen=True):
    """The head is about to call the model: steering prompts can be folded."""


class Cancel(msgspec.Struct, frozen=True):
    """Cancel every run that is in the lane now."""


class CancelRun(_OfRun, frozen=True):
    """Cancel one run, head or waiting. Refused for a folded run; no change for a run that is not in the lane.

    `binding`: another node stored the cancel before the fold was stored. A folded run then leaves its host's turn.
    """

    binding: bool = False


class ClearQueue(msgspec.Struct, frozen=True):
    """Cancel the waiting runs; the head continues."""


class Move(_OfRun, frozen=True):
    """Move a waiting run to a position in the queue; a position outside of the queue means its nearest end."""

    position: int


class Redeliver(_OfRun, frozen=True):
    """Change the delivery of a waiting run, which keeps its position."""

    delivery: Literal["steer", "queue"]


class Finish(_OfRun, frozen=True):
    """The head's task has ended. `outcome` is ignored if the head is cancelling."""

    outcome: Literal["completed", "failed"]


class Shutdown(msgspec.Struct, frozen=True):
    """Close the lane: interrupt an active head and park the other runs."""


LaneEvent: TypeAlias = (
    Accept | Enter | StepBoundary | Cancel | CancelRun | ClearQueue | Move | Redeliver | Finish | Shutdown
)


class Spawn(_OfRun, frozen=True):
    """Start the task of the new head, after every effect that precedes this one is executed."""


class Interrupt(_OfRun, frozen=True):
    """Cancel the head's task at once. `Finish` follows when the task has ended or was given up."""


class Fold(msgspec.Struct, frozen=True):
    """Store the prompts of these runs in the host's conversation before the host calls the model."""

    host: RunId
    runs: tuple[RunId, ...]


class End(_OfRun, frozen=True):
    """Store and publish the end of the run. `host` is set for a folded run, `waited` for one that was never head."""

    outcome: Outcome
    host: RunId | None = None
    waited: bool = False


class Refuse(_OfRun, frozen=True):
    """Return an error to the caller: the prompt, cancel or queue change had no effect. `host` if it was folded."""

    reason: RefuseReason
    host: RunId | None = None


class Park(_OfRun, frozen=True):
    """Drop the run from memory. It stays stored and continues at the next start."""


Effect: TypeAlias = Spawn | Interrupt | Fold | End | Refuse | Park
Step: TypeAlias = tuple[Lane, tuple[Effect, ...]]
Rule: TypeAlias = Callable[[Lane, Any], Step]


class IllegalTransition(Exception):
    """An event that cannot happen in this lane: a bug in the engine, never a user's mistake."""


def transition(lane: Lane, event: LaneEvent) -> Step:
    """Return the lane after the event, and the effects in the order of their execution."""
    if isinstance(event, _HEAD_EVENTS) and (lane.head is None or lane.head.run != event.run):
        return _illegal(lane, event)
    phase = "idle" if lane.head is None else lane.head.phase
    return RULES[type(event)][_COLUMNS.index(phase)](lane, event)


def members(lane: Lane) -> tuple[RunId, ...]:
    """Return every run in the lane: head, folded, waiting, in order."""
    head = () if lane.head is None else (lane.head.run,)
    return head + lane.folded + tuple(waiting.run for waiting in lane.queue)


def state_of(lane: Lane, run: RunId) -> RunState | None:
    """Return the state of a run in the lane; None if it is not in it."""
    if lane.head is not None and run == lane.head.run:
        return lane.head.phase
    if run in lane.folded:
        return "folded"
    return "waiting" if any(waiting.run == run for waiting in lane.queue) else None


def _illegal(lane: Lane, event: LaneEvent) -> Step:
    raise IllegalTransition(f"{event} cannot happen in {lane}")


def _ignore(lane: Lane, _: LaneEvent) -> Step:
    return lane, ()


def _start(lane: Lane, event: Accept) -> Step:
    if lane.closing:
        return lane, (Refuse(event.run, "closing"),)
    return Lane(Head(event.run)), (Spawn(event.run),)


def _wait(lane: Lane, event: Accept) -> Step:
    if event.run in members(lane):
        return lane, ()
    if lane.closing or event.delivery == "reject":
        return lane, (Refuse(event.run, "closing" if lane.closing else "busy"),)
    lane, effects = _cancel(lane, Cancel()) if event.delivery == "interrupt" else (lane, ())
    waiting = Waiting(event.run, "steer" if event.delivery == "steer" else "queue")
    return replace(lane, queue=(*lane.queue, waiting)), effects


def _activate(lane: Lane, event: Enter) -> Step:
    return replace(lane, head=Head(event.run, "active")), ()


def _interrupt(lane: Lane, event: Enter) -> Step:
    return lane, (Interrupt(event.run),)


def _fold(lane: Lane, event: StepBoundary) -> Step:
    steering = tuple(waiting.run for waiting in lane.queue if waiting.delivery == "steer")
    if not steering:
        return lane, ()
    rest = tuple(waiting for waiting in lane.queue if waiting.delivery == "queue")
    return replace(lane, folded=lane.folded + steering, queue=rest), (Fold(event.run, steering),)


def _cancel_run(lane: Lane, event: CancelRun) -> Step:
    state = state_of(lane, event.run)
    if state == "folded" and not event.binding:
        return lane, (Refuse(event.run, "folded", members(lane)[0]),)
    if state == "folded":
        if lane.head is None or lane.head.phase == "cancelling":
            return lane, ()
        others = tuple(run for run in lane.folded if run != event.run)
        return replace(lane, folded=others), (End(event.run, "cancelled", waited=True),)
    if state == "waiting":
        rest = tuple(waiting for waiting in lane.queue if waiting.run != event.run)
        return replace(lane, queue=rest), (End(event.run, "cancelled", waited=True),)
    return (lane, ()) if state is None else _stop_head(lane, "cancel")


def _clear(lane: Lane, _: Cancel | ClearQueue) -> Step:
    return replace(lane, queue=()), tuple(End(waiting.run, "cancelled", waited=True) for waiting in lane.queue)


def _cancel(lane: Lane, event: Cancel) -> Step:
    stopped, interrupt = _stop_head(lane, "cancel")
    cleared, ends = _clear(stopped, event)
    return cleared, interrupt + ends


def _rearrange(lane: Lane, event: Move | Redeliver) -> Step:
    if state_of(lane, event.run) != "waiting":
        return lane, (Refuse(event.run, "not waiting"),)
    queue = list(lane.queue)
    position = next(index for index, waiting in enumerate(queue) if waiting.run == event.run)
    found = queue.pop(position)
    if isinstance(event, Move):
        # Clamp the position to the queue: `insert` would count a negative one from the end.
        queue.insert(min(max(0, event.position), len(queue)), found)
    else:
        queue.insert(position, Waiting(event.run, event.delivery))
    return replace(lane, queue=tuple(queue)), ()


def _finish(lane: Lane, event: Finish) -> Step:
    outcome: Outcome = event.outcome
    if lane.head is not None and lane.head.cause is not None:
        outcome = "cancelled" if lane.head.cause == "cancel" else "interrupted"
    ends = (End(event.run, outcome), *(End(run, outcome, host=event.run) for run in lane.folded))
    if not lane.queue:
        return Lane(closing=lane.closing), ends
    # A closing lane has no queue: its waiting runs were parked and later ones refused.
    following, *rest = lane.queue
    return Lane(Head(following.run), queue=tuple(rest)), (*ends, Spawn(following.run))


def _close(lane: Lane, _: Shutdown) -> Step:
    stopped, effects = _stop_head(lane, "shutdown")
    return replace(stopped, queue=(), closing=True), effects + tuple(Park(waiting.run) for waiting in lane.queue)


def _park(lane: Lane, _: Shutdown) -> Step:
    # A head that has not entered has done nothing yet, so it continues at the next start like a waiting run.
    return Lane(closing=True), tuple(Park(run) for run in members(lane))


def _stop_head(lane: Lane, cause: Cause) -> Step:
    """Stop the head. No-op without a head or if it is stopping; a head not yet entered is interrupted by Enter."""
    head = lane.head
    if head is None or head.phase == "cancelling":
        return lane, ()
    effects = (Interrupt(head.run),) if head.phase == "active" else ()
    return replace(lane, head=Head(head.run, "cancelling", cause)), effects


_HEAD_EVENTS = (Enter, StepBoundary, Finish)  # Events of the head's task; illegal from any other run.
_COLUMNS = ("idle", "accepted", "active", "cancelling")

# fmt: off
RULES: Mapping[type[LaneEvent], tuple[Rule, Rule, Rule, Rule]] = {
    # head:        idle        accepted     active       cancelling
    Accept:       (_start,     _wait,       _wait,       _wait),
    Enter:        (_illegal,   _activate,   _illegal,    _interrupt),
    StepBoundary: (_illegal,   _illegal,    _fold,       _ignore),
    Cancel:       (_ignore,    _cancel,     _cancel,     _cancel),
    CancelRun:    (_ignore,    _cancel_run, _cancel_run, _cancel_run),
    ClearQueue:   (_ignore,    _clear,      _clear,      _clear),
    Move:         (_rearrange, _rearrange,  _rearrange,  _rearrange),
    Redeliver:    (_rearrange, _rearrange,  _rearrange,  _rearrange),
    Finish:       (_illegal,   _finish,     _finish,     _finish),
    Shutdown:     (_close,     _park,       _close,      _close),
}
# fmt: on
