"""Spans for runs, steps and tool calls, derived from events alone.

A run is a span; each step is a child of its run, and each tool call a child of its step. The run of a sub-agent is a
child of the call that started it. Spans do not contain the text of prompts and responses. They are built where events
are observed, and a background thread sends them to the collector.
"""

import logging
import queue
import threading
from collections.abc import Iterator
from importlib import import_module
from typing import Literal, Protocol

import msgspec

from holdfast.distribution_names import install_command
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

__all__ = ["MISSING", "Span", "Spans", "Telemetry"]


Kind = Literal["run", "step", "tool"]
MISSING = f"OpenTelemetry is not installed: {install_command('otel')}. Until then no spans are sent."
_CLOSE_TIMEOUT = 5.0
_MAX_QUEUED = 10_000
_log = logging.getLogger("holdfast.server")


class Span(msgspec.Struct):
    """A span from `start` to `end`, in seconds. `error` is empty on success."""

    kind: Kind
    name: str
    start: float
    parent: "Span | None" = None
    end: float = 0.0
    error: str = ""
    facts: dict[str, str | int | float | bool] = {}
    notes: list[tuple[float, str, dict[str, str]]] = []


class _Open(msgspec.Struct):
    """An active run: its span, its current step, and the calls of that step."""

    run: Span
    step: Span | None = None
    calls: dict[ToolCallId, Span] = {}
    reported_calls: set[tuple[MessageId, ToolCallId]] = set()
    """Calls that already have a span, open or not."""


class Spans:
    """Builds spans from events."""

    def __init__(self) -> None:
        self._open: dict[RunId, _Open] = {}
        self._senders: dict[SessionId, Span] = {}
        """For the session of a sub-agent: the call that started it."""

    def record(self, path: str, event: DurableEvent, now: float) -> list[Span]:
        """Process an event and return the spans that end with it."""
        match event:
            case RunEvent(change=change) if change.object.step:
                return self._on_step(path, change.object, now)
            case MessageEvent(change=change) if change.type != "deleted":
                return list(self._on_message(change.object, now))
            case RunCompleteEvent(change=end):
                return list(self._end_run_span(end.object, now))
            case PermissionRequestEvent(change=ask):
                self._note(ask.object.run_id, ask.object.tool_call_id, now, "permission asked", {})
            case PermissionNotificationEvent(change=notice) if notice.object.granted or notice.object.denied:
                answer_facts = {"answer": notice.object.action or ("allow" if notice.object.granted else "deny")}
                for open_ in self._open.values():
                    if (call := open_.calls.get(notice.object.tool_call_id)) is not None:
                        call.notes.append((now, "permission answered", answer_facts))
            case _:
                pass
        return []

    def _on_step(self, path: str, run: Run, now: float) -> list[Span]:
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
                Span("run", "invoke_agent", started, parent, facts=facts), calls={}, reported_calls=set()
            )
        if open_.step is not None and open_.step.facts["holdfast.step"] == run.step:
            # The event reports another change of the run, such as a cancel request.
            return []
        ended = [_close_span(open_.step, now)] if open_.step is not None else []
        open_.step = Span("step", "chat", now, open_.run, facts={"holdfast.step": run.step})
        return ended

    def _on_message(self, message: Message, now: float) -> Iterator[Span]:
        open_ = self._open.get(message.run_id)
        if open_ is None:
            return
        if message.role == "assistant" and open_.step is not None:
            facts = {"gen_ai.request.model": message.model, "gen_ai.provider.name": message.provider}
            open_.step.facts |= facts
            open_.step.name = f"chat {message.model}"
            open_.run.facts |= facts
        for call in message.tool_calls:
            if call.finished and (message.id, call.id) not in open_.reported_calls:
                open_.reported_calls.add((message.id, call.id))
                self._start_tool_span(open_, message, call.id, call.name, now)
        for result in message.tool_results:
            if (span := open_.calls.pop(result.tool_call_id, None)) is not None:
                # The output of a tool may contain anything; only the failure is recorded.
                yield _close_span(span, now, "the tool failed" if result.is_error else "")

    def _start_tool_span(self, open_: _Open, message: Message, call: ToolCallId, name: str, now: float) -> None:
        facts: dict[str, str | int | float | bool] = {"gen_ai.tool.name": name, "gen_ai.tool.call.id": call}
        span = Span("tool", f"execute_tool {name}", now, open_.step or open_.run, facts=facts, notes=[])
        open_.calls[call] = span
        self._senders[SessionId(f"{message.id}$${call}")] = span

    def _note(self, run: RunId, call: ToolCallId, now: float, text: str, facts: dict[str, str]) -> None:
        open_ = self._open.get(run)
        if open_ is not None and (span := open_.calls.get(call)) is not None:
            span.notes.append((now, text, facts))

    def _end_run_span(self, end: RunComplete, now: float) -> Iterator[Span]:
        open_ = self._open.pop(end.run_id, None)
        if open_ is None:
            return
        error = "" if end.outcome == "completed" else end.error or end.outcome
        for call in open_.calls.values():
            yield _close_span(call, now, error)
        if open_.step is not None:
            yield _close_span(open_.step, now, error)
        open_.run.facts["holdfast.outcome"] = end.outcome
        # The error of a run is a message of Holdfast or of a provider. A cancel is not an error.
        yield _close_span(open_.run, now, "" if end.outcome == "cancelled" else error)
        ours = [name for name, span in self._senders.items() if _root(span) is open_.run]
        for name in ours:
            del self._senders[name]


def _root(span: Span) -> Span:
    while span.parent is not None and span.kind != "run":
        span = span.parent
    return span


def _close_span(span: Span, now: float, error: str = "") -> Span:
    span.end = max(now, span.start)
    span.error = error
    return span


class _Collector(Protocol):
    def take(self, span: Span) -> None: ...

    def close(self) -> None: ...


class Telemetry:
    """Builds and sends spans. The thread also imports OpenTelemetry, which is slow. Without a collector spans are
    dropped.
    """

    def __init__(self, endpoint: str) -> None:
        self._endpoint = endpoint
        self._spans = Spans()
        self._ended: queue.Queue[Span | None] = queue.Queue(_MAX_QUEUED)
        self.trouble = ""
        """Reason why no spans are sent."""
        self._thread = threading.Thread(target=self._send, name="holdfast-telemetry", daemon=True)
        self._thread.start()

    def record(self, path: str, event: DurableEvent, now: float) -> None:
        """Queue the spans that end with an event. They are dropped if the queue is full."""
        for span in self._spans.record(path, event, now):
            try:
                self._ended.put_nowait(span)
            except queue.Full:
                return

    def close(self) -> None:
        """Send the queued spans, for a limited time."""
        try:
            self._ended.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(_CLOSE_TIMEOUT)

    def _send(self) -> None:
        try:
            collector: _Collector = import_module("holdfast.server.telemetry.otlp").Collector(self._endpoint)
        except ImportError:
            self.trouble = MISSING
            _log.warning("%s", MISSING)
            return
        try:
            while (span := self._ended.get()) is not None:
                collector.take(span)
        finally:
            collector.close()
