"""The user-defined agents of one workspace."""

import re
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.config.problems import Problem
from holdfast.config.trust import content_digest
from holdfast.domain.extensions import AgentNote
from holdfast.domain.tools import INTERACTIVE_TOOLS, Tool, canonical_tool_name
from holdfast.engine.ports import Tools
from holdfast.engine.run_context import SubagentType
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.markdown_dir import CachedScan, Looking, MarkdownDirectory, MarkdownFile
from holdfast.extensions.markdown_document import (
    Document,
    Value,
    document_of,
    first_error,
    model_problems,
    problem_in,
    text_in,
    texts,
)
from holdfast.extensions.search_paths import Owner, agent_folders, our_model

__all__ = ["AgentFile", "Agents", "FoundAgents", "read_agent"]


# Parses an agent file: name, description, tools, model and instructions. Pure.

_NAME = re.compile(r"[A-Za-z][\w-]{0,63}")


class AgentFile(msgspec.Struct, frozen=True):
    """An agent definition. It is unusable if its problems contain an error.

    `tools` is None for all tools. An untrusted project agent has read-only tools and the default model.
    """

    name: str
    path: str
    owner: Owner
    prompt: str = ""
    description: str = ""
    tools: tuple[str, ...] | None = None
    model: str = ""
    digest: str = ""
    needs: tuple[tuple[str, int], ...] = ()
    model_line: int = 0
    tools_line: int = 0
    problems: tuple[Problem, ...] = ()

    @property
    def error(self) -> str:
        """The first error, or an empty string."""
        return first_error(self.problems)


def read_agent(file: MarkdownFile) -> AgentFile:
    """Parse an agent file. Problems are stored in the result."""
    document = document_of(file)
    name = file.name.rpartition(":")[2]
    if not isinstance(document, Problem):
        name = text_in(document, "name") or name
        document = _refused(file, document, name) or document
    if isinstance(document, Problem):
        return AgentFile(name, file.path, file.folder.owner, problems=(document,))
    tools = _tools(document)
    model = our_model(text_in(document, "model"))
    keys = ["tools", *(["model"] if model else [])] if file.folder.owner == "project" else []
    return AgentFile(
        name,
        file.path,
        file.folder.owner,
        document.body.strip(),
        text_in(document, "description"),
        tools,
        model,
        content_digest(file.data),
        tuple((key, document.lines.get(key, 1)) for key in keys),
        document.lines.get("model", 0),
        document.lines.get("tools", 0),
        model_problems(file, document),
    )


def _refused(file: MarkdownFile, document: Document, name: str) -> Problem | None:
    if not _NAME.fullmatch(name):
        text = "expected a letter, then letters, digits, hyphens or underscores."
        return problem_in(file, document.lines.get("name", 0), text, "name")
    if not text_in(document, "description"):
        text = "is missing: it says when to send the agent."
        return problem_in(file, document.lines.get("description", 1), text, "description")
    if not _are_names(document.fields.get("tools", "")):
        # Ignoring the key would grant all tools, more than intended.
        text = "expected names, with commas between them or as a list."
        return problem_in(file, document.lines["tools"], text, "tools")
    if forbidding := next((key for key in document.fields if key.replace("-", "").lower() == "disallowedtools"), None):
        text = "is not supported: name the tools it may use with tools."
        return problem_in(file, document.lines.get(forbidding, 0), text, forbidding)
    if not document.body.strip():
        return problem_in(file, document.body_line, "there is no text below: it tells the agent how to work.")
    return None


def _are_names(value: Value) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def _tools(document: Document) -> tuple[str, ...] | None:
    if "tools" not in document.fields:
        return None
    found = texts(document.fields["tools"])
    return (
        None
        if found in ((), ("*",))
        else tuple(dict.fromkeys(canonical_tool_name(name.partition("(")[0]) for name in found))
    )


# The user-defined agents of one workspace.

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
        return tuple(tool for tool in every if tool.spec.name not in INTERACTIVE_TOOLS)


class Agents(Looking[FoundAgents]):
    """Scans when the workspace opens, before each run, and when the list is requested."""

    def __init__(self, ground: ExtensionContext, environment: Mapping[str, str]) -> None:
        self._trust = ground.configuration.trust
        shelf = MarkdownDirectory("files", read_agent)
        folders = agent_folders(ground.configuration.locations, environment)
        super().__init__(CachedScan(lambda: _found(shelf.look(folders)), FoundAgents()))

    def offered(self) -> tuple[tuple[str, str], ...]:
        """Return the names and descriptions for the agent tool."""
        return tuple((agent.name, agent.description) for agent in self.current.usable)

    def notes(self) -> tuple[AgentNote, ...]:
        """Return the agents for clients."""
        return tuple(self._note(agent) for agent in self.current.usable)

    def subagent_type(self, kind: str, tools: Tools) -> SubagentType | None:
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
            return SubagentType(_NamedTools(tools, _LOOKING), prompt=agent.prompt)
        names = None if agent.tools is None else frozenset(agent.tools) - INTERACTIVE_TOOLS
        return SubagentType(_NamedTools(tools, names), agent.model or "large", prompt=agent.prompt)

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
