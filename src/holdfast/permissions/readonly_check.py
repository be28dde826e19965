"""Whether a command only looks, and only inside the workspace. Pure; what is not named in the tables asks.

A command is let through when its program is known, every option is known to act on nothing, every path lies in
the workspace, and no variable is set that would make a program run another one.
"""

import posixpath
import re
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from holdfast.permissions.git_readonly import git_looks
from holdfast.permissions.readonly_programs import PROGRAMS, VERSIONED, ReadonlyUse, Taken, take
from holdfast.permissions.shell_lexer import Redirection, ShellCommand, Word

__all__ = ["Place", "is_brought", "only_looks", "outside", "redirection_looks", "sets_harmlessly"]

_HARMLESS = re.compile(
    r"(LC_[A-Z]+|LANG)=(C|POSIX|\w+\.(UTF|utf)-?8)?|LANGUAGE=[\w:]*|TZ=([\w+-]+(/[\w+-]+)*)?"
    r"|(NO_COLOR|CLICOLOR|FORCE_COLOR|COLUMNS|LINES)=\w*"
)
"""In some other encodings a quote or a backslash is the second half of a character: a shell reads another line. A
language or a time zone may be the path of a file to read."""


class Place(msgspec.Struct, frozen=True):
    """Where a line would run. `real` follows links, `expansions` are the paths that a pattern stands for, None if they
    cannot be told; `git_is_quiet` says whether git would run nothing there but itself. A line that changes its
    directory may be in `moved_to` as well, or, if it cannot be told where, is lost: then no path is known to be inside.
    """

    root: str
    directory: str
    real: Callable[[str], str] = posixpath.normpath
    moved_to: str = ""
    is_lost: bool = False
    expansions: Callable[[str], Sequence[str] | None] = lambda pattern: (pattern,)
    git_is_quiet: Callable[[str], bool] = lambda _: True
    find_program: Callable[[str, str], str | None] = lambda name, _: f"/usr/bin/{name}"

    @property
    def is_moved(self) -> bool:
        return bool(self.moved_to) or self.is_lost


def outside(place: Place, text: str, *, is_home: bool = False) -> bool:
    """Whether a path leads out of the workspace, or may do. A workspace that is the whole disk holds what the kernel
    shows of every process: there, nothing counts as inside.
    """
    if text == "/dev/null":
        return False
    if place.root == "/":
        return True
    if is_home or place.is_lost or (place.is_moved and ".." in text.split("/")):
        return True
    for start in filter(None, (place.directory, place.moved_to)):
        # Behind a link `..` is not the way back: only the disk knows where it leads.
        joined = posixpath.join(start, text)
        if not _is_below(place.root, posixpath.normpath(joined)):
            return True
        paths = place.expansions(joined) if any(char in text for char in "*?[") else (joined,)
        if paths is None or not all(_is_below(place.root, place.real(path)) for path in paths):
            return True
    return False


def _is_below(root: str, path: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def only_looks(command: ShellCommand, place: Place) -> bool:
    """Whether the command may be run without anybody being asked."""
    if not sets_harmlessly(command):
        return False
    if not command.argv:
        return True
    program, words = command.argv[0], command.argv[1:]
    if (program.is_glob and program.text != "[") or program.is_home or any(word.is_dynamic for word in command.argv):
        return False
    if is_brought(program.text, place):
        return False
    if program.text == "cd":
        return len(words) == 1 and not command.is_open and _is_directory_here(words[0], place)
    if program.text in VERSIONED and command.texts[1:] == ("--version",) and not command.is_open:
        return True
    if program.text == "git":
        return not command.is_open and _git(words, place)
    looks = PROGRAMS.get(program.text)
    return looks is not None and (looks.takes_anything or not command.is_open) and _is_listed(words, looks, place)


def _is_listed(words: tuple[Word, ...], looks: ReadonlyUse, place: Place) -> bool:
    """Whether every word is one with which the program only looks, and only inside."""
    is_operand = partial(_is_operand, place) if looks.takes_patterns else lambda _: False
    taken = take(words, looks.options, is_operand)
    if taken is None or not looks.accepts(taken):
        return False
    if looks.most_plain is not None and _may_be_more(taken.plain, looks.most_plain):
        return False
    if not looks.takes_paths:
        # Printing the names that a pattern stands for lists a directory.
        patterns = (word for word in taken.plain if word.is_glob and "/" in word.text)
        return not any(outside(place, word.text, is_home=word.is_home) for word in patterns)
    return _stays_inside(taken, looks, place)


def is_brought(program: str, place: Place) -> bool:
    """Whether the shell would find the program in the workspace itself, where the project has put it."""
    path = place.find_program(program, place.directory)
    return path is not None and any(_is_below(place.root, item) for item in (path, place.real(path)))


def _is_operand(place: Place, word: Word) -> bool:
    """Whether no name that a pattern stands for begins like an option."""
    if place.is_lost or word.text.startswith("-"):
        return False
    for start in filter(None, (place.directory, place.moved_to)):
        paths = place.expansions(posixpath.join(start, word.text))
        if paths is None or any(path.removeprefix(f"{start}/").startswith("-") for path in paths):
            return False
    return True


def _may_be_more(words: Sequence[Word], most: int) -> bool:
    """A pattern may stand for several files."""
    return len(words) > most or any(word.is_glob for word in words)


def sets_harmlessly(command: ShellCommand) -> bool:
    """Only variables of language, time and colour: none that makes a program find or run another."""
    return all(_HARMLESS.fullmatch(f"{name}={value.text}") for name, value in command.assignments)


def redirection_looks(redirection: Redirection, place: Place) -> bool:
    """Nothing is written but what goes nowhere, nothing is read from outside."""
    target = redirection.target
    if redirection.is_descriptor or redirection.operator == "<<<":
        return True
    if target.is_glob or target.is_dynamic:
        return False
    if redirection.operator == "<":
        return not outside(place, target.text, is_home=target.is_home)
    return target.text == "/dev/null"


def _is_directory_here(word: Word, place: Place) -> bool:
    is_plain = bool(word.text) and not word.is_glob and not word.text.startswith("-")
    return is_plain and not outside(place, word.text, is_home=word.is_home)


def _git(words: tuple[Word, ...], place: Place) -> bool:
    """In the workspace's own directory only: another one may hold a repository whose settings run programs."""
    if place.is_lost or {place.directory, place.moved_to or place.root} != {place.root} or not git_looks(words):
        return False
    texts = [text for word in words for text in (word.text, word.text.partition("=")[2]) if text]
    if any(word.is_home for word in words) or any(outside(place, text) for text in texts):
        return False
    return place.git_is_quiet(place.root)


def _stays_inside(taken: Taken, looks: ReadonlyUse, place: Place) -> bool:
    plain = taken.plain
    if looks.first_is_text and not taken.names & looks.text_options and not any(word.is_glob for word in plain[:1]):
        # Of the names that a pattern stands for only the first would be the text.
        plain = plain[1:]
    if any(outside(place, word.text, is_home=word.is_home) for word in plain):
        return False
    if looks.looks_below and any(outside(place, f"{word.text}/{name}") for word in plain for name in ("*", ".*")):
        return False
    is_path = looks.path_options
    return not any(outside(place, value) for name, value in taken.values if value and (not name or name in is_path))
