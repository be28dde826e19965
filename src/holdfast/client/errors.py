"""Errors between a client and its server. Part of the single error hierarchy.

HoldfastError
└── ClientError
    ├── Unreachable        no server responds: nothing was requested
    │   └── AllFailed      the same for a list of addresses (`failover.py`)
    ├── ConnectionLost     the request was sent, and there was no response: its effect is unknown
    ├── TimedOut           the same, after the caller's time limit
    ├── BrokenResponse     the response is not valid
    ├── UnsafePath         another user could access the directory of the socket
    ├── StartFailed        a server was started and did not become ready
    └── ServerProblem      the server returned an error
"""

import json

from holdfast.domain.errors import HoldfastError

__all__ = [
    "BrokenResponse",
    "ClientError",
    "ConnectionLost",
    "ServerProblem",
    "StartFailed",
    "TimedOut",
    "Unreachable",
    "UnsafePath",
    "message_of",
]


class ClientError(HoldfastError):
    """The client failed."""


class Unreachable(ClientError):
    """No Holdfast server answers: start one with `holdfast serve`, or check the address."""

    def __init__(self, message: str | None = None, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason
        """The reason without the address, if it is known."""


class ConnectionLost(ClientError):
    """The connection to the server broke before the response; the request may or may not have been executed."""


class TimedOut(ClientError):
    """The server did not respond in time; the request may or may not have been executed. See `holdfast server`."""


class BrokenResponse(ClientError):
    """The response cannot be decoded: is this a Holdfast server?"""


class UnsafePath(ClientError):
    """The directory of the socket is not safe: you must own it, and its mode must be 0700."""


class StartFailed(ClientError):
    """The server could not be started."""


class ServerProblem(ClientError):
    """The server answered with an error."""

    def __init__(self, status: int, message: str | None = None) -> None:
        super().__init__(f"{message} ({status})" if message else f"The server answered with status {status}.")
        self.status = status
        self.message = message or ""


def message_of(body: bytes) -> str | None:
    """Return the message of an error body, or None if it has none; the status is then shown alone."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError):
        return None
    message = found.get("message") if isinstance(found, dict) else None
    return message if isinstance(message, str) and message else None
