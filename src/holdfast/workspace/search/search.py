"""Search for text and files: with ripgrep if it is installed, else with a private git, else with our own walk.

All of them give the same result. Every search runs in a child that is killed on timeout, when enough was found, or
when the caller is cancelled.
"""

import asyncio
import codecs
import contextlib
import json
import os
import re
import stat
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from itertools import groupby
from typing import BinaryIO

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.workspace.files.file_paths import glob_regex
from holdfast.workspace.files.ignore_files import AGENT_IGNORE_FILES, GENERATED_NAMES, IgnoreRules
from holdfast.workspace.files.open_files import open_beneath, open_directory, replaced_error, status_beneath, stream_of
from holdfast.workspace.git.git_command import PrivateGit
from holdfast.workspace.process.child_process import Spawn, find_program, running, spawn, splitted
from holdfast.workspace.search.fallback_scan import ScanRequest

__all__ = [
    "FoundFiles",
    "FoundText",
    "GrepRequest",
    "Match",
    "Search",
    "Searcher",
    "newest_first",
    "present",
    "true_matches",
]


# Verification of search results before they are shown: they must be below the searched directory.

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
        handle = open_directory(folder)
    except OSError:
        raise replaced_error(folder) from None
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


# Search for text and files: with ripgrep if it is installed, else with a private git, else with our own walk.

_MOST_PER_FILE = 101
_MOST_GATHERED = 10_000
_MOST_FILES = 200_000
_MOST_TORN = 50


class FoundText(msgspec.Struct, frozen=True):
    """Matches. `is_truncated`: there were more; `is_late`: the time was up."""

    matches: tuple[Match, ...]
    is_truncated: bool
    is_late: bool


class FoundFiles(msgspec.Struct, frozen=True):
    """Paths. `is_truncated`: there were more; `is_late`: the time was up."""

    paths: tuple[str, ...]
    is_truncated: bool
    is_late: bool


class Search(msgspec.Struct, frozen=True):
    """Scope of a search: `place` is a real path of a directory or one file; `seconds` is the time limit."""

    root: str
    place: str
    environment: Mapping[str, str]
    seconds: float
    most: int = 100
    is_file: bool = False

    @property
    def folder(self) -> str:
        """The directory to search in."""
        return os.path.dirname(self.place) if self.is_file else self.place

    @property
    def name(self) -> str:
        """Name of the file to search; empty for a directory."""
        return os.path.basename(self.place) if self.is_file else ""


class GrepRequest(msgspec.Struct, frozen=True):
    """Pattern of a text search; `include` is a glob for file names."""

    pattern: str
    is_literal: bool = False
    include: str = ""


class _Useless(Exception):
    """This way of searching does not work here; another may."""


class _Way(msgspec.Struct, frozen=True):
    arguments: list[str]
    environment: Mapping[str, str]
    separator: bytes
    """Separator between line, column and text."""
    can_fail: bool
    """True if the next program is tried after a failure of this one."""


