"""Commands that run other commands: what is really run. Pure.

`read_line` answers the commands inside, each to be judged on its own, in place of the one that wraps them. A
wrapper used in a way that is not known here stays itself, beside what can be seen of the command inside.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from holdfast.permissions.commands import Command, Line, parse
from holdfast.permissions.words import Word

__all__ = ["read_line"]

_DEEPEST = 8
_SHELLS = frozenset({"bash", "sh", "dash"})
_UNKNOWN_SHELLS = frozenset({"zsh", "ksh", "fish", "csh", "tcsh", "ash"})
_AS_OTHERS = frozenset({"sudo", "doas", "su", "runuser", "pkexec", "exec", "setsid", "chroot", "unshare", "watch"})
_OTHERWISE = frozenset({"-o", "-or", "!", "-not", ","})
_ACTS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_HOLES = frozenset({"{}", "%"})
"""What `xargs -I` may put its input in place of: with any other word it could be part of the command's own words."""
_UNSEEN = "it runs a command that cannot be seen"


class _Manner(msgspec.Struct, frozen=True):
    """What may stand before the command: options alone, options with a value, then `plain` words."""

    alone: frozenset[str] = frozenset()
    valued: frozenset[str] = frozenset()
    plain: int = 0


_PLAIN: Mapping[str, _Manner] = {
    "nohup": _Manner(),
    "time": _Manner(frozenset({"-p"})),
    "nice": _Manner(valued=frozenset({"-n", "--adjustment"})),
    "ionice": _Manner(frozenset({"-t"}), frozenset({"-c", "-n"})),
    "stdbuf": _Manner(valued=frozenset({"-i", "-o", "-e"})),
    "timeout": _Manner(
        frozenset({"--foreground", "--preserve-status", "-v", "--verbose"}),
        frozenset({"-k", "-s", "--kill-after", "--signal"}),
        plain=1,
    ),
    "command": _Manner(frozenset({"-p"})),
    "builtin": _Manner(),
    "xargs": _Manner(
        frozenset({"-0", "-r", "-t", "-x", "--null", "--no-run-if-empty", "--verbose", "--exit"}),
        frozenset({"-n", "-L", "-P", "-d", "-s", "-I", "--max-args", "--max-procs", "--delimiter"}),
    ),
}


@lru_cache(maxsize=256)
def read_line(text: str) -> Line:
    """A line with every wrapper replaced by what it runs."""
    return _read(text, 0)


def _read(text: str, depth: int) -> Line:
    line = parse(text)
    found = _together(_expand(command, depth) for command in line.commands)
    return Line(
        found.commands,
        (*line.redirections, *found.redirections),
        tuple(dict.fromkeys((*line.doubts, *found.doubts))),
    )


def _together(lines: Iterable[Line]) -> Line:
    known = tuple(lines)
    return Line(
        tuple(command for line in known for command in line.commands),
        tuple(item for line in known for item in line.redirections),
        tuple(doubt for line in known for doubt in line.doubts),
    )


def _expand(command: Command, depth: int) -> Line:
    """What a command comes to."""
    name = command.name
    if depth > _DEEPEST:
        return Line((command,), doubts=("it is nested too deeply",))
    if name in _SHELLS:
        return _shell(command, depth)
    if name == "eval":
        return _with_doubt(command, _read(" ".join(command.texts[1:]), depth + 1))
    if name in _AS_OTHERS or name in _UNKNOWN_SHELLS:
        return _with_doubt(command, _expand(_after_options(command), depth + 1))
    if name == "env":
        return _env(command, depth)
    if name == "find":
        return _find(command, depth)
    if name in _PLAIN and not _only_looks(command):
        return _wrapped(command, _PLAIN[name], depth)
    return Line((command,))


def _with_doubt(command: Command, inner: Line) -> Line:
    """The command itself decides, and is not known well enough; what is inside is named for those who forbid it."""
    inside = tuple(item for item in inner.commands if item.argv)
    return Line((command, *inside), inner.redirections, (*inner.doubts, _UNSEEN))


def _after_options(command: Command) -> Command:
    """A guess at the command inside: what follows the first words that look like options."""
    rest = command.argv[1:]
    while rest and rest[0].text.startswith("-"):
        rest = rest[2 if rest[0].text in ("-u", "-g", "-n", "-C", "-h", "-p", "-k", "-s") else 1 :]
    return Command(rest)


def _only_looks(command: Command) -> bool:
    return command.name == "command" and len(command.argv) > 1 and command.argv[1].text in ("-v", "-V")


def _shell(command: Command, depth: int) -> Line:
    """`sh -c` with a script that can be read; anything else runs a file or reads what it is given."""
    words = list(command.texts[1:])
    options = [word for word in words if word.startswith("-")]
    if len(words) < 2 or words[0] not in ("-c", "-ec", "-uc", "-euc") or len(options) > 1 or command.is_open:
        behind = (words[at + 1] for at, word in enumerate(words[:-1]) if word.startswith("-") and word.endswith("c"))
        return _with_doubt(command, _read(next(behind, ""), depth + 1))
    inner = _read(words[1], depth + 1)
    if any(word.is_glob or word.is_home or word.is_dynamic for word in command.argv):
        return _with_doubt(command, inner)
    carried = tuple(_assigned(item, command) for item in inner.commands)
    return Line(carried, inner.redirections, inner.doubts)


