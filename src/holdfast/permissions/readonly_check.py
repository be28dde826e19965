"""Recognition of read-only commands that stay inside the workspace. Pure.

A command is read-only if its program and all its options are in the tables, every path is inside the workspace, and it
sets no variable that could make a program run another one. Any other command asks.
"""

import posixpath
import re
from collections.abc import Callable, Sequence
from functools import partial

import msgspec

from holdfast.permissions.git_readonly import is_readonly_git
from holdfast.permissions.readonly_programs import PROGRAMS, VERSION_ONLY, ParsedArguments, ReadonlyUse, parse_arguments
from holdfast.permissions.shell_lexer import Redirection, SimpleCommand, Word

__all__ = [
    "Place",
    "has_harmless_assignments",
    "is_program_in_workspace",
    "is_readonly",
    "is_readonly_redirection",
    "leads_outside",
]

_HARMLESS = re.compile(
    r"(LC_[A-Z]+|LANG)=(C|POSIX|\w+\.(UTF|utf)-?8)?|LANGUAGE=[\w:]*|TZ=([\w+-]+(/[\w+-]+)*)?"
    r"|(NO_COLOR|CLICOLOR|FORCE_COLOR|COLUMNS|LINES)=\w*"
)
"""Assignments that cannot change the effect of a command. Other encodings are excluded, because in some of them a quote
or a backslash is part of another character, so that a shell reads another line. A language or a time zone may be the
path of a file to read.
"""


class Place(msgspec.Struct, frozen=True):
    """The directory in which a line would run, and access to the disk.

    `real` resolves links. `expansions` returns the paths that a pattern matches, None if they are not known.
    `git_is_quiet` returns True if git would run no other program. A line that changes its directory may also run in
    `moved_to`; if the new directory is not known, `is_lost` is true and no path is known to be inside.
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
        """True if the line changes its directory."""
        return bool(self.moved_to) or self.is_lost


def leads_outside(place: Place, text: str, *, is_home: bool = False) -> bool:
    """Return True if a path is, or may be, outside of the workspace. If the workspace is the root directory, every path
    is: it contains /proc, which exposes other processes.
    """
    if text == "/dev/null":
        return False
    if place.root == "/":
        return True
    if is_home or place.is_lost or (place.is_moved and ".." in text.split("/")):
        return True
    for start in filter(None, (place.directory, place.moved_to)):
        # After a link, `..` is not the directory before it in the text, so the path is resolved on disk as well.
        joined = posixpath.join(start, text)
        if not _is_below(place.root, posixpath.normpath(joined)):
            return True
        paths = place.expansions(joined) if any(char in text for char in "*?[") else (joined,)
        if paths is None or not all(_is_below(place.root, place.real(path)) for path in paths):
            return True
    return False


def _is_below(root: str, path: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def is_readonly(command: SimpleCommand, place: Place) -> bool:
    """Return True if the command only reads, and only inside the workspace, so that it may run without approval."""
    if not has_harmless_assignments(command):
        return False
    if not command.argv:
        return True
    program, words = command.argv[0], command.argv[1:]
    if (program.is_glob and program.text != "[") or program.is_home or any(word.is_dynamic for word in command.argv):
        return False
    if is_program_in_workspace(program.text, place):
        return False
    if program.text == "cd":
        return len(words) == 1 and not command.is_open and _is_directory_here(words[0], place)
    if program.text in VERSION_ONLY and command.texts[1:] == ("--version",) and not command.is_open:
        return True
    if program.text == "git":
        return not command.is_open and _is_readonly_git_here(words, place)
    use = PROGRAMS.get(program.text)
    return use is not None and (use.takes_anything or not command.is_open) and _is_readonly_use(words, use, place)


def _is_readonly_use(words: tuple[Word, ...], use: ReadonlyUse, place: Place) -> bool:
    """Return True if the program only reads with these arguments, and only inside the workspace."""
    is_operand = partial(_is_operand, place) if use.allows_patterns else lambda _: False
    arguments = parse_arguments(words, use.options, is_operand)
    if arguments is None or not use.accepts(arguments):
        return False
    if use.max_operands is not None and _may_exceed(arguments.operands, use.max_operands):
        return False
    if not use.takes_paths:
        # A program that prints the names that match a pattern lists a directory.
        patterns = (word for word in arguments.operands if word.is_glob and "/" in word.text)
        return not any(leads_outside(place, word.text, is_home=word.is_home) for word in patterns)
    return _reads_only_inside(arguments, use, place)


def is_program_in_workspace(program: str, place: Place) -> bool:
    """Return True if the shell would find the program inside the workspace, where it is part of the project."""
    path = place.find_program(program, place.directory)
    return path is not None and any(_is_below(place.root, item) for item in (path, place.real(path)))


def _is_operand(place: Place, word: Word) -> bool:
    """Return True if no name that matches the pattern could be an option."""
    if place.is_lost or word.text.startswith("-"):
        return False
    for start in filter(None, (place.directory, place.moved_to)):
        paths = place.expansions(posixpath.join(start, word.text))
        if paths is None or any(path.removeprefix(f"{start}/").startswith("-") for path in paths):
            return False
    return True


def _may_exceed(words: Sequence[Word], limit: int) -> bool:
    """Return True if there may be more operands than the limit. A pattern may match several files."""
    return len(words) > limit or any(word.is_glob for word in words)


def has_harmless_assignments(command: SimpleCommand) -> bool:
    """Return True if the command sets only variables of language, time zone and colour."""
    return all(_HARMLESS.fullmatch(f"{name}={value.text}") for name, value in command.assignments)


def is_readonly_redirection(redirection: Redirection, place: Place) -> bool:
    """Return True if the redirection reads inside the workspace, or writes to /dev/null or another descriptor."""
    target = redirection.target
    if redirection.is_descriptor or redirection.operator == "<<<":
        return True
    if target.is_glob or target.is_dynamic:
        return False
    if redirection.operator == "<":
        return not leads_outside(place, target.text, is_home=target.is_home)
    return target.text == "/dev/null"


def _is_directory_here(word: Word, place: Place) -> bool:
    is_plain = bool(word.text) and not word.is_glob and not word.text.startswith("-")
    return is_plain and not leads_outside(place, word.text, is_home=word.is_home)


def _is_readonly_git_here(words: tuple[Word, ...], place: Place) -> bool:
    """Return True if git only reads. Only in the root of the workspace: another directory may contain a repository
    whose settings run programs.
    """
    if place.is_lost or {place.directory, place.moved_to or place.root} != {place.root} or not is_readonly_git(words):
        return False
    texts = [text for word in words for text in (word.text, word.text.partition("=")[2]) if text]
    if any(word.is_home for word in words) or any(leads_outside(place, text) for text in texts):
        return False
    return place.git_is_quiet(place.root)


def _reads_only_inside(arguments: ParsedArguments, use: ReadonlyUse, place: Place) -> bool:
    operands = arguments.operands
    if use.first_is_text and not arguments.names & use.text_options and not any(word.is_glob for word in operands[:1]):
        # If the first word were a pattern that matches several files, only the first of them would be the text.
        operands = operands[1:]
    if any(leads_outside(place, word.text, is_home=word.is_home) for word in operands):
        return False
    if use.reads_directories and any(
        leads_outside(place, f"{word.text}/{name}") for word in operands for name in ("*", ".*")
    ):
        return False
    is_path = use.path_options
    return not any(
        leads_outside(place, value) for name, value in arguments.values if value and (not name or name in is_path)
    )
