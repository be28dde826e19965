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
from holdfast.domain.extensions import NEVER, CommandArgument, CommandInfo, McpArgument, McpInfo, McpLogin, McpPrompt
from holdfast.domain.settings import McpSettings
from holdfast.domain.tools import Tool
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.commands import split_words
from holdfast.providers.shared_http_clients import in_thread
from holdfast.tasks import TaskOwner

__all__ = ["McpCommands", "McpExtension", "parse_arguments"]


if TYPE_CHECKING:
    from holdfast.extensions.mcp.mcp_manager import McpManager


START_DELAY = 0.3
"""Seconds between the opening of a workspace and the start of its servers."""
_MANAGER = "holdfast.extensions.mcp.mcp_manager"


class McpExtension:
    """The MCP extension of a workspace. Loads `McpManager` on first use and delegates to it."""

    def __init__(self, context: ExtensionContext, start_delay: float = START_DELAY) -> None:
        self._context = context
        self._start_delay = start_delay
        self._tasks = TaskOwner()
        self._loading: asyncio.Task[None] | None = None
        self._manager: McpManager | None = None
        self._start_now: asyncio.Event | None = None
        self._client_servers: dict[str, dict[str, McpSettings]] = {}
        self._is_closed = False

    # The extension interface

    def start(self) -> None:
        """Load the configured servers."""
        self._start_now = asyncio.Event()
        self.refresh()

    def refresh(self) -> None:
        """Apply the current settings."""
        merged = self._merged_settings()
        if self._manager is not None:
            self._manager.apply_settings(merged, self._context.configuration.settings.mcp)
        elif merged and self._start_now is not None and self._loading is None and not self._is_closed:
            self._loading = self._tasks.start(self._load(self._start_now), name="load MCP servers")

    def tools(self) -> Sequence[Tool]:
        """Return the tools of all known servers."""
        return self._manager.tools() if self._manager is not None else ()

    async def close(self) -> None:
        """Stop all servers."""
        self._is_closed = True
        self._tasks.cancel_all()
        await self._tasks.drain()
        if self._manager is not None:
            await self._manager.close()

    async def _load(self, start_now: asyncio.Event) -> None:
        """Load the implementation after the start pause, or immediately if a cache exists, so that the first run has
        its tools.
        """
        if not (self._context.data_dir / "mcp.json").exists():
            with suppress(TimeoutError):
                async with asyncio.timeout(self._start_delay):
                    await start_now.wait()
        await in_thread(_MANAGER)
        # The module is loaded by now. An import statement, not a look-up by name, so that types are checked.
        from holdfast.extensions.mcp.mcp_manager import McpManager, ToolCache  # noqa: PLC0415

        cache = await asyncio.to_thread(ToolCache, self._context.data_dir)
        self._manager = McpManager(self._context, cache, self._start_delay)
        self._manager.apply_settings(self._merged_settings(), self._context.configuration.settings.mcp)

    def set_client_servers(self, client: str, servers: Mapping[str, McpSettings]) -> None:
        """Register the servers of a client in place of its earlier ones. An empty mapping removes them. They are never
        written to disk.
        """
        if servers != self._client_servers.get(client, {}):
            self._client_servers.pop(client, None)
            if servers:
                self._client_servers[client] = dict(servers)
            self.refresh()

    def _merged_settings(self) -> dict[str, McpSettings]:
        """Merge the servers. Settings take precedence over client servers, and earlier clients over later ones."""
        merged = dict(self._context.configuration.settings.mcp)
        for servers in self._client_servers.values():
            merged = {**servers, **merged}
        return merged

    # Queries and requests

    async def manager(self) -> "McpManager":
        """Return the loaded servers. Raises `BadRequest` if none is configured."""
        if self._loading is None:
            raise BadRequest("There is no MCP server here: holdfast mcp add --help.")
        if self._start_now is not None:
            self._start_now.set()
        await asyncio.shield(self._loading)
        assert self._manager is not None
        return self._manager

    async def wait_settled(self) -> None:
        """Wait until every server is known or has been tried once, with a time limit."""
        if self._loading is not None:
            await (await self.manager()).wait_settled()

    async def wait_attempts(self, seconds: float) -> None:
        """Wait until no server is starting, for at most `seconds`."""
        if self._loading is not None:
            await (await self.manager()).wait_attempts(seconds)

    def notes(self) -> tuple[str, ...]:
        """Return the instructions of connected servers for the system prompt."""
        return self._manager.notes() if self._manager is not None else ()

    def states(self) -> dict[str, McpInfo]:
        """Return the state of every configured server, by name."""
        if self._manager is not None:
            return self._manager.states()
        named = sorted(self._merged_settings().items())
        return {
            name: McpInfo(name, "disabled" if settings.disabled else "starting", NEVER, type=settings.type)
            for name, settings in named
        }

    def prompts(self) -> tuple[McpPrompt, ...]:
        """Return the prompts of all known servers."""
        return self._manager.prompts() if self._manager is not None else ()

    def waiting_logins(self) -> tuple[McpLogin, ...]:
        """Return the servers that require a login."""
        return self._manager.waiting_logins() if self._manager is not None else ()

    def login_url(self, name: str) -> str:
        """Return the authorization URL of a login in progress, or an empty string."""
        return self._manager.login_url(name) if self._manager is not None else ""


class McpCommands:
    """Slash commands for MCP prompts: `/server:prompt words name=value`. The server renders the prompt."""

    def __init__(self, mcp: McpExtension) -> None:
        self._mcp = mcp

    def commands(self) -> Sequence[CommandInfo]:
        """Return a command for each known prompt."""
        return [_note(prompt) for prompt in self._mcp.prompts()]

    async def expand(self, name: str, arguments: str, named: Mapping[str, str]) -> str | None:
        """Return the text of the prompt, or None if `name` is not an MCP prompt."""
        server, colon, prompt = name.partition(":")
        if not colon or server not in self._mcp.states():
            return None
        servers = await self._mcp.manager()
        await servers.wait_lists(server)
        known = next((known for known in servers.prompts() if known.id == name), None)
        if known is None:
            return None
        return await servers.prompt(server, prompt, {**parse_arguments(arguments, known.arguments), **named})


def _note(prompt: McpPrompt) -> CommandInfo:
    hint = " ".join(f"<{item.id}>" if item.required else f"[{item.id}]" for item in prompt.arguments)
    arguments = tuple(CommandArgument(item.id, item.description, item.required) for item in prompt.arguments)
    return CommandInfo(prompt.id, "mcp", prompt.description or prompt.title, hint, arguments)


def parse_arguments(typed: str, declared: Sequence[McpArgument]) -> dict[str, str]:
    """Assign the typed arguments: `name=value` for known names, other words in order. The last argument receives all
    remaining words.
    """
    names = [item.id for item in declared]
    found: dict[str, str] = {}
    words: list[str] = []
    for word in split_words(typed):
        name, sign, value = word.partition("=")
        if sign and name in names:
            found[name] = value
        else:
            words.append(word)
    left = [name for name in names if name not in found]
    for index, name in enumerate(left):
        if words:
            found[name] = " ".join(words) if index == len(left) - 1 else words.pop(0)
    return found
