"""Invariants of a workspace at the end of a random schedule."""

from collections.abc import Sequence

from holdfast.domain.events import (
    MessageDeltaEvent,
    MessageEvent,
    MessagePartEvent,
    RunCompleteEvent,
    RunEvent,
    decode_event,
)
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.message_merge import grow, text_length
from holdfast.domain.messages import Message
from holdfast.domain.model_requests import ModelRequest
from holdfast.domain.runs import Prompt, Run
from holdfast.testing.conversation_validity import problems_of_request, problems_of_session
from holdfast.testing.harness import Harness

__all__ = ["ClientLog", "check_invariants"]

_ALL = 1_000_000


class ClientLog:
    """The responses that the clients received."""

    def __init__(self) -> None:
        self.accepted: dict[RunId, tuple[Prompt, Run]] = {}
        self.uncertain: set[str] = set()
        """Prompts whose acceptance could not be acknowledged."""
        self.cancelled: set[RunId] = set()
        """Runs that a session cancel reported as covered."""
        self.asked_to_stop: set[RunId] = set()
        """Runs named by a clear, or cancelled individually before they had ended."""
        self.moved: set[SessionId] = set()
        self.unstored_cancel = False
        self.refused = 0
        self.tools = 0


async def check_invariants(
    log_of_clients: ClientLog,
    harnesses: tuple[Harness, Harness],
    sessions: Sequence[SessionId],
    requests: Sequence[ModelRequest],
) -> list[Run]:
    """Raise `AssertionError` for a broken promise; return the stored runs."""
    last = harnesses[-1]
    workspace = last.workspace.record.id
    log = [(number, decode_event(body)) for number, body in await last.ledger.events_after(workspace, 0, _ALL)]
    runs = {run.run_id: run for run in await last.ledger.runs(workspace, None, _ALL, 0)}
    _nothing_is_left(harnesses)
    _published_is_stored(harnesses, log)
    for harness in harnesses:
        _deltas_fit(harness)
    _one_end_each(log_of_clients, runs, log)
    _cancels_hold(log_of_clients, runs)
    _one_at_a_time(runs, log)
    _order_is_kept(log_of_clients, runs, log)
    for session in sessions:
        assert problems_of_session(await last.messages(session)) == [], "R7: the stored conversation is not settled"
    for request in requests:
        assert problems_of_request(request) == [], "R7: a provider would refuse this request"
    steps = sum(run.step for run in runs.values())
    # A provider that failed gets the very same request again.
    sent = len({id(request) for request in requests})
    assert sent <= steps, "a provider request has no stored step"
    return list(runs.values())


def _nothing_is_left(harnesses: Sequence[Harness]) -> None:
    """R11: when idle, the engine holds nothing."""
    for harness in harnesses:
        engine = harness.workspace.engine
        for name in ("_lanes", "_active", "_outboxes", "_folds", "_ends"):
            assert not getattr(engine, name), f"R11: {name} is not empty"


def _published_is_stored(harnesses: Sequence[Harness], log: Sequence[tuple[int, object]]) -> None:
    """R6: the published events are the log, in its order, each event once."""
    published = [
        (number, event) for harness in harnesses for number, event in harness.published.events if number is not None
    ]
    assert [number for number, _ in published] == sorted({number for number, _ in published}), (
        "R6: numbers out of order"
    )
    stored = dict(log)
    for number, event in published:
        assert stored.get(number) == event, f"R6: event {number} was published but is not stored like that"
    assert len(published) == len(log), "R6: stored events were not published"


def _deltas_fit(harness: Harness) -> None:
    """R6: a client that folds its events never meets a gap, and ends with the stored state."""
    messages: dict[MessageId, Message] = {}
    for _, event in harness.published.events:
        match event:
            case MessageEvent(change=change):
                messages[change.object.id] = change.object
            case MessageDeltaEvent(payload=delta):
                message = messages[delta.message_id]
                length = text_length(message.parts[delta.part]) if delta.part < len(message.parts) else None
                assert length is not None, "R6: a delta for an unknown part"
                assert delta.offset <= length, "R6: a delta leaves a hole"
                messages[message.id] = grow(message, [delta])
            case MessagePartEvent(payload=part):
                message = messages[part.message_id]
                assert part.part <= len(message.parts), "R6: a part leaves a hole"
                messages[message.id] = grow(message, [part])
            case _:
                pass


