"""A tag that every process of a command inherits, so that it is found without its parent, session or environment.

The tag is the hard limit RLIMIT_LOCKS. Linux has not enforced this limit since 2.4.25, but still copies it on fork,
keeps it through exec, shows it in `/proc/PID/limits`, and lets an unprivileged process lower it but never raise it.
`env -i`, `setsid` and a double fork do not change it. A process that lowers it on purpose is not found (SECURITY.md).
"""

import contextlib
import itertools
import os
import resource
import secrets
import signal
import sys
import time
from collections.abc import Iterator

from holdfast.workspace.process.guard_system import is_running, process_ids

__all__ = [
    "cgroup_of_tree",
    "create_cgroups",
    "join_cgroup",
    "kill_cgroup",
    "kill_orphaned",
    "kill_tagged",
    "new_tag",
    "orphaned_processes",
    "remove_cgroup",
    "set_tag",
    "tag_of_tree",
]


_RLIMIT_LOCKS = 10
_LIMITS_LINE = b"\nMax file locks"
_MAGIC = 0x0F57
_TREE_BITS = 20
"""Bits for the number of a tree; above them are 8 for the guard, 22 for the server's process id, and the magic."""
_GUARD_BITS = 8
_PID_SHIFT = _TREE_BITS + _GUARD_BITS
_PID_MASK = (1 << 22) - 1
_MAGIC_SHIFT = _PID_SHIFT + 22
# Counted, so that a guard that replaces another one of the same server never shares its tag. The random start makes it
# unlikely that a later server with the same process id does.
_guard_numbers = itertools.count(secrets.randbits(_GUARD_BITS))
_CHASE_QUIET_TIME = 0.01
_KILL_TIMEOUT = 5.0


def new_tag() -> int:
    """Return a tag for one guard of this process; 0 if tags cannot be used: not Linux, or inside a tagged tree."""
    if sys.platform != "linux" or resource.getrlimit(_RLIMIT_LOCKS)[1] != resource.RLIM_INFINITY:
        return 0
    server = (os.getpid() & _PID_MASK) << _PID_SHIFT
    return _MAGIC << _MAGIC_SHIFT | server | (next(_guard_numbers) % (1 << _GUARD_BITS)) << _TREE_BITS


def tag_of_tree(tag: int, number: int) -> int:
    """Return the tag of one tree of a guard."""
    return tag | 1 + number % ((1 << _TREE_BITS) - 1) if tag else 0


def set_tag(tag: int) -> None:
    """Tag this process and all that it will start."""
    if tag:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(_RLIMIT_LOCKS, (tag, tag))


def kill_tagged(tag: int, mark: bytes = b"", seconds: float = _KILL_TIMEOUT) -> tuple[int, tuple[int, ...]]:
    """Kill all processes with the tag of a tree, or of any tree of a guard, or with `mark` in their environment,
    until two searches find none.

    Returns the number of killed processes, and the ids of those still running: they belong to another user, or are
    new.
    """
    until = time.monotonic() + seconds
    killed: set[int] = set()
    refused: set[int] = set()
    found: set[int] = set()
    quiet_searches = 0
    # One search is not enough: a process may fork behind the position of the search.
    while quiet_searches < 2 and time.monotonic() < until:
        found = {process for process in process_ids() if _is_tagged(process, tag, mark)}
        for process in found:
            (killed if _kill(process, tag, mark) else refused).add(process)
        chased = _kill_forking(tag) if tag else set()
        killed |= chased
        # Processes of another user are found every time and must not prolong the search.
        quiet_searches = 0 if chased or found - refused else quiet_searches + 1
    return len(killed), tuple(sorted(refused | ((found - killed) if quiet_searches < 2 else set())))


def orphaned_processes() -> dict[int, str]:
    """Return processes of dead servers, with their command lines."""
    found = {}
    for process in process_ids():
        tag = _tag_of(process)
        if tag >> _MAGIC_SHIFT == _MAGIC and is_running(process) and _is_orphaned(process, tag):
            with contextlib.suppress(OSError), open(f"/proc/{process}/cmdline", "rb") as file:
                found[process] = file.read().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    return found


def kill_orphaned() -> None:
    """Kill the processes of dead servers."""
    for tag in {_tag_of(process) for process in orphaned_processes()}:
        kill_tagged(tag)


def _is_orphaned(process: int, tag: int) -> bool:
    """Return whether the server in the tag is dead. In another PID namespace its id has another meaning."""
    server = tag >> _PID_SHIFT & _PID_MASK
    try:
        is_same = os.readlink(f"/proc/{process}/ns/pid") == os.readlink("/proc/self/ns/pid")
    except OSError:
        return False
    return is_same and not is_running(server)


def _tag_of(process: int) -> int:
    """Return the RLIMIT_LOCKS of a process, which may be a tag; 0 if it cannot be read."""
    try:
        with open(f"/proc/{process}/limits", "rb", buffering=0) as file:
            line = file.read(4_096).partition(_LIMITS_LINE)[2].partition(b"\n")[0]
        return int(line.split()[1])
    except (OSError, ValueError, IndexError):
        return 0


