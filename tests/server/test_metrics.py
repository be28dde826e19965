"""Counters and spans of a sequence of events, including failures, and delivery to observers."""

import logging
import os
import re
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from holdfast.domain.approvals import PermissionNotification, PermissionRequest, QuestionRequest
from holdfast.domain.events import (
    Change,
    ChangeKind,
    DurableEvent,
    LiveEvent,
    MessageEvent,
    PermissionNotificationEvent,
    PermissionRequestEvent,
    QuestionRequestEvent,
    RunComplete,
    RunCompleteEvent,
    RunEvent,
    SessionEvent,
    ToolOutput,
    ToolOutputEvent,
    encode_event,
)
from holdfast.domain.ids import MessageId, RunId, SessionId, ToolCallId
from holdfast.domain.messages import (
    Finish,
    FinishPart,
    Message,
    Part,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
)
from holdfast.domain.runs import Outcome, Run
from holdfast.domain.sessions import Session
from holdfast.domain.settings import Options
from holdfast.domain.store_operations import Entry
from holdfast.server import rotating_log
from holdfast.server.telemetry import metrics as counters
from holdfast.server.telemetry import spans as telemetry
from holdfast.server.telemetry.metrics import Metrics, render
from holdfast.server.telemetry.observers import Observers
from holdfast.server.telemetry.spans import Span, Spans
from planting import assert_every_clause_decides

STEPS = frozenset({"clause", "negation", "comparison", "exit", "branch", "statement", "element"})


def run(step: int, name: str = "r", **more: Any) -> RunEvent:  # noqa: ANN401 - any field of a run
    change: ChangeKind = "updated" if step else "created"
    fields = {"session_id": SessionId("s"), "accepted_at": 90_000, **more}
    return RunEvent(Change(change, Run(RunId(name), state="active", delivery="queue", step=step, **fields)))


def end(outcome: Outcome, name: str = "r", error: str = "") -> RunCompleteEvent:
    return RunCompleteEvent(
        Change("updated", RunComplete(SessionId("s"), MessageId("m"), RunId(name), outcome, error=error))
    )


def message_event(
    change: ChangeKind,
    *parts: Part,
    role: Any = "assistant",  # noqa: ANN401
    name: str = "m",
    of: str = "r",
) -> MessageEvent:
    model = "model" if role == "assistant" else ""
    message = Message(parts, MessageId(name), role, SessionId("s"), model, "provider", 0, 0, run_id=RunId(of))
    return MessageEvent(Change(change, message))


def call(name: str, *, finished: bool = True) -> ToolCallPart:
    return ToolCallPart(ToolCall(ToolCallId(name), f"tool-{name}", "{}", finished))


def result(name: str, *, is_error: bool = False) -> ToolResultPart:
    return ToolResultPart(ToolResult(ToolCallId(name), f"tool-{name}", "secret", "", is_error))


def session(change: ChangeKind, cost: float, name: str = "s", parent: str = "") -> SessionEvent:
    sid, above = SessionId(name), SessionId(parent)
    return SessionEvent(Change(change, Session(sid, above, "", 0, 0, 0, MessageId(""), cost, 0, 0, False, 0)))


def permission_event(of: str, name: str) -> PermissionRequestEvent:
    request = PermissionRequest("p", SessionId("s"), ToolCallId(name), "bash", "", "", {}, "/", run_id=RunId(of))
    return PermissionRequestEvent(Change("created", request))


def resolved_event(name: str, *, granted: bool = False, denied: bool = False, action: str = "") -> DurableEvent:
    notice = PermissionNotification(ToolCallId(name), granted, denied, "p", action=action)
    return PermissionNotificationEvent(Change("created", notice))


DONE = FinishPart(Finish("end_turn", 0))
QUESTION_RESOLVED = QuestionRequestEvent(Change("created", QuestionRequest("q", SessionId("s"), ToolCallId("c"), ())))

