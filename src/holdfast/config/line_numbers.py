"""On which line of a file each key stands. Pure.

The parsers of TOML and JSON keep no lines, and a message without one sends its reader searching. This reads only as
much of the two languages as it takes to follow keys and skip values, once from front to back. What is not valid
ends the walk: the real parser then says what is wrong with it. Keys that are nested deeper than anybody needs are
refused here, before a parser spends its time on them.
"""

import re
from contextlib import suppress
from typing import TypeAlias

__all__ = ["DEEPEST", "KeyPath", "TooDeep", "json_duplicates", "json_lines", "toml_lines"]

KeyPath: TypeAlias = tuple[str | int, ...]

DEEPEST = 64

_BLANK = re.compile(r"(?:[ \t\r\n]+|#[^\n]*)*+")
_SPACE = re.compile(r"[ \t]*+")
_BARE = re.compile(r"[A-Za-z0-9_-]++")
_BASIC = re.compile(r'"(?:[^"\\\n]|\\.)*+"')
_LITERAL = re.compile(r"'[^'\n]*+'")
_LONG_BASIC = re.compile(r'"""(?:[^"\\]|\\[\s\S]|"{1,2}(?!"))*+"{3,5}')
_LONG_LITERAL = re.compile(r"'''(?:[^']|'{1,2}(?!'))*+'{3,5}")
_SCALAR = re.compile(r"[^\s,\[\]{}#\"'=]++(?:[ ][0-9][^\s,\[\]{}#\"'=]*+)?")
_JSON_BLANK = re.compile(r"[ \t\r\n]*+")
_JSON_TEXT = re.compile(r'"(?:[^"\\]|\\.)*+"')
_JSON_SCALAR = re.compile(r"[^\s,\[\]{}\"]++")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_SIMPLE = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r"}


class TooDeep(Exception):
    """Nested deeper than 64 levels."""

    def __init__(self, line: int) -> None:
        super().__init__(self.__doc__)
        self.line = line


class _Lost(Exception):
    """Not what was expected here; the parser knows better."""


