"""Privileges a sandboxed command gives up before it starts. Runs in the guard process, in the command's own child.

The system-call filter closes kernel interfaces that reach beyond files and processes: keyrings are shared by all
sessions of a user, io_uring opens sockets without a system call that a filter could see, and socket families such as
vsock belong to no network namespace. A filter compares numbers, so it is written for each processor by hand.
"""

import ctypes
import os
import platform
import struct

__all__ = ["can_filter", "drop_capabilities", "forbid_new_privileges", "install_filter"]

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
        body = _of_machine(machine)
        found += [_statement(_LOAD, _MACHINE), _statement(_EQUAL, machine.audit, 0, len(body)), *body]
    return [*found, _statement(_RETURN, _REFUSE | _ENOSYS)]


def _of_machine(machine: _Machine) -> list[bytes]:
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
