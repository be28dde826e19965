"""Reads Markdown files in directories, and caches them until they change. All functions block: call them in a thread.

Every scan is bounded, also with cyclic links, pipes, unreadable files, or a link to a whole disk.
"""

import asyncio
import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Literal, TypeAlias, TypeVar

import msgspec

from holdfast.atomic_files import MAX_FILE_SIZE, FileUnreadable, Signature, file_signature, read_file
from holdfast.domain.tools import Tool
from holdfast.extensions.search_paths import SearchPath
from holdfast.tasks import TaskOwner
from holdfast.workspace.files.file_paths import is_within
from holdfast.workspace.files.open_files import read_within

__all__ = ["CachedScan", "Layout", "Looking", "MarkdownDirectory", "MarkdownFile", "contents_within"]


Layout: TypeAlias = Literal["files", "skills"]
"""`files`: every Markdown file is an entry. `skills`: every directory with a `SKILL.md` is an entry."""

T = TypeVar("T")

_DEEPEST = 4
_MOST_FILES = 512
_MOST_ENTRIES = 8_192
_MOST_BYTES = 16 << 20
_SKIPPED = frozenset({"node_modules", "__pycache__"})


class MarkdownFile(msgspec.Struct, frozen=True):
    """A file as it was read. If it could not be read, `trouble` is the reason."""

    path: str
    name: str
    """Path relative to the folder, without the extension; directories are separated by colons."""
    folder: SearchPath
    data: bytes = b""
    trouble: str = ""


class MarkdownDirectory(Generic[T]):
    """Entries of some folders, in the order of the folders. `read` converts a file to an entry and never raises."""

    def __init__(self, layout: Layout, read: Callable[[MarkdownFile], T]) -> None:
        self._layout = layout
        self._read = read
        self._known: dict[tuple[str, SearchPath], tuple[Signature, T]] = {}

    def look(self, folders: Sequence[SearchPath]) -> tuple[T, ...]:
        """Scan the folders and return the entries. Only changed files are read again."""
        known: dict[tuple[str, SearchPath], tuple[Signature, T]] = {}
        room = _MOST_BYTES
        for folder in folders:
            for path, name in _walk(folder, self._layout):
                seen = file_signature(path)
                room -= seen[2] if seen is not None else 0
                if room < 0:
                    too_much = MarkdownFile(path, name, folder, trouble="there is more here than is ever read.")
                    known[path, folder] = (None, self._read(too_much))
                    continue
                before = self._known.get((path, folder))
                if before is None or seen is None or before[0] != seen:
                    before = (seen, self._read(_taken(path, name, folder)))
                known[path, folder] = before
        self._known = known
        return tuple(item for _, item in known.values())


def _taken(path: str, name: str, folder: SearchPath) -> MarkdownFile:
    if folder.within and not is_within(os.path.realpath(folder.within), os.path.realpath(path)):
        return MarkdownFile(path, name, folder, trouble="leads out of the project: put the file itself here.")
    try:
        data = contents_within(path, folder.within)
    except FileNotFoundError:
        return MarkdownFile(path, name, folder, trouble="cannot be read: it leads nowhere.")
    except FileUnreadable as error:
        return MarkdownFile(path, name, folder, trouble=str(error).removeprefix(f"{path} "))
    return MarkdownFile(path, name, folder, data)


def contents_within(path: str, within: str) -> bytes:
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
        raise FileUnreadable(f"{path} is larger than {MAX_FILE_SIZE // 1024} KiB: that is no configuration.")
    return data


def _walk(folder: SearchPath, layout: Layout) -> Iterator[tuple[str, str]]:
    """Yield the path and the name of each file."""
    count = 0
    seen: set[tuple[int, int]] = set()
    waiting = [(folder.path, 0)]
    found = 0
    while waiting:
        place, depth = waiting.pop()
        entries = _entries(place, seen)
        count += len(entries)
        if count > _MOST_ENTRIES:
            return
        below: list[tuple[str, int]] = []
        for entry in entries:
            is_file = entry.name == "SKILL.md" if layout == "skills" else entry.name.lower().endswith(".md")
            if is_file and not _is_folder(entry):
                found += 1
                yield entry.path, _name_of(entry.path, folder.path, layout)
            elif depth < _DEEPEST and not entry.name.startswith(".") and entry.name not in _SKIPPED:
                below += [(entry.path, depth + 1)] if _is_folder(entry) else []
            if found >= _MOST_FILES:
                return
        waiting += reversed(below)


