"""Expansion of commands that run other commands, such as `timeout`, `xargs`, `find -exec` and `sh -c`. Pure.

`read_line` replaces a wrapper by the commands that it runs, each of which is decided on its own. A wrapper with effects
of its own is listed too. A wrapper with unknown options is opaque: the commands that it runs are not certain. Those
that its words may be are still listed in `outer`, for deny rules.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

import msgspec
from msgspec.structs import replace

from holdfast.permissions.shell_lexer import ShellLine, SimpleCommand, Word, names
from holdfast.permissions.shell_parser import parse

__all__ = ["RUNNERS", "changes_programs", "may_evaluate_text", "read_line"]


# Builtins and variables of the shell that execute text or change which programs a line runs.

_ALWAYS_EVALUATES = names(
    "source . alias unalias hash enable complete compgen compopt bind let fc history coproc mapfile readarray"
)
_NAME = re.compile(r"[A-Za-z_]\w*", re.A)
_NAMED = re.compile(r"[A-Za-z_]\w*=|[A-Za-z_]\w*$", re.A)
_SUBSCRIPT = re.compile(r"\[.*(\$\(|`|\$\{)", re.S)
"""Text that runs commands if bash evaluates it as the name of a variable or as a number."""
_CHANGES = re.compile(
    r"PATH|EXECIGNORE|ENV|PS0|PS4|PROMPT_COMMAND|SHELLOPTS|BASHOPTS|CDPATH|POSIXLY_CORRECT|SHELL|HOME|PWD|OLDPWD|BASH_.*"
    r"|LD_.*|DYLD_.*|\w*PAGER|\w*EDITOR|\w*_RSH|LESSOPEN|LESSCLOSE|TAR_OPTIONS|GREP_OPTIONS|RIPGREP_CONFIG_PATH"
    r"|GIT_(?!AUTHOR_|COMMITTER_|TERMINAL_PROMPT|OPTIONAL_LOCKS)\w*"
)
_GLOBBING = frozenset(["-s", "-u", "nullglob", "globstar", "dotglob", "failglob", "nocaseglob"])
_SET = re.compile(r"[-+][euxfvC]+|[-+][eux]*o|pipefail|errexit|nounset|xtrace|noclobber")


def changes_programs(name: str) -> bool:
    """Return True if a variable affects the lookup of programs, or makes a program run another."""
    return bool(_CHANGES.fullmatch(name))


def may_evaluate_text(command: SimpleCommand) -> bool:
    """Return True if a builtin or an assignment may execute text, or change the meaning of later names."""
    if any(changes_programs(name) for name, _ in command.assignments):
        return True
    values = [*command.argv, *(value for _, value in command.assignments)]
    if any(_SUBSCRIPT.search(word.text) for word in values):
        return True
    check = _CHECKS.get(command.name)
    return command.name in _ALWAYS_EVALUATES or (check is not None and check(command.argv[1:]))


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


def _has_option(option: str) -> Callable[[Sequence[Word]], bool]:
    return lambda words: any(word.is_dynamic or word.text.startswith(option) for word in words)


_CHECKS: Mapping[str, Callable[[Sequence[Word]], bool]] = {
    **dict.fromkeys(("declare", "typeset", "local", "export", "readonly"), _declares),
    **dict.fromkeys(("read", "getopts"), _reads),
    "unset": _unsets,
    "printf": _prints,
    **dict.fromkeys(("test", "["), _tests),
    "set": _sets,
    "shopt": lambda words: not all(word.is_literal and word.text in _GLOBBING for word in words),
    "wait": _has_option("-p"),
    "jobs": _has_option("-x"),
}


# Wrappers.

_MAX_DEPTH = 8
_MAX_GUESSES = 16
_SHELLS = frozenset({"bash", "sh", "dash"})
_SHELL_OPTIONS = frozenset({"--norc", "--noprofile", "-e", "-u", "-x", "-f", "-v", "-eu", "-ex", "-ux", "-eux"})
_TEXT_OPTIONS = frozenset({"-c", "-ec", "-uc", "-euc", "-xc", "-exc", "-euxc"})
_QUIET_TEXT = frozenset({"-c", "-ec", "-uc", "-euc"})
_OPAQUE = names(
    "ash at batch bwrap capsh catchsegv chpst choom chrt chronic csh daemonize dbus-run-session doas "
    "dumb-init entr envdir expect fakeroot faketime firejail fish flock gdb gosu ifne ksh linux32 linux64 "
    "ltrace mispipe mksh nsenter numactl parallel pdksh pee perf pkexec prlimit proot rlwrap run-parts runcon "
    "runuser runit s6-setuidgid screen script sem setarch setpriv setuidgid sg softlimit start-stop-daemon "
    "ssh strace su su-exec systemd-run taskset tcsh tini tmux toybox-sh unbuffer unshare valgrind watch xvfb-run "
    "yash zsh"
)
"""Wrappers whose arguments are not analysed: somewhere among them is a command or the text of a shell."""
_OPAQUE_NAME = re.compile(
    r"ld-linux.*|ld-musl.*|ld(64)?\.so.*|(r?ba|da|ra|z|k|mk|a|ya|po|fi|t?c|x?on|nu)?sh(([-.\d].*)|93)?"
)
"""Program loaders, and shells with a version or variant in their names."""
_FIND_ALTERNATIVES = frozenset({"-o", "-or", "!", "-not", ","})
_FIND_ACTIONS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})
_PLACEHOLDERS = frozenset({"{}", "%"})
"""Placeholders that `xargs -I` may replace by its input. Any other word could be part of the command's own words."""
_HIDDEN_COMMAND = "it runs a command that is not known"
_CHANGED_LOOKUP = "it changes where programs are found"


