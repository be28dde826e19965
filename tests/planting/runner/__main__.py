"""The command line of `scripts/mutation`."""

import argparse
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from planting.live import refresh
from planting.mutant import Mutant
from planting.operators import KINDS
from planting.runner.judging import Settings, Verdict, judge, relative
from planting.runner.selection import Equivalents, Name, Selection, functions_near, name_of, select, source_files
from planting.runner.session import Session, collected, import_all
from planting.runner.tracing import Map, Tracer

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".mutation"
LAST = CACHE / "survivors.json"
EQUIVALENT = ROOT / "scripts" / "mutation.equivalent"
IN_PROCESS_TESTS = (
    "bus", "choosing", "client", "config", "core", "domain", "engine", "extensions", "permissions", "protocol",
    "providers", "server", "storage", "tools", "workspace",
)  # fmt: skip
"""Test directories that mostly run the code in their own process. The others start programs: no mutant reaches them."""


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def read_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/mutation", description=__doc__)
    parser.add_argument("paths", nargs="*", help="packages or files of the source; by default seven packages")
    parser.add_argument("--sample", type=int, default=0, help="try this many mutants, drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="selects the sample")
    parser.add_argument("--function", action="append", default=[], help="only this function or class; repeatable")
    parser.add_argument("--kind", action="append", default=[], choices=sorted(KINDS), help="only these; repeatable")
    parser.add_argument("--again", action="store_true", help="only the survivors of the last run")
    parser.add_argument("--limit", type=float, default=20.0, help="seconds of tests for each mutant")
    parser.add_argument("--jobs", type=int, default=2, help="children at a time")
    parser.add_argument("--tests", action="append", default=[], help="test files or directories; repeatable")
    parser.add_argument("--map", action="store_true", help="only trace the tests that changed since the last time")
    parser.add_argument("--list", action="store_true", help="only list the mutants")
    return parser.parse_args(arguments)


def choose(options: argparse.Namespace) -> list[Mutant]:
    selection = Selection(options.paths, options.function, options.kind, options.sample, options.seed)
    if not options.again:
        return select(selection, ROOT)
    names = {Name(*row) for row in json.loads(LAST.read_text())}
    return [mutant for mutant in select(selection._replace(sample=0), ROOT) if name_of(mutant, ROOT) in names]


def test_files(options: argparse.Namespace) -> list[str]:
    """Return the test files of the given paths, or of all directories that run the code in process."""
    given = options.tests or [f"tests/{name}" for name in IN_PROCESS_TESTS]
    places = [ROOT / path for path in given]
    files = [file for place in places for file in ([place] if place.is_file() else sorted(place.rglob("test_*.py")))]
    return [str(file.relative_to(ROOT)) for file in files]


def run_map(session: pytest.Session, options: argparse.Namespace, files: Sequence[str]) -> None:
    """Run these test files once and store which functions each test executes."""
    say(f"tracing {len(files)} test files")
    sources = sorted((ROOT / "src" / "holdfast").rglob("*.py"))
    import_all(sources, ROOT)
    Session(session, ROOT, Map(CACHE / "map", ROOT)).trace(files, Tracer(sources, ROOT), options.jobs, say)


def run_mutants(session: pytest.Session, options: argparse.Namespace, mutants: Sequence[Mutant]) -> None:
    """Try the mutants and print the survivors and the score."""
    tests = Map(CACHE / "map", ROOT)
    tests.load()
    import_all(source_files(options.paths, ROOT), ROOT)
    refresh()
    gc.freeze()
    began = time.monotonic()

    def tell(verdict: Verdict) -> None:
        say(f"{verdict.word:10} {verdict.seconds:5.1f} s {verdict.ran:4} tests  {relative(verdict.mutant, ROOT)}")
        if verdict.detail:
            say(f"{'':10} {verdict.detail}")

    verdicts = judge(Session(session, ROOT, tests), mutants, Settings(options.limit, options.jobs), tell)
    report(verdicts, time.monotonic() - began)


def report(verdicts: Sequence[Verdict], seconds: float) -> None:
    survivors = [verdict for verdict in verdicts if verdict.word == "SURVIVED"]
    for verdict in survivors:
        say(
            f"\n{verdict.mutant.diff()}\n# {verdict.ran} tests passed{'' if verdict.is_complete else ', limit reached'}"
        )
    CACHE.mkdir(exist_ok=True)
    LAST.write_text(json.dumps([name_of(verdict.mutant, ROOT) for verdict in survivors]))
    say("")
    packages: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        package = Path(verdict.mutant.file).relative_to(ROOT / "src" / "holdfast").parts[0]
        for name in (package, "all"):
            packages.setdefault(name, Counter())[verdict.word] += 1
    for name in sorted(packages, key=lambda name: (name == "all", name)):
        counts = packages[name]
        tried = counts["caught"] + counts["SURVIVED"]
        others = ", ".join(f"{counts[word]} {word}" for word in ("unexecuted", "refused") if counts[word])
        say(f"{name:12} {counts['caught']} of {tried} caught" + (f"; {others}" if others else ""))
    say(f"{seconds:.0f} s")


def main(arguments: Sequence[str]) -> int:
    options = read_arguments(arguments)
    chosen = [] if options.map else choose(options)
    if options.list:
        for mutant in chosen:
            say(relative(mutant, ROOT))
        return 0
    known = Equivalents(EQUIVALENT).reasons
    mutants = [mutant for mutant in chosen if name_of(mutant, ROOT) not in known]
    say(f"{len(mutants)} mutants, {len(chosen) - len(mutants)} more are recorded as equivalent")
    tests = Map(CACHE / "map", ROOT)
    tests.load()
    files = test_files(options)
    stale = [file for file in files if not tests.is_current(file)]
    needed = {
        test.partition("::")[0] for mutant in mutants for test in tests.tests_of(functions_near(mutant.unit, ROOT))
    }

    def act(session: pytest.Session) -> None:
        if stale:
            run_map(session, options, stale)
        if mutants:
            run_mutants(session, options, mutants)

    return collected(ROOT, sorted({*stale, *(needed & {*files})}), act) if stale or needed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
