"""The MCP servers of a workspace, as seen by the rest of the program.

A workspace without MCP servers does not pay for them: the implementation is loaded when the settings name a server.
Servers start shortly after the workspace has opened, so that the first responses are not delayed. The lists of the last
connection are cached. An unattended run waits, for a limited time, for a server whose tools are not known yet; any
other run starts with the tools that are available.
"""

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.domain.errors import BadRequest
from holdfast.domain.extensions import NEVER, CommandArgument, CommandNote, McpArgument, McpInfo, McpLogin, McpPrompt
from holdfast.domain.settings import McpSettings
from holdfast.domain.tools import Tool
from holdfast.extensions.base import ExtensionContext
from holdfast.providers.http_client import in_thread
from holdfast.tasks import TaskOwner

__all__ = ["McpCommands", "McpExtension", "arguments_in"]


if TYPE_CHECKING:
    from holdfast.extensions.mcp.mcp_manager import McpManager


PAUSE = 0.3
"""Seconds between the opening of a workspace and the start of its servers."""
_MANAGER = "holdfast.extensions.mcp.mcp_manager"


class McpExtension:
    """The MCP extension of a workspace. Loads `McpManager` on first use and delegates to it."""

    def __init__(self, ground: ExtensionContext, pause: float = PAUSE) -> None:
        self._ground = ground
        self._pause = pause
        self._tasks = TaskOwner()
        self._loading: asyncio.Task[None] | None = None
        self._servers: McpManager | None = None
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
        await in_thread(_MANAGER)
        # The import below only looks the loaded module up. It is an import statement so that types are checked.
        from holdfast.extensions.mcp.mcp_manager import McpManager, ToolCache  # noqa: PLC0415

        cache = await asyncio.to_thread(ToolCache, self._ground.data_dir)
        self._servers = McpManager(self._ground, cache, self._pause)
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

    async def servers(self) -> "McpManager":
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


# Prompts of MCP servers as slash commands: `/server:prompt words name=value`.


class McpCommands:
    """Slash commands for MCP prompts. The server renders the prompt when the command is used."""

    def __init__(self, mcp: McpExtension) -> None:
        self._mcp = mcp

    def commands(self) -> Sequence[CommandNote]:
        """Return a command for each known prompt."""
        return [_note(prompt) for prompt in self._mcp.prompts()]

    async def expand(self, name: str, arguments: str, given: Mapping[str, str]) -> str | None:
        """Return the text of the prompt, or None if `name` is not an MCP prompt."""
        server, colon, prompt = name.partition(":")
        if not colon or server not in self._mcp.states():
            return None
        servers = await self._mcp.servers()
        await servers.known(server)
        known = next((known for known in servers.prompts() if known.id == name), None)
        if known is None:
            return None
        return await servers.prompt(server, prompt, {**arguments_in(arguments, known.arguments), **given})


def _note(prompt: McpPrompt) -> CommandNote:
    hint = " ".join(f"<{item.id}>" if item.required else f"[{item.id}]" for item in prompt.arguments)
    arguments = tuple(CommandArgument(item.id, item.description, item.required) for item in prompt.arguments)
    return CommandNote(prompt.id, "mcp", prompt.description or prompt.title, hint, arguments)


def arguments_in(typed: str, wanted: Sequence[McpArgument]) -> dict[str, str]:
    """Assign the typed arguments: `name=value` for known names, other words in order. The last argument receives all
    remaining words.
    """
    names = [item.id for item in wanted]
    found: dict[str, str] = {}
    words: list[str] = []
    for word in _words(typed):
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


def _words(typed: str) -> list[str]:
    """Split as a shell does. Text with an unclosed quote is split at white space."""
    try:
        return shlex.split(typed)
    except ValueError:
        return typed.split()
