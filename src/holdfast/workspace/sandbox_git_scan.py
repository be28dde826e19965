"""Finds every git directory and every `.git` below a directory, quickly enough to do it after each command.

Entries are recognized by name, not by content: every entry called `.git`, and every directory with a `HEAD` beside
`config`, `commondir` or `objects`. Listings are kept with the change time of their directory, which no command can
set back, so that a second scan reads only the directories that have changed. Links are never followed, and each
directory is opened relative to the one above it.
"""

import contextlib
import os
import stat
import time
from collections.abc import Iterator, Mapping
from typing import Literal

import msgspec

from holdfast.workspace.beneath import stream_of
from holdfast.workspace.git_files import MAX_FILE
from holdfast.workspace.sandbox_git import PROTECTED_GIT, UNFINISHED

__all__ = ["GitEntry", "GitScanner", "Scan", "Signature", "open_below"]

Signature = tuple[int, int, int, int]
"""Inode, change time, size and number of names of a file."""

_MAX_DEPTH = 200
_MAX_DIRECTORIES = 200_000
_RECENT = 2_000_000_000
"""Directories changed so recently are read again: a later change could have the same time stamp."""
_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class GitEntry(msgspec.Struct, frozen=True):
    """A git directory, or a file or link called `.git`.

    `files` are the signatures of the entries that git obeys, hooks with their directory's name. `saved` are contents.
    """

    kind: Literal["directory", "file"]
    identity: tuple[int, int]
    files: Mapping[str, Signature]
    saved: Mapping[str, bytes]


class Scan(msgspec.Struct, frozen=True):
    """All entries, the inodes of all directories, those nested too deep, and those that could not be read."""

    entries: dict[str, GitEntry]
    directories: dict[str, int]
    too_deep: tuple[str, ...]
    unread: tuple[str, ...]


class _Listing(msgspec.Struct, frozen=True, gc=False):
    identity: tuple[int, int]
    changed: int
    is_settled: bool
    folders: tuple[str, ...]
    is_git: bool
    links: tuple[str, ...]
    """Entries called `.git` that are no directories."""


class GitScanner:
    """Scans one directory repeatedly, reusing unchanged listings."""

    def __init__(self, root: str) -> None:
        self.root = root
        self._listings: dict[str, _Listing] = {}
        self._entries: dict[str, GitEntry] = {}

    def scan(self) -> Scan:
        """Scan the directory."""
        work = _Work(self._listings, self._entries)
        with contextlib.suppress(OSError):
            descriptor = os.open(self.root, _FLAGS)
            try:
                work.visit(self.root, descriptor, os.fstat(descriptor), 0)
            finally:
                os.close(descriptor)
        self._listings, self._entries = work.listings, work.entries
        directories = {path: listing.identity[1] for path, listing in work.listings.items()}
        return Scan(dict(work.entries), directories, tuple(work.too_deep), tuple(work.unread))


