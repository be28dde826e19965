"""Records the system calls that make a file durable: creation, sync, rename, link and removal, in order."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest


class Call(NamedTuple):
    """`name` is the target's; `is_whole` is set for a rename or link of a file whose content was synced before."""

    kind: str
    name: str
    is_whole: bool = True


class SyncRecorder:
    """Records the calls below one directory, by this process."""

    def __init__(self, root: Path) -> None:
        self._root = os.path.realpath(root)
        self._synced: dict[tuple[int, int], bytes] = {}
        self.calls: list[Call] = []

    @contextmanager
    def running(self) -> Iterator["SyncRecorder"]:
        patch = pytest.MonkeyPatch()
        try:
            for name in ("fsync", "fdatasync"):
                patch.setattr(os, name, self._sync)
            for name in ("rename", "replace", "link"):
                patch.setattr(os, name, self._wrap_move(name, getattr(os, name)))
            for name in ("unlink", "remove"):
                patch.setattr(os, name, self._wrap_remove(getattr(os, name)))
            patch.setattr(os, "open", self._wrap_open(os.open))
            yield self
        finally:
            patch.undo()

    def note_sync(self, path: str) -> None:
        """Record a sync made by another layer (SQLite)."""
        with open(path, "rb") as file:
            self._note_sync(file.fileno(), os.path.realpath(path))

    def _sync(self, descriptor: int) -> None:
        self._note_sync(descriptor, os.readlink(f"/proc/self/fd/{descriptor}"))

    def _note_sync(self, descriptor: int, path: str) -> None:
        found = os.fstat(descriptor)
        if stat.S_ISREG(found.st_mode):
            self._synced[found.st_dev, found.st_ino] = _content(f"/proc/self/fd/{descriptor}")
        self._add("sync", path)

    def _wrap_move(self, kind: str, call: Any) -> Any:  # noqa: ANN401 - as the functions of `os`
        def moved(source: Any, target: Any, **options: Any) -> None:  # noqa: ANN401
            old, new = _real(source, options.get("src_dir_fd")), _real(target, options.get("dst_dir_fd"))
            found = os.stat(old, follow_symlinks=False)
            is_whole = self._synced.get((found.st_dev, found.st_ino)) == _content(old)
            call(source, target, **options)
            self._add("link" if kind == "link" else "rename", new, is_whole=is_whole)

        return moved

    def _wrap_remove(self, call: Any) -> Any:  # noqa: ANN401
        def removed(path: Any, **options: Any) -> None:  # noqa: ANN401
            call(path, **options)
            self._add("unlink", _real(path, options.get("dir_fd")))

        return removed

    def _wrap_open(self, call: Any) -> Any:  # noqa: ANN401
        def opened(path: Any, flags: int, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            descriptor = call(path, flags, *arguments, **options)
            if flags & (os.O_CREAT | os.O_TRUNC):
                self._add("create", _real(path, options.get("dir_fd")))
            return descriptor

        return opened

    def _add(self, kind: str, path: str, *, is_whole: bool = True) -> None:
        real = os.path.realpath(path)
        if real == self._root or real.startswith(self._root + "/"):
            self.calls.append(Call(kind, os.path.relpath(real, self._root), is_whole))


def _real(path: Any, folder: int | None) -> str:  # noqa: ANN401
    return os.path.join("" if folder is None else os.readlink(f"/proc/self/fd/{folder}"), os.fspath(path))


def _content(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()