class _Wrapper(msgspec.Struct, frozen=True):
    """The words before the wrapped command: options without and with a value, assignments, then `plain` words.
    `is_listed`: the wrapper has an effect of its own and has to be allowed too.
    """

    alone: frozenset[str] = frozenset()
    valued: frozenset[str] = frozenset()
    plain: int = 0
    assigns: bool = False
    is_listed: bool = False


_TABLE: Mapping[str, _Wrapper] = {
    "nohup": _Wrapper(),
    "time": _Wrapper(frozenset({"-p"})),
    "nice": _Wrapper(valued=frozenset({"-n", "--adjustment"})),
    "ionice": _Wrapper(frozenset({"-t"}), frozenset({"-c", "-n"})),
    "stdbuf": _Wrapper(valued=frozenset({"-i", "-o", "-e"})),
    "timeout": _Wrapper(
        frozenset({"--foreground", "--preserve-status", "-v", "--verbose"}),
        frozenset({"-k", "-s", "--kill-after", "--signal"}),
        plain=1,
    ),
    "command": _Wrapper(),
    "builtin": _Wrapper(),
    "xargs": _Wrapper(
        frozenset({"-0", "-r", "-t", "-x", "--null", "--no-run-if-empty", "--verbose", "--exit"}),
        frozenset({"-n", "-L", "-P", "-d", "-s", "-I", "--max-args", "--max-procs", "--delimiter"}),
    ),
    "exec": _Wrapper(is_listed=True),
    "setsid": _Wrapper(frozenset({"-c", "-f", "-w", "--ctty", "--fork", "--wait"}), is_listed=True),
    "chroot": _Wrapper(plain=1, is_listed=True),
    "busybox": _Wrapper(is_listed=True),
    "toybox": _Wrapper(is_listed=True),
    "sudo": _Wrapper(
        frozenset({"-n", "-E", "-H", "-S", "-k", "-b", "--preserve-env", "--non-interactive"}),
        frozenset({"-u", "-g", "-p", "--user", "--group", "--prompt"}),
        assigns=True,
        is_listed=True,
    ),
}


RUNNERS = names("bash chroot dash env find ionice ksh nice nohup setsid sh stdbuf sudo timeout xargs zsh")
"""Wrappers that are recognised by their file too, if a link gives them another name."""


@lru_cache(maxsize=256)
def read_line(text: str) -> ShellLine:
    """Parse a line and replace each wrapper by the commands that it runs."""
    return _read(text, 0)


def _read(text: str, depth: int) -> ShellLine:
    line = parse(text)
    return _join([replace(line, commands=()), *(_expand(command, depth) for command in line.commands)])


