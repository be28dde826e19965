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
from holdfast.workspace.files.ignore_files import AGENT_IGNORE_FILES, GENERATED_NAMES, IgnoreRules
from holdfast.workspace.files.path_strings import glob_regex
from holdfast.workspace.files.safe_open import open_beneath, open_directory, replaced_error, status_beneath, stream_of
from holdfast.workspace.git.git_command import PrivateGit
from holdfast.workspace.process.piped_process import Spawn, find_program, run_child, spawn, split_records
from holdfast.workspace.search.fallback_scan import ScanRequest

__all__ = [
    "FileMatches",
    "GrepRequest",
    "Match",
    "SearchScope",
    "Searcher",
    "TextMatches",
    "confirmed_matches",
    "existing_paths",
    "newest_first",
]


# Verification of search results before they are shown: they must be below the searched directory.

_MAX_LINE = 500
_COMPARED_CHARS = 200
"""Number of characters that must be equal: programs truncate longer lines in different ways."""
_CHUNK = 1 << 16
_BOMS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Match(msgspec.Struct, frozen=True):
    """One matching line. `path` is relative to the searched directory; lines and columns count from 1."""

    path: str
    line: int
    column: int
    text: str


@contextlib.contextmanager
def _open_or_refuse(folder: str) -> Iterator[int]:
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

    with _open_or_refuse(folder) as handle:
        return sorted(paths, key=age)


def existing_paths(folder: str, paths: Sequence[str], limit: int) -> list[str]:
    """Return the existing paths, at most `limit`. A git index may name deleted files."""
    found: list[str] = []
    with _open_or_refuse(folder) as handle:
        for path in paths:
            if len(found) == limit:
                break
            if status_beneath(handle, path) is not None:
                found.append(path)
    return found


def confirmed_matches(folder: str, matches: Sequence[Match]) -> list[Match]:
    """Return the matches confirmed by the files, with the text of the lines as read here."""
    found: list[Match] = []
    with _open_or_refuse(folder) as handle:
        for path, group in groupby(matches, key=lambda match: match.path):
            wanted = list(group)
            lines = _read_lines(handle, path, {match.line for match in wanted})
            for match in wanted:
                text = lines.get(match.line)
                if text is not None and text[:_COMPARED_CHARS] == _strip_line_end(match.text)[:_COMPARED_CHARS]:
                    cut = text[:_MAX_LINE] + "…" * (len(text) > _MAX_LINE)
                    found.append(msgspec.structs.replace(match, text=cut))
    return found


def _read_lines(handle: int, path: str, wanted: set[int]) -> dict[int, str]:
    """Return some lines of a plain file; none if it does not exist here."""
    try:
        with stream_of(open_beneath(handle, path, os.O_RDONLY | os.O_NONBLOCK)) as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return {}
            begin = stream.read(2)
            stream.seek(0)
            if begin in _BOMS:
                texts = stream.read().decode("utf-16", "replace").split("\n")
                return {number: _strip_line_end(texts[number - 1]) for number in wanted if number <= len(texts)}
            return {
                number: _strip_line_end(line.decode("utf-8", "replace"))
                for number, line in _read_numbered(stream, wanted)
            }
    except (OSError, ValueError):
        return {}


def _read_numbered(stream: BinaryIO, wanted: set[int]) -> Iterator[tuple[int, bytes]]:
    number, last = 1, max(wanted)
    while number <= last and (piece := stream.readline(_CHUNK)):
        if number in wanted:
            yield number, piece
        while not piece.endswith(b"\n") and (piece := stream.readline(_CHUNK)):
            # Skip the rest of a very long line.
            pass
        number += 1


def _strip_line_end(text: str) -> str:
    return text.removeprefix("\ufeff").rstrip("\r\n")


_MAX_PER_FILE = 101
_MAX_MATCHES = 10_000
_MAX_FILES = 200_000
_MAX_SPLIT_LINES = 50


class TextMatches(msgspec.Struct, frozen=True):
    """Matches. `is_truncated`: there were more; `is_timed_out`: the time was up."""

    matches: tuple[Match, ...]
    is_truncated: bool
    is_timed_out: bool


class FileMatches(msgspec.Struct, frozen=True):
    """Paths. `is_truncated`: there were more; `is_timed_out`: the time was up."""

    paths: tuple[str, ...]
    is_truncated: bool
    is_timed_out: bool


class SearchScope(msgspec.Struct, frozen=True):
    """Scope of a search: `path` is a real path of a directory or one file; `seconds` is the time limit."""

    root: str
    path: str
    environment: Mapping[str, str]
    seconds: float
    limit: int = 100
    is_file: bool = False

    @property
    def folder(self) -> str:
        """The directory to search in."""
        return os.path.dirname(self.path) if self.is_file else self.path

    @property
    def name(self) -> str:
        """Name of the file to search; empty for a directory."""
        return os.path.basename(self.path) if self.is_file else ""


