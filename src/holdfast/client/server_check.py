"""Checks of a running server: its version, and that it serves the expected data directory, so that prompts never reach
another server.

A server that was started by a client exits for a newer client if it is idle. A busy server keeps running and is used as
long as the protocol versions are compatible.
"""

import json
import os
import select

from holdfast import __version__
from holdfast.client.errors import ClientError, TimedOut
from holdfast.client.sync_client import ServerInfo, SyncClient
from holdfast.lock_owner import LockOwner, directory_id
from holdfast.protocol import PROTOCOL

__all__ = ["VersionMismatch", "describe", "end_of", "is_server_of", "replace_outdated"]


_EXIT_TIMEOUT = 5.0
_REPLACE = b'{"command":"replace"}'
_CLOCK_ERROR = 2.0
"""Tolerance in seconds. The start time of a process is computed from the boot time, which has a
resolution of a second.
"""


class VersionMismatch(ClientError):
    """Client and server are of different ages and do not understand each other."""


def replace_outdated(client: SyncClient) -> bool:
    """Return whether an identified server was older and has exited. Raises `VersionMismatch` if it keeps running and
    its protocol is incompatible.
    """
    server = client.server
    if server is None:
        return False
    if server.protocol > PROTOCOL:
        raise VersionMismatch(f"The server is newer ({server.version}) than this command ({__version__}): update it.")
    # A server that does not name its data directory is older, whatever version it states.
    is_older = server.protocol < PROTOCOL or not server.data_id or _parts(server.version) < _parts(__version__)
    if is_older and _has_exited(client, server.pid):
        return True
    if server.protocol < PROTOCOL:
        raise VersionMismatch(
            f"A server of an older version ({server.version}) is running: wait for its runs, "
            "or stop it with holdfast server stop --force."
        )
    return False


def _parts(version: str) -> tuple[int, ...]:
    """Parse a version such as 1.2.3. Any other format counts as newer."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdigit() for part in parts) else (1 << 30,)


def _has_exited(client: SyncClient, process: int) -> bool:
    """Request the exit of the server and wait for it. Returns whether the server agreed."""
    poll = end_of(process)
    try:
        status, _ = client.request("POST", "/v1/control", body=_REPLACE)
        if not 200 <= status < 300:
            return False
        client.close()
        if poll is not None:
            select.select([poll], [], [], _EXIT_TIMEOUT)
        return True
    finally:
        if poll is not None:
            os.close(poll)


def end_of(process: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends, or None where that is not supported."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return None


def describe(client: SyncClient, seconds: float) -> ServerInfo | None:
    """Request the server's version and identity. Returns None for another program or an error. Raises `TimedOut`."""
    try:
        status, body = client.request("GET", "/v1/version", timeout=seconds)
        if not 200 <= status < 300:
            return None
        found = json.loads(body)
        version, protocol, process = str(found["version"]), int(found["protocol"]), int(found["pid"])
        return ServerInfo(version, protocol, process, str(found.get("data_id", "")))
    except TimedOut:
        raise
    except (ClientError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def is_server_of(client: SyncClient, data_dir: str, owner: LockOwner | None) -> bool:
    """Return whether the identified server has this data directory.

    Servers of earlier versions do not report it. Such a server is accepted only if it is the process in the lock file,
    and that process existed when the lock file was written, because process ids are reused.
    """
    if client.server is None:
        return False
    if client.server.data_id:
        return client.server.data_id == directory_id(data_dir)
    if owner is None or owner.socket or owner.pid != client.peer_pid():
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
