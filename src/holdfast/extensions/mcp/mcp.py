"""The servers of tools of a workspace, as the rest of the program knows them.

Whoever has none pays nothing for them: what deals with them is loaded when the settings name one, and they start a
moment after the workspace has opened, so that the first answers do not wait for them. What they offered the last time
is remembered. A run that nobody attends waits, for a while, for a server that is not known yet; any other goes on with
what is there.
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
    """One of the extensions."""

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
        self._hurry = asyncio.Event()
        self.refresh()

    def refresh(self) -> None:
        wanted = self._wanted()
        if self._servers is not None:
            self._servers.follow(wanted, self._ground.configuration.settings.mcp)
        elif wanted and self._hurry is not None and self._loading is None and not self._is_closed:
            self._loading = self._tasks.start(self._load(self._hurry), name="load what deals with MCP servers")

    def tools(self) -> Sequence[Tool]:
        return self._servers.tools() if self._servers is not None else ()

    async def close(self) -> None:
        self._is_closed = True
        self._tasks.cancel_all()
        await self._tasks.drain()
        if self._servers is not None:
            await self._servers.close()

    async def _load(self, hurry: asyncio.Event) -> None:
        """Where something is remembered, at once: the first run is to know of it."""
        if not (self._ground.data_dir / "mcp.json").exists():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pause):
                    await hurry.wait()
        module = await in_thread(_SERVERS)
        memory = await asyncio.to_thread(module.Memory, self._ground.data_dir)
        self._servers = module.Servers(self._ground, memory, self._pause)
        self._servers.follow(self._wanted(), self._ground.configuration.settings.mcp)

    def lend(self, lender: str, servers: Mapping[str, McpSettings]) -> None:
        """What a client brings along, for as long as it is there; nothing takes it back. It is kept nowhere."""
        if servers != self._lent.get(lender, {}):
            self._lent.pop(lender, None)
            if servers:
                self._lent[lender] = dict(servers)
            self.refresh()

    def _wanted(self) -> dict[str, McpSettings]:
        """What the settings name stands above what is lent, and what was lent first above the rest."""
        wanted = dict(self._ground.configuration.settings.mcp)
        for servers in self._lent.values():
            wanted = {**servers, **wanted}
        return wanted

    # What others ask

    async def servers(self) -> "Servers":
        """Raises `BadRequest` if there are none."""
        if self._loading is None:
            raise BadRequest("There is no MCP server here: holdfast mcp add --help.")
        if self._hurry is not None:
            self._hurry.set()
        await asyncio.shield(self._loading)
        assert self._servers is not None
        return self._servers

    async def settled(self) -> None:
        """Until every server is known, or has been tried once; and not too long."""
        if self._loading is not None:
            await (await self.servers()).settled()

    async def tried(self, seconds: float) -> None:
        """Until none of them is starting, for so many seconds at most."""
        if self._loading is not None:
            await (await self.servers()).tried(seconds)

    def notes(self) -> tuple[str, ...]:
        """What connected servers want models to know."""
        return self._servers.notes() if self._servers is not None else ()

    def states(self) -> dict[str, McpInfo]:
        if self._servers is not None:
            return self._servers.states()
        named = sorted(self._wanted().items())
        return {
            name: McpInfo(name, "disabled" if settings.disabled else "starting", NEVER, type=settings.type)
            for name, settings in named
        }

    def prompts(self) -> tuple[McpPrompt, ...]:
        return self._servers.prompts() if self._servers is not None else ()

    def waiting_logins(self) -> tuple[McpLogin, ...]:
        return self._servers.waiting_logins() if self._servers is not None else ()

    def login_url(self, name: str) -> str:
        """Where somebody has to go to log in; empty while nobody does."""
        return self._servers.login_url(name) if self._servers is not None else ""
