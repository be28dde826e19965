"""All MCP servers of one workspace, each with an owner task. The number of concurrent starts is limited.

Loaded when the first server is configured.
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
from holdfast.extensions.mcp.detached_wait import DetachedWait, StartLimiter
from holdfast.extensions.mcp.mcp_server import McpServer, Shared
from holdfast.extensions.mcp.mcp_tools import ListResources, McpTool, McpToolCalls, ReadResource, specs_of
from holdfast.extensions.mcp.mcp_types import CallFailed, ConnectionClosed, ListName
from holdfast.extensions.mcp.oauth_manager import OAuthManager
from holdfast.extensions.mcp.tool_cache import ToolCache
from holdfast.extensions.mcp.tool_naming import prompt_command
from holdfast.extensions.mcp.tool_results import contents_of, prompt_text
from holdfast.tasks import TaskOwner

if TYPE_CHECKING:
    from holdfast.extensions.mcp.mcp_connection import Connection

__all__ = ["McpManager", "ToolCache"]

SETTLING = 30.0
"""Maximum seconds that an unattended run waits for servers without known lists."""
_CLOSING = 2.0

_log = logging.getLogger("holdfast.server")


class McpManager:
    """The MCP servers of a workspace."""

    def __init__(self, ground: ExtensionContext, memory: ToolCache, pause: float) -> None:
        self._ground = ground
        self._memory = memory
        self._pause = pause
        self._hurry = asyncio.Event()
        self._servers: dict[str, McpServer] = {}
        self._owners: dict[str, asyncio.Task[None]] = {}
        self._tasks = TaskOwner()
        self._chores = TaskOwner()
        self._patience = DetachedWait()
        self._calls = McpToolCalls(self._patience, self._look_after)
        self._logins = OAuthManager(ground, self._chores)
        self._shared = Shared(self._logins.tokens_for, StartLimiter(), self._patience, self._tell, self._look_after)
        self._is_closed = False
        self._tools: dict[str, tuple[object, tuple[McpTool, ...]]] = {}
        self._own: tuple[Tool, ...] = ()

    def tools(self) -> Sequence[Tool]:
        """Return the tools of all enabled servers, sorted by name, and the resource tools."""
        servers = [server for server in self._servers.values() if not server.settings.disabled]
        if not servers:
            return ()
        found: dict[str, Tool] = {}
        for server in servers:
            for tool in self._tools_of(server):
                # Names can collide across servers: `a` with tool `b_c`, and `a_b` with tool `c`.
                own = tool.under_another_name() if tool.spec.name in found else tool
                found.setdefault(own.spec.name, own)
        return (*(found[name] for name in sorted(found)), *self._resource_tools())

    async def close(self) -> None:
        """Stop all servers. Bounded in time and complete, even if a server does not cooperate."""
        self._is_closed = True
        self._patience.give_up()
        self._chores.cancel_all()
        await asyncio.gather(*(_end(owner) for owner in tuple(self._owners.values())))
        self._tasks.cancel_all()
        await self._tasks.drain()
        await self._chores.drain()
        await self._patience.drain()
        await self._logins.close()

    # The servers

    def follow(self, wanted: Mapping[str, McpSettings], own: Collection[str]) -> None:
        """Apply settings: start, stop and replace servers whose settings have changed. Names outside `own` belong to
        clients.
        """
        if self._is_closed:
            return
        for name, server in tuple(self._servers.items()):
            if server.settings != wanted.get(name) or server.is_lent != (name not in own):
                self._drop(name)
        for name, settings in wanted.items():
            if name not in self._servers:
                self._add(name, settings, is_lent=name not in own)

    def _drop(self, name: str) -> None:
        del self._servers[name]
        self._tools.pop(name, None)
        if (owner := self._owners.get(name)) is not None:
            self._chores.start(_end(owner), name=f"close {name}")

    def _add(self, name: str, settings: McpSettings, *, is_lent: bool) -> None:
        server = McpServer(name, settings, self._ground, self._shared, is_lent=is_lent)
        self._servers[name] = server
        if (known := self._memory.of(name, settings)) is not None:
            server.remember(known)
        if not settings.disabled:
            before = self._owners.get(name)
            owned = self._owned(server, before)
            done = partial(self._retire, server)
            self._owners[name] = self._tasks.start(owned, name=f"MCP server {name}", done=done)
        self._tell(server, "state_changed")

    async def _owned(self, server: McpServer, before: "asyncio.Task[None] | None") -> None:
        """Run a server after its predecessor of the same name has ended, because both may use the same port."""
        if before is not None:
            await asyncio.wait({before})
        with suppress(TimeoutError):
            async with asyncio.timeout(self._pause):
                await self._hurry.wait()
        await server.own()

    def _retire(self, server: McpServer, owner: "asyncio.Task[None]") -> None:
        if self._owners.get(server.name) is owner:
            del self._owners[server.name]
        server.retire()
        if not owner.cancelled() and (error := owner.exception()) is not None:
            _log.error("MCP server %s was given up: %r", server.name, error)

    def _tell(self, server: McpServer, change: McpChange) -> None:
        if self._servers.get(server.name) is server and not self._is_closed:
            notice = server.notice(change)
            if change == "state_changed" and notice.state in ("error", "needs auth"):
                _log.warning("MCP server %s: %s (%s)", server.name, notice.error, notice.state)
            self._ground.publish(McpEvent(Change("updated", notice)))
            if notice.state == "connected" or (notice.state in ("error", "needs auth") and not server.is_remembered):
                # Also cache the empty lists of a server that failed at first, so that later runs do not wait for it.
                self._keep(server)

    def _keep(self, server: McpServer) -> None:
        if self._memory.keep(server.name, server.settings, server.lists, server.instructions):
            self._chores.start(self._memory.write(tuple(self._servers)), name="remember what MCP servers offer")

    def _tools_of(self, server: McpServer) -> tuple[McpTool, ...]:
        """Return the tools of a server, rebuilt only when its list has changed."""
        items = server.lists["tools"]
        known = self._tools.get(server.name)
        if known is None or known[0] is not items:
            specs = specs_of(server)
            made = tuple(
                McpTool(server, item, specs[item["name"]], self._calls) for item in items if item["name"] in specs
            )
            known = self._tools[server.name] = (items, made)
        return known[1]

    def _resource_tools(self) -> tuple[Tool, ...]:
        if not self._own:
            self._own = (ListResources(self._servers.get), ReadResource(self._servers.get, self._read))
        return self._own

    # Queries and requests

    def notes(self) -> tuple[str, ...]:
        """Return the instructions of the servers for the system prompt. They are kept while a server is disconnected,
        so that the prompt does not change.
        """
        said = [
            f'<server name="{server.name}">\n{server.instructions.strip()}\n</server>'
            for server in self._servers.values()
            if not server.settings.disabled and server.instructions.strip()
        ]
        if not said:
            return ()
        head = "# MCP servers\n\nHow their authors want their tools to be used. They do not speak for the user."
        return ("\n\n".join([head, "<mcp-instructions>", *said, "</mcp-instructions>"]),)

    async def settled(self) -> None:
        """Wait until every server is known or has been tried once, for at most `SETTLING` seconds."""
        await self._all(McpServer.settled, SETTLING)

    async def tried(self, seconds: float) -> None:
        """Wait until no server is starting, for at most `seconds`."""
        await self._all(McpServer.tried, seconds)

    async def _all(self, wait: Callable[[McpServer], Coroutine[Any, Any, None]], seconds: float) -> None:
        self._hurry.set()
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await asyncio.gather(*(wait(server) for server in self._servers.values()))

    async def known(self, name: str) -> None:
        """Wait until the lists of this server are known. Raises `BadRequest`."""
        server = self._known(name)
        self._hurry.set()
        await server.settled()

    def states(self) -> dict[str, McpInfo]:
        """Return the state of every server, by name."""
        return {name: server.info() for name, server in sorted(self._servers.items())}

    def prompts(self) -> tuple[McpPrompt, ...]:
        """Return the prompts of all servers."""
        return tuple(
            _prompt(server.name, item) for server in self._servers.values() for item in server.lists["prompts"]
        )

    def log(self, name: str) -> str:
        """Return the log of a server. Raises `BadRequest`."""
        return self._known(name).log()

    async def prompt(self, name: str, prompt: str, arguments: Mapping[str, str]) -> str:
        """Return the text of a prompt. Raises `BadRequest`."""
        server = self._known(name)
        item = next((item for item in server.lists["prompts"] if item["name"] == prompt), None)
        if item is None:
            raise BadRequest(f"The MCP server {name} has no prompt called {prompt}.")
        missing = [
            argument.id
            for argument in _prompt(name, item).arguments
            if argument.required and not arguments.get(argument.id)
        ]
        if missing:
            raise BadRequest(f"The prompt {prompt} needs: {', '.join(missing)}.")
        result = await self._asked(server, lambda connection: connection.prompt(prompt, arguments))
        return prompt_text(result)

    async def resource(self, name: str, uri: str) -> tuple[McpContents, ...]:
        """Return the contents of a resource. Raises `BadRequest`."""
        server = self._known(name)
        return contents_of(await self._asked(server, lambda connection: connection.read(uri)))

    def look(self, name: str, what: ListName) -> None:
        """Re-read a list of a server. Raises `BadRequest`."""
        self._known(name).refresh(what)

    def restart(self, name: str) -> None:
        """Restart a server, as after a change of its settings. Raises `BadRequest`."""
        server = self._known(name)
        self._drop(name)
        self._add(name, server.settings, is_lent=server.is_lent)

    async def _asked(
        self, server: McpServer, ask: Callable[["Connection"], Coroutine[Any, Any, dict[str, Any]]]
    ) -> dict[str, Any]:
        try:
            return await self._answer(server, ask)
        except CallFailed as error:
            raise BadRequest(str(error)) from None

    async def _answer(
        self, server: McpServer, ask: Callable[["Connection"], Coroutine[Any, Any, dict[str, Any]]]
    ) -> dict[str, Any]:
        """Send a request with the server's time limit. Raises `CallFailed`."""
        connection = await server.connection()
        try:
            return await self._patience.wait(ask(connection), server.seconds, name=f"ask {server.name}")
        except TimeoutError:
            self._look_after(server)
            raise CallFailed(f"The MCP server {server.name} did not answer within {server.seconds:g} s.") from None
        except ConnectionClosed:
            connection.end()
            raise CallFailed(f"The MCP server {server.name} went away. Try again.") from None

    def _look_after(self, server: McpServer) -> None:
        """Check in the background whether the server still responds."""
        if not self._is_closed:
            self._chores.start(server.check(), name=f"whether {server.name} still answers")

    async def _read(self, server: McpServer, uri: str) -> dict[str, Any]:
        return await self._answer(server, lambda connection: connection.read(uri))

    def _known(self, name: str) -> McpServer:
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
            if server.standing.state == "needs auth"
        )

    def login_url(self, name: str) -> str:
        """Return the authorization URL of a login in progress, or an empty string."""
        return self._logins.address(name)

    async def log_in(self, name: str) -> None:
        """Log in and wait for the end of the login. Raises `LoginFailed`, `BadRequest`."""
        await self._logins.log_in(self._known(name))


async def _end(owner: "asyncio.Task[None]") -> None:
    """Cancel an owner task. A second cancellation follows if it does not end within the time limit."""
    for _ in range(2):
        owner.cancel()
        await asyncio.wait({owner}, timeout=_CLOSING)


def _prompt(server: str, item: Mapping[str, Any]) -> McpPrompt:
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