class _Walk:
    """A place in a text, the line it is on, and the keys seen so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.lines: dict[KeyPath, int] = {}
        self.twice: list[tuple[KeyPath, int]] = []

    def take(self, pattern: re.Pattern[str]) -> str | None:
        found = pattern.match(self.text, self.at)
        if found is None:
            return None
        whole = found[0]
        self.at = found.end()
        self.line += whole.count("\n")
        return whole

    def skip(self, piece: str) -> bool:
        if not self.text.startswith(piece, self.at):
            return False
        self.at += len(piece)
        return True

    def note(self, path: KeyPath) -> None:
        if len(path) > DEEPEST:
            raise TooDeep(self.line)
        self.lines[path] = self.line
        # `[a.b]` is where `a` begins too, if nobody has begun it before.
        while len(path) > 1 and (path := path[:-1]) not in self.lines:
            self.lines[path] = self.line


def toml_lines(text: str) -> dict[KeyPath, int]:
    walk = _Walk(text)
    counts: dict[KeyPath, int] = {}
    base: KeyPath = ()
    with suppress(_Lost):
        while walk.take(_BLANK) is not None and walk.at < len(text):
            if walk.skip("[["):
                base = _header(walk, counts, is_array=True)
            elif walk.skip("["):
                base = _header(walk, counts, is_array=False)
            else:
                _pair(walk, base)
    return walk.lines


def _header(walk: _Walk, counts: dict[KeyPath, int], *, is_array: bool) -> KeyPath:
    names = _key(walk)
    path: KeyPath = ()
    for name in names[:-1]:
        path = (*path, name)
        if path in counts:
            path = (*path, counts[path] - 1)
    path = (*path, names[-1])
    if is_array:
        counts[path] = counts.get(path, 0) + 1
        path = (*path, counts[path] - 1)
    walk.note(path)
    if not walk.skip("]]" if is_array else "]"):
        raise _Lost
    return path


def _key(walk: _Walk) -> tuple[str, ...]:
    names: list[str] = []
    while True:
        walk.take(_SPACE)
        names.append(_name(walk))
        if len(names) > DEEPEST:
            raise TooDeep(walk.line)
        walk.take(_SPACE)
        if not walk.skip("."):
            return tuple(names)


def _name(walk: _Walk) -> str:
    if (bare := walk.take(_BARE)) is not None:
        return bare
    if (literal := walk.take(_LITERAL)) is not None:
        return literal[1:-1]
    if (basic := walk.take(_BASIC)) is not None:
        return _plain(basic)
    raise _Lost


def _plain(quoted: str) -> str:
    def letter(found: re.Match[str]) -> str:
        number = found[1] or found[2]
        if number is None:
            return _SIMPLE.get(found[3], found[3])
        point = int(number, 16)
        return chr(point) if point < 0x110000 else "�"

    return _ESCAPE.sub(letter, quoted[1:-1])


def _pair(walk: _Walk, base: KeyPath) -> None:
    path = (*base, *_key(walk))
    walk.note(path)
    if not walk.skip("="):
        raise _Lost
    walk.take(_SPACE)
    _value(walk, path)


def _value(walk: _Walk, path: KeyPath) -> None:
    """The recursion is as deep as the path is long, and no deeper than `DEEPEST`."""
    if walk.skip("["):
        _array(walk, path)
    elif walk.skip("{"):
        _inline_table(walk, path)
    elif not any(walk.take(kind) for kind in (_LONG_BASIC, _LONG_LITERAL, _BASIC, _LITERAL, _SCALAR)):
        raise _Lost


def _array(walk: _Walk, path: KeyPath) -> None:
    index = 0
    while True:
        walk.take(_BLANK)
        if walk.skip("]"):
            return
        item = (*path, index)
        walk.note(item)
        _value(walk, item)
        index += 1
        walk.take(_BLANK)
        if not walk.skip(","):
            if walk.skip("]"):
                return
            raise _Lost


def _inline_table(walk: _Walk, path: KeyPath) -> None:
    while True:
        walk.take(_BLANK)
        if walk.skip("}"):
            return
        _pair(walk, path)
        walk.take(_BLANK)
        if not walk.skip(","):
            if walk.skip("}"):
                return
            raise _Lost


def json_lines(text: str) -> dict[KeyPath, int]:
    return _json_walk(text).lines


def json_duplicates(text: str) -> list[tuple[KeyPath, int]]:
    """Return the keys that an object has twice, each with the line of the later one."""
    return _json_walk(text).twice


def _json_walk(text: str) -> _Walk:
    walk = _Walk(text)
    with suppress(_Lost):
        _json_value(walk, ())
    return walk


def _json_value(walk: _Walk, path: KeyPath) -> None:
    walk.take(_JSON_BLANK)
    walk.note(path)
    if walk.skip("{"):
        _json_inside(walk, path, "}")
    elif walk.skip("["):
        _json_inside(walk, path, "]")
    elif not (walk.take(_JSON_TEXT) or walk.take(_JSON_SCALAR)):
        raise _Lost


def _json_inside(walk: _Walk, path: KeyPath, closing: str) -> None:
    index = 0
    while True:
        walk.take(_JSON_BLANK)
        if walk.skip(closing):
            return
        name: str | int = index
        if closing == "}":
            quoted = walk.take(_JSON_TEXT)
            walk.take(_JSON_BLANK)
            if quoted is None or not walk.skip(":"):
                raise _Lost
            name = _plain(quoted)
            if (*path, name) in walk.lines:
                walk.twice.append(((*path, name), walk.line))
        _json_value(walk, (*path, name))
        index += 1
        walk.take(_JSON_BLANK)
        if not walk.skip(","):
            if walk.skip(closing):
                return
            raise _Lost
