"""Verification of search results before they are shown: they must be below the searched directory.

A search program opens files by path. Meanwhile a directory on that path can be replaced by a link to another one. So
every path and line to be shown is read again, below an open directory and without following links, and the text shown
is the one read here.
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
"""Number of characters that must be equal: programs truncate longer lines in different ways."""
_PIECE = 1 << 16
_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Match(msgspec.Struct, frozen=True):
    """One matching line. `path` is relative to the searched directory; lines and columns count from 1."""

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
    """Sort paths by modification time, newest first."""

    def age(path: str) -> tuple[float, str]:
        status = status_beneath(handle, path)
        return -status.st_mtime if status is not None else 0.0, path

    with _opened(folder) as handle:
        return sorted(paths, key=age)


def present(folder: str, paths: Sequence[str], most: int) -> list[str]:
    """Return the existing paths, at most `most`. A git index may name deleted files."""
    found: list[str] = []
    with _opened(folder) as handle:
        for path in paths:
            if len(found) == most:
                break
            if status_beneath(handle, path) is not None:
                found.append(path)
    return found


def true_matches(folder: str, matches: Sequence[Match]) -> list[Match]:
    """Return the matches confirmed by the files, with the text of the lines as read here."""
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
    """Return some lines of a plain file; none if it does not exist here."""
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
            # Skip the rest of a very long line.
            pass
        number += 1


def _bare(text: str) -> str:
    return text.removeprefix("\ufeff").rstrip("\r\n")
