"""One MCP server and its owner task, which connects, keeps the lists current, and reconnects.

The connection is opened and closed in that task only. Other tasks obtain it with `connection()` and report its end with
`connection.end()`.
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
from holdfast.extensions.mcp.detached_wait import DetachedWait, StartLimiter
from holdfast.extensions.mcp.mcp_types import (
    LISTS,
    CallFailed,
    ConnectionClosed,
    ListName,
    LoginNeeded,
    Plan,
    StartFailed,
    Way,
    innermost,
    sentence,
)
from holdfast.extensions.mcp.oauth_tokens import OAuthTokens
from holdfast.extensions.mcp.tool_cache import CachedTools
from holdfast.extensions.mcp.tool_naming import is_wanted, tool_names
from holdfast.providers.http_client import in_thread
from holdfast.tasks import TaskOwner
from holdfast.workspace.process.output import Output
from holdfast.workspace.process.shell_call import command_environment

if TYPE_CHECKING:
    from holdfast.extensions.mcp.mcp_connection import Connection

__all__ = ["McpServer", "Shared", "way_of"]

WIRE = "holdfast.extensions.mcp.mcp_connection"
PING = 10.0
"""Time limit for the response to a ping, in seconds."""
IDLE = 30.0
"""A connection that was idle for this many seconds is pinged before use."""
_MOST = 256
"""Maximum entries accepted of one list."""
_LOG = 32_768
_LAST = 2_048
_LONGEST_WORDS = 8_192
_CHANGES: dict[ListName, McpChange] = {
    "tools": "tools_list_changed",
    "prompts": "prompts_list_changed",
    "resources": "resources_list_changed",
}
_NEEDS_LOGIN = "It wants a login: holdfast mcp login {}"


def way_of(settings: McpSettings) -> Way:
    """Return the transport. Settings with a URL and no command mean HTTP."""
    return "http" if settings.type == "stdio" and settings.url and not settings.command else settings.type


class Shared(msgspec.Struct, frozen=True):
    """Services shared by the servers of a workspace. `doors` limits concurrent starts, `tell` receives changes, and
    `look_after` is called with a server that may have stalled or exited.
    """

    tokens_for: Callable[[str], OAuthTokens]
    doors: StartLimiter
    patience: DetachedWait
    tell: Callable[["McpServer", McpChange], None]
    look_after: Callable[["McpServer"], None]


class McpServer:
    """One server. `settings` are unexpanded; variables are expanded before each attempt."""

    def __init__(
        self, name: str, settings: McpSettings, ground: ExtensionContext, shared: Shared, *, is_lent: bool = False
    ) -> None:
        self.name = name
        self.settings = settings
        self.is_lent = is_lent
        """The server belongs to a client. Variables in its settings are not expanded."""
        self.url = settings.url
        """Expanded by the first attempt."""
        self.standing = mcp_types.DISABLED if settings.disabled else mcp_types.WAITING
        self.lists: dict[ListName, tuple[dict[str, Any], ...]] = dict.fromkeys(LISTS, ())
        self.names: dict[str, str] = {}
        """Tool names for models, by the server's own names."""
        self.instructions = ""
        self.is_remembered = False
        """True if cached lists are available, even without a connection."""
        self.tries = 0
        self._ground = ground
        self._shared = shared
        self._log = Output(_LOG)
        self._last = b""
        self._connection: Connection | None = None
        self._connected_at = NEVER
        self._stale: set[ListName] = set()
        self._bell = asyncio.Event()
        self._wake = asyncio.Event()
        self._news: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    # State

    @property
    def seconds(self) -> float:
        """Time limit for short requests, in seconds."""
        return float(self.settings.timeout or 10)

    @property
    def is_settled(self) -> bool:
        """True if there is nothing to wait for: the lists are known, or the first attempt is over."""
        return self.settings.disabled or self.is_remembered or self.standing.state != "starting" or self.tries > 1

    def info(self) -> McpInfo:
        """Return the state for clients."""
        return McpInfo(
            self.name,
            self.standing.state,
            self._connected_at,
            self.standing.reason,
            len(self.names),
            len(self.lists["prompts"]),
            len(self.lists["resources"]),
            way_of(self.settings),
            tuple(self.names.values()),
        )

    def notice(self, change: McpChange) -> McpNotice:
        """Return a notice of this change for clients."""
        info = self.info()
        counts = info.tool_count, info.prompt_count, info.resource_count
        return McpNotice(change, self.name, info.state, info.error, *counts)

    def _tell(self, change: McpChange) -> None:
        self._shared.tell(self, change)

    def log(self) -> str:
        """Return the stderr output, with the middle left out if it is too long."""
        return self._log.excerpt(2 * _LOG)

    def remember(self, known: CachedTools) -> None:
        """Use the cached lists until the server returns new ones."""
        for what in LISTS:
            self._take(what, list(known.lists.get(what, ())))
        self.instructions = known.instructions
        self.is_remembered = True

    # The owner

    async def own(self) -> None:
        """Connect and reconnect until cancelled."""
        while True:
            await self._pause()
            self.tries += 1
            self._stand(mcp_types.begun(self.standing))
            # A list, because `_live` never returns: it stores the time here and ends with an exception.
            joined_at: list[float] = []
            try:
                await self._live(joined_at)
            except Exception as error:
                lasted = asyncio.get_running_loop().time() - joined_at[0] if joined_at else None
                self._stand(self._after(error, lasted))

    async def _pause(self) -> None:
        """Wait until the next attempt is due or requested."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self.standing.pause):
                await self._wake.wait()
        self._wake.clear()

    async def _live(self, joined_at: list[float]) -> None:
        """Open one connection and keep it until it ends, which raises an exception."""
        self._last = b""
        try:
            await in_thread(WIRE)
            # The import below only looks the loaded module up. It is an import statement so that types are checked.
            from holdfast.extensions.mcp.mcp_connection import opened  # noqa: PLC0415

            plan = await self._plan()
            async with AsyncExitStack() as stack:
                async with self._shared.doors.entered():
                    connection = await stack.enter_async_context(opened(plan, self.seconds))
                    await self._look(connection)
                joined_at.append(asyncio.get_running_loop().time())
                self._joined(connection)
                await self._host(connection)
            raise ConnectionClosed(self._why(connection.why))
        finally:
            self._connection = None

    def _joined(self, connection: "Connection") -> None:
        self._connection = connection
        self.instructions = connection.instructions[:_LONGEST_WORDS]
        self._connected_at = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        self._stand(mcp_types.joined(self.standing))

    async def _host(self, connection: "Connection") -> None:
        """Run the list updates until the connection ends. Requests of other tasks may hang with it; their callers bound
        them.
        """
        tasks = TaskOwner()
        tasks.start(self._keep_lists(connection), name=f"lists of {self.name}")
        try:
            await connection.ended.wait()
        finally:
            self._connection = None
            tasks.cancel_all()
            await tasks.drain()

    async def _keep_lists(self, connection: "Connection") -> None:
        """Re-read changed lists: immediately, then less and less often while the server keeps announcing changes."""
        pause = mcp_types.FIRST_PAUSE
        while True:
            is_quiet = not self._stale
            await self._bell.wait()
            self._bell.clear()
            stale, self._stale = self._stale, set()
            for what in stale:
                await self._renew(connection, what)
            pause = mcp_types.pause_between(pause, is_quiet=is_quiet)
            await asyncio.sleep(pause)

    async def _renew(self, connection: "Connection", what: ListName) -> None:
        before = self.lists[what]
        try:
            listing = connection.listed(what)
            items = await self._shared.patience.wait(listing, self.seconds, name=f"{what} of {self.name}")
        except TimeoutError:
            connection.end(f"It did not answer within {self.seconds:g} seconds.")
        except CallFailed as error:
            self.said(f"[{what} cannot be listed: {sentence(error)}]\n".encode())
        except ConnectionClosed:
            connection.end()
        else:
            self._take(what, items)
            # Crush clients respond to this notice by requesting a refresh, so it is published only if the list differs.
            if self.lists[what] != before:
                self._tell(_CHANGES[what])

    async def _look(self, connection: "Connection") -> None:
        """Read all lists of a new connection. A list that cannot be read is treated as empty."""
        self._stale.clear()
        for what in LISTS:
            items: list[dict[str, Any]] = []
            if connection.offers(what):
                try:
                    async with asyncio.timeout(self.seconds):
                        items = await connection.listed(what)
                except TimeoutError:
                    raise ConnectionClosed(f"It did not list its {what} within {self.seconds:g} seconds.") from None
                except CallFailed as error:
                    self.said(f"[{what} cannot be listed: {sentence(error)}]\n".encode())
            self._take(what, items)

    def _take(self, what: ListName, items: list[dict[str, Any]]) -> None:
        known = tuple(items[:_MOST])
        if what == "tools":
            settings = self.settings
            known = tuple(
                item for item in known if is_wanted(item["name"], settings.enabled_tools, settings.disabled_tools)
            )
            self.names = tool_names(self.name, (item["name"] for item in known))
        self.lists[what] = known

    def _after(self, error: Exception, lasted: float | None) -> mcp_types.McpServerState:
        errors = list(innermost(error))
        if any(isinstance(inside, LoginNeeded) for inside in errors):
            return mcp_types.barred(_NEEDS_LOGIN.format(self.name))
        told = next((inside for inside in errors if isinstance(inside, HoldfastError)), errors[0])
        reason = sentence(told)
        if lasted is not None:
            return mcp_types.lost(self.standing, reason, lasted)
        return mcp_types.failed(self.standing, self._why(reason), is_final=isinstance(told, StartFailed))

    def _why(self, reason: str) -> str:
        """Append the last stderr line of a program that has exited."""
        last = redact_text(self._last.decode("utf-8", "replace").strip())[:200]
        return f"{reason} It said: {last}" if last and way_of(self.settings) == "stdio" else reason

    def _stand(self, standing: mcp_types.McpServerState) -> None:
        is_news = (standing.state, standing.reason) != (self.standing.state, self.standing.reason)
        self.standing = standing
        if standing.state != "connected":
            self._connected_at = NEVER
        # Replace the future before resolving it: woken waiters that continue to wait get the new one.
        news, self._news = self._news, asyncio.get_running_loop().create_future()
        news.set_result(None)
        if is_news:
            self._tell("state_changed")

    def retire(self) -> None:
        """Mark the server as removed, and wake its waiters."""
        self._stand(mcp_types.DISABLED)

    # Connection parameters

    async def _plan(self) -> Plan:
        """Return the connection parameters. Raises `StartFailed`."""
        settings = self.settings
        if not self.is_lent:
            settings, problems = await asyncio.to_thread(self._ground.configuration.mcp, self.name)
            if problems:
                raise StartFailed(str(problems[0]))
        way = way_of(settings)
        faltered = partial(self._shared.look_after, self)
        plan = Plan(way, self._ground.path, self._ground.spawn, self.said, self.refresh, faltered)
        if way == "stdio":
            if not settings.command:
                raise StartFailed(f"It has no command: set mcp.{self.name}.command, or a url.")
            environment = self._environment() | settings.env
            return msgspec.structs.replace(plan, command=(settings.command, *settings.args), environment=environment)
        self.url = settings.url
        if urlsplit(settings.url).scheme not in ("http", "https") or not urlsplit(settings.url).hostname:
            raise StartFailed(f"Its address is not one: mcp.{self.name}.url begins with http:// or https://.")
        has_own = any(name.lower() == "authorization" for name in settings.headers)
        tokens = None if settings.oauth is False or has_own else self._shared.tokens_for(settings.url)
        return msgspec.structs.replace(plan, url=settings.url, headers=settings.headers, tokens=tokens)

    def _environment(self) -> dict[str, str]:
        """Return the environment of shell commands. It contains API keys of models only if the server's settings set
        them.
        """
        withheld, secrets = self._ground.secrets()
        given = self._ground.environment
        return command_environment(os.environ, given, cwd=self._ground.path, withheld=withheld, secrets=secrets)

    def said(self, data: bytes) -> None:
        """Append to the log, and remember the last non-empty line."""
        self._log.feed(data)
        lines = data[-_LAST:].splitlines()
        if any(line.strip() for line in lines):
            self._last = next(line for line in reversed(lines) if line.strip())

    # Requests

    def wake(self) -> None:
        """Start the next attempt now."""
        self._wake.set()

    def refresh(self, what: ListName) -> None:
        """Re-read a list soon."""
        self._stale.add(what)
        self._bell.set()

    async def settled(self) -> None:
        """Wait until the lists are known, or the first attempt is over."""
        while not self.is_settled:
            await asyncio.shield(self._news)

    async def tried(self) -> None:
        """Wait for the end of the current attempt, if there is one."""
        while self.standing.state == "starting":
            await asyncio.shield(self._news)

    async def connection(self) -> "Connection":
        """Return the connection, opened if necessary. Raises `CallFailed`."""
        if (connection := self._connection) is not None and not connection.ended.is_set():
            # A connection with recent traffic is not pinged.
            is_idle = asyncio.get_running_loop().time() - connection.heard_at >= IDLE
            if not is_idle or await self._is_alive(connection):
                return connection
            connection.end("It did not answer any more.")
        tries = self.tries + (0 if self.standing.state == "starting" else 1)
        self.wake()
        while self._connection is None or self._connection.ended.is_set():
            if self.standing.state == "disabled":
                raise CallFailed(
                    f"The MCP server {self.name} was switched off, or its settings were changed. Try again."
                )
            if self.tries >= tries and self.standing.state in ("error", "needs auth"):
                raise CallFailed(f"The MCP server {self.name} cannot be reached. {self.standing.reason}")
            await asyncio.shield(self._news)
        self._wake.clear()
        return self._connection

    async def check(self) -> None:
        """Ping the server, and end the connection if there is no response."""
        if (connection := self._connection) is not None and not await self._is_alive(connection):
            connection.end("It did not answer any more.")

    async def parted(self) -> None:
        """Wait until the owner task has recorded the end of the connection and its reason."""
        while self.standing.state == "connected":
            await asyncio.shield(self._news)

    async def _is_alive(self, connection: "Connection") -> bool:
        """Return whether the server responds to a ping, with any response."""
        try:
            await self._shared.patience.wait(connection.ping(), min(self.seconds, PING), name=f"ping {self.name}")
        except (TimeoutError, ConnectionClosed):
            return False
        return True
