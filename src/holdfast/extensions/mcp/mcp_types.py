"""Types shared by the MCP modules: connection parameters, errors, and the connection state of a server.

Imports nothing slow, in particular not `mcp`.
"""

from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias

import msgspec

from holdfast.config.redaction import redact_text
from holdfast.domain.errors import BadRequest, HoldfastError, ToolError
from holdfast.domain.extensions import McpState
from holdfast.extensions.mcp.oauth_tokens import OAuthTokens
from holdfast.workspace.process.piped_process import GuardedChild

__all__ = [
    "DISABLED",
    "INITIAL",
    "LISTS",
    "MAX_MESSAGE_BYTES",
    "CallFailed",
    "ConnectionClosed",
    "ConnectionParams",
    "ElicitationHandler",
    "ListName",
    "LoginFailed",
    "LoginNeeded",
    "McpServerState",
    "McpStartFailed",
    "ProgressHandler",
    "SessionExpired",
    "SpawnChild",
    "TransportType",
    "attempt_failed",
    "attempt_started",
    "connected",
    "connection_lost",
    "error_message",
    "leaf_exceptions",
    "login_required",
    "refresh_delay",
    "retry_delay",
]


TransportType: TypeAlias = Literal["stdio", "http", "sse"]
ListName: TypeAlias = Literal["tools", "prompts", "resources"]
LISTS: tuple[ListName, ...] = ("tools", "prompts", "resources")
MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""Maximum size of a message in bytes. Parsing a message blocks the event loop."""
_MAX_MESSAGE = 500
_TRANSPORT_ERRORS = {
    "ConnectError": "No server responds at its address.",
    "ConnectTimeout": "No server responds at its address.",
    "ReadError": "The connection was lost.",
    "WriteError": "The connection was lost.",
    "CloseError": "The connection was lost.",
    "RemoteProtocolError": "The connection was lost.",
}
FIRST_DELAY = 0.5
MAX_DELAY = 60.0
MAX_ATTEMPTS = 8
"""Maximum consecutive failures before automatic retries end."""
STABLE_AFTER = 30.0
"""A connection that lasted this many seconds resets the failure count."""


class ProgressHandler(Protocol):
    """Callback that receives the progress of a call."""

    async def __call__(self, progress: float, total: float | None, message: str | None) -> None: ...


class ElicitationHandler(Protocol):
    """Callback that forwards an elicitation to the user and returns the answer, both in protocol form."""

    def __call__(self, params: Mapping[str, Any], /) -> Coroutine[Any, Any, dict[str, Any]]: ...


class SpawnChild(Protocol):
    """Starts a child process with pipes."""

    async def __call__(
        self, arguments: Sequence[str], directory: str, environment: Mapping[str, str], *, has_input: bool
    ) -> GuardedChild: ...


class ConnectionParams(msgspec.Struct, frozen=True):
    """Connection parameters with all variables expanded. `write_log` receives stderr output, `on_list_changed` is
    called when a list has changed, and `on_disruption` when the connection may have been lost without notice.
    """

    type: TransportType
    directory: str
    spawn: SpawnChild
    write_log: Callable[[bytes], None]
    on_list_changed: Callable[[ListName], None]
    on_disruption: Callable[[], None]
    command: tuple[str, ...] = ()
    environment: Mapping[str, str] = {}
    url: str = ""
    headers: Mapping[str, str] = {}
    tokens: OAuthTokens | None = None


class McpStartFailed(HoldfastError):
    """It cannot be started as it is configured: correct its settings."""


class ConnectionClosed(HoldfastError):
    """The connection has ended."""


class SessionExpired(ConnectionClosed):
    """The server no longer knows this connection and has not processed the request."""


class LoginNeeded(HoldfastError):
    """The server requires a login."""


class LoginFailed(BadRequest):
    """The login failed: try again."""


class CallFailed(ToolError):
    """The server did not process the request."""


def leaf_exceptions(error: BaseException) -> Iterator[BaseException]:
    """Yield the leaf exceptions of an exception group, or the exception itself."""
    if isinstance(error, BaseExceptionGroup):
        for inside in error.exceptions:
            yield from leaf_exceptions(inside)
    else:
        yield error


def error_message(error: BaseException) -> str:
    """Return a one-line message for users, shortened and without secrets."""
    text = " ".join(str(error).split())
    kind = type(error).__name__
    if (status := getattr(getattr(error, "response", None), "status_code", 0)) != 0:
        text = f"It answered with status {status}."
    elif kind in _TRANSPORT_ERRORS:
        # Matched by name because httpx2 is not loaded here. Its own messages are written for programmers.
        text = _TRANSPORT_ERRORS[kind]
    elif not isinstance(error, HoldfastError):
        text = f"{kind}: {text}" if text else kind
    text = redact_text(text)
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 1] + "…"


class McpServerState(msgspec.Struct, frozen=True):
    """State of a server. `delay` is the time in seconds before the next attempt; None means on request only."""

    state: McpState
    reason: str = ""
    failures: int = 0
    delay: float | None = None


DISABLED = McpServerState("disabled")
INITIAL = McpServerState("starting", delay=0.0)
"""Initial state, before the first attempt."""


def retry_delay(failures: int) -> float | None:
    """Return the retry delay: doubles from `FIRST_DELAY` to `MAX_DELAY`; None after `MAX_ATTEMPTS` failures."""
    if failures >= MAX_ATTEMPTS:
        return None
    return min(FIRST_DELAY * 2.0 ** max(0, failures - 1), MAX_DELAY)


def refresh_delay(last: float, *, is_quiet: bool) -> float:
    """Return the delay before lists are read again. It doubles while the server keeps announcing changes."""
    return FIRST_DELAY if is_quiet else min(last * 2.0, MAX_DELAY)


def attempt_started(status: McpServerState) -> McpServerState:
    """Start an attempt. The last failure reason is kept until an attempt succeeds."""
    return McpServerState("starting", status.reason, status.failures)


def connected(status: McpServerState) -> McpServerState:
    """Enter the connected state. The failure count is kept until the connection has lasted `STABLE_AFTER` seconds."""
    return McpServerState("connected", failures=status.failures)


def attempt_failed(status: McpServerState, reason: str, *, is_final: bool = False) -> McpServerState:
    """Record a failed attempt. `is_final` disables automatic retries."""
    failures = status.failures + 1
    return McpServerState("error", reason, failures, None if is_final else retry_delay(failures))


def connection_lost(status: McpServerState, reason: str, lasted: float) -> McpServerState:
    """Record the end of a connection that lasted `lasted` seconds."""
    before = 0 if lasted >= STABLE_AFTER else status.failures
    return attempt_failed(McpServerState("connected", failures=before), reason)


def login_required(reason: str) -> McpServerState:
    """Enter the state that requires a login."""
    return McpServerState("needs auth", reason)