COUNTER_CASES: tuple[tuple[DurableEvent, float], ...] = (
    (run(0), 0),
    (run(0, "never"), 0),
    (RunEvent(Change("updated", run(0).change.object)), 50),
    (run(1), 100),
    (run(1, cancel_requested=True), 101),
    (run(3), 103),
    (message_event("created"), 104),
    (message_event("updated"), 104),
    *[(message_event("updated", DONE), 104)] * 3,
    (message_event("updated", DONE, role="user"), 104),
    (message_event("created", DONE), 104),
    (message_event("created", result("a"), result("b", is_error=True), role="tool"), 104),
    (message_event("updated", result("a"), role="tool"), 104),
    (permission_event("r", "a"), 105),
    (permission_event("r", "a"), 105),
    (QUESTION_RESOLVED, 105),
    (resolved_event("a", granted=True), 106),
    (end("completed"), 115),
    (end("failed", "never"), 116),
    (run(1, "again"), 200),
    (end("cancelled", "again"), 260.5),
    (session("updated", 5.0, "old"), 0),
    (session("updated", 5.5, "old"), 0),
    (session("created", 2.0), 0),
    (session("updated", 3.0), 0),
    (session("updated", 2.5), 0),
    (session("updated", 2.75), 0),
    (session("deleted", 9.0), 0),
    (session("created", 7.0, "helper", "s"), 0),
)


def check_counters() -> None:
    metrics = Metrics()
    for event, now in COUNTER_CASES:
        metrics.record("/", event, now)
    text = render(metrics.families())
    pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    found = {name.removeprefix("holdfast_"): float(value) for name, value in pairs}
    buckets = {name: value for name, value in found.items() if "_bucket" in name}
    assert [*buckets.values()] == [1, 1, 2, 2, 3, 3, 3, 3]
    assert re.findall(r'le="([^"]+)"', text) == ["1", "5", "15", "60", "300", "900", "3600", "+Inf"]
    assert {name: value for name, value in found.items() if name not in buckets} == {
        "runs_accepted_total": 2,
        'runs_ended_total{outcome="cancelled"}': 1,
        'runs_ended_total{outcome="completed"}': 1,
        'runs_ended_total{outcome="failed"}': 1,
        'runs_ended_total{outcome="interrupted"}': 0,
        "run_seconds_sum": 75.5,
        "run_seconds_count": 3,
        "steps_total": 4,
        'answers_total{provider="provider",model="model"}': 3,
        'tool_calls_total{tool="tool-a",result="ok"}': 1,
        'tool_calls_total{tool="tool-b",result="error"}': 1,
        'asks_total{kind="permission"}': 2,
        'asks_total{kind="question"}': 1,
        "cost_dollars_total": 0.5 + 2.0 + 1.0 + 0.25,
    }
    kinds = dict(re.findall(r"# TYPE holdfast_(\w+) (\w+)", text))
    assert kinds.pop("run_seconds") == "histogram"
    assert set(kinds.values()) == {"counter"}