class Searcher:
    """Searches with the first available program. `start` runs the children."""

    def __init__(self, start: Spawn = spawn, git: PrivateGit | None = None, *, uses_ripgrep: bool = True) -> None:
        self._start = start
        self._private_git = git
        self._uses_ripgrep = uses_ripgrep

    async def grep(self, where: Search, ask: GrepRequest) -> FoundText:
        """Return matches, newest files first. Raises `ToolError` if the pattern is invalid."""
        fits: Callable[[str], bool] = _fits(ask.include)
        ways, ignored = await asyncio.to_thread(self._prepared, where, ask)
        found: dict[str, list[Match]] = defaultdict(list)
        count, is_late = 0, False
        try:
            async with asyncio.timeout(where.seconds):
                async with aclosing(self._first_that_works(ways, where, _match)) as matches:
                    async for match in matches:
                        if match.path not in found and (not fits(match.path) or self._hides(ignored, where, match)):
                            continue
                        found[match.path].append(match)
                        count += 1
                        if count > _MOST_GATHERED:
                            break
        except TimeoutError:
            is_late = True
        newest = await asyncio.to_thread(newest_first, where.folder, list(found))
        sorted_matches = [match for path in newest for match in found[path]]
        shown = await asyncio.to_thread(true_matches, where.folder, sorted_matches[: where.most])
        named = (msgspec.structs.replace(match, path=_shown(match.path)) for match in shown)
        return FoundText(tuple(named), len(sorted_matches) > where.most, is_late)

    async def files(self, where: Search, pattern: str) -> FoundFiles:
        """Return files whose relative path matches the pattern, shortest path first."""
        regex = glob_regex(pattern)
        ways, ignored = await asyncio.to_thread(self._prepared, where, None)
        found: list[str] = []
        is_late = is_cut = False
        try:
            async with asyncio.timeout(where.seconds):
                async with aclosing(self._first_that_works(ways, where, None)) as paths:
                    async for match in paths:
                        if regex.match(match.path) and not ignored.covers(os.path.join(where.folder, match.path)):
                            found.append(match.path)
                            if is_cut := len(found) >= _MOST_FILES:
                                break
        except TimeoutError:
            is_late = True
        shortest = sorted(set(found), key=lambda path: (len(path), path))
        shown = await asyncio.to_thread(present, where.folder, shortest, where.most + 1)
        return FoundFiles(tuple(map(_shown, shown[: where.most])), is_cut or len(shown) > where.most, is_late)

    def _prepared(self, where: Search, ask: GrepRequest | None) -> tuple[list[_Way], IgnoreRules]:
        """Return the available programs, best first, and the ignore rules that only Holdfast knows."""
        ways = [way for way in (self._rg(where, ask), self._git(where, ask)) if way]
        return [*ways, _own(where, ask)], IgnoreRules(where.folder, AGENT_IGNORE_FILES)

    def _hides(self, ignored: IgnoreRules, where: Search, match: Match) -> bool:
        return not where.name and ignored.covers(os.path.join(where.folder, match.path))

    async def _first_that_works(
        self, ways: Sequence[_Way], where: Search, read: Callable[[bytes, bytes], Match | None] | None
    ) -> AsyncGenerator[Match, None]:
        for way in ways:
            try:
                async with aclosing(self._records(way, where, read)) as matches:
                    async for match in matches:
                        yield match
                return
            except _Useless:
                continue

    async def _records(
        self, way: _Way, where: Search, read: Callable[[bytes, bytes], Match | None] | None
    ) -> AsyncGenerator[Match, None]:
        seen = False
        try:
            async with running(self._start, way.arguments, where.folder, way.environment) as child:
                pieces = splitted(child.child.stdout, b"\0" if read is None else b"\n")
                async with aclosing(pieces if read is None else _mended(pieces, where.folder)) as records:
                    async for record in records:
                        match = _file(record) if read is None else read(record, way.separator)
                        if match is not None:
                            seen = True
                            yield match
                code, complaint = await child.end()
        except OSError:
            # The program cannot be started.
            if way.can_fail:
                raise _Useless from None
            raise
        if code not in (0, 1) and complaint and not seen:
            if way.can_fail and not _is_about_pattern(complaint):
                raise _Useless
            raise ToolError(f"The pattern is not a valid regular expression: {_short(complaint)}. {_ADVICE}")

    def _rg(self, where: Search, ask: GrepRequest | None) -> _Way | None:
        program = find_program("rg", where.environment, where.root) if self._uses_ripgrep else None
        if program is None:
            return None
        arguments = [program, "--no-config", "--null", "--color=never", "--hidden", "--no-require-git", "--no-messages"]
        arguments += [f"--glob=!{name}" for name in sorted(GENERATED_NAMES)]
        if ask is None:
            arguments.append("--files")
        else:
            arguments += ["--line-number", "--column", "--no-heading", "--with-filename", "--engine=auto", "--crlf"]
            arguments += ["--max-columns=1000", "--max-columns-preview", f"--max-count={_MOST_PER_FILE}"]
            arguments += ["--fixed-strings"] * ask.is_literal
            if ask.include and "/" not in ask.include:
                # A type respects ignore files; a glob would override them.
                arguments += ["--type-add", f"wanted:{ask.include}", "--type=wanted"]
            arguments += ["-e", ask.pattern]
        return _Way([*arguments, "--", f"./{where.name}"], where.environment, b":", can_fail=True)

    def _git(self, where: Search, ask: GrepRequest | None) -> _Way | None:
        if self._private_git is None:
            return None
        git = self._private_git.prepare(where.folder, where.environment, where.root)
        if git is None:
            return None
        if where.folder != git.top and IgnoreRules(where.folder).is_root_ignored:
            # Git finds nothing in an ignored directory, even if it is named explicitly.
            return None
        if ask is None:
            words = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
        else:
            words = ["grep", "--no-color", "-n", "--column", "-z", "-I", "--untracked", "--exclude-standard"]
            # Also match lines with Windows line ends.
            pattern = ["-F", "-e", ask.pattern] if ask.is_literal else ["-P", "-e", f"(*ANYCRLF){ask.pattern}"]
            words += [f"--max-count={_MOST_PER_FILE}", *pattern]
        return _Way(git.command(*words, "--", where.name or "."), git.environment, b"\0", can_fail=True)


