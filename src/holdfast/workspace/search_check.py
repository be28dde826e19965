"""What a search has found, checked before it is shown: it has to lie below the directory that was searched.

A searching program opens what it finds by its path. While it works, a directory on that path can be replaced by a link
that leads elsewhere. So every path and every line that is to be shown is read again, below an open directory and
without following links: what is shown comes from there.
"""

import codecs
import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import BinaryIO

import msgspec

from holdfast.workspace.beneath import open_beneath, status_beneath, stream_of
from holdfast.workspace.files import descend, replaced

__all__ = ["Match", "newest_first", "present", "true_matches"]

_LONGEST = 500
_COMPARED = 200
"""Characters that have to be the same: programs cut longer lines, each in its own way."""
_PIECE = 1 << 16
_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Match(msgspec.Struct, frozen=True):
    """One line that fits. `path` is relative to where the search began; lines and columns count from 1."""

    path: str
    line: int
    column: int
    text: str


@contextlib.contextmanager
def _opened(folder: str) -> Iterator[int]:
    try:
        handle = descend(folder)
    except OSError:
        raise replaced(folder) from None
    try:
        yield handle
    finally:
        os.close(handle)


def newest_first(folder: str, paths: Sequence[str]) -> list[str]:
    def age(path: str) -> tuple[float, str]:
        status = status_beneath(handle, path)
        return -status.st_mtime if status is not None else 0.0, path

    with _opened(folder) as handle:
        return sorted(paths, key=age)


def present(folder: str, paths: Sequence[str], most: int) -> list[str]:
    """Those that are there, `most` at most. An index may name what was deleted."""
    found: list[str] = []
    with _opened(folder) as handle:
        for path in paths:
            if len(found) == most:
                break
            if status_beneath(handle, path) is not None:
                found.append(path)
    return found


def true_matches(folder: str, matches: Sequence[Match]) -> list[Match]:
    """The matches that are what they say, with the text of their lines as it stands in the file."""
    found: list[Match] = []
    with _opened(folder) as handle:
        for path, group in groupby(matches, key=lambda match: match.path):
            wanted = list(group)
            lines = _lines(handle, path, {match.line for match in wanted})
            for match in wanted:
                text = lines.get(match.line)
                if text is not None and text[:_COMPARED] == _bare(match.text)[:_COMPARED]:
                    cut = text[:_LONGEST] + "…" * (len(text) > _LONGEST)
                    found.append(msgspec.structs.replace(match, text=cut))
    return found


def _lines(handle: int, path: str, wanted: set[int]) -> dict[int, str]:
    """Some lines of a plain file; none if there is no such file here."""
    try:
        with stream_of(open_beneath(handle, path, os.O_RDONLY | os.O_NONBLOCK)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return {}
            begin = stream.read(2)
            stream.seek(0)
            if begin in _BOMS:
                texts = stream.read().decode("utf-16", "replace").split("\n")
                return {number: _bare(texts[number - 1]) for number in wanted if number <= len(texts)}
            return {number: _bare(line.decode("utf-8", "replace")) for number, line in _numbered(stream, wanted)}
    except (OSError, ValueError):
        return {}


def _numbered(stream: BinaryIO, wanted: set[int]) -> Iterator[tuple[int, bytes]]:
    number, last = 1, max(wanted)
    while number <= last and (piece := stream.readline(_PIECE)):
        if number in wanted:
            yield number, piece
        while not piece.endswith(b"\n") and (piece := stream.readline(_PIECE)):
            # The rest of a very long line.
            pass
        number += 1


def _bare(text: str) -> str:
    return text.removeprefix("\ufeff").rstrip("\r\n")
