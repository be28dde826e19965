"""Lines that need no approval are executed under a PATH of logging programs: no other program runs, with no other
arguments, and no file is written.
"""

import hashlib
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from string import ascii_letters

import pytest

from holdfast.domain.settings import PermissionSettings
from holdfast.permissions import git_readonly
from holdfast.permissions.readonly_programs import ANY, PROGRAMS, ProgramOptions
from holdfast.permissions.rule_decision import RuleSet
from holdfast.permissions.shell_lexer import SimpleCommand
from holdfast.permissions.shell_parser import parse
from holdfast.permissions.wrapper_commands import read_line
from permissions.corpus import LINES
from permissions.test_corpus import bash

AUTOMATIC = [item.line for item in LINES if item.decision == "allow"]
WRAPPERS = {"env", "nohup", "nice", "timeout", "time", "command", "builtin", "stdbuf", "sh", "bash", "xargs"}
REAL = ("/usr/local/bin", "/usr/bin", "/bin")
# One write for each call: several may run concurrently.
LOGGER = """#!/bin/sh
name=${0##*/}
call=$name
for word; do call="$call\x01$word"; done
printf '%s' "$call\x01\x02" >> "LOG"
for place in REAL; do
  [ -x "$place/$name" ] && exec "$place/$name" "$@"
done
exit 127
"""
RUNNER = """
log=$1; shift
for line; do
  printf '\\003' >> "$log"
  ( eval "$line"; wait ) </dev/null >/dev/null 2>&1
done
"""


class LoggedShell:
    """A project, a home and a temporary directory, with every program replaced by one that logs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.project = root / "project"
        self.log = root / "log"
        programs = root / "bin"
        logger = root / "logger"
        for place in (self.project / "src", self.project / "docs", programs, root / "home", root / "tmp"):
            place.mkdir(parents=True)
        logger.write_text(LOGGER.replace("LOG", str(self.log)).replace("REAL", " ".join(REAL)))
        logger.chmod(0o755)
        for name in {name for place in REAL if Path(place).is_dir() for name in os.listdir(place)}:
            (programs / name).symlink_to(logger)
        for name in ("a.txt", "b.txt", "src/a.py", "docs/x.md", "data.json"):
            (self.project / name).write_text('{"name": "foo"}\n')
        self._is_readonly_git_here("init", "-q")
        self._is_readonly_git_here("add", ".")
        self._is_readonly_git_here("commit", "-q", "-m", "first")
        (self.project / "a.txt").write_text("foo\nbar\n")

    def _is_readonly_git_here(self, *words: str) -> None:
        who = ("-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false")
        subprocess.run(["git", *who, *words], cwd=self.project, check=True, env=self.environment(os.environ["PATH"]))

    def environment(self, path: str) -> dict[str, str]:
        return {
            "PATH": path,
            "HOME": str(self.root / "home"),
            "TMPDIR": str(self.root / "tmp"),
            "GIT_OPTIONAL_LOCKS": "0",
            "GIT_CONFIG_NOSYSTEM": "1",
            "LC_ALL": "C.UTF-8",
        }

    def run(self, lines: list[str]) -> list[list[list[str]]]:
        """Return the program calls made by each line."""
        self.log.write_bytes(b"")
        command = ["/bin/bash", "-c", RUNNER, "runner", str(self.log), *lines]
        subprocess.run(command, cwd=self.project, env=self.environment(str(self.root / "bin")), timeout=60, check=False)
        calls = self.log.read_text("utf-8", "replace").split("\x03")[1:]
        return [[call.split("\x01")[:-1] for call in item.split("\x02")[:-1]] for item in calls]

    def files(self) -> dict[str, tuple[int, int, str]]:
        """Return all files except git's index refresh."""
        found = {}
        for place in (self.project, self.root / "home", self.root / "tmp"):
            for path in [place, *place.rglob("*")]:
                if path.name != "index":
                    about = path.lstat()
                    content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
                    found[str(path)] = (about.st_mode, about.st_mtime_ns, content)
        return found


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> LoggedShell:
    return LoggedShell(tmp_path_factory.mktemp("stage"))