class GrepRequest(msgspec.Struct, frozen=True):
    """Pattern of a text search; `include` is a glob for file names."""

    pattern: str
    is_literal: bool = False
    include: str = ""


class _BackendFailed(Exception):
    """This way of searching does not work here; another may."""


class _Backend(msgspec.Struct, frozen=True):
    arguments: list[str]
    environment: Mapping[str, str]
    separator: bytes
    """Separator between line, column and text."""
    has_successor: bool
    """True if the next program is tried after a failure of this one."""


class Searcher:
    """Searches with the first available program. `start` runs the children."""

    def __init__(self, start: Spawn = spawn, git: PrivateGit | None = None, *, uses_ripgrep: bool = True) -> None:
        self._start = start
        self._private_git = git
        self._uses_ripgrep = uses_ripgrep

    async def grep(self, scope: SearchScope, request: GrepRequest) -> TextMatches:
        """Return matches, newest files first. Raises `ToolError` if the pattern is invalid."""
        is_included: Callable[[str], bool] = _path_filter(request.include)
        backends, ignored = await asyncio.to_thread(self._prepare, scope, request)
        found: dict[str, list[Match]] = defaultdict(list)
        count, is_timed_out = 0, False
        try:
            async with asyncio.timeout(scope.seconds):
                async with aclosing(self._run_first_working(backends, scope, _match)) as matches:
                    async for match in matches:
                        if match.path not in found and (
                            not is_included(match.path) or self._is_hidden(ignored, scope, match)
                        ):
                            continue
                        found[match.path].append(match)
                        count += 1
                        if count > _MAX_MATCHES:
                            break
        except TimeoutError:
            is_timed_out = True
        newest = await asyncio.to_thread(newest_first, scope.folder, list(found))
        sorted_matches = [match for path in newest for match in found[path]]
        shown = await asyncio.to_thread(confirmed_matches, scope.folder, sorted_matches[: scope.limit])
        named = (msgspec.structs.replace(match, path=_display(match.path)) for match in shown)
        return TextMatches(tuple(named), len(sorted_matches) > scope.limit, is_timed_out)

    async def files(self, scope: SearchScope, pattern: str) -> FileMatches:
        """Return files whose relative path matches the pattern, shortest path first."""
        regex = glob_regex(pattern)
        backends, ignored = await asyncio.to_thread(self._prepare, scope, None)
        found: list[str] = []
        is_timed_out = is_cut = False
        try:
            async with asyncio.timeout(scope.seconds):
                async with aclosing(self._run_first_working(backends, scope, None)) as paths:
                    async for match in paths:
                        if regex.match(match.path) and not ignored.covers(os.path.join(scope.folder, match.path)):
                            found.append(match.path)
                            if is_cut := len(found) >= _MAX_FILES:
                                break
        except TimeoutError:
            is_timed_out = True
        shortest = sorted(set(found), key=lambda path: (len(path), path))
        shown = await asyncio.to_thread(existing_paths, scope.folder, shortest, scope.limit + 1)
        return FileMatches(tuple(map(_display, shown[: scope.limit])), is_cut or len(shown) > scope.limit, is_timed_out)

    def _prepare(self, scope: SearchScope, request: GrepRequest | None) -> tuple[list[_Backend], IgnoreRules]:
        """Return the available programs, best first, and the ignore rules that only Holdfast knows."""
        backends = [backend for backend in (self._rg(scope, request), self._git(scope, request)) if backend]
        return [*backends, _fallback(scope, request)], IgnoreRules(scope.folder, AGENT_IGNORE_FILES)

    def _is_hidden(self, ignored: IgnoreRules, scope: SearchScope, match: Match) -> bool:
        return not scope.name and ignored.covers(os.path.join(scope.folder, match.path))

    async def _run_first_working(
        self, backends: Sequence[_Backend], scope: SearchScope, read: Callable[[bytes, bytes], Match | None] | None
    ) -> AsyncGenerator[Match, None]:
        for backend in backends:
            try:
                async with aclosing(self._records(backend, scope, read)) as matches:
                    async for match in matches:
                        yield match
                return
            except _BackendFailed:
                continue

    async def _records(
        self, backend: _Backend, scope: SearchScope, read: Callable[[bytes, bytes], Match | None] | None
    ) -> AsyncGenerator[Match, None]:
        seen = False
        try:
            async with run_child(self._start, backend.arguments, scope.folder, backend.environment) as child:
                pieces = split_records(child.child.stdout, b"\0" if read is None else b"\n")
                async with aclosing(pieces if read is None else _join_split_records(pieces, scope.folder)) as records:
                    async for record in records:
                        match = _file(record) if read is None else read(record, backend.separator)
                        if match is not None:
                            seen = True
                            yield match
                code, error_text = await child.end()
        except OSError:
            # The program cannot be started.
            if backend.has_successor:
                raise _BackendFailed from None
            raise
        if code not in (0, 1) and error_text and not seen:
            if backend.has_successor and not _is_about_pattern(error_text):
                raise _BackendFailed
            raise ToolError(f"The pattern is not a valid regular expression: {_last_line(error_text)}. {_ADVICE}")

    def _rg(self, scope: SearchScope, request: GrepRequest | None) -> _Backend | None:
        program = find_program("rg", scope.environment, scope.root) if self._uses_ripgrep else None
        if program is None:
            return None
        arguments = [program, "--no-config", "--null", "--color=never", "--hidden", "--no-require-git", "--no-messages"]
        arguments += [f"--glob=!{name}" for name in sorted(GENERATED_NAMES)]
        if request is None:
            arguments.append("--files")
        else:
            arguments += ["--line-number", "--column", "--no-heading", "--with-filename", "--engine=auto", "--crlf"]
            arguments += ["--max-columns=1000", "--max-columns-preview", f"--max-count={_MAX_PER_FILE}"]
            arguments += ["--fixed-strings"] * request.is_literal
            if request.include and "/" not in request.include:
                # A type respects ignore files; a glob would override them.
                arguments += ["--type-add", f"wanted:{request.include}", "--type=wanted"]
            arguments += ["-e", request.pattern]
        return _Backend([*arguments, "--", f"./{scope.name}"], scope.environment, b":", has_successor=True)

    def _git(self, scope: SearchScope, request: GrepRequest | None) -> _Backend | None:
        if self._private_git is None:
            return None
        git = self._private_git.prepare(scope.folder, scope.environment, scope.root)
        if git is None:
            return None
        if scope.folder != git.top and IgnoreRules(scope.folder).is_root_ignored:
            # Git finds nothing in an ignored directory, even if it is named explicitly.
            return None
        if request is None:
            words = ["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]
        else:
            words = ["grep", "--no-color", "-n", "--column", "-z", "-I", "--untracked", "--exclude-standard"]
            # Also match lines with Windows line ends.
            pattern = (
                ["-F", "-e", request.pattern] if request.is_literal else ["-P", "-e", f"(*ANYCRLF){request.pattern}"]
            )
            words += [f"--max-count={_MAX_PER_FILE}", *pattern]
        return _Backend(git.command(*words, "--", scope.name or "."), git.environment, b"\0", has_successor=True)


_ADVICE = "Escape special characters such as ( ) [ ] { } . * + ? with a backslash, or set literal_text."


def _fallback(scope: SearchScope, request: GrepRequest | None) -> _Backend:
    pattern = None if request is None else request.pattern
    scan = ScanRequest(scope.folder, scope.name, pattern, request is not None and request.is_literal, _MAX_PER_FILE)
    arguments = [sys.executable, "-I", "-m", "holdfast.workspace.search.fallback_scan", json.dumps(scan._asdict())]
    return _Backend(arguments, scope.environment, b":", has_successor=False)


def _path_filter(include: str) -> Callable[[str], bool]:
    if not include:
        return lambda _: True
    regex = glob_regex(include)
    return lambda path: regex.match(path) is not None


async def _join_split_records(pieces: AsyncGenerator[bytes, None], folder: str) -> AsyncGenerator[bytes, None]:
    """Yield lines as records, joining those split by line breaks in their path: only the last part contains a NUL.

    Messages of the program contain no NUL either, so the file system decides which path exists.
    """
    parts: list[bytes] = []
    async with aclosing(pieces) as lines:
        async for line in lines:
            if b"\0" not in line:
                parts = [*parts[-_MAX_SPLIT_LINES:], line]
                continue
            yield await asyncio.to_thread(_join_record, parts, line, folder) if parts else line
            parts = []


def _join_record(parts: Sequence[bytes], last: bytes, folder: str) -> bytes:
    for first in range(len(parts)):
        whole = b"\n".join([*parts[first:], last])
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
    return Match(_path(path), int(pieces[0]), characters, text[:_MAX_LINE] + "…" * (len(text) > _MAX_LINE))


def _file(record: bytes) -> Match | None:
    """Return a file as a match. Git lists a nested repository as a directory, which is skipped."""
    return Match(_path(record), 0, 0, "") if record and not record.endswith(b"/") else None


def _path(raw: bytes) -> str:
    """Decode a path in the encoding of the file system, so that it can be opened."""
    return os.fsdecode(raw).removeprefix("./")


def _display(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "replace")


def _is_about_pattern(error_text: str) -> bool:
    return "regex parse error" in error_text or "-e option" in error_text or "PCRE" in error_text


def _last_line(error_text: str) -> str:
    lines = [line.strip() for line in error_text.splitlines() if line.strip(" ^")]
    last = (lines[-1] if lines else error_text).removeprefix("error: ").rpartition("fatal: ")[2]
    # Git repeats the modified pattern instead of the given one.
    return re.sub(r"^-e option, '.*': ", "", last)[:300].rstrip(".")
