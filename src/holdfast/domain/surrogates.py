"""Half characters: lone surrogates, which some programs and providers emit and no file or wire can hold. Pure.

In JSON they are escapes such as `\\ud83d` without a second one behind it. Strict decoders refuse the whole document for
one of them, so they are replaced before it is decoded.
"""

import re

__all__ = ["SurrogateReplacer", "replace_json_surrogates", "replace_surrogates"]

_PAIR_OR_HALF = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(\\u[dD][89a-fA-F][0-9a-fA-F]{2})"
    rb"|\\.",
    re.DOTALL,
)
"""Also every other escape, so that `\\\\ud83d`, which is a backslash and four letters, is left alone."""
_HALF = re.compile("[\ud800-\udfff]")
_ESCAPE = re.compile(rb"\\(?:u[0-9a-fA-F]{0,4}|[^u]|\Z)", re.DOTALL)
_FIRST_HALF = re.compile(rb"\\u[dD][89abAB]")
_PAIR_LENGTH = 12
_REPLACEMENT = rb"\ufffd"


def replace_surrogates(text: str) -> str:
    """Return the text with each half character replaced by U+FFFD."""
    return text if text.isascii() else _HALF.sub("\N{REPLACEMENT CHARACTER}", text)


def replace_json_surrogates(data: bytes) -> bytes:
    """Return JSON text with half characters and invalid UTF-8 replaced."""
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        data = data.decode("utf-8", "replace").encode("utf-8")
    return _replace(data)


class SurrogateReplacer:
    """Replaces half characters in JSON text that arrives in pieces. The possible first half of a pair is held back."""

    def __init__(self) -> None:
        self._held = b""

    def feed(self, data: bytes) -> bytes:
        """Return the text up to the last complete escape; the rest is held back for the next call."""
        if self._held:
            data, self._held = self._held + data, b""
        if b"\\" not in data:
            return data
        if b"\\" in data[-_PAIR_LENGTH:]:
            place = _complete(data)
            data, self._held = data[:place], data[place:]
        return _replace(data)

    def end(self) -> bytes:
        """Return the rest that was held back, at the end of the text."""
        data, self._held = self._held, b""
        return _replace(data)


def _replace(data: bytes) -> bytes:
    if b"\\u" not in data:
        return data
    return _PAIR_OR_HALF.sub(lambda found: _REPLACEMENT if found[1] else found[0], data)


def _complete(data: bytes) -> int:
    """Return the length up to which the data ends with a whole escape that is not the first half of a pair."""
    last = before = None
    for found in _ESCAPE.finditer(data):
        before, last = last, found
    assert last is not None
    place = len(data)
    if last.end() == len(data):
        is_short = len(last[0]) < (6 if last[0][1:2] == b"u" else 2)
        if is_short or _FIRST_HALF.match(last[0]):
            place = last.start()
        if is_short and before is not None and before.end() == place and _FIRST_HALF.match(before[0]):
            place = before.start()
    return place
