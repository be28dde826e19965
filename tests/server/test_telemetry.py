"""Counters and spans: derived from events, exported only if the server's owner enables it, read by real readers."""

import gzip
import http.server
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent

from cli.isolated_home import IsolatedHome, isolated_home
from holdfast.client.sync_client import SyncClient
from holdfast.domain.events import Change, RunComplete, RunCompleteEvent, RunEvent
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.domain.runs import Outcome, Run
from holdfast.server.telemetry.metrics import Family, Metrics, render
from holdfast.server.telemetry.spans import Spans


@pytest.fixture
def owner() -> Iterator[IsolatedHome]:
    with isolated_home() as made:
        yield made


def _set(owner: IsolatedHome, text: str) -> None:
    owner.settings.write_text(owner.settings.read_text() + text)


def _scraped(owner: IsolatedHome) -> tuple[int, str]:
    with SyncClient(owner.where.address) as thin:
        status, body = thin.request("GET", "/metrics")
    return status, body.decode()


# Prometheus


def test_metrics_are_off_unless_owner_enables_them(owner: IsolatedHome) -> None:
    """The file of a project has no influence, trusted or not."""
    (owner.work / "holdfast.toml").write_text("[options]\nmetrics = true\n")
    owner.stdout_of("trust", "--yes")
    owner.stdout_of("run", "words=1")
    status, text = _scraped(owner)
    assert status == 404
    assert "options.metrics" in text


def test_server_activity_is_counted(owner: IsolatedHome) -> None:
    _set(owner, "[options]\nmetrics = true\n")
    owner.serve()
    owner.stdout_of("run", "words=3 tool=ls")
    owner.call("run", "please fail")
    status, text = _scraped(owner)
    assert status == 200
    found = _read(text)
    assert found["holdfast_runs_accepted_total"] == 2
    assert found['holdfast_runs_ended_total{outcome="completed"}'] == 1
    assert found['holdfast_runs_ended_total{outcome="failed"}'] == 1
    assert found['holdfast_runs_ended_total{outcome="cancelled"}'] == 0
    assert found['holdfast_tool_calls_total{tool="ls",result="ok"}'] == 1
    assert found['holdfast_run_seconds_bucket{le="+Inf"}'] == found["holdfast_run_seconds_count"] == 2
    assert found["holdfast_steps_total"] >= 3
    assert found["holdfast_process_resident_memory_bytes"] > 1_000_000
    assert found["holdfast_database_bytes"] > 0
    assert found["holdfast_workspaces_open"] >= 1


def _read(text: str) -> dict[str, float]:
    """Parse strictly: help and type before the first value, every line in its format."""
    values: dict[str, float] = {}
    known = ""
    for line in text.splitlines():
        if match := re.fullmatch(r"# HELP (\w+) \S.*", line):
            known = match[1]
        elif line.startswith("#"):
            assert re.fullmatch(rf"# TYPE {known} (counter|gauge|histogram)", line), line
        else:
            match = re.fullmatch(r'(\w+(?:\{(?:\w+="(?:[^"\\\n]|\\.)*",?)+\})?) (-?[\d.e+-]+)', line)
            assert match is not None, line
            assert match[1].startswith(known)
            assert match[1] not in values
            values[match[1]] = float(match[2])
    assert text.endswith("\n")
    return values


def test_labels_are_escaped() -> None:
    family = Family("x_total", "counter", "A test.").set(1, name='a"b\\c\nd')
    assert render([family]).splitlines()[2] == 'holdfast_x_total{name="a\\"b\\\\c\\nd"} 1'


def _run(step: int) -> RunEvent:
    run = Run(RunId("r"), SessionId("s"), "active", "queue", 0, step=step)
    return RunEvent(Change("updated" if step else "created", run))


def _end(outcome: Outcome) -> RunCompleteEvent:
    return RunCompleteEvent(Change("updated", RunComplete(SessionId("s"), MessageId("m"), RunId("r"), outcome)))


def test_run_durations_are_counted_in_buckets() -> None:
    metrics = Metrics()
    reported = (_run(0), 0.0), (_run(1), 100.0), (_run(2), 103.0), (_run(2), 110.0), (_end("cancelled"), 120.0)
    for event, now in reported:
        metrics.record("/", event, now)
    found = _read(render(metrics.families()))
    assert found['holdfast_run_seconds_bucket{le="15"}'] == 0
    assert found['holdfast_run_seconds_bucket{le="60"}'] == 1
    assert found["holdfast_run_seconds_sum"] == 20
    assert found["holdfast_steps_total"] == 2, "a step is counted once, whatever else is told of its run"