def _is_tagged(process: int, tag: int, mark: bytes) -> bool:
    shift = _ignored_bits(tag)
    if tag and _tag_of(process) >> shift == tag >> shift:
        return is_running(process)
    if mark and process != os.getpid():
        with contextlib.suppress(OSError), open(f"/proc/{process}/environ", "rb") as file:
            return mark in file.read() and is_running(process)
    return False


def _kill(process: int, tag: int, mark: bytes) -> bool:
    """Kill a process and its group. False if that is not permitted. The check after opening rules out a reused id."""
    with _pidfd(process) as handle:
        if handle < 0 or not _is_tagged(process, tag, mark):
            return True
        try:
            group = os.getpgid(process)
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        except ProcessLookupError:
            return True
        except PermissionError:
            return False
        # A group is within one session, and a command has its own sessions. Signalling the whole group leaves no
        # member time to fork.
        if tag and group != os.getpgrp():
            with contextlib.suppress(OSError):
                os.killpg(group, signal.SIGKILL)
        return True


@contextlib.contextmanager
def _pidfd(process: int) -> Iterator[int]:
    """Open a pidfd; -1 if the process is gone."""
    try:
        handle = os.pidfd_open(process)
    except OSError:
        handle = -1
    try:
        yield handle
    finally:
        if handle >= 0:
            os.close(handle)


def _kill_forking(tag: int) -> set[int]:
    """Kill processes that fork and exit at once: each is gone before a search reaches it, but the newest process id
    of the system leads to the next one. Ends when none was found for `_CHASE_QUIET_TIME` seconds.
    """
    killed: set[int] = set()
    shift = _ignored_bits(tag)
    until = time.monotonic() + _CHASE_QUIET_TIME
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/loadavg", "rb", buffering=0) as newest:
        while (now := time.monotonic()) < until:
            newest.seek(0)
            process = int(newest.read(256).split()[4])
            if process not in killed and _tag_of(process) >> shift == tag >> shift:
                with contextlib.suppress(OSError):
                    os.kill(process, signal.SIGKILL)
                    until = now + _CHASE_QUIET_TIME
                killed.add(process)
    return killed


def _ignored_bits(tag: int) -> int:
    """Return the number of bits to ignore in a comparison: those of the tree, if the tag is a guard's."""
    return 0 if tag % (1 << _TREE_BITS) else _TREE_BITS


# Control groups: each command gets one if this user can create them, and the kernel kills it as a whole.


def create_cgroups(tag: int) -> str:
    """Create a directory for the groups of one guard below its own group. Returns an empty string if
    that is impossible.
    """
    own = _own_cgroup()
    if not own or not tag:
        return ""
    groups = os.path.join(own, f"holdfast-{tag:x}")
    try:
        os.mkdir(groups)
    except OSError:
        return ""
    # `cgroup.kill` exists since Linux 5.14.
    if os.path.exists(os.path.join(groups, "cgroup.kill")) and _can_join(groups):
        return groups
    remove_cgroup(groups)
    return ""


def cgroup_of_tree(groups: str, tag: int) -> str:
    """Return the path of a tree's group."""
    return os.path.join(groups, f"{tag:x}") if groups else ""


def join_cgroup(group: str) -> None:
    """Move this process, which has no children yet, to a new group."""
    if group:
        with contextlib.suppress(OSError):
            os.mkdir(group)
            _write(group, "cgroup.procs", "0")


def kill_cgroup(group: str) -> None:
    """Kill every process in a group and in those below it."""
    if group:
        with contextlib.suppress(OSError):
            _write(group, "cgroup.kill", "1")


def remove_cgroup(group: str) -> None:
    """Remove a group and those below it, where they are empty."""
    if not group:
        return
    with contextlib.suppress(OSError):
        for below in [entry.path for entry in os.scandir(group) if entry.is_dir(follow_symlinks=False)]:
            remove_cgroup(below)
        os.rmdir(group)


def _own_cgroup() -> str:
    """Return the directory of this process's group; empty if it is not visible."""
    try:
        with open("/proc/self/cgroup", encoding="utf-8") as file:
            inside = next((line[3:].rstrip("\n") for line in file if line.startswith("0::/")), "")
        with open("/proc/self/mountinfo", encoding="utf-8") as file:
            mounts = [(fields[3], fields[4]) for line in file if " - cgroup2 " in line and (fields := line.split())]
    except OSError:
        return ""
    for root, place in mounts:
        if inside == root or inside.startswith(root.rstrip("/") + "/"):
            return place + inside[len(root.rstrip("/")) :].rstrip("/")
    return ""


def _can_join(group: str) -> bool:
    """Try to move a process: permission to create a group does not imply permission to move a process into it."""
    child = os.fork()
    if child == 0:
        try:
            _write(group, "cgroup.procs", "0")
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitpid(child, 0)[1] == 0


def _write(group: str, name: str, text: str) -> None:
    with open(os.path.join(group, name), "w", encoding="ascii") as file:
        file.write(text)
