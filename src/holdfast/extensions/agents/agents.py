"""The agents of one workspace: which there are, and what each of them works with."""

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
    """One look. Of two with the same name the project's stands above the user's."""

    usable: tuple[AgentFile, ...] = ()
    problems: tuple[Problem, ...] = ()
    hidden: tuple[AgentFile, ...] = ()
    """Below another of the same name."""


class _NamedTools:
    """Of all tools those with these names; without names all but the few that are not for helpers."""

    def __init__(self, tools: Tools, names: frozenset[str] | None) -> None:
        self._tools = tools
        self._names = names

    async def current(self) -> Sequence[Tool]:
        every = await self._tools.current()
        if self._names is not None:
            return tuple(tool for tool in every if tool.spec.name in self._names)
        return tuple(tool for tool in every if tool.spec.name not in ASKS_PEOPLE)


class Agents(Looking[FoundAgents]):
    """Looked at when the workspace opens, before each run, and whenever somebody asks for the list."""

    def __init__(self, ground: Ground, environment: Mapping[str, str]) -> None:
        self._trust = ground.configuration.trust
        shelf = Shelf("files", read_agent)
        folders = agent_folders(ground.configuration.places, environment)
        super().__init__(Watch(lambda: _found(shelf.look(folders)), FoundAgents()))

    def offered(self) -> tuple[tuple[str, str], ...]:
        """Names, and when to send each."""
        return tuple((agent.name, agent.description) for agent in self.current.usable)

    def notes(self) -> tuple[AgentNote, ...]:
        return tuple(self._note(agent) for agent in self.current.usable)

    def crew(self, kind: str, tools: Tools) -> Crew | None:
        """What an agent works with, of all tools there are. None if there is no such agent."""
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
        """The keys of its front matter that have no effect until somebody trusts the file."""
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
