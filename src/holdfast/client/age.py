"""A client and a server of different ages: who gives way.

A server that a client started gives way to a newer client, if it has nothing to do. One that is in use goes on, and
is used, as long as both understand each other.
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
    """Return whether an identified server was older, and has left. Raises `WrongAge` if it stays and the client cannot
    talk to it.
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
