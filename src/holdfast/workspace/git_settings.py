"""What of a repository's files a sandboxed command may leave behind: used by the sandbox's cleanup only.

The settings are read more simply than git does: where that leaves a doubt, they count as not plain. Whether a git
command may run unasked is decided in `git_check.py`, by git itself.
"""

import os
import re
import stat
from collections.abc import Iterator

__all__ = ["is_bare", "is_plain", "offences", "submodules"]

_LARGEST = 1 << 20
_LARGEST_INDEX = 64 << 20
_DEEPEST = 4
_LINK_MODE = b"\x00\x00\xe0\x00"
"""How the index marks a submodule: git goes into it, with settings of its own."""
_NAME = 38
"""So many bytes behind the mode stands the name."""
_SECTION = re.compile(r"\[\s*([\w.-]+)(?:\s+\"(?:[^\"\\]|\\.)*\")?\s*\]")
_FRESH = {
    "branch": frozenset(("remote", "merge", "rebase")),
    "core": frozenset(
        (
            "bare",
            "eol",
            "filemode",
            "ignorecase",
            "logallrefupdates",
            "precomposeunicode",
            "repositoryformatversion",
            "symlinks",
        )
    ),
    "extensions": frozenset(("objectformat", "refstorage")),
    "init": frozenset(("defaultbranch",)),
    "lfs": frozenset(("repositoryformatversion",)),
    "remote": frozenset(("url", "fetch", "tagopt")),
    "submodule": frozenset(("active", "url")),
    "user": frozenset(("name", "email")),
}
"""What git writes by itself into a new repository, and nobody obeys."""


def offences(place: str, root: str) -> list[str]:
    """What in a repository that was just made below `root` is not as git makes it, and may make something run, now or
    later: hooks, settings, ways to other settings.
    """
    if os.path.islink(place) or not os.path.isdir(place):
        return [place]
    found = [path for name in ("commondir", "config.worktree") if os.path.lexists(path := os.path.join(place, name))]
    found += _hooks_in(os.path.join(place, "hooks"))
    config = os.path.join(place, "config")
    return found if is_plain(config, root) else [*found, config]


def _hooks_in(folder: str) -> list[str]:
    """The hooks themselves, or the whole if it cannot be told which there are."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        names = []
    except OSError:
        return [folder]
    if os.path.islink(folder):
        return [folder]
    return [os.path.join(folder, name) for name in names if not name.endswith(".sample")]


def is_plain(config: str, root: str) -> bool:
    """Whether settings of a repository are only such as git writes into a new one, or are not there."""
    if os.path.islink(config):
        return False
    try:
        return all(_is_fresh(config, root, *setting) for setting in _settings(config))
    except (OSError, ValueError):
        return False


def _is_fresh(config: str, root: str, section: str, name: str, value: str) -> bool:
    if (section, name) == ("core", "worktree"):
        # A submodule says where its files are.
        place = os.path.realpath(os.path.join(os.path.dirname(config), value))
        return place.startswith(os.path.realpath(root) + os.sep)
    return name in _FRESH.get(section, ()) and "::" not in value


def submodules(repository: str, worktree: str, depth: int = 0) -> Iterator[str]:
    """The repositories of the submodules that are there, as far as the index knows them: git goes into them by itself.
    Raises `ValueError` if that cannot be told.
    """
    for place in _modules(repository, worktree):
        if depth > _DEEPEST:
            raise ValueError(place)
        found = os.path.realpath(_followed(place))
        yield found
        yield from submodules(found, os.path.dirname(place), depth + 1)


def is_bare(folder: str) -> bool:
    """Whether git takes the directory itself for a repository."""
    return all(os.path.lexists(os.path.join(folder, name)) for name in ("HEAD", "objects", "refs"))


def _followed(place: str) -> str:
    """A file in place of the directory says where that is."""
    if os.path.isdir(place):
        return place
    text = _text(place)
    if not text.startswith("gitdir:"):
        raise ValueError(place)
    return os.path.join(os.path.dirname(place), text.removeprefix("gitdir:").strip())


def _modules(own: str, worktree: str) -> Iterator[str]:
    """The submodules that are there, as far as the index knows them. Raises `ValueError` if it cannot be read."""
    if any(name.startswith("sharedindex.") for name in os.listdir(own)):
        raise ValueError(own)
    try:
        data = _data(os.path.join(own, "index"), _LARGEST_INDEX)
    except FileNotFoundError:
        return
    at = data.find(_LINK_MODE)
    if at >= 0 and data[4:8] not in (b"\0\0\0\2", b"\0\0\0\3"):
        raise ValueError(own)
    while at >= 0:
        for begin in (at + _NAME, at + _NAME + 2):
            # Some entries have two more bytes before their name.
            name = os.fsdecode(data[begin : data.find(b"\0", begin)])
            place = os.path.join(worktree, name, ".git")
            if name and os.path.lexists(place):
                yield place
        at = data.find(_LINK_MODE, at + 1)


def _settings(path: str) -> Iterator[tuple[str, str, str]]:
    """Section, name and value, the first two in small letters. Raises `ValueError` for what is written unusually."""
    try:
        text = _text(path)
    except FileNotFoundError:
        return
    section = ""
    for raw in text.removeprefix("\ufeff").split("\n"):
        line = raw.strip()
        if found := _SECTION.match(line):
            section, line = found[1].lower().partition(".")[0], line[found.end() :].strip()
        if not line or line[0] in "#;":
            continue
        if not section or line[0] == "[" or line.endswith("\\"):
            raise ValueError(path)
        name, _, value = line.partition("=")
        yield section, name.strip().lower(), value.strip().strip('"')


def _text(path: str) -> str:
    return _data(path, _LARGEST).decode("utf-8", "surrogateescape")


def _data(path: str, most: int) -> bytes:
    """Raises `ValueError` for what is no plain file, or too large."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        data = file.read(most + 1) if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
    if data is None or len(data) > most:
        raise ValueError(path)
    return data
