"""The state of a workspace as its stored rows and events show it, for a node that does not own it. Pure.

The owner knows more: its lanes decide before the rows change. What is derived here lags by the writes that are under
way, and by the events that this node has not read yet.
"""

from collections.abc import Iterable, Sequence

from holdfast.domain.approvals import PermissionRequest, QuestionRequest
from holdfast.domain.events import (
    DurableEvent,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
    RunCompleteEvent,
    RunEvent,
    SessionEvent,
)
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.runs import Run
from holdfast.engine.run_lifecycle import Head, Lane, Waiting

__all__ = ["OpenRequests", "StoredRuns", "may_rearrange", "queue_of"]


def queue_of(open_runs: Sequence[Run]) -> list[Run]:
    """Return the waiting runs of a session, in order. `open_runs` are its runs without an end, in queue order.

    Without an active run the first one is the head of the lane, although it has not started yet.
    """
    waiting = [run for run in open_runs if run.state in ("waiting", "accepted")]
    if not any(run.state in ("active", "cancelling") for run in open_runs):
        waiting = waiting[1:]
    return [run for run in waiting if not run.cancel_requested]


def may_rearrange(event: DurableEvent) -> bool:
    """Return whether the event may result from a move: the order of the queue has to be read again."""
    return (
        isinstance(event, RunEvent)
        and event.change.type == "updated"
        and event.change.object.state in ("waiting", "accepted")
    )


class StoredRuns:
    """The runs without an end, in queue order, kept up to date with the log."""

    def __init__(self, open_runs: Iterable[Run]) -> None:
        self._runs = {run.run_id: run for run in open_runs}

    def apply(self, event: DurableEvent) -> None:
        """Apply a stored event."""
        match event:
            case RunEvent(change=change) if change.type == "deleted":
                self._runs.pop(change.object.run_id, None)
            case RunEvent(change=change) if change.type == "created" or change.object.run_id in self._runs:
                # Assigning to a key keeps its place. An update does not contain the prompt, which is not needed here.
                self._runs[change.object.run_id] = change.object
            case RunCompleteEvent(change=change):
                self._runs.pop(change.object.run_id, None)
            case _:
                pass

    def arrange(self, order: Sequence[RunId]) -> None:
        """Take over the order of the rows. Runs that it does not name come last."""
        named = {run: self._runs[run] for run in order if run in self._runs}
        self._runs = named | self._runs

    def of_session(self, session: SessionId) -> list[Run]:
        """Return the runs of a session that have no end, in queue order."""
        return [run for run in self._runs.values() if run.session_id == session]

    def is_busy(self, session: SessionId | None = None) -> bool:
        """Return whether the session, or any session, has a run without an end."""
        return any(session in (None, run.session_id) for run in self._runs.values())

    def lane(self, session: SessionId) -> Lane:
        """Return the scheduling state of a session."""
        runs = self.of_session(session)
        own = [run for run in runs if run.state != "folded"]
        if not own:
            return Lane()
        first = next((run for run in own if run.state in ("active", "cancelling")), own[0])
        head = Head(first.run_id, "active" if first.started_at else "accepted")
        if first.cancel_requested:
            head = Head(first.run_id, "cancelling", "cancel")
        waiting = [run for run in queue_of(runs) if run.run_id != first.run_id]
        return Lane(
            head,
            tuple(run.run_id for run in runs if run.state == "folded"),
            tuple(Waiting(run.run_id, "steer" if run.delivery == "steer" else "queue") for run in waiting),
        )


class OpenRequests:
    """The permission requests and batches of questions without an answer, oldest first."""

    def __init__(self) -> None:
        self.permissions: dict[str, PermissionRequest] = {}
        self.questions: dict[str, QuestionRequest] = {}

    def apply(self, event: DurableEvent) -> bool:
        """Apply a stored event. Return True if it closed a batch of questions."""
        match event:
            case PermissionRequestEvent(change=permission):
                self.permissions[permission.object.id] = permission.object
            case QuestionRequestEvent(change=batch):
                self.questions[batch.object.id] = batch.object
            case PermissionNotificationEvent(change=notice) if notice.object.granted or notice.object.denied:
                self.permissions.pop(notice.object.id, None)
            case QuestionNotificationEvent(change=closed):
                return self.questions.pop(closed.object.batch_id, None) is not None
            case SessionEvent(change=change) if change.type == "deleted":
                self._forget(change.object.id)
            case _:
                pass
        return False

    def _forget(self, session: SessionId) -> None:
        self.permissions = {key: item for key, item in self.permissions.items() if item.session_id != session}
        self.questions = {key: item for key, item in self.questions.items() if item.session_id != session}
