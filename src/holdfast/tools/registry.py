"""Which tools there are."""

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
from holdfast.tools.view import NamedSkill, View
from holdfast.tools.write import Write
from holdfast.workspace.git.git_command import PrivateGit
from holdfast.workspace.process.child_process import Spawn, spawn
from holdfast.workspace.search.search import Searcher
from holdfast.workspace.web_client import WebClient

__all__ = ["AllTools", "BuiltinTools", "SomeTools", "ToolNeeds"]


class ToolNeeds(msgspec.Struct, frozen=True):
    """What the tools need from outside. Each has a default that works by itself, if with less to tell."""

    spawn: Spawn = spawn
    """Starts the programs that search."""
    git: PrivateGit | None = None
    """For searches where there is no ripgrep."""
    settings: Callable[[], ToolSettings] = ToolSettings
    """The limits a user has set, asked at each call."""
    disabled: Callable[[], Iterable[str]] = tuple
    """Names of tools that a user does not want."""
    readable: Callable[[], Sequence[str]] = tuple
    """Directories outside of the workspace that may be read without asking: those of skills."""
    skill_at: Callable[[str], NamedSkill | None] = lambda _: None
    """The skill whose file stands at a real path."""
    known_todos: Known | None = None
    facts: Facts | None = None
    log_file: Callable[[], Path | None] = lambda: None
    download_limit: int = 512 * 1024 * 1024
    web: WebClient = msgspec.field(default_factory=WebClient)
    on_view: Remark = no_remark
    on_change: Remark = no_remark
    """What is to be added to the result when a file was read, or changed."""
    more: Sequence[Tool] = ()
    """Tools that are made elsewhere: those that run commands, ask people, or start agents."""


class BuiltinTools:
    """The tools that come with Holdfast. Made once; asked before every step."""

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
            View(needs.readable, needs.on_view, needs.skill_at),
            Write(needs.on_change),
            *needs.more,
        ]
        self._disabled = needs.disabled
        self._tools: Sequence[Tool] = tuple(sorted(tools, key=lambda tool: tool.spec.name))

    async def current(self) -> Sequence[Tool]:
        unwanted = frozenset(map(canonical_tool_name, self._disabled()))
        return tuple(tool for tool in self._tools if tool.spec.name not in unwanted)


class SomeTools:
    """Of these only the ones with these names, and a few more."""

    def __init__(self, tools: "BuiltinTools | AllTools", names: frozenset[str], *more: Tool) -> None:
        self._tools = tools
        self._names = names
        self._more = more

    async def current(self) -> Sequence[Tool]:
        return (*(tool for tool in await self._tools.current() if tool.spec.name in self._names), *self._more)


class AllTools:
    """Those that come with Holdfast, and those that people brought along, which take no name that is taken."""

    def __init__(self, builtin: BuiltinTools, brought: Callable[[], Sequence[Tool]]) -> None:
        self._builtin = builtin
        self._brought = brought

    async def current(self) -> Sequence[Tool]:
        own = await self._builtin.current()
        names = {tool.spec.name for tool in own}
        return (*own, *(tool for tool in self._brought() if tool.spec.name not in names))
