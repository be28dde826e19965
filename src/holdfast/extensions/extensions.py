"""All extensions of one workspace."""

import asyncio
import logging
import os
from collections.abc import Sequence

import msgspec

from holdfast.domain.runs import Brief
from holdfast.domain.tools import Tool, canonical_tool_name
from holdfast.extensions.agents import Agents
from holdfast.extensions.base import Extension, ExtensionContext
from holdfast.extensions.commands import Commands, SkillCommands, mentions
from holdfast.extensions.hooks.hooks import Hooks
from holdfast.extensions.lsp.extension import LanguageServers
from holdfast.extensions.mcp.extension import McpCommands, McpExtension
from holdfast.extensions.skills.skills import Skills

__all__ = ["Extensions"]

_NAMED = (
    "(With the @ the user names agents: {}. Send what belongs to each of them with the agent tool, its name as agent.)"
)
_log = logging.getLogger("holdfast.server")


class Extensions:
    """Starts, refreshes and closes the extensions together. An extension that fails to close does not affect the
    others.
    """

    def __init__(self, ground: ExtensionContext) -> None:
        self.ground = ground
        self.lsp = LanguageServers(ground)
        self.mcp = McpExtension(ground)
        # The directories of user files are taken from the server's environment, not from the client's, because these
        # files may run commands.
        self.skills = Skills(ground, os.environ)
        self.hooks = Hooks(ground, os.environ)
        self.commands = Commands(ground, os.environ)
        self.commands.offer(SkillCommands(self.skills))
        self.commands.offer(McpCommands(self.mcp))
        self.agents = Agents(ground, os.environ)
        self._all: tuple[Extension, ...] = (
            self.lsp,
            self.mcp,
            self.skills,
            self.hooks,
            self.commands,
            self.agents,
        )

    def start(self) -> None:
        """Start all extensions."""
        for extension in self._all:
            extension.start()

    def refresh(self) -> None:
        """Apply changed settings or trust to all extensions."""
        for extension in self._all:
            extension.refresh()

    def tools(self) -> Sequence[Tool]:
        """Return the tools of all extensions, without disabled ones."""
        unwanted = frozenset(map(canonical_tool_name, self.ground.configuration.settings.options.disabled_tools))
        brought = (tool for extension in self._all for tool in extension.tools())
        return tuple(tool for tool in brought if tool.spec.name not in unwanted)

    def notes(self) -> tuple[str, ...]:
        """Return the notes of the extensions for the system prompt."""
        return (*self.skills.notes(), *self.mcp.notes(), *self.lsp.notes())

    async def look(self) -> None:
        """Scan the disk for skills and agents. Called before each run, with a time limit."""
        # Sequential, because concurrent scans in several threads slow each other down.
        await self.skills.fresh()
        await self.agents.fresh()

    async def brief(self, prompt: str) -> Brief | None:
        """Expand a prompt that invokes a command or mentions agents; None for other prompts. Raises `HoldfastError`."""
        brief = await self.commands.brief(prompt)
        if "@" not in prompt:
            return brief
        named = mentions(prompt, [agent.name for agent in (await self.agents.fresh()).usable])
        if not named:
            return brief
        brief = brief or Brief(prompt)
        return msgspec.structs.replace(brief, text=f"{brief.text}\n\n{_NAMED.format(', '.join(named))}")

    async def settled(self) -> None:
        """Wait until the initial MCP tools are available. Only unattended runs wait for it."""
        await self.mcp.settled()

    async def close(self) -> None:
        """Close all extensions. Errors are logged."""
        ends = await asyncio.gather(*(extension.close() for extension in self._all), return_exceptions=True)
        for end in ends:
            if isinstance(end, BaseException):
                _log.warning("an extension did not close: %s", end)
