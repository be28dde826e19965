"""Read-only options of programs: each that needs no approval, in each of its forms, and no others.

`options.txt` has a line for each program and each git subcommand: letters without a value, letters that may have a
value in the same word, and long options.
"""

import string
from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast.domain.settings import PermissionSettings
from holdfast.permissions.rule_decision import RuleSet
from permissions.fake_disk import judge_line, rules_of

LETTERS = string.ascii_letters + string.digits + "."


def _table() -> dict[str, tuple[str, str, list[str]]]:
    found: dict[str, tuple[str, str, list[str]]] = {}
    for line in (Path(__file__).parent / "options.txt").read_text("ascii").splitlines():
        program, alone, joined, long = line.split("\t")
        found[program] = alone, joined, long.split()
    return found


TABLE = _table()
OPERANDS = {
    "sed": "p a.txt",
    "awk": "1 a.txt",
    "gawk": "1 a.txt",
    "mawk": "1 a.txt",
    "jq": ". a.txt",
    "whoami": "",
    "uptime": "",
    "hostname": "",
    "date": "",
    "git branch": "",
    "git tag": "",
    "git remote": "",
    "git count-objects": "",
    "git version": "",
    "git stash list": "",
    "git worktree list": "",
}

_GREP = {"exclude-from", "file"}
_RG = {"file", "files", "ignore-file", "type-list"}
PATHLESS: dict[str, set[str]] = {"numfmt": set(), "jq": set(), "grep": _GREP, "egrep": _GREP, "fgrep": _GREP, "rg": _RG}
"""For these the first operand is not a path, except after these options."""


@pytest.fixture(scope="module")
def rules() -> RuleSet:
    return rules_of(PermissionSettings())


def options_that_ask(rules: RuleSet, program: str, options: Iterable[str]) -> set[str]:
    """Return the options with which the program needs an approval. One line has a command for each of them."""
    operand = OPERANDS.get(program, "a.txt")
    commands = {f"{program} {option} {operand}".strip(): option for option in options}
    if not commands:
        return set()
    verdict = judge_line(rules, " && ".join(commands))
    saved = {text.removeprefix("bash(").removesuffix(") in /w") for text in verdict.saves}
    assert saved <= commands.keys()
    assert bool(saved) == (verdict.decision == "ask")
    return {commands[command] for command in saved}


@pytest.mark.parametrize("program", TABLE)
def test_options_that_need_no_approval(rules: RuleSet, program: str) -> None:
    alone, joined, long = TABLE[program]
    assert options_that_ask(rules, program, (f"-{letter}" for letter in LETTERS)) == {
        f"-{x}" for x in LETTERS if x not in alone
    }
    with_value = options_that_ask(rules, program, (f"-{letter}%" for letter in LETTERS))
    assert with_value == {f"-{letter}%" for letter in LETTERS if letter not in joined}
    names = [name.rstrip("=") for name in long]
    assert options_that_ask(rules, program, (f"--{name}" for name in names)) == set()
    assert options_that_ask(rules, program, (f"--{name}=x" for name in names)) == set()
    # The value is the next word, which is neither a path nor an option.
    plain = {f"--{name} ../{name}" for name in long if not name.endswith("=")}
    valued = {f"--{name} ../{name}" for name in names} - plain
    paths = {f"--{name} ../{name}" for name in PATHLESS.get(program, ())} if program in PATHLESS else plain
    assert options_that_ask(rules, program, {*plain, *valued}) == paths
    unknown = {*(name[:-1] for name in names), "output", "exec", "files0-from", "pre"} - set(names)
    assert options_that_ask(rules, program, (f"--{name}" for name in unknown)) == {f"--{name}" for name in unknown}


DASHED = {"head": {"-c", "-n", "--bytes", "--lines"}, "tail": {"-c", "-n", "--bytes", "--lines"}}
"""Options whose value may begin with a dash."""


@pytest.mark.parametrize("program", [name for name in TABLE if name not in PATHLESS])
def test_values_that_are_or_begin_with_a_dash(rules: RuleSet, program: str) -> None:
    """A single dash is a value like any other; a word that begins with one may also be the next option."""
    alone, _, long = TABLE[program]
    names = [*(f"-{letter}" for letter in alone), *(f"--{name.rstrip('=')}" for name in long)]
    # An option that takes no value leaves this word as an operand, which lies outside of the workspace.
    flags = options_that_ask(rules, program, (f"{name} ../x" for name in names))
    valued = [name for name in names if f"{name} ../x" not in flags]
    assert options_that_ask(rules, program, (f"{name} -" for name in valued)) == set()
    for value in ("-5", "-x"):
        refused = {f"{name} {value}" for name in valued if name not in DASHED.get(program, ())}
        assert options_that_ask(rules, program, (f"{name} {value}" for name in valued)) == refused


@pytest.mark.parametrize("program", ["grep", "egrep", "fgrep", "rg"])
def test_searched_patterns_and_numbers_with_a_dash(rules: RuleSet, program: str) -> None:
    """Only a pattern may begin with a dash."""
    patterns = [f"{name} {value}" for name in ("-e", "--regexp", "-ie") for value in ("-", "-5", "-x")]
    assert options_that_ask(rules, program, patterns) == set()
    numbers = ["-A", "-B", "-C", "-m", "-iA", "--max-count", "--context"]
    assert options_that_ask(rules, program, (f"{name} - x" for name in numbers)) == set()
    refused = {f"{name} -5 x" for name in numbers}
    assert options_that_ask(rules, program, refused) == refused
