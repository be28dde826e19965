"""All extensions of one workspace."""

import asyncio
import logging
import os
from collections.abc import Sequence

import msgspec

from holdfast.domain.runs import PromptExpansion
from holdfast.domain.tools import Tool, canonical_tool_name
from holdfast.extensions.agents import Agents
from holdfast.extensions.base import Extension, ExtensionContext
from holdfast.extensions.commands import Commands, SkillCommands, mentioned_agents
from holdfast.extensions.hooks.hooks import Hooks
from holdfast.extensions.lsp.extension import LanguageServers
from holdfast.extensions.mcp.extension import McpCommands, McpExtension
from holdfast.extensions.skills.skills import Skills

__all__ = ["Extensions"]

_MENTION_NOTE = (
    "(The user mentions agents with @: {}. Delegate the task of each one with the agent tool, with its name as agent.)"
)
_log = logging.getLogger("holdfast.server")


class Extensions:
    """Starts, refreshes and closes the extensions together. An extension that fails to close does not affect the
    others.
    """

    def __init__(self, context: ExtensionContext) -> None:
        self.context = context
        self.lsp = LanguageServers(context)
        self.mcp = McpExtension(context)
        # The directories of user files are taken from the server's environment, not from the client's, because these
        # files may run commands.
        self.skills = Skills(context, os.environ)
        self.hooks = Hooks(context, os.environ)
        self.commands = Commands(context, os.environ)
        self.commands.add_provider(SkillCommands(self.skills))
        self.commands.add_provider(McpCommands(self.mcp))
        self.agents = Agents(context, os.environ)
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
        settings = self.context.configuration.settings
        disabled = frozenset(map(canonical_tool_name, settings.options.disabled_tools))
        available = (tool for extension in self._all for tool in extension.tools())
        return tuple(tool for tool in available if tool.spec.name not in disabled)

    def notes(self) -> tuple[str, ...]:
        """Return the notes of the extensions for the system prompt."""
        return (*self.skills.notes(), *self.mcp.notes(), *self.lsp.notes())

    async def rescan(self) -> None:
        """Scan the disk for skills and agents. Called before each run, with a time limit."""
        # Sequential, because concurrent scans in several threads slow each other down.
        await self.skills.rescan()
        await self.agents.rescan()

    async def expand_prompt(self, prompt: str) -> PromptExpansion | None:
        """Expand a prompt that invokes a command or mentions agents; None for other prompts. Raises `HoldfastError`."""
        brief = await self.commands.expand(prompt)
        if "@" not in prompt:
            return brief
        named = mentioned_agents(prompt, [agent.name for agent in (await self.agents.rescan()).usable])
        if not named:
            return brief
        brief = brief or PromptExpansion(prompt)
        return msgspec.structs.replace(brief, text=f"{brief.text}\n\n{_MENTION_NOTE.format(', '.join(named))}")

    async def wait_settled(self) -> None:
        """Wait until the initial MCP tools are available. Only unattended runs wait for it."""
        await self.mcp.wait_settled()

    async def close(self) -> None:
        """Close all extensions. Errors are logged."""
        results = await asyncio.gather(*(extension.close() for extension in self._all), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                _log.warning("an extension did not close: %s", result)
