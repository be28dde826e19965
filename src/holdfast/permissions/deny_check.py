"""Match of deny and ask rules with a shell line: rules that apply, and rules that could apply. Pure.

A program matches by its name, by the file that the name refers to, and through links to that file. If a program, or the
words that a rule is about, are not known before the line runs, the rule could apply: the line then needs approval even
if approvals are skipped. Programs that start others themselves (make, python, npm) are not analysed; only the name of a
denied program among their arguments counts.
"""

import posixpath
import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Literal, Protocol

import msgspec

from holdfast.domain.permission_rules import Rule
from holdfast.permissions.readonly_programs import PROGRAMS
from holdfast.permissions.shell_lexer import ShellLine, SimpleCommand, Word, names
from holdfast.permissions.wrapper_commands import RUNNERS

__all__ = [
    "FileUse",
    "NamesOnly",
    "ProgramFiles",
    "directories",
    "file_uses",
    "find_denial",
    "find_uncertainty",
    "is_replaced",
]


_NO_FILES = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"})
_WRITES_ALL_OPERANDS = frozenset(
    {"tee", "touch", "truncate", "rm", "rmdir", "unlink", "shred", "mkdir", "mv", "chmod", "chown"}
)
_WRITES_LAST_OPERAND = frozenset({"cp", "mv", "install", "ln"})
_TARGET = re.compile("-t|--t[a-z-]*")


class FileUse(msgspec.Struct, frozen=True):
    """A file that a line reads or writes. `makes` is the possible result at the path: new text, or any file, such as a
    link.
    """

    action: Literal["read", "write"]
    path: str
    makes: Literal["", "text", "file"] = ""


def file_uses(line: ShellLine) -> tuple[FileUse, ...]:
    """Return the files that a line reads or writes, as far as its words name them: targets of redirections, and literal
    operands of programs that write files.
    """
    found = dict.fromkeys(use for item in line.redirections for use in _redirection_uses(item.operator, item.target))
    for command in line.commands:
        name = posixpath.basename(command.name)
        makes: Literal["", "text", "file"] = (
            "file" if name in _WRITES_LAST_OPERAND else "text" if name in ("tee", "dd") else ""
        )
        found |= dict.fromkeys(FileUse("write", path, makes) for path in _written_paths(command))
    return tuple(use for use in found if use.path not in _NO_FILES)


def is_replaced(made_by: Sequence[FileUse], paths: Sequence[str], places: Sequence[str] | None) -> bool:
    """Return True if the line itself creates or replaces one of the paths, or a directory on it: the path may then
    refer to another file than now. `places` is None if the directory is not known; a relative path may then be any
    file.
    """
    if places is None:
        if paths and any(not use.path.startswith("/") for use in made_by):
            return True
        places = ("/",)
    made = {_absolute(place, use.path) for use in made_by for place in places}
    used = {_absolute(place, path) for path in paths for place in places}
    return any(path == item or path.startswith(f"{item}/") for path in used for item in made)


def _absolute(place: str, path: str) -> str:
    return posixpath.normpath(posixpath.join(place, path))


def _redirection_uses(operator: str, target: Word) -> Iterator[FileUse]:
    if operator.startswith("<<") or not target.is_literal:
        return
    # `2>&1` and `>&-` duplicate or close a descriptor; no file is involved.
    if operator in (">&", "<&") and (target.text.rstrip("-").isdecimal() or target.text == "-"):
        return
    if operator in ("<", "<>", "<&"):
        yield FileUse("read", target.text)
    if operator not in ("<", "<&"):
        yield FileUse("write", target.text, "text")


