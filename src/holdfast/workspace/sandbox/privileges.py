"""Privileges a sandboxed command gives up before it starts. Runs in the guard process, in the command's own child.

The system-call filter closes kernel interfaces that reach beyond files and processes: keyrings are shared by all
sessions of a user, io_uring opens sockets without a system call that a filter could see, and socket families such as
vsock belong to no network namespace. A filter compares numbers, so it is written for each processor by hand.

Landlock rulesets, the second part of this module, restrict changes of files and, on newer kernels, signals and abstract
sockets. A process applies both to itself; its children inherit them.
"""

import ctypes
import os
import platform
import stat
import struct
import sys
from collections.abc import Sequence

__all__ = [
    "SCOPES_VERSION",
    "can_filter",
    "drop_capabilities",
    "forbid_new_privileges",
    "install_filter",
    "landlock_version",
    "restrict",
    "restrict_scopes",
]


_SET_NO_NEW_PRIVS, _SET_SECCOMP, _DROP_BOUNDING = 38, 22, 24
_SECCOMP_FILTER = 2
_ALLOW, _REFUSE = 0x7FFF0000, 0x00050000
_EPERM, _ENOSYS, _EAFNOSUPPORT = 1, 38, 97
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_NUMBER, _MACHINE, _FIRST, _SECOND = 0, 4, 16, 24
"""Offsets in `struct seccomp_data`; the lower halves of the arguments on little-endian machines."""
_X32 = 0x40000000
_FAMILIES = (1, 2, 10, 16)
"""unix, IPv4, IPv6, netlink."""
_TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX put characters into the input of a terminal."""
_KEPT_CAPABILITIES = frozenset((0, 1, 3, 4, 5, 6, 7))
"""chown, dac_override, fowner, fsetid, kill, setgid, setuid: root works with files of any owner, and nothing else."""


class _Machine:
    """Numbers of one processor: its audit identifier, `socket`, `ioctl`, and the refused system calls."""

    def __init__(self, audit: int, socket: int, ioctl: int, refused: tuple[int, ...]) -> None:
        self.audit = audit
        self.socket = socket
        self.ioctl = ioctl
        self.refused = (425, 426, 427, *refused)  # io_uring has the same numbers everywhere


# userfaultfd, keyctl, add_key, request_key, bpf, perf_event_open, kexec_load, kexec_file_load, init_module,
# finit_module, delete_module, open_by_handle_at; on i386 also socketcall, whose arguments a filter cannot see.
_X86_64 = _Machine(0xC000003E, 41, 16, (323, 250, 248, 249, 321, 298, 246, 320, 175, 313, 176, 304))
_I386 = _Machine(0x40000003, 359, 54, (374, 288, 286, 287, 357, 336, 283, 128, 350, 129, 342, 102))
_AARCH64 = _Machine(0xC00000B7, 198, 29, (282, 219, 217, 218, 280, 241, 104, 294, 105, 273, 106, 265))
_MACHINES = {"x86_64": (_X86_64, _I386), "aarch64": (_AARCH64,)}

_libc = ctypes.CDLL(None, use_errno=True)


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_char_p))


def can_filter() -> bool:
    """Return whether a system-call filter exists for this processor."""
    return platform.machine() in _MACHINES


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def forbid_new_privileges() -> None:
    """Ignore set-uid bits and file capabilities from now on."""
    _check(_libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no new privileges")


def drop_capabilities() -> None:
    """Remove capabilities from the bounding set, so that the next program does not have them."""
    with open("/proc/sys/kernel/cap_last_cap", encoding="ascii") as file:
        last = int(file.read())
    for number in range(last + 1):
        if number not in _KEPT_CAPABILITIES:
            _check(_libc.prctl(_DROP_BOUNDING, number, 0, 0, 0), "drop capabilities")


def install_filter() -> None:
    """Refuse the listed system calls for this process and all it starts. Does nothing without a filter."""
    if not can_filter():
        return
    code = b"".join(_instructions(_MACHINES[platform.machine()]))
    program = _Program(len(code) // 8, code)
    _check(_libc.prctl(_SET_SECCOMP, _SECCOMP_FILTER, ctypes.byref(program), 0, 0), "system-call filter")


def _statement(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _instructions(machines: tuple[_Machine, ...]) -> list[bytes]:
    found: list[bytes] = []
    for machine in machines:
        body = _machine_filter(machine)
        found += [_statement(_LOAD, _MACHINE), _statement(_EQUAL, machine.audit, 0, len(body)), *body]
    return [*found, _statement(_RETURN, _REFUSE | _ENOSYS)]


def _machine_filter(machine: _Machine) -> list[bytes]:
    """Return the filter for one processor. Every comparison jumps over the refusal that follows it."""
    body = [_statement(_LOAD, _NUMBER)]
    if machine is _X86_64:
        body += [_statement(_AT_LEAST, _X32, 0, 1), _statement(_RETURN, _REFUSE | _ENOSYS)]
    for number in machine.refused:
        body += [_statement(_EQUAL, number, 0, 1), _statement(_RETURN, _REFUSE | _EPERM)]
    families = [_statement(_LOAD, _FIRST)]
    for family in _FAMILIES:
        families += [_statement(_EQUAL, family, 0, 1), _statement(_RETURN, _ALLOW)]
    families.append(_statement(_RETURN, _REFUSE | _EAFNOSUPPORT))
    body += [_statement(_EQUAL, machine.socket, 0, len(families)), *families]
    requests = [_statement(_LOAD, _SECOND)]
    for request in _TERMINAL_INPUT:
        requests += [_statement(_EQUAL, request, 0, 1), _statement(_RETURN, _REFUSE | _EPERM)]
    body += [_statement(_EQUAL, machine.ioctl, 0, len(requests)), *requests]
    return [*body, _statement(_RETURN, _ALLOW)]


# Landlock rulesets, applied by a process to itself and inherited by its children. Loaded in the guard process too.

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


def _handled_accesses(version: int) -> int:
    changes = _CHANGES
    for since, right in ((2, _REFER), (3, _TRUNCATE)):
        changes |= right if version >= since else 0
    return changes


def _check_landlock(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def restrict(writable: Sequence[str]) -> None:
    """Forbid all changes except below `writable`. Raises `OSError`."""
    version = landlock_version()
    if version < 1:
        raise OSError(0, "this kernel has no Landlock")
    changes = _handled_accesses(version)
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
    return _check_landlock(
        _libc.syscall(_CREATE, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0)), "landlock"
    )


def _enforce(ruleset: int) -> None:
    """Apply a ruleset. The process must have given up new privileges."""
    _check_landlock(_libc.syscall(_RESTRICT, ctypes.c_int(ruleset), ctypes.c_uint32(0)), "landlock")
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
        _check_landlock(added, f"landlock for {path}")
    finally:
        os.close(descriptor)
