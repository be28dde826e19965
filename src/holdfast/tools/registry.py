"""Registry of the tools that a model can call."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from holdfast.domain.settings import ToolSettings
from holdfast.domain.tools import Tool, canonical_tool_name
from holdfast.tools.download import Download
from holdfast.tools.edit import Edit, Multiedit
from holdfast.tools.fetch import Fetch
from holdfast.tools.file_edit import Remark, no_remark
from holdfast.tools.glob import Glob
from holdfast.tools.grep import Grep
from holdfast.tools.info import Facts, Info
from holdfast.tools.logs import Logs
from holdfast.tools.ls import Ls
from holdfast.tools.todos import Known, Todos
from holdfast.tools.view import NamedSkill, ViewTool
from holdfast.tools.write import WriteTool
from holdfast.workspace.git.git_command import PrivateGit
from holdfast.workspace.process.piped_process import Spawn, spawn
from holdfast.workspace.search.search import Searcher
from holdfast.workspace.web_client import WebClient

__all__ = ["AllTools", "BuiltinTools", "SomeTools", "ToolNeeds"]


class ToolNeeds(msgspec.Struct, frozen=True):
    """Dependencies of the tools. Each default works by itself, with less information."""

    spawn: Spawn = spawn
    """Starts search programs."""
    git: PrivateGit | None = None
    """For searches without ripgrep."""
    settings: Callable[[], ToolSettings] = ToolSettings
    """Limits from the settings, read at each call."""
    disabled: Callable[[], Iterable[str]] = tuple
    """Names of tools that the user has disabled."""
    readable: Callable[[], Sequence[str]] = tuple
    """Directories outside of the workspace that are readable without approval, such as those of skills."""
    unavailable: Callable[[str], str] = lambda _: ""
    """Returns why a file that may have existed is not available here; empty if nothing is known about it."""
    skill_at: Callable[[str], NamedSkill | None] = lambda _: None
    """Returns the skill whose file has this real path."""
    known_todos: Known | None = None
    facts: Facts | None = None
    log_file: Callable[[], Path | None] = lambda: None
    download_limit: int = 512 * 1024 * 1024
    web: WebClient = msgspec.field(default_factory=WebClient)
    on_view: Remark = no_remark
    on_change: Remark = no_remark
    """Text to add to the result after a file was read (`on_view`) or changed."""
    more: Sequence[Tool] = ()
    """Tools created elsewhere, which run commands, submit questions or start sub-agents."""


class BuiltinTools:
    """The built-in tools. Created once; `current` is called before every step."""

    def __init__(self, needs: ToolNeeds | None = None) -> None:
        needs = needs or ToolNeeds()
        searcher = Searcher(needs.spawn, needs.git)
        tools: list[Tool] = [
            Download(needs.web, lambda: needs.download_limit),
            Edit(needs.on_change),
            Fetch(needs.web),
            Glob(searcher, needs.settings),
            Grep(searcher, needs.settings),
            Info(needs.facts),
            Logs(needs.log_file),
            Ls(needs.settings),
            Multiedit(needs.on_change),
            Todos(needs.known_todos),
            ViewTool(needs.readable, needs.on_view, needs.skill_at, needs.unavailable),
            WriteTool(needs.on_change),
            *needs.more,
        ]
        self._disabled = needs.disabled
        self._tools: Sequence[Tool] = tuple(sorted(tools, key=lambda tool: tool.spec.name))

    async def current(self) -> Sequence[Tool]:
        """Return the tools that are available now."""
        unwanted = frozenset(map(canonical_tool_name, self._disabled()))
        return tuple(tool for tool in self._tools if tool.spec.name not in unwanted)


class SomeTools:
    """A selection of tools by name, with additional ones."""

    def __init__(self, tools: "BuiltinTools | AllTools", names: frozenset[str], *more: Tool) -> None:
        self._tools = tools
        self._names = names
        self._more = more

    async def current(self) -> Sequence[Tool]:
        """Return the tools that are available now."""
        return (*(tool for tool in await self._tools.current() if tool.spec.name in self._names), *self._more)


class AllTools:
    """The built-in tools and those of extensions, which cannot replace a built-in tool of the same name."""

    def __init__(self, builtin: BuiltinTools, extension_tools: Callable[[], Sequence[Tool]]) -> None:
        self._builtin = builtin
        self._extension_tools = extension_tools

    async def current(self) -> Sequence[Tool]:
        """Return the tools that are available now."""
        own = await self._builtin.current()
        names = {tool.spec.name for tool in own}
        return (*own, *(tool for tool in self._extension_tools() if tool.spec.name not in names))