def test_step_is_one_span_despite_other_run_events() -> None:
    spans = Spans()
    reported = (_run(1), 100.0), (_run(2), 103.0), (_run(2), 110.0), (_end("cancelled"), 120.0)
    ended = [span for event, now in reported for span in spans.record("/", event, now)]
    assert [(span.kind, span.start, span.end) for span in ended if span.kind == "step"] == [
        ("step", 100.0, 103.0),
        ("step", 103.0, 120.0),
    ]


# OpenTelemetry


class Collector(http.server.ThreadingHTTPServer):
    """A collector that keeps its requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _CollectorHandler)
        self.spans: list[Sent] = []
        self.resources: dict[str, str] = {}
        self.paths: set[str] = set()


class _CollectorHandler(http.server.BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            raw = gzip.decompress(raw)
        request = ExportTraceServiceRequest.FromString(raw)
        self.server.paths.add(self.path)
        for group in request.resource_spans:
            self.server.resources |= {item.key: item.value.string_value for item in group.resource.attributes}
            for scope in group.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def collector() -> Iterator[Collector]:
    with Collector() as made:
        thread = threading.Thread(target=made.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield made
        finally:
            made.shutdown()
            thread.join()


def test_runs_steps_and_tools_become_spans(owner: IsolatedHome) -> None:
    """Nested, with their outcomes, and without any message text."""
    with collector() as there:
        _set(owner, f'[options]\ntelemetry = "http://127.0.0.1:{there.server_port}"\n')
        server = owner.serve()
        owner.stdout_of("run", "--run-id", "told", "words=3 tool=ls secretword")
        owner.call("run", "--run-id", "broke", "please fail secretword")
        owner.stdout_of("run", "--run-id", "helped", 'tool=agent {"prompt": "words=2"}')
        owner.stdout_of("server", "stop")
        server.wait(30)
        spans = {span.span_id: span for span in there.spans}
    assert there.paths == {"/v1/traces"}
    assert there.resources["service.name"] == "holdfast"
    runs = {_facts(span)["holdfast.run_id"]: span for span in spans.values() if span.name == "invoke_agent"}
    reported, broke = runs["told"], runs["broke"]
    below = [span for span in spans.values() if span.parent_span_id == reported.span_id]
    assert [span.name for span in sorted(below, key=_begin)] == ["chat tour", "chat tour"]
    (tool,) = [span for span in spans.values() if span.name == "execute_tool ls"]
    assert tool.parent_span_id == min(below, key=_begin).span_id
    assert tool.trace_id == reported.trace_id
    assert all(
        _begin(reported) <= _begin(span) <= span.end_time_unix_nano <= reported.end_time_unix_nano for span in below
    )
    assert (_facts(reported)["holdfast.outcome"], reported.status.code) == ("completed", 0)
    assert (_facts(broke)["holdfast.outcome"], broke.status.code) == ("failed", 2)
    assert _facts(reported)["holdfast.workspace"] == str(owner.work)
    (sent,) = [span for span in spans.values() if span.name == "execute_tool agent"]
    helpers = [span for span in runs.values() if span.parent_span_id == sent.span_id]
    assert len(helpers) == 1, "what a helper does stands below the call that sent it"
    assert not any("secretword" in str(span) for span in spans.values())


def _begin(span: Sent) -> int:
    return span.start_time_unix_nano


def _facts(span: Sent) -> dict[str, str]:
    return {item.key: item.value.string_value for item in span.attributes}


def test_server_works_without_telemetry_package(owner: IsolatedHome) -> None:
    _set(owner, '[options]\ntelemetry = "http://127.0.0.1:9"\n')
    code = (
        "import sys; sys.modules['opentelemetry.sdk'] = None; sys.argv = ['holdfast', 'serve']\n"
        "from holdfast.cli.main import main\nmain()"
    )
    process = owner.start(code=code)
    assert process.stderr is not None
    lines = iter(process.stderr.readline, b"")
    assert any(b"holdfast-agent[otel]" in line for line in lines)
    assert owner.stdout_of("run", "words=1") == "word1"
    assert "holdfast-agent[otel]" in owner.stdout_of("doctor", "--area", "telemetry")
