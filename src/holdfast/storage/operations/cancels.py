"""Asking runs to stop. A mark is set once: the first who asked stays, and it is said once."""

from collections.abc import Iterable
from typing import assert_never

import msgspec

from holdfast.domain.ids import RunId
from holdfast.domain.ledger import CancelRun, CancelSession, ClearQueue
from holdfast.domain.runs import Run
from holdfast.storage.operations.context import Context, Refused

__all__ = ["mark", "perform", "unmark"]


def perform(operation: CancelSession | CancelRun | ClearQueue, context: Context) -> None:
    for run in _covered(operation, context):
        context.cover(run)
        mark(run, operation.by, context)


def mark(run: Run, by: str, context: Context) -> None:
    """Ask the run to stop, unless it has ended or was asked before."""
    if run.cancel_requested or run.outcome is not None:
        return
    marked = msgspec.structs.replace(
        run,
        cancel_requested=True,
        cancelled_by=by,
        state="cancelling" if run.state == "active" else run.state,
    )
    context.put_run(marked)
    context.say_run("updated", marked)


def unmark(run_id: RunId, context: Context) -> None:
    """Take the mark back from a run that has not ended: whoever set it was refused."""
    run = context.tables.runs.get(run_id)
    if run is None or run.outcome is not None or not run.cancel_requested:
        return
    state = "active" if run.state == "cancelling" else run.state
    spared = msgspec.structs.replace(run, cancel_requested=False, cancelled_by="", state=state)
    context.put_run(spared)
    context.say_run("updated", spared)


def _covered(operation: CancelSession | CancelRun | ClearQueue, context: Context) -> Iterable[Run]:
    runs = context.tables.runs
    match operation:
        case CancelSession(session_id=session_id):
            return runs.open_in(session_id)
        case ClearQueue(session_id=session_id, keep=keep):
            waiting = (run for run in runs.open_in(session_id) if run.state in {"waiting", "accepted"})
            return [run for run in waiting if run.run_id not in keep]
        case CancelRun(run_id=run_id):
            run = runs.get(run_id)
            if run is None:
                raise Refused("unknown_run")
            return [run]
        case _:
            assert_never(operation)
