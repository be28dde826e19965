"""Reference model of a stored workspace after recovery, used by `test_recovery_model`."""

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec

from holdfast.domain.events import (
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionNotificationEvent,
    QuestionRequestEvent,
    decode_event,
)
from holdfast.domain.ids import RunId, SessionId, ToolCallId
from holdfast.domain.messages import (
    FinishPart,
    Message,
    Part,
    ReasoningPart,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    text_of,
)
from holdfast.domain.runs import Outcome, Run
from holdfast.testing.harness import Harness

Shape: TypeAlias = tuple[object, ...]
"""A message without its id and times."""


class Stored(msgspec.Struct, frozen=True):
    """Everything stored about a workspace."""

    messages: dict[SessionId, list[Message]]
    runs: dict[RunId, Run]
    waiting: list[RunId]
    bodies: list[bytes]


async def read_stored(harness: Harness) -> Stored:
    ledger, workspace = harness.ledger, harness.workspace.record.id
    sessions = [item.id for item in (await ledger.snapshot(workspace, None)).sessions]
    runs = {run.run_id: run for run in await ledger.runs(workspace, None, 10_000, 0)}
    waiting = [run.run_id for run in await ledger.open_runs(workspace)]
    messages = {session: list(await ledger.messages(workspace, session)) for session in sessions}
    bodies = [body for _, body in await ledger.events_after(workspace, 0, 100_000)]
    return Stored(messages, runs, waiting, bodies)


class Request(msgspec.Struct):
    """A request to a user: its call, its effects before the request, and how it was closed."""

    run: RunId
    call: ToolCallId
    continues: bool
    closings: list[str]


def requests_in(bodies: Sequence[bytes]) -> dict[str, Request]:
    found: dict[str, Request] = {}
    for body in bodies:
        match decode_event(body):
            case PermissionRequestEvent(change=change):
                request = change.object
                found[request.id] = Request(request.run_id, request.tool_call_id, request.continues, [])
            case QuestionRequestEvent(change=batch):
                found[batch.object.id] = Request(batch.object.run_id, batch.object.tool_call_id, False, [])
            case PermissionNotificationEvent(change=notice) if notice.object.granted or notice.object.denied:
                how = "granted" if notice.object.granted else "denied"
                found[notice.object.id].closings.append("withdrawn" if notice.object.withdrawn else how)
            case QuestionNotificationEvent(change=closed):
                found[closed.object.batch_id].closings.append("withdrawn" if closed.object.withdrawn else "answered")
            case _:
                pass
    return found


def outcome_of(run: Run, runs: Mapping[RunId, Run]) -> Outcome | None:
    """Return None if the run stays queued and is requeued by recovery."""
    if run.outcome is not None:
        return run.outcome
    if run.folded_into:
        return outcome_of(runs[run.folded_into], runs) or "interrupted"
    if run.cancel_requested:
        return "cancelled"
    if run.parent_run_id:
        parent = runs[run.parent_run_id]
        return "cancelled" if parent.outcome is None and outcome_of(parent, runs) == "cancelled" else "interrupted"
    return "interrupted" if run.started_at or run.kind == "summary" else None


def conversation_after(before: Stored, session: SessionId) -> list[Shape]:
    """Return the repaired conversation: every response has an end, every call a result, a turn that was cut off has its
    finish reason.
    """
    requests = requests_in(before.bodies).values()
    unallowed = {
        item.call for item in requests if not item.continues and item.closings not in (["granted"], ["answered"])
    }
    kept: list[Shape] = []
    added: list[Shape] = []
    ended: dict[RunId, bool] = {}
    for message in before.messages[session]:
        run = before.runs.get(message.run_id)
        outcome = None if run is None or run.outcome is not None else outcome_of(run, before.runs)
        if run is None or outcome is None or message.role != "assistant":
            kept.append(shape(message))
            continue
        if message.is_summary_message and message.finish is None:
            continue
        reason = {"cancelled": ("canceled", "Cancelled"), "interrupted": ("error", "Interrupted")}[outcome]
        parts = [part_of(part, closed=message.finish is None) for part in message.parts]
        if message.finish is None:
            parts.append(("finish", *reason))
        kept.append((message.role, message.run_id, message.is_summary_message, *parts))
        ended[run.run_id] = message.finish is None or message.finish.reason != "tool_use"
        answered = {result.tool_call_id for item in before.messages[session] for result in item.tool_results}
        for call in message.tool_calls:
            if call.id not in answered:
                acted = call.finished and call.id not in unallowed
                added.append(
                    ("tool", run.run_id, False, ("result", call.id, call.name, True, acted), ("finish", "stop", ""))
                )
    for run in before.runs.values():
        is_cut = run.session_id == session and run.outcome is None and run.started_at and not run.folded_into
        outcome = outcome_of(run, before.runs)
        if is_cut and outcome is not None and run.kind == "prompt" and not ended.get(run.run_id):
            reason = {"cancelled": ("canceled", "Cancelled"), "interrupted": ("error", "Interrupted")}[outcome]
            added.append(("assistant", run.run_id, False, ("finish", *reason)))
    return kept + added


def shape(message: Message) -> Shape:
    parts = (part_of(part, closed=False) for part in message.parts)
    return (message.role, message.run_id, message.is_summary_message, *parts)


def part_of(part: Part, *, closed: bool) -> Shape:
    """Return a part without its times; `closed` returns it as it is once nothing is added any more."""
    match part:
        case TextPart(data=text):
            return ("text", text.text)
        case ReasoningPart(data=thought):
            return ("reasoning", thought.thinking, thought.signature, closed or bool(thought.finished_at))
        case ToolCallPart(data=call):
            is_cut = closed and not call.finished
            return ("call", call.id, call.name, "{}" if is_cut else call.input, call.finished or closed)
        case ToolResultPart(data=result):
            # What counts is that the model learns that the call may have had effects.
            had_effects = "may have had effects" in result.content or "was not undone" in result.content
            is_cut = result.is_error and ("Interrupted" in result.content or "Cancelled" in result.content)
            return ("result", result.tool_call_id, result.name, result.is_error, had_effects if is_cut else None)
        case FinishPart(data=finish):
            return ("finish", finish.reason, finish.message)
        case _:
            return (type(part).__name__,)


def answer_after(messages: Sequence[Message], run: Run) -> tuple[str, str]:
    """Return id and text of the last response of a turn; a summary only if there is no other."""
    mine = [item for item in messages if item.run_id == (run.folded_into or run.run_id) and item.role == "assistant"]
    plain = [item for item in mine if not item.is_summary_message]
    last = (plain or mine)[-1:]
    return (last[0].id, text_of(last[0])) if last else ("", "")
