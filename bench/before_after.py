"""Rows of the server on SQLite, before and after several servers could share a database, measured alternately."""

import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from statistics import median

from bench.figures import Figure, Goal
from bench.plan import Plan
from bench.servers import Provider, ServerProcess, served
from bench.table import ROWS, TURN_GROUPS, Commits, Pair
from bench.turn_rows import measure_turns, subjects

__all__ = ["BASELINE", "measure_before_after"]

BASELINE = "85b4f006"
"""The parent of the first commit of the store on PostgreSQL."""
_ROOT = Path(__file__).resolve().parents[1]
_BOUND = 1.1
"""Ratio up to which a row is not worse: repeated runs of the same program differ by less."""
_BESIDE = f"commit {BASELINE}"


@contextmanager
def _source() -> Iterator[Mapping[str, str]]:
    """Yield the environment in which the program of the earlier commit is imported."""
    packed = subprocess.run(["git", "archive", BASELINE, "src"], cwd=_ROOT, check=True, capture_output=True).stdout
    with tempfile.TemporaryDirectory() as directory:
        with tarfile.open(fileobj=BytesIO(packed)) as archive:
            archive.extractall(directory, filter="data")
        yield {"PYTHONPATH": f"{directory}/src"}


def measure_before_after(provider: Provider, plan: Plan) -> list[Figure]:
    """Measure both programs at the same time, over both transports."""
    with _source() as variables:
        with (
            served(settings=provider.settings, variables=variables) as before,
            served(settings=provider.settings) as after,
        ):
            for server in (before, after):
                server.wait_for_answer()
            figures = _turns(before, after, plan)
        return [*figures, *_starts(provider, plan, variables)]


def _turns(before: ServerProcess, after: ServerProcess, plan: Plan) -> list[Figure]:
    figures: list[Figure] = []
    commits = Commits(after.root)
    for transport, over_tcp in (("TCP", True), ("unix socket", False)):
        with subjects(before, after, over_tcp=over_tcp) as two:
            for subject in two:
                measure_turns(subject)
            for group in TURN_GROUPS:
                limits, found = Pair(two, plan, commits).measure(group)
                for key, samples in found.items():
                    row = ROWS[key]
                    at_least = row.goal.at_least
                    goal = Goal(1 / _BOUND if at_least else _BOUND, is_ratio=True, at_least=at_least)
                    figures.append(
                        Figure(row.name, median(samples), row.unit, median(limits[key]), _BESIDE, goal, "", transport)
                    )
    commits.close()
    return figures


def _starts(provider: Provider, plan: Plan, variables: Mapping[str, str]) -> list[Figure]:
    found: dict[str, tuple[list[float], list[float]]] = {"start": ([], []), "memory": ([], [])}
    for number in range(plan.starts + 1):
        for index, chosen in enumerate((variables, {})):
            with served(settings=provider.settings, variables=chosen) as server:
                seconds = server.wait_for_answer()
                # The first start compiles the modules.
                if number:
                    found["start"][index].append(seconds * 1e3)
                    found["memory"][index].append(server.resident())
    rows = (("spawn to first true answer", "ms", "start"), ("resident memory, idle", "MiB", "memory"))
    goal = Goal(_BOUND, is_ratio=True)
    return [
        Figure(name, median(found[key][1]), unit, median(found[key][0]), _BESIDE, goal, "", "start")
        for name, unit, key in rows
    ]
