"""Limits of the number of open connections, below the number of descriptors.

Connections over the unix socket and over TCP have separate limits, so that programs that can reach the TCP port cannot
lock out the user's own clients. Streams and other long requests get most of each limit but not all: the rest is
reserved for short requests, so that a cancel still gets through when every stream is taken.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Generic, Protocol, TypeVar

from holdfast.protocol.problems import TooManyStreams

__all__ = ["ConnectionLimits", "Limited"]

_MAX_DESCRIPTORS = 65_536
_RESERVED = 8
"""One of this many connections is reserved for short requests."""


class Limited(Protocol):
    """The properties of a connection that the limits depend on."""

    is_local: bool

    @property
    def is_unasked(self) -> bool:
        """True if no request is being answered."""

    @property
    def is_incomplete(self) -> bool:
        """True if a part of the request has not arrived."""


C = TypeVar("C", bound=Limited)


class ConnectionLimits(Generic[C]):
    """The open connections, in the order in which they last received data."""

    def __init__(self) -> None:
        descriptors = _descriptors()
        # The rest is for files, processes and connections to providers.
        self._most = {True: descriptors // 2, False: descriptors // 4}
        self._open: dict[bool, dict[C, None]] = {True: {}, False: {}}
        self._held = {True: 0, False: 0}

    def __iter__(self) -> Iterator[C]:
        return iter((*self._open[True], *self._open[False]))

    def __bool__(self) -> bool:
        return any(self._open.values())

    def add(self, connection: C) -> C | None:
        """Add a connection. Above the limit, returns the connection to close: of those without a complete request the
        one that has received no data for the longest time, which may be the new one.
        """
        alike = self._open[connection.is_local]
        alike[connection] = None
        if len(alike) <= self._most[connection.is_local]:
            return None
        last = next((other for other in alike if other.is_unasked or other.is_incomplete), connection)
        del alike[last]
        return last

    def touch(self, connection: C) -> None:
        """Record that a connection has received data."""
        alike = self._open[connection.is_local]
        if connection in alike:
            del alike[connection]
            alike[connection] = None

    def remove(self, connection: C) -> None:
        """Remove a closed connection."""
        self._open[connection.is_local].pop(connection, None)

    @contextmanager
    def hold(self, connection: C) -> Iterator[None]:
        """Use a connection for a long request. Raises `TooManyStreams` if the rest is reserved for short ones."""
        kind = connection.is_local
        if self._held[kind] >= self._most[kind] - max(1, self._most[kind] // _RESERVED):
            raise TooManyStreams
        self._held[kind] += 1
        try:
            yield
        finally:
            self._held[kind] -= 1


def _descriptors() -> int:
    """Return the maximum number of descriptors of the process."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MAX_DESCRIPTORS if most == resource.RLIM_INFINITY else min(most, _MAX_DESCRIPTORS)
