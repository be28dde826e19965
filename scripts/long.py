"""Trials with fresh seeds for a given number of minutes. Started by `scripts/long`.

Each trial is a function of a seed that raises when a promise is broken. They take turns of a few seconds.
Another kind of trial is one more line in `TRIALS`.
"""

import contextlib
import secrets
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))
USAGE = "usage: scripts/long MINUTES | scripts/long --replay NAME SEED | scripts/long --cluster COUNT"
TURN_SECONDS = 5.0
REPORT_SECONDS = 30.0
MAX_SHOWN = 3
MUTANTS_MINUTES = 10.0
CLUSTER_MINUTES = 20.0
CLUSTER_COUNT = 20
MUTATION_MINUTES = 60.0
MUTATION_SAMPLE = 200


class Trial(NamedTuple):
    """Location of the function of a trial, which is imported on its first turn."""

    name: str
    module: str
    function: str

    def load(self) -> Callable[[int], object]:
        function: Callable[[int], object] = getattr(import_module(self.module), self.function)
        return function


TRIALS = (
    Trial("schedules", "trials.schedules", "try_schedule"),
    Trial("crashes", "crash.crash_points", "try_crash"),
    Trial("sandbox escapes", "trials.sandbox_escapes", "try_escapes"),
    Trial("trees", "trials.hostile_commands", "try_tree"),
    Trial("typed text", "trials.typed_text", "try_typed_text"),
    Trial("rules", "trials.permission_rules", "try_rules"),
    Trial("hostile repositories", "trials.hostile_git", "try_repository"),
    Trial("killers", "trials.supervisor_killers", "try_killer"),
    Trial("swaps", "trials.link_swaps", "try_swap"),
    Trial("spellings", "trials.command_spellings", "try_spellings"),
    Trial("data", "trials.command_spellings", "try_data"),
    Trial("unapproved", "trials.unapproved_commands", "try_unapproved"),
    Trial("data directory", "trials.replaced_data_directory", "try_detach"),
)


class Tally:
    """Results of one trial so far."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.run = trial.load()
        self.tried = 0
        self.failed: list[int] = []

    def run_until(self, until: float) -> None:
        while time.monotonic() < until:
            seed = secrets.randbelow(1 << 31)
            try:
                self.run(seed)
            except Exception:
                self.failed.append(seed)
                if len(self.failed) <= MAX_SHOWN:
                    print_line(f"\n{self.trial.name}, seed {seed}:\n{traceback.format_exc()}")
            self.tried += 1

    def __str__(self) -> str:
        seeds = f", seeds to replay: {' '.join(map(str, self.failed))}" if self.failed else ""
        return f"{self.trial.name}: {self.tried} tried, {len(self.failed)} violations{seeds}"


def print_line(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def keep_trying(tallies: list[Tally], minutes: float) -> None:
    end = time.monotonic() + 60 * minutes
    report = time.monotonic() + REPORT_SECONDS
    while time.monotonic() < end:
        for tally in tallies:
            tally.run_until(min(end, time.monotonic() + TURN_SECONDS))
        if time.monotonic() > report:
            report = time.monotonic() + REPORT_SECONDS
            left = max(0.0, end - time.monotonic()) / 60
            print_line(f"{left:.1f} minutes left; " + "; ".join(map(str, tallies)))


def catches_mutants() -> bool:
    """Plant every mistake: `scripts/test` plants only those whose source or tests have changed."""
    script = Path(__file__).with_name("mutants.py")
    return subprocess.run([sys.executable, str(script)], check=False).returncode == 0


def try_cluster(count: int) -> bool:
    """Let nodes and PostgreSQL fail, each kind of fault `count` times, and print figures. Returns whether all held."""
    from trials.cluster_failures import try_many  # noqa: PLC0415 - the other trials do not need PostgreSQL

    return try_many(count, secrets.randbelow(1 << 31), print_line)


def sample_mutants() -> None:
    """Print the survivors of a fresh sample of mutants. They need a review: not each of them is a violation."""
    seed = str(secrets.randbelow(1 << 31))
    script = Path(__file__).with_name("mutation")
    print_line(f"scripts/mutation --sample {MUTATION_SAMPLE} --seed {seed}")
    subprocess.run([str(script), "--sample", str(MUTATION_SAMPLE), "--seed", seed], check=False)


def try_long(minutes: float) -> int:
    began = time.monotonic()
    holds = minutes < MUTANTS_MINUTES or catches_mutants()
    if minutes >= CLUSTER_MINUTES:
        holds &= try_cluster(CLUSTER_COUNT)
    if minutes >= MUTATION_MINUTES:
        sample_mutants()
    minutes -= (time.monotonic() - began) / 60
    tallies = [Tally(trial) for trial in TRIALS]
    with contextlib.suppress(KeyboardInterrupt):
        keep_trying(tallies, minutes)
    for tally in tallies:
        print_line(str(tally))
    return 1 if any(tally.failed for tally in tallies) or not holds else 0


def replay(name: str, seed: int) -> int:
    found = [trial for trial in TRIALS if trial.name == name]
    if not found:
        print_line(f"There is no trial called {name}. There is: {', '.join(trial.name for trial in TRIALS)}.")
        return 2
    found[0].load()(seed)
    print_line(f"{name}, seed {seed}: no violation")
    return 0


def main(arguments: list[str]) -> int:
    match arguments:
        case ["--replay", name, seed] if seed.isdigit():
            return replay(name, int(seed))
        case ["--cluster", count] if count.isdigit() and int(count) > 0:
            return 0 if try_cluster(int(count)) else 1
        case [minutes] if minutes.replace(".", "", 1).isdigit():
            return try_long(float(minutes))
        case _:
            print_line(USAGE)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
