"""Expansion of glob patterns in a shell line against the current file system."""

import os
from collections.abc import Iterator, Sequence

__all__ = ["expansions"]

_SPECIAL = "*?["
_MOST = 1_024
_MOST_SEEN = 50_000


class _TooMany(Exception):
    """It would take too long to tell."""


def expansions(pattern: str) -> Sequence[str] | None:
    """Return a superset of the paths that a pattern can expand to; None if there are too many.

    Of each component with a special character only the prefix before it must match. Plain files are omitted, because
    their directory stands for them, unless their name begins like an option.
    """
    try:
        return _Walk().all(pattern.split("/"))
    except _TooMany:
        return None


class _Walk:
    def __init__(self) -> None:
        self._seen = 0

    def all(self, parts: Sequence[str]) -> list[str]:
        found = [""]
        for place, part in enumerate(parts):
            at = min((part.index(char) for char in _SPECIAL if char in part), default=-1)
            if at < 0:
                found = [f"{path}/{part}" if path or part else "" for path in found]
                continue
            made: list[str] = []
            for path in found:
                # The shell keeps a pattern without a match unchanged.
                made.append(f"{path}/{part}")
                made += self._below(path or "/", part[:at], is_last=place == len(parts) - 1)
                if len(made) > _MOST:
                    raise _TooMany
            found = made
        return found

    def _below(self, folder: str, prefix: str, *, is_last: bool) -> Iterator[str]:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    self._seen += 1
                    if self._seen > _MOST_SEEN:
                        raise _TooMany
                    if not entry.name.startswith(prefix) or entry.name.startswith(".") != prefix.startswith("."):
                        continue
                    is_way = not is_last and entry.is_dir(follow_symlinks=False)
                    if entry.is_symlink() or is_way or entry.name.startswith("-"):
                        yield f"{folder}/{entry.name}"
        except OSError:
            return
