"""What is asked of the kernel beyond Python's standard library, most of it by the guard process."""

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "CLONE_NEWIPC",
    "CLONE_NEWNET",
    "adopt_orphans",
    "descendants",
    "die_with_parent",
    "enter_namespaces",
    "give_memory_back",
    "go_on_without_parent",
    "is_running",
    "mount_proc",
    "own_children",
    "process_ids",
    "raise_loopback",
    "seal",
    "send",
    "set_title",
]

_SET_PDEATHSIG, _SET_DUMPABLE, _SET_NAME, _SET_CHILD_SUBREAPER = 1, 4, 15, 36
_CLONE_NEWNS, _CLONE_NEWUSER, _CLONE_NEWPID = 0x00020000, 0x10000000, 0x20000000
CLONE_NEWIPC, CLONE_NEWNET = 0x08000000, 0x40000000
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REC, _MS_SLAVE = 2, 4, 8, 0x4000, 0x80000
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 0x1
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def adopt_orphans(*, is_on: bool = True) -> bool:
    """Become the parent of every descendant whose own parent dies, or stop it. False where the system lacks that."""
    return sys.platform == "linux" and int(_libc.prctl(_SET_CHILD_SUBREAPER, int(is_on), 0, 0, 0)) == 0


def go_on_without_parent() -> None:
    """Who was told to pause goes on when its parent dies: there is something left to do."""
    if sys.platform == "linux":
        _check(_libc.prctl(_SET_PDEATHSIG, int(signal.SIGCONT), 0, 0, 0), "go on")


def die_with_parent(parent: int) -> None:
    """Let the kernel kill this process when its parent ends. What it starts is not concerned."""
    if sys.platform == "linux":
        _check(_libc.prctl(_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "die with the parent")
        if os.getppid() != parent:
            os._exit(127)


def seal() -> None:
    """Let no other process of the same user look into this one: its environment, its memory, its descriptors."""
    if sys.platform == "linux":
        _check(_libc.prctl(_SET_DUMPABLE, 0, 0, 0, 0), "seal")


def set_title(title: str) -> None:
    """Show another name and command line for this process. The command line can only become shorter."""
    with open("/proc/self/stat", "rb") as file:
        first, end = map(int, file.read().rpartition(b")")[2].split()[45:47])
    text = title.encode()[: end - first - 1]
    ctypes.memset(first, 0, end - first)
    ctypes.memmove(first, text, len(text))
    _check(_libc.prctl(_SET_NAME, text, 0, 0, 0), "title")


def give_memory_back() -> None:
    """Large blocks leave this process when they are freed. Left alone, glibc learns from each that is freed to keep
    blocks of its size, and a few huge prompts stay in memory for good.
    """
    if hasattr(_libc, "mallopt"):
        _libc.mallopt(_MMAP_THRESHOLD, 1 << 20)
        _libc.mallopt(_TRIM_THRESHOLD, 8 << 20)


def enter_namespaces(*, as_user: bool, extra: int = 0) -> None:
    """The next child of this process is the init of a PID namespace of its own, with mounts of its own.

    Who is not root needs a user namespace for that. In it they are who they were, but everybody else is nobody:
    `sudo` does not work, and `ssh` may not like its settings. So this happens only with `as_user`.
    """
    flags = _CLONE_NEWPID | _CLONE_NEWNS | extra
    user, group = os.geteuid(), os.getegid()
    if _libc.unshare(flags) == 0:
        return
    if not as_user:
        _check(-1, "unshare")
    _check(_libc.unshare(flags | _CLONE_NEWUSER), "unshare")
    for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
        with open(f"/proc/self/{name}", "w", encoding="ascii") as file:
            file.write(text)


def _mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    texts = [os.fsencode(text) if text else None for text in (source, target, kind)]
    _check(_libc.mount(*texts, ctypes.c_ulong(flags), data.encode() or None), f"mount {target}")


def mount_proc() -> None:
    """Let `/proc` show the processes of this PID namespace. What is mounted here is not seen outside."""
    _mount("", "/", "", _MS_REC | _MS_SLAVE)
    _mount("proc", "/proc", "proc", _MS_NOSUID | _MS_NODEV | _MS_NOEXEC)


def raise_loopback() -> None:
    """Let a fresh network namespace talk to itself."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))


def process_ids() -> list[int]:
    """All processes that can be seen. Empty where the system does not list them in `/proc`."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdecimal()]
    except FileNotFoundError:
        return []


def is_running(process: int) -> bool:
    """Whether a process exists and has not ended."""
    try:
        with open(f"/proc/{process}/stat", "rb", buffering=0) as file:
            return file.read(4_096).rpartition(b")")[2].split()[0] not in {b"Z", b"X"}
    except (OSError, IndexError):
        return False


def _processes() -> Iterator[tuple[int, int, int]]:
    """Process, parent and group of everything that runs. Those that have ended and wait to be noticed are left out."""
    for process in process_ids():
        with contextlib.suppress(OSError):
            with open(f"/proc/{process}/stat", "rb") as file:
                fields = file.read().rpartition(b")")[2].split()
            if fields[0] not in {b"Z", b"X"}:
                yield process, int(fields[1]), int(fields[2])


def own_children() -> set[int]:
    """The children of this process, in one quick read. Not every kernel tells them; then there are none."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return {int(name) for name in file.read().split()}
    except OSError:
        return set()


def descendants(roots: Iterable[int], spare: Iterable[int] = ()) -> dict[int, int]:
    """All that runs below some processes, with its groups; not below the spared ones, nor those themselves."""
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


def send(processes: Mapping[int, int] | Iterable[int], number: signal.Signals) -> set[int]:
    """Signal processes. Answers those that may not be signalled by us: they belong to another user."""
    out_of_reach = set()
    for process in tuple(processes):
        try:
            os.kill(process, number)
        except ProcessLookupError:
            pass
        except PermissionError:
            out_of_reach.add(process)
    return out_of_reach
