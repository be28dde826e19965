"""Invariants of a cluster at the end of a random schedule, from what clients saw: responses and events."""

from collections import Counter
from collections.abc import Sequence

from holdfast.domain.events import (
    DurableEvent,
    PermissionNotificationEvent,
    QuestionNotificationEvent,
    RunCompleteEvent,
    RunEvent,
    decode_event,
)
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.messages import Message
from holdfast.domain.runs import Run
from holdfast.testing.conversation_validity import problems_of_session

__all__ = ["ClusterLog", "check_cluster"]


class ClusterLog:
    """The responses and events that clients received from any node."""

    def __init__(self) -> None:
        self.submitted: set[RunId] = set()
        self.accepted: dict[RunId, Run] = {}
        self.covered: set[RunId] = set()
        """Runs that a response to a cancel named."""
        self.stopped_without_store: set[RunId | SessionId] = set()
        """Sessions and runs whose cancel had no response, or that it could not be stored."""
        self.moved: set[RunId] = set()
        self.answered: list[str] = []
        """Requests for which an answer was reported as the first one."""
        self.seen: dict[str, list[tuple[int, bytes]]] = {}
        """The numbered events of each reader, from all nodes that it used."""
        self.messages: dict[SessionId, Sequence[Message]] = {}
        self.newest = 0
        self.gaps = 0
        self.uncertain = 0
        self.refused = 0
        self.takeovers = 0


def check_cluster(log: ClusterLog) -> None:
    """Raise `AssertionError` for a broken promise."""
    assert log.gaps == 0, "R6: a reader got a gap"
    for name, seen in log.seen.items():
        numbers = [number for number, _ in seen]
        assert numbers == list(range(1, log.newest + 1)), f"R6: {name} saw the numbers {numbers} of 1 to {log.newest}"
    first, *others = log.seen.values()
    assert all(other == first for other in others), "R6: two readers saw different events"
    events = [event for _, body in first if isinstance(event := decode_event(body), DurableEvent)]
    ends = _one_end_each(log, events)
    _cancels_hold(log, events, ends)
    _one_at_a_time(events)
    _first_answer_wins(log, events)
    for messages in log.messages.values():
        assert problems_of_session(messages) == [], "R7: the stored conversation is not settled"


def _one_end_each(log: ClusterLog, events: Sequence[DurableEvent]) -> dict[RunId, str]:
    """R1, R2: every accepted run has exactly one end, which is its last event, and starts at most once."""
    ends: dict[RunId, str] = {}
    started: dict[RunId, int] = {}
    created: Counter[RunId] = Counter()
    for event in events:
        if isinstance(event, RunEvent):
            run = event.change.object
            assert run.run_id not in ends, f"R2: an event of {run.run_id} follows its end"
            created[run.run_id] += {"created": 1, "updated": 0, "deleted": -1}[event.change.type]
            if run.started_at:
                assert started.setdefault(run.run_id, run.started_at) == run.started_at, f"{run.run_id} began twice"
        elif isinstance(event, RunCompleteEvent):
            end = event.change.object
            assert end.run_id not in ends, f"R2: run {end.run_id} ended twice"
            ends[end.run_id] = end.outcome
    # A closing owner removes a prompt that it has refused after all.
    assert all(count in (0, 1) for count in created.values()), "R1: a run was accepted twice"
    for run_id in log.accepted:
        assert run_id in ends, f"R1, R2: accepted run {run_id} has no end"
    assert ends.keys() == {run_id for run_id, count in created.items() if count}, "R2: a run has no end"
    assert ends.keys() <= log.submitted, "a run was never submitted"
    return ends


def _cancels_hold(log: ClusterLog, events: Sequence[DurableEvent], ends: dict[RunId, str]) -> None:
    """R3: covered runs neither complete nor fail, and a run is cancelled only by a stored cancel."""
    for run_id in log.covered:
        assert ends[run_id] in ("cancelled", "interrupted"), f"R3: {run_id} was covered by a cancel and {ends[run_id]}"
    marked: set[RunId] = set()
    hosts: dict[RunId, RunId] = {}
    sessions: dict[RunId, SessionId] = {}
    for event in events:
        if isinstance(event, RunEvent):
            run = event.change.object
            marked |= {run.run_id} if run.cancel_requested else set()
            sessions[run.run_id] = run.session_id
            if run.folded_into:
                hosts[run.run_id] = run.folded_into
            assert not (run.must_cancel and event.change.type == "created")
    for run_id, outcome in ends.items():
        host = hosts.get(run_id, run_id)
        if outcome == "cancelled" and log.stopped_without_store.isdisjoint((run_id, host, sessions[run_id])):
            assert marked & {run_id, host}, f"R3: {run_id} was cancelled without a cancel"


def _one_at_a_time(events: Sequence[DurableEvent]) -> None:
    """R8: one active run per session."""
    active: dict[SessionId, RunId] = {}
    for event in events:
        if isinstance(event, RunEvent):
            run = event.change.object
            if run.started_at and not run.folded_into and run.state in ("active", "cancelling"):
                holder = active.setdefault(run.session_id, run.run_id)
                assert holder == run.run_id, f"R8: {run.run_id} began while {holder} was active"
        elif isinstance(event, RunCompleteEvent):
            end = event.change.object
            if active.get(end.session_id) == end.run_id:
                del active[end.session_id]


def _first_answer_wins(log: ClusterLog, events: Sequence[DurableEvent]) -> None:
    """R4: a request is closed once, and at most one client is told that its answer was the first."""
    closed: Counter[str] = Counter()
    for event in events:
        match event:
            case PermissionNotificationEvent(change=change) if change.object.granted or change.object.denied:
                closed[change.object.id] += 1
            case QuestionNotificationEvent(change=change):
                closed[change.object.batch_id] += 1
            case _:
                pass
    assert all(count == 1 for count in closed.values()), "R4: a request was closed twice"
    assert all(count == 1 for count in Counter(log.answered).values()), "R4: two answers were the first"
    assert closed.keys() >= set(log.answered), "R4: an answer is not stored"