def check_costs() -> None:
    """The cost of a bounded number of sessions is remembered; the least recently changed is dropped first."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counters, "_MAX_SESSIONS", 2)
        metrics = Metrics()
        for name, cost in (("a", 1.0), ("b", 1.0), ("a", 2.0), ("c", 1.0), ("a", 4.0), ("b", 9.0), ("a", 4.5)):
            metrics.record("/", session("updated", cost, name), 0)
        assert "holdfast_cost_dollars_total 3.5\n" in render(metrics.families())


def check_all_counters() -> None:
    check_counters()
    check_costs()


def test_each_event_updates_its_counters() -> None:
    equivalent = {
        "case _:; pass -> (nothing)": "there is nothing to do",
    }
    assert_every_clause_decides(Metrics, check_all_counters, equivalent, STEPS - {"statement"} | {"argument"})


# Spans

SPAN_CASES: tuple[tuple[DurableEvent, float], ...] = (
    (run(0), 95),
    (message_event("created", call("x"), of="unknown"), 96),
    (permission_event("unknown", "a"), 96),
    (run(1, started_at=99_000), 100),
    (run(1, started_at=99_000, cancel_requested=True), 101),
    (message_event("created", role="user"), 101),
    (message_event("updated", call("a", finished=False)), 101.5),
    (message_event("updated", call("a"), call("b")), 102),
    (message_event("updated", call("a"), call("b"), DONE), 103),
    (message_event("deleted", call("z")), 103),
    (permission_event("r", "a"), 104),
    (permission_event("r", "other"), 104),
    (resolved_event("a"), 104.5),
    (resolved_event("a", granted=True), 105),
    (resolved_event("b", denied=True), 105),
    (resolved_event("b", granted=True, action="allow_session"), 105),
    (run(1, "h", session_id=SessionId("m$$a"), started_at=0), 106),
    (run(1, "child", session_id=SessionId("s2"), parent_run_id=RunId("r"), started_at=80_000), 106),
    (end("completed", "h"), 107),
    (message_event("created", result("a"), result("nobody"), role="tool"), 108),
    (run(2), 109),
    (message_event("updated", call("a"), call("c"), name="m2"), 110),
    (message_event("created", result("c", is_error=True), role="tool"), 111),
    (run(1, "o", session_id=SessionId("s3")), 111),
    (message_event("created", call("d"), name="m3", of="o"), 111),
    (end("failed", error="It broke."), 112),
    (end("interrupted", "child"), 50),
    (end("completed"), 113),
    (run(1, "late", session_id=SessionId("m2$$a")), 114),
    (end("cancelled", "late"), 115),
    (run(1, "sent", session_id=SessionId("m3$$d")), 116),
    (end("completed", "sent"), 117),
    (message_event("created", result("d"), role="tool", of="o"), 118),
    (end("completed", "o"), 119),
)


def _shown(span: Span) -> tuple[object, ...]:
    parent = span.parent
    above = "" if parent is None else f"{parent.name}:{parent.facts.get('holdfast.run_id', parent.start)}"
    return span.name, span.start, span.end, span.error, above


def check_spans() -> None:
    spans = Spans()
    ended = [span for event, now in SPAN_CASES for span in spans.record("/work", event, now)]
    assert [_shown(span) for span in ended] == [
        ("chat", 106, 107, "", "invoke_agent:h"),
        ("invoke_agent", 106, 107, "", "execute_tool tool-a:102"),
        ("execute_tool tool-a", 102, 108, "", "chat model:100"),
        ("chat model", 100, 109, "", "invoke_agent:r"),
        ("execute_tool tool-c", 110, 111, "the tool failed", "chat model:109"),
        ("execute_tool tool-b", 102, 112, "It broke.", "chat model:100"),
        ("execute_tool tool-a", 110, 112, "It broke.", "chat model:109"),
        ("chat model", 109, 112, "It broke.", "invoke_agent:r"),
        ("invoke_agent", 99, 112, "It broke.", ""),
        ("chat", 106, 106, "interrupted", "invoke_agent:child"),
        ("invoke_agent", 80, 80, "interrupted", "invoke_agent:r"),
        ("chat", 114, 115, "cancelled", "invoke_agent:late"),
        ("invoke_agent", 114, 115, "", ""),
        ("chat", 116, 117, "", "invoke_agent:sent"),
        ("invoke_agent", 116, 117, "", "execute_tool tool-d:111"),
        ("execute_tool tool-d", 111, 118, "", "chat model:111"),
        ("chat model", 111, 119, "", "invoke_agent:o"),
        ("invoke_agent", 111, 119, "", ""),
    ]
    first, second = (span for span in ended if span.name == "execute_tool tool-a")
    assert first.notes == [(104, "permission asked", {}), (105, "permission answered", {"answer": "allow"})]
    assert second.notes == []
    (other,) = (span for span in ended if span.name == "execute_tool tool-b")
    assert [note[2]["answer"] for note in other.notes] == ["deny", "allow_session"]
    model = {"gen_ai.request.model": "model", "gen_ai.provider.name": "provider"}
    whole = next(span for span in ended if span.facts.get("holdfast.run_id") == "r")
    assert whole.facts == {
        "holdfast.run_id": "r",
        "holdfast.session_id": "s",
        "holdfast.workspace": "/work",
        "holdfast.delivery": "queue",
        "holdfast.waited_seconds": 9.0,
        "holdfast.outcome": "failed",
        **model,
    }
    steps = [span.facts for span in ended if span.kind == "step"]
    assert steps[1:3] == [{"holdfast.step": 1, **model}, {"holdfast.step": 2, **model}]
    assert first.facts == {"gen_ai.tool.name": "tool-a", "gen_ai.tool.call.id": "a"}
    assert "secret" not in str(ended)


def test_each_event_begins_or_ends_its_spans() -> None:
    equivalent = {
        "case _:; pass -> (nothing)": "there is nothing to do",
        "open_.step or open_.run -> open_.step": "an open run has a step",
        "message.role == 'assistant' and open_.step is not None -> message.role == 'assistant'": "as above",
    }
    assert_every_clause_decides(Spans, check_spans, equivalent, STEPS)


# Observers


class Outlet:
    """Records published entries together with the metrics at that time."""

    def __init__(self, recorded: list[str]) -> None:
        self.recorded = recorded

    def publish(self, entries: Iterable[Entry]) -> None:
        self.recorded += [f"told {entry.number}" for entry in entries]

    def publish_live(self, event: LiveEvent) -> None:
        self.recorded.append(f"live {event}")


@pytest.mark.parametrize("wanted", [{}, {"metrics": True}], ids=["no observer", "metrics"])
def test_observer_runs_after_readers_and_its_failure_affects_no_reader(
    wanted: dict[str, bool], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An event that cannot be counted is logged; the next event is counted, and every event reaches the readers."""
    watched = Observers(Options(**wanted))  # type: ignore[arg-type]
    assert (watched.metrics is None, watched.telemetry, watched.problems()) == (not wanted, None, ())
    assert (watched.observe is None) == (not wanted)
    if watched.observe is None or watched.metrics is None:
        return
    recorded: list[str] = []
    count = watched.metrics.record

    def observe(path: str, event: DurableEvent, now: float) -> None:
        recorded.append(f"heard in {path}")
        if isinstance(event, SessionEvent):
            raise ValueError("not this one")
        count(path, event, now)

    watched._observers[:] = [observe]
    outlet = watched.observe("/work", Outlet(recorded))
    events: tuple[DurableEvent, ...] = (session("created", 1.0), run(0))
    outlet.publish(Entry(number, event, encode_event(event)) for number, event in enumerate(events))
    assert recorded == ["told 0", "told 1", "heard in /work", "heard in /work"]
    assert "holdfast_runs_accepted_total 1\n" in render(watched.metrics.families())
    assert [record.message for record in caplog.records] == ["an event could not be counted"]
    output = ToolOutput(SessionId("s"), MessageId("m"), ToolCallId("c"), 0, "x")
    outlet.publish_live(ToolOutputEvent(output))
    assert recorded[-1] == f"live {ToolOutputEvent(output)}"
    watched.close()


