"""The files that a shell line reads or writes as far as its words name them, for rules about paths. Pure."""

import posixpath
import re
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from holdfast.permissions.lines import Command, Line
from holdfast.permissions.words import Word

__all__ = ["FileUse", "file_uses", "is_replaced"]

_NO_FILES = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr", "/dev/tty"})
_EACH = frozenset({"tee", "touch", "truncate", "rm", "rmdir", "unlink", "shred", "mkdir", "mv", "chmod", "chown"})
_LAST = frozenset({"cp", "mv", "install", "ln"})
_TARGET = re.compile("-t|--t[a-z-]*")


class FileUse(msgspec.Struct, frozen=True):
    """`makes` says what may be at the path afterwards: another text, or any file, a link among them."""

    action: Literal["read", "write"]
    path: str
    makes: Literal["", "text", "file"] = ""


def file_uses(line: Line) -> tuple[FileUse, ...]:
    """Every redirection counts as a read or a write; so do the literal operands of programs that only write files."""
    found = dict.fromkeys(use for item in line.redirections for use in _redirected(item.operator, item.target))
    for command in line.commands:
        name = posixpath.basename(command.name)
        makes: Literal["", "text", "file"] = "file" if name in _LAST else "text" if name in ("tee", "dd") else ""
        found |= dict.fromkeys(FileUse("write", path, makes) for path in _written(command))
    return tuple(use for use in found if use.path not in _NO_FILES)


def is_replaced(made_by: Sequence[FileUse], paths: Sequence[str], places: Sequence[str] | None) -> bool:
    """Whether one of the paths leads to, or through, a file that the line itself makes: it leads elsewhere by then.
    `places` is None if the directory is not known; then a relative path may be any file.
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


def _redirected(operator: str, target: Word) -> Iterator[FileUse]:
    if operator.startswith("<<") or not target.is_literal:
        return
    if operator in (">&", "<&") and (target.text.rstrip("-").isdecimal() or target.text == "-"):
        return
    if operator in ("<", "<>", "<&"):
        yield FileUse("read", target.text)
    if operator not in ("<", "<&"):
        yield FileUse("write", target.text, "text")


def _written(command: Command) -> Iterator[str]:
    name = posixpath.basename(command.name)
    words = [word.text for word in command.argv[1:] if word.is_literal]
    if name == "dd":
        yield from (word.removeprefix("of=") for word in words if word.startswith("of="))
    if name not in _EACH and name not in _LAST:
        return
    operands = [word for word in words if not word.startswith("-")]
    if name in _EACH:
        yield from operands
    if name in _LAST and operands:
        sources = operands if len(operands) == 1 else operands[:-1]
        for target in (operands[-1], *_targets(words)):
            yield target
            yield from (posixpath.join(target, posixpath.basename(source.rstrip("/"))) for source in sources)
        yield from (posixpath.basename(source) for source in sources if len(operands) == 1 and name == "ln")


def _targets(words: Sequence[str]) -> Iterator[str]:
    for at, word in enumerate(words):
        option, sign, value = word.partition("=")
        if _TARGET.fullmatch(option):
            yield value if sign else words[at + 1] if at + 1 < len(words) else ""
        elif word.startswith("-t") and not sign:
            yield word.removeprefix("-t")
