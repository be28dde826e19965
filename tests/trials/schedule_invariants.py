"""What must be true of a workspace's life when it is over, whatever happened in it."""

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

__all__ = ["Witness", "judge"]

_ALL = 1_000_000


class Witness:
    """What the clients were told."""

    def __init__(self) -> None:
        self.accepted: dict[RunId, tuple[Prompt, Run]] = {}
        self.uncertain: set[str] = set()
        """Prompts whose acceptance could not be answered."""
        self.cancelled: set[RunId] = set()
        """Runs that a cancel of their session said it covers."""
        self.asked_to_stop: set[RunId] = set()
        """Runs that a clear named, or that were asked to stop by their names and had not ended by then."""
        self.moved: set[SessionId] = set()
        self.unstored_cancel = False
        self.refused = 0
        self.tools = 0


async def judge(
    witness: Witness, worlds: tuple[Harness, Harness], sessions: Sequence[SessionId], requests: Sequence[ModelRequest]
) -> list[Run]:
    """Raises `AssertionError` for a promise that was broken; answers the runs there were."""
    last = worlds[-1]
    workspace = last.workspace.record.id
    log = [(number, decode_event(body)) for number, body in await last.ledger.events_after(workspace, 0, _ALL)]
    runs = {run.run_id: run for run in await last.ledger.runs(workspace, None, _ALL, 0)}
    _nothing_is_left(worlds)
    _told_is_stored(worlds, log)
    for harness in worlds:
        _deltas_fit(harness)
    _one_end_each(witness, runs, log)
    _cancels_hold(witness, runs)
    _one_at_a_time(runs, log)
    _order_is_kept(witness, runs, log)
    for session in sessions:
        assert problems_of_session(await last.messages(session)) == [], "R7: the stored conversation is not settled"
    for request in requests:
        assert problems_of_request(request) == [], "R7: a provider would refuse this request"
    steps = sum(run.step for run in runs.values())
    # A provider that failed gets the very same request again.
    asked = len({id(request) for request in requests})
    assert asked <= steps, "a provider was asked without a step on record"
    return list(runs.values())


def _nothing_is_left(worlds: Sequence[Harness]) -> None:
    """R11: when all is quiet, the engine holds nothing."""
    for harness in worlds:
        engine = harness.workspace.engine
        for name in ("_lanes", "_active", "_outboxes", "_folds", "_ends"):
            assert not getattr(engine, name), f"R11: {name} is not empty"


def _told_is_stored(worlds: Sequence[Harness], log: Sequence[tuple[int, object]]) -> None:
    """R6: what was published is the log, in its order, each event once."""
    told = [(number, event) for harness in worlds for number, event in harness.published.events if number is not None]
    assert [number for number, _ in told] == sorted({number for number, _ in told}), "R6: numbers out of order"
    stored = dict(log)
    for number, event in told:
        assert stored.get(number) == event, f"R6: event {number} was told but is not stored so"
    assert len(told) == len(log), "R6: stored events were not told"


def _deltas_fit(harness: Harness) -> None:
    """R6: a reader that folds what it hears never meets a hole, and ends with what is stored."""
    heard: dict[MessageId, Message] = {}
    for _, event in harness.published.events:
        match event:
            case MessageEvent(change=change):
                heard[change.object.id] = change.object
            case MessageDeltaEvent(payload=delta):
                message = heard[delta.message_id]
                length = text_length(message.parts[delta.part]) if delta.part < len(message.parts) else None
                assert length is not None, "R6: a delta for a part nobody has"
                assert delta.offset <= length, "R6: a delta leaves a hole"
                heard[message.id] = grow(message, [delta])
            case MessagePartEvent(payload=part):
                message = heard[part.message_id]
                assert part.part <= len(message.parts), "R6: a part leaves a hole"
                heard[message.id] = grow(message, [part])
            case _:
                pass


def _one_end_each(witness: Witness, runs: dict[RunId, Run], log: Sequence[tuple[int, object]]) -> None:
    """R1, R2: every accepted run is stored, and ends exactly once, as the last that is said of it."""
    for run_id in witness.accepted:
        assert run_id in runs, f"R1: accepted run {run_id} is not stored"
    for run_id, run in runs.items():
        assert run_id in witness.accepted or run.prompt in witness.uncertain, f"{run_id} was never accepted"
        said = [event for _, event in log if _run_of(event) == run_id]
        ends = [event for event in said if isinstance(event, RunCompleteEvent)]
        assert len(ends) == 1, f"R2: run {run_id} ended {len(ends)} times"
        assert said[-1] is ends[0], f"R2: something was said of {run_id} after its end"
        assert ends[0].change.object.outcome == run.outcome, f"R2: the end of {run_id} differs from its row"
        if run.folded_into:
            assert run.outcome == runs[run.folded_into].outcome, f"{run_id} did not share its host's end"


def _cancels_hold(witness: Witness, runs: dict[RunId, Run]) -> None:
    """R3: what a cancel covered did not complete; what no cancel covered was not cancelled."""
    for run_id in witness.cancelled | witness.asked_to_stop:
        assert run_id in runs, f"R3: {run_id} was named by a cancel, and there is no such run"
        assert runs[run_id].outcome != "completed", f"R3: {run_id} was covered by a cancel and completed"
    interrupting = {prompt.session_id for prompt, _ in witness.accepted.values() if prompt.delivery == "interrupt"}
    for run_id, run in runs.items():
        host = runs[run.folded_into] if run.folded_into else run
        if host.outcome == "cancelled" and not host.cancel_requested:
            excused = witness.unstored_cancel or run.session_id in interrupting or witness.uncertain
            assert excused, f"R3: {run_id} was cancelled by nobody"


def _one_at_a_time(runs: dict[RunId, Run], log: Sequence[tuple[int, object]]) -> None:
    """R8: one active run per session, and the end of one is told before the next begins."""
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


def _order_is_kept(witness: Witness, runs: dict[RunId, Run], log: Sequence[tuple[int, object]]) -> None:
    """Runs with a turn of their own begin in the order in which they were accepted, unless somebody moved them."""
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
        if session not in witness.moved:
            assert numbers == sorted(numbers), f"runs of {session} began out of order: {numbers}"


def _run_of(event: object) -> RunId | None:
    if isinstance(event, RunEvent | RunCompleteEvent):
        return event.change.object.run_id
    return None