def _written_paths(command: SimpleCommand) -> Iterator[str]:
    name = posixpath.basename(command.name)
    words = [word.text for word in command.argv[1:] if word.is_literal]
    if name == "dd":
        yield from (word.removeprefix("of=") for word in words if word.startswith("of="))
    if name not in _WRITES_ALL_OPERANDS and name not in _WRITES_LAST_OPERAND:
        return
    operands = [word for word in words if not word.startswith("-")]
    if name in _WRITES_ALL_OPERANDS:
        yield from operands
    if name in _WRITES_LAST_OPERAND and operands:
        # The target may be a directory, which is not known here: then the files in it are written.
        sources = operands if len(operands) == 1 else operands[:-1]
        for target in (operands[-1], *_target_options(words)):
            yield target
            yield from (posixpath.join(target, posixpath.basename(source.rstrip("/"))) for source in sources)
        yield from (posixpath.basename(source) for source in sources if len(operands) == 1 and name == "ln")


def _target_options(words: Sequence[str]) -> Iterator[str]:
    for at, word in enumerate(words):
        option, sign, value = word.partition("=")
        if _TARGET.fullmatch(option):
            yield value if sign else words[at + 1] if at + 1 < len(words) else ""
        elif word.startswith("-t") and not sign:
            yield word.removeprefix("-t")


_GIT_VALUED = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--exec-path", "--namespace", "--config-env"})
_GIT_CHANGES = ("-c", "--config-env", "--exec-path", "-p", "--paginate")
_GIT_PROGRAM_OPTIONS = re.compile(
    r"-x.*|--exe?c?(=.*)?|--u(p(l[a-z-]*)?)?(=.*)?|--rece[a-z-]*(=.*)?|-u.+|foreach|run|-O.*|--op[a-z-]*(=.*)?|ext::.*"
)
"""Arguments of git that name a program to run. Long options may be abbreviated."""
_PROGRAM_OPTIONS = {"sort": "--com", "rg": "--pre", "install": "--strip-"}
"""Programs with an option that names a program to start, and the shortest abbreviation of the option."""
_GIT_SUBCOMMANDS = names(
    "add am annotate apply archive bisect blame branch bundle cat-file check-attr check-ignore check-mailmap "
    "check-ref-format checkout cherry cherry-pick clean clone column commit commit-graph config count-objects "
    "describe diff diff-files diff-index diff-tree fetch for-each-ref format-patch fsck gc grep hash-object "
    "help init log ls-files ls-remote ls-tree maintenance merge merge-base merge-file merge-tree mv "
    "name-rev notes pack-refs prune pull push range-diff read-tree rebase reflog remote repack replace rerere "
    "reset restore rev-list rev-parse revert rm shortlog show show-branch show-ref sparse-checkout stash "
    "status stripspace submodule switch symbolic-ref tag update-index update-ref var verify-commit "
    "verify-pack verify-tag version whatchanged worktree write-tree"
)
"""Built-in commands of git, which no alias replaces. Those that only run other commands are left out."""
_ARGUMENTS_ARE_TEXT = PROGRAMS.keys() - {"awk", "gawk", "mawk", "sed"} | names(
    "cd pushd popd export declare local readonly typeset unset read set shopt exit return break continue "
    "shift kill wait cp mv rm mkdir rmdir touch chmod chown chgrp ln install tee dd truncate mktemp sync less "
    "more clear make gmake ninja npm yarn pnpm pip pip3 apt apt-get brew dnf cargo go gem"
)
"""Programs for which the name of another program is only text, or the name of a target or package."""
_MOVES = frozenset({"cd", "pushd", "popd"})
_MAX_MOVES = 6
_ROOT_ONLY = ("/",)
"""Directory to use if the directory of a line is not known: absolute paths do not depend on it."""


class ProgramFiles(Protocol):
    """Access to the executable files of programs."""

    def find(self, program: str, directory: str) -> str | None:
        """Return the path of a program, as the shell finds it from a directory; None if there is none."""

    def is_same(self, path: str, name: str) -> bool:
        """Return True if the file of a program is the file to which a name or a path refers, or a link to it."""


class NamesOnly:
    """Compares programs by their names, without access to the disk."""

    def find(self, program: str, directory: str) -> str | None:
        """Return a path without checking that it exists."""
        return posixpath.join(directory, program) if "/" in program else f"/usr/bin/{program}"

    def is_same(self, path: str, name: str) -> bool:
        """Return True if the base names are equal."""
        return posixpath.basename(path) == posixpath.basename(name)