def _join(lines: Iterable[ShellLine]) -> ShellLine:
    known = tuple(lines)
    return ShellLine(
        tuple(command for line in known for command in line.commands),
        tuple(item for line in known for item in line.redirections),
        tuple(dict.fromkeys(uncertainty for line in known for uncertainty in line.uncertainties)),
        tuple(dict.fromkeys(reason for line in known for reason in line.hidden)),
        repeats=any(line.repeats for line in known),
        outer=tuple(command for line in known for command in line.outer),
        operators=tuple(operator for line in known for operator in line.operators),
    )


def _expand(command: SimpleCommand, depth: int) -> ShellLine:
    """Return the commands that a command runs, including itself unless it only runs others."""
    if depth > _MAX_DEPTH:
        return _opaque(command, "it is nested too deeply")
    if not command.argv:
        return ShellLine((command,), hidden=(_CHANGED_LOOKUP,) if may_evaluate_text(command) else ())
    found = _expand_by_name(command, command.name.rpartition("/")[2], depth)
    if command.is_fed:
        found = replace(found, commands=tuple(replace(item, is_fed=True) for item in found.commands))
    if may_evaluate_text(command):
        return replace(found, hidden=(*found.hidden, _HIDDEN_COMMAND))
    return found


def _expand_by_name(command: SimpleCommand, name: str, depth: int) -> ShellLine:
    is_path = name != command.name
    if name in _SHELLS:
        found = _expand_shell(command, depth)
    elif name in ("eval", "trap"):
        found = _expand_eval(command, depth)
    elif name in _OPAQUE or _OPAQUE_NAME.fullmatch(name):
        found = _opaque(command, depth=depth)
    elif name == "env":
        found = _expand_env(command, depth)
    elif name == "find":
        found = _expand_find(command, depth)
    elif name in _TABLE and not _is_lookup(command):
        found = _expand_wrapper(command, _TABLE[name], depth)
    else:
        return ShellLine((command,))
    found = replace(found, outer=(command, *found.outer))
    # A program given by a path has to be allowed itself: it may be another program with the same name.
    return replace(found, commands=(replace(command, is_open=False), *found.commands)) if is_path else found


def _opaque(command: SimpleCommand, why: str = _HIDDEN_COMMAND, *, depth: int = _MAX_DEPTH) -> ShellLine:
    """Return a command that runs unknown others. Commands that its words may be are listed for deny rules."""
    guesses: list[SimpleCommand] = []
    redirections: list[ShellLine] = []
    for at, word in enumerate(command.argv[1 : 1 + _MAX_GUESSES], start=1):
        if " " in word.text or ";" in word.text:
            inner = _read(word.text, depth + 1) if depth < _MAX_DEPTH else parse(word.text)
            redirections.append(replace(inner, commands=(), uncertainties=(), hidden=()))
            guesses += (item for item in inner.commands if item.argv)
        elif not word.text.startswith("-"):
            guesses.append(SimpleCommand(command.argv[at:], is_open=command.is_open))
    listed = ShellLine((command,), uncertainties=(why,), hidden=(why,), outer=tuple(guesses))
    return _join([listed, *redirections])


def _is_lookup(command: SimpleCommand) -> bool:
    return command.name == "command" and len(command.argv) > 1 and command.argv[1].text in ("-v", "-V")


def _expand_eval(command: SimpleCommand, depth: int) -> ShellLine:
    """Expand `eval` and `trap`, which execute text now or later."""
    words = command.argv[1:] if command.name == "eval" else command.argv[1:2]
    if command.name == "trap" and (not words or words[0].text in ("-", "", "-p", "-l")):
        return ShellLine((command,))
    inner = _read(" ".join(word.text for word in words), depth + 1)
    listed = ShellLine((command,), uncertainties=(_HIDDEN_COMMAND,))
    if command.is_open or not all(word.is_literal for word in words):
        listed = replace(listed, hidden=(_HIDDEN_COMMAND,))
    return _join([listed, inner])


