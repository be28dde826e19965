"""Finds every git directory and every `.git` below a directory, quickly enough to do it after each command.

Entries are recognized by name, not by content: every entry called `.git`, and every directory with a `HEAD` beside
`config`, `commondir` or `objects`. Listings are kept with the change time of their directory, which no command can
set back, so that a second scan reads only the directories that have changed. Links are never followed, and each
directory is opened relative to the one above it.
"""

import contextlib
import os
import re
import stat
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Literal

import msgspec

from holdfast.workspace.files.path_strings import is_within
from holdfast.workspace.files.safe_open import stream_of
from holdfast.workspace.git.git_command import list_settings
from holdfast.workspace.git.repository import MAX_FILE, read_bytes, read_path, resolve_gitfile
from holdfast.workspace.sandbox.linked_git_dirs import PROTECTED_GIT, UNFINISHED

__all__ = [
    "GitDirScan",
    "GitEntry",
    "GitScanner",
    "Signature",
    "added_settings",
    "is_plain_directory",
    "is_plain_file",
    "is_plain_settings",
    "is_plain_step",
    "open_below",
]


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


class GitDirScan(msgspec.Struct, frozen=True):
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

    def scan(self) -> GitDirScan:
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
        return GitDirScan(dict(work.entries), directories, tuple(work.too_deep), tuple(work.unread))


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
        listing = self._previous_listing(path, status) or self._read(descriptor, status)
        self.listings[path] = listing
        if listing.is_git or os.path.basename(path).lower() == ".git":
            self.entries[path] = self._git_directory(path, descriptor, listing)
        for name in listing.links:
            self._add_link(os.path.join(path, name), name, descriptor)
        for name in listing.folders:
            self._descend(os.path.join(path, name), name, descriptor, depth + 1)

    def _previous_listing(self, path: str, status: os.stat_result) -> _Listing | None:
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
            known = self._previous_listing(path, status)
            if known is not None and not known.folders and not known.links and not known.is_git:
                self.listings[path] = known
                return
            with _open_directory(name, above, status) as descriptor:
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
def _open_directory(name: str, above: int, status: os.stat_result) -> Iterator[int]:
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


# Check of git directories created by sandboxed commands: plain ones contain only what git itself writes.

_KEYS = {
    "branch": frozenset(("remote", "merge", "rebase")),
    "core": frozenset(
        (
            "autocrlf",
            "bare",
            "eol",
            "filemode",
            "ignorecase",
            "logallrefupdates",
            "precomposeunicode",
            "repositoryformatversion",
            "sharedrepository",
            "sparsecheckout",
            "sparsecheckoutcone",
            "symlinks",
            "worktree",
        )
    ),
    "extensions": frozenset(("objectformat", "partialclone", "refstorage", "worktreeconfig")),
    "index": frozenset(("sparse",)),
    "init": frozenset(("defaultbranch",)),
    "lfs": frozenset(("repositoryformatversion",)),
    "receive": frozenset(("denynonfastforwards",)),
    "remote": frozenset(("url", "fetch", "tagopt", "mirror", "promisor", "partialclonefilter")),
    "submodule": frozenset(("active", "url", "update")),
    "user": frozenset(("name", "email")),
}
"""Keys that git writes at init, clone, submodule add and sparse-checkout, and a name for commits."""
_UPDATES = frozenset(("checkout", "rebase", "merge", "none"))
"""`submodule.<name>.update` may also be a command."""
_STRATEGIES = frozenset(("", "octopus", "ort", "ours", "recursive", "resolve", "subtree"))
"""The strategies of git itself."""
_HELPER = re.compile(r"[\w+.-]*::")


def is_plain_directory(path: str, root: str, accepted: Collection[str]) -> bool:
    """Return whether nothing in a new git directory below `root` runs a program, now or later.

    `accepted` are the git directories that a linked work tree may share.
    """
    if not _matches_kind(stat.S_ISDIR, path):
        return False
    entries = {name: os.path.join(path, name) for name in ("commondir", "gitdir", "config", "config.worktree")}
    there = {name for name, place in entries.items() if os.path.lexists(place)}
    if not _has_only_samples(os.path.join(path, "hooks")) or not all(_is_plain_at(path, name) for name in UNFINISHED):
        return False
    if "commondir" in there or "gitdir" in there:
        return _is_linked(path, there, accepted)
    try:
        return all(is_plain_settings(read_bytes(entries[name]), path, root) for name in there)
    except OSError:
        return False


def is_plain_file(path: str, accepted: Collection[str]) -> bool:
    """Return whether a new `.git` file names an accepted git directory."""
    return _matches_kind(stat.S_ISREG, path) and resolve_gitfile(path) in accepted


def is_plain_settings(data: bytes, path: str, root: str) -> bool:
    """Return whether a configuration file of a git directory contains only keys that git itself writes."""
    settings = list_settings(data)
    return settings is not None and all(_is_plain(key, value, path, root) for key, value in settings)


def is_plain_step(name: str, data: bytes) -> bool:
    """Return whether a file of `UNFINISHED` runs no program: git starts `git-merge-NAME` for an unknown strategy."""
    match os.path.basename(name):
        case "git-rebase-todo":
            return not any(line.split()[:1] in ([b"x"], [b"exec"]) for line in data.splitlines())
        case "strategy":
            return _is_strategy(os.fsdecode(data))
        case _:
            settings = list_settings(data)
            return settings is not None and all(
                _is_strategy(value or "") for key, value in settings if key == "options.strategy"
            )


def _is_strategy(text: str) -> bool:
    return text.strip() in _STRATEGIES


def added_settings(data: bytes, before: bytes, path: str, root: str) -> bool:
    """Return whether a changed configuration file has new settings other than the plain ones."""
    settings, known = list_settings(data), list_settings(before)
    if settings is None or known is None:
        return True
    return any(item not in known and not _is_plain(*item, path, root) for item in settings)


def _is_plain(key: str, value: str | None, path: str, root: str) -> bool:
    section, _, rest = key.partition(".")
    name = rest.rpartition(".")[2]
    if name not in _KEYS.get(section, ()):
        return False
    if value is None:
        return section == "core"
    if (section, name) == ("core", "worktree"):
        place = os.path.realpath(os.path.join(path, value))
        return place != root and is_within(root, place) and not is_within(path, place)
    if (section, name) == ("submodule", "update"):
        return value in _UPDATES
    # `ext::command` and the like are addresses that run a program.
    return not _HELPER.match(value) and not value.startswith("-") and not any(character < " " for character in value)


def _is_linked(path: str, there: set[str], accepted: Collection[str]) -> bool:
    """Return whether this is the directory of a linked work tree as created by `git worktree add`, below an accepted
    one.
    """
    if not {"commondir", "gitdir"} <= there or os.path.lexists(os.path.join(path, "hooks")) or len(there) > 2:
        return False
    try:
        shared = read_path(os.path.join(path, "commondir"))
    except OSError:
        return False
    above = os.path.dirname(path)
    return shared == "../.." and os.path.basename(above) == "worktrees" and os.path.dirname(above) in accepted


def _is_plain_at(path: str, name: str) -> bool:
    try:
        return is_plain_step(name, read_bytes(os.path.join(path, name)))
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False


def _has_only_samples(folder: str) -> bool:
    if not os.path.lexists(folder):
        return True
    try:
        return _matches_kind(stat.S_ISDIR, folder) and all(name.endswith(".sample") for name in os.listdir(folder))
    except OSError:
        return False


def _matches_kind(kind: object, path: str) -> bool:
    assert callable(kind)
    try:
        return bool(kind(os.lstat(path).st_mode))
    except OSError:
        return False
