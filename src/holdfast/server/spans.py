"""Runs, steps and calls of tools as spans, made from events alone. Pure.

A run is a span; each of its steps is one below it, and each call of a tool one below its step. What a helper does
stands below the call that sent it. Texts of prompts and answers are not part of any.
"""

from collections.abc import Iterator
from typing import Literal

import msgspec

from holdfast.domain.events import (
    DurableEvent,
    MessageEvent,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    RunComplete,
    RunCompleteEvent,
    RunEvent,
)
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.messages import Message
from holdfast.domain.runs import Run

__all__ = ["Span", "Spans"]

Kind = Literal["run", "step", "tool"]


class Span(msgspec.Struct):
    """From `start` to `end`, in seconds. `error` is empty where all went well."""

    kind: Kind
    name: str
    start: float
    parent: "Span | None" = None
    end: float = 0.0
    error: str = ""
    facts: dict[str, str | int | float | bool] = {}
    notes: list[tuple[float, str, dict[str, str]]] = []


class _Open(msgspec.Struct):
    """A run at work: its span, the step it is in, and the calls of that step."""

    run: Span
    step: Span | None = None
    calls: dict[ToolCallId, Span] = {}
    told: set[tuple[MessageId, ToolCallId]] = set()
    """Calls that have a span already, open or not."""


class Spans:
    """Each event gives the spans that have ended with it."""

    def __init__(self) -> None:
        self._open: dict[RunId, _Open] = {}
        self._senders: dict[SessionId, Span] = {}
        """Of the session of a helper: the call that sent it."""

    def hear(self, path: str, event: DurableEvent, now: float) -> list[Span]:
        match event:
            case RunEvent(payload=change) if change.payload.step:
                return self._stepped(path, change.payload, now)
            case MessageEvent(payload=change) if change.type != "deleted":
                return list(self._said(change.payload, now))
            case RunCompleteEvent(payload=end):
                return list(self._ended(end.payload, now))
            case PermissionRequestEvent(payload=ask):
                self._note(ask.payload.run_id, ask.payload.tool_call_id, now, "permission asked", {})
            case PermissionNotificationEvent(payload=notice) if notice.payload.granted or notice.payload.denied:
                word = {"answer": notice.payload.action or ("allow" if notice.payload.granted else "deny")}
                for open_ in self._open.values():
                    if (call := open_.calls.get(notice.payload.tool_call_id)) is not None:
                        call.notes.append((now, "permission answered", word))
            case _:
                pass
        return []

    def _stepped(self, path: str, run: Run, now: float) -> list[Span]:
        open_ = self._open.get(run.run_id)
        if open_ is None:
            started = run.started_at / 1000 if run.started_at else now
            facts: dict[str, str | int | float | bool] = {
                "holdfast.run_id": run.run_id,
                "holdfast.session_id": run.session_id,
                "holdfast.workspace": path,
                "holdfast.delivery": run.delivery,
                "holdfast.waited_seconds": max(0.0, started - run.accepted_at / 1000),
            }
            sender = self._senders.pop(run.session_id, None)
            parent = sender or getattr(self._open.get(run.parent_run_id), "run", None)
            open_ = self._open[run.run_id] = _Open(
                Span("run", "invoke_agent", started, parent, facts=facts), calls={}, told=set()
            )
        if open_.step is not None and open_.step.facts["holdfast.step"] == run.step:
            # Something else about the run was told: somebody wants it to stop.
            return []
        ended = [_closed(open_.step, now)] if open_.step is not None else []
        open_.step = Span("step", "chat", now, open_.run, facts={"holdfast.step": run.step})
        return ended

    def _said(self, message: Message, now: float) -> Iterator[Span]:
        open_ = self._open.get(message.run_id)
        if open_ is None:
            return
        if message.role == "assistant" and open_.step is not None:
            facts = {"gen_ai.request.model": message.model, "gen_ai.provider.name": message.provider}
            open_.step.facts |= facts
            open_.step.name = f"chat {message.model}"
            open_.run.facts |= facts
        for call in message.tool_calls:
            if call.finished and (message.id, call.id) not in open_.told:
                open_.told.add((message.id, call.id))
                self._began(open_, message, call.id, call.name, now)
        for result in message.tool_results:
            if (span := open_.calls.pop(result.tool_call_id, None)) is not None:
                # What a tool says may hold anything; that it failed is enough.
                yield _closed(span, now, "the tool failed" if result.is_error else "")

    def _began(self, open_: _Open, message: Message, call: ToolCallId, name: str, now: float) -> None:
        facts: dict[str, str | int | float | bool] = {"gen_ai.tool.name": name, "gen_ai.tool.call.id": call}
        span = Span("tool", f"execute_tool {name}", now, open_.step or open_.run, facts=facts, notes=[])
        open_.calls[call] = span
        self._senders[SessionId(f"{message.id}$${call}")] = span

    def _note(self, run: RunId, call: ToolCallId, now: float, text: str, facts: dict[str, str]) -> None:
        open_ = self._open.get(run)
        if open_ is not None and (span := open_.calls.get(call)) is not None:
            span.notes.append((now, text, facts))

    def _ended(self, end: RunComplete, now: float) -> Iterator[Span]:
        open_ = self._open.pop(end.run_id, None)
        if open_ is None:
            return
        error = "" if end.outcome == "completed" else end.error or end.outcome
        for call in open_.calls.values():
            yield _closed(call, now, error)
        if open_.step is not None:
            yield _closed(open_.step, now, error)
        open_.run.facts["holdfast.outcome"] = end.outcome
        # The error of a run is a sentence of ours or of a provider's; a person who is asked to stop is no error.
        yield _closed(open_.run, now, "" if end.outcome == "cancelled" else error)
        ours = [name for name, span in self._senders.items() if _root(span) is open_.run]
        for name in ours:
            del self._senders[name]


def _root(span: Span) -> Span:
    while span.parent is not None and span.kind != "run":
        span = span.parent
    return span


def _closed(span: Span, now: float, error: str = "") -> Span:
    span.end = max(now, span.start)
    span.error = error
    return span
