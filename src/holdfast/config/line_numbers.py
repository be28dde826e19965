"""Line numbers of the keys in TOML and JSON files. Pure.

The parsers do not report lines, and an error message without one is hard to follow. The scanners here know only enough
of the two languages to follow keys and skip values, in one pass. Invalid syntax ends the scan: the real parser then
reports it. Keys that are nested too deeply are refused here, before a parser would recurse into them.
"""

import re
from contextlib import suppress
from typing import TypeAlias

__all__ = ["MAX_DEPTH", "KeyPath", "TooDeep", "json_duplicates", "json_lines", "toml_lines"]

KeyPath: TypeAlias = tuple[str | int, ...]
"""Path of a key: names of objects and indexes of lists."""

MAX_DEPTH = 64

# Repeated groups are atomic rather than possessive, because Python 3.11.2 does not match some possessive ones.
_BLANK = re.compile(r"(?>(?:[ \t\r\n]+|#[^\n]*)*)")
_SPACE = re.compile(r"[ \t]*+")
_BARE = re.compile(r"[A-Za-z0-9_-]++")
_BASIC = re.compile(r'"(?>(?:[^"\\\n]|\\.)*)"')
_LITERAL = re.compile(r"'[^'\n]*+'")
_LONG_BASIC = re.compile(r'"""(?>(?:[^"\\]|\\[\s\S]|"{1,2}(?!"))*)"{3,5}')
_LONG_LITERAL = re.compile(r"'''(?>(?:[^']|'{1,2}(?!'))*)'{3,5}")
_SCALAR = re.compile(r"[^\s,\[\]{}#\"'=]++(?:[ ][0-9][^\s,\[\]{}#\"'=]*+)?")
_JSON_BLANK = re.compile(r"[ \t\r\n]*+")
_JSON_TEXT = re.compile(r'"(?>(?:[^"\\]|\\.)*)"')
_JSON_SCALAR = re.compile(r"[^\s,\[\]{}\"]++")
_ESCAPE = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_SIMPLE_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r"}


class TooDeep(Exception):
    """Nested deeper than 64 levels."""

    def __init__(self, line: int) -> None:
        super().__init__(self.__doc__)
        self.line = line


class _SyntaxMismatch(Exception):
    """Ends the scan at invalid syntax."""