class HeldCollector:
    """Span collector that the test holds back."""

    def __init__(self, endpoint: str) -> None:
        self.endpoint = endpoint
        self.spans: list[str] = []
        self.begun, self.go_on = threading.Event(), threading.Event()
        self.is_closed = False

    def take(self, span: Span) -> None:
        self.begun.set()
        assert self.go_on.wait(20)
        if span.error:
            raise ValueError(span.error)
        self.spans.append(span.name)

    def close(self) -> None:
        self.is_closed = True


@pytest.fixture
def held_collector(monkeypatch: pytest.MonkeyPatch) -> HeldCollector:
    made = HeldCollector("")
    monkeypatch.setattr(telemetry, "import_module", lambda _: type("Otlp", (), {"Collector": lambda _: made}))
    return made


def test_ended_spans_are_sent_before_server_exits(held_collector: HeldCollector) -> None:
    there = Observers(Options(telemetry="http://127.0.0.1:9"))
    assert there.telemetry is not None
    assert there.observe is not None
    outlet = there.observe("/work", Outlet([]))
    outlet.publish(Entry(0, event, b"") for event in (run(1), run(2), end("completed")))
    held_collector.go_on.set()
    there.close()
    assert (held_collector.spans, held_collector.is_closed) == (["chat", "chat", "invoke_agent"], True)
    assert there.problems() == ()


