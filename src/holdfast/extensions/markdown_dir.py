"""Scans directories for Markdown files, caches the result, and is the base of the extensions that consist of such
files.

`MarkdownDirectory` blocks and runs in a thread; every scan is bounded, also with cyclic links, pipes, unreadable files,
or a link to a whole disk. `CachedScan` returns the last result at once and refreshes it on request: concurrent callers
share a scan and wait for a limited time. There is no file watcher (decision 18): files are checked when they are used.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Literal, TypeAlias, TypeVar

import msgspec

from holdfast.atomic_files import MAX_FILE_SIZE, FileUnreadable, Signature, file_signature, read_file
from holdfast.domain.tools import Tool
from holdfast.extensions.search_paths import SearchPath
from holdfast.tasks import TaskOwner
from holdfast.workspace.files.path_strings import is_within
from holdfast.workspace.files.safe_open import read_within
from holdfast.workspace.short_calls import ShortCalls

__all__ = ["CachedScan", "Layout", "MarkdownDirectory", "MarkdownFile", "ScannedExtension", "read_file_within"]


Layout: TypeAlias = Literal["files", "skills"]
"""`files`: every Markdown file is an entry. `skills`: every directory with a `SKILL.md` is an entry."""

T = TypeVar("T")

_MAX_DEPTH = 4
_MAX_FILES = 512
_MAX_ENTRIES = 8_192
_MAX_BYTES = 16 << 20
_SKIPPED_NAMES = frozenset({"node_modules", "__pycache__"})


class MarkdownFile(msgspec.Struct, frozen=True):
    """A file as it was read. If it could not be read, `error` is the reason."""

    path: str
    name: str
    """Path relative to the folder, without the extension; directories are separated by colons."""
    folder: SearchPath
    data: bytes = b""
    error: str = ""


class MarkdownDirectory(Generic[T]):
    """Entries of some folders, in the order of the folders. `read` converts a file to an entry and never raises."""

    def __init__(self, layout: Layout, read: Callable[[MarkdownFile], T]) -> None:
        self._layout = layout
        self._read = read
        self._cache: dict[tuple[str, SearchPath], tuple[Signature, T]] = {}

    def scan(self, folders: Sequence[SearchPath]) -> tuple[T, ...]:
        """Scan the folders and return the entries. Only changed files are read again."""
        cache: dict[tuple[str, SearchPath], tuple[Signature, T]] = {}
        remaining = _MAX_BYTES
        for folder in folders:
            for path, name in _walk(folder, self._layout):
                seen = file_signature(path)
                remaining -= seen[2] if seen is not None else 0
                if remaining < 0:
                    too_much = MarkdownFile(
                        path, name, folder, error="the directories contain more files than are read: remove some."
                    )
                    cache[path, folder] = (None, self._read(too_much))
                    continue
                cached = self._cache.get((path, folder))
                if cached is None or seen is None or cached[0] != seen:
                    cached = (seen, self._read(_read_file(path, name, folder)))
                cache[path, folder] = cached
        self._cache = cache
        return tuple(item for _, item in cache.values())


def _read_file(path: str, name: str, folder: SearchPath) -> MarkdownFile:
    if folder.within and not is_within(os.path.realpath(folder.within), os.path.realpath(path)):
        return MarkdownFile(path, name, folder, error="is a link that leaves the project: store the file itself here.")
    try:
        data = read_file_within(path, folder.within)
    except FileNotFoundError:
        return MarkdownFile(path, name, folder, error="cannot be read: the link is broken.")
    except FileUnreadable as error:
        return MarkdownFile(path, name, folder, error=str(error).removeprefix(f"{path} "))
    return MarkdownFile(path, name, folder, data)


def read_file_within(path: str, within: str) -> bytes:
    """Return the whole file; with `within`, only if it is inside that directory when it is opened. Raises
    `FileNotFoundError`, or `Unreadable` if it cannot be read.
    """
    if not within:
        return read_file(path)[0]
    try:
        data, _ = read_within(path, (within,), MAX_FILE_SIZE + 1)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise FileUnreadable(f"{path} cannot be read: {(error.strerror or str(error)).lower()}.") from error
    if len(data) > MAX_FILE_SIZE:
        raise FileUnreadable(f"{path} is larger than {MAX_FILE_SIZE // 1024} KiB, the limit.")
    return data


def _walk(folder: SearchPath, layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield the path and the name of each file."""
    count = 0
    seen: set[tuple[int, int]] = set()
    pending = [(folder.path, 0)]
    found = 0
    while pending:
        place, depth = pending.pop()
        entries = _entries(place, seen)
        count += len(entries)
        if count > _MAX_ENTRIES:
            return
        below: list[tuple[str, int]] = []
        for entry in entries:
            is_file = entry.name == "SKILL.md" if layout == "skills" else entry.name.lower().endswith(".md")
            if is_file and not _is_directory(entry):
                found += 1
                yield entry.path, _name_of(entry.path, folder.path, layout)
            elif depth < _MAX_DEPTH and not entry.name.startswith(".") and entry.name not in _SKIPPED_NAMES:
                below += [(entry.path, depth + 1)] if _is_directory(entry) else []
            if found >= _MAX_FILES:
                return
        pending += reversed(below)