def _expand_shell(command: SimpleCommand, depth: int) -> ShellLine:
    """Expand `sh -c` with a literal text. Any other use of a shell executes a file or its input."""
    words = list(command.argv[1:])
    options: list[str] = []
    while words and words[0].is_literal and words[0].text in _SHELL_OPTIONS:
        options.append(words.pop(0).text)
    behind = (command.argv[at + 1] for at, word in enumerate(command.argv[:-1]) if _is_command_option(word.text))
    text = next(behind, None)
    if text is None:
        return _opaque(command, depth=depth)
    inner = _read(text.text, depth + 1)
    is_known = len(words) > 1 and words[0].is_literal and words[0].text in _TEXT_OPTIONS and words[1] is text
    if not is_known or not text.is_literal or text.text.startswith(("-", "+")):
        return _join([ShellLine((command,), uncertainties=(_HIDDEN_COMMAND,), hidden=(_HIDDEN_COMMAND,)), inner])
    is_plain = not options and words[0].text in _QUIET_TEXT and not command.is_open
    if not is_plain or any(not word.is_literal or word.text.startswith("-") for word in words[2:]):
        return _join([ShellLine((command,), uncertainties=(_HIDDEN_COMMAND,)), inner])
    if any(changes_programs(name) for name, _ in command.assignments):
        return _join([ShellLine((command,), uncertainties=(_CHANGED_LOOKUP,), hidden=(_CHANGED_LOOKUP,)), inner])
    return replace(inner, commands=tuple(_with_assignments(item, command) for item in inner.commands))


def _is_command_option(option: str) -> bool:
    return option.startswith("-") and not option.startswith("--") and option.endswith("c")


def _with_assignments(inner: SimpleCommand, outer: SimpleCommand) -> SimpleCommand:
    return replace(inner, assignments=(*outer.assignments, *inner.assignments))


def _expand_env(command: SimpleCommand, depth: int) -> ShellLine:
    """Expand `env`. Removing variables does not make a program unsafe, but a nested shell may then use another search
    path.
    """
    rest = list(command.argv[1:])
    assigned = list(command.assignments)
    removes = False
    while rest and rest[0].is_literal and rest[0].text in ("-i", "-", "--ignore-environment", "-u", "--unset"):
        removes = True
        arguments = 2 if rest[0].text in ("-u", "--unset") else 1
        if any(not word.is_literal or changes_programs(word.text) for word in rest[:arguments]):
            return _opaque(command, _CHANGED_LOOKUP, depth=depth)
        del rest[:arguments]
    while rest and not rest[0].is_dynamic and rest[0].text.partition("=")[0].isidentifier() and "=" in rest[0].text:
        name, _, value = rest[0].text.partition("=")
        assigned.append((name, replace(rest.pop(0), text=value)))
    if not rest and not command.is_open:
        return ShellLine((replace(command, assignments=tuple(assigned)),))
    if not rest or not rest[0].is_literal or rest[0].text.startswith("-"):
        return _opaque(command, depth=depth)
    inner = SimpleCommand(tuple(rest), tuple(assigned), is_open=command.is_open)
    found = _expand(inner, depth + 1)
    if removes and [item.argv for item in found.commands] != [inner.argv]:
        return _join([ShellLine((command,), uncertainties=(_CHANGED_LOOKUP,), hidden=(_CHANGED_LOOKUP,)), found])
    return found


def _expand_wrapper(command: SimpleCommand, wrapper: _Wrapper, depth: int) -> ShellLine:
    rest = _wrapped_words(command.argv[1:], wrapper)
    if rest is None:
        return _opaque(command, depth=depth)
    assigned = list(command.assignments)
    while wrapper.assigns and rest and not rest[0].is_dynamic and "=" in rest[0].text:
        name, _, value = rest[0].text.partition("=")
        assigned.append((name, replace(rest.pop(0), text=value)))
    if not rest:
        # Without a command a wrapper runs nothing; `xargs` prints its input.
        return _opaque(command, depth=depth) if command.is_open else ShellLine((command,))
    if not rest[0].is_literal or rest[0].text.startswith("-") or not rest[0].text:
        return _opaque(command, depth=depth)
    is_open = command.is_open or command.name == "xargs"
    inner = SimpleCommand(tuple(rest), tuple(assigned), is_open=is_open)
    found = _expand(inner, depth + 1)
    if wrapper.is_listed:
        return _join([ShellLine((replace(command, is_open=False),)), found])
    if command.name == "xargs" and [item.argv for item in found.commands[:1]] != [inner.argv]:
        # The input words may become any part of a command that is itself wrapped.
        return _join([ShellLine((command,), uncertainties=(_HIDDEN_COMMAND,)), found])
    return found


