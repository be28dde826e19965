"""Control groups: each command gets one if this user can create them, and the kernel kills it as a whole.

A process stays in the group of its parent regardless of its parents, session or environment, unless it moves itself
to another group deliberately. Only version 2 is used: one write to `cgroup.kill` reaches every process.
"""

import contextlib
import os

__all__ = ["create_groups", "group_of_tree", "join", "kill_group", "remove_group"]


def create_groups(tag: int) -> str:
    """Create a directory for the groups of one guard below its own group. Returns an empty string if
    that is impossible.
    """
    own = _own_group()
    if not own or not tag:
        return ""
    groups = os.path.join(own, f"holdfast-{tag:x}")
    try:
        os.mkdir(groups)
    except OSError:
        return ""
    if os.path.exists(os.path.join(groups, "cgroup.kill")) and _can_join(groups):
        return groups
    remove_group(groups)
    return ""


def group_of_tree(groups: str, tag: int) -> str:
    """Return the path of a tree's group."""
    return os.path.join(groups, f"{tag:x}") if groups else ""


def join(group: str) -> None:
    """Move this process, which has no children yet, to a new group."""
    if group:
        with contextlib.suppress(OSError):
            os.mkdir(group)
            _write(group, "cgroup.procs", "0")


def kill_group(group: str) -> None:
    """Kill every process in a group and in those below it."""
    if group:
        with contextlib.suppress(OSError):
            _write(group, "cgroup.kill", "1")


def remove_group(group: str) -> None:
    """Remove a group and those below it, where they are empty."""
    if not group:
        return
    with contextlib.suppress(OSError):
        for below in [entry.path for entry in os.scandir(group) if entry.is_dir(follow_symlinks=False)]:
            remove_group(below)
        os.rmdir(group)


def _own_group() -> str:
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
