"""What becomes of runs that had no end when the server stopped. The plan is pure; one write carries it out.

A recorded cancel wins. A run that had started ends `interrupted`, with those folded into it; a sub-agent's
run ends with its parent; a summary is not tried again. What they had asked of people is withdrawn with them. Whatever
had not started is queued again, in order.
Nothing is left to do the second time, so it may be killed and done again at any point.
"""

from collections.abc import Collection, Mapping, Sequence

import msgspec

from holdfast.domain.approvals import PermissionNotification, PermissionRequest, QuestionNotification, QuestionRequest
from holdfast.domain.errors import Conflict
from holdfast.domain.events import (
    AskEvent,
    Change,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
    decode_event,
)
from holdfast.domain.ids import MessageId, RunId, ToolCallId
from holdfast.domain.ledger import Announce, DeleteMessage, EndRun, Operation, PutMessage, Receipt, Refusal
from holdfast.domain.messages import Message, text_of
from holdfast.domain.runs import Outcome, Run
from holdfast.engine.engine import Engine
from holdfast.engine.history_repair import TurnEnd, settle, unanswered
from holdfast.engine.lifecycle import Accept
from holdfast.engine.message_factory import MessageFactory
from holdfast.engine.run_end import INTERRUPTED, last_answer, tell_hooks, updated

__all__ = ["RecoveryPlan", "UnansweredRequests", "plan", "recover"]


# What runs had asked of people, and nobody had answered, when their server died. Pure.

_ASKS = (b'{"type":"permission_', b'{"type":"question_')
"""How events about asks begin. Others need not be decoded: most are others."""


class UnansweredRequests:
    """Replays stored events, in order, to find the unanswered requests of these runs, and which of their calls had no
    effects for certain: those that asked before they did anything and were not allowed to.
    """

    def __init__(self, runs: Collection[RunId]) -> None:
        self._runs = runs
        self._open: dict[str, PermissionRequest | QuestionRequest] = {}
        self._calls: dict[str, ToolCallId] = {}
        self.not_run: set[ToolCallId] = set()

    def feed(self, body: bytes) -> None:
        if not body.startswith(_ASKS):
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
                    self._answered(notice.object.id)
            case QuestionNotificationEvent(change=closed):
                self._open.pop(closed.object.batch_id, None)
                self._answered(closed.object.batch_id)
            case _:
                pass

    def _answered(self, request: str) -> None:
        if request in self._calls:
            self.not_run.discard(self._calls[request])

    def withdrawn(self) -> list[AskEvent]:
        """What their own server would have said with the ends of these runs. Nobody answered: it names nobody."""
        return [_withdrawn(request) for request in self._open.values()]


def _withdrawn(request: PermissionRequest | QuestionRequest) -> AskEvent:
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


# What becomes of runs that had no end when the server stopped. The plan is pure; one write carries it out.

_PAGE = 500


class RecoveryPlan(msgspec.Struct, frozen=True):
    """The runs to end, with their outcome, and those to queue again; when it is carried out, what was withdrawn."""

    ends: tuple[tuple[Run, Outcome], ...]
    again: tuple[Run, ...]
    withdrawn: tuple[AskEvent, ...] = ()


def plan(open_runs: Sequence[Run], hosts: Mapping[RunId, Run]) -> RecoveryPlan:
    """`open_runs` in the order in which they are to run; `hosts` are ended runs that others were folded into."""
    outcomes: dict[RunId, Outcome] = {run.run_id: run.outcome for run in hosts.values() if run.outcome}
    ends: list[tuple[Run, Outcome]] = []
    again: list[Run] = []
    # A host, and a parent, is decided before those that follow it.
    for run in sorted(open_runs, key=lambda run: (bool(run.folded_into), bool(run.parent_run_id))):
        outcome = _outcome(run, outcomes)
        if outcome is None:
            again.append(run)
        else:
            outcomes[run.run_id] = outcome
            ends.append((run, outcome))
    return RecoveryPlan(tuple(ends), tuple(again))


