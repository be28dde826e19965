"""Ends of runs: the operations that are stored in one transaction, and the order of publication."""

import asyncio
from collections import deque
from collections.abc import Iterator, Sequence

import msgspec

from holdfast.domain.errors import HoldfastError, ProviderError, StorageError, StorageUnavailable, Trouble
from holdfast.domain.events import AgentEvent, AgentNotice, Change, RunCompleteEvent, SessionEvent
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.messages import Message, text_of
from holdfast.domain.runs import Outcome
from holdfast.domain.sessions import SessionPatch
from holdfast.domain.store_operations import (
    DeleteMessage,
    EndRun,
    Entry,
    Operation,
    PatchSession,
    PutMessage,
    Receipt,
    StartRun,
)
from holdfast.engine.history_repair import RepairedTurn, TurnEnd, repair, unanswered_calls
from holdfast.engine.ports import Hooks, Outlet
from holdfast.engine.run_lifecycle import Effect, End
from holdfast.engine.turn import Turn

__all__ = [
    "INTERRUPTED",
    "EndHold",
    "EndRetries",
    "PendingEnd",
    "announce_ends",
    "describe_end",
    "end_turn_operations",
    "end_waiting_run",
    "last_answer",
    "leading_ends",
    "merge_messages",
    "minimal_end",
    "notify_hooks",
]

_NOT_REACHED: frozenset[Trouble] = frozenset({"connection", "not_running", "loading"})
INTERRUPTED = "The server stopped before this run was finished."


def describe_end(outcome: Outcome, error: BaseException | None) -> TurnEnd:
    """Return title and details of an end for display. An internal error names its exception type, not its traceback."""
    if outcome == "interrupted":
        return TurnEnd(outcome, "Interrupted", INTERRUPTED)
    if outcome != "failed":
        return TurnEnd(outcome)
    if isinstance(error, ProviderError):
        return TurnEnd(outcome, error.title, str(error), error.trouble in _NOT_REACHED)
    if isinstance(error, HoldfastError):
        return TurnEnd(outcome, "Error", str(error))
    kind = type(error).__name__ if error is not None else "the task was cancelled from outside"
    return TurnEnd(outcome, "Internal error", f"Internal error in Holdfast ({kind}). The log has the details.")


