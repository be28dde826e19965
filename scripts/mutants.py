"""Tests of the tests: each planted mistake must be detected. Started by `scripts/mutants`, described in `mutants.toml`.

Every worker has its own copy of the source and the tests. A mistake is planted in the copy, each test file
that must detect it is run separately and must fail, and the copy is restored. First, the tests must pass unchanged.

`--changed` plants only the mistakes whose definition, source file or test files differ from the digests in
`mutants.caught`, which every full or partial success brings up to date. The digest does not cover other modules that a
test imports: `scripts/long` plants all of them.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
WORKERS = 2
HANGS_SECONDS = 5
SLOWEST_SECONDS = 30
"""Time limits of one test in seconds: with a mistake, which may cause an endless loop, and without."""
SOME_TEST_FAILED = 1
RECORD = ROOT / "scripts" / "mutants.caught"
CHANGED = "--changed"

# Other installed plugins take two seconds of each start and are not needed.
PLUGINS = ("pytest_asyncio.plugin", "pytest_timeout")

# Loaded by pytest before anything else: the package under test must be that of the copy.
GUARD = """
from pathlib import Path
import holdfast
assert Path(holdfast.__file__).is_relative_to(Path(__file__).parent), holdfast.__file__
"""


class Mutant(NamedTuple):
    """A mistake: in `file` the text `find`, which occurs there once, becomes `put`."""

    name: str
    file: str
    find: str
    put: str
    tests: list[str]


class Verdict(NamedTuple):
    """The result for one mistake. `detail` names the tests that detected it, or the problem."""

    word: str
    detail: str


class Copy:
    """The copy of source and tests of one worker."""

    def __init__(self, root: Path) -> None:
        self.root = root
        nothing_compiled = shutil.ignore_patterns("__pycache__")
        for folder in ("src", "tests"):
            shutil.copytree(ROOT / folder, root / folder, ignore=nothing_compiled)
        shutil.copy(ROOT / "pyproject.toml", root)
        (root / "guard.py").write_text(GUARD)

    def plant(self, file: str, text: str) -> None:
        path = self.root / file
        path.write_text(text)
        # Compiled files are matched by size and second only, so an older one could be taken for this version.
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def test(self, tests: Sequence[str], seconds: int = HANGS_SECONDS) -> tuple[int, str]:
        options = ["-x", "-q", "-p", "guard", f"--timeout={seconds}", "-p", "no:cacheprovider", "--tb=short"]
        options += [word for plugin in PLUGINS for word in ("-p", plugin)]
        environment = {**os.environ, "PYTHONPATH": f"{self.root / 'src'}:{self.root}", "COLUMNS": "300"}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pytest", *options, *tests],
                cwd=self.root,
                env=environment,
                capture_output=True,
                text=True,
                timeout=10 * seconds,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return -1, f"did not end within {10 * seconds} s"
        return done.returncode, done.stdout + done.stderr


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def read_mutants(names: Sequence[str]) -> list[Mutant]:
    entries = tomllib.loads((ROOT / "scripts" / "mutants.toml").read_text())["mutant"]
    mutants = [Mutant(**entry) for entry in entries]
    known = [mutant.name for mutant in mutants]
    if len(known) != len({*known}):
        sys.exit("two mutants have the same name")
    if strangers := [name for name in names if name not in known]:
        sys.exit(f"no such mutant: {', '.join(strangers)}")
    return [mutant for mutant in mutants if not names or mutant.name in names]


def digest_of(mutant: Mutant) -> str:
    """Return a digest of everything a verdict depends on: the mistake, its source file and the files of its tests."""
    files = [mutant.file, *sorted({test.partition("::")[0] for test in mutant.tests})]
    found = hashlib.sha256(repr(mutant).encode())
    for path in (ROOT / file for file in files):
        found.update(path.read_bytes() if path.is_file() else b"missing")
    return found.hexdigest()[:16]


def read_record() -> dict[str, str]:
    """Return the digest of each mistake at the time it was last caught."""
    lines = RECORD.read_text().splitlines() if RECORD.exists() else []
    return dict(line.split() for line in lines)


def write_record(caught: Sequence[Mutant], known: Sequence[Mutant]) -> None:
    names = {mutant.name for mutant in known}
    record = {name: digest for name, digest in read_record().items() if name in names}
    record |= {mutant.name: digest_of(mutant) for mutant in caught}
    text = "".join(f"{name} {record[name]}\n" for name in sorted(record))
    if not RECORD.exists() or RECORD.read_text() != text:
        RECORD.write_text(text)


def finder(output: str) -> str:
    """Return the test that failed, from pytest's summary."""
    found = re.search(r"^(?:FAILED|ERROR) \S*?([^\s/]+::.*?)( - .*|$)", output, re.MULTILINE)
    if found is None:
        return "?"
    return f"{found[1]} (it hung)" if "Timeout" in found[2] else found[1]


