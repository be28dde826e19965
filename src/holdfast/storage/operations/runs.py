"""Runs from their start to their one end."""

from typing import assert_never

import msgspec

from holdfast.domain.events import Change, RunComplete, RunCompleteEvent
from holdfast.domain.ids import RunId
from holdfast.domain.runs import Run
from holdfast.domain.store_operations import EndRun, FoldRun, StartRun, StepRun
from holdfast.storage.operations.write_context import Context, Refused

__all__ = ["perform"]


def perform(operation: StartRun | FoldRun | StepRun | EndRun, context: Context) -> None:
    """Apply the operation. A run starts once and ends once."""
    match operation:
        case StartRun(run_id=run_id, at=at):
            run = _require_waiting(run_id, context)
            # A run that was cancelled before its start is in the same state as one that was cancelled after it.
            state = "cancelling" if run.cancel_requested else "active"
            _update(msgspec.structs.replace(run, state=state, started_at=at), context)
        case FoldRun(run_id=run_id, host=host, at=at):
            run = _require_waiting(run_id, context)
            if run.must_cancel:
                raise Refused("must_cancel")
            _update(msgspec.structs.replace(run, state="folded", folded_into=host, started_at=at), context)
        case StepRun(run_id=run_id, step=step):
            _update(msgspec.structs.replace(_require_open(run_id, context), step=step), context)
        case EndRun():
            _end(operation, context)
        case _:
            assert_never(operation)


def _update(run: Run, context: Context) -> None:
    context.put_run(run)
    context.add_run_event("updated", run)


def _end(operation: EndRun, context: Context) -> None:
    """End the run. There is no `run updated` event: `run_complete` is the last event with the id of the run."""
    before = _require_open(operation.run_id, context)
    if before.must_cancel and operation.outcome in {"completed", "failed"}:
        raise Refused("must_cancel")
    run = msgspec.structs.replace(
        before,
        state="ended",
        outcome=operation.outcome,
        ended_at=operation.at,
        error=operation.error,
        model_unreachable=operation.model_unreachable,
        message_id=operation.message_id,
        folded_into=operation.folded_into or before.folded_into,
    )
    context.put_run(run)
    complete = RunComplete(
        session_id=run.session_id,
        message_id=run.message_id,
        run_id=run.run_id,
        outcome=operation.outcome,
        text=operation.text,
        error=run.error,
        cancelled=operation.outcome == "cancelled",
        folded_into=run.folded_into,
        model_unreachable=run.model_unreachable,
    )
    context.add_event(RunCompleteEvent(Change("updated", complete)))


def _require_open(run_id: RunId, context: Context) -> Run:
    run = context.tables.runs.get(run_id)
    if run is None:
        raise Refused("unknown_run")
    if run.outcome is not None:
        raise Refused("already_ended")
    return run


def _require_waiting(run_id: RunId, context: Context) -> Run:
    run = _require_open(run_id, context)
    if run.state not in {"waiting", "accepted"}:
        raise Refused("already_started")
    return run