def _assigned(inner: Command, outer: Command) -> Command:
    return replace(inner, assignments=(*outer.assignments, *inner.assignments))


def _env(command: Command, depth: int) -> Line:
    rest = list(command.argv[1:])
    assigned = list(command.assignments)
    while rest and rest[0].text in ("-i", "-", "--ignore-environment", "-u", "--unset"):
        # Without its environment a program may not find what it needs; it does nothing worse.
        taken = 2 if rest[0].text in ("-u", "--unset") else 1
        if any(word.is_glob for word in rest[:taken]):
            return _with_doubt(command, Line())
        del rest[:taken]
    while rest and "=" in rest[0].text and rest[0].text.partition("=")[0].isidentifier():
        name, _, value = rest[0].text.partition("=")
        assigned.append((name, replace(rest.pop(0), text=value)))
    if not rest:
        return Line((replace(command, assignments=tuple(assigned)),))
    if rest[0].text.startswith("-") or rest[0].may_be_option:
        return _with_doubt(command, Line())
    return _expand(Command(tuple(rest), tuple(assigned), is_open=command.is_open), depth + 1)


def _wrapped(command: Command, manner: _Manner, depth: int) -> Line:
    rest = _behind(command.argv[1:], manner)
    if rest is None:
        return _with_doubt(command, _expand(_after_options(command), depth + 1))
    if not rest:
        # Alone it runs nothing, but for xargs, which prints what it reads.
        return Line((command,))
    is_open = command.is_open or command.name == "xargs"
    inner = _expand(Command(tuple(rest), command.assignments, is_open=is_open), depth + 1)
    if command.name == "xargs" and inner.commands[:1] and inner.commands[0].name != rest[0].text:
        # What is read may end up anywhere in a command that is itself wrapped.
        return _with_doubt(command, inner)
    return inner


def _behind(words: Sequence[Word], manner: _Manner) -> list[Word] | None:
    """The words of the command inside. None if an option is not known, or a pattern stands before the command: it may
    become several words, and any of them the command.
    """
    rest = list(words)
    while rest and rest[0].text.startswith("-"):
        option = rest.pop(0).text
        if option == "--":
            break
        name, sign, _ = option.partition("=")
        if option in manner.alone or (sign and name in manner.valued):
            continue
        if option in manner.valued:
            value = rest.pop(0).text if rest else ""
        elif _is_joined(option, manner):
            value = option[2:]
        else:
            return None
        if option.startswith("-I") and value not in _HOLES:
            return None
    rest = rest[manner.plain :]
    before = len(words) - len(rest)
    return None if any(word.is_glob for word in words[: before + 1]) else rest


def _is_joined(option: str, manner: _Manner) -> bool:
    """`-n5`, `-oL`: a short option with its value; `-0r`: several that stand alone."""
    if option.startswith("--"):
        return False
    return option[:2] in manner.valued or all(f"-{letter}" in manner.alone for letter in option[1:])


def _find(command: Command, depth: int) -> Line:
    """`find` without its actions, and the commands those run; `{}` in them is a path that find has found."""
    kept: list[Word] = []
    inner: list[Line] = []
    words = list(command.argv)
    while words:
        word = words.pop(0)
        if word.text not in _ACTS:
            kept.append(word)
            continue
        end = next((at for at, item in enumerate(words) if _ends_action(words, at, item)), None)
        # A pattern may stand for the end of the action, and for what comes behind it.
        if end is None or word.text != "-exec" or any(item.may_be_option for item in words[:end]):
            doubtful = _with_doubt(command, _expand(Command(tuple(words[:end])), depth + 1))
            return _together([*inner, doubtful])
        action = Command(tuple(words[:end]))
        found = _expand(action, depth + 1)
        if [item.name for item in found.commands] != [action.name]:
            return _together([*inner, _with_doubt(command, found)])
        inner.append(found if _finds_files([item.text for item in kept], action) else _opened(found))
        words = words[end + 1 :]
    return _together([Line((replace(command, argv=tuple(kept)),)), *inner])


def _finds_files(words: Sequence[str], action: Command) -> bool:
    """Whether what an action behind these words gets is a plain file for sure: a link may lead anywhere."""
    is_sure = any(pair == ("-type", "f") for pair in pairwise(words)) and not _OTHERWISE.intersection(words)
    return not any("{}" in word and not (is_sure and word == "{}") for word in action.texts)


def _opened(line: Line) -> Line:
    return Line(tuple(replace(item, is_open=True) for item in line.commands), line.redirections, line.doubts)


def _ends_action(words: list[Word], at: int, word: Word) -> bool:
    return word.text == ";" or (word.text == "+" and at > 0 and words[at - 1].text == "{}")