def _entries(place: str, seen: set[tuple[int, int]]) -> list[os.DirEntry[str]]:
    """Return the entries sorted by name. A directory that was visited before, by any path, is empty."""
    try:
        status = os.stat(place)
        if (status.st_dev, status.st_ino) in seen:
            return []
        seen.add((status.st_dev, status.st_ino))
        with os.scandir(place) as entries:
            return sorted((entry for _, entry in zip(range(_MOST_ENTRIES), entries, strict=False)), key=_by_name)
    except (OSError, ValueError):
        return []


def _by_name(entry: os.DirEntry[str]) -> str:
    return entry.name


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _name_of(path: str, top: str, layout: Layout) -> str:
    if layout == "skills":
        return os.path.basename(os.path.dirname(path))
    return os.path.relpath(path, top)[: -len(".md")].replace("/", ":")


# Cached result of a disk scan, refreshed on request. Concurrent callers share a scan, and wait for a limited time.

_LOCK_TIMEOUT = 1.0
_MOST = 4
_NO_TIME = 0.001
_log = logging.getLogger("holdfast.server")


class CachedScan(Generic[T]):
    """The cached result. `look` blocks and never raises; `on_change` is called in the event loop when the result
    differs.
    """

    def __init__(self, look: Callable[[], T], nothing: T, on_change: Callable[[], None] = lambda: None) -> None:
        self._look = look
        self._on_change = on_change
        self._tasks = TaskOwner()
        self._latest: asyncio.Task[None] | None = None
        self._begun = self._applied = 0
        self._took = _LOCK_TIMEOUT
        self.current = nothing
        """Result of the last scan."""

    @property
    def has_looked(self) -> bool:
        """True if a scan has finished."""
        return self._applied > 0

    def begin(self) -> None:
        """Start a scan in the background."""
        self._start()

    async def fresh(self, patience: float = _LOCK_TIMEOUT) -> T:
        """Scan and return the result; the previous result if the scan takes longer than `patience`."""
        if self._took < _NO_TIME:
            self._begun += 1
            self._take(self._begun, self._timed())
        else:
            await asyncio.wait((self._start(),), timeout=patience)
        return self.current

    def _start(self) -> asyncio.Task[None]:
        """Start a scan. The number of concurrent scans is bounded, in case the disk does not respond."""
        if self._latest is None or len(self._tasks) < _MOST:
            self._latest = self._tasks.start(self._see(), name="look at extensions")
        return self._latest

    async def _see(self) -> None:
        self._begun += 1
        number = self._begun
        self._take(number, await asyncio.to_thread(self._timed))

    def _timed(self) -> T | None:
        """Scan and measure the duration. Returns None if the scan failed."""
        began = time.perf_counter()
        try:
            return self._look()
        except Exception:
            _log.exception("a look at extensions failed")
            return None
        finally:
            self._took = time.perf_counter() - began

    def _take(self, number: int, found: T | None) -> None:
        if found is not None and number > self._applied:
            self._applied = number
            if found != self.current:
                self.current = found
                self._on_change()

    async def close(self) -> None:
        """Cancel running scans."""
        self._tasks.cancel_all()
        await self._tasks.drain()


class Looking(Generic[T]):
    """Base class of extensions that only scan the disk: they have no tools and no processes."""

    def __init__(self, watch: CachedScan[T]) -> None:
        self._watch = watch

    @property
    def current(self) -> T:
        """Result of the last scan."""
        return self._watch.current

    async def fresh(self) -> T:
        """Scan and return the result."""
        return await self._watch.fresh()

    def start(self) -> None:
        """Start the first scan."""
        self._watch.begin()

    def refresh(self) -> None:
        """Start a new scan."""
        self._watch.begin()

    def tools(self) -> Sequence[Tool]:
        """Return no tools."""
        return ()

    async def close(self) -> None:
        """Cancel running scans."""
        await self._watch.close()