class _Work:
    def __init__(self, old: Mapping[str, _Listing], entries: Mapping[str, GitEntry]) -> None:
        self._old = old
        self._old_entries = entries
        self._settled_before = time.time_ns() - _RECENT
        self.listings: dict[str, _Listing] = {}
        self.entries: dict[str, GitEntry] = {}
        self.too_deep: list[str] = []
        self.unread: list[str] = []

    def visit(self, path: str, descriptor: int, status: os.stat_result, depth: int) -> None:
        listing = self._known(path, status) or self._read(descriptor, status)
        self.listings[path] = listing
        if listing.is_git or os.path.basename(path).lower() == ".git":
            self.entries[path] = self._git_directory(path, descriptor, listing)
        for name in listing.links:
            self._add_link(os.path.join(path, name), name, descriptor)
        for name in listing.folders:
            self._descend(os.path.join(path, name), name, descriptor, depth + 1)

    def _known(self, path: str, status: os.stat_result) -> _Listing | None:
        known = self._old.get(path)
        if known is None or not known.is_settled:
            return None
        same = known.identity == (status.st_dev, status.st_ino) and known.changed == status.st_ctime_ns
        return known if same else None

    def _descend(self, path: str, name: str, above: int, depth: int) -> None:
        if depth > _MAX_DEPTH or len(self.listings) >= _MAX_DIRECTORIES:
            (self.too_deep if depth > _MAX_DEPTH else self.unread).append(path)
            return
        try:
            status = os.stat(name, dir_fd=above, follow_symlinks=False)
            if not stat.S_ISDIR(status.st_mode):
                return
            known = self._known(path, status)
            if known is not None and not known.folders and not known.links and not known.is_git:
                self.listings[path] = known
                return
            with _opened(name, above, status) as descriptor:
                self.visit(path, descriptor, status, depth)
        except FileNotFoundError:
            return
        except OSError:
            self.unread.append(path)

    def _read(self, descriptor: int, status: os.stat_result) -> _Listing:
        folders, links = [], []
        names = set()
        with os.scandir(descriptor) as entries:
            for entry in entries:
                name = entry.name.lower()
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.name)
                elif name == ".git":
                    links.append(entry.name)
                if name in {"head", "config", "commondir", "objects"}:
                    names.add(name)
        return _Listing(
            (status.st_dev, status.st_ino),
            status.st_ctime_ns,
            status.st_ctime_ns < self._settled_before,
            tuple(sorted(folders)),
            "head" in names and len(names) > 1,
            tuple(links),
        )

    def _git_directory(self, path: str, descriptor: int, listing: _Listing) -> GitEntry:
        files: dict[str, Signature] = {}
        for name in (*PROTECTED_GIT, *UNFINISHED):
            with contextlib.suppress(OSError):
                files[name] = _signature(os.stat(name, dir_fd=descriptor, follow_symlinks=False))
        files |= _hooks(descriptor)
        return self._entry(path, descriptor, "directory", listing.identity, files)

    def _add_link(self, path: str, name: str, above: int) -> None:
        with contextlib.suppress(OSError):
            status = os.stat(name, dir_fd=above, follow_symlinks=False)
            identity = (status.st_dev, status.st_ino)
            self.entries[path] = self._entry(path, above, "file", identity, {name: _signature(status)})

    def _entry(
        self,
        path: str,
        descriptor: int,
        kind: Literal["directory", "file"],
        identity: tuple[int, int],
        files: Mapping[str, Signature],
    ) -> GitEntry:
        known = self._old_entries.get(path)
        if known is not None and (known.identity, known.files) == (identity, files):
            return known
        saved = {name: data for name in files if (data := _content(name, descriptor)) is not None}
        return GitEntry(kind, identity, files, saved)


def _signature(status: os.stat_result) -> Signature:
    return status.st_ino, status.st_ctime_ns, status.st_size, status.st_nlink if stat.S_ISREG(status.st_mode) else 1


def _hooks(descriptor: int) -> Iterator[tuple[str, Signature]]:
    """Yield the hooks of a git directory that are no samples."""
    with contextlib.suppress(OSError):
        folder = os.open("hooks", _FLAGS, dir_fd=descriptor)
        try:
            for name in os.listdir(folder):
                if not name.endswith(".sample"):
                    status = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    yield f"hooks/{name}", _signature(status)
        finally:
            os.close(folder)


def _content(name: str, descriptor: int) -> bytes | None:
    """Return the text of a small regular file, or the target of a link after a NUL."""
    try:
        if stat.S_ISLNK(os.stat(name, dir_fd=descriptor, follow_symlinks=False).st_mode):
            return b"\0" + os.fsencode(os.readlink(name, dir_fd=descriptor))
        flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
        with stream_of(os.open(name, flags, dir_fd=descriptor)) as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                data = file.read(MAX_FILE + 1)
                return data if len(data) <= MAX_FILE else None
    except OSError:
        pass
    return None


@contextlib.contextmanager
def _opened(name: str, above: int, status: os.stat_result) -> Iterator[int]:
    """Open a directory. An own directory that a command made unreadable is made readable temporarily."""
    try:
        descriptor, restored = os.open(name, _FLAGS, dir_fd=above), -1
    except PermissionError:
        if status.st_uid != os.geteuid():
            raise
        descriptor, restored = -1, os.open(name, os.O_PATH | _FLAGS, dir_fd=above)
    try:
        if restored >= 0:
            os.chmod(f"/proc/self/fd/{restored}", 0o700)
            descriptor = os.open(f"/proc/self/fd/{restored}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        yield descriptor
    finally:
        if descriptor >= 0:
            os.close(descriptor)
        if restored >= 0:
            try:
                os.chmod(f"/proc/self/fd/{restored}", stat.S_IMODE(status.st_mode))
            finally:
                os.close(restored)


def open_below(root: str, path: str) -> int:
    """Open a directory below a root for use in `dir_fd`, following no link on the way."""
    descriptor = os.open(root, _FLAGS)
    for name in filter(None, path[len(root) :].split("/")):
        try:
            following = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=descriptor)
        finally:
            os.close(descriptor)
        descriptor = following
    return descriptor
