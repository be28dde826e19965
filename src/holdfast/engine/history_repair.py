"""Repairs a conversation that was cut off, so that every provider accepts it. Pure.

Used at the end of every run that did not complete, and by recovery. Afterwards reasoning is closed, each tool call has
exactly one result, and the last assistant message has the reason for which the turn ended.
"""

from collections.abc import Collection, Sequence

import msgspec

from holdfast.domain.ids import MessageId, ToolCallId
from holdfast.domain.messages import (
    Finish,
    FinishPart,
    Message,
    Part,
    ReasoningPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
)
from holdfast.domain.runs import Outcome
from holdfast.engine.message_factory import MessageFactory

__all__ = ["RepairedTurn", "TurnEnd", "finish_for", "repair", "unanswered_calls"]

_CALL_CUT_OFF = {
    "cancelled": "Cancelled by the user. What this call had done by then was not undone.",
    "interrupted": "Interrupted: the server stopped while this call was open. It may have had effects.",
    "failed": "Not finished: the turn failed while this call was open. It may have had effects.",
}
_CALL_NOT_RUN = {
    "cancelled": "Cancelled by the user. This call was not run.",
    "interrupted": "Interrupted: the server stopped before this call was run.",
    "failed": "Not run: the turn failed before this call.",
}


class TurnEnd(msgspec.Struct, frozen=True):
    """The end of a turn. `title` and `details` describe an error to the user."""

    outcome: Outcome
    title: str = ""
    details: str = ""
    model_unreachable: bool = False
    adds_final_message: bool = True
    """Whether a turn without a response gets an empty one with the finish reason; not for manual summaries."""


class RepairedTurn(msgspec.Struct, frozen=True):
    """The messages to store, changed or new, in order, and the messages to delete."""

    put: tuple[Message, ...] = ()
    delete: tuple[MessageId, ...] = ()


def unanswered_calls(messages: Sequence[Message]) -> list[ToolCall]:
    """Return the tool calls without a result."""
    answered = {result.tool_call_id for message in messages for result in message.tool_results}
    return [call for message in messages for call in message.tool_calls if call.id not in answered]


def repair(
    factory: MessageFactory, messages: Sequence[Message], ending: TurnEnd, not_run: Collection[ToolCallId] = frozenset()
) -> RepairedTurn:
    """Return the missing parts of a run's conversation. `not_run` are calls that certainly had no effects."""
    put: list[Message] = []
    delete: list[MessageId] = []
    answered = {result.tool_call_id for message in messages for result in message.tool_results}
    acted = {call.id for call in unanswered_calls(messages) if call.finished}.difference(not_run)
    has_final_message = False
    for message in messages:
        if message.role != "assistant":
            continue
        if message.is_summary_message and message.finish is None and ending.outcome != "failed":
            delete.append(message.id)
            continue
        closed = message
        if message.finish is None:
            closed = _close_message(message, finish_for(ending, factory.now), factory.now)
            put.append(closed)
        has_final_message = closed.finish is not None and closed.finish.reason != "tool_use"
        put.extend(
            _missing_result(factory, call, ending, acted) for call in closed.tool_calls if call.id not in answered
        )
    if not has_final_message and ending.adds_final_message:
        put.append(factory.final_message(finish_for(ending, factory.now)))
    return RepairedTurn(tuple(put), tuple(delete))


def finish_for(ending: TurnEnd, now: int) -> Finish:
    """Return the finish part of a turn that did not complete."""
    if ending.outcome == "cancelled":
        return Finish("canceled", now, "Cancelled")
    if ending.outcome == "interrupted":
        return Finish("error", now, "Interrupted", "The server stopped before this turn was finished.")
    return Finish("error", now, ending.title, ending.details)


def _close_message(message: Message, finish: Finish, now: int) -> Message:
    parts: list[Part] = []
    for part in message.parts:
        match part:
            case ReasoningPart(data=data) if not data.finished_at:
                parts.append(ReasoningPart(msgspec.structs.replace(data, finished_at=now)))
            case ToolCallPart(data=data) if not data.finished:
                parts.append(ToolCallPart(msgspec.structs.replace(data, input="{}", finished=True)))
            case _:
                parts.append(part)
    return msgspec.structs.replace(message, parts=(*parts, FinishPart(finish)))


def _missing_result(factory: MessageFactory, call: ToolCall, ending: TurnEnd, acted: Collection[ToolCallId]) -> Message:
    texts = _CALL_CUT_OFF if call.id in acted else _CALL_NOT_RUN
    text = texts.get(ending.outcome, texts["failed"])
    return factory.tool(ToolResult(call.id, call.name, text, "", is_error=True))
