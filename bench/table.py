"""`scripts/bench table`: Holdfast beside the floor, in one run.

Every row is measured in a git repository. Floor and Holdfast run at the same time and are measured alternately, so that
other work on the machine affects both; the table has the medians and their ratio, which carries over to other machines.
"""

import argparse
import datetime
import os
import platform
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

import msgspec

from bench import growth, memory, start
from bench.figures import Figure, Goal, table
from bench.in_process import BareStore
from bench.plan import QUICK, Plan
from bench.servers import Provider, ServerProcess, fake_provider, served, served_floor
from bench.turn_rows import (
    Samples,
    Subject,
    alternate,
    measure_accept_beside_streams,
    measure_burst,
    measure_cancels,
    measure_paced,
    measure_processor,
    measure_throughput,
    measure_turns,
    paced_streams,
    subjects,
)

__all__ = ["ROWS", "TURN_GROUPS", "Commits", "Pair", "Report", "machine", "main", "measure"]

REFERENCE_DATE = "November 2026"
"""When Crush was measured: beside the floor, on a quiet machine with two processors."""

_FLOOR = "the floor"
_AND_COMMIT = "the floor; the goal adds one synced commit"
_TCP, _UNIX = "TCP with a token", "unix socket"
SESSIONS_AT_ONCE = (20, 50, 100)
TURN_GROUPS: Mapping[str, tuple[Callable[[Subject], dict[str, float]], bool]] = {
    "turns": (measure_turns, False),
    "accept": (measure_accept_beside_streams, False),
    "paced": (measure_paced, True),
    "processor": (measure_processor, True),
    "throughput": (measure_turns, True),
    "burst": (measure_burst, True),
    "cancel": (measure_cancels, False),
}
"""Groups of rows that are measured on both servers, and whether a round is a series of many turns or requests."""


class Row(msgspec.Struct, frozen=True):
    """Description of a row: its goal, and the result of Crush."""

    name: str
    unit: str
    goal: Goal
    reference_ratio: float | None = None
    adds_commit: bool = False
    """One synced commit is added to the goal, because the floor stores nothing."""


def _times(bound: float, *, at_least: bool = False) -> Goal:
    return Goal(bound, is_ratio=True, at_least=at_least)


ROWS: Mapping[str, Row] = {
    "accept": Row("accept a prompt, follow-up", "ms", _times(2), 1.2, adds_commit=True),
    "accept_fresh": Row("accept a prompt, fresh session", "ms", _times(2), adds_commit=True),
    "accept_beside_streams": Row("accept a prompt beside 20 streams", "ms", _times(2), 1.5, adds_commit=True),
    "first_token": Row("POST to first token event, follow-up", "ms", _times(2.5), 4.5),
    "first_token_fresh": Row("POST to first token event, fresh session", "ms", _times(3), 3.6),
    "paced_p50": Row("provider's token to event, paced, p50", "ms", _times(1.2), 73),
    "paced_p99": Row("provider's token to event, paced, p99", "ms", _times(1.2), 65),
    "processor": Row("CPU per turn of 200 tokens, follow-up", "ms", _times(2.5), 5),
    "processor_fresh": Row("CPU per turn of 200 tokens, fresh session", "ms", _times(3), 3.7),
    "turns_20": Row("20 fresh sessions at once", "turns/s", _times(0.5, at_least=True), 0.46),
    "turns_50": Row("50 fresh sessions at once", "turns/s", _times(0.5, at_least=True), 0.35),
    "turns_100": Row("100 fresh sessions at once", "turns/s", _times(0.5, at_least=True), 0.44),
    "burst": Row("burst to 100 readers", "tokens/s", _times(2, at_least=True), 1.5),
    "burst_p99": Row("burst to 100 readers, delay, p99", "ms", Goal(30), 0.68),
    "cancel": Row("cancel to end event", "ms", _times(1.5), 1.1, adds_commit=True),
}


class Commits:
    """Durations of one synced commit on the disk of the server under test, measured between the rounds."""

    def __init__(self, path: Path) -> None:
        self._store = BareStore(path)
        self.all: Samples = []
        self._recent: Samples = []

    def measure(self) -> None:
        """Measure a commit."""
        self._recent.append(self._store.commit() * 1e3)

    def median(self) -> float:
        """Return the median since the last call in milliseconds."""
        for _ in range(3):
            self.measure()
        found, self._recent = self._recent, []
        self.all += found
        return median(found)

    def close(self) -> None:
        """Close the database."""
        self._store.close()


class Pair:
    """Floor and Holdfast over one transport, measured alternately."""

    def __init__(self, subjects: list[Subject], plan: Plan, commits: Commits) -> None:
        self._subjects = subjects
        self._plan = plan
        self._commits = commits

    def measure(self, group: str) -> list[dict[str, Samples]]:
        """Return the samples of a group of rows, of the floor and of Holdfast."""
        if group == "accept":
            with paced_streams(self._subjects):
                return self._alternate(self._plan.rounds, measure_accept_beside_streams)
        if group == "throughput":
            found: list[dict[str, Samples]] = [{}, {}]
            for count in SESSIONS_AT_ONCE:
                for samples, more in zip(found, self._alternate(self._plan.series, _at_once(count)), strict=True):
                    samples.update(more)
            return found
        measure_group, is_series = TURN_GROUPS[group]
        return self._alternate(self._plan.series if is_series else self._plan.rounds, measure_group)

    def _alternate(self, rounds: int, measure: Callable[[Subject], dict[str, float]]) -> list[dict[str, Samples]]:
        return alternate(self._subjects, rounds, measure, self._commits.measure)