def commands_of(line: str) -> list[SimpleCommand]:
    return [*parse(line).commands, *read_line(line).commands]


def is_expected(call: list[str], line: str) -> bool:
    """Return true if the decision named this program, with these arguments where they can be known in advance."""
    known = commands_of(line)
    name = call[0]
    if name in WRAPPERS:
        return name in line.replace("\\", "")
    if name == "grep" and any(command.name in ("egrep", "fgrep") for command in known):
        return True
    same = [command for command in known if command.name == name]
    open_ended = [command for command in same if _is_expanded(command, line)]
    return bool(open_ended) or tuple(call) in [command.texts for command in same]


def _is_expanded(command: SimpleCommand, line: str) -> bool:
    words = command.argv[1:]
    return command.is_open or "$" in line or any(word.is_glob or word.is_home or "{}" in word.text for word in words)


def test_logged_shell_detects_programs_arguments_and_files(shell: LoggedShell) -> None:
    """A check that cannot fail would prove nothing."""
    before = shell.files()
    calls = shell.run(["ls 'a b' | wc -l", "touch new"])
    assert sorted(call[0] for call in calls[0]) == ["ls", "wc"]
    assert ["ls", "a b"] in calls[0]
    assert calls[1] == [["touch", "new"]]
    assert shell.files() != before
    assert not is_expected(["ls", "other"], "ls 'a b'")
    assert not is_expected(["rm", "a"], "ls a")
    (shell.project / "new").unlink()


def test_line_without_an_approval_runs_only_the_decided_commands(shell: LoggedShell) -> None:
    before = shell.files()
    calls = shell.run(AUTOMATIC)
    assert len(calls) == len(AUTOMATIC)
    assert [
        (line, call)
        for line, made in zip(AUTOMATIC, calls, strict=True)
        for call in made
        if not is_expected(call, line)
    ] == []
    assert sum(bool(made) for made in calls) > len(AUTOMATIC) / 2, "most of them run a program"
    after = shell.files()
    assert {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} == set()


PIECES = (
    "ls|echo|touch x|rm a.txt|-l|a.txt| | |;|&|&&|\n|'|\"|\\|$(|`|)|(|#|{|}|<|>|2>|/dev/null|*|~|=|$|$X|X=1 |!|[ |"
    "LC_ALL=C |[[ |a,b|..|env |sh -c |-c|xargs |-exec |{} |\\;|é|\t|if |then |fi|<<<|<<E|$?|$'|eval |f()|%|-n|?|true"
)


ACTING = ("--output=made", "-omade a.txt")
WORDS = ("made", "a.txt made", "-- list", "1 made")
SCRIPTS = {"sed": "p", "awk": "{print}", "mawk": "{print}", "gawk": "{print}", "grep": "foo", "rg": "foo", "jq": "."}
NOT_TRIED = {"date", "free", "hostname", "seq", "sleep", "tail"}
"""They would act on the machine, or not end."""


def spelt(options: ProgramOptions) -> list[str]:
    """Return every option of a table, alone and joined with a value; any letter where the table has none."""
    letters = options.flags + options.valued + options.joined if options is not ANY else ascii_letters
    pairs = [a + b for a in options.flags[:4] for b in options.valued]
    short = [f"-{text}" for letter in letters for text in (letter, f"{letter}o")] + [f"-{text}" for text in pairs]
    return [*short, *(f"--{name}" for name in sorted(options.long | options.long_valued)), ""]


