"""Cancel requests. The first request is recorded in the run and published; later ones change nothing.

The owner of a workspace decides about its own cancels together with the ends of its runs. A cancel that another node
stores as an input may meet a run whose end, or fold, the owner has decided and not stored yet. Such a cancel therefore
sets `must_cancel` as well: the store refuses an end or fold that contradicts the response to the cancel, and the owner
decides again.
"""

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
    must_cancel = run.must_cancel or context.is_input
    if run.outcome is not None or (run.cancel_requested and run.must_cancel is must_cancel):
        return
    marked = msgspec.structs.replace(
        run,
        cancel_requested=True,
        cancelled_by=run.cancelled_by if run.cancel_requested else by,
        must_cancel=must_cancel,
        state="cancelling" if run.state == "active" else run.state,
    )
    context.put_run(marked)
    context.add_run_event("updated", marked)


def withdraw_cancel(run_id: RunId, context: Context) -> None:
    """Remove the cancel request from a run that has not ended, because the run that caused it was refused. One that
    another node has reported stays.
    """
    run = context.tables.runs.get(run_id)
    if run is None or run.outcome is not None or not run.cancel_requested or run.must_cancel:
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
            unended = runs.open_in(session_id)
            waiting = [run for run in unended if run.state in {"waiting", "accepted"}]
            if operation.keeps_next and not any(run.state in {"active", "cancelling"} for run in unended):
                waiting = waiting[1:]
            return [run for run in waiting if run.run_id not in keep]
        case CancelRun(run_id=run_id):
            run = runs.get(run_id)
            if run is None:
                raise Refused("unknown_run")
            if context.is_input and run.state == "folded":
                raise Refused("folded")
            return [run]
        case _:
            assert_never(operation)
