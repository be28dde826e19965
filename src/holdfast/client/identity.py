"""Checks that the server on a socket has the expected data directory, so that prompts never reach another server.

A socket path alone proves nothing: two data directories may share a runtime directory, a lock file outlives its server,
and a path may be reused by another server. Therefore the server reports the id of its data directory, which the client
computes itself.
"""

import json
import os

from holdfast.client.errors import ClientError, TimedOut
from holdfast.client.thin import ServerInfo, Thin
from holdfast.lockfile import LockOwner, directory_id

__all__ = ["describe", "is_server_of"]

_CLOCK_ERROR = 2.0
"""Tolerance in seconds. The start time of a process is computed from the boot time, which has a
resolution of a second.
"""


def describe(thin: Thin, seconds: float) -> ServerInfo | None:
    """Request the server's version and identity. Returns None for another program or an error. Raises `TimedOut`."""
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

    Servers of earlier versions do not report it. Such a server is accepted only if it is the process in the lock file,
    and that process existed when the lock file was written, because process ids are reused.
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
    """Return the start time of a process in seconds since the epoch, or None where it is not available."""
    try:
        with open(f"/proc/{process}/stat", encoding="utf-8", errors="replace") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        with open("/proc/stat", encoding="ascii") as file:
            booted_at = next(int(line.split()[1]) for line in file if line.startswith("btime "))
    except (OSError, ValueError, IndexError, StopIteration):
        return None
    return booted_at + ticks / os.sysconf("SC_CLK_TCK")
