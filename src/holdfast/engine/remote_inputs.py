"""Inputs that other nodes have stored, applied by the owner of a workspace.

Any node accepts prompts, cancels, queue changes, answers and session changes: it stores them in the numbered log, and
the recorder of the owner reads them from there (`Recorder.catch_up`). What an input means for the engine follows from
its stored event; two things are read from the rows, because the events do not contain them: the order of the queue
after a move, and the state after a recovery.

* `run created`: the run is accepted into its lane. A lane that is closing refuses it, and it stays stored for the next
  owner.
* `run updated` with `must_cancel`: the run is cancelled. A cancel of a session is one such event for each of its runs,
  so it covers exactly the runs with a smaller number.
* `run updated` of a waiting run: its delivery may have changed, or the order of the queue.
* an answer to a permission request or to questions resolves the waiting tool call.
* `message created` without a run: a shell command of the user, which an active turn sees after its current step.
* `session deleted`: no run of the session is left; what is kept in memory for it is removed.

During a recovery events are only published and kept. The recovery decides about every run that it finds in the rows;
afterwards the others are accepted, and the cancels and changes are repeated, which has no effect on ended runs.
"""

import asyncio
from collections.abc import Callable, Collection, Sequence

from holdfast.domain.events import (
    DurableEvent,
    MessageEvent,
    PermissionNotificationEvent,
    QuestionNotificationEvent,
    RunEvent,
    SessionEvent,
)
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.runs import Run
from holdfast.domain.store_operations import Entry
from holdfast.engine.approvals import Approvals
from holdfast.engine.engine import Engine
from holdfast.engine.run_lifecycle import Accept, Move, Redeliver

__all__ = ["RemoteInputs"]


class RemoteInputs:
    """Applies inputs of other nodes to the engine, in number order, and publishes their events.

    `on_session_deleted` removes data of a session outside of the store.
    """

    def __init__(
        self, engine: Engine, approvals: Approvals, on_session_deleted: Callable[[SessionId], None] = lambda _: None
    ) -> None:
        self._engine = engine
        self._approvals = approvals
        self._on_session_deleted = on_session_deleted
        self._deferred: list[DurableEvent] | None = []
        """Events since the workspace was opened; None once it is recovered."""

    async def apply(self, entries: Sequence[Entry]) -> None:
        """Apply and publish stored inputs. Raises `StorageError` before any is applied."""
        order = await self._order() if any(map(_may_rearrange, (entry.event for entry in entries))) else ()
        for entry in entries:
            if self._deferred is None:
                self._apply_or_report(entry.event, order)
            else:
                self._deferred.append(entry.event)
            self._engine.outlet.publish([entry])

    async def start(self, recovered: Collection[RunId]) -> None:
        """Apply the inputs that arrived during the recovery, which has decided about the `recovered` runs.

        They are applied before the first await, so that no later input comes first.
        """
        deferred, self._deferred = self._deferred or [], None
        for event in deferred:
            if not _is_creation_of(event, recovered):
                self._apply_or_report(event, ())
        if any(map(_may_rearrange, deferred)):
            self._rearrange(await self._order())

    async def _order(self) -> Sequence[Run]:
        return await self._engine.run_context.ledger.open_runs(self._engine.record.id)

    def _apply_or_report(self, event: DurableEvent, order: Sequence[Run]) -> None:
        try:
            self._apply(event, order)
        except Exception as error:
            # The other inputs must not be lost.
            context = {"message": "an input of another node could not be applied", "exception": error}
            asyncio.get_running_loop().call_exception_handler(context)

    def _apply(self, event: DurableEvent, order: Sequence[Run]) -> None:
        match event:
            case RunEvent(change=change) if change.type == "created":
                run = change.object
                # The store has refused a `reject` to a busy session.
                delivery = "queue" if run.delivery == "reject" else run.delivery
                self._engine.dispatch(run.session_id, Accept(run.run_id, delivery))
            case RunEvent(change=change) if change.type == "updated" and change.object.must_cancel:
                # A folded run ends with its host, which has a mark of its own.
                if change.object.state != "folded":
                    self._engine.cancel_for_node(change.object.session_id, change.object.run_id)
            case RunEvent(change=change) if _may_rearrange(event):
                self._redeliver(change.object)
                self._rearrange([run for run in order if run.session_id == change.object.session_id])
            case PermissionNotificationEvent(change=change):
                self._approvals.apply_stored_decision(change.object)
            case QuestionNotificationEvent(change=change):
                self._approvals.apply_stored_answers(change.object)
            case MessageEvent(change=change) if change.type == "created" and not change.object.run_id:
                turn = self._engine.turn_of(change.object.session_id)
                if turn is not None:
                    turn.queue_message(change.object)
            case SessionEvent(change=change) if change.type == "deleted":
                self._approvals.forget_sessions((change.object.id,))
                self._on_session_deleted(change.object.id)
            case _:
                pass

    def _redeliver(self, run: Run) -> None:
        queue = self._engine.lane(run.session_id).queue
        if any(item.run == run.run_id and (item.delivery == "steer") != (run.delivery == "steer") for item in queue):
            event = Redeliver(run.run_id, "steer" if run.delivery == "steer" else "queue")
            self._engine.dispatch(run.session_id, event)

    def _rearrange(self, order: Sequence[Run]) -> None:
        """Arrange the queues in the order of the rows."""
        places: dict[SessionId, int] = {}
        for run in order:
            if any(item.run == run.run_id for item in self._engine.lane(run.session_id).queue):
                place = places.setdefault(run.session_id, 0)
                self._engine.dispatch(run.session_id, Move(run.run_id, place))
                places[run.session_id] = place + 1


def _may_rearrange(event: DurableEvent) -> bool:
    """Return whether the event may result from a move or a changed delivery."""
    if not isinstance(event, RunEvent) or event.change.type != "updated":
        return False
    run = event.change.object
    return run.state in ("waiting", "accepted") and not run.must_cancel


def _is_creation_of(event: DurableEvent, runs: Collection[RunId]) -> bool:
    return isinstance(event, RunEvent) and event.change.type == "created" and event.change.object.run_id in runs