def _wrapped_words(words: Sequence[Word], wrapper: _Wrapper) -> list[Word] | None:
    """Return the words of the wrapped command. None if an option of the wrapper is not known, or one of its words is
    not literal: it may expand to several words, one of which becomes the command.
    """
    rest = list(words)
    placeholder = ""
    while rest and rest[0].text.startswith("-"):
        option = rest.pop(0).text
        if option == "--":
            break
        name, sign, value = option.partition("=")
        if option in wrapper.alone or (sign and name in wrapper.valued):
            continue
        if option in wrapper.valued:
            value = rest.pop(0).text if rest else ""
        elif _is_joined(option, wrapper):
            value = option[2:]
        else:
            return None
        if option.startswith("-I"):
            placeholder = value
            if placeholder not in _PLACEHOLDERS:
                return None
    rest = rest[wrapper.plain :]
    if not all(word.is_literal for word in words[: len(words) - len(rest)]):
        return None
    return [_mark_placeholder(word, placeholder) for word in rest] if placeholder else rest


def _mark_placeholder(word: Word, placeholder: str) -> Word:
    """Mark a word that contains the placeholder: only the rest of it is known."""
    return replace(word, is_glob=True, may_be_option=True) if placeholder in word.text else word


def _is_joined(option: str, wrapper: _Wrapper) -> bool:
    """Return True for a short option with its value (`-n5`, `-oL`) or several options without values (`-0r`)."""
    if option.startswith("--"):
        return False
    return option[:2] in wrapper.valued or all(f"-{letter}" in wrapper.alone for letter in option[1:])


def _expand_find(command: SimpleCommand, depth: int) -> ShellLine:
    """Expand `find` into itself without its actions, and the commands of the actions; `{}` in them is a path."""
    if command.is_open or any(word.is_dynamic or word.may_be_option for word in command.argv):
        # One of the unknown words may be an action.
        return _opaque(command, depth=depth)
    kept: list[Word] = []
    inner: list[ShellLine] = []
    words = list(command.argv)
    while words:
        word = words.pop(0)
        if word.text not in _FIND_ACTIONS:
            kept.append(word)
            continue
        end = next((at for at, item in enumerate(words) if _ends_action(words, at, item)), None)
        action = SimpleCommand(tuple(_mark_found_path(item) for item in words[:end]))
        if end is None or not action.argv or not action.argv[0].is_literal:
            return _join([*inner, _opaque(command, depth=depth)])
        found = _expand(action, depth + 1)
        if word.text != "-exec" or [item.argv for item in found.commands] != [action.argv]:
            # `-execdir` runs in each directory, where a relative program may be another file.
            hides = (_HIDDEN_COMMAND,) if "dir" in word.text and "/" in action.name else ()
            inner.append(ShellLine(uncertainties=(_HIDDEN_COMMAND,), hidden=hides))
        inner.append(found if _finds_files([item.text for item in kept], action) else _open_ended(found))
        words = words[end + 1 :]
    return _join([ShellLine((replace(command, argv=tuple(kept)),)), *inner])


def _mark_found_path(word: Word) -> Word:
    return replace(word, is_glob=True) if "{}" in word.text else word


def _finds_files(words: Sequence[str], action: SimpleCommand) -> bool:
    """Return True if an action after these words receives only regular files: a link may refer to any file."""
    is_sure = any(pair == ("-type", "f") for pair in pairwise(words)) and not _FIND_ALTERNATIVES.intersection(words)
    return not any("{}" in word and not (is_sure and word == "{}") for word in action.texts)


def _open_ended(line: ShellLine) -> ShellLine:
    return replace(line, commands=tuple(replace(item, is_open=True) for item in line.commands))


def _ends_action(words: list[Word], at: int, word: Word) -> bool:
    return word.text == ";" or (word.text == "+" and at > 0 and words[at - 1].text == "{}")
