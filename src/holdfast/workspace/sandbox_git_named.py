"""Paths outside of git directories that the configuration of a repository makes git obey: included files, hooks."""

import os
from collections.abc import Iterator

from holdfast.workspace.git import list_settings
from holdfast.workspace.git_files import read_bytes, read_path, resolve_gitfile

__all__ = ["named_paths"]

_FILES = ("config", "config.worktree")
_MAX_DEPTH = 10
"""Git refuses includes that are nested deeper."""
_WORDS = (b"include", b"hookspath")


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
                    yield _included(value, file)
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
    if not any(word in data.lower() for word in _WORDS):
        return
    for key, value in list_settings(data) or ():
        if value:
            yield key, value, file
            if _is_include(key) and depth > 0:
                yield from _settings(_included(value, file), depth - 1)


def _is_include(key: str) -> bool:
    return key == "include.path" or (key.startswith("includeif.") and key.endswith(".path"))


def _included(value: str, file: str) -> str:
    return os.path.join(os.path.dirname(os.path.realpath(file)), os.path.expanduser(value))
