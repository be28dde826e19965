"""System calls of a thread that fail one after the other, and checks that everything is released afterwards."""

import errno
import gc
import os
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import apsw
import pytest

from storage.faulty_disk import FaultyDisk

OS_CALLS = {
    "open": errno.EMFILE,
    "fstat": errno.EIO,
    "stat": errno.EIO,
    "read": errno.EIO,
    "write": errno.ENOSPC,
    "pread": errno.EIO,
    "pwrite": errno.EIO,
    "fsync": errno.EIO,
    "fdatasync": errno.EIO,
    "ftruncate": errno.EIO,
    "rename": errno.EIO,
    "mkdir": errno.ENOSPC,
}


class FailingCall:
    """Fails the `at`-th watched call in the threads selected by `applies`; 0 only counts."""

    def __init__(self, name: str, at: int = 0, applies: Callable[[], bool] = lambda: True) -> None:
        self.at = at
        self.count = 0
        self.calls: list[str] = []
        self.failed = ""
        self.is_armed = False
        self._applies = applies
        self.disk = FaultyDisk(name, self._on_call)

    @contextmanager
    def armed(self) -> Iterator["FailingCall"]:
        patch = pytest.MonkeyPatch()
        self.is_armed = True
        try:
            for name, number in OS_CALLS.items():
                call = (lambda _: None) if name in ("fsync", "fdatasync") else getattr(os, name)
                patch.setattr(os, name, self._wrap(name, call, OSError(number, os.strerror(number))))
            start = threading.Thread.start
            patch.setattr(threading.Thread, "start", self._wrap("thread", start, RuntimeError("no more threads")))
            full = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
            patch.setattr(socket.socket, "listen", self._wrap("listen", socket.socket.listen, full))
            yield self
        finally:
            self.is_armed = False
            patch.undo()

    def _wrap(self, name: str, call: Callable[..., object], error: Exception) -> Callable[..., object]:
        def watched(*arguments: object, **options: object) -> object:
            self._count(name, error)
            return call(*arguments, **options)

        return watched

    def _on_call(self, call_kind: str, name: str) -> None:
        kind = apsw.CantOpenError if call_kind == "open" else apsw.FullError if call_kind == "write" else apsw.IOError
        self._count(f"{call_kind} {name}", kind(f"{call_kind} of {name} fails"))

    def _count(self, name: str, error: Exception) -> None:
        if not self.is_armed or not self._applies():
            return
        self.count += 1
        self.calls.append(name)
        if self.count == self.at:
            self.failed = name
            raise error


def call_numbers(calls: list[str]) -> list[int]:
    """Return the first and the last call of each kind, counted from 1."""
    first = {name: place for place, name in reversed(list(enumerate(calls, 1)))}
    last = {name: place for place, name in enumerate(calls, 1)}
    return sorted({*first.values(), *last.values()})


def held_resources() -> tuple[list[str], list[str]]:
    """Return the resources of this process: the targets of its descriptors, and its threads."""
    targets = []
    for name in os.listdir("/proc/self/fd"):
        try:
            targets.append(os.readlink(f"/proc/self/fd/{name}"))
        except OSError:
            continue
    threads = [thread.name for thread in threading.enumerate() if thread.name.startswith("holdfast-")]
    return sorted(target for target in targets if not target.startswith("/proc/")), sorted(threads)


def holds_more_than(before: tuple[list[str], list[str]]) -> bool:
    """Return true if a resource was not released. The caught error may keep a connection for a moment.

    Threads and descriptors that end meanwhile belong to earlier tests.
    """
    if _added(before):
        gc.collect()
    return _added(before)


def _added(before: tuple[list[str], list[str]]) -> bool:
    return any(Counter(now) - Counter(earlier) for now, earlier in zip(held_resources(), before, strict=True))
