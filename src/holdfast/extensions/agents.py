"""The user-defined agents of one workspace.

An agent is a Markdown file with front matter: name, description, tools, model, and instructions as the body.
"""

import re
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.config.problems import FileProblem
from holdfast.config.trust import content_digest
from holdfast.domain.extensions import SubagentInfo
from holdfast.domain.tools import INTERACTIVE_TOOLS, Tool, canonical_tool_name
from holdfast.engine.ports import Tools
from holdfast.engine.run_context import SubagentType
from holdfast.extensions.base import ExtensionContext
from holdfast.extensions.markdown_dir import CachedScan, MarkdownDirectory, MarkdownFile, ScannedExtension
from holdfast.extensions.markdown_document import (
    MarkdownDocument,
    Value,
    file_problem,
    first_error,
    model_problems,
    parse_file,
    split_list,
    text_field,
)
from holdfast.extensions.search_paths import Owner, agent_directories, resolve_model_alias

__all__ = ["AgentFile", "Agents", "FoundAgents", "parse_agent"]

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
    trust_keys: tuple[tuple[str, int], ...] = ()
    model_line: int = 0
    tools_line: int = 0
    problems: tuple[FileProblem, ...] = ()

    @property
    def error(self) -> str:
        """The first error, or an empty string."""
        return first_error(self.problems)


def parse_agent(file: MarkdownFile) -> AgentFile:
    """Parse an agent file. Problems are stored in the result."""
    document = parse_file(file)
    name = file.name.rpartition(":")[2]
    if not isinstance(document, FileProblem):
        name = text_field(document, "name") or name
        document = _first_problem(file, document, name) or document
    if isinstance(document, FileProblem):
        return AgentFile(name, file.path, file.folder.owner, problems=(document,))
    tools = _tools(document)
    model = resolve_model_alias(text_field(document, "model"))
    keys = ["tools", *(["model"] if model else [])] if file.folder.owner == "project" else []
    return AgentFile(
        name,
        file.path,
        file.folder.owner,
        document.body.strip(),
        text_field(document, "description"),
        tools,
        model,
        content_digest(file.data),
        tuple((key, document.lines.get(key, 1)) for key in keys),
        document.lines.get("model", 0),
        document.lines.get("tools", 0),
        model_problems(file, document),
    )


def _first_problem(file: MarkdownFile, document: MarkdownDocument, name: str) -> FileProblem | None:
    if not _NAME.fullmatch(name):
        text = "expected a letter, then letters, digits, hyphens or underscores."
        return file_problem(file, document.lines.get("name", 0), text, "name")
    if not text_field(document, "description"):
        text = "is missing: it describes when to use the agent."
        return file_problem(file, document.lines.get("description", 1), text, "description")
    if not _are_names(document.fields.get("tools", "")):
        # Ignoring the key would grant all tools, more than intended.
        text = "expected names, with commas between them or as a list."
        return file_problem(file, document.lines["tools"], text, "tools")
    if disallowing := next((key for key in document.fields if key.replace("-", "").lower() == "disallowedtools"), None):
        text = "is not supported: name the tools it may use with tools."
        return file_problem(file, document.lines.get(disallowing, 0), text, disallowing)
    if not document.body.strip():
        return file_problem(
            file, document.body_line, "there is no text below: the body contains the instructions of the agent."
        )
    return None


def _are_names(value: Value) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def _tools(document: MarkdownDocument) -> tuple[str, ...] | None:
    if "tools" not in document.fields:
        return None
    found = split_list(document.fields["tools"])
    return (
        None
        if found in ((), ("*",))
        else tuple(dict.fromkeys(canonical_tool_name(name.partition("(")[0]) for name in found))
    )


_READ_ONLY_TOOLS = frozenset({"glob", "grep", "ls", "view"})
_TYPE_PREFIX = "agent:"


class FoundAgents(msgspec.Struct, frozen=True):
    """Result of a scan. Project agents take precedence over user agents of the same name."""

    usable: tuple[AgentFile, ...] = ()
    problems: tuple[FileProblem, ...] = ()
    hidden: tuple[AgentFile, ...] = ()
    """Agents with the same name as one of higher precedence."""


class _FilteredTools:
    """Restricts tools to these names. Without names, all tools except those that require user interaction."""

    def __init__(self, tools: Tools, names: frozenset[str] | None) -> None:
        self._tools = tools
        self._names = names

    async def current(self) -> Sequence[Tool]:
        """Return the permitted tools."""
        all_tools = await self._tools.current()
        if self._names is not None:
            return tuple(tool for tool in all_tools if tool.spec.name in self._names)
        return tuple(tool for tool in all_tools if tool.spec.name not in INTERACTIVE_TOOLS)


class Agents(ScannedExtension[FoundAgents]):
    """Scans when the workspace opens, before each run, and when the list is requested."""

    def __init__(self, context: ExtensionContext, environment: Mapping[str, str]) -> None:
        self._trust = context.configuration.trust
        directory = MarkdownDirectory("files", parse_agent)
        folders = agent_directories(context.configuration.locations, environment)
        super().__init__(CachedScan(lambda: _select(directory.scan(folders)), FoundAgents()))

    def descriptions(self) -> tuple[tuple[str, str], ...]:
        """Return the names and descriptions for the agent tool."""
        return tuple((agent.name, agent.description) for agent in self.current.usable)

    def notes(self) -> tuple[SubagentInfo, ...]:
        """Return the agents for clients."""
        return tuple(self._to_note(agent) for agent in self.current.usable)

    def subagent_type(self, kind: str, tools: Tools) -> SubagentType | None:
        """Return the tools, model and prompt of an agent, or None if there is no such agent. An untrusted one is
        read-only.
        """
        if not kind.startswith(_TYPE_PREFIX):
            return None
        name = kind.removeprefix(_TYPE_PREFIX)
        agent = next((item for item in self.current.usable if item.name == name), None)
        if agent is None:
            return None
        if self.withheld_keys(agent):
            return SubagentType(_FilteredTools(tools, _READ_ONLY_TOOLS), prompt=agent.prompt)
        names = None if agent.tools is None else frozenset(agent.tools) - INTERACTIVE_TOOLS
        return SubagentType(_FilteredTools(tools, names), agent.model or "large", prompt=agent.prompt)

    def withheld_keys(self, agent: AgentFile) -> tuple[str, ...]:
        """Return the front matter keys that have no effect until the file is trusted."""
        if not agent.trust_keys or self._trust.is_file_trusted(agent.path, agent.digest):
            return ()
        return tuple(key for key, _ in agent.trust_keys)

    def _to_note(self, agent: AgentFile) -> SubagentInfo:
        withheld = self.withheld_keys(agent)
        return SubagentInfo(
            agent.name,
            "project" if agent.owner == "project" else "user",
            agent.description,
            agent.path,
            "" if withheld else agent.model,
            tuple(sorted(_READ_ONLY_TOOLS)) if withheld else agent.tools,
            withheld,
        )


def _select(agents: Sequence[AgentFile]) -> FoundAgents:
    usable = {agent.name: agent for agent in agents if not agent.error}
    problems = tuple(problem for agent in agents for problem in agent.problems)
    hidden = tuple(agent for agent in agents if not agent.error and usable[agent.name] is not agent)
    return FoundAgents(tuple(usable[name] for name in sorted(usable)), problems, hidden)