def _one_end_each(log_of_clients: ClientLog, runs: dict[RunId, Run], log: Sequence[tuple[int, object]]) -> None:
    """R1, R2: every accepted run is stored, and ends exactly once, in its last event."""
    for run_id in log_of_clients.accepted:
        assert run_id in runs, f"R1: accepted run {run_id} is not stored"
    for run_id, run in runs.items():
        assert run_id in log_of_clients.accepted or run.prompt in log_of_clients.uncertain, (
            f"{run_id} was never accepted"
        )
        events = [event for _, event in log if _run_of(event) == run_id]
        ends = [event for event in events if isinstance(event, RunCompleteEvent)]
        assert len(ends) == 1, f"R2: run {run_id} ended {len(ends)} times"
        assert events[-1] is ends[0], f"R2: an event of {run_id} follows its end"
        assert ends[0].change.object.outcome == run.outcome, f"R2: the end of {run_id} differs from its row"
        if run.folded_into:
            assert run.outcome == runs[run.folded_into].outcome, f"{run_id} did not share its host's end"


def _cancels_hold(log_of_clients: ClientLog, runs: dict[RunId, Run]) -> None:
    """R3: covered runs did not complete; runs that no cancel covered were not cancelled."""
    for run_id in log_of_clients.cancelled | log_of_clients.asked_to_stop:
        assert run_id in runs, f"R3: {run_id} was named by a cancel, and there is no such run"
        assert runs[run_id].outcome != "completed", f"R3: {run_id} was covered by a cancel and completed"
    interrupting = {
        prompt.session_id for prompt, _ in log_of_clients.accepted.values() if prompt.delivery == "interrupt"
    }
    for run_id, run in runs.items():
        host = runs[run.folded_into] if run.folded_into else run
        if host.outcome == "cancelled" and not host.cancel_requested:
            excused = log_of_clients.unstored_cancel or run.session_id in interrupting or log_of_clients.uncertain
            assert excused, f"R3: {run_id} was cancelled without a cancel"


def _one_at_a_time(runs: dict[RunId, Run], log: Sequence[tuple[int, object]]) -> None:
    """R8: one active run per session, and the end of one is published before the next starts."""
    active: dict[SessionId, RunId] = {}
    for _, event in log:
        if isinstance(event, RunEvent):
            run = event.change.object
            if run.started_at and not run.folded_into and run.state in ("active", "cancelling"):
                holder = active.setdefault(run.session_id, run.run_id)
                assert holder == run.run_id, f"R8: {run.run_id} began while {holder} was active"
        elif isinstance(event, RunCompleteEvent):
            end = event.change.object
            if active.get(end.session_id) == end.run_id:
                del active[end.session_id]
    assert not active, f"R2: still active: {active}"
    assert all(run.outcome for run in runs.values())


def _order_is_kept(log_of_clients: ClientLog, runs: dict[RunId, Run], log: Sequence[tuple[int, object]]) -> None:
    """Runs with a turn of their own start in the order of acceptance, unless they were moved."""
    began: dict[SessionId, list[int]] = {}
    seen: set[RunId] = set()
    for _, event in log:
        if not isinstance(event, RunEvent) or event.change.object.folded_into:
            continue
        run = event.change.object
        if run.started_at and run.run_id not in seen:
            seen.add(run.run_id)
            began.setdefault(run.session_id, []).append(runs[run.run_id].number)
    for session, numbers in began.items():
        if session not in log_of_clients.moved:
            assert numbers == sorted(numbers), f"runs of {session} began out of order: {numbers}"


def _run_of(event: object) -> RunId | None:
    if isinstance(event, RunEvent | RunCompleteEvent):
        return event.change.object.run_id
    return None
