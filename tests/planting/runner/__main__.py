"""The command line of `scripts/mutation`."""

import argparse
import gc
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from planting.live import refresh
from planting.mutant import Mutant
from planting.operators import KINDS
from planting.runner.disk import nearest, run_planted
from planting.runner.judging import Candidate, Settings, Verdict, from_mutant, from_patch, judge
from planting.runner.patches import read_patches
from planting.runner.selection import Equivalents, Name, Selection, name_of, select
from planting.runner.session import Session, collected, import_all
from planting.runner.tracing import Map, Tracer

ROOT = Path(__file__).resolve().parents[3]
CACHE = ROOT / ".mutation"
LAST = CACHE / "survivors.json"
EQUIVALENT = ROOT / "scripts" / "mutation.equivalent"
IN_PROCESS_TESTS = (
    "bus", "client", "config", "domain", "engine", "extensions", "permissions", "protocol", "runtime",
    "providers", "server", "storage", "tools", "workspace",
)  # fmt: skip
"""Test directories that mostly run the code in their own process. The others start programs: no mutant reaches them."""


def print_now(text: str) -> None:
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
    parser.add_argument("--on-disk", action="store_true", help="plant survivors on disk, for programs that tests start")
    parser.add_argument("--disk-limit", type=float, default=300.0, help="seconds of tests for each mistake on disk")
    parser.add_argument("--patches", metavar="DIRECTORY", help="plant the patches of a directory instead of mutants")
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
    print_now(f"tracing {len(files)} test files")
    sources = sorted((ROOT / "src" / "holdfast").rglob("*.py"))
    import_all(sources, ROOT)
    Session(session, ROOT, Map(CACHE / "map", ROOT)).trace(files, Tracer(sources, ROOT), options.jobs, print_now)


def run_candidates(session: pytest.Session, options: argparse.Namespace, candidates: Sequence[Candidate]) -> None:
    """Plant every mistake and print the survivors and the score."""
    tests = Map(CACHE / "map", ROOT)
    tests.load()
    import_all(sorted({candidate.file for candidate in candidates}), ROOT)
    refresh()
    gc.freeze()
    began = time.monotonic()
    settings = Settings(options.limit, options.jobs)
    verdicts = judge(Session(session, ROOT, tests), candidates, settings, print_verdict)
    if options.on_disk:
        verdicts = on_disk(verdicts, options)
    report(verdicts, time.monotonic() - began)


def print_verdict(verdict: Verdict) -> None:
    print_now(f"{verdict.word:10} {verdict.seconds:5.1f} s {verdict.ran:4} tests  {verdict.candidate.label}")
    if verdict.detail:
        print_now(f"{'':10} {verdict.detail}")


def on_disk(verdicts: Sequence[Verdict], options: argparse.Namespace) -> list[Verdict]:
    """Plant the survivors on disk, and run the nearest test directories."""

    def again(verdict: Verdict) -> Verdict:
        candidate = verdict.candidate
        own, *others = nearest(candidate.file, ROOT)
        began = time.monotonic()
        trial = run_planted(candidate.file, candidate.text(), [own], ROOT, options.disk_limit)
        left = options.disk_limit - (time.monotonic() - began)
        if not trial.is_caught and others and left > 0:
            trial = run_planted(candidate.file, candidate.text(), others, ROOT, left)
        if trial.is_caught:
            changed = verdict._replace(word="caught", detail=f"{trial.test} (on disk)")
        else:
            detail = trial.text.partition("\n")[0] or f"all tests of {' '.join([own, *others])} pass"
            changed = verdict._replace(word="SURVIVED", detail=f"on disk: {detail}")
        changed = changed._replace(seconds=verdict.seconds + time.monotonic() - began)
        print_verdict(changed)
        return changed

    print_now("\non disk:")
    left = [verdict for verdict in verdicts if verdict.word != "caught"]
    with ThreadPoolExecutor(options.jobs) as workers:
        return [*(verdict for verdict in verdicts if verdict.word == "caught"), *workers.map(again, left)]


def report(verdicts: Sequence[Verdict], seconds: float) -> None:
    survivors = [verdict for verdict in verdicts if verdict.word == "SURVIVED"]
    mutants = [verdict.candidate.origin for verdict in survivors if isinstance(verdict.candidate.origin, Mutant)]
    for verdict in survivors:
        origin = verdict.candidate.origin
        text = origin.diff() if isinstance(origin, Mutant) else verdict.candidate.label
        print_now(f"\n{text}\n# {verdict.ran} tests passed{'' if verdict.is_complete else ', limit reached'}")
    LAST.write_text(json.dumps([name_of(mutant, ROOT) for mutant in mutants]))
    print_now("")
    packages: dict[str, Counter[str]] = {}
    for verdict in verdicts:
        package = verdict.candidate.file.relative_to(ROOT / "src" / "holdfast").parts[0]
        for name in (package, "all"):
            packages.setdefault(name, Counter())[verdict.word] += 1
    for name in sorted(packages, key=lambda name: (name == "all", name)):
        counts = packages[name]
        tried = counts["caught"] + counts["SURVIVED"]
        others = ", ".join(f"{counts[word]} {word}" for word in ("unexecuted", "refused") if counts[word])
        print_now(f"{name:12} {counts['caught']} of {tried} caught" + (f"; {others}" if others else ""))
    print_now(f"{seconds:.0f} s")


def candidates_of(options: argparse.Namespace) -> list[Candidate]:
    if options.map:
        return []
    if options.patches:
        options.on_disk = True
        return [from_patch(patch, ROOT) for patch in read_patches(Path(options.patches), ROOT)]
    chosen = choose(options)
    known = Equivalents(EQUIVALENT).reasons
    mutants = [mutant for mutant in chosen if name_of(mutant, ROOT) not in known]
    print_now(f"{len(mutants)} mutants, {len(chosen) - len(mutants)} more are recorded as equivalent")
    return [from_mutant(mutant, ROOT) for mutant in mutants]


def main(arguments: Sequence[str]) -> int:
    options = read_arguments(arguments)
    candidates = candidates_of(options)
    if options.list:
        for candidate in candidates:
            print_now(candidate.label)
        return 0
    CACHE.mkdir(exist_ok=True)
    tests = Map(CACHE / "map", ROOT)
    tests.load()
    files = test_files(options)
    stale = [file for file in files if not tests.is_current(file)]
    functions = {name for candidate in candidates for name in candidate.functions}
    needed = {test.partition("::")[0] for test in tests.tests_of(functions)}

    def act(session: pytest.Session) -> None:
        if stale:
            run_map(session, options, stale)
        if candidates:
            run_candidates(session, options, candidates)

    return collected(ROOT, sorted({*stale, *(needed & {*files})}) or files[:1], act) if stale or candidates else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
