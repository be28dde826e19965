"""Runs mutants in forked children and reports which of them a test detects."""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from planting.live import plant
from planting.mutant import Mutant
from planting.runner.children import Job, Limits, Outcome, run_jobs
from planting.runner.patches import Patch
from planting.runner.selection import functions_near
from planting.runner.session import Session, is_caught

__all__ = ["Candidate", "Settings", "Verdict", "from_mutant", "from_patch", "judge"]

_MIN_TEST_SECONDS = 10.0
_SLOWER = 10.0
"""A test hangs after this many times the time it took when it was traced; the machine may be busy."""


class Candidate(NamedTuple):
    """A mistake that can be planted: in this process, and on disk as another text of the file."""

    label: str
    origin: Mutant | Patch
    file: Path
    functions: tuple[str, ...]
    plant: Callable[[], object]
    text: Callable[[], str]


def from_mutant(mutant: Mutant, root: Path) -> Candidate:
    file = Path(mutant.file)
    label = f"{file.relative_to(root)}:{mutant.line} {mutant.qualname}: {mutant.kind}: {mutant.text}"
    functions = tuple(functions_near(mutant.unit, root))
    return Candidate(label, mutant, file, functions, lambda: plant(mutant), mutant.source)


def from_patch(patch: Patch, root: Path) -> Candidate:
    functions = tuple(name for unit, _ in patch.changes for name in functions_near(unit, root))
    label = f"{patch.name}: {patch.file.relative_to(root)}"
    return Candidate(label, patch, patch.file, functions, patch.plant, lambda: patch.text)


class Settings(NamedTuple):
    """Limits of a run: seconds of tests for each mutant, children at a time."""

    limit: float = 20.0
    workers: int = 2


class Verdict(NamedTuple):
    """The result for a mutant. `detail` names the test that detected it, or the reason why it was not tried."""

    word: Literal["caught", "SURVIVED", "unexecuted", "refused"]
    candidate: Candidate
    detail: str
    ran: int
    seconds: float
    is_complete: bool = True


class _Judge:
    """Manages the queue of children: mutants, and tests that must pass without a mutant to count."""

    def __init__(self, session: Session, settings: Settings, report: Callable[[Verdict], None]) -> None:
        self._session = session
        self._settings = settings
        self._tell = report
        self._queue: deque[tuple[Job, Candidate, Outcome | None]] = deque()
        self._sound: set[str] = set()
        self._unsound: set[str] = set()
        self.verdicts: list[Verdict] = []

    def _limit_of(self, test: str) -> float:
        return max(_MIN_TEST_SECONDS, _SLOWER * self._session.map.seconds.get(test, 0.0))

    def add(self, candidate: Candidate) -> None:
        tests = self._session.map.tests_of(candidate.functions, self._is_usable)
        if not tests:
            self._conclude(Verdict("unexecuted", candidate, "no traced test executes it", 0, 0.0))
            return
        limits = Limits(self._settings.limit, self._limit_of)
        self._queue.append((self._session.job(candidate.plant, candidate.label, tests, limits), candidate, None))

    def _is_usable(self, test: str) -> bool:
        return test in self._session.items and test not in self._unsound

    def run(self) -> None:
        jobs: dict[int, tuple[Job, Candidate, Outcome | None]] = {}

        def next_job() -> Job | None:
            if not self._queue:
                return None
            entry = self._queue.popleft()
            jobs[id(entry[0])] = entry
            return entry[0]

        for job, outcome in run_jobs(next_job, self._settings.workers):
            _, candidate, suspicion = jobs.pop(id(job))
            if suspicion is None:
                self._consider(candidate, outcome)
            else:
                self._confirm(candidate, suspicion, outcome)

    def _consider(self, candidate: Candidate, outcome: Outcome) -> None:
        if outcome.word == "refused":
            self._conclude(Verdict("refused", candidate, outcome.text, 0, outcome.seconds))
        elif not is_caught(outcome):
            is_complete = outcome.word == "passed"
            detail = "" if is_complete else "not all of its tests ran within the limit"
            self._conclude(Verdict("SURVIVED", candidate, detail, outcome.ran, outcome.seconds, is_complete))
        elif outcome.test in self._sound or not outcome.test:
            self._conclude(self._caught(candidate, outcome))
        else:
            limits = Limits(2 * self._limit_of(outcome.test), self._limit_of)
            job = self._session.job(lambda: None, outcome.test, [outcome.test], limits)
            self._queue.appendleft((job, candidate, outcome))

    def _confirm(self, candidate: Candidate, suspicion: Outcome, outcome: Outcome) -> None:
        """Count the failure only if the test passes without the mutant."""
        if outcome.word == "passed":
            self._sound.add(suspicion.test)
            self._conclude(self._caught(candidate, suspicion))
        else:
            self._unsound.add(suspicion.test)
            self.add(candidate)

    def _caught(self, candidate: Candidate, outcome: Outcome) -> Verdict:
        how = "" if outcome.word == "failed" else f" ({outcome.word})"
        return Verdict("caught", candidate, f"{outcome.test}{how}", outcome.ran, outcome.seconds)

    def _conclude(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        self._tell(verdict)


def judge(
    session: Session, candidates: Sequence[Candidate], settings: Settings, report: Callable[[Verdict], None]
) -> list[Verdict]:
    """Try each mistake; return the verdicts in the order in which they became known."""
    one = _Judge(session, settings, report)
    for candidate in candidates:
        one.add(candidate)
    one.run()
    return one.verdicts
