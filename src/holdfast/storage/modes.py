"""Finds files and directories of the data directory that other users may read or write."""

import os
import stat
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import msgspec

__all__ = ["OpenToOthers", "open_to_others"]

_MOST = 20
"""So many are reported: one command mends them all."""


class OpenToOthers(msgspec.Struct, frozen=True):
    """A path with loose permissions. `wanted` is the mode it should have."""

    path: str
    mode: int
    wanted: int

    @property
    def what(self) -> str:
        deed = "change" if self.mode & 0o022 else "read"
        return f"other users may {deed} it (mode {self.mode:o}): conversations and keys are there."


def open_to_others(data_dir: Path) -> list[OpenToOthers]:
    """The data directory and everything in it that is open to group or others, the first few of them."""
    return list(islice(_loose(str(data_dir)), _MOST))


def _loose(data_dir: str) -> Iterator[OpenToOthers]:
    for directory, names, files in os.walk(data_dir, onerror=lambda _: None):
        names.sort()
        is_private = directory == data_dir or os.path.basename(directory) == "logs"
        yield from _checked(directory, 0o700, 0o077 if directory == data_dir else 0o002)
        for name in sorted(files):
            # Other files below have the modes that commands gave them: the data directory keeps others out.
            refused = 0o077 if is_private or name == "config.json" else 0o002
            yield from _checked(os.path.join(directory, name), 0o600, refused)


def _checked(path: str, wanted: int, refused: int) -> Iterator[OpenToOthers]:
    try:
        found = os.lstat(path)
    except OSError:
        return
    mode = stat.S_IMODE(found.st_mode)
    if mode & refused and not stat.S_ISLNK(found.st_mode):
        yield OpenToOthers(path, mode, wanted)
