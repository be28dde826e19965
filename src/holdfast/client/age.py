"""A client and a server of different ages: who gives way.

A server that a client started gives way to a newer client, if it has nothing to do. One that is in use goes on, and
is used, as long as both understand each other.
"""

import json
import os
import select

from holdfast import __version__
from holdfast.client.errors import ClientError, ConnectionLost
from holdfast.client.thin import Thin
from holdfast.protocol.number import PROTOCOL

__all__ = ["WrongAge", "end_of", "gives_way"]

_PATIENCE = 5.0
_REPLACE = b'{"command":"replace"}'


class WrongAge(ClientError):
    """Client and server are of different ages and do not understand each other."""


def gives_way(thin: Thin, seconds: float = _PATIENCE) -> bool:
    """Whether the server was older, and has left. Raises `WrongAge` if it stays and cannot be understood."""
    try:
        _, body = thin.request("GET", "/v1/version", timeout=seconds)
    except ConnectionLost:
        # It has left by itself.
        return True
    try:
        known = json.loads(body)
        version, protocol, process = str(known["version"]), int(known["protocol"]), int(known["pid"])
    except (ValueError, KeyError, TypeError):
        # Whatever it is, the next request tells more.
        return False
    if protocol > PROTOCOL:
        raise WrongAge(f"The server is newer ({version}) than this command ({__version__}): update it.")
    is_older = protocol < PROTOCOL or _parts(version) < _parts(__version__)
    if is_older and _has_left(thin, process):
        return True
    if protocol < PROTOCOL:
        raise WrongAge(
            f"A server of an older version ({version}) is at work: wait for its runs, "
            "or stop it with holdfast server stop --force."
        )
    return False


def _parts(version: str) -> tuple[int, ...]:
    """Of a version such as 1.2.3; one that reads otherwise counts as new."""
    parts = version.split(".")
    return tuple(map(int, parts)) if all(part.isascii() and part.isdigit() for part in parts) else (1 << 30,)


def _has_left(thin: Thin, process: int) -> bool:
    """Ask it to leave, and wait until it has."""
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
    """A descriptor that becomes readable when the process ends, where there is such a thing."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):
        return None