_ADVICE = "Escape special characters such as ( ) [ ] { } . * + ? with a backslash, or set literal_text."


def _own(where: Search, ask: GrepRequest | None) -> _Way:
    pattern = None if ask is None else ask.pattern
    scan = ScanRequest(where.folder, where.name, pattern, ask is not None and ask.is_literal, _MOST_PER_FILE)
    arguments = [sys.executable, "-I", "-m", "holdfast.workspace.search.fallback_scan", json.dumps(scan._asdict())]
    return _Way(arguments, where.environment, b":", can_fail=False)


def _fits(include: str) -> Callable[[str], bool]:
    if not include:
        return lambda _: True
    regex = glob_regex(include)
    return lambda path: regex.match(path) is not None


async def _mended(pieces: AsyncGenerator[bytes, None], folder: str) -> AsyncGenerator[bytes, None]:
    """Yield lines as records, joining those split by line breaks in their path: only the last part contains a NUL.

    Messages of the program contain no NUL either, so the file system decides which path exists.
    """
    torn: list[bytes] = []
    async with aclosing(pieces) as lines:
        async for line in lines:
            if b"\0" not in line:
                torn = [*torn[-_MOST_TORN:], line]
                continue
            yield await asyncio.to_thread(_put_together, torn, line, folder) if torn else line
            torn = []


def _put_together(torn: Sequence[bytes], last: bytes, folder: str) -> bytes:
    for first in range(len(torn)):
        whole = b"\n".join([*torn[first:], last])
        if os.path.lexists(os.path.join(os.fsencode(folder), whole.partition(b"\0")[0])):
            return whole
    return last


def _match(record: bytes, separator: bytes) -> Match | None:
    """Parse `path NUL line : column : text`, with any separator for the colons."""
    path, _, rest = record.partition(b"\0")
    pieces = rest.split(separator, 2)
    if len(pieces) != 3 or not (pieces[0].isdigit() and pieces[1].isdigit()):
        return None
    raw, column = pieces[2], int(pieces[1])
    text = raw.decode("utf-8", "replace").rstrip("\r")
    characters = len(raw[: column - 1].decode("utf-8", "replace")) + 1
    return Match(_path(path), int(pieces[0]), characters, text[:_LONGEST] + "…" * (len(text) > _LONGEST))


def _file(record: bytes) -> Match | None:
    """Return a file as a match. Git lists a nested repository as a directory, which is skipped."""
    return Match(_path(record), 0, 0, "") if record and not record.endswith(b"/") else None


def _path(raw: bytes) -> str:
    """Decode a path in the encoding of the file system, so that it can be opened."""
    return os.fsdecode(raw).removeprefix("./")


def _shown(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def _is_about_pattern(complaint: str) -> bool:
    return "regex parse error" in complaint or "-e option" in complaint or "PCRE" in complaint


def _short(complaint: str) -> str:
    lines = [line.strip() for line in complaint.splitlines() if line.strip(" ^")]
    last = (lines[-1] if lines else complaint).removeprefix("error: ").rpartition("fatal: ")[2]
    # Git repeats the modified pattern instead of the given one.
    return re.sub(r"^-e option, '.*': ", "", last)[:300].rstrip(".")
