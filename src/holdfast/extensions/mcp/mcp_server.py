"""One MCP server and its owner task, which connects, keeps the lists current, and reconnects.

Theory of operation. `run` is the owner task of a server. It waits until an attempt is due or requested, opens a
connection, reads the lists (tools, prompts, resources), serves the connection until it ends, records the reason in
`status`, and starts again. The library binds a connection to the task that opened it, so only the owner opens and
closes connections. Other tasks obtain the current one with `connection()`, and report its end with `connection.end()`;
they never close it.

`status` is computed by the pure functions of `mcp_types` and decides when the next attempt is due. Each change
of it resolves a future that all waiters share, so a waiter is woken by every change and checks its own condition
again.

Things that go wrong, and the answer to each:

* The program cannot be started as configured: no automatic retry, because only a change of the settings helps.
* An attempt fails or a connection ends: retries with increasing delays; a call starts the next attempt at once.
* The server accepts a request and never answers: the request runs in its own task and is abandoned after its time
  limit (`bounded_waits`), then the server is pinged and disconnected if it does not respond.
* The server restarts without notice: an idle connection is pinged before it is used.
* The server announces list changes without a pause: the lists are read at most once per delay, which doubles.
"""

import asyncio
import os
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import msgspec

from holdfast.config.redaction import redact_text
from holdfast.domain.errors import HoldfastError
from holdfast.domain.extensions import NEVER, McpChange, McpInfo, McpNotice
from holdfast.domain.settings import McpSettings
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.mcp import mcp_types
from holdfast.extensions.mcp.bounded_waits import DetachedWait, StartLimiter
from holdfast.extensions.mcp.mcp_types import (
    LISTS,
    CallFailed,
    ConnectionClosed,
    ConnectionParams,
    ListName,
    LoginNeeded,
    McpStartFailed,
    TransportType,
    error_message,
    leaf_exceptions,
)
from holdfast.extensions.mcp.oauth_tokens import OAuthTokens
from holdfast.extensions.mcp.tool_cache import CachedTools
from holdfast.extensions.mcp.tool_naming import is_enabled, tool_names
from holdfast.providers.shared_http_clients import in_thread
from holdfast.tasks import TaskOwner
from holdfast.workspace.process.output_capture import Output
from holdfast.workspace.process.shell_launch import command_environment

if TYPE_CHECKING:
    from holdfast.extensions.mcp.mcp_connection import McpConnection

__all__ = ["McpServer", "SharedServices", "transport_type"]

_CONNECTION_MODULE = "holdfast.extensions.mcp.mcp_connection"
PING_TIMEOUT = 10.0
"""Time limit for the response to a ping, in seconds."""
PING_AFTER_IDLE = 30.0
"""A connection that was idle for this many seconds is pinged before use."""
_MAX_ENTRIES = 256
"""Maximum entries accepted of one list."""
_LOG_BYTES = 32_768
_LAST_LINE_BYTES = 2_048
_MAX_INSTRUCTIONS = 8_192
_CHANGES: dict[ListName, McpChange] = {
    "tools": "tools_list_changed",
    "prompts": "prompts_list_changed",
    "resources": "resources_list_changed",
}
_LOGIN_REASON = "It requires a login: holdfast mcp login {}"


def transport_type(settings: McpSettings) -> TransportType:
    """Return the transport. Settings with a URL and no command mean HTTP."""
    return "http" if settings.type == "stdio" and settings.url and not settings.command else settings.type


class SharedServices(msgspec.Struct, frozen=True):
    """Services shared by the servers of a workspace. `start_limiter` limits concurrent starts, `publish` receives
    changes, and `check_server` is called with a server that may have stalled or exited.
    """

    tokens_for: Callable[[str], OAuthTokens]
    start_limiter: StartLimiter
    detached_wait: DetachedWait
    publish: Callable[["McpServer", McpChange], None]
    check_server: Callable[["McpServer"], None]


