"""Runs before they start: admitted, removed, moved in the queue, redelivered."""

from typing import assert_never

import msgspec

from holdfast.domain.events import Change, RunEvent
from holdfast.domain.ids import RunId
from holdfast.domain.runs import Run
from holdfast.domain.store_operations import Admit, Redeliver, RemoveRun, Reorder, RunRecord
from holdfast.storage.operations.cancels import request_cancel, withdraw_cancel
from holdfast.storage.operations.write_context import Context, Refused

__all__ = ["perform"]


def perform(operation: Admit | RemoveRun | Reorder | Redeliver, context: Context) -> None:
    """Apply the operation. Only runs that have not started can be moved or redelivered."""
    match operation:
        case Admit():
            _admit(operation, context)
        case RemoveRun():
            _remove(operation, context)
        case Reorder():
            _reorder(operation, context)
        case Redeliver(run_id=run_id, delivery=delivery):
            run = msgspec.structs.replace(_require_movable(run_id, context), delivery=delivery)
            context.put_run(run)
            context.add_run_event("updated", run)
        case _:
            assert_never(operation)


def _admit(operation: Admit, context: Context) -> None:
    runs = context.tables.runs
    is_taken, is_known, ahead = context.tables.admission(operation.run.run_id, operation.run.session_id)
    if is_taken:
        raise Refused("run_exists")
    if not is_known:
        raise Refused("unknown_session")
    if ahead and operation.run.delivery == "reject":
        # The lane would refuse it too, but only after it was stored: a crash in between would start it.
        raise Refused("busy")
    others = runs.open_in(operation.run.session_id) if operation.run.delivery == "interrupt" else []
    run = msgspec.structs.replace(
        operation.run,
        number=context.next_number,
        position=ahead,
        state="waiting" if ahead else "accepted",
    )
    runs.add(RunRecord(run, operation.body_hash, operation.attachments, operation.brief))
    context.add_event(RunEvent(Change("created", run)))
    context.include_run(run)
    # The cancels of an interrupt are stored with it: recovery must not resume the runs that it cancelled.
    for other in others:
        request_cancel(other, run.client_id, context)


def _remove(operation: RemoveRun, context: Context) -> None:
    """Remove a run. A run that has ended is kept, because its end is its last event."""
    run = context.tables.runs.get(operation.run_id)
    if run is None or run.outcome is not None:
        return
    context.tables.runs.delete(operation.run_id)
    context.add_run_event("deleted", run)
    for other in operation.spared:
        withdraw_cancel(other, context)


def _reorder(operation: Reorder, context: Context) -> None:
    """Distribute the ranks of the named runs in their new order. Runs that are not named keep theirs."""
    runs = context.tables.runs
    order = tuple(dict.fromkeys(operation.order))
    for run_id in order:
        _require_in_queue(run_id, context)
    moved = _require_movable(operation.moved, context)
    ranks = sorted(runs.rank(run_id) for run_id in order)
    for run_id, rank in zip(order, ranks, strict=True):
        runs.set_rank(run_id, rank)
    context.add_run_event("updated", moved)


def _require_movable(run_id: RunId, context: Context) -> Run:
    """Return a run that waits. The lane of the owner has no cancelled runs; another node knows only the rows."""
    run = _require_in_queue(run_id, context)
    if context.is_input and run.cancel_requested:
        raise Refused("not_waiting")
    return run


def _require_in_queue(run_id: RunId, context: Context) -> Run:
    run = context.tables.runs.get(run_id)
    if run is None or run.state not in {"waiting", "accepted"}:
        raise Refused("not_waiting")
    return run
