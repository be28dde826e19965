"""Problems of settings files, and key paths as text. Messages never contain values, which may be secrets. Pure."""

import re
from typing import Literal, TypeAlias

import msgspec

from holdfast.config.line_numbers import KeyPath
from holdfast.domain.errors import BadRequest

__all__ = ["BadKey", "FileProblem", "Severity", "format_key", "parse_key"]

Severity: TypeAlias = Literal["error", "warning"]

_BARE = re.compile(r"[A-Za-z0-9_$-]+\Z")
_PIECE = re.compile(r"""(?P<bare>[A-Za-z0-9_$-]+)|"(?P<basic>(?:[^"\\]|\\["\\])*)"|'(?P<literal>[^']*)'""")
_INDEX = re.compile(r"\[(\d{1,6})\]")
_MAX_LENGTH = 512


class BadKey(BadRequest):
    """A key is a path of names with dots between them, such as options.tui.compact_mode; quote a name that has dots."""


class FileProblem(msgspec.Struct, frozen=True):
    """A problem in a settings file. An error keeps a setting from taking effect."""

    severity: Severity
    file: str
    line: int
    """0 if the problem concerns the whole file."""
    key: str
    text: str
    hides_denial: bool = False
    """True if a deny rule may be without effect because of the problem."""

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place}: {self.key}: {self.text}" if self.key else f"{place}: {self.text}"


def format_key(path: KeyPath) -> str:
    """Return a path as it is written on a command line: `providers."my.own".models[0].id`."""
    text = ""
    for name in path:
        if isinstance(name, int):
            text += f"[{name}]"
            continue
        escaped = name.replace("\\", "\\\\").replace('"', '\\"')
        shown = name if _BARE.match(name) else f'"{escaped}"'
        text += f".{shown}" if text else shown
    return text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 1] + "…"


def parse_key(text: str) -> KeyPath:
    """Parse a path. Raises `BadKey`."""
    if len(text) > _MAX_LENGTH:
        raise BadKey
    path: list[str | int] = []
    at = 0
    while True:
        found = _PIECE.match(text, at)
        if found is None:
            raise BadKey
        path.append(_name(found))
        at = found.end()
        while (index := _INDEX.match(text, at)) is not None:
            path.append(int(index[1]))
            at = index.end()
        if at == len(text):
            return tuple(path)
        if text[at] != ".":
            raise BadKey
        at += 1


def _name(found: re.Match[str]) -> str:
    if found["bare"] is not None:
        return found["bare"]
    if found["literal"] is not None:
        return found["literal"]
    return re.sub(r"\\(.)", r"\1", found["basic"])
