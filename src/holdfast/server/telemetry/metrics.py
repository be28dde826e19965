"""Prometheus metrics of the server. Imported only if the settings enable it.

`Metrics` derives counters from stored events and is pure; `ServerMetrics` adds current values of the server.
"""

import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from holdfast.domain.events import (
    ChangeKind,
    DurableEvent,
    MessageEvent,
    PermissionRequestEvent,
    QuestionRequestEvent,
    RunCompleteEvent,
    RunEvent,
    SessionEvent,
)
from holdfast.domain.ids import RunId, SessionId
from holdfast.domain.messages import Message
from holdfast.server.workspace_manager import WorkspaceManager

if TYPE_CHECKING:
    from holdfast.runtime.workspace_host import WorkspaceHost

__all__ = ["Family", "Metrics", "ServerMetrics", "render"]

_BOUNDS = (1, 5, 15, 60, 300, 900, 3600)
_MAX_SESSIONS = 10_000
"""Number of sessions whose cost is remembered, so that only increases are counted."""

Labels = tuple[tuple[str, str], ...]


class Family:
    """One metric with all its labels: `kind` is counter, gauge or histogram."""

    def __init__(self, name: str, kind: str, text: str) -> None:
        self.name = f"holdfast_{name}"
        self.kind = kind
        self.text = text
        self.values: dict[tuple[str, Labels], float] = {}

    def set(self, value: float, suffix: str = "", **labels: str) -> "Family":
        """Set the value for a combination of labels."""
        self.values[suffix, tuple(labels.items())] = value
        return self


def render(families: Iterable[Family]) -> str:
    """Render the text exposition format, version 0.0.4."""
    lines: list[str] = []
    for family in families:
        lines += [f"# HELP {family.name} {family.text}", f"# TYPE {family.name} {family.kind}"]
        for (suffix, labels), value in family.values.items():
            shown = ",".join(f'{name}="{_escape_label(text)}"' for name, text in labels)
            number = f"{value:.0f}" if float(value).is_integer() else repr(float(value))
            lines.append(f"{family.name}{suffix}{f'{{{shown}}}' if shown else ''} {number}")
    return "\n".join(lines) + "\n"


def _escape_label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Metrics:
    """Counters since the start of the server."""

    def __init__(self) -> None:
        self._accepted = 0
        self._steps = 0
        self._ended: Counter[str] = Counter()
        self._tools: Counter[tuple[str, ...]] = Counter()
        self._answers: Counter[tuple[str, ...]] = Counter()
        self._asks: Counter[str] = Counter()
        self._buckets = [0] * (len(_BOUNDS) + 1)
        self._seconds = 0.0
        self._cost = 0.0
        self._costs: dict[SessionId, float] = {}
        self._at_work: dict[RunId, tuple[float, int]] = {}
        """Start time and current step."""

    def record(self, _: str, event: DurableEvent, now: float) -> None:
        """Count an event. `now` is in seconds, of any monotonic clock."""
        match event:
            case RunEvent(change=change) if change.type == "created":
                self._accepted += 1
            case RunEvent(change=change) if change.object.step:
                # Run events are also published for other changes, such as a cancel request.
                since, step = self._at_work.get(change.object.run_id, (now, 0))
                self._steps += change.object.step - step
                self._at_work[change.object.run_id] = since, change.object.step
            case RunCompleteEvent(change=end):
                self._ended[end.object.outcome] += 1
                self._observe_duration(now - self._at_work.pop(end.object.run_id, (now, 0))[0])
            case MessageEvent(change=message):
                self._count_response(message.type, message.object)
            case SessionEvent(change=session) if session.type != "deleted" and not session.object.parent_session_id:
                self._add_cost(session.object.id, session.object.cost, is_new=session.type == "created")
            case PermissionRequestEvent() | QuestionRequestEvent():
                self._asks["permission" if isinstance(event, PermissionRequestEvent) else "question"] += 1
            case _:
                pass

    def _count_response(self, change: ChangeKind, message: Message) -> None:
        if change == "updated" and message.role == "assistant" and message.finish is not None:
            self._answers[message.provider, message.model] += 1
        if change == "created":
            for result in message.tool_results:
                self._tools[result.name, "error" if result.is_error else "ok"] += 1

    def _observe_duration(self, seconds: float) -> None:
        self._seconds += seconds
        place = next((index for index, bound in enumerate(_BOUNDS) if seconds <= bound), len(_BOUNDS))
        self._buckets[place] += 1

    def _add_cost(self, session: SessionId, cost: float, *, is_new: bool) -> None:
        """Count the increase of a session's cost. Costs from before this server first saw the session are not
        counted.
        """
        known = 0.0 if is_new else self._costs.pop(session, cost)
        self._cost += max(0.0, cost - known)
        self._costs[session] = cost
        while len(self._costs) > _MAX_SESSIONS:
            del self._costs[next(iter(self._costs))]

    def families(self) -> list[Family]:
        """Return all metrics."""
        took = Family("run_seconds", "histogram", "Duration of runs, from their first step to their end.")
        _fill_histogram(took, _BOUNDS, self._buckets, self._seconds)
        outcomes = dict.fromkeys(("completed", "failed", "cancelled", "interrupted"), 0) | self._ended
        return [
            Family("runs_accepted_total", "counter", "Accepted prompts.").set(self._accepted),
            _counter_family(
                "runs_ended_total", "Runs that have ended, by outcome.", ("outcome",), _with_one_label(outcomes)
            ),
            took,
            Family("steps_total", "counter", "Steps of runs, each with one model request.").set(self._steps),
            _counter_family("answers_total", "Responses of models.", ("provider", "model"), self._answers),
            _counter_family("tool_calls_total", "Calls of tools that have a result.", ("tool", "result"), self._tools),
            _counter_family("asks_total", "Approval requests and questions.", ("kind",), _with_one_label(self._asks)),
            Family("cost_dollars_total", "counter", "Cost of responses in dollars.").set(self._cost),
        ]


