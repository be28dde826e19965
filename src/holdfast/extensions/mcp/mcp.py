"""The MCP servers of a workspace, as seen by the rest of the program.

A workspace without MCP servers does not pay for them: the implementation is loaded when the settings name a server.
Servers start shortly after the workspace has opened, so that the first responses are not delayed. The lists of the last
connection are cached. An unattended run waits, for a limited time, for a server whose tools are not known yet; any
other run starts with the tools that are available.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.domain.errors import BadRequest
from holdfast.domain.mcp import NEVER, McpInfo, McpLogin, McpPrompt
from holdfast.domain.settings import McpSettings
from holdfast.domain.tools import Tool
from holdfast.extensions.base import Ground
from holdfast.providers.client import in_thread
from holdfast.tasks import TaskOwner

if TYPE_CHECKING:
    from holdfast.extensions.mcp.servers import Servers

__all__ = ["Mcp"]

PAUSE = 0.3
"""Seconds between the opening of a workspace and the start of its servers."""
_SERVERS = "holdfast.extensions.mcp.servers"


class Mcp:
    """The MCP extension of a workspace. Loads `Servers` on first use and delegates to it."""

    def __init__(self, ground: Ground, pause: float = PAUSE) -> None:
        self._ground = ground
        self._pause = pause
        self._tasks = TaskOwner()
        self._loading: asyncio.Task[None] | None = None
        self._servers: Servers | None = None
        self._hurry: asyncio.Event | None = None
        self._lent: dict[str, dict[str, McpSettings]] = {}
        self._is_closed = False

    # As an extension

    def start(self) -> None:
        """Load the configured servers."""
        self._hurry = asyncio.Event()
        self.refresh()

    def refresh(self) -> None:
        """Apply the current settings."""
        wanted = self._wanted()
        if self._servers is not None:
            self._servers.follow(wanted, self._ground.configuration.settings.mcp)
        elif wanted and self._hurry is not None and self._loading is None and not self._is_closed:
            self._loading = self._tasks.start(self._load(self._hurry), name="load what deals with MCP servers")

    def tools(self) -> Sequence[Tool]:
        """Return the tools of all known servers."""
        return self._servers.tools() if self._servers is not None else ()

    async def close(self) -> None:
        """Stop all servers."""
        self._is_closed = True
        self._tasks.cancel_all()
        await self._tasks.drain()
        if self._servers is not None:
            await self._servers.close()

    async def _load(self, hurry: asyncio.Event) -> None:
        """Load the implementation after the start pause, or immediately if a cache exists, so that the first run has
        its tools.
        """
        if not (self._ground.data_dir / "mcp.json").exists():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause):
                    await hurry.wait()
        module = await in_thread(_SERVERS)
        memory = await asyncio.to_thread(module.Memory, self._ground.data_dir)
        self._servers = module.Servers(self._ground, memory, self._pause)
        self._servers.follow(self._wanted(), self._ground.configuration.settings.mcp)

    def lend(self, lender: str, servers: Mapping[str, McpSettings]) -> None:
        """Register the servers of a client in place of its earlier ones. An empty mapping removes them. They are never
        written to disk.
        """
        if servers != self._lent.get(lender, {}):
            self._lent.pop(lender, None)
            if servers:
                self._lent[lender] = dict(servers)
            self.refresh()

    def _wanted(self) -> dict[str, McpSettings]:
        """Merge the servers. Settings take precedence over client servers, and earlier clients over later ones."""
        wanted = dict(self._ground.configuration.settings.mcp)
        for servers in self._lent.values():
            wanted = {**servers, **wanted}
        return wanted

    # Queries and requests

    async def servers(self) -> "Servers":
        """Return the loaded servers. Raises `BadRequest` if none is configured."""
        if self._loading is None:
            raise BadRequest("There is no MCP server here: holdfast mcp add --help.")
        if self._hurry is not None:
            self._hurry.set()
        await asyncio.shield(self._loading)
        assert self._servers is not None
        return self._servers

    async def settled(self) -> None:
        """Wait until every server is known or has been tried once, with a time limit."""
        if self._loading is not None:
            await (await self.servers()).settled()

    async def tried(self, seconds: float) -> None:
        """Wait until no server is starting, for at most `seconds`."""
        if self._loading is not None:
            await (await self.servers()).tried(seconds)

    def notes(self) -> tuple[str, ...]:
        """Return the instructions of connected servers for the system prompt."""
        return self._servers.notes() if self._servers is not None else ()

    def states(self) -> dict[str, McpInfo]:
        """Return the state of every configured server, by name."""
        if self._servers is not None:
            return self._servers.states()
        named = sorted(self._wanted().items())
        return {
            name: McpInfo(name, "disabled" if settings.disabled else "starting", NEVER, type=settings.type)
            for name, settings in named
        }

    def prompts(self) -> tuple[McpPrompt, ...]:
        """Return the prompts of all known servers."""
        return self._servers.prompts() if self._servers is not None else ()

    def waiting_logins(self) -> tuple[McpLogin, ...]:
        """Return the servers that require a login."""
        return self._servers.waiting_logins() if self._servers is not None else ()

    def login_url(self, name: str) -> str:
        """Return the authorization URL of a login in progress, or an empty string."""
        return self._servers.login_url(name) if self._servers is not None else ""
