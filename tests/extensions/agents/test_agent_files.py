"""Agents defined in Markdown files."""

import pytest

from holdfast.extensions.agents import AgentFile, parse_agent
from holdfast.extensions.markdown_dir import MarkdownFile
from holdfast.extensions.search_paths import SearchPath


def read(text: str, owner: str = "user") -> AgentFile:
    folder = SearchPath("/a", "project" if owner == "project" else "user", "claude")
    return parse_agent(MarkdownFile("/a/team/reviewer.md", "team:reviewer", folder, text.encode()))


FULL = "---\nname: critic\ndescription: Finds faults: all.\ntools: Read, Grep, Bash\nmodel: other\n---\nBe strict."


def test_agent_with_all_fields() -> None:
    agent = read(FULL)
    assert (agent.name, agent.description, agent.prompt) == ("critic", "Finds faults: all.", "Be strict.")
    assert (agent.tools, agent.model, agent.trust_keys) == (("view", "grep", "bash"), "other", ())
    assert read(FULL, "project").trust_keys == (("tools", 4), ("model", 5))


def test_agent_with_minimal_fields() -> None:
    agent = read("---\ndescription: x\n---\ny", "project")
    assert (agent.name, agent.tools, agent.model) == ("reviewer", None, "")
    assert agent.trust_keys == (("tools", 1),), "all tools are more than it had before"
    assert read("---\ndescription: x\ntools: '*'\nmodel: inherit\n---\ny").tools is None


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("just text", 1, "description"),
        ("---\nname: a b\ndescription: x\n---\ny", 2, "name"),
        ("---\nname: ../x\ndescription: x\n---\ny", 2, "name"),
        ("---\nname: x\ndescription:\n---\ny", 3, "description"),
        ("---\nname: x\ndescription: y\n---\n\n", 5, ""),
        ("---\nname: x\nname: y\n---\n\n", 3, ""),
        ("---\ndescription: x\ntools:\n  write: false\n---\ny", 3, "tools"),
        ("---\ndescription: x\ntools: false\n---\ny", 3, "tools"),
        ("---\ndescription: x\ntools: [true]\n---\ny", 3, "tools"),
        ("---\ndescription: x\ndisallowedTools: Bash\n---\ny", 3, "disallowedTools"),
        ("---\ndescription: x\ndisallowed-tools: Bash\n---\ny", 3, "disallowed-tools"),
    ],
)
def test_invalid_agent_is_reported_with_line(text: str, line: int, key: str) -> None:
    (problem,) = read(text).problems
    assert (problem.line, problem.key, problem.severity) == (line, key, "error")


def test_invalid_model_name_is_reported() -> None:
    agent = read("---\ndescription: x\nmodel: [a, b]\n---\ny")
    assert (agent.model, agent.error) == ("", "")
    assert [(problem.line, problem.key, problem.severity) for problem in agent.problems] == [(3, "model", "warning")]


@pytest.mark.parametrize(
    ("given", "tools"),
    [
        ("", None),
        ("tools:", None),
        ("tools: '*'", None),
        ("tools: []", None),
        ("tools: Read", ("view",)),
        ("tools: [Read, Grep]", ("view", "grep")),
        ("tools: Read, Read, view", ("view",)),
        ("tools: Bash(git diff:*), Read", ("bash", "view")),
        ("tools: '*, Read'", ("*", "view")),
    ],
)
def test_tools_of_agent(given: str, tools: tuple[str, ...] | None) -> None:
    agent = read(f"---\ndescription: x\n{given}\n---\ny")
    assert (agent.error, agent.tools) == ("", tools)


def test_lines_of_keys() -> None:
    agent = read(FULL)
    assert (agent.model_line, agent.tools_line) == (5, 4)
    plain = read("---\ndescription: x\n---\ny")
    assert (plain.model_line, plain.tools_line) == (0, 0)
    assert agent.digest != plain.digest
