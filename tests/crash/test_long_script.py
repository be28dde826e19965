"""`scripts/long`, as a real process."""

import re
import subprocess
from pathlib import Path

LONG = Path(__file__).resolve().parents[2] / "scripts" / "long"


def run(*arguments: str) -> tuple[int, list[str]]:
    done = subprocess.run([LONG, *arguments], capture_output=True, text=True, check=False)
    return done.returncode, done.stdout.splitlines()


def test_script_prints_one_figure_per_trial() -> None:
    status, lines = run("0.002")
    assert status == 0, lines
    trials = re.findall(r'^    Trial\("([^"]+)"', LONG.with_suffix(".py").read_text(), re.MULTILINE)
    assert {"schedules", "crashes", "trees", "hostile repositories", "spellings", "typed text"} <= set(trials)
    assert [line.split(":")[0] for line in lines[-len(trials) :]] == trials
    assert all(line.endswith(" 0 violations") for line in lines[-len(trials) :])


def test_a_trial_can_be_replayed() -> None:
    assert run("--replay", "schedules", "7") == (0, ["schedules, seed 7: no violation"])


def test_unknown_trial_is_reported() -> None:
    assert run("--replay", "wishes", "7")[0] == 2
    assert run()[0] == 2
    assert run("soon")[0] == 2
    assert run("--cluster", "0")[0] == run("--cluster", "many")[0] == 2