def directories(line: ShellLine, start: str) -> tuple[str, ...] | None:
    """Return the directories in which parts of the line may run; None if they are not known."""
    found = {start: None}
    moves = [command for command in line.commands if command.name in _MOVES]
    # Each move may fail or succeed, which doubles the possible directories; in a loop there is no limit.
    if len(moves) > _MAX_MOVES or (moves and line.repeats):
        return None
    for move in moves:
        target = move.argv[1] if len(move.argv) == len("ab") else None
        if move.name != "cd" or target is None or not target.is_literal or target.text[:1] in ("-", ""):
            return None
        for place in tuple(found):
            there = posixpath.join(place, target.text)
            # The shell removes `..` from the text; the kernel follows links first. Both results are possible.
            found |= {there: None, posixpath.normpath(there): None}
    return tuple(found)


def find_denial(
    rules: Sequence[Rule], line: ShellLine, text: str, places: Sequence[str] | None, files: ProgramFiles
) -> Rule | None:
    """Return the first rule that matches the line or one of its commands, in any spelling."""
    for rule in rules:
        if rule.subject == "all" or (text and rule.fits_line(text)):
            return rule
        if rule.subject != "command":
            continue
        for command in (*line.commands, *line.outer):
            known = _spellings(command, rule, places or _ROOT_ONLY, files)
            if any(rule.fits_command(argv, is_open=command.is_open and not _is_whole(rule, argv)) for argv in known):
                return rule
    return None


def _is_whole(rule: Rule, argv: Sequence[str]) -> bool:
    """Return True if the known words suffice for the rule, whatever words follow."""
    return rule.words[-1:] == ("*",) and len(argv) + 1 >= len(rule.words)


def find_uncertainty(rules: Sequence[Rule], line: ShellLine, places: Sequence[str] | None, files: ProgramFiles) -> str:
    """Return the reason why one of the rules could apply although none matches; empty if none could."""
    about = [rule for rule in rules if rule.subject == "command"]
    if not about:
        return ""
    if line.hidden:
        return line.hidden[0]
    programs = [command.name for command in line.commands if "/" in command.name]
    if programs and is_replaced([use for use in file_uses(line) if use.makes], programs, places):
        return "it runs a file that it creates"
    for command in line.commands:
        if not command.argv:
            continue
        if command.name and _is_unknown(command.argv[0], places, files):
            return "its program does not exist yet, cannot be found, or is a link to a shell"
        if _git_may_run_program(command) or _may_start_program(command):
            return f"{posixpath.basename(command.name)} may run a program"
        if any(_may_fit(rule, command, places or _ROOT_ONLY, files) for rule in about):
            return "some of its words are generated while it runs"
        if any(_mentions(rule, command) for rule in about):
            return "it mentions a denied program"
    return ""


def _is_unknown(program: Word, places: Sequence[str] | None, files: ProgramFiles) -> bool:
    """Return True if a program given by a path does not exist, or is a shell or a wrapper under another name."""
    name = posixpath.basename(program.text)
    if places is None and "/" in program.text and not program.text.startswith("/"):
        return True
    found = [files.find(program.text, place) for place in places or _ROOT_ONLY]
    if "/" in program.text and not any(found):
        return True
    return name not in RUNNERS and any(files.is_same(path, runner) for path in found if path for runner in RUNNERS)


