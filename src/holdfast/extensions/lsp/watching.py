"""Files that change while nobody tells: by commands, by people. Looked for when it matters, never in between.

There is no watcher that runs all the time. Whoever is about to ask a language server looks at the names and times of
the files first, and tells it what has become different since the last look.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.extensions.lsp.shapes import path_of
from holdfast.workspace.ignore import LITTER
from holdfast.workspace.paths import glob_regex, is_within

__all__ = ["Change", "Look", "Pattern", "changes", "looked", "of_interest", "pattern_of"]

_MOST = 20_000
_SECONDS = 0.5

Pattern: TypeAlias = Callable[[str], bool]
"""Whether a server wants to hear of a path."""


class Change(msgspec.Struct, frozen=True):
    """What became of a file: 1 it is new, 2 it is another, 3 it is gone."""

    path: str
    kind: int


class Look(msgspec.Struct, frozen=True):
    """Time and size of each file, by its path. `is_whole`: there are no others."""

    files: dict[str, tuple[int, int]]
    is_whole: bool = True


def looked(root: str, others: Iterable[str] = (), seconds: float = _SECONDS) -> Look:
    """The files below a directory, as far as there are not too many and it does not take too long, and some others.
    Blocks.
    """
    seen: dict[str, tuple[int, int]] = {}
    for path in others:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            seen[path] = (status.st_mtime_ns, status.st_size)
    waiting, until = [root], time.monotonic() + seconds
    while waiting:
        if len(seen) >= _MOST or time.monotonic() > until:
            return Look(seen, is_whole=False)
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.name in LITTER:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        seen[entry.path] = (status.st_mtime_ns, status.st_size)
        except OSError:
            continue
    return Look(seen)


def changes(before: Look, after: Look) -> list[Change]:
    """What is different. A look that was not whole says nothing about what is new, or gone."""
    old, new = before.files, after.files
    found = [Change(path, 2) for path in new.keys() & old.keys() if new[path] != old[path]]
    if before.is_whole:
        found += [Change(path, 1) for path in new.keys() - old.keys()]
    if after.is_whole:
        found += [Change(path, 3) for path in old.keys() - new.keys()]
    return sorted(found, key=lambda change: change.path)


def pattern_of(given: object, root: str) -> Pattern | None:
    """A pattern as a server registers it: text, or text and a base. None if it makes no sense."""
    base: Any = root
    if isinstance(given, dict):
        base, given = given.get("baseUri", ""), given.get("pattern")
        base = path_of(base.get("uri", "") if isinstance(base, dict) else str(base)) or root
    if not isinstance(given, str):
        return None
    if given.startswith("/"):
        base, given = "/", given[1:]
    base = base.rstrip("/") or "/"
    try:
        # A name without a slash fits at every depth: a little too much is told then, never too little.
        regex = glob_regex(given)
    except ToolError:
        return None
    return lambda path: is_within(base, path) and regex.match(path[len(base.rstrip("/")) + 1 :]) is not None


def of_interest(found: Iterable[Change], patterns: Iterable[Pattern]) -> list[Change]:
    known = tuple(patterns)
    return [change for change in found if any(fits(change.path) for fits in known)]
