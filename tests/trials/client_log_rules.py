"""Rules for a cluster whose processes fail, checked against what clients received and what their tools wrote.

Nothing is read from a node or from PostgreSQL. A `ClientLog` has the times at which submitters got their 202, the
numbered events of each reader of each node, the lines that tools wrote with their times, and the faults. All times are
of one machine and one clock.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from holdfast.client.events import StreamEvent
from holdfast.domain.events import GapEvent, RunCompleteEvent, RunEvent

__all__ = [
    "LIMITS",
    "Accepted",
    "Cancelled",
    "ClientLog",
    "Fault",
    "FaultKind",
    "Received",
    "ToolWrite",
    "broken_rules",
    "seconds_of",
]

FaultKind = Literal["kill", "pause", "cut", "crash", "failover", "disk full"]
"""Of a node: its process dies, is suspended, or is cut off from PostgreSQL. Of PostgreSQL: it is killed and started
again, its standby is promoted, its disk is full.
"""

LIMITS: dict[FaultKind, float] = {
    "kill": 2.0,
    "pause": 5.0,
    "cut": 5.0,
    "crash": 1.0,
    "failover": 1.0,
    "disk full": 1.0,
}
"""Seconds to the end of the interrupted run after a fault of a node, and to the first prompt that each node accepts
after PostgreSQL accepts writes again.
"""
NODE_FAULTS: tuple[FaultKind, ...] = ("kill", "pause", "cut")


class Accepted(NamedTuple):
    """A prompt for which a client got 202."""

    workspace: str
    run: str
    node: str
    at: float


class Cancelled(NamedTuple):
    """A run whose cancel a client got 200 for. `outcome` is that of the response; None if the run had not ended."""

    workspace: str
    run: str
    outcome: str | None


class Received(NamedTuple):
    """One event of a stream. Only numbered events and gaps are kept."""

    at: float
    item: StreamEvent


class ToolWrite(NamedTuple):
    """A line that the tool of a run wrote."""

    workspace: str
    run: str
    at: float


@dataclass
class Fault:
    """One fault. `run` was active on the node at that time; it has no node if PostgreSQL failed."""

    kind: FaultKind
    at: float
    node: str = ""
    workspace: str = ""
    run: str = ""
    healed_at: float | None = None
    """When the node was started or continued, or when PostgreSQL accepted writes again."""
    delay: float = 0.0
    """Seconds of it in which the machine did not execute the clients: they do not count."""


@dataclass
class ClientLog:
    """The record of all clients of one trial. `streams` has the events of each (workspace, reader)."""

    accepted: list[Accepted] = field(default_factory=list)
    cancelled: list[Cancelled] = field(default_factory=list)
    streams: dict[tuple[str, str], list[Received]] = field(default_factory=dict)
    writes: list[ToolWrite] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)

    def ends(self, workspace: str) -> dict[str, float]:
        """Return when the end of each run was first received."""
        found: dict[str, float] = {}
        for received in self._of(workspace):
            event = received.item.event
            if isinstance(event, RunCompleteEvent):
                run = event.change.object.run_id
                found[run] = min(received.at, found.get(run, received.at))
        return found

    def outcome(self, workspace: str, run: str) -> str | None:
        """Return how a run ended."""
        for received in self._of(workspace):
            event = received.item.event
            if isinstance(event, RunCompleteEvent) and event.change.object.run_id == run:
                return event.change.object.outcome
        return None

    def workspaces(self) -> list[str]:
        """Return the workspaces, in the order of their first stream."""
        return list(dict.fromkeys(workspace for workspace, _ in self.streams))

    def _of(self, workspace: str) -> Iterator[Received]:
        for (name, _), stream in self.streams.items():
            if name == workspace:
                yield from stream


def broken_rules(log: ClientLog) -> list[str]:
    """Return a sentence for each violation."""
    found = [*_numbers(log)]
    for (workspace, reader), stream in log.streams.items():
        found += _ends(log, workspace, reader, stream)
    found += _cancels(log)
    found += _late_writes(log)
    found += _interruptions(log)
    for fault in log.faults:
        found += _slow(log, fault)
    return found


def seconds_of(log: ClientLog, fault: Fault) -> float | None:
    """Return the time of a takeover, or of the return after a fault of PostgreSQL; None if it never came."""
    if fault.kind in NODE_FAULTS:
        end = log.ends(fault.workspace).get(fault.run)
        return None if end is None else end - fault.at
    if fault.healed_at is None:
        return None
    first: dict[str, float] = {}
    for accepted in log.accepted:
        if accepted.at >= fault.healed_at:
            first[accepted.node] = min(accepted.at, first.get(accepted.node, accepted.at))
    nodes = {accepted.node for accepted in log.accepted}
    if nodes - first.keys() or not nodes:
        return None
    return max(first.values()) - fault.healed_at


def _numbers(log: ClientLog) -> Iterator[str]:
    """Every reader of every node receives the numbers 1 to n once each, without a gap, and the same events."""
    for workspace in log.workspaces():
        streams = {reader: stream for (name, reader), stream in log.streams.items() if name == workspace}
        newest = max((received.item.number or 0 for stream in streams.values() for received in stream), default=0)
        events: dict[int, object] = {}
        for reader, stream in streams.items():
            if any(isinstance(received.item.event, GapEvent) for received in stream):
                yield f"{workspace}: {reader} received a gap"
            numbers = [received.item.number for received in stream if received.item.number is not None]
            if numbers != list(range(1, newest + 1)):
                yield f"{workspace}: {reader} received {_first_jump(numbers, newest)} of the numbers 1 to {newest}"
            for received in stream:
                number = received.item.number
                if number is not None and events.setdefault(number, received.item.event) != received.item.event:
                    yield f"{workspace}: {reader} received another event {number} than an earlier reader"


def _first_jump(numbers: Sequence[int], newest: int) -> str:
    for expected, number in enumerate(numbers, 1):
        if number != expected:
            return f"{number} instead of {expected}"
    return f"only {len(numbers)}" if len(numbers) < newest else "too many"


def _ends(log: ClientLog, workspace: str, reader: str, stream: Sequence[Received]) -> Iterator[str]:
    """Each accepted prompt has one end, a run starts once at most, and no event of a run follows its end."""
    ends: Counter[str] = Counter()
    started: dict[str, int] = {}
    for received in stream:
        event = received.item.event
        if isinstance(event, RunCompleteEvent):
            ends[event.change.object.run_id] += 1
        elif isinstance(event, RunEvent):
            run = event.change.object
            if run.run_id in ends:
                yield f"{workspace}: {reader} received an event of {run.run_id} after its end"
            if run.started_at and started.setdefault(run.run_id, run.started_at) != run.started_at:
                yield f"{workspace}: {reader} received a second start of {run.run_id}"
    yield from (f"{workspace}: {reader} received {count} ends of {run}" for run, count in ends.items() if count > 1)
    for accepted in log.accepted:
        if accepted.workspace == workspace and accepted.run not in ends:
            yield f"{workspace}: {reader} received no end of {accepted.run}, which {accepted.node} accepted"


def _cancels(log: ClientLog) -> Iterator[str]:
    """A run that was cancelled before its end neither completes nor fails; one that had ended keeps its outcome."""
    for cancelled in log.cancelled:
        outcome = log.outcome(cancelled.workspace, cancelled.run)
        is_kept = outcome == cancelled.outcome if cancelled.outcome else outcome not in ("completed", "failed")
        if not is_kept:
            response = cancelled.outcome or "not ended"
            yield f"{cancelled.workspace}: {cancelled.run} is {outcome}; the response to its cancel was: {response}"


def _late_writes(log: ClientLog) -> Iterator[str]:
    """No tool writes after the end of its run was received, whatever had happened to its node."""
    ends = {workspace: log.ends(workspace) for workspace in log.workspaces()}
    for write in log.writes:
        end = ends.get(write.workspace, {}).get(write.run)
        if end is not None and write.at > end:
            yield f"{write.workspace}: a tool of {write.run} wrote {write.at - end:.3f} s after the end of its run"


def _interruptions(log: ClientLog) -> Iterator[str]:
    """A run is interrupted only if a node failed: never by an outage of PostgreSQL."""
    begins = [fault.at for fault in log.faults if fault.kind in NODE_FAULTS]
    for workspace in log.workspaces():
        seen = set()
        for received in log._of(workspace):
            event = received.item.event
            if isinstance(event, RunCompleteEvent) and event.change.object.outcome == "interrupted":
                run = event.change.object.run_id
                if run not in seen and not any(at <= received.at for at in begins):
                    yield f"{workspace}: {run} was interrupted although no node had failed"
                seen.add(run)


def _slow(log: ClientLog, fault: Fault) -> Iterator[str]:
    seconds = seconds_of(log, fault)
    name = f"{fault.kind} of {fault.node or 'PostgreSQL'}"
    if seconds is None:
        yield f"{name}: nothing followed"
    elif seconds - fault.delay > LIMITS[fault.kind]:
        yield f"{name}: took {seconds:.2f} s, the limit is {LIMITS[fault.kind]:.0f} s"