def _spellings(
    command: SimpleCommand, rule: Rule, places: Sequence[str], files: ProgramFiles
) -> Iterator[tuple[str, ...]]:
    """Yield the words of a command as rules may spell them: with other names of its program, without options of git."""
    texts = command.texts
    if not texts:
        return
    wanted = rule.words[0]
    names = {texts[0]: None, posixpath.basename(texts[0]): None}
    for place in places if "/" in texts[0] else ("/",):
        path = files.find(texts[0], place)
        if path is not None:
            names |= {path: None, posixpath.basename(path): None}
            if not _is_pattern(wanted) and files.is_same(path, wanted):
                names[wanted] = None
    # Some file systems ignore case, so that `RM` runs `rm`.
    if any(name.casefold() == posixpath.basename(wanted).casefold() for name in names):
        names[wanted] = None
    for name in names:
        yield (name, *texts[1:])
        if name.startswith("git-"):
            yield ("git", name.removeprefix("git-"), *texts[1:])
        elif name == "git":
            rest = list(texts[1:])
            while rest and rest[0].startswith("-"):
                del rest[: 2 if rest[0] in _GIT_VALUED else 1]
            yield ("git", *rest)


def _is_pattern(word: str) -> bool:
    return any(char in word for char in "*?[")


def _may_fit(rule: Rule, command: SimpleCommand, places: Sequence[str], files: ProgramFiles) -> bool:
    """Return True if words that are not known yet may make the command match the rule."""
    known = tuple(takewhile(_is_known, command.argv))
    if len(known) == len(command.argv) and not command.is_open:
        return False
    unknown = command.argv[len(known)] if len(known) < len(command.argv) else None
    for argv in _spellings(SimpleCommand(known), rule, places, files):
        if not rule.may_fit(argv):
            continue
        following = rule.words[len(argv) : len(argv) + 1]
        is_named = unknown is not None and unknown.is_glob and not unknown.is_dynamic and "{}" not in unknown.text
        if is_named and unknown is not None and following and not _is_pattern(following[0]):
            # The pattern expands to names that match it, so the next word of the rule has to match it too.
            if fnmatchcase(following[0], unknown.text):
                return True
            continue
        return True
    return False


def _is_known(word: Word) -> bool:
    return not word.is_dynamic and not (word.is_glob and word.text != "[")


def _git_may_run_program(command: SimpleCommand) -> bool:
    """Return True if git may run a program that an argument, a setting or an alias names."""
    if posixpath.basename(command.name) != "git":
        return False
    rest = list(command.argv[1:])
    while rest and rest[0].text.startswith("-"):
        option = rest.pop(0)
        if option.text.startswith(_GIT_CHANGES) and not option.text.startswith("--path"):
            return True
        if option.text in _GIT_VALUED and rest:
            rest.pop(0)
    if not rest:
        return command.is_open
    if rest[0].text not in _GIT_SUBCOMMANDS:
        return True
    runs = {"rebase", "clone", "fetch", "pull", "push", "ls-remote", "submodule", "bisect", "grep", "archive"}
    if rest[0].text == "clone" and any(re.match("-[a-zA-Z]*u", word.text) for word in rest[1:]):
        return True
    return rest[0].text in runs and any(_GIT_PROGRAM_OPTIONS.fullmatch(word.text) for word in rest[1:])


def _may_start_program(command: SimpleCommand) -> bool:
    option = _PROGRAM_OPTIONS.get(posixpath.basename(command.name))
    return option is not None and any(word.text.startswith(option) for word in command.argv)


def _mentions(rule: Rule, command: SimpleCommand) -> bool:
    """Return True if the arguments of a program that may execute them contain words that the rule is about."""
    name = posixpath.basename(command.name)
    if name in _ARGUMENTS_ARE_TEXT or (name == "git" and "config" not in command.texts):
        return False
    words = [word.text for word in command.argv[1:]] + [value.text for _, value in command.assignments]
    for at in range(1, len(command.argv)):
        texts = command.texts[at:]
        if rule.fits_command(texts) or rule.fits_command((posixpath.basename(texts[0]), *texts[1:])):
            return rule.words[:1] != ("*",)
    wanted = list(takewhile(lambda word: not _is_pattern(word), rule.words))
    if not wanted:
        return False
    wanted[0] = posixpath.basename(wanted[0])
    pattern = re.compile(r"(?<![\w-])" + r"\b.*?(?<![\w-])".join(map(re.escape, wanted)) + r"(?![\w-])", re.S)
    return any(pattern.search(word) for word in words)
