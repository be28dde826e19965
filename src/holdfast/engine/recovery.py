"""Recovery: ends or requeues the runs that had no end when the server stopped.

Theory of operation. `plan_recovery` is pure and decides from the stored runs alone; `recover` writes its decisions in
one transaction before any run of the workspace starts. A recorded cancel takes precedence. A run that had started ends
`interrupted`, together with the runs folded into it, because its tools may have had effects and repeating them could do
harm. A sub-agent's run ends with its parent. A summary is not repeated. A run that had not started is queued again, in
order. Requests of ended runs for approval are withdrawn.

Recovery consists of ordinary writes and reads nothing but the store, so it can be killed and repeated at any point:
after the transaction the runs have ends, and nothing is left to do. The conversation of each ended run is repaired in
the same transaction. A call that was waiting for permission when the server died is reported as not run, every other
open call as one that may have had effects; the log of approvals tells them apart.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

import msgspec

from holdfast.domain.approvals import PermissionNotification, PermissionRequest, QuestionNotification, QuestionRequest
from holdfast.domain.errors import Conflict
from holdfast.domain.events import (
    Change,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
    decode_event,
)
from holdfast.domain.ids import MessageId, RunId, ToolCallId
from holdfast.domain.messages import Message, text_of
from holdfast.domain.runs import Outcome, Run
from holdfast.domain.store_operations import (
    Announce,
    CloseRequest,
    DeleteMessage,
    EndRun,
    Operation,
    PutMessage,
    Receipt,
    Refusal,
)
from holdfast.engine.engine import Engine
from holdfast.engine.history_repair import TurnEnd, repair, unanswered_calls
from holdfast.engine.message_factory import MessageFactory
from holdfast.engine.run_end import INTERRUPTED, last_answer, merge_messages, notify_hooks
from holdfast.engine.run_lifecycle import Accept

__all__ = ["RecoveryPlan", "UnansweredRequests", "plan_recovery", "recover"]


# Unanswered requests. Pure.

ClosingEvent: TypeAlias = PermissionNotificationEvent | QuestionNotificationEvent

_REQUEST_PREFIXES = (b'{"type":"permission_', b'{"type":"question_')
"""Prefixes of stored events about approvals. All other events, which are the most, are not decoded."""


class UnansweredRequests:
    """Replays stored events to find the unanswered requests of these runs. `not_run` are the calls that certainly had
    no effects: they requested permission before their first action and did not get it.
    """

    def __init__(self, runs: Collection[RunId]) -> None:
        self._runs = runs
        self._open: dict[str, PermissionRequest | QuestionRequest] = {}
        self._calls: dict[str, ToolCallId] = {}
        self.not_run: set[ToolCallId] = set()

    def feed(self, body: bytes) -> None:
        """Add a stored event."""
        if not body.startswith(_REQUEST_PREFIXES):
            return
        match decode_event(body):
            case (PermissionRequestEvent() | QuestionRequestEvent()) as asked:
                request = asked.change.object
                if request.run_id in self._runs:
                    self._open[request.id] = request
                    self._calls[request.id] = request.tool_call_id
                    if isinstance(request, QuestionRequest) or not request.continues:
                        self.not_run.add(request.tool_call_id)
            case PermissionNotificationEvent(change=notice) if notice.object.granted or notice.object.denied:
                self._open.pop(notice.object.id, None)
                if notice.object.granted:
                    self._mark_answered(notice.object.id)
            case QuestionNotificationEvent(change=closed):
                self._open.pop(closed.object.batch_id, None)
                self._mark_answered(closed.object.batch_id)
            case _:
                pass

    def _mark_answered(self, request: str) -> None:
        if request in self._calls:
            self.not_run.discard(self._calls[request])

    def withdrawn(self) -> list[ClosingEvent]:
        """Return the events that withdraw the open requests. They name no client, because none answered."""
        return [_withdrawal(request) for request in self._open.values()]


def _withdrawal(request: PermissionRequest | QuestionRequest) -> ClosingEvent:
    if isinstance(request, QuestionRequest):
        closed = QuestionNotification(request.id, request.session_id, withdrawn=True)
        return QuestionNotificationEvent(Change("created", closed))
    denied = PermissionNotification(
        request.tool_call_id,
        granted=False,
        denied=True,
        id=request.id,
        session_id=request.session_id,
        withdrawn=True,
    )
    return PermissionNotificationEvent(Change("created", denied))


# Plan and execution.

_PAGE_SIZE = 500


class RecoveryPlan(msgspec.Struct, frozen=True):
    """The runs to end with their outcomes, the runs to queue again and, after execution, the withdrawn requests."""

    ends: tuple[tuple[Run, Outcome], ...]
    requeued: tuple[Run, ...]
    withdrawn: tuple[ClosingEvent, ...] = ()

    @property
    def runs(self) -> frozenset[RunId]:
        """Every run that the plan decides about."""
        return frozenset(run.run_id for run in (*(run for run, _ in self.ends), *self.requeued))


def plan_recovery(open_runs: Sequence[Run], hosts: Mapping[RunId, Run]) -> RecoveryPlan:
    """Decide about each open run. `open_runs` are in queue order; `hosts` are ended runs that others were folded
    into.
    """
    outcomes: dict[RunId, Outcome] = {run.run_id: run.outcome for run in hosts.values() if run.outcome}
    ends: list[tuple[Run, Outcome]] = []
    requeued: list[Run] = []
    # A host or a parent is decided before the runs that share its outcome.
    for run in sorted(open_runs, key=lambda run: (bool(run.folded_into), bool(run.parent_run_id))):
        outcome = _outcome(run, outcomes)
        if outcome is None:
            requeued.append(run)
        else:
            outcomes[run.run_id] = outcome
            ends.append((run, outcome))
    return RecoveryPlan(tuple(ends), tuple(requeued))


def _outcome(run: Run, outcomes: Mapping[RunId, Outcome]) -> Outcome | None:
    if run.must_cancel:
        return "cancelled"
    if run.folded_into:
        return outcomes.get(run.folded_into, "interrupted")
    if run.cancel_requested:
        return "cancelled"
    if run.parent_run_id:
        return "cancelled" if outcomes.get(run.parent_run_id) == "cancelled" else "interrupted"
    if run.started_at or run.kind == "summary":
        return "interrupted"
    return None


async def recover(engine: Engine, *, resume: bool = True) -> RecoveryPlan:
    """Execute the plan in one transaction, before any run of the workspace starts. Requeued runs are dispatched if
    `resume`; otherwise they stay stored.
    """
    ledger, workspace = engine.run_context.ledger, engine.record.id
    open_runs = await ledger.open_runs(workspace)
    known = {run.run_id for run in open_runs}
    hosts: dict[RunId, Run] = {}
    for run in open_runs:
        # A host may have ended while the ends of the runs folded into it were not stored.
        if run.folded_into and run.folded_into not in known | hosts.keys():
            record = await ledger.run(workspace, run.folded_into)
            if record is not None:
                hosts[run.folded_into] = record.run
    decided = plan_recovery(open_runs, hosts)
    if decided.ends:
        conversations = {run.run_id: await _messages(engine, run) for run, _ in decided.ends}
        stored: Receipt | None = None
        while stored is None:
            decided, operations = await _end_operations(engine, decided, conversations)
            stored = await _stored(engine, decided.withdrawn, operations)
        notify_hooks(stored, engine.run_context.hooks)
    for run in decided.requeued if resume else ():
        engine.dispatch(run.session_id, Accept(run.run_id, "steer" if run.delivery == "steer" else "queue"))
    return decided


async def _end_operations(
    engine: Engine, decided: RecoveryPlan, conversations: Mapping[RunId, Sequence[Message]]
) -> tuple[RecoveryPlan, list[Operation]]:
    """Return the plan with the requests to withdraw, and the operations that end the runs."""
    operations: list[Operation] = []
    answers: dict[RunId, Message | None] = {}
    unanswered = await _find_unanswered_requests(
        engine, [run for run, _ in decided.ends if unanswered_calls(conversations[run.run_id])]
    )
    for run, outcome in decided.ends:
        repaired, answers[run.run_id] = _repair(engine, run, outcome, conversations[run.run_id], unanswered.not_run)
        operations += repaired
        last = answers.get(run.folded_into or run.run_id)
        operations.append(_end(run, outcome, last, engine.clock.now_ms()))
    return msgspec.structs.replace(decided, withdrawn=tuple(unanswered.withdrawn())), operations


async def _stored(engine: Engine, withdrawn: Sequence[ClosingEvent], operations: Sequence[Operation]) -> Receipt | None:
    """Store the operations. If they are refused, which would be a bug in the repair, store only the ends. None if
    another node has answered a request meanwhile.
    """
    # Without other nodes the withdrawal cannot come second; a request of an old database has no row to close.
    is_shared = engine.recorder.is_shared
    closing: list[Operation] = [CloseRequest(event) if is_shared else Announce(event) for event in withdrawn]
    answer = await engine.recorder.put(*closing, *operations)
    if answer == Refusal("already_closed"):
        return None
    if isinstance(answer, Refusal):
        answer = await engine.recorder.put(*(item for item in operations if isinstance(item, EndRun)))
    if isinstance(answer, Refusal):
        raise Conflict(f"The runs of an earlier server could not be ended: {answer.reason}.")
    return answer


async def _find_unanswered_requests(engine: Engine, runs: Sequence[Run]) -> UnansweredRequests:
    """Read the requests of runs with unanswered calls: only such a call can have an open request."""
    unanswered = UnansweredRequests({run.run_id for run in runs})
    # A request is stored after its run, so older events need not be read.
    cursor = min((run.number for run in runs), default=0)
    while runs and (page := await engine.run_context.ledger.events_after(engine.record.id, cursor, _PAGE_SIZE)):
        for number, body in page:
            unanswered.feed(body)
            cursor = number
    return unanswered


async def _messages(engine: Engine, run: Run) -> Sequence[Message]:
    """Return the messages of a run; none if it never started or was folded, as it then shares its host's."""
    if not run.started_at or run.folded_into:
        return ()
    return await engine.run_context.ledger.messages_of_run(engine.record.id, run.run_id)


def _repair(
    engine: Engine, run: Run, outcome: Outcome, messages: Sequence[Message], not_run: Collection[ToolCallId]
) -> tuple[list[Operation], Message | None]:
    if not run.started_at or run.folded_into:
        return [], None
    now = engine.clock.now_ms() // 1000
    factory = MessageFactory(run.session_id, run.run_id, now, engine.new_id)
    repaired = repair(factory, messages, TurnEnd(outcome, adds_final_message=run.kind == "prompt"), not_run)
    operations: list[Operation] = [PutMessage(message) for message in repaired.put]
    operations += [DeleteMessage(message_id) for message_id in repaired.delete]
    return operations, last_answer(merge_messages(messages, repaired.put), set(repaired.delete))


def _end(run: Run, outcome: Outcome, last: Message | None, at: int) -> EndRun:
    return EndRun(
        run.run_id,
        outcome,
        at,
        error=INTERRUPTED if outcome == "interrupted" else "",
        message_id=last.id if last else MessageId(""),
        text=text_of(last) if last else "",
        folded_into=run.folded_into,
    )