def _entries(place: str, seen: set[tuple[int, int]]) -> list[os.DirEntry[str]]:
    """Return the entries sorted by name. A directory that was visited before, by any path, is empty."""
    try:
        status = os.stat(place)
        if (status.st_dev, status.st_ino) in seen:
            return []
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(place) as entries:
            return sorted((entry for _, entry in zip(range(_MAX_ENTRIES), entries, strict=False)), key=_by_name)
    except (OSError, ValueError):
        return []


def _by_name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _name_of(path: str, top: str, layout: Layout) -> str:
    if layout == "skills":
        return os.path.basename(os.path.dirname(path))
    return os.path.relpath(path, top)[: -len(".md")].replace("/", ":")


_LOCK_TIMEOUT = 1.0
_MAX_CONCURRENT_SCANS = 4
_log = logging.getLogger("holdfast.server")


class CachedScan(Generic[T]):
    """The cached result. `scan` blocks and never raises; `on_change` is called in the event loop when the result
    differs.
    """

    def __init__(self, scan: Callable[[], T], initial: T, on_change: Callable[[], None] = lambda: None) -> None:
        self._scan = scan
        self._on_change = on_change
        self._tasks = TaskOwner()
        self._latest_task: asyncio.Task[None] | None = None
        self._last_started = self._last_applied = 0
        self._calls = ShortCalls()
        self.current = initial
        """Result of the last scan."""

    @property
    def has_scanned(self) -> bool:
        """True if a scan has finished."""
        return self._last_applied > 0

    def start(self) -> None:
        """Start a scan in the background."""
        self._start()

    async def rescan(self, seconds: float = _LOCK_TIMEOUT) -> T:
        """Scan and return the result; the previous result if the scan takes longer than `seconds`."""
        if self._calls.is_short:
            self._last_started += 1
            self._apply(self._last_started, self._scan_safely())
        else:
            await asyncio.wait((self._start(),), timeout=seconds)
        return self.current

    def _start(self) -> asyncio.Task[None]:
        """Start a scan. The number of concurrent scans is bounded, in case the disk does not respond."""
        if self._latest_task is None or len(self._tasks) < _MAX_CONCURRENT_SCANS:
            self._latest_task = self._tasks.start(self._scan_in_thread(), name="scan extensions")
        return self._latest_task

    async def _scan_in_thread(self) -> None:
        self._last_started += 1
        number = self._last_started
        self._apply(number, await asyncio.to_thread(self._scan_safely))

    def _scan_safely(self) -> T | None:
        """Scan. Returns None if the scan failed."""
        try:
            return self._calls.measure(self._scan)
        except Exception:
            _log.exception("a scan for extensions failed")
            return None

    def _apply(self, number: int, found: T | None) -> None:
        if found is not None and number > self._last_applied:
            self._last_applied = number
            if found != self.current:
                self.current = found
                self._on_change()

    async def close(self) -> None:
        """Cancel running scans."""
        self._tasks.cancel_all()
        await self._tasks.drain()


class ScannedExtension(Generic[T]):
    """Base class of extensions that only scan the disk: they have no tools and no processes."""

    def __init__(self, scan: CachedScan[T]) -> None:
        self._scan = scan

    @property
    def current(self) -> T:
        """Result of the last scan."""
        return self._scan.current

    async def rescan(self) -> T:
        """Scan and return the result."""
        return await self._scan.rescan()

    def start(self) -> None:
        """Start the first scan."""
        self._scan.start()

    def refresh(self) -> None:
        """Start a new scan."""
        self._scan.start()

    def tools(self) -> Sequence[Tool]:
        """Return no tools."""
        return ()

    async def close(self) -> None:
        """Cancel running scans."""
        await self._scan.close()
