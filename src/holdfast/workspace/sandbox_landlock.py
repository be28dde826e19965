"""Landlock rulesets, applied by a process to itself and inherited by its children. Loaded in the guard process too."""

import ctypes
import os
import stat
import sys
from collections.abc import Sequence

__all__ = ["SCOPES_VERSION", "landlock_version", "restrict", "restrict_scopes"]

_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH = 1

_WRITE_FILE, _REFER, _TRUNCATE, _IOCTL_DEV = 1 << 1, 1 << 13, 1 << 14, 1 << 15
_CHANGES = 0b1_1111_1111_0000 | _WRITE_FILE
"""Writing, creating and removing of every kind; reading and executing are not restricted."""
_FOR_FILES = _WRITE_FILE | _TRUNCATE | _IOCTL_DEV
_SCOPES = 0b11
"""Abstract sockets and signals reach only processes of the same sandbox."""
SCOPES_VERSION = 6
"""The first Landlock version that can restrict abstract sockets and signals (Linux 6.12)."""

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    """Restrictions of a ruleset. The network is not restricted here, but by a network namespace."""

    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def landlock_version() -> int:
    """Return the Landlock version of this kernel; 0 if it has none."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_libc.syscall(_CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))))


def _handled(version: int) -> int:
    changes = _CHANGES
    for since, right in ((2, _REFER), (3, _TRUNCATE)):
        changes |= right if version >= since else 0
    return changes


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def restrict(writable: Sequence[str]) -> None:
    """Forbid all changes except below `writable`. Raises `OSError`."""
    version = landlock_version()
    if version < 1:
        raise OSError(0, "this kernel has no Landlock")
    changes = _handled(version)
    ruleset = _create(_Ruleset(changes, 0, 0), 8)
    for path in writable:
        _allow(ruleset, path, changes)
    _enforce(ruleset)


def restrict_scopes() -> None:
    """Keep abstract sockets and signals within the sandbox, where the kernel can. File access is not restricted: a
    ruleset that restricts it would also refuse the mounts that bubblewrap makes.
    """
    if landlock_version() >= SCOPES_VERSION:
        _enforce(_create(_Ruleset(0, 0, _SCOPES), 24))


def _create(rules: _Ruleset, size: int) -> int:
    return _check(_libc.syscall(_CREATE, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0)), "landlock")


def _enforce(ruleset: int) -> None:
    """Apply a ruleset. The process must have given up new privileges."""
    _check(_libc.syscall(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0)), "landlock")
    os.close(ruleset)


def _allow(ruleset: int, path: str, changes: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        is_directory = stat.S_ISDIR(os.fstat(descriptor).st_mode)
        rule = _Beneath(changes if is_directory else changes & _FOR_FILES, descriptor)
        kind = ctypes.c_int(_PATH_BENEATH)
        added = _libc.syscall(_ADD_RULE, ctypes.c_int(ruleset), kind, ctypes.byref(rule), ctypes.c_uint32(0))
        _check(added, f"landlock for {path}")
    finally:
        os.close(descriptor)
