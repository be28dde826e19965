"""Lookup of the files that program names refer to, and expansion of glob patterns of a shell line, in the current file
system.
"""

import os
from collections.abc import Callable, Iterator, Sequence

__all__ = ["ProgramFiles", "expand_glob", "real_path"]


_MULTI_CALL = frozenset({"busybox", "coreutils", "mise", "rustup", "toybox", "uutils", "volta-shim"})
"""Multi-call binaries: the name they are called by selects the program, not the file."""
_MAX_COMPARED_SIZE = 64 << 20
_MAX_LINKS = 40
_SPECIAL = "*?["
_MAX_EXPANSIONS = 1_024
_MAX_ENTRIES = 50_000


class ProgramFiles:
    """Resolves program names. `search_path` returns the PATH of commands at the time of a lookup."""

    def __init__(self, search_path: Callable[[], str]) -> None:
        self._search_path = search_path

    def find(self, program: str, directory: str) -> str | None:
        """Return the path of a program as bash finds it from a directory; None if there is none."""
        if "/" in program:
            path = os.path.join(directory, program)
            return path if os.path.isfile(path) and not _is_process_specific(path) else None
        for entry in self._search_path().split(":"):
            path = os.path.join(entry, program)
            if entry.startswith("/") and os.path.isfile(path) and os.access(path, os.X_OK):
                return path
        return None

    def is_same(self, path: str, name: str) -> bool:
        """Return whether a file is the program of that name, a link to it or a copy of it."""
        wanted = self.find(name, "/")
        if os.path.basename(name) in map(os.path.basename, _link_chain(path)):
            return True
        if wanted is None or os.path.basename(os.path.realpath(wanted)) in _MULTI_CALL:
            return False
        try:
            # Installed programs may be equal on purpose (shims); only files elsewhere are compared as copies.
            is_installed = os.path.dirname(path) in self._search_path().split(":")
            return os.path.samefile(path, wanted) or (not is_installed and _is_copy(path, wanted))
        except OSError:
            return False


def real_path(path: str) -> str:
    """Return the real path of an absolute path like `os.path.realpath`, except below `/proc`: its links differ for
    each process (`/proc/self/cwd`, `/dev/fd/3`), so the rest of the path is kept unchanged.
    """
    current, rest, links = "", list(reversed(path.split("/"))), 0
    while rest:
        name = rest.pop()
        if name in ("", "."):
            continue
        if name == "..":
            current = os.path.dirname(current.rstrip("/")).rstrip("/")
            continue
        current = f"{current}/{name}"
        if current == "/proc":
            return "/".join((current, *reversed(rest)))
        try:
            target = os.readlink(current)
        except (OSError, ValueError):
            continue
        links += 1
        if links > _MAX_LINKS:
            return os.path.realpath(path)
        current = "" if target.startswith("/") else os.path.dirname(current).rstrip("/")
        rest += reversed(target.split("/"))
    return current or "/"


def _link_chain(path: str) -> list[str]:
    """Return the paths from a link to its file."""
    paths: list[str] = []
    for _ in range(40):
        paths.append(path)
        try:
            path = os.path.join(os.path.dirname(path), os.readlink(path))
        except OSError:
            break
    return paths


def _is_process_specific(path: str) -> bool:
    """Return whether the path goes through `/proc` or `/dev`, where it refers to another file for another process."""
    return any(os.path.normpath(item).startswith(("/proc/", "/dev/")) for item in _link_chain(path))


def _is_copy(path: str, other: str) -> bool:
    size = os.stat(path).st_size
    if not 0 < size <= _MAX_COMPARED_SIZE or size != os.stat(other).st_size:
        return False
    with open(path, "rb") as one, open(other, "rb") as two:
        while block := one.read(1 << 20):
            if block != two.read(1 << 20):
                return False
    return True


class _TooMany(Exception):
    """The expansion would take too long."""


def expand_glob(pattern: str) -> Sequence[str] | None:
    """Return a superset of the paths that a pattern can expand to; None if there are too many.

    Of each component with a special character only the prefix before it must match. Plain files are omitted, because
    their directory represents them, unless their name begins like an option.
    """
    try:
        return _GlobWalk().expand(pattern.split("/"))
    except _TooMany:
        return None


class _GlobWalk:
    def __init__(self) -> None:
        self._seen = 0

    def expand(self, parts: Sequence[str]) -> list[str]:
        found = [""]
        for place, part in enumerate(parts):
            at = min((part.index(char) for char in _SPECIAL if char in part), default=-1)
            if at < 0:
                found = [f"{path}/{part}" if path or part else "" for path in found]
                continue
            expanded: list[str] = []
            for path in found:
                # The shell keeps a pattern without a match unchanged.
                expanded.append(f"{path}/{part}")
                expanded += self._entries(path or "/", part[:at], is_last=place == len(parts) - 1)
                if len(expanded) > _MAX_EXPANSIONS:
                    raise _TooMany
            found = expanded
        return found

    def _entries(self, folder: str, prefix: str, *, is_last: bool) -> Iterator[str]:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._seen += 1
                    if self._seen > _MAX_ENTRIES:
                        raise _TooMany
                    if not entry.name.startswith(prefix) or entry.name.startswith(".") != prefix.startswith("."):
                        continue
                    is_searched = not is_last and entry.is_dir(follow_symlinks=False)
                    if entry.is_symlink() or is_searched or entry.name.startswith("-"):
                        yield f"{folder}/{entry.name}"
        except OSError:
            return