def _at_once(count: int) -> Callable[[Subject], dict[str, float]]:
    return lambda subject: measure_throughput(subject, count)


def _figure(key: str, section: str, value: float, limit: float, commit: float) -> Figure:
    row = ROWS[key]
    goal, beside, reference = row.goal, _FLOOR, ""
    # Crush was measured over TCP only.
    ratio = row.reference_ratio if section == _TCP else None
    if ratio is not None:
        # Crush accepts and ends runs in memory.
        reference = f"{ratio:g} ×{', not on disk' if row.adds_commit else ''}"
    if row.adds_commit:
        goal, beside = msgspec.structs.replace(goal, plus=commit), _AND_COMMIT
    return Figure(row.name, value, row.unit, limit, beside, goal, key, section, reference, ratio)


def _turn_rows(floor: ServerProcess, ours: ServerProcess, plan: Plan, groups: Sequence[str]) -> list[Figure]:
    figures: list[Figure] = []
    commits = Commits(ours.root)
    for section, over_tcp in ((_TCP, True), (_UNIX, False)):
        with subjects(floor, ours, over_tcp=over_tcp) as two:
            for subject in two:
                # The first turns load modules and open connections.
                measure_turns(subject)
            for group in groups:
                _announce(f"{group}, {section}")
                limits, found = Pair(two, plan, commits).measure(group)
                commit = commits.median()
                figures += [
                    _figure(key, section, median(samples), median(limits[key]), commit)
                    for key, samples in found.items()
                ]
    order = list(ROWS)
    figures.sort(key=lambda figure: (figure.section != _TCP, order.index(figure.key)))
    figures.append(Figure("one synced commit", median(commits.all), "ms", key="commit", section="disk"))
    commits.close()
    return figures


def _announce(what: str) -> None:
    print(f"measuring {what} ...", file=sys.stderr, flush=True)


OTHER_GROUPS: Mapping[str, Callable[[Provider, Plan], list[Figure]]] = {
    "start": start.measure_starts,
    "run": start.measure_runs,
    "memory": memory.measure_memory,
    "large": growth.measure_large_repository,
    "length": growth.measure_length,
    "sessions": growth.measure_stored_sessions,
    "workspaces": growth.measure_workspaces,
}
LONG_GROUPS: Mapping[str, Callable[[Provider, Plan], list[Figure]]] = {"closing": memory.measure_closing}


def measure(plan: Plan, groups: Sequence[str]) -> list[Figure]:
    """Measure groups of rows."""
    figures: list[Figure] = []
    turns = [group for group in groups if group in TURN_GROUPS]
    with fake_provider() as provider:
        if turns:
            with served_floor(provider) as floor, served(settings=provider.settings) as ours:
                for server in (floor, ours):
                    server.wait_for_answer()
                figures += _turn_rows(floor, ours, plan, turns)
        for group, measure_group in {**OTHER_GROUPS, **LONG_GROUPS}.items():
            if group in groups:
                _announce(group)
                figures += measure_group(provider, plan)
    return figures


class Report(msgspec.Struct, frozen=True):
    """The result of a run, as it is stored."""

    date: str
    machine: str
    load: float
    seconds: float
    is_quick: bool
    rows: list[Figure]


def machine() -> str:
    """Return a description of the machine."""
    system = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    # With real-time priority other work hardly affects the figures; a reader has to know which of the two it was.
    priority = "normal" if os.sched_getscheduler(0) == os.SCHED_OTHER else "real-time"
    return f"{os.cpu_count()} processors, {system}, {priority} priority"


def _print(report: Report) -> None:
    print(table(report.rows))
    missed = [figure.name for figure in report.rows if figure.is_met is False]
    print(f"\n{len(missed)} goals missed; load {report.load:.1f}; {report.machine}; {report.seconds:.0f} s.")
    print(f"Ratios of Crush: {REFERENCE_DATE}, a quiet machine with two processors, over TCP.")


def main(arguments: Sequence[str]) -> int:
    """Measure, print the table, and write it as JSON if a file is named."""
    groups = [*TURN_GROUPS, *OTHER_GROUPS]
    parser = argparse.ArgumentParser(prog="scripts/bench table", description=__doc__)
    parser.add_argument("groups", nargs="*", metavar="GROUP", help=f"{', '.join(groups)}, {', '.join(LONG_GROUPS)}")
    parser.add_argument("--quick", action="store_true", help="fewer rounds and smaller sizes, about a minute")
    parser.add_argument("--long", action="store_true", help="also 20,000 prompts in 200 workspaces, many minutes")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the table to this file as well")
    options = parser.parse_args(arguments)
    chosen = options.groups or [*groups, *(LONG_GROUPS if options.long else ())]
    unknown = [group for group in chosen if group not in {*groups, *LONG_GROUPS}]
    if unknown:
        parser.error(f"unknown group {', '.join(unknown)}")
    began, (load, *_) = time.perf_counter(), os.getloadavg()
    figures = measure(QUICK if options.quick else Plan(), chosen)
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    report = Report(today, machine(), load, time.perf_counter() - began, options.quick, figures)
    _print(report)
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")
    return 0
