"""Crash points: a real process is killed with SIGKILL at a chosen write, and what it promised is held against it.

A trial is a `Point`: which story is played, at which of its write points the server dies, and at which write
point of the next start it dies again, if it does. To see one again, from Python:

    from crash.crash_points import Point, try_point
    try_point(Point("working", 17, again=5))

A killed process is a fork of a small process that has everything imported and no threads. The start that has
to live with what is left runs in this process, to its graceful end, and then once more: that must change nothing.
"""

import os
import random
import signal
import tempfile
from pathlib import Path

import msgspec

from crash.invariants import Evidence, Remains, look, problems, read_diary
from crash.scenarios import STORIES, live, play_life
from crash.workspace import Level, Life
from forked_process import forkserver_context

__all__ = ["Point", "Violation", "count_points", "evidence_of", "try_crash", "try_point"]

_PATIENCE_SECONDS = 40.0
_MOST_POINTS = {"group": 300, "file": 900}
"""Where a random kill falls. A story that is over before it is not killed, which is a trial too."""

_MEMORY = "/dev/shm"
"""A kill loses nothing that was written, synced or not, so a disk would only take its time."""


class Violation(AssertionError):
    """A promise was broken. The message says which, and how to see it again."""


class Point(msgspec.Struct, frozen=True):
    """Where the server dies: at its `kill_at`-th write point; and at the `again`-th of the next start (0: it lives)."""

    story: str
    kill_at: int
    again: int = 0
    level: Level = "group"
    flaw: str = ""


def try_point(point: Point) -> int:
    """One trial. The number of kills; 0 if the story was over before the point. Raises `Violation`."""
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
    """A random story, a random kill, perhaps a second one during recovery. The number of kills."""
    dice = random.Random(seed)
    story = dice.choice((*STORIES, *[f"random-{seed}"] * 4))
    level: Level = "file" if dice.random() < 0.4 else "group"
    again = dice.randint(1, 12 if level == "group" else 40) if dice.random() < 0.4 else 0
    point = Point(story, dice.randint(1, _MOST_POINTS[level]), again, level)
    try:
        return try_point(point)
    except Violation as violation:
        violation.add_note(f"seed {seed}")
        raise


def count_points(story: str, level: Level = "group") -> int:
    """How many write points the story has when nobody is killed."""
    with _folder() as folder:
        is_killed = _is_killed(Life(folder, story=story, level=level))
        assert not is_killed, "something else killed it"
        return int((Path(folder) / "points").read_text())


def evidence_of(point: Point, folder: Path) -> tuple[Evidence, int]:
    """Play the story, kill as the point says, start again and wait until all is quiet. A flaw is in the story only."""
    folder.mkdir(exist_ok=True)
    first = Life(str(folder), 1, point.story, point.kill_at, point.level, point.flaw)
    lives = [first]
    if point.again:
        lives.append(msgspec.structs.replace(first, number=2, kill_at=point.again, flaw=""))
    kills = 0
    remains: list[Remains] = []
    for life in lives:
        kills += _is_killed(life)
        remains.append(look(folder / "data"))
    lives.append(Life(str(folder), len(lives) + 1, point.story))
    play_life(lives[-1])
    remains.append(look(folder / "data"))
    told = [read_diary(folder / f"diary-{life.number}") for life in lives]
    return Evidence(tuple(told), tuple(remains)), kills


def _changes_of_another_start(point: Point, folder: Path, evidence: Evidence) -> list[str]:
    """Recovery has nothing left to do the second time."""
    number = len(evidence.told) + 1
    play_life(Life(str(folder), number, point.story))
    if look(folder / "data") == evidence.end and not read_diary(folder / f"diary-{number}").lines:
        return []
    return ["R9: another start changed what is stored"]


def _folder() -> tempfile.TemporaryDirectory[str]:
    place = os.environ.get("HOLDFAST_TEST_MEMORY") or (_MEMORY if os.access(_MEMORY, os.W_OK) else None)
    return tempfile.TemporaryDirectory(prefix="holdfast-crash-", dir=place, ignore_cleanup_errors=True)


def _is_killed(life: Life) -> bool:
    """Play a life in a process of its own. False if it came to its graceful end; raises if it failed."""
    process = forkserver_context().Process(target=live, args=(life,), name=f"life {life.number}")
    process.start()
    process.join(_PATIENCE_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        raise Violation("the process hangs")
    code = process.exitcode
    process.close()
    if code == -signal.SIGKILL:
        return True
    failure = Path(life.folder) / "failure"
    if code != 0 or failure.exists():
        raise Violation(failure.read_text() if failure.exists() else f"the process ended with status {code}")
    return False
