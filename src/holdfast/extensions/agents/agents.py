"""The user-defined agents of one workspace."""

from collections.abc import Mapping, Sequence

import msgspec

from holdfast.config.problems import Problem
from holdfast.domain.commands import AgentNote
from holdfast.domain.tools import ASKS_PEOPLE, Tool
from holdfast.engine.crews import Crew
from holdfast.engine.ports import Tools
from holdfast.extensions.agents.reading import AgentFile, read_agent
from holdfast.extensions.base import Ground
from holdfast.extensions.folders import agent_folders
from holdfast.extensions.shelves import Shelf
from holdfast.extensions.watch import Looking, Watch

__all__ = ["Agents", "FoundAgents"]

_LOOKING = frozenset({"glob", "grep", "ls", "view"})
_KIND = "agent:"


class FoundAgents(msgspec.Struct, frozen=True):
    """Result of a scan. Project agents take precedence over user agents of the same name."""

    usable: tuple[AgentFile, ...] = ()
    problems: tuple[Problem, ...] = ()
    hidden: tuple[AgentFile, ...] = ()
    """Agents with the same name as one of higher precedence."""


class _NamedTools:
    """Restricts tools to these names. Without names, all tools except those that require user interaction."""

    def __init__(self, tools: Tools, names: frozenset[str] | None) -> None:
        self._tools = tools
        self._names = names

    async def current(self) -> Sequence[Tool]:
        """Return the permitted tools."""
        every = await self._tools.current()
        if self._names is not None:
            return tuple(tool for tool in every if tool.spec.name in self._names)
        return tuple(tool for tool in every if tool.spec.name not in ASKS_PEOPLE)


class Agents(Looking[FoundAgents]):
    """Scans when the workspace opens, before each run, and when the list is requested."""

    def __init__(self, ground: Ground, environment: Mapping[str, str]) -> None:
        self._trust = ground.configuration.trust
        shelf = Shelf("files", read_agent)
        folders = agent_folders(ground.configuration.places, environment)
        super().__init__(Watch(lambda: _found(shelf.look(folders)), FoundAgents()))

    def offered(self) -> tuple[tuple[str, str], ...]:
        """Return the names and descriptions for the agent tool."""
        return tuple((agent.name, agent.description) for agent in self.current.usable)

    def notes(self) -> tuple[AgentNote, ...]:
        """Return the agents for clients."""
        return tuple(self._note(agent) for agent in self.current.usable)

    def crew(self, kind: str, tools: Tools) -> Crew | None:
        """Return the tools, model and prompt of an agent, or None if there is no such agent. An untrusted one is
        read-only.
        """
        if not kind.startswith(_KIND):
            return None
        name = kind.removeprefix(_KIND)
        agent = next((item for item in self.current.usable if item.name == name), None)
        if agent is None:
            return None
        if self.withheld(agent):
            return Crew(_NamedTools(tools, _LOOKING), prompt=agent.prompt)
        names = None if agent.tools is None else frozenset(agent.tools) - ASKS_PEOPLE
        return Crew(_NamedTools(tools, names), agent.model or "large", prompt=agent.prompt)

    def withheld(self, agent: AgentFile) -> tuple[str, ...]:
        """Return the front matter keys that have no effect until the file is trusted."""
        if not agent.needs or self._trust.is_file_trusted(agent.path, agent.digest):
            return ()
        return tuple(key for key, _ in agent.needs)

    def _note(self, agent: AgentFile) -> AgentNote:
        withheld = self.withheld(agent)
        return AgentNote(
            agent.name,
            "project" if agent.owner == "project" else "user",
            agent.description,
            agent.path,
            "" if withheld else agent.model,
            tuple(sorted(_LOOKING)) if withheld else agent.tools,
            withheld,
        )


def _found(agents: Sequence[AgentFile]) -> FoundAgents:
    usable = {agent.name: agent for agent in agents if not agent.error}
    problems = tuple(problem for agent in agents for problem in agent.problems)
    hidden = tuple(agent for agent in agents if not agent.error and usable[agent.name] is not agent)
    return FoundAgents(tuple(usable[name] for name in sorted(usable)), problems, hidden)