def end_turn_operations(turn: Turn, ends: Sequence[End], ending: TurnEnd, at: int) -> list[Operation]:
    """Return the operations that repair the conversation and end the run and the runs folded into it."""
    start = [] if turn.is_started else [StartRun(turn.run.run_id, at)]
    messages = turn.close()
    repaired = RepairedTurn()
    if ending.outcome != "completed":
        ending = msgspec.structs.replace(ending, adds_final_message=turn.run.kind == "prompt")
        not_run = {call.id for call in unanswered_calls(messages)} - turn.running_calls
        repaired = repair(turn.factory, messages, ending, not_run)
    # Only a failure of the first request means that the model cannot be reached.
    ending = msgspec.structs.replace(ending, model_unreachable=ending.model_unreachable and turn.step <= 1)
    known = {message.id for message in repaired.put}.union(repaired.delete)
    last = last_answer(merge_messages(messages, repaired.put), set(repaired.delete))
    return [
        *start,
        *(PutMessage(message) for message in turn.unstored() if message.id not in known),
        *(PutMessage(message) for message in repaired.put),
        *(DeleteMessage(message_id) for message_id in repaired.delete),
        *turn.with_cost(turn.last_operations or (PatchSession(SessionPatch(turn.run.session_id, at // 1000)),)),
        *(_end(end, ending, at, last) for end in ends),
    ]


def end_waiting_run(end: End, at: int) -> Operation:
    """Return the end of a run that was cancelled while it waited. It has no messages; its row keeps the prompt."""
    return EndRun(end.run, end.outcome, at)


def leading_ends(outbox: deque[Effect]) -> Iterator[End]:
    """Remove and return the ends at the front of the outbox: they were decided together and are stored together."""
    while outbox and isinstance(end := outbox[0], End):
        outbox.popleft()
        yield end


def minimal_end(end: End, error: BaseException | None, at: int) -> EndRun:
    """Return the end of a turn whose conversation could not be repaired."""
    why = describe_end(end.outcome, error).details
    return EndRun(end.run, end.outcome, at, error=why, folded_into=end.host or RunId(""))


def announce_ends(session: SessionId, outlet: Outlet, hooks: Hooks, receipt: Receipt) -> None:
    """Publish an end: last message, session, error notice, `run_complete`, `agent_finished`. Then notify the hooks."""
    last = [entry for entry in receipt.entries if isinstance(entry.event, RunCompleteEvent)]
    outlet.publish(entry for entry in receipt.entries if not isinstance(entry.event, RunCompleteEvent))
    for entry in last:
        notice = _error_notice(entry)
        if notice is not None:
            outlet.publish_live(AgentEvent(Change("created", notice)))
    outlet.publish(last)
    finished = AgentNotice("agent_finished", session_id=session, session_title=_title(receipt))
    outlet.publish_live(AgentEvent(Change("created", finished)))
    notify_hooks(receipt, hooks)


def notify_hooks(receipt: Receipt, hooks: Hooks) -> None:
    """Call the hooks for each published end."""
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


def merge_messages(messages: Sequence[Message], put: Sequence[Message]) -> list[Message]:
    """Return the conversation with changed messages in place and new ones appended."""
    newer = {message.id: message for message in put}
    merged = [newer.pop(message.id, message) for message in messages]
    return [*merged, *newer.values()]


def last_answer(messages: Sequence[Message], removed: set[MessageId]) -> Message | None:
    """Return the last assistant message of a run; a summary only if there is no other."""
    answers = [message for message in messages if message.role == "assistant" and message.id not in removed]
    plain = [message for message in answers if not message.is_summary_message]
    return (plain or answers)[-1] if answers else None


_HOLD_SECONDS = 0.002
"""Maximum delay of a cancel's write. A second sync costs about as much."""


class EndHold:
    """Delays the write of a cancel until the ends that it causes are put, so that one sync stores them all.

    `head_finished` is done when the cancelled head has finished: the outbox then stores its end together with those of
    the waiting runs. `ends_put` is done when the recorder has all of these ends: the recorder then commits. Both are
    done after `_HOLD_SECONDS` at the latest, in this order: if the head is slow to stop, the ends of the waiting runs
    are put in the step that `head_finished` resumes, before the recorder resumes.
    """

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.head_finished: asyncio.Future[None] = loop.create_future()
        self.ends_put: asyncio.Future[None] = loop.create_future()
        self._timer = loop.call_later(_HOLD_SECONDS, self.release)

    def finish_head(self) -> None:
        """Let the outbox store the ends."""
        if not self.head_finished.done():
            self.head_finished.set_result(None)

    def release(self) -> None:
        """Let the recorder commit."""
        self._timer.cancel()
        self.finish_head()
        if not self.ends_put.done():
            self.ends_put.set_result(None)


class PendingEnd:
    """An end that was decided and is not stored yet. `stored` is done when it is. A cancel of another node may change
    `end` until then.
    """

    def __init__(self, session: SessionId, end: End) -> None:
        self.session = session
        self.end = end
        self.is_put = False
        """Whether the end was put to the recorder."""
        self.stored: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class EndRetries:
    """Retries of ends that could not be stored, one object per workspace.

    While `has_failed`, no prompt is accepted: its end could not be stored either.
    """

    def __init__(self) -> None:
        self.error: StorageError | None = None
        """The error of the last attempt; None if it succeeded."""
        self._paused: list[asyncio.Future[None]] = []
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def has_failed(self) -> bool:
        """Whether the last attempt failed."""
        return self.error is not None

    def refusal(self) -> StorageUnavailable:
        """Return the error for a prompt that is not accepted: it names the reason, which need not be a full disk."""
        return type(self.error)(str(self.error)) if isinstance(self.error, StorageUnavailable) else StorageUnavailable()

    async def pause(self, seconds: float) -> None:
        """Wait after a failed attempt, until the delay has passed or `retry` is called."""
        _wake(self._waiting)
        await _wait_in(self._paused, seconds)

    def succeed(self) -> None:
        """Record that an end was stored."""
        self.error = None
        _wake(self._waiting)

    async def retry(self, seconds: float) -> bool:
        """Start an attempt at once. Return whether it succeeded within the given time.

        An attempt that fails now may have begun before the disk was freed, so a second one is made.
        """
        for _ in range(2):
            if self.has_failed:
                _wake(self._paused)
                await _wait_in(self._waiting, seconds)
        return not self.has_failed


def _wake(waiters: list[asyncio.Future[None]]) -> None:
    for waiter in waiters:
        if not waiter.done():
            waiter.set_result(None)
    waiters.clear()


async def _wait_in(waiters: list[asyncio.Future[None]], seconds: float) -> None:
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiters.append(waiter)
    try:
        await asyncio.wait([waiter], timeout=seconds)
    finally:
        if waiter in waiters:
            waiters.remove(waiter)
