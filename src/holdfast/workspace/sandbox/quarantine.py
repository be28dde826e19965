"""Moves away new files of sandboxed commands that programs outside of the sandbox would obey.

Existing settings and git directories are mounted read-only. Missing ones cannot be mounted, so a command can create
them; after its end they are moved to a directory of the server, never deleted, because the user may have created them
meanwhile. A git directory as git creates it is kept (see `git_dir_search`).

Everything that exists while no sandboxed command runs is the user's own. This state is compared with the state after
each command. It is stored while commands run: if the server is killed, the next one makes the comparison.
"""

import contextlib
import errno
import logging
import os
import shutil
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec

from holdfast.workspace.files.path_strings import as_one_line
from holdfast.workspace.sandbox.git_dir_search import (
    GitDirScan,
    GitEntry,
    GitScanner,
    Signature,
    added_settings,
    is_plain_directory,
    is_plain_file,
    is_plain_step,
    open_below,
)
from holdfast.workspace.sandbox.linked_git_dirs import UNFINISHED

__all__ = ["Quarantine", "SandboxCleanup", "restore"]


# The directory for files moved out of a workspace. Its content is never deleted or obeyed.

_log = logging.getLogger("holdfast.sandbox")
_MAX_NUMBER = 100_000


class Quarantine:
    """Numbered entries in one directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def move(self, path: str, root: str) -> str:
        """Move a path below `root` here and return its new path; empty if that failed."""
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            target = self._free_name(os.path.basename(path))
            above = open_below(root, os.path.dirname(path))
            try:
                _move_entry(os.path.basename(path), above, target)
            finally:
                os.close(above)
        except (OSError, shutil.Error) as error:
            _log.warning("%s could not be moved away: %s", path, error)
            return ""
        return target

    def _free_name(self, name: str) -> str:
        taken = {entry.partition("-")[0] for entry in os.listdir(self._directory)}
        number = next(number for number in range(1, _MAX_NUMBER) if str(number) not in taken)
        return str(self._directory / f"{number}-{name}")


def _move_entry(name: str, above: int, target: str) -> None:
    status = os.stat(name, dir_fd=above, follow_symlinks=False)
    if stat.S_ISDIR(status.st_mode):
        _make_accessible(name, above)
    try:
        os.rename(name, target, src_dir_fd=above)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        _copy_across(f"/proc/self/fd/{above}/{name}", target)


def _make_accessible(name: str, above: int) -> None:
    """Make a directory writable: renaming it into another one requires write access to it."""
    descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
    try:
        os.chmod(f"/proc/self/fd/{descriptor}", 0o700)
    finally:
        os.close(descriptor)


def _copy_across(source: str, target: str) -> None:
    """Copy to another file system, then remove: links as links, without sockets, pipes and devices."""
    if os.path.islink(source) or not os.path.isdir(source):
        shutil.move(source, target)
        return
    for folder, folders, _ in os.walk(source):
        for name in folders:
            place = os.path.join(folder, name)
            if not os.path.islink(place):
                with contextlib.suppress(OSError):
                    above = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
                    try:
                        _make_accessible(name, above)
                    finally:
                        os.close(above)
    shutil.copytree(source, target, symlinks=True, copy_function=_copy_file)
    shutil.rmtree(source)


def _copy_file(source: str, target: str) -> None:
    """Copy a regular file regardless of its mode."""
    descriptor = os.open(source, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return
        place = f"/proc/self/fd/{descriptor}"
        if not os.access(place, os.R_OK):
            os.chmod(place, 0o600)
        with open(place, "rb") as reading, open(target, "wb") as writing:
            shutil.copyfileobj(reading, writing)
    finally:
        os.close(descriptor)


def restore(path: str, root: str, content: bytes) -> None:
    """Restore a file below `root`, or a link if the content is a NUL and a target, unless the path exists."""
    name = os.path.basename(path)
    try:
        above = open_below(root, os.path.dirname(path))
        try:
            if content.startswith(b"\0"):
                os.symlink(os.fsdecode(content[1:]), name, dir_fd=above)
                return
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            with open(os.open(name, flags, 0o644, dir_fd=above), "wb") as file:
                file.write(content)
        finally:
            os.close(above)
    except OSError as error:
        _log.warning("%s could not be restored: %s", path, error)


T = TypeVar("T")

_FRESH = 1.0
"""Maximum age in seconds of a state that a starting command may use without a refresh."""


class _State(msgspec.Struct, frozen=True):
    """Settings and git directories that exist, by path. Links among the settings are stored with their target.

    `parents` are the directories of settings below the top: a command can rename one and make another in its place.
    """

    settings: dict[str, str | None] = {}
    entries: dict[str, GitEntry] = {}
    parents: dict[str, tuple[int, int]] = {}


class _Stored(msgspec.Struct, frozen=True):
    """A state on disk. Names of files are bytes there: not all of them are text."""

    settings: dict[bytes, bytes | None]
    entries: dict[bytes, tuple[GitEntry, dict[bytes, Signature], dict[bytes, bytes]]]
    parents: dict[bytes, tuple[int, int]] = {}


class SandboxCleanup:
    """Compares and cleans the directories that the commands of one workspace can write.

    `names` are settings at the top of the workspace, `kept` is the directory for moved files. Searching takes a while
    in a large workspace, so the functions that search may be called from threads.
    """

    def __init__(self, workspace: str, names: tuple[str, ...], kept: str) -> None:
        self._workspace = workspace
        self._names = names
        self._scanners = [GitScanner(workspace)]
        self._quarantine = Quarantine(Path(kept))
        self._note = Path(f"{kept}.json")
        self._lock = threading.Lock()
        self._search_lock = threading.Lock()
        self._started = self._ended = 0
        self._directories: dict[str, int] = {}
        self._unchecked: set[str] = set()
        self._known = _State()
        self._made_file = Path(f"{kept}-made")
        self._made = _read_accepted(self._made_file)
        self._mounted: frozenset[str] = frozenset()
        self._refreshed = -_FRESH
        self._pending = ""
        self._finish_earlier()

    def cover(self, areas: tuple[str, ...]) -> None:
        """Include further directories in the comparison."""
        with self._search_lock:
            covered = {scanner.root for scanner in self._scanners}
            for scanner in [GitScanner(area) for area in areas if area not in covered]:
                self._scanners.append(scanner)
                self._known.entries.update(scanner.scan().entries)

    def cover_names(self, paths: Iterable[str]) -> None:
        """Treat further paths of the workspace as settings: those that do not exist must not appear."""
        for path in paths:
            name = os.path.relpath(path, self._workspace)
            if name not in self._names:
                self._names = (*self._names, name)
                if os.path.lexists(path):
                    self._known.settings[path] = os.readlink(path) if os.path.islink(path) else None
                    self._known.parents.update(self._parents([path]))

    def refresh(self, max_age: float = 0.0) -> None:
        """Take the present state as the user's own, unless a sandboxed command is running that may have changed it."""
        started = self._started
        if started != self._ended or time.monotonic() - self._refreshed < max_age:
            return
        # A starting command does not wait for a running search: its state is recent enough.
        if not self._search_lock.acquire(blocking=max_age == 0.0):
            return
        try:
            settings, scan = self._settings(), self._scan_git_dirs()
            with self._lock:
                # A command may have started or ended during the search; its changes must not count as the user's.
                if self._started == self._ended == started:
                    self._known = _State(settings, scan.entries, self._parents(settings))
                    self._remember(scan)
                    self._refreshed = time.monotonic()
        finally:
            self._search_lock.release()

    def existing(self) -> Iterator[tuple[str, GitEntry]]:
        """Yield the git entries to mount read-only, the topmost first: those of the user, and submodules.

        Others that sandboxed commands have made can be removed by them, and are compared after every command.
        """
        known = sorted(self._known.entries.items(), key=lambda item: (item[0].count("/"), item[0]))
        own = os.path.join(self._workspace, ".git", "")
        return ((path, entry) for path, entry in known if entry.identity not in self._made or path.startswith(own))

    def begin(self, mounted: frozenset[str]) -> Callable[[], str]:
        """Register a command for which the `mounted` paths are read-only. Returns the function to call at its end."""
        self.refresh(_FRESH)
        with self._lock:
            # A path counts as protected only if it was read-only for every command that is running.
            self._mounted = mounted if self._started == self._ended else self._mounted & mounted
            self._started += 1
            self._write_note()
        return self._end

    def _end(self) -> str:
        report = "[The workspace could not be checked for new settings and git directories.]"
        with self._search_lock:
            try:
                # A new file may have been created by another command that is still running, perhaps for days.
                report = self._clean()
            except Exception:
                # The result of the command does not depend on this check; the log contains the reason.
                _log.exception("%s could not be checked", self._workspace)
            with self._lock:
                self._ended += 1
                self._refreshed = -_FRESH
                self._write_note()
                # The findings of a recovery are reported with the first command of the new server.
                earlier, self._pending = self._pending, ""
        return "\n".join(filter(None, (earlier, report)))

    def _scan_git_dirs(self) -> GitDirScan:
        entries: dict[str, GitEntry] = {}
        directories: dict[str, int] = {}
        too_deep: list[str] = []
        unread: list[str] = []
        for scanner in self._scanners:
            scan = scanner.scan()
            entries |= scan.entries
            directories |= scan.directories
            too_deep += scan.too_deep
            unread += scan.unread
        return GitDirScan(entries, directories, tuple(too_deep), tuple(unread))

    def _settings(self) -> dict[str, str | None]:
        found: dict[str, str | None] = {}
        for name in self._names:
            path = os.path.join(self._workspace, name)
            if os.path.lexists(path):
                found[path] = os.readlink(path) if os.path.islink(path) else None
        return found

    def _parents(self, paths: Iterable[str]) -> dict[str, tuple[int, int]]:
        found = {}
        for path in paths:
            if os.path.dirname(path) != self._workspace:
                with contextlib.suppress(OSError):
                    status = os.stat(os.path.dirname(path))
                    found[path] = status.st_dev, status.st_ino
        return found

    def _root_of(self, path: str) -> str:
        return next(s.root for s in reversed(self._scanners) if path == s.root or path.startswith(f"{s.root}/"))

    # Comparison

    def _clean(self) -> str:
        scan = self._scan_git_dirs()
        moved = [*self._clean_settings(), *self._clean_entries(scan)]
        # Programs do not enter such directories by themselves, but their content cannot be compared.
        moved += [self._move(path) for path in scan.too_deep if path not in self._unchecked]
        unread = [path for path in scan.unread if path not in self._unchecked]
        checked = self._scan_git_dirs() if moved else scan
        if self._started - self._ended <= 1:
            self._accept_entries(checked)
        else:
            # Another command may have exchanged directories during the search: everything is compared again at its
            # end.
            self._unchecked |= {*checked.too_deep, *checked.unread}
        return self._report(moved, unread)

    def _report(self, moved: list[str], unread: list[str]) -> str:
        report = []
        if moved:
            report.append(
                "[Moved out of the workspace, because programs outside of the sandbox would obey it:"
                f" {', '.join(moved)}. It was created while the command ran. Ask the user if it is needed.]"
            )
        if unread:
            shown = as_one_line(os.path.relpath(unread[0], self._workspace))
            report.append(f"[{len(unread)} directories could not be searched for git directories, among them {shown}.]")
        for line in report:
            _log.warning("%s", line)
        return "\n".join(report)

    def _accept_entries(self, scan: GitDirScan) -> None:
        """Treat accepted entries as known. They are new, so they are compared again after every command."""
        known = {entry.identity for entry in self._known.entries.values()}
        there = {entry.identity for entry in scan.entries.values()}
        made = (self._made & there) | (there - known)
        if made != self._made:
            self._made = made
            _write(self._made_file, msgspec.msgpack.encode(sorted(made)))
        self._known = _State(self._known.settings, scan.entries, self._known.parents)
        self._remember(scan)

    def _remember(self, scan: GitDirScan) -> None:
        self._directories = scan.directories
        self._unchecked = {*scan.too_deep, *scan.unread}

    def _clean_settings(self) -> Iterator[str]:
        now = self._settings()
        parents = self._parents(now)
        for path, target in now.items():
            before = self._known.settings.get(path)
            is_other = before is not None and before != target
            if path not in self._known.settings or is_other or self._known.parents.get(path) != parents.get(path):
                yield self._move(path)
        for path, before in self._known.settings.items():
            if before is not None and not os.path.lexists(path):
                restore(path, self._workspace, b"\0" + os.fsencode(before))

    def _clean_entries(self, scan: GitDirScan) -> Iterator[str]:
        """Check git directories first, the topmost before nested ones: a `.git` file may name an accepted one."""
        identities = {entry.identity: entry for entry in self._known.entries.values()}
        accepted: set[str] = set()
        gone: list[str] = []
        for path, entry in sorted(scan.entries.items(), key=lambda item: (item[1].kind != "directory", item[0])):
            # It was moved together with the directory that contains it.
            if any(path.startswith(f"{place}/") for place in gone):
                continue
            before = self._known.entries.get(path)
            if before is None or before.identity != entry.identity:
                # A renamed git directory is compared with its own previous state, not taken for a new one.
                before = identities.get(entry.identity) if entry.kind == "directory" else before
            if before is not None and before.kind == entry.kind:
                yield from self._clean_known(path, before, entry, accepted)
                accepted.add(path)
            elif self._is_plain(path, entry, accepted):
                accepted.add(path)
            else:
                gone.append(path)
                yield self._move(path if self._is_whole(path, entry) else os.path.join(path, "HEAD"))

    def _is_plain(self, path: str, entry: GitEntry, accepted: set[str]) -> bool:
        if entry.kind == "directory":
            return is_plain_directory(path, self._root_of(path), accepted)
        return is_plain_file(path, accepted)

    def _is_whole(self, path: str, entry: GitEntry) -> bool:
        """Return whether an entry is entirely new. If an existing directory became a git directory, only its HEAD is
        moved.
        """
        if entry.kind == "file" or os.path.basename(path).lower() == ".git":
            return True
        return path != self._root_of(path) and self._directories.get(path) != entry.identity[1]

    def _clean_known(self, path: str, before: GitEntry, after: GitEntry, accepted: set[str]) -> Iterator[str]:
        """Compare the files that git obeys. A changed file is moved, and its previous content is restored."""
        top = path if after.kind == "directory" else os.path.dirname(path)
        for name, signature in after.files.items():
            place = os.path.join(top, name)
            if signature == before.files.get(name) or self._is_guarded(place, signature, before.files.get(name)):
                continue
            old, new = before.saved.get(name), after.saved.get(name)
            if self._is_harmless(path, name, old, new, accepted):
                continue
            yield self._move(place)
            if old is not None:
                restore(place, self._root_of(place), old)

    def _is_guarded(self, place: str, after: Signature, before: Signature | None) -> bool:
        """Return whether a path was read-only for every command, so that the user must have changed it.

        Not for a replaced file, because the kernel removes the mount from it; not for a file with a second name, and
        not in a directory that another command can rename while the mounts of a command are made.
        """
        steady = {os.path.join(self._workspace, ".git"), *(scanner.root for scanner in self._scanners)}
        mounts = [mount for mount in self._mounted if os.path.dirname(mount) in steady]
        if any(place != mount and place.startswith(f"{mount}/") for mount in mounts):
            return True
        return place in mounts and before is not None and after[0] == before[0] and after[3] == 1

    def _is_harmless(self, path: str, name: str, old: bytes | None, new: bytes | None, accepted: set[str]) -> bool:
        if old is not None and old == new:
            return True
        if name in {"config", "config.worktree"} and new is not None and not new.startswith(b"\0"):
            return not added_settings(new, old or b"", path, self._root_of(path))
        if name in UNFINISHED:
            return new is not None and is_plain_step(name, new)
        if name == "hooks":
            place = os.path.join(path, name)
            return os.path.isdir(place) and not os.path.islink(place)
        if name.lower() == ".git":
            return is_plain_file(path, accepted)
        if name in {"commondir", "gitdir"} and old is None:
            return is_plain_directory(path, self._root_of(path), accepted)
        return False

    def _move(self, path: str) -> str:
        shown = as_one_line(os.path.relpath(path, self._workspace))
        target = self._quarantine.move(path, self._root_of(path))
        return f"{shown} (now {as_one_line(target)})" if target else f"{shown} (it could not be moved: remove it)"

    # Recovery after a server was killed

    def _finish_earlier(self) -> None:
        try:
            self._known = _decode(msgspec.msgpack.decode(self._note.read_bytes(), type=_Stored))
        except (OSError, msgspec.DecodeError):
            return
        self._pending = self._clean()
        self._write_note()

    def _write_note(self) -> None:
        if self._started > self._ended:
            _write(self._note, msgspec.msgpack.encode(_encode(self._known)))
        else:
            with contextlib.suppress(OSError):
                self._note.unlink()