def _fill_histogram(family: Family, bounds: Sequence[float], buckets: Sequence[int], seconds: float) -> None:
    total = 0
    for bound, count in zip((*map(str, bounds), "+Inf"), buckets, strict=True):
        total += count
        family.set(total, "_bucket", le=bound)
    family.set(seconds, "_sum").set(total, "_count")


def _with_one_label(values: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    return {(name,): value for name, value in values.items()}


def _counter_family(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], int]) -> Family:
    family = Family(name, "counter", text)
    for names, value in sorted(values.items()):
        family.set(value, **dict(zip(labels, names, strict=True)))
    return family


_STARTED = time.time()


class ServerMetrics(Metrics):
    """Metrics of one server."""

    def render_all(self, manager: WorkspaceManager) -> str:
        """Render the counters and the current values."""
        families = [*self.families(), *_now(manager)]
        if manager.host is not None:
            families += _cluster(manager.host)
        return render(families)


def _now(manager: WorkspaceManager) -> list[Family]:
    presence = manager.presence
    clients = {claim for workspace in presence.workspaces.values() for claim in workspace.claims}
    busy = sum(handle.workspace.is_busy() for handle in manager.handles)
    used = resource.getrusage(resource.RUSAGE_SELF)
    families = [
        Family("workspaces_open", "gauge", "Open workspaces.").set(len(manager.handles)),
        Family("workspaces_busy", "gauge", "Workspaces with an active or waiting run.").set(busy),
        Family("clients", "gauge", "Clients with a claim on a workspace.").set(len(clients)),
        Family("database_bytes", "gauge", "Size of the database.").set(_size(manager.data_dir / "holdfast.db")),
        Family("process_cpu_seconds_total", "counter", "CPU time of the server.").set(used.ru_utime + used.ru_stime),
        Family("process_resident_memory_bytes", "gauge", "Memory of the server.").set(_memory(used.ru_maxrss)),
        Family("start_time_seconds", "gauge", "Start time of the server in Unix seconds.").set(_STARTED),
    ]
    descriptors = Path("/proc/self/fd")
    if descriptors.is_dir():
        opened = len(os.listdir(descriptors))
        families.append(Family("process_open_fds", "gauge", "Open descriptors.").set(opened))
    return families


def _cluster(host: "WorkspaceHost") -> list[Family]:
    """Return the metrics of a node of a cluster."""
    view, ledger = host.membership.view, host.ledger
    nodes = len(view.peers) + (view.node is not None)
    evicted = _with_one_label({str(kind): count for kind, count in host.membership.takeovers.items()})
    connections = Family("postgres_connections", "gauge", "Connections to PostgreSQL, by pool and state.")
    waiting = Family("postgres_calls_waiting", "gauge", "Calls that wait for a connection to PostgreSQL, by pool.")
    for name, pool in (("store", ledger.pool), ("cluster", host.cluster.pool)):
        for state, count in zip(("in_use", "idle"), pool.usage, strict=True):
            connections.set(count, pool=name, state=state)
        waiting.set(pool.waiting, pool=name)
    return [
        Family("cluster_nodes", "gauge", "Members of the cluster as this node reads them, itself included.").set(nodes),
        Family("cluster_workspaces_owned", "gauge", "Workspaces that this node owns.").set(len(view.held)),
        Family("cluster_draining", "gauge", "1 while this node drains.").set(host.is_draining),
        _counter_family(
            "cluster_takeovers_total",
            "Nodes that this node has declared dead: by hint (the process has died) or by lease (it was silent).",
            ("kind",),
            evicted,
        ),
        Family("cluster_fenced_writes_total", "counter", "Writes refused because another node had taken over.").set(
            ledger.fenced_writes
        ),
        _wake_up_family(host),
        connections,
        waiting,
    ]


def _wake_up_family(host: "WorkspaceHost") -> Family:
    family = Family("cluster_wakeup_seconds", "histogram", "Time from a wake-up to the handling of its events here.")
    _fill_histogram(family, host.lag.bounds, host.lag.buckets, host.lag.seconds)
    return family


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return 0


def _memory(most: int) -> int:
    """Return the resident memory, or its maximum where the system does not provide it."""
    try:
        pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    except (OSError, ValueError, IndexError):
        return most if sys.platform == "darwin" else most * 1024
    return pages * os.sysconf("SC_PAGE_SIZE")
