"""Usage statistics, accumulated from the rows of any store.

Only the fields that are counted are decoded from each body, which makes a pass over a large database several times
faster than decoding the domain types.
"""

from collections import Counter, defaultdict
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec

from holdfast.domain.sessions import Session
from holdfast.domain.usage import ModelUse, Stats

__all__ = ["StatsBuilder"]


class _Data(msgspec.Struct, frozen=True):
    """Data of a message part: the name of a tool, or time and reason of a finish."""

    name: str = ""
    time: int = 0
    reason: str = ""


class _Part(msgspec.Struct, frozen=True):
    type: str
    data: _Data = _Data()


class _Message(msgspec.Struct, frozen=True):
    role: str
    model: str
    provider: str
    created_at: int
    parts: tuple[_Part, ...] = ()


class _Run(msgspec.Struct, frozen=True):
    accepted_at: int
    started_at: int = 0
    ended_at: int = 0


class _RunChange(msgspec.Struct, frozen=True):
    """The envelope of an event's payload."""

    object: _Run = msgspec.field(name="payload")


class _RunEvent(msgspec.Struct, frozen=True):
    """The `created` event of a run, which serves as its body until the run changes."""

    change: _RunChange = msgspec.field(name="payload")


_ABORTED_REASONS = ("canceled", "error")
"""Finish reasons that are left out of the response times: the time until a cancel is not that of a response."""
_message_decoder = msgspec.json.Decoder(_Message)
_session_decoder = msgspec.json.Decoder(Session)
_run_decoder = msgspec.json.Decoder(_Run)
_event_decoder = msgspec.json.Decoder(_RunEvent)


class StatsBuilder:
    """Accumulates rows. `zone` is the offset of local time from UTC in minutes."""

    def __init__(self, zone: int) -> None:
        self._ahead = timedelta(minutes=zone)
        self.zone = zone
        self.week = [[0] * 24 for _ in range(7)]
        self.tools: Counter[str] = Counter()
        self.models: Counter[tuple[str, str]] = Counter()
        self.times: dict[tuple[str, str], list[int]] = defaultdict(list)
        self.outcomes: Counter[str] = Counter()
        self.days: Counter[date] = Counter()
        self.costs: dict[date, float] = defaultdict(float)
        self.sessions: list[Session] = []
        self.durations: list[float] = []

    def at(self, seconds: float) -> datetime:
        """Return the local time of a Unix time."""
        return datetime.fromtimestamp(seconds, UTC) + self._ahead

    def add_message(self, body: bytes) -> None:
        """Count a message: hours of prompts, models, tools and response times."""
        entry = _message_decoder.decode(body)
        if entry.role == "user":
            moment = self.at(entry.created_at)
            self.week[moment.weekday()][moment.hour] += 1
        if entry.role != "assistant":
            return
        name = (entry.provider, entry.model)
        self.models[name] += 1
        for part in entry.parts:
            if part.type == "tool_call":
                self.tools[part.data.name] += 1
            elif (
                part.type == "finish"
                and part.data.time >= entry.created_at
                and part.data.reason not in _ABORTED_REASONS
            ):
                self.times[name].append(part.data.time - entry.created_at)

    def add_session(self, body: bytes) -> None:
        """Count a session. The cost of a parent includes that of its children."""
        session = _session_decoder.decode(body)
        self.sessions.append(session)
        if session.cost and not session.parent_session_id:
            self.costs[self.at(session.created_at).date()] += session.cost

    def add_run(self, outcome: str | None, body: bytes) -> None:
        """Count a run by the JSON of its row."""
        self._count_run(outcome, _run_decoder.decode(body))

    def add_created_run(self, outcome: str | None, event: bytes) -> None:
        """Count a run by its `created` event, which serves as its row until the run changes."""
        self._count_run(outcome, _event_decoder.decode(event).change.object)

    def _count_run(self, outcome: str | None, run: _Run) -> None:
        self.outcomes[outcome or "open"] += 1
        self.days[self.at(run.accepted_at / 1000).date()] += 1
        if outcome == "completed" and run.started_at:
            self.durations.append((run.ended_at - run.started_at) / 1000)

    def result(self, paths: tuple[str, ...]) -> Stats:
        """Return the statistics of all rows that were added. `paths` are the workspaces."""
        top = [session for session in self.sessions if not session.parent_session_id]
        every = [seconds for times in self.times.values() for seconds in times]
        models = (ModelUse(*name, count, _mean(self.times[name])) for name, count in self.models.most_common())
        return Stats(
            sessions=len(top),
            messages=sum(session.message_count for session in self.sessions),
            prompt_tokens=sum(session.prompt_tokens for session in self.sessions),
            completion_tokens=sum(session.completion_tokens for session in self.sessions),
            cost=sum(session.cost for session in top),
            runs=dict(self.outcomes),
            days={day.isoformat(): count for day, count in sorted(self.days.items())},
            seconds=_mean(self.durations),
            response_seconds=_mean(every),
            models=tuple(models),
            tools=dict(self.tools.most_common()),
            week=tuple(map(tuple, self.week)),
            costs={day.isoformat(): cost for day, cost in sorted(self.costs.items())},
            workspaces=paths,
            zone=self.zone,
        )


def _mean(values: list[Any]) -> float:
    return sum(values) / len(values) if values else 0.0