def _outcome(run: Run, outcomes: Mapping[RunId, Outcome]) -> Outcome | None:
    if run.folded_into:
        return outcomes.get(run.folded_into, "interrupted")
    if run.cancel_requested:
        return "cancelled"
    if run.parent_run_id:
        return "cancelled" if outcomes.get(run.parent_run_id) == "cancelled" else "interrupted"
    if run.started_at or run.kind == "summary":
        return "interrupted"
    return None


async def recover(engine: Engine, *, goes_on: bool = True) -> RecoveryPlan:
    """Carry the plan out, in one transaction, before any run of the workspace starts. What waits goes on, or stays
    where it is: stored.
    """
    ledger, workspace = engine.run_context.ledger, engine.record.id
    open_runs = await ledger.open_runs(workspace)
    known = {run.run_id for run in open_runs}
    hosts: dict[RunId, Run] = {}
    for run in open_runs:
        if run.folded_into and run.folded_into not in known | hosts.keys():
            record = await ledger.run(workspace, run.folded_into)
            if record is not None:
                hosts[run.folded_into] = record.run
    decided = plan(open_runs, hosts)
    operations: list[Operation] = []
    answers: dict[RunId, Message | None] = {}
    said = {run.run_id: await _messages(engine, run) for run, _ in decided.ends}
    left = await _leftovers(engine, [run for run, _ in decided.ends if unanswered(said[run.run_id])])
    for run, outcome in decided.ends:
        settled, answers[run.run_id] = _settle(engine, run, outcome, said[run.run_id], left.not_run)
        operations += settled
        last = answers.get(run.folded_into or run.run_id)
        operations.append(_end(run, outcome, last, engine.clock.now_ms()))
    if operations:
        decided = msgspec.structs.replace(decided, withdrawn=tuple(left.withdrawn()))
        stored = await _stored(engine, [*map(Announce, decided.withdrawn), *operations])
        tell_hooks(stored, engine.run_context.hooks)
    for run in decided.again if goes_on else ():
        engine.dispatch(run.session_id, Accept(run.run_id, "steer" if run.delivery == "steer" else "queue"))
    return decided


async def _stored(engine: Engine, operations: list[Operation]) -> Receipt:
    """If settling is refused, which nothing here should bring about, the runs end with nothing but their ends."""
    answer = await engine.recorder.put(*operations)
    if isinstance(answer, Refusal):
        answer = await engine.recorder.put(*(item for item in operations if isinstance(item, EndRun)))
    if isinstance(answer, Refusal):
        raise Conflict(f"What an earlier server left could not be ended: {answer.reason}.")
    return answer


async def _leftovers(engine: Engine, runs: Sequence[Run]) -> UnansweredRequests:
    """What runs with unanswered calls had asked: only such a call can have asked."""
    left = UnansweredRequests({run.run_id for run in runs})
    cursor = min((run.number for run in runs), default=0)
    while runs and (page := await engine.run_context.ledger.events_after(engine.record.id, cursor, _PAGE)):
        for number, body in page:
            left.feed(body)
            cursor = number
    return left


async def _messages(engine: Engine, run: Run) -> Sequence[Message]:
    """A run that never started has no conversation; a folded one shares its host's."""
    if not run.started_at or run.folded_into:
        return ()
    return await engine.run_context.ledger.messages_of_run(engine.record.id, run.run_id)


def _settle(
    engine: Engine, run: Run, outcome: Outcome, messages: Sequence[Message], not_run: Collection[ToolCallId]
) -> tuple[list[Operation], Message | None]:
    if not run.started_at or run.folded_into:
        return [], None
    now = engine.clock.now_ms() // 1000
    author = MessageFactory(run.session_id, run.run_id, now, engine.new_id)
    settled = settle(author, messages, TurnEnd(outcome, leaves_a_word=run.kind == "prompt"), not_run)
    operations: list[Operation] = [PutMessage(message) for message in settled.put]
    operations += [DeleteMessage(message_id) for message_id in settled.delete]
    return operations, last_answer(updated(messages, settled.put), set(settled.delete))


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