def test_slow_collector_loses_spans_without_blocking(
    held_collector: HeldCollector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(telemetry, "_MAX_QUEUED", 2)
    there = telemetry.Telemetry("http://127.0.0.1:9")
    there.record("/", run(1), 0)
    there.record("/", run(2), 1)
    assert held_collector.begun.wait(20)
    for step in range(3, 20):
        there.record("/", run(step), step)
    there.close()
    held_collector.go_on.set()
    there._ended.put(None)
    there._thread.join(20)
    assert (len(held_collector.spans), held_collector.is_closed) == (3, True)


def test_failing_collector_is_closed(held_collector: HeldCollector, monkeypatch: pytest.MonkeyPatch) -> None:
    broken: list[object] = []
    monkeypatch.setattr(threading, "excepthook", broken.append)
    there = telemetry.Telemetry("http://127.0.0.1:9")
    held_collector.go_on.set()
    there.record("/", run(1), 0)
    there.record("/", end("failed", error="It broke."), 0)
    there.close()
    assert (held_collector.is_closed, len(broken)) == (True, 1)


def test_missing_package_is_reported(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setitem(sys.modules, "holdfast.server.telemetry.otlp", None)
    there = Observers(Options(telemetry="http://127.0.0.1:9"))
    there.close()
    (finding,) = there.problems()
    assert (finding.area, finding.severity) == ("telemetry", "warning")
    assert "[otel]" in finding.what
    assert "[otel]" in caplog.text


# The log of a server


_EXACT = 5
"""The largest size that is kept."""


def test_log_is_rotated_before_it_exceeds_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Five files are kept. A log other than the one passed as stderr is not changed."""
    path = tmp_path / "server.log"
    monkeypatch.setattr(rotating_log, "MAX_BYTES", 10)
    kept = [os.dup(number) for number in (1, 2)]
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for number in (1, 2):
            os.dup2(file, number)
        with open(2, "w", closefd=False) as stream:
            monkeypatch.setattr(sys, "stderr", stream)
            log = rotating_log.RotatingLog(str(path))
            for number in range(8):
                log.emit(logging.makeLogRecord({"msg": f"line {number}" if number != _EXACT else "123456789"}))
                if number != _EXACT:
                    os.write(1, b"out\n")
            path.rename(tmp_path / "moved")
            path.write_text("of somebody else")
            log.emit(logging.makeLogRecord({"msg": "a line that makes it longer"}))
            log.emit(logging.makeLogRecord({"msg": "and one more"}))
            path.unlink()
            log.emit(logging.makeLogRecord({"msg": "last"}))
    finally:
        for number, before in zip((1, 2), kept, strict=True):
            os.dup2(before, number)
            os.close(before)
        os.close(file)
    assert (tmp_path / "moved").read_text().endswith("longer\nand one more\nlast\n")
    found = {item.name: item.read_text() for item in tmp_path.iterdir() if item.name != "moved"}
    lines = [f"line {number}\nout\n" if number != _EXACT else "123456789\n" for number in range(8)]
    assert found == {f"server.log.{number}": lines[7 - number] for number in range(1, 5)}
    assert {item.stat().st_mode & 0o777 for item in tmp_path.iterdir()} == {0o600}