def tries() -> Iterator[list[str]]:
    """Return lines for each program in which an option precedes, or follows, words that some program would write to."""
    tables = {name: use.options for name, use in PROGRAMS.items() if name not in NOT_TRIED}
    tables |= {f"git {name} {use.verb}": use.options for name, use in git_readonly._SUBCOMMANDS.items()}
    rng = random.Random(20261116)
    for name, options in tables.items():
        start = f"{name} '{SCRIPTS[name]}'" if name in SCRIPTS else name
        known = spelt(options)
        acting = [f"{start} {option} {words}" for option in known for words in ACTING]
        operands = [f"{start} {option} {words}" for option in known for words in WORDS]
        operands += [f"{start} a.txt {option}" for option in known]
        for some, limit in ((acting, 4 if options is ANY else 20), (operands, 6)):
            yield rng.sample(some, min(limit, len(some)))


def test_option_with_a_missing_value_does_not_hide_the_next_word(shell: LoggedShell) -> None:
    rules = RuleSet(PermissionSettings(), str(shell.project))
    (shell.project / "list").write_text("foo\n")
    lines = [
        line for some in tries() for line in some if rules.judge(bash(line, str(shell.project))).decision == "allow"
    ]
    assert len(lines) > 200
    before = shell.files()
    assert unexpected_calls(lines, shell) == []
    after = shell.files()
    assert {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} == set()


def unexpected_calls(lines: list[str], shell: LoggedShell) -> list[tuple[str, list[str]]]:
    """Return the programs that ran although they were not expected."""
    made = zip(lines, shell.run(lines), strict=True)
    return [(line, call) for line, calls in made for call in calls if not is_expected(call, line)]


def test_mutated_lines_run_only_the_decided_commands(shell: LoggedShell) -> None:
    """Lines of the corpus with pieces inserted or removed."""
    rng = random.Random(20261116)
    pieces = PIECES.split("|")
    rules = RuleSet(PermissionSettings(), str(shell.project))
    found: dict[str, None] = {}
    for _ in range(1_500):
        line = rng.choice(AUTOMATIC)
        for _ in range(rng.randint(1, 3)):
            at = rng.randint(0, len(line))
            line = line[:at] + rng.choice(pieces) + line[at + rng.choice((0, 0, 1)) :]
        if line.strip() and rules.judge(bash(line, str(shell.project))).decision == "allow":
            found[line] = None
    lines = list(found)
    assert len(lines) > 100
    before = shell.files()
    assert unexpected_calls(lines, shell) == []
    after = shell.files()
    assert {path for path in before.keys() | after.keys() if before.get(path) != after.get(path)} == set()


HOSTILE = ("-a", "-c", "-delete", "-v", "--a", "--pre=sh", "--output=made", "-LR", "-omade", "1", "PATH", "expire")
"""Names that some program takes for an option, a number or a variable."""
PATTERNS = (
    "*|-*|-? a*|-n * ls|-u * ls|1* ls|-k 1* 2 ls|-I 1* echo|. -newer *|. -newer -*|. -exec echo * \\;|-e -*|-e *|1*|e*|"
    "?v PATH src; ls|--max-lines touch echo|-I echo echo|-s a* -c|-f 1* a.txt|-n 1* a.txt"
)


def test_file_names_do_not_become_options(tmp_path: Path) -> None:
    """Programs and wrappers with patterns in place of options, numbers or commands, among files with hostile names."""
    shell = LoggedShell(tmp_path)
    for name in (*HOSTILE, "a[$(touch made)]", '1{system("touch made")}', ".|env"):
        (shell.project / name).write_text("touch made\n")
    (shell.project / "sh").write_text("touch made\n")
    rules = RuleSet(PermissionSettings(), str(shell.project))
    programs = [*PROGRAMS.keys() - NOT_TRIED, "git reflog", *WRAPPERS, "ionice"]
    lines = [f"{name} {pattern}" for name in sorted(programs) for pattern in PATTERNS.split("|")]
    allowed = [line for line in lines if rules.judge(bash(line, str(shell.project))).decision == "allow"]
    assert len(allowed) > 100
    before = shell.files()
    assert unexpected_calls(allowed, shell) == []
    assert shell.files() == before
