"""System calls missing from the standard library, most of them for the guard process."""

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "boot_time",
    "child_pids",
    "deny_tracing",
    "descendants",
    "die_with_parent",
    "enable_loopback",
    "enter_namespaces",
    "is_running",
    "is_stopped",
    "mount_proc",
    "open_boot_timer",
    "process_ids",
    "reap_child",
    "resume_on_parent_death",
    "return_freed_memory",
    "send_signal",
    "set_boot_timer",
    "set_subreaper",
    "set_title",
]

_SET_PDEATHSIG, _SET_DUMPABLE, _SET_NAME, _SET_CHILD_SUBREAPER = 1, 4, 15, 36
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
CLONE_NEWIPC, CLONE_NEWNET = 0x08000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_SLAVE = 2, 4, 8, 0x4000, 0x80000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_CLOCK_BOOTTIME, _ABSOLUTE_TIME = 7, 1
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def set_subreaper(*, is_on: bool = True) -> bool:
    """Become the subreaper of all descendants, or stop being it. Returns False if the system does not support it."""
    return sys.platform == "linux" and int(_libc.prctl(_SET_CHILD_SUBREAPER, int(is_on), 0, 0, 0)) == 0


def resume_on_parent_death() -> None:
    """Let the kernel send SIGCONT when the parent dies, so that a paused supervisor resumes and cleans up."""
    if sys.platform == "linux":
        _check(_libc.prctl(_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0), "go on")


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends. Its own children are not affected."""
    if sys.platform == "linux":
        _check(_libc.prctl(_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "die with the parent")
        # The parent may have ended before the request took effect; the kernel then sends no signal.
        if os.getppid() != parent:
            os._exit(127)


def deny_tracing(*, is_on: bool = True) -> None:
    """Prevent other processes of the same user from reading this one: environment, memory, descriptors.

    Children inherit this until they execute a program.
    """
    if sys.platform == "linux":
        _check(_libc.prctl(_SET_DUMPABLE, int(not is_on), 0, 0, 0), "seal")


def set_title(title: str) -> None:
    """Show another name and command line for this process. The command line can only become shorter."""
    with open("/proc/self/stat", "rb") as file:
        first, end = map(int, file.read().rpartition(b")")[2].split()[45:47])
    text = title.encode()[: end - first - 1]
    ctypes.memset(first, 0, end - first)
    ctypes.memmove(first, text, len(text))
    _check(_libc.prctl(_SET_NAME, text, 0, 0, 0), "title")


def return_freed_memory() -> None:
    """Return large freed blocks to the system. By default glibc raises its threshold to the size of each freed block,
    and a few huge prompts would stay in memory permanently.
    """
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_MMAP_THRESHOLD, 1 << 20)
        _libc.mallopt(_TRIM_THRESHOLD, 8 << 20)


def enter_namespaces(*, as_user: bool, extra: int = 0) -> None:
    """Make the next child of this process the init process of a new PID namespace with its own mounts.

    Without root this requires a user namespace, in which all other user ids are mapped to nobody: `sudo` fails, and
    `ssh` may reject its settings. So it is used only with `as_user`.
    """
    flags = _CLONE_NEWPID | _CLONE_NEWNS | extra
    user, group = os.geteuid(), os.getegid()
    # Succeeds for root without a user namespace.
    if _libc.unshare(flags) == 0:
        return
    if not as_user:
        _check(-1, "unshare")
    _check(_libc.unshare(flags | _CLONE_NEWUSER), "unshare")
    # The /proc files of a sealed process belong to root.
    deny_tracing(is_on=False)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)
    deny_tracing()


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    texts = [os.fsencode(text) if text else None for text in (source, target, kind)]
    _check(_libc.mount(*texts, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


def mount_proc() -> None:
    """Mount a `/proc` for this PID namespace. The mount is not visible outside."""
    _mount("", "/", "", _MS_REC | _MS_SLAVE)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def enable_loopback() -> None:
    """Enable the loopback interface of a new network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def process_ids() -> list[int]:
    """Return all visible processes; empty if the system has no `/proc`."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except FileNotFoundError:
        return []


def is_running(process: int) -> bool:
    """Return whether a process exists and has not ended."""
    try:
        with open(f"/proc/{process}/stat", "rb", buffering=0) as file:
            return file.read(4_096).rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except (OSError, IndexError):
        return False


def is_stopped(process: int) -> bool:
    """Return whether a process executes nothing: it is stopped by a signal or a debugger, or has ended."""
    try:
        with open(f"/proc/{process}/stat", "rb", buffering=0) as file:
            return file.read(4_096).rpartition(b")")[2].split()[0] in {b"T", b"t", b"Z", b"X"}
    except (OSError, IndexError):
        return True


# The boot-time clock, which continues while the machine is suspended: a lease ends there as well.


def boot_time() -> float:
    """Return the seconds of the boot-time clock."""
    return time.clock_gettime(time.CLOCK_BOOTTIME) if sys.platform == "linux" else time.monotonic()


class _TimerSetting(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_long) for name in ("interval", "interval_ns", "value", "value_ns"))


def open_boot_timer() -> int:
    """Return a descriptor that becomes readable at a time of the boot-time clock; -1 if there can be none."""
    if sys.platform != "linux":
        return -1
    return int(_libc.timerfd_create(_CLOCK_BOOTTIME, os.O_NONBLOCK | os.O_CLOEXEC))


def set_boot_timer(timer: int, at: float) -> None:
    """Let the timer expire at a time, at once if that has passed."""
    seconds, rest = divmod(max(at, 1e-9), 1)
    setting = _TimerSetting(0, 0, int(seconds), max(1, int(rest * 1e9)))
    _check(_libc.timerfd_settime(timer, _ABSOLUTE_TIME, ctypes.byref(setting), None), "timer")


def _processes() -> Iterator[tuple[int, int, int]]:
    """Yield process, parent and group of all running processes. Zombies are left out."""
    for process in process_ids():
        with contextlib.suppress(OSError):
            # The name of the program, in parentheses, may itself contain spaces and parentheses: split behind the last
            # one.
            with open(f"/proc/{process}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            if fields[0] not in {b"Z", b"X"}:
                yield process, int(fields[1]), int(fields[2])


def child_pids() -> set[int]:
    """Return the children of this process, in one fast read; empty if the kernel does not support it."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return {int(name) for name in file.read().split()}
    except OSError:
        return set()


def reap_child() -> tuple[int, int] | None:
    """Return an ended child and its wait status; process 0 if none has ended, None if there are no children."""
    try:
        return os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None


def descendants(roots: Iterable[int], spare: Iterable[int] = ()) -> dict[int, int]:
    """Return all running descendants of some processes with their groups, except the spared ones and
    their descendants.
    """
    below: dict[int, list[tuple[int, int]]] = {}
    for process, parent, group in _processes():
        below.setdefault(parent, []).append((process, group))
    spared = set(spare)
    found: dict[int, int] = {}
    left = list(roots)
    while left:
        for process, group in below.get(left.pop(), ()):
            if process not in found and process not in spared:
                found[process] = group
                left.append(process)
    return found


def send_signal(processes: Mapping[int, int] | Iterable[int], number: signal.Signals) -> set[int]:
    """Send a signal. Returns the processes that could not be signalled because they belong to another user."""
    out_of_reach = set()
    for process in tuple(processes):
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            out_of_reach.add(process)
    return out_of_reach
