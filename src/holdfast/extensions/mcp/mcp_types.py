"""Types shared by the MCP modules. Imports nothing slow, in particular not `mcp`."""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from holdfast.config.redaction import redact_text
from holdfast.domain.errors import BadRequest, HoldfastError, ToolError
from holdfast.domain.extensions import McpState
from holdfast.extensions.mcp.oauth_tokens import OAuthTokens
from holdfast.workspace.process.child_process import GuardedChild

__all__ = [
    "DISABLED",
    "LARGEST",
    "LISTS",
    "WAITING",
    "Ask",
    "CallFailed",
    "ConnectionClosed",
    "Expired",
    "ListName",
    "LoginFailed",
    "LoginNeeded",
    "McpServerState",
    "Plan",
    "Progress",
    "Spawn",
    "StartFailed",
    "Way",
    "barred",
    "begun",
    "failed",
    "innermost",
    "joined",
    "lost",
    "pause_after",
    "pause_between",
    "sentence",
]


Way: TypeAlias = Literal["stdio", "http", "sse"]
ListName: TypeAlias = Literal["tools", "prompts", "resources"]
LISTS: tuple[ListName, ...] = ("tools", "prompts", "resources")
LARGEST = 16 * 1024 * 1024
"""Maximum size of a message in bytes. Parsing a message blocks the event loop."""


class Progress(Protocol):
    """Callback that receives the progress of a call."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None: ...


class Ask(Protocol):
    """Callback that forwards an elicitation to the user and returns the answer, both in protocol form."""

    def __call__(self, wanted: Mapping[str, Any], /) -> Coroutine[Any, Any, dict[str, Any]]: ...


class Spawn(Protocol):
    """Starts a child process with pipes."""

    async def __call__(
        self, arguments: Sequence[str], directory: str, environment: Mapping[str, str], *, has_input: bool
    ) -> GuardedChild: ...


class Plan(msgspec.Struct, frozen=True):
    """Connection parameters with all variables expanded. `said` receives stderr output, `changed` is called when a list
    has changed, and `faltered` when the connection may have been lost without notice.
    """

    type: Way
    directory: str
    spawn: Spawn
    said: Callable[[bytes], None]
    changed: Callable[[ListName], None]
    faltered: Callable[[], None]
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    url: str = ""
    headers: Mapping[str, str] = {}
    tokens: OAuthTokens | None = None


# Errors of MCP servers and their messages. Imports nothing slow.

_LONGEST = 500
_BROKEN = {
    "ConnectError": "Nobody answers at its address.",
    "ConnectTimeout": "Nobody answers at its address.",
    "ReadError": "The connection broke off.",
    "WriteError": "The connection broke off.",
    "CloseError": "The connection broke off.",
    "RemoteProtocolError": "The connection broke off.",
}


class StartFailed(HoldfastError):
    """It cannot be started as it is configured: correct its settings."""


class ConnectionClosed(HoldfastError):
    """The connection has ended."""


class Expired(ConnectionClosed):
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
    text = redact_text(text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


# Connection state of an MCP server: status, reason, and time of the next attempt. Pure.

FIRST_PAUSE = 0.5
LONGEST_PAUSE = 60.0
TRIES = 8
"""Maximum consecutive failures before automatic retries end."""
STEADY = 30.0
"""A connection that lasted this many seconds resets the failure count."""


class McpServerState(msgspec.Struct, frozen=True):
    """State of a server. `pause` is the delay in seconds before the next attempt; None means on request only."""

    state: McpState
    reason: str = ""
    failures: int = 0
    pause: float | None = None


DISABLED = McpServerState("disabled")
WAITING = McpServerState("starting", pause=0.0)
"""Initial state, before the first attempt."""


def pause_after(failures: int) -> float | None:
    """Return the retry delay: doubles from `FIRST_PAUSE` to `LONGEST_PAUSE`; None after `TRIES` failures."""
    if failures >= TRIES:
        return None
    return min(FIRST_PAUSE * 2.0 ** max(0, failures - 1), LONGEST_PAUSE)


def pause_between(last: float, *, is_quiet: bool) -> float:
    """Return the delay before lists are read again. It doubles while the server keeps announcing changes."""
    return FIRST_PAUSE if is_quiet else min(last * 2.0, LONGEST_PAUSE)


def begun(standing: McpServerState) -> McpServerState:
    """Start an attempt. The last failure reason is kept until an attempt succeeds."""
    return McpServerState("starting", standing.reason, standing.failures)


def joined(standing: McpServerState) -> McpServerState:
    """Enter the connected state. The failure count is kept until the connection has lasted `STEADY` seconds."""
    return McpServerState("connected", failures=standing.failures)


def failed(standing: McpServerState, reason: str, *, is_final: bool = False) -> McpServerState:
    """Record a failed attempt. `is_final` disables automatic retries."""
    failures = standing.failures + 1
    return McpServerState("error", reason, failures, None if is_final else pause_after(failures))


def lost(standing: McpServerState, reason: str, lasted: float) -> McpServerState:
    """Record the end of a connection that lasted `lasted` seconds."""
    before = 0 if lasted >= STEADY else standing.failures
    return failed(McpServerState("connected", failures=before), reason)


def barred(reason: str) -> McpServerState:
    """Enter the state that requires a login."""
    return McpServerState("needs auth", reason)
