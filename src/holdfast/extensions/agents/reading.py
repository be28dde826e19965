"""Parses an agent file: name, description, tools, model and instructions. Pure."""

import re

import msgspec

from holdfast.config.problems import Problem
from holdfast.config.trust import file_digest
from holdfast.domain.tool_names import our_tool
from holdfast.extensions.claude import our_model
from holdfast.extensions.documents import document_of, first_error, model_problems, problem_in, text_in
from holdfast.extensions.folders import Owner
from holdfast.extensions.frontmatter import Document, Value, texts
from holdfast.extensions.shelves import MarkdownFile

__all__ = ["AgentFile", "read_agent"]

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
        file_digest(file.data),
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
    return None if found in ((), ("*",)) else tuple(dict.fromkeys(our_tool(name.partition("(")[0]) for name in found))