class _Scanner:
    """Position in a text, its line, and the keys found so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.line = 1
        self.lines: dict[KeyPath, int] = {}
        self.duplicates: list[tuple[KeyPath, int]] = []

    def match(self, pattern: re.Pattern[str]) -> str | None:
        """Advance over a match of the pattern and return it, or None."""
        found = pattern.match(self.text, self.at)
        if found is None:
            return None
        whole = found[0]
        self.at = found.end()
        self.line += whole.count("\n")
        return whole

    def skip(self, piece: str) -> bool:
        """Advance over a literal. Return True if it was there."""
        if not self.text.startswith(piece, self.at):
            return False
        self.at += len(piece)
        return True

    def record(self, path: KeyPath) -> None:
        """Record the current line for a path."""
        if len(path) > MAX_DEPTH:
            raise TooDeep(self.line)
        self.lines[path] = self.line
        # `[a.b]` is also the line of `a`, if it has none yet.
        while len(path) > 1 and (path := path[:-1]) not in self.lines:
            self.lines[path] = self.line


def toml_lines(text: str) -> dict[KeyPath, int]:
    """Return the line of each key of a TOML text. Raises `TooDeep`."""
    scanner = _Scanner(text)
    counts: dict[KeyPath, int] = {}
    base: KeyPath = ()
    with suppress(_SyntaxMismatch):
        while scanner.match(_BLANK) is not None and scanner.at < len(text):
            if scanner.skip("[["):
                base = _header(scanner, counts, is_array=True)
            elif scanner.skip("["):
                base = _header(scanner, counts, is_array=False)
            else:
                _key_value(scanner, base)
    return scanner.lines


def _header(scanner: _Scanner, counts: dict[KeyPath, int], *, is_array: bool) -> KeyPath:
    names = _key(scanner)
    path: KeyPath = ()
    for name in names[:-1]:
        path = (*path, name)
        if path in counts:
            path = (*path, counts[path] - 1)
    path = (*path, names[-1])
    if is_array:
        counts[path] = counts.get(path, 0) + 1
        path = (*path, counts[path] - 1)
    scanner.record(path)
    if not scanner.skip("]]" if is_array else "]"):
        raise _SyntaxMismatch
    return path


def _key(scanner: _Scanner) -> tuple[str, ...]:
    names: list[str] = []
    while True:
        scanner.match(_SPACE)
        names.append(_name(scanner))
        if len(names) > MAX_DEPTH:
            raise TooDeep(scanner.line)
        scanner.match(_SPACE)
        if not scanner.skip("."):
            return tuple(names)


def _name(scanner: _Scanner) -> str:
    if (bare := scanner.match(_BARE)) is not None:
        return bare
    if (literal := scanner.match(_LITERAL)) is not None:
        return literal[1:-1]
    if (basic := scanner.match(_BASIC)) is not None:
        return _unquote(basic)
    raise _SyntaxMismatch


def _unquote(quoted: str) -> str:
    def letter(found: re.Match[str]) -> str:
        number = found[1] or found[2]
        if number is None:
            return _SIMPLE_ESCAPES.get(found[3], found[3])
        point = int(number, 16)
        return chr(point) if point < 0x110000 else "�"

    return _ESCAPE.sub(letter, quoted[1:-1])


def _key_value(scanner: _Scanner, base: KeyPath) -> None:
    path = (*base, *_key(scanner))
    scanner.record(path)
    if not scanner.skip("="):
        raise _SyntaxMismatch
    scanner.match(_SPACE)
    _value(scanner, path)


def _value(scanner: _Scanner, path: KeyPath) -> None:
    """Skip a value and record the keys in it. The recursion is as deep as the path, at most `MAX_DEPTH`."""
    if scanner.skip("["):
        _array(scanner, path)
    elif scanner.skip("{"):
        _inline_table(scanner, path)
    elif not any(scanner.match(kind) for kind in (_LONG_BASIC, _LONG_LITERAL, _BASIC, _LITERAL, _SCALAR)):
        raise _SyntaxMismatch


def _array(scanner: _Scanner, path: KeyPath) -> None:
    index = 0
    while True:
        scanner.match(_BLANK)
        if scanner.skip("]"):
            return
        item = (*path, index)
        scanner.record(item)
        _value(scanner, item)
        index += 1
        scanner.match(_BLANK)
        if not scanner.skip(","):
            if scanner.skip("]"):
                return
            raise _SyntaxMismatch


def _inline_table(scanner: _Scanner, path: KeyPath) -> None:
    while True:
        scanner.match(_BLANK)
        if scanner.skip("}"):
            return
        _key_value(scanner, path)
        scanner.match(_BLANK)
        if not scanner.skip(","):
            if scanner.skip("}"):
                return
            raise _SyntaxMismatch


def json_lines(text: str) -> dict[KeyPath, int]:
    """Return the line of each key of a JSON text. Raises `TooDeep`."""
    return _scan_json(text).lines


def json_duplicates(text: str) -> list[tuple[KeyPath, int]]:
    """Return the keys that an object has twice, each with the line of the later one."""
    return _scan_json(text).duplicates


def _scan_json(text: str) -> _Scanner:
    scanner = _Scanner(text)
    with suppress(_SyntaxMismatch):
        _json_value(scanner, ())
    return scanner


def _json_value(scanner: _Scanner, path: KeyPath) -> None:
    scanner.match(_JSON_BLANK)
    scanner.record(path)
    if scanner.skip("{"):
        _json_members(scanner, path, "}")
    elif scanner.skip("["):
        _json_members(scanner, path, "]")
    elif not (scanner.match(_JSON_TEXT) or scanner.match(_JSON_SCALAR)):
        raise _SyntaxMismatch


def _json_members(scanner: _Scanner, path: KeyPath, closing: str) -> None:
    index = 0
    while True:
        scanner.match(_JSON_BLANK)
        if scanner.skip(closing):
            return
        name: str | int = index
        if closing == "}":
            quoted = scanner.match(_JSON_TEXT)
            scanner.match(_JSON_BLANK)
            if quoted is None or not scanner.skip(":"):
                raise _SyntaxMismatch
            name = _unquote(quoted)
            if (*path, name) in scanner.lines:
                scanner.duplicates.append(((*path, name), scanner.line))
        _json_value(scanner, (*path, name))
        index += 1
        scanner.match(_JSON_BLANK)
        if not scanner.skip(","):
            if scanner.skip(closing):
                return
            raise _SyntaxMismatch
