"""Mutants in forked children: which of them does a test notice?"""

from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, NamedTuple

from planting.mutant import Mutant
from planting.runner.children import Job, Limits, Outcome, run_jobs
from planting.runner.selection import functions_near
from planting.runner.session import Session, is_caught

__all__ = ["Settings", "Verdict", "judge", "relative"]

_LEAST_TEST_SECONDS = 10.0
_SLOWER = 10.0
"""A test hangs after this many times the time it took when it was traced; the machine may be busy."""


class Settings(NamedTuple):
    """Limits of a run: seconds of tests for each mutant, children at a time."""

    limit: float = 20.0
    workers: int = 2


class Verdict(NamedTuple):
    """What became of a mutant. `detail` names the test that noticed it, or says why it was not tried."""

    word: Literal["caught", "SURVIVED", "unexecuted", "refused"]
    mutant: Mutant
    detail: str
    ran: int
    seconds: float
    is_complete: bool = True


class _Judge:
    """Keeps the queue of children to come: mutants, and tests that must pass without a mutant to count."""

    def __init__(self, session: Session, settings: Settings, tell: Callable[[Verdict], None]) -> None:
        self._session = session
        self._settings = settings
        self._tell = tell
        self._queue: deque[tuple[Job, Mutant, Outcome | None]] = deque()
        self._sound: set[str] = set()
        self._unsound: set[str] = set()
        self.verdicts: list[Verdict] = []

    def _limit_of(self, test: str) -> float:
        return max(_LEAST_TEST_SECONDS, _SLOWER * self._session.map.seconds.get(test, 0.0))

    def add(self, mutant: Mutant) -> None:
        functions = functions_near(mutant.unit, self._session.root)
        tests = self._session.map.tests_of(functions, self._is_usable)
        if not tests:
            self._conclude(Verdict("unexecuted", mutant, "no traced test executes it", 0, 0.0))
            return
        limits = Limits(self._settings.limit, self._limit_of)
        self._queue.append((self._session.mutant_job(mutant, str(mutant), tests, limits), mutant, None))

    def _is_usable(self, test: str) -> bool:
        return test in self._session.items and test not in self._unsound

    def run(self) -> None:
        jobs: dict[int, tuple[Job, Mutant, Outcome | None]] = {}

        def next_job() -> Job | None:
            if not self._queue:
                return None
            entry = self._queue.popleft()
            jobs[id(entry[0])] = entry
            return entry[0]

        for job, outcome in run_jobs(next_job, self._settings.workers):
            _, mutant, suspicion = jobs.pop(id(job))
            if suspicion is None:
                self._consider(mutant, outcome)
            else:
                self._confirm(mutant, suspicion, outcome)

    def _consider(self, mutant: Mutant, outcome: Outcome) -> None:
        if outcome.word == "refused":
            self._conclude(Verdict("refused", mutant, outcome.text, 0, outcome.seconds))
        elif not is_caught(outcome):
            is_complete = outcome.word == "passed"
            detail = "" if is_complete else "not all of its tests ran within the limit"
            self._conclude(Verdict("SURVIVED", mutant, detail, outcome.ran, outcome.seconds, is_complete))
        elif outcome.test in self._sound or not outcome.test:
            self._conclude(self._caught(mutant, outcome))
        else:
            limits = Limits(2 * self._limit_of(outcome.test), self._limit_of)
            job = self._session.mutant_job(None, outcome.test, [outcome.test], limits)
            self._queue.appendleft((job, mutant, outcome))

    def _confirm(self, mutant: Mutant, suspicion: Outcome, outcome: Outcome) -> None:
        """Count the failure only if the test passes without the mutant."""
        if outcome.word == "passed":
            self._sound.add(suspicion.test)
            self._conclude(self._caught(mutant, suspicion))
        else:
            self._unsound.add(suspicion.test)
            self.add(mutant)

    def _caught(self, mutant: Mutant, outcome: Outcome) -> Verdict:
        how = "" if outcome.word == "failed" else f" ({outcome.word})"
        return Verdict("caught", mutant, f"{outcome.test}{how}", outcome.ran, outcome.seconds)

    def _conclude(self, verdict: Verdict) -> None:
        self.verdicts.append(verdict)
        self._tell(verdict)


def judge(
    session: Session, mutants: Sequence[Mutant], settings: Settings, tell: Callable[[Verdict], None]
) -> list[Verdict]:
    """Try each mutant; return the verdicts in the order in which they became known."""
    one = _Judge(session, settings, tell)
    for mutant in mutants:
        one.add(mutant)
    one.run()
    return one.verdicts


def relative(mutant: Mutant, root: Path) -> str:
    return f"{Path(mutant.file).relative_to(root)}:{mutant.line} {mutant.qualname}: {mutant.kind}: {mutant.text}"
