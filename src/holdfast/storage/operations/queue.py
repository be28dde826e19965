"""Runs before they start: admitted, taken back, moved, given another delivery."""

from typing import assert_never

import msgspec

from holdfast.domain.events import Change, RunEvent
from holdfast.domain.ids import RunId
from holdfast.domain.ledger import Admit, Redeliver, RemoveRun, Reorder, RunRecord
from holdfast.domain.runs import Run
from holdfast.storage.operations.cancels import mark, unmark
from holdfast.storage.operations.context import Context, Refused

__all__ = ["perform"]


def perform(operation: Admit | RemoveRun | Reorder | Redeliver, context: Context) -> None:
    match operation:
        case Admit():
            _admit(operation, context)
        case RemoveRun():
            _remove(operation, context)
        case Reorder():
            _reorder(operation, context)
        case Redeliver(run_id=run_id, delivery=delivery):
            run = msgspec.structs.replace(_waiting(run_id, context), delivery=delivery)
            context.put_run(run)
            context.say_run("updated", run)
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
        # Refused here, and not only by the lane, a prompt leaves nothing behind that a crash could bring back.
        raise Refused("busy")
    others = runs.open_in(operation.run.session_id) if operation.run.delivery == "interrupt" else []
    run = msgspec.structs.replace(
        operation.run,
        number=context.next_number,
        position=ahead,
        state="waiting" if ahead else "accepted",
    )
    runs.add(RunRecord(run, operation.body_hash, operation.attachments, operation.brief))
    context.say(RunEvent(Change("created", run)))
    context.cover(run)
    # What an interrupt cancels is on disk with it: a crash must not take that up again.
    for other in others:
        mark(other, run.client_id, context)


def _remove(operation: RemoveRun, context: Context) -> None:
    """A run that has ended stays: nothing may be said of it after its end."""
    run = context.tables.runs.get(operation.run_id)
    if run is None or run.outcome is not None:
        return
    context.tables.runs.delete(operation.run_id)
    context.say_run("deleted", run)
    for other in operation.spared:
        unmark(other, context)


def _reorder(operation: Reorder, context: Context) -> None:
    runs = context.tables.runs
    order = tuple(dict.fromkeys(operation.order))
    for run_id in order:
        _waiting(run_id, context)
    moved = _waiting(operation.moved, context)
    ranks = sorted(runs.rank(run_id) for run_id in order)
    for run_id, rank in zip(order, ranks, strict=True):
        runs.set_rank(run_id, rank)
    context.say_run("updated", moved)


def _waiting(run_id: RunId, context: Context) -> Run:
    run = context.tables.runs.get(run_id)
    if run is None or run.state not in {"waiting", "accepted"}:
        raise Refused("not_waiting")
    return run
