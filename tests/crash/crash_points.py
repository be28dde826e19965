"""Crash points: a real process is killed with SIGKILL at a chosen write, and its acknowledgements are checked
afterwards.

A trial is a `CrashPoint`: the scenario that is played, the write point at which the server is killed, and the write
point of the next start at which it is killed again, if at all. To repeat one, from Python:

    from crash.crash_points import CrashPoint, try_point
    try_point(CrashPoint("working", 17, again=5))

A killed process is a fork of a small process that has everything imported and no threads. The start that recovers the
remaining state runs in this process, to its graceful end, and then once more: that must change nothing.
"""

import os
import random
import signal
import tempfile
from pathlib import Path

import msgspec

from crash.invariants import DiskState, Evidence, problems, read_disk_state, read_journal
from crash.scenarios import SCENARIOS, play_lifetime, run_process
from crash.workspace import Level, Lifetime
from forked_process import forkserver_context

__all__ = ["CrashPoint", "Violation", "count_points", "evidence_of", "try_crash", "try_point"]

_TIMEOUT_SECONDS = 40.0
_MAX_RANDOM_POINT = {"group": 300, "file": 900}
"""Upper bound of a random kill. A scenario that ends before it is not killed, which is a trial too."""

_MEMORY = "/dev/shm"
"""A kill loses nothing that was written, synced or not, so a real disk would only be slower."""


class Violation(AssertionError):
    """A promise was broken. The message names it, and the way to repeat it."""


class CrashPoint(msgspec.Struct, frozen=True):
    """The server is killed at its `kill_at`-th write point, and at the `again`-th of the next start (0: not again)."""

    scenario: str
    kill_at: int
    again: int = 0
    level: Level = "group"
    flaw: str = ""


def try_point(point: CrashPoint) -> int:
    """Run one trial and return the number of kills; 0 if the scenario ended before the point. Raise `Violation`."""
    with _folder() as folder:
        try:
            evidence, kills = evidence_of(point, Path(folder))
            found = problems(evidence) + _changes_of_another_start(point, Path(folder), evidence)
        except Exception as error:
            raise Violation(f"{type(error).__name__}: {error}\nreplay: try_point({point!r})") from error
    if found:
        raise Violation("\n".join((*found, f"replay: try_point({point!r})")))
    return kills


def try_crash(seed: int) -> int:
    """Kill a random scenario at a random point, perhaps a second time during recovery; return the number of kills."""
    rng = random.Random(seed)
    scenario = rng.choice((*SCENARIOS, *[f"random-{seed}"] * 4))
    level: Level = "file" if rng.random() < 0.4 else "group"
    again = rng.randint(1, 12 if level == "group" else 40) if rng.random() < 0.4 else 0
    point = CrashPoint(scenario, rng.randint(1, _MAX_RANDOM_POINT[level]), again, level)
    try:
        return try_point(point)
    except Violation as violation:
        violation.add_note(f"seed {seed}")
        raise


def count_points(scenario: str, level: Level = "group") -> int:
    """Return the number of write points of the scenario without a kill."""
    with _folder() as folder:
        is_killed = _is_killed(Lifetime(folder, scenario=scenario, level=level))
        assert not is_killed, "something else killed it"
        return int((Path(folder) / "points").read_text())


def evidence_of(point: CrashPoint, folder: Path) -> tuple[Evidence, int]:
    """Play the scenario, kill it at the point, start again and wait until idle. A flaw affects the scenario only."""
    folder.mkdir(exist_ok=True)
    first = Lifetime(str(folder), 1, point.scenario, point.kill_at, point.level, point.flaw)
    lifetimes = [first]
    if point.again:
        lifetimes.append(msgspec.structs.replace(first, number=2, kill_at=point.again, flaw=""))
    kills = 0
    states: list[DiskState] = []
    for lifetime in lifetimes:
        kills += _is_killed(lifetime)
        states.append(read_disk_state(folder / "data"))
    lifetimes.append(Lifetime(str(folder), len(lifetimes) + 1, point.scenario))
    play_lifetime(lifetimes[-1])
    states.append(read_disk_state(folder / "data"))
    journal = [read_journal(folder / f"journal-{lifetime.number}") for lifetime in lifetimes]
    return Evidence(tuple(journal), tuple(states)), kills


def _changes_of_another_start(point: CrashPoint, folder: Path, evidence: Evidence) -> list[str]:
    """Return the changes of another start: a second recovery has nothing left to do."""
    number = len(evidence.journals) + 1
    play_lifetime(Lifetime(str(folder), number, point.scenario))
    if read_disk_state(folder / "data") == evidence.end and not read_journal(folder / f"journal-{number}").lines:
        return []
    return ["R9: another start changed what is stored"]


def _folder() -> tempfile.TemporaryDirectory[str]:
    place = os.environ.get("HOLDFAST_TEST_MEMORY") or (_MEMORY if os.access(_MEMORY, os.W_OK) else None)
    return tempfile.TemporaryDirectory(prefix="holdfast-crash-", dir=place, ignore_cleanup_errors=True)


def _is_killed(lifetime: Lifetime) -> bool:
    """Play a lifetime in a process of its own. Return false if it ended gracefully; raise if it failed."""
    process = forkserver_context().Process(target=run_process, args=(lifetime,), name=f"lifetime {lifetime.number}")
    process.start()
    process.join(_TIMEOUT_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        raise Violation("the process hangs")
    code = process.exitcode
    process.close()
    if code == -signal.SIGKILL:
        return True
    failure = Path(lifetime.folder) / "failure"
    if code != 0 or failure.exists():
        raise Violation(failure.read_text() if failure.exists() else f"the process ended with status {code}")
    return False