def is_missing(test: str) -> bool:
    return not (ROOT / test.partition("::")[0]).exists()


def judge(mutant: Mutant, copy: Copy) -> Verdict:
    source = (copy.root / mutant.file).read_text()
    if (times := source.count(mutant.find)) != 1:
        return Verdict("MISFIT", f"the mutant no longer fits: its text occurs {times} times in {mutant.file}")
    finders: list[str] = []
    copy.plant(mutant.file, source.replace(mutant.find, mutant.put))
    try:
        for test in mutant.tests:
            if is_missing(test):
                return Verdict("MISSED", f"there is no {test}")
            status, output = copy.test([test])
            if status == 0:
                return Verdict("MISSED", f"{test} passes")
            if status != SOME_TEST_FAILED:
                return Verdict("BROKEN", f"pytest {test} ends with {status}, not with a failed test\n{output[-1500:]}")
            finders.append(finder(output))
    finally:
        copy.plant(mutant.file, source)
    return Verdict("caught", ", ".join(finders))


def must_pass(mutants: Sequence[Mutant], copies: Sequence[Copy]) -> bool:
    """Run the tests without mistakes, distributed over the workers. Return whether they pass."""
    named = {test for mutant in mutants for test in mutant.tests}
    tests = sorted(test for test in named if not is_missing(test))
    shares = [tests[index :: len(copies)] or tests[:1] for index in range(len(copies))]
    with ThreadPoolExecutor(WORKERS) as workers:
        results = list(workers.map(Copy.test, copies, shares, [SLOWEST_SECONDS] * len(copies)))
    for status, output in results:
        if status:
            say(f"BROKEN  without any mistake the tests end with {status}\n{output[-3000:]}")
    return not any(status for status, _ in results)


def judge_all(mutants: Sequence[Mutant], copies: Sequence[Copy]) -> list[Mutant]:
    """Print a line for each mistake; return those that were caught."""
    free: SimpleQueue[Copy] = SimpleQueue()
    for copy in copies:
        free.put(copy)

    def judge_one(mutant: Mutant) -> bool:
        copy = free.get()
        began = time.monotonic()
        try:
            verdict = judge(mutant, copy)
        finally:
            free.put(copy)
        say(f"{verdict.word:7} {time.monotonic() - began:5.1f} s  {mutant.name}: {verdict.detail}")
        return verdict.word == "caught"

    with ThreadPoolExecutor(WORKERS) as workers:
        verdicts = list(workers.map(judge_one, mutants))
    return [mutant for mutant, is_caught in zip(mutants, verdicts, strict=True) if is_caught]


def main(names: Sequence[str]) -> int:
    known = read_mutants(())
    mutants = known if names == [CHANGED] else read_mutants(names)
    if names == [CHANGED]:
        record = read_record()
        mutants = [mutant for mutant in known if record.get(mutant.name) != digest_of(mutant)]
        say(f"{len(known) - len(mutants)} of {len(known)} are unchanged since they were caught")
        if not mutants:
            return 0
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        copies = [Copy(Path(folder) / str(number)) for number in range(WORKERS)]
        if not must_pass(mutants, copies):
            return 1
        caught = judge_all(mutants, copies)
    write_record(caught, known)
    say(f"{len(mutants)} planted, {len(caught)} caught, {time.monotonic() - began:.0f} s")
    return 0 if len(caught) == len(mutants) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
