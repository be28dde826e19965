"""The sentinel: a second supervisor that is no ancestor of any command.

A command can kill its keeper and its guard, which are its parent and grandparent, at the same moment, and the server
may be killed before it has reacted. The sentinel has its own session and is not a parent of any command. It watches
server and guard through pidfds and, when one of them dies, kills every process with the guard's tag. It has a
different title, so that a command that kills all processes that look like its guard does not hit it.
"""

import contextlib
import os
import select
import time
from typing import NoReturn

from holdfast.workspace import guard_system as system
from holdfast.workspace.guard_cgroup import kill_group, remove_group
from holdfast.workspace.guard_tag import kill_leftovers, kill_tagged

__all__ = ["start_sentinel"]

_ENDING = 5.0
_ROUND = 0.05


def start_sentinel(server: int, tag: int, groups: str) -> int:
    """Start a sentinel for this process, the guard. Returns a pidfd of it, -1 if there can be none.

    Called while this process does not adopt orphans, so that the sentinel does not become its child.
    """
    if not tag:
        return -1
    reading, writing = os.pipe()
    try:
        first = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        return -1
    if first == 0:
        _detach(server, os.getppid(), tag, groups, writing)
    os.close(writing)
    os.waitpid(first, 0)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    try:
        return os.pidfd_open(int(said))
    except (OSError, ValueError):
        return -1


def _detach(server: int, guard: int, tag: int, groups: str, writing: int) -> NoReturn:
    try:
        os.setsid()
        second = os.fork()
        if second:
            os.write(writing, str(second).encode())
            os._exit(0)
        # Inherited descriptors must be closed: the guard's connections have to close when the guard dies.
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        system.set_title(f"supervisor of process {server}")
        _watch(server, guard, tag, groups)
    finally:
        os._exit(0)


def _watch(server: int, guard: int, tag: int, groups: str) -> None:
    waiting = select.poll()
    guard_handle = -1
    for process in (server, guard):
        try:
            guard_handle = os.pidfd_open(process)
        except ProcessLookupError:
            break
        waiting.register(guard_handle, select.POLLIN)
    else:
        kill_leftovers()
        waiting.poll()
    until = time.monotonic() + _ENDING
    while time.monotonic() < until:
        kill_group(groups)
        kill_tagged(tag, seconds=_ROUND)
        # The guard of a dead server may still start commands that were already requested.
        if not system.is_running(guard):
            kill_group(groups)
            kill_tagged(tag)
            remove_group(groups)
            return
