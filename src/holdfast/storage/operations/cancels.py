"""Cancel requests. The first request is recorded in the run and published; later ones change nothing."""

from collections.abc import Iterable
from typing import assert_never

import msgspec

from holdfast.domain.ids import RunId
from holdfast.domain.runs import Run
from holdfast.domain.store_operations import CancelRun, CancelSession, ClearQueue
from holdfast.storage.operations.write_context import Context, Refused

__all__ = ["perform", "request_cancel", "withdraw_cancel"]


def perform(operation: CancelSession | CancelRun | ClearQueue, context: Context) -> None:
    """Apply the operation. The receipt names the runs that it covers."""
    for run in _runs_to_cancel(operation, context):
        context.include_run(run)
        request_cancel(run, operation.by, context)


def request_cancel(run: Run, by: str, context: Context) -> None:
    """Record a cancel request, unless the run has ended or has one already."""
    if run.cancel_requested or run.outcome is not None:
        return
    marked = msgspec.structs.replace(
        run,
        cancel_requested=True,
        cancelled_by=by,
        state="cancelling" if run.state == "active" else run.state,
    )
    context.put_run(marked)
    context.add_run_event("updated", marked)


def withdraw_cancel(run_id: RunId, context: Context) -> None:
    """Remove the cancel request from a run that has not ended, because the run that caused it was refused."""
    run = context.tables.runs.get(run_id)
    if run is None or run.outcome is not None or not run.cancel_requested:
        return
    state = "active" if run.state == "cancelling" else run.state
    spared = msgspec.structs.replace(run, cancel_requested=False, cancelled_by="", state=state)
    context.put_run(spared)
    context.add_run_event("updated", spared)


def _runs_to_cancel(operation: CancelSession | CancelRun | ClearQueue, context: Context) -> Iterable[Run]:
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
