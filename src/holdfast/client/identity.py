"""Checks that the server on a socket is the one of a data directory: another one must never get its prompts.

A socket path alone proves nothing. Two data directories may share a runtime directory, a lock file outlives its server,
and a path may be taken over by another server. So the server names the id of its data directory, which the client
computes itself.
"""

import json
import os

from holdfast.client.errors import ClientError, TimedOut
from holdfast.client.thin import ServerInfo, Thin
from holdfast.lockfile import LockOwner, directory_id

__all__ = ["describe", "is_server_of"]

_CLOCK_ERROR = 2.0
"""Seconds. The start time of a process is computed from the boot time, which is known to the second."""


def describe(thin: Thin, seconds: float) -> ServerInfo | None:
    """Request the server's version and identity; None if it is no Holdfast server or refuses. Raises `TimedOut`."""
    try:
        status, body = thin.request("GET", "/v1/version", timeout=seconds)
        if not 200 <= status < 300:
            return None
        found = json.loads(body)
        version, protocol, process = str(found["version"]), int(found["protocol"]), int(found["pid"])
        return ServerInfo(version, protocol, process, str(found.get("data_id", "")))
    except TimedOut:
        raise
    except (ClientError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def is_server_of(thin: Thin, data_dir: str, owner: LockOwner | None) -> bool:
    """Return whether the identified server has this data directory.

    Servers of earlier versions do not name it. Such a server is the right one only if it is the process in the lock
    file, and that process was there when the lock file was written: process ids are used again.
    """
    if thin.server is None:
        return False
    if thin.server.data_id:
        return thin.server.data_id == directory_id(data_dir)
    if owner is None or owner.socket or owner.pid != thin.peer_pid():
        return False
    started_at = _started_at(owner.pid)
    return started_at is None or started_at <= owner.written_at + _CLOCK_ERROR


def _started_at(process: int) -> float | None:
    """Return when a process began, in seconds since the epoch; None where the system does not show it."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/stat", encoding="ascii") as file:
            booted_at = next(int(line.split()[1]) for line in file if line.startswith("btime "))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return booted_at + ticks / os.sysconf("SC_CLK_TCK")
