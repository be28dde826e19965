"""Version check between a client and a running server.

A server that was started by a client exits for a newer client if it is idle. A busy server keeps running and is used as
long as the protocol versions are compatible.
"""

import os
import select

from holdfast import __version__
from holdfast.client.errors import ClientError
from holdfast.client.thin import Thin
from holdfast.protocol.number import PROTOCOL

__all__ = ["WrongAge", "end_of", "gives_way"]

_PATIENCE = 5.0
_REPLACE = b'{"command":"replace"}'


class WrongAge(ClientError):
    """Client and server are of different ages and do not understand each other."""


def gives_way(thin: Thin) -> bool:
    """Return whether an identified server was older and has exited. Raises `WrongAge` if it keeps running and its
    protocol is incompatible.
    """
    server = thin.server
    if server is None:
        return False
    if server.protocol > PROTOCOL:
        raise WrongAge(f"The server is newer ({server.version}) than this command ({__version__}): update it.")
    # A server that does not name its data directory is older, whatever version it states.
    is_older = server.protocol < PROTOCOL or not server.data_id or _parts(server.version) < _parts(__version__)
    if is_older and _has_left(thin, server.pid):
        return True
    if server.protocol < PROTOCOL:
        raise WrongAge(
            f"A server of an older version ({server.version}) is at work: wait for its runs, "
            "or stop it with holdfast server stop --force."
        )
    return False


def _parts(version: str) -> tuple[int, ...]:
    """Parse a version such as 1.2.3. Any other format counts as newer."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdigit() for part in parts) else (1 << 30,)


def _has_left(thin: Thin, process: int) -> bool:
    """Request the exit of the server and wait for it. Returns whether the server agreed."""
    watch = end_of(process)
    try:
        status, _ = thin.request("POST", "/v1/control", body=_REPLACE)
        if not 200 <= status < 300:
            return False
        thin.close()
        if watch is not None:
            select.select([watch], [], [], _PATIENCE)
        return True
    finally:
        if watch is not None:
            os.close(watch)


def end_of(process: int) -> int | None:
    """Return a descriptor that becomes readable when the process ends, or None where that is not supported."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return None
