"""All MCP servers of one workspace, each with an owner task.

Theory of operation. `McpExtension` loads this module when the first server is configured and calls `apply_settings`
with the servers of the settings and those of clients. A server whose settings differ is removed and added again, so a
server never changes its settings. Its successor waits until the owner task of the predecessor has ended, because both
may use the same port.

Tools are offered from the lists that are known: those of the connection, or the cached ones of the last connection.
Therefore a run can start before its servers do, and a call waits for the connection. Requests of clients and tools run
through `bounded_waits`, so a server that hangs delays only its own caller. The number of concurrent starts is limited,
since a start can occupy a processor for seconds.

`close` is bounded in time: owner tasks are cancelled twice, then abandoned requests are awaited, whose connections are
closed by then.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from holdfast.domain.errors import BadRequest
from holdfast.domain.events import Change, McpEvent
from holdfast.domain.extensions import McpArgument, McpChange, McpContents, McpInfo, McpLogin, McpPrompt
from holdfast.domain.settings import McpSettings
from holdfast.domain.tools import Tool
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.mcp.bounded_waits import DetachedWait, StartLimiter
from holdfast.extensions.mcp.mcp_server import McpServer, SharedServices
from holdfast.extensions.mcp.mcp_tools import ListResources, McpTool, McpToolCalls, ReadResource, tool_specs
from holdfast.extensions.mcp.mcp_types import CallFailed, ConnectionClosed, ListName
from holdfast.extensions.mcp.oauth_manager import OAuthManager
from holdfast.extensions.mcp.tool_cache import ToolCache
from holdfast.extensions.mcp.tool_naming import prompt_command
from holdfast.extensions.mcp.tool_results import prompt_text, resource_contents
from holdfast.tasks import TaskOwner

if TYPE_CHECKING:
    from holdfast.extensions.mcp.mcp_connection import McpConnection

__all__ = ["McpManager", "ToolCache"]

SETTLE_TIMEOUT = 30.0
"""Maximum seconds that an unattended run waits for servers without known lists."""
_CLOSE_TIMEOUT = 2.0

_log = logging.getLogger("holdfast.server")


class McpManager:
    """The MCP servers of a workspace."""

    def __init__(self, context: ExtensionContext, cache: ToolCache, start_delay: float) -> None:
        self._context = context
        self._cache = cache
        self._start_delay = start_delay
        self._start_now = asyncio.Event()
        self._servers: dict[str, McpServer] = {}
        self._owners: dict[str, asyncio.Task[None]] = {}
        self._tasks = TaskOwner()
        self._background = TaskOwner()
        self._detached_wait = DetachedWait()
        self._calls = McpToolCalls(self._detached_wait, self._check_server)
        self._logins = OAuthManager(context, self._background)
        self._shared = SharedServices(
            self._logins.tokens_for, StartLimiter(), self._detached_wait, self._publish, self._check_server
        )
        self._is_closed = False
        self._tools: dict[str, tuple[object, tuple[McpTool, ...]]] = {}
        self._resource_tools_cache: tuple[Tool, ...] = ()

    def tools(self) -> Sequence[Tool]:
        """Return the tools of all enabled servers, sorted by name, and the resource tools."""
        servers = [server for server in self._servers.values() if not server.settings.disabled]
        if not servers:
            return ()
        found: dict[str, Tool] = {}
        for server in servers:
            for tool in self._tools_of(server):
                # Names can collide across servers: `a` with tool `b_c`, and `a_b` with tool `c`.
                own = tool.with_unique_name() if tool.spec.name in found else tool
                found.setdefault(own.spec.name, own)
        return (*(found[name] for name in sorted(found)), *self._resource_tools())

    async def close(self) -> None:
        """Stop all servers. Bounded in time and complete, even if a server does not cooperate."""
        self._is_closed = True
        self._detached_wait.cancel_all()
        self._background.cancel_all()
        await asyncio.gather(*(_cancel_owner(owner) for owner in tuple(self._owners.values())))
        self._tasks.cancel_all()
        await self._tasks.drain()
        await self._background.drain()
        await self._detached_wait.drain()
        await self._logins.close()

    # The servers

    def apply_settings(self, servers: Mapping[str, McpSettings], configured: Collection[str]) -> None:
        """Apply settings: start, stop and replace servers whose settings have changed. Names outside `configured`
        belong to clients.
        """
        if self._is_closed:
            return
        for name, server in tuple(self._servers.items()):
            if server.settings != servers.get(name) or server.is_client_owned != (name not in configured):
                self._remove(name)
        for name, settings in servers.items():
            if name not in self._servers:
                self._add(name, settings, is_client_owned=name not in configured)

    def _remove(self, name: str) -> None:
        del self._servers[name]
        self._tools.pop(name, None)
        if (owner := self._owners.get(name)) is not None:
            self._background.start(_cancel_owner(owner), name=f"close {name}")

    def _add(self, name: str, settings: McpSettings, *, is_client_owned: bool) -> None:
        server = McpServer(name, settings, self._context, self._shared, is_client_owned=is_client_owned)
        self._servers[name] = server
        if (known := self._cache.get(name, settings)) is not None:
            server.use_cached_lists(known)
        if not settings.disabled:
            predecessor = self._owners.get(name)
            running = self._run_server(server, predecessor)
            done = partial(self._on_owner_done, server)
            self._owners[name] = self._tasks.start(running, name=f"MCP server {name}", done=done)
        self._publish(server, "state_changed")

    async def _run_server(self, server: McpServer, predecessor: "asyncio.Task[None] | None") -> None:
        """Run a server after its predecessor of the same name has ended, because both may use the same port."""
        if predecessor is not None:
            await asyncio.wait({predecessor})
        with suppress(TimeoutError):
            async with asyncio.timeout(self._start_delay):
                await self._start_now.wait()
        await server.run()

    def _on_owner_done(self, server: McpServer, owner: "asyncio.Task[None]") -> None:
        if self._owners.get(server.name) is owner:
            del self._owners[server.name]
        server.retire()
        if not owner.cancelled() and (error := owner.exception()) is not None:
            _log.error("MCP server %s was given up: %r", server.name, error)

    def _publish(self, server: McpServer, change: McpChange) -> None:
        if self._servers.get(server.name) is server and not self._is_closed:
            notice = server.notice(change)
            if change == "state_changed" and notice.state in ("error", "needs auth"):
                _log.warning("MCP server %s: %s (%s)", server.name, notice.error, notice.state)
            self._context.publish(McpEvent(Change("updated", notice)))
            if notice.state == "connected" or (notice.state in ("error", "needs auth") and not server.has_cached_lists):
                # Also cache the empty lists of a server that failed at first, so that later runs do not wait for it.
                self._cache_lists(server)

    def _cache_lists(self, server: McpServer) -> None:
        if self._cache.update(server.name, server.settings, server.lists, server.instructions):
            self._background.start(self._cache.write(tuple(self._servers)), name="remember what MCP servers offer")

    def _tools_of(self, server: McpServer) -> tuple[McpTool, ...]:
        """Return the tools of a server, rebuilt only when its list has changed."""
        items = server.lists["tools"]
        known = self._tools.get(server.name)
        if known is None or known[0] is not items:
            specs = tool_specs(server)
            built = tuple(
                McpTool(server, item, specs[item["name"]], self._calls) for item in items if item["name"] in specs
            )
            known = self._tools[server.name] = (items, built)
        return known[1]

    def _resource_tools(self) -> tuple[Tool, ...]:
        if not self._resource_tools_cache:
            self._resource_tools_cache = (
                ListResources(self._servers.get),
                ReadResource(self._servers.get, self._read_resource),
            )
        return self._resource_tools_cache

    # Queries and requests

    def notes(self) -> tuple[str, ...]:
        """Return the instructions of the servers for the system prompt. They are kept while a server is disconnected,
        so that the prompt does not change.
        """
        blocks = [
            f'<server name="{server.name}">\n{server.instructions.strip()}\n</server>'
            for server in self._servers.values()
            if not server.settings.disabled and server.instructions.strip()
        ]
        if not blocks:
            return ()
        heading = "# MCP servers\n\nInstructions of their authors for using the tools. They do not represent the user."
        return ("\n\n".join([heading, "<mcp-instructions>", *blocks, "</mcp-instructions>"]),)

    async def wait_settled(self) -> None:
        """Wait until every server is known or has been tried once, for at most `SETTLE_TIMEOUT` seconds."""
        await self._wait_all(McpServer.wait_settled, SETTLE_TIMEOUT)

    async def wait_attempts(self, seconds: float) -> None:
        """Wait until no server is starting, for at most `seconds`."""
        await self._wait_all(McpServer.wait_attempt, seconds)

    async def _wait_all(self, wait: Callable[[McpServer], Coroutine[Any, Any, None]], seconds: float) -> None:
        self._start_now.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(wait(server) for server in self._servers.values()))

    async def wait_lists(self, name: str) -> None:
        """Wait until the lists of this server are known. Raises `BadRequest`."""
        server = self._get(name)
        self._start_now.set()
        await server.wait_settled()

    def states(self) -> dict[str, McpInfo]:
        """Return the state of every server, by name."""
        return {name: server.info() for name, server in sorted(self._servers.items())}

    def prompts(self) -> tuple[McpPrompt, ...]:
        """Return the prompts of all servers."""
        return tuple(
            _to_prompt(server.name, item) for server in self._servers.values() for item in server.lists["prompts"]
        )

    def log(self, name: str) -> str:
        """Return the log of a server. Raises `BadRequest`."""
        return self._get(name).log()

    async def prompt(self, name: str, prompt: str, arguments: Mapping[str, str]) -> str:
        """Return the text of a prompt. Raises `BadRequest`."""
        server = self._get(name)
        item = next((item for item in server.lists["prompts"] if item["name"] == prompt), None)
        if item is None:
            raise BadRequest(f"The MCP server {name} has no prompt called {prompt}.")
        missing = [
            argument.id
            for argument in _to_prompt(name, item).arguments
            if argument.required and not arguments.get(argument.id)
        ]
        if missing:
            raise BadRequest(f"The prompt {prompt} needs: {', '.join(missing)}.")
        result = await self._request_for_client(server, lambda connection: connection.get_prompt(prompt, arguments))
        return prompt_text(result)

    async def resource(self, name: str, uri: str) -> tuple[McpContents, ...]:
        """Return the contents of a resource. Raises `BadRequest`."""
        server = self._get(name)
        return resource_contents(
            await self._request_for_client(server, lambda connection: connection.read_resource(uri))
        )

    def refresh_list(self, name: str, list_name: ListName) -> None:
        """Re-read a list of a server. Raises `BadRequest`."""
        self._get(name).refresh(list_name)

    def restart(self, name: str) -> None:
        """Restart a server, as after a change of its settings. Raises `BadRequest`."""
        server = self._get(name)
        self._remove(name)
        self._add(name, server.settings, is_client_owned=server.is_client_owned)

    async def _request_for_client(
        self, server: McpServer, send: Callable[["McpConnection"], Coroutine[Any, Any, dict[str, Any]]]
    ) -> dict[str, Any]:
        try:
            return await self._request(server, send)
        except CallFailed as error:
            raise BadRequest(str(error)) from None

    async def _request(
        self, server: McpServer, send: Callable[["McpConnection"], Coroutine[Any, Any, dict[str, Any]]]
    ) -> dict[str, Any]:
        """Send a request with the server's time limit. Raises `CallFailed`."""
        connection = await server.connection()
        try:
            return await self._detached_wait.wait(send(connection), server.request_timeout, name=f"ask {server.name}")
        except TimeoutError:
            self._check_server(server)
            raise CallFailed(
                f"The MCP server {server.name} did not answer within {server.request_timeout:g} s."
            ) from None
        except ConnectionClosed:
            connection.end()
            raise CallFailed(f"The MCP server {server.name} disconnected. Try again.") from None

    def _check_server(self, server: McpServer) -> None:
        """Check in the background whether the server still responds."""
        if not self._is_closed:
            self._background.start(server.check(), name=f"whether {server.name} still answers")

    async def _read_resource(self, server: McpServer, uri: str) -> dict[str, Any]:
        return await self._request(server, lambda connection: connection.read_resource(uri))

    def _get(self, name: str) -> McpServer:
        if (server := self._servers.get(name)) is None:
            known = ", ".join(sorted(self._servers)) or "none"
            raise BadRequest(f"There is no MCP server called {name}. There is: {known}.")
        return server

    # Logins

    def waiting_logins(self) -> tuple[McpLogin, ...]:
        """Return the servers that require a login."""
        return tuple(
            McpLogin(server.name, server.url)
            for server in self._servers.values()
            if server.status.state == "needs auth"
        )

    def login_url(self, name: str) -> str:
        """Return the authorization URL of a login in progress, or an empty string."""
        return self._logins.authorization_url(name)

    async def log_in(self, name: str) -> None:
        """Log in and wait for the end of the login. Raises `LoginFailed`, `BadRequest`."""
        await self._logins.log_in(self._get(name))


async def _cancel_owner(owner: "asyncio.Task[None]") -> None:
    """Cancel an owner task. A second cancellation follows if it does not end within the time limit."""
    for _ in range(2):
        owner.cancel()
        await asyncio.wait({owner}, timeout=_CLOSE_TIMEOUT)


def _to_prompt(server: str, item: Mapping[str, Any]) -> McpPrompt:
    arguments = tuple(
        McpArgument(
            str(given["name"]),
            str(given.get("title") or given["name"]),
            str(given.get("description") or ""),
            given.get("required") is True,
        )
        for given in item.get("arguments") or ()
        if isinstance(given, Mapping) and given.get("name")
    )
    name = str(item["name"])
    return McpPrompt(
        prompt_command(server, name),
        name,
        server,
        str(item.get("title") or ""),
        str(item.get("description") or ""),
        arguments,
    )
