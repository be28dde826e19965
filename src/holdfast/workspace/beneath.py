"""Open paths below an open directory without following any symbolic link.

The kernel does this in one step if it has `openat2`; otherwise the path is opened component by component. Even if a
directory is replaced concurrently, the opened path is below the given directory.
"""

import contextlib
import ctypes
import errno
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO

__all__ = ["directory_beneath", "entries_of", "open_beneath", "status_beneath", "stream_of"]

_OPENAT2 = 437
_NO_MAGICLINKS, _NO_SYMLINKS, _BENEATH = 0x02, 0x04, 0x08
_NAME_ONLY = getattr(os, "O_PATH", os.O_RDONLY)
_NOT_KNOWN = (errno.ENOSYS, errno.EPERM, errno.EINVAL, errno.E2BIG)
"""Errors of an older kernel, or of a container that forbids unknown system calls."""

_libc = ctypes.CDLL(None, use_errno=True)


class _How(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def open_beneath(folder: int, path: str, flags: int) -> int:
    """Open a relative path without `..`. Raises `OSError`: ELOOP or ENOTDIR if a component is a link.

    Always adds O_NOFOLLOW and O_CLOEXEC. For directories and existing files only.
    """
    names = [name for name in path.split("/") if name not in ("", ".")]
    if ".." in names:
        raise OSError(errno.EXDEV, "leads out of the directory")
    flags |= os.O_NOFOLLOW | os.O_CLOEXEC
    if sys.platform == "linux":
        with contextlib.suppress(NotImplementedError):
            return _openat2(folder, "/".join(names) or ".", flags)
    return _step_by_step(folder, names or ["."], flags)


def _openat2(folder: int, path: str, flags: int) -> int:
    how = _How(flags, 0, _NO_MAGICLINKS | _NO_SYMLINKS | _BENEATH)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    while True:
        handle = int(_libc.syscall(_OPENAT2, ctypes.c_int(folder), os.fsencode(path), ctypes.byref(how), size))
        if handle >= 0:
            return handle
        number = ctypes.get_errno()
        if number in _NOT_KNOWN:
            raise NotImplementedError
        if number not in (errno.EAGAIN, errno.EINTR):
            raise OSError(number, os.strerror(number), path)


def _step_by_step(folder: int, names: list[str], flags: int) -> int:
    *above, last = names
    handle = folder
    try:
        for name in above:
            below = os.open(name, _NAME_ONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=handle)
            if handle != folder:
                os.close(handle)
            handle = below
        return os.open(last, flags, dir_fd=handle)
    finally:
        if handle != folder:
            os.close(handle)


def status_beneath(folder: int, path: str) -> os.stat_result | None:
    """Return the status of a relative path without following links; None if it is missing or a component is a link."""
    above, _, name = path.rpartition("/")
    try:
        with directory_beneath(folder, above) as handle:
            return os.stat(name, dir_fd=handle, follow_symlinks=False)
    except (OSError, ValueError):
        return None


def stream_of(handle: int) -> BinaryIO:
    """Return a stream that reads an open file and closes it. Raises `OSError` for a directory, which is closed too."""
    try:
        return open(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


@contextlib.contextmanager
def directory_beneath(folder: int, path: str) -> Iterator[int]:
    """Open a directory below another one for the duration of the block."""
    handle = open_beneath(folder, path, _NAME_ONLY | os.O_DIRECTORY)
    try:
        yield handle
    finally:
        os.close(handle)


def entries_of(folder: int, path: str) -> list[tuple[str, bool, bool, str]]:
    """Return the sorted entries of a directory below another one: name, is a directory, is a plain file, and the
    target if it is a link.
    """
    found: list[tuple[str, bool, bool, str]] = []
    handle = open_beneath(folder, path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with os.scandir(handle) as items:
            for item in items:
                is_folder = item.is_dir(follow_symlinks=False)
                target = ""
                if item.is_symlink():
                    with contextlib.suppress(OSError):
                        target = os.readlink(item.name, dir_fd=handle)
                found.append((item.name, is_folder, item.is_file(follow_symlinks=False), target))
    finally:
        os.close(handle)
    return sorted(found)
