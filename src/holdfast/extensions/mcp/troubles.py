"""Errors of MCP servers and their messages. Imports nothing slow."""

from collections.abc import Iterator

from holdfast.domain.errors import BadRequest, HoldfastError, ToolError
from holdfast.workspace.secrets import redacted

__all__ = [
    "CallFailed",
    "CannotBegin",
    "Expired",
    "Gone",
    "LoginFailed",
    "LoginNeeded",
    "innermost",
    "sentence",
]

_LONGEST = 500
_BROKEN = {
    "ConnectError": "Nobody answers at its address.",
    "ConnectTimeout": "Nobody answers at its address.",
    "ReadError": "The connection broke off.",
    "WriteError": "The connection broke off.",
    "CloseError": "The connection broke off.",
    "RemoteProtocolError": "The connection broke off.",
}


class CannotBegin(HoldfastError):
    """It cannot be started as it is configured: correct its settings."""


class Gone(HoldfastError):
    """The connection has ended."""


class Expired(Gone):
    """The server does not know this connection any more, and has done nothing."""


class LoginNeeded(HoldfastError):
    """The server wants a login."""


class LoginFailed(BadRequest):
    """The login did not succeed: try again."""


class CallFailed(ToolError):
    """The server did not do what it was asked."""


def innermost(error: BaseException) -> Iterator[BaseException]:
    """Yield the leaf exceptions of an exception group, or the exception itself."""
    if isinstance(error, BaseExceptionGroup):
        for inside in error.exceptions:
            yield from innermost(inside)
    else:
        yield error


def sentence(error: BaseException) -> str:
    """Return a one-line message for users, shortened and without secrets."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    if (status := getattr(getattr(error, "response", None), "status_code", 0)) != 0:
        text = f"It answered with status {status}."
    elif kind in _BROKEN:
        # Matched by name because httpx2 is not loaded here. Its own messages are written for programmers.
        text = _BROKEN[kind]
    elif not isinstance(error, HoldfastError):
        text = f"{kind}: {text}" if text else kind
    text = redacted(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
