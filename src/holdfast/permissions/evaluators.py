"""Builtins and variables of the shell that change what a line runs. Pure.

Such a builtin takes text that bash evaluates (`eval` in all but name): the subscript of a variable's name runs
commands, an alias or a hashed path makes one program of another. Where the words of a command leave that possible, the
line hides what it runs.
"""

import re
from collections.abc import Callable, Mapping, Sequence

from holdfast.permissions.lines import Command
from holdfast.permissions.words import Word, names

__all__ = ["changes_programs", "evaluates"]

_ALWAYS = names(
    "source . alias unalias hash enable complete compgen compopt bind let fc history coproc mapfile readarray"
)
_NAME = re.compile(r"[A-Za-z_]\w*", re.A)
_NAMED = re.compile(r"[A-Za-z_]\w*=|[A-Za-z_]\w*$", re.A)
_SUBSCRIPT = re.compile(r"\[.*(\$\(|`|\$\{)", re.S)
"""Text that runs commands where bash takes it for the name of a variable or for a number."""
_CHANGES = re.compile(
    r"PATH|EXECIGNORE|ENV|PS0|PS4|PROMPT_COMMAND|SHELLOPTS|BASHOPTS|CDPATH|POSIXLY_CORRECT|SHELL|HOME|PWD|OLDPWD|BASH_.*"
    r"|LD_.*|DYLD_.*|\w*PAGER|\w*EDITOR|\w*_RSH|LESSOPEN|LESSCLOSE|TAR_OPTIONS|GREP_OPTIONS|RIPGREP_CONFIG_PATH"
    r"|GIT_(?!AUTHOR_|COMMITTER_|TERMINAL_PROMPT|OPTIONAL_LOCKS)\w*"
)
_GLOBBING = frozenset(["-s", "-u", "nullglob", "globstar", "dotglob", "failglob", "nocaseglob"])
_SET = re.compile(r"[-+][euxfvC]+|[-+][eux]*o|pipefail|errexit|nounset|xtrace|noclobber")


def changes_programs(name: str) -> bool:
    """Whether a variable decides which program a name stands for, or makes a program run another."""
    return bool(_CHANGES.fullmatch(name))


def evaluates(command: Command) -> bool:
    """Whether a builtin, or an assignment, may run a text or change what later names stand for."""
    if any(changes_programs(name) for name, _ in command.assignments):
        return True
    values = [*command.argv, *(value for _, value in command.assignments)]
    if any(_SUBSCRIPT.search(word.text) for word in values):
        return True
    check = _CHECKS.get(command.name)
    return command.name in _ALWAYS or (check is not None and check(command.argv[1:]))


def _declares(words: Sequence[Word]) -> bool:
    for word in words:
        if word.text.startswith("-"):
            if not word.is_literal or not re.fullmatch(r"-[xrgaAlupfF]+|--", word.text):
                return True
        elif not _NAMED.match(word.text) or changes_programs(word.text.partition("=")[0]):
            return True
    return False


def _reads(words: Sequence[Word]) -> bool:
    return not all(word.is_literal and not changes_programs(word.text) for word in words)


def _unsets(words: Sequence[Word]) -> bool:
    return not all(
        word.is_literal
        and (word.text in ("-v", "-f") or _NAME.fullmatch(word.text))
        and not changes_programs(word.text)
        for word in words
    )


def _prints(words: Sequence[Word]) -> bool:
    first = words[0].text if words else ""
    return first.startswith("-v") or bool(re.search(r"%[-+ #0'*\d.]*n", first.replace("%%", "")))


def _tests(words: Sequence[Word]) -> bool:
    if any(word.is_dynamic and not word.is_quoted for word in words):
        return True
    return any(word.text in ("-v", "-R") for word in words)


def _sets(words: Sequence[Word]) -> bool:
    for word in words:
        if word.text == "--":
            return False
        if not word.is_literal or not _SET.fullmatch(word.text):
            return True
    return False


def _has(option: str) -> Callable[[Sequence[Word]], bool]:
    return lambda words: any(word.is_dynamic or word.text.startswith(option) for word in words)


_CHECKS: Mapping[str, Callable[[Sequence[Word]], bool]] = {
    **dict.fromkeys(("declare", "typeset", "local", "export", "readonly"), _declares),
    **dict.fromkeys(("read", "getopts"), _reads),
    "unset": _unsets,
    "printf": _prints,
    **dict.fromkeys(("test", "["), _tests),
    "set": _sets,
    "shopt": lambda words: not all(word.is_literal and word.text in _GLOBBING for word in words),
    "wait": _has("-p"),
    "jobs": _has("-x"),
}
