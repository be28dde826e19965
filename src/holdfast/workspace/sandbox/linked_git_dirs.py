"""Git directories outside the workspace that its work tree needs: of a linked work tree or a submodule.

A `.git` file is workspace content, and a sandboxed command can write it. So a directory that it names is opened only
if the directory names this work tree in turn, at the location where git keeps such directories, and only if that was
so before the first command: the decision is stored in the data directory and never repeated for the same work tree.
"""

import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from holdfast.workspace.files.path_strings import is_within
from holdfast.workspace.git.git_command import list_settings
from holdfast.workspace.git.repository import read_bytes, read_path, resolve_gitfile

__all__ = ["PROTECTED_GIT", "UNFINISHED", "LinkedGit", "decide_linked_git", "find_linked_git", "named_paths"]


PROTECTED_GIT = ("config", "config.worktree", "hooks", "commondir", "gitdir")
"""Entries of a git directory that name programs to run, or another directory that does."""
UNFINISHED = ("rebase-merge/git-rebase-todo", "rebase-merge/strategy", "sequencer/opts")
"""Files that `git rebase --continue` and `git cherry-pick --continue` obey: steps and strategies may run programs."""
_SHARED = ("objects", "refs", "logs")


class LinkedGit(msgspec.Struct, frozen=True):
    """The git directory of a work tree and the directory it shares with others; the same for a submodule."""

    own: str
    common: str

    @property
    def writable(self) -> tuple[str, ...]:
        """Directories that `git add` and `git commit` write to."""
        shared = () if self.own == self.common else (os.path.join(self.common, name) for name in _SHARED)
        return (self.own, *(path for path in shared if _is_directory(path)))

    @property
    def protected(self) -> tuple[str, ...]:
        """Entries of the git directory that must stay read-only."""
        return tuple(os.path.join(self.own, name) for name in PROTECTED_GIT)


class _Decision(msgspec.Struct, frozen=True):
    work_tree: tuple[int, int]
    linked: LinkedGit | None


def decide_linked_git(work_tree: str, record: Path, may_open: Callable[[str], bool]) -> LinkedGit | None:
    """Return the stored decision for a work tree; make and store it if there is none for this very directory.

    A stored directory is still checked each time: it may have been removed, or assigned to another work tree.
    """
    status = os.stat(work_tree)
    identity = (status.st_dev, status.st_ino)
    found = find_linked_git(work_tree)
    if found is not None and not all(map(may_open, found.writable)):
        found = None
    try:
        decision = msgspec.json.decode(record.read_bytes(), type=_Decision)
    except (OSError, msgspec.DecodeError):
        decision = None
    if decision is None or decision.work_tree != identity:
        decision = _Decision(identity, found)
        record.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        record.write_bytes(msgspec.json.encode(decision))
    return found if found == decision.linked else None


def find_linked_git(work_tree: str) -> LinkedGit | None:
    """Return the git directory outside a work tree that provably belongs to it."""
    file = os.path.join(work_tree, ".git")
    own = resolve_gitfile(file)
    if own is None or is_within(work_tree, own) or not _is_directory(own):
        return None
    try:
        own.encode()  # a name that is not UTF-8 could not be stored
        return _linked_work_tree(own, file) or _submodule(own, work_tree)
    except (OSError, ValueError):
        return None


def _linked_work_tree(own: str, file: str) -> LinkedGit | None:
    """`<common>/worktrees/<name>`, with a file that names the work tree's `.git` file."""
    if not os.path.lexists(os.path.join(own, "commondir")):
        return None
    common = os.path.realpath(os.path.join(own, read_path(os.path.join(own, "commondir"))))
    if os.path.dirname(own) != os.path.join(common, "worktrees") or not _is_git_directory(common):
        raise ValueError(own)
    back = os.path.join(own, read_path(os.path.join(own, "gitdir")))
    if os.path.basename(back) != ".git" or os.path.realpath(os.path.dirname(back)) != os.path.dirname(file):
        raise ValueError(own)
    return LinkedGit(own, common)


def _submodule(own: str, work_tree: str) -> LinkedGit | None:
    """`<repository>/modules/<name>`, with a setting that names the work tree."""
    if not _is_git_directory(own):
        return None
    above, separator, _ = own.rpartition("/modules/")
    while separator and not _is_git_directory(above):
        above, separator, _ = above.rpartition("/modules/")
    if not separator:
        return None
    settings = list_settings(read_bytes(os.path.join(own, "config"))) or []
    named = [value for key, value in settings if key == "core.worktree" and value]
    if [os.path.realpath(os.path.join(own, value)) for value in named] != [work_tree]:
        return None
    return LinkedGit(own, own)


def _is_git_directory(path: str) -> bool:
    if not os.path.lexists(os.path.join(path, "HEAD")):
        return False
    return all(_is_directory(os.path.join(path, name)) for name in ("objects", "refs"))


def _is_directory(path: str) -> bool:
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


# Paths outside of git directories that the configuration of a repository makes git obey: included files, hooks.

_FILES = ("config", "config.worktree")
_MAX_DEPTH = 10
"""Git refuses includes that are nested deeper."""
_RELEVANT_KEYS = (b"include", b"hookspath")


def named_paths(dot_git: str) -> Iterator[str]:
    """Yield the paths named by the repository of a git directory or `.git` file: included files, hook directories,
    and the targets of links among the hooks.

    Conditions of includes count as true. Relative hook directories are resolved against each known work tree.
    """
    tops = [os.path.dirname(dot_git)]
    hooks: list[str] = []
    directories = _directories(dot_git)
    for directory in directories:
        for name in _FILES:
            for key, value, file in _settings(os.path.join(directory, name), _MAX_DEPTH):
                if key == "core.hookspath":
                    hooks.append(value)
                elif key == "core.worktree":
                    tops.append(os.path.join(directory, value))
                elif _is_include(key):
                    yield _include_path(value, file)
    folders = [os.path.join(top, os.path.expanduser(value)) for top in tops for value in hooks]
    yield from folders
    for folder in (*folders, *(os.path.join(directory, "hooks") for directory in directories)):
        yield from _links_in(folder)


def _links_in(folder: str) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [os.path.realpath(entry.path) for entry in entries if entry.is_symlink()]
    except OSError:
        return []


def _directories(dot_git: str) -> list[str]:
    """Return the git directory of a work tree, and the one that it shares with others."""
    own = dot_git if os.path.isdir(dot_git) else resolve_gitfile(dot_git)
    if own is None:
        return []
    try:
        return [own, os.path.join(own, read_path(os.path.join(own, "commondir")))]
    except OSError:
        return [own]


def _settings(file: str, depth: int) -> Iterator[tuple[str, str, str]]:
    """Yield keys and values of a configuration file and of those it includes, each with its file."""
    try:
        data = read_bytes(file)
    except OSError:
        return
    if not any(word in data.lower() for word in _RELEVANT_KEYS):
        return
    for key, value in list_settings(data) or ():
        if value:
            yield key, value, file
            if _is_include(key) and depth > 0:
                yield from _settings(_include_path(value, file), depth - 1)


def _is_include(key: str) -> bool:
    return key == "include.path" or (key.startswith("includeif.") and key.endswith(".path"))


def _include_path(value: str, file: str) -> str:
    return os.path.join(os.path.dirname(os.path.realpath(file)), os.path.expanduser(value))
