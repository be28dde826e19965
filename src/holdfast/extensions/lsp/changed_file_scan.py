"""Detection of files that were changed by commands or users, by scanning on demand.

There is no permanent file watcher. Before a request to a language server the names and times of the files are scanned,
and the differences to the last scan are sent to the server.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

import msgspec

from holdfast.domain.errors import ToolError
from holdfast.extensions.lsp.lsp_types import path_from_uri
from holdfast.workspace.files.ignore_files import GENERATED_NAMES
from holdfast.workspace.files.path_strings import glob_regex, is_within

__all__ = ["FileChange", "FileScan", "Pattern", "compare_scans", "matching_changes", "parse_glob", "scan_files"]

_MAX_FILES = 20_000
_SCAN_TIMEOUT = 0.5

Pattern: TypeAlias = Callable[[str], bool]
"""Returns whether a server watches a path."""


class FileChange(msgspec.Struct, frozen=True):
    """A file change, with the kinds of the protocol: 1 created, 2 changed, 3 deleted."""

    path: str
    kind: int


class FileScan(msgspec.Struct, frozen=True):
    """Time and size of each file, by path. `is_complete`: the scan was complete."""

    files: dict[str, tuple[int, int]]
    is_complete: bool = True


def scan_files(root: str, extra: Iterable[str] = (), timeout: float = _SCAN_TIMEOUT) -> FileScan:
    """Scan the files below a directory, up to limits of number and time, and the `extra` files. Blocks."""
    seen: dict[str, tuple[int, int]] = {}
    for path in extra:
        with contextlib.suppress(OSError):
            status = os.stat(path)
            seen[path] = (status.st_mtime_ns, status.st_size)
    pending, end = [root], time.monotonic() + timeout
    while pending:
        if len(seen) >= _MAX_FILES or time.monotonic() > end:
            return FileScan(seen, is_complete=False)
        try:
            with os.scandir(pending.pop()) as entries:
                for entry in entries:
                    if entry.name in GENERATED_NAMES:
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        pending.append(entry.path)
                    elif entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        seen[entry.path] = (status.st_mtime_ns, status.st_size)
        except OSError:
            continue
    return FileScan(seen)


def compare_scans(before: FileScan, after: FileScan) -> list[FileChange]:
    """Return the differences. Creations require that the first scan was complete, deletions that the second was."""
    old, new = before.files, after.files
    found = [FileChange(path, 2) for path in new.keys() & old.keys() if new[path] != old[path]]
    if before.is_complete:
        found += [FileChange(path, 1) for path in new.keys() - old.keys()]
    if after.is_complete:
        found += [FileChange(path, 3) for path in old.keys() - new.keys()]
    return sorted(found, key=lambda change: change.path)


def parse_glob(given: object, root: str) -> Pattern | None:
    """Convert a registered glob pattern, with an optional base. Returns None if it is invalid."""
    base: Any = root
    if isinstance(given, dict):
        base, given = given.get("baseUri", ""), given.get("pattern")
        base = path_from_uri(base.get("uri", "") if isinstance(base, dict) else str(base)) or root
    if not isinstance(given, str):
        return None
    if given.startswith("/"):
        base, given = "/", given[1:]
    base = base.rstrip("/") or "/"
    try:
        # A name without a slash matches at every depth: some notifications are superfluous, but none is missing.
        regex = glob_regex(given)
    except ToolError:
        return None
    return lambda path: is_within(base, path) and regex.match(path[len(base.rstrip("/")) + 1 :]) is not None


def matching_changes(found: Iterable[FileChange], patterns: Iterable[Pattern]) -> list[FileChange]:
    """Return the changes that match a pattern."""
    known = tuple(patterns)
    return [change for change in found if any(matches(change.path) for matches in known)]