def _write(path: Path, data: bytes) -> None:
    """Write a file, best effort: a full disk must not prevent commands from running."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        _log.warning("%s cannot be written: %s", path, error)


def _read_accepted(path: Path) -> set[tuple[int, int]]:
    """Return the git directories that sandboxed commands have made and that have passed."""
    try:
        return msgspec.msgpack.decode(path.read_bytes(), type=set[tuple[int, int]])
    except (OSError, msgspec.DecodeError):
        return set()


def _encode(state: _State) -> _Stored:
    def names(mapping: Mapping[str, T]) -> dict[bytes, T]:
        return {os.fsencode(name): value for name, value in mapping.items()}

    settings = {path: None if target is None else os.fsencode(target) for path, target in state.settings.items()}
    entries = {
        path: (msgspec.structs.replace(entry, files={}, saved={}), names(entry.files), names(entry.saved))
        for path, entry in state.entries.items()
    }
    return _Stored(names(settings), names(entries), names(state.parents))


def _decode(stored: _Stored) -> _State:
    def names(mapping: Mapping[bytes, T]) -> dict[str, T]:
        return {os.fsdecode(name): value for name, value in mapping.items()}

    settings = {path: None if target is None else os.fsdecode(target) for path, target in stored.settings.items()}
    entries = {
        path: msgspec.structs.replace(entry, files=names(files), saved=names(saved))
        for path, (entry, files, saved) in stored.entries.items()
    }
    return _State(names(settings), names(entries), names(stored.parents))
