"""How runs end: what is written, in one transaction, and in which order it is told."""

from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.domain.errors import HoldfastError, ProviderError, Trouble
from holdfast.domain.events import AgentEvent, AgentNotice, Change, RunCompleteEvent, SessionEvent
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.ledger import DeleteMessage, EndRun, Entry, Operation, PatchSession, PutMessage, Receipt, StartRun
from holdfast.domain.messages import Message, text_of
from holdfast.domain.runs import Outcome
from holdfast.domain.sessions import SessionPatch
from holdfast.engine.history_repair import RepairedTurn, TurnEnd, settle, unanswered
from holdfast.engine.lifecycle import Effect, End
from holdfast.engine.ports import Hooks, Outlet
from holdfast.engine.turn import Turn

__all__ = [
    "INTERRUPTED",
    "announce_ends",
    "bare_end",
    "describe",
    "end_of_turn",
    "end_of_waiting",
    "last_answer",
    "leading_ends",
    "tell_hooks",
    "updated",
]

_NOT_REACHED: frozenset[Trouble] = frozenset({"connection", "not_running", "loading"})
INTERRUPTED = "The server stopped before this run was finished."


def describe(outcome: Outcome, error: BaseException | None) -> TurnEnd:
    """What people are told. A fault of our own names its kind; nobody is shown a traceback."""
    if outcome == "interrupted":
        return TurnEnd(outcome, "Interrupted", INTERRUPTED)
    if outcome != "failed":
        return TurnEnd(outcome)
    if isinstance(error, ProviderError):
        return TurnEnd(outcome, error.title, str(error), error.trouble in _NOT_REACHED)
    if isinstance(error, HoldfastError):
        return TurnEnd(outcome, "Error", str(error))
    kind = type(error).__name__ if error is not None else "the task was cancelled from outside"
    return TurnEnd(outcome, "Internal error", f"Something in Holdfast broke ({kind}). The log has the details.")


def end_of_turn(turn: Turn, ends: Sequence[End], ending: TurnEnd, at: int) -> list[Operation]:
    """Settle the conversation, then end the run and those folded into it."""
    start = [] if turn.is_started else [StartRun(turn.run.run_id, at)]
    messages = turn.close()
    settled = RepairedTurn()
    if ending.outcome != "completed":
        ending = msgspec.structs.replace(ending, leaves_a_word=turn.run.kind == "prompt")
        not_run = {call.id for call in unanswered(messages)} - turn.acting
        settled = settle(turn.author, messages, ending, not_run)
    # Later requests failed in a run that had already begun its work: that is a failure like any other.
    ending = msgspec.structs.replace(ending, model_unreachable=ending.model_unreachable and turn.step <= 1)
    known = {message.id for message in settled.put}.union(settled.delete)
    last = last_answer(updated(messages, settled.put), set(settled.delete))
    return [
        *start,
        *(PutMessage(message) for message in turn.unstored() if message.id not in known),
        *(PutMessage(message) for message in settled.put),
        *(DeleteMessage(message_id) for message_id in settled.delete),
        *turn.with_cost(turn.parting or (PatchSession(SessionPatch(turn.run.session_id, at // 1000)),)),
        *(_end(end, ending, at, last) for end in ends),
    ]


def end_of_waiting(end: End, at: int) -> Operation:
    """A run cancelled while it waits leaves no messages; its prompt is kept in its row."""
    return EndRun(end.run, end.outcome, at)


def leading_ends(outbox: deque[Effect]) -> Iterator[End]:
    """Ends decided together are stored and told together."""
    while outbox and isinstance(end := outbox[0], End):
        outbox.popleft()
        yield end


def bare_end(end: End, error: BaseException | None, at: int) -> EndRun:
    """Nothing but the end, and why: of a turn that could not be settled."""
    why = describe(end.outcome, error).details
    return EndRun(end.run, end.outcome, at, error=why, folded_into=end.host or RunId(""))


def announce_ends(session: SessionId, outlet: Outlet, hooks: Hooks, receipt: Receipt) -> None:
    """Tell an end: the last message, the session, the error, `run_complete`, and that the turn is over. Then hooks."""
    last = [entry for entry in receipt.entries if isinstance(entry.event, RunCompleteEvent)]
    outlet.publish(entry for entry in receipt.entries if not isinstance(entry.event, RunCompleteEvent))
    for entry in last:
        notice = _error_notice(entry)
        if notice is not None:
            outlet.publish_live(AgentEvent(Change("created", notice)))
    outlet.publish(last)
    finished = AgentNotice("agent_finished", session_id=session, session_title=_title(receipt))
    outlet.publish_live(AgentEvent(Change("created", finished)))
    tell_hooks(receipt, hooks)


def tell_hooks(receipt: Receipt, hooks: Hooks) -> None:
    """Of the ends that everybody else has heard of."""
    for entry in receipt.entries:
        if isinstance(entry.event, RunCompleteEvent):
            hooks.after_run(entry.event.change.object)


def _error_notice(entry: Entry) -> AgentNotice | None:
    if not isinstance(entry.event, RunCompleteEvent):
        return None
    end = entry.event.change.object
    if not end.error or end.cancelled:
        return None
    return AgentNotice("error", error=end.error, run_id=end.run_id, session_id=end.session_id)


def _title(receipt: Receipt) -> str:
    titles = [entry.event.change.object.title for entry in receipt.entries if isinstance(entry.event, SessionEvent)]
    return titles[-1] if titles else ""


def _end(end: End, ending: TurnEnd, at: int, last: Message | None) -> EndRun:
    return EndRun(
        end.run,
        end.outcome,
        at,
        error=ending.details if end.outcome in ("failed", "interrupted") else "",
        message_id=last.id if last else MessageId(""),
        text=text_of(last) if last else "",
        folded_into=end.host or RunId(""),
        model_unreachable=ending.model_unreachable and end.outcome == "failed",
    )


def updated(messages: Sequence[Message], put: Sequence[Message]) -> list[Message]:
    """The conversation with changed messages in their places and new ones at its end."""
    newer = {message.id: message for message in put}
    merged = [newer.pop(message.id, message) for message in messages]
    return [*merged, *newer.values()]


def last_answer(messages: Sequence[Message], removed: set[MessageId]) -> Message | None:
    """The run's answer: its last assistant message, and a summary only if there is nothing else."""
    answers = [message for message in messages if message.role == "assistant" and message.id not in removed]
    plain = [message for message in answers if not message.is_summary_message]
    return (plain or answers)[-1] if answers else None
