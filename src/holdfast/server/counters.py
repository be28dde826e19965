"""Prometheus counters, derived from events. Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping

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

__all__ = ["Family", "Metrics", "render"]

_BOUNDS = (1, 5, 15, 60, 300, 900, 3600)
_KEPT = 10_000
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
            shown = ",".join(f'{name}="{_escaped(text)}"' for name, text in labels)
            number = f"{value:.0f}" if float(value).is_integer() else repr(float(value))
            lines.append(f"{family.name}{suffix}{f'{{{shown}}}' if shown else ''} {number}")
    return "\n".join(lines) + "\n"


def _escaped(text: str) -> str:
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

    def hear(self, _: str, event: DurableEvent, now: float) -> None:
        """Count an event. `now` is in seconds, of any monotonic clock."""
        match event:
            case RunEvent(payload=change) if change.type == "created":
                self._accepted += 1
            case RunEvent(payload=change) if change.payload.step:
                # Run events are also published for other changes, such as a cancel request.
                since, step = self._at_work.get(change.payload.run_id, (now, 0))
                self._steps += change.payload.step - step
                self._at_work[change.payload.run_id] = since, change.payload.step
            case RunCompleteEvent(payload=end):
                self._ended[end.payload.outcome] += 1
                self._took(now - self._at_work.pop(end.payload.run_id, (now, 0))[0])
            case MessageEvent(payload=message):
                self._said(message.type, message.payload)
            case SessionEvent(payload=session) if session.type != "deleted" and not session.payload.parent_session_id:
                self._spent(session.payload.id, session.payload.cost, is_new=session.type == "created")
            case PermissionRequestEvent() | QuestionRequestEvent():
                self._asks["permission" if isinstance(event, PermissionRequestEvent) else "question"] += 1
            case _:
                pass

    def _said(self, change: ChangeKind, message: Message) -> None:
        if change == "updated" and message.role == "assistant" and message.finish is not None:
            self._answers[message.provider, message.model] += 1
        if change == "created":
            for result in message.tool_results:
                self._tools[result.name, "error" if result.is_error else "ok"] += 1

    def _took(self, seconds: float) -> None:
        self._seconds += seconds
        place = next((index for index, bound in enumerate(_BOUNDS) if seconds <= bound), len(_BOUNDS))
        self._buckets[place] += 1

    def _spent(self, session: SessionId, cost: float, *, is_new: bool) -> None:
        """Count the increase of a session's cost. Costs from before this server first saw the session are not
        counted.
        """
        known = 0.0 if is_new else self._costs.pop(session, cost)
        self._cost += max(0.0, cost - known)
        self._costs[session] = cost
        while len(self._costs) > _KEPT:
            del self._costs[next(iter(self._costs))]

    def families(self) -> list[Family]:
        """Return all metrics."""
        took = Family("run_seconds", "histogram", "How long runs took, from their first step to their end.")
        total = 0
        for bound, count in zip((*map(str, _BOUNDS), "+Inf"), self._buckets, strict=True):
            total += count
            took.set(total, "_bucket", le=bound)
        took.set(self._seconds, "_sum").set(total, "_count")
        outcomes = dict.fromkeys(("completed", "failed", "cancelled", "interrupted"), 0) | self._ended
        return [
            Family("runs_accepted_total", "counter", "Prompts that were accepted.").set(self._accepted),
            _labelled("runs_ended_total", "Runs that have ended, by outcome.", ("outcome",), _single(outcomes)),
            took,
            Family("steps_total", "counter", "Steps of runs: times a model was asked.").set(self._steps),
            _labelled("answers_total", "Answers of models.", ("provider", "model"), self._answers),
            _labelled("tool_calls_total", "Calls of tools that have a result.", ("tool", "result"), self._tools),
            _labelled("asks_total", "Times somebody was asked.", ("kind",), _single(self._asks)),
            Family("cost_dollars_total", "counter", "What answers cost.").set(self._cost),
        ]


def _single(values: Mapping[str, int]) -> dict[tuple[str, ...], int]:
    return {(name,): value for name, value in values.items()}


def _labelled(name: str, text: str, labels: tuple[str, ...], values: Mapping[tuple[str, ...], int]) -> Family:
    family = Family(name, "counter", text)
    for names, value in sorted(values.items()):
        family.set(value, **dict(zip(labels, names, strict=True)))
    return family