class McpServer:
    """One server. `settings` are unexpanded; variables are expanded before each attempt."""

    def __init__(
        self,
        name: str,
        settings: McpSettings,
        context: ExtensionContext,
        shared: SharedServices,
        *,
        is_client_owned: bool = False,
    ) -> None:
        self.name = name
        self.settings = settings
        self.is_client_owned = is_client_owned
        """The server belongs to a client. Variables in its settings are not expanded."""
        self.url = settings.url
        """Expanded by the first attempt."""
        self.status = mcp_types.DISABLED if settings.disabled else mcp_types.INITIAL
        self.lists: dict[ListName, tuple[dict[str, Any], ...]] = dict.fromkeys(LISTS, ())
        self.tool_names: dict[str, str] = {}
        """Tool names for models, by the server's own names."""
        self.instructions = ""
        self.has_cached_lists = False
        """True if cached lists are available, even without a connection."""
        self.attempts = 0
        self._context = context
        self._shared = shared
        self._log = Output(_LOG_BYTES)
        self._last_stderr_line = b""
        self._connection: McpConnection | None = None
        self._connected_at = NEVER
        self._stale: set[ListName] = set()
        self._stale_event = asyncio.Event()
        self._retry_event = asyncio.Event()
        self._status_changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # State

    @property
    def request_timeout(self) -> float:
        """Time limit for short requests, in seconds."""
        return float(self.settings.timeout or 10)

    @property
    def is_settled(self) -> bool:
        """True if there is nothing to wait for: the lists are known, or the first attempt is over."""
        return self.settings.disabled or self.has_cached_lists or self.status.state != "starting" or self.attempts > 1

    def info(self) -> McpInfo:
        """Return the state for clients."""
        return McpInfo(
            self.name,
            self.status.state,
            self._connected_at,
            self.status.reason,
            len(self.tool_names),
            len(self.lists["prompts"]),
            len(self.lists["resources"]),
            transport_type(self.settings),
            tuple(self.tool_names.values()),
        )

    def notice(self, change: McpChange) -> McpNotice:
        """Return a notice of this change for clients."""
        info = self.info()
        counts = info.tool_count, info.prompt_count, info.resource_count
        return McpNotice(change, self.name, info.state, info.error, *counts)

    def _publish(self, change: McpChange) -> None:
        self._shared.publish(self, change)

    def log(self) -> str:
        """Return the stderr output, with the middle left out if it is too long."""
        return self._log.excerpt(2 * _LOG_BYTES)

    def use_cached_lists(self, cached: CachedTools) -> None:
        """Use the cached lists until the server returns new ones."""
        for list_name in LISTS:
            self._store_list(list_name, list(cached.lists.get(list_name, ())))
        self.instructions = cached.instructions
        self.has_cached_lists = True

    # The owner

    async def run(self) -> None:
        """Connect and reconnect until cancelled."""
        while True:
            await self._wait_for_attempt()
            self.attempts += 1
            self._set_status(mcp_types.attempt_started(self.status))
            # A list, because `_run_connection` never returns: it stores the time here and ends with an exception.
            connected_at: list[float] = []
            try:
                await self._run_connection(connected_at)
            except Exception as error:
                lasted = asyncio.get_running_loop().time() - connected_at[0] if connected_at else None
                self._set_status(self._status_after(error, lasted))

    async def _wait_for_attempt(self) -> None:
        """Wait until the next attempt is due or requested."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.status.delay):
                await self._retry_event.wait()
        self._retry_event.clear()

    async def _run_connection(self, connected_at: list[float]) -> None:
        """Open one connection and keep it until it ends, which raises an exception."""
        self._last_stderr_line = b""
        try:
            await in_thread(_CONNECTION_MODULE)
            # The module is loaded by now. An import statement, not a look-up by name, so that types are checked.
            from holdfast.extensions.mcp.mcp_connection import open_connection  # noqa: PLC0415

            params = await self._connection_params()
            async with AsyncExitStack() as stack:
                async with self._shared.start_limiter.slot():
                    connection = await stack.enter_async_context(open_connection(params, self.request_timeout))
                    await self._load_lists(connection)
                connected_at.append(asyncio.get_running_loop().time())
                self._on_connected(connection)
                await self._serve_connection(connection)
            raise ConnectionClosed(self._with_stderr(connection.reason))
        finally:
            self._connection = None

    def _on_connected(self, connection: "McpConnection") -> None:
        self._connection = connection
        self.instructions = connection.instructions[:_MAX_INSTRUCTIONS]
        self._connected_at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        self._set_status(mcp_types.connected(self.status))

    async def _serve_connection(self, connection: "McpConnection") -> None:
        """Run the list updates until the connection ends. Requests of other tasks may hang with it; their callers bound
        them.
        """
        tasks = TaskOwner()
        tasks.start(self._refresh_lists(connection), name=f"lists of {self.name}")
        try:
            await connection.ended.wait()
        finally:
            self._connection = None
            tasks.cancel_all()
            await tasks.drain()

    async def _refresh_lists(self, connection: "McpConnection") -> None:
        """Re-read changed lists: immediately, then less and less often while the server keeps announcing changes."""
        delay = mcp_types.FIRST_DELAY
        while True:
            is_quiet = not self._stale
            await self._stale_event.wait()
            self._stale_event.clear()
            stale, self._stale = self._stale, set()
            for list_name in stale:
                await self._reload_list(connection, list_name)
            delay = mcp_types.refresh_delay(delay, is_quiet=is_quiet)
            await asyncio.sleep(delay)

    async def _reload_list(self, connection: "McpConnection", list_name: ListName) -> None:
        before = self.lists[list_name]
        try:
            listing = connection.list_all(list_name)
            items = await self._shared.detached_wait.wait(
                listing, self.request_timeout, name=f"{list_name} of {self.name}"
            )
        except TimeoutError:
            connection.end(f"It did not answer within {self.request_timeout:g} seconds.")
        except CallFailed as error:
            self.write_log(f"[{list_name} cannot be listed: {error_message(error)}]\n".encode())
        except ConnectionClosed:
            connection.end()
        else:
            self._store_list(list_name, items)
            # Crush clients respond to this notice by requesting a refresh, so it is published only if the list differs.
            if self.lists[list_name] != before:
                self._publish(_CHANGES[list_name])

    async def _load_lists(self, connection: "McpConnection") -> None:
        """Read all lists of a new connection. A list that cannot be read is treated as empty."""
        self._stale.clear()
        for list_name in LISTS:
            items: list[dict[str, Any]] = []
            if connection.has_capability(list_name):
                try:
                    async with asyncio.timeout(self.request_timeout):
                        items = await connection.list_all(list_name)
                except TimeoutError:
                    raise ConnectionClosed(
                        f"It did not list its {list_name} within {self.request_timeout:g} seconds."
                    ) from None
                except CallFailed as error:
                    self.write_log(f"[{list_name} cannot be listed: {error_message(error)}]\n".encode())
            self._store_list(list_name, items)

    def _store_list(self, list_name: ListName, items: list[dict[str, Any]]) -> None:
        known = tuple(items[:_MAX_ENTRIES])
        if list_name == "tools":
            settings = self.settings
            known = tuple(
                item for item in known if is_enabled(item["name"], settings.enabled_tools, settings.disabled_tools)
            )
            self.tool_names = tool_names(self.name, (item["name"] for item in known))
        self.lists[list_name] = known

    def _status_after(self, error: Exception, lasted: float | None) -> mcp_types.McpServerState:
        errors = list(leaf_exceptions(error))
        if any(isinstance(inside, LoginNeeded) for inside in errors):
            return mcp_types.login_required(_LOGIN_REASON.format(self.name))
        cause = next((inside for inside in errors if isinstance(inside, HoldfastError)), errors[0])
        reason = error_message(cause)
        if lasted is not None:
            return mcp_types.connection_lost(self.status, reason, lasted)
        return mcp_types.attempt_failed(
            self.status, self._with_stderr(reason), is_final=isinstance(cause, McpStartFailed)
        )

    def _with_stderr(self, reason: str) -> str:
        """Append the last stderr line of a program that has exited."""
        last = redact_text(self._last_stderr_line.decode("utf-8", "replace").strip())[:200]
        return f"{reason} Its last output: {last}" if last and transport_type(self.settings) == "stdio" else reason

    def _set_status(self, status: mcp_types.McpServerState) -> None:
        is_changed = (status.state, status.reason) != (self.status.state, self.status.reason)
        self.status = status
        if status.state != "connected":
            self._connected_at = NEVER
        # Replace the future before resolving it: woken waiters that continue to wait get the new one.
        previous, self._status_changed = self._status_changed, asyncio.get_running_loop().create_future()
        previous.set_result(None)
        if is_changed:
            self._publish("state_changed")

    def retire(self) -> None:
        """Mark the server as removed, and wake its waiters."""
        self._set_status(mcp_types.DISABLED)

    # Connection parameters

    async def _connection_params(self) -> ConnectionParams:
        """Return the connection parameters. Raises `McpStartFailed`."""
        settings = self.settings
        if not self.is_client_owned:
            settings, problems = await asyncio.to_thread(self._context.configuration.mcp, self.name)
            if problems:
                raise McpStartFailed(str(problems[0]))
        transport = transport_type(settings)
        on_disruption = partial(self._shared.check_server, self)
        params = ConnectionParams(
            transport, self._context.path, self._context.spawn, self.write_log, self.refresh, on_disruption
        )
        if transport == "stdio":
            if not settings.command:
                raise McpStartFailed(f"It has no command: set mcp.{self.name}.command, or a url.")
            environment = self._environment() | settings.env
            return msgspec.structs.replace(params, command=(settings.command, *settings.args), environment=environment)
        self.url = settings.url
        if urlsplit(settings.url).scheme not in ("http", "https") or not urlsplit(settings.url).hostname:
            raise McpStartFailed(f"Its address is not valid: mcp.{self.name}.url begins with http:// or https://.")
        has_authorization = any(name.lower() == "authorization" for name in settings.headers)
        tokens = None if settings.oauth is False or has_authorization else self._shared.tokens_for(settings.url)
        return msgspec.structs.replace(params, url=settings.url, headers=settings.headers, tokens=tokens)

    def _environment(self) -> dict[str, str]:
        """Return the environment of shell commands. It contains API keys of models only if the server's settings set
        them.
        """
        withheld, secrets = self._context.secrets()
        given = self._context.environment
        return command_environment(os.environ, given, cwd=self._context.path, withheld=withheld, secrets=secrets)

    def write_log(self, data: bytes) -> None:
        """Append to the log, and remember the last non-empty line."""
        self._log.feed(data)
        lines = data[-_LAST_LINE_BYTES:].splitlines()
        if any(line.strip() for line in lines):
            self._last_stderr_line = next(line for line in reversed(lines) if line.strip())

    # Requests

    def retry_now(self) -> None:
        """Start the next attempt now."""
        self._retry_event.set()

    def refresh(self, list_name: ListName) -> None:
        """Re-read a list soon."""
        self._stale.add(list_name)
        self._stale_event.set()

    async def wait_settled(self) -> None:
        """Wait until the lists are known, or the first attempt is over."""
        while not self.is_settled:
            await asyncio.shield(self._status_changed)

    async def wait_attempt(self) -> None:
        """Wait for the end of the current attempt, if there is one."""
        while self.status.state == "starting":
            await asyncio.shield(self._status_changed)

    async def connection(self) -> "McpConnection":
        """Return the connection, opened if necessary. Raises `CallFailed`."""
        if (connection := self._connection) is not None and not connection.ended.is_set():
            # A connection with recent traffic is not pinged.
            is_idle = asyncio.get_running_loop().time() - connection.last_message_at >= PING_AFTER_IDLE
            if not is_idle or await self._is_alive(connection):
                return connection
            connection.end("It stopped responding.")
        attempts = self.attempts + (0 if self.status.state == "starting" else 1)
        self.retry_now()
        while self._connection is None or self._connection.ended.is_set():
            if self.status.state == "disabled":
                raise CallFailed(f"The MCP server {self.name} was disabled, or its settings were changed. Try again.")
            if self.attempts >= attempts and self.status.state in ("error", "needs auth"):
                raise CallFailed(f"The MCP server {self.name} cannot be reached. {self.status.reason}")
            await asyncio.shield(self._status_changed)
        self._retry_event.clear()
        return self._connection

    async def check(self) -> None:
        """Ping the server, and end the connection if there is no response."""
        if (connection := self._connection) is not None and not await self._is_alive(connection):
            connection.end("It stopped responding.")

    async def wait_disconnected(self) -> None:
        """Wait until the owner task has recorded the end of the connection and its reason."""
        while self.status.state == "connected":
            await asyncio.shield(self._status_changed)

    async def _is_alive(self, connection: "McpConnection") -> bool:
        """Return whether the server responds to a ping, with any response."""
        try:
            await self._shared.detached_wait.wait(
                connection.ping(), min(self.request_timeout, PING_TIMEOUT), name=f"ping {self.name}"
            )
        except (TimeoutError, ConnectionClosed):
            return False
        return True
