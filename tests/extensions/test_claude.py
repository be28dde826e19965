"""Claude Code's names for tools, rules and models."""

import pytest

from holdfast.extensions.claude import our_model, our_rule, our_tool, their_tool
from holdfast.permissions.patterns import parse_rule


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("Read", "view"), ("Bash", "bash"), ("mcp__git__log_all", "mcp_git_log_all"), ("view", "view"), ("X", "X")],
)
def test_tools(theirs: str, ours: str) -> None:
    assert our_tool(theirs) == ours


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("view", "Read"), ("multiedit", "MultiEdit"), ("agent", "Task"), ("mcp_git_log", "mcp__git__log")],
)
def test_their_tools(ours: str, theirs: str) -> None:
    assert their_tool(ours) == theirs


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("Bash(git add:*)", "bash(git add *)"),
        ("Bash(npm test)", "bash(npm test)"),
        ("Bash", "bash"),
        ("Bash(*)", "bash"),
        ("Read(src/**)", "view(src/**)"),
        ("WebFetch(domain:example.com)", "fetch(https://example.com/*)"),
        ("bash(git status *)", "bash(git status *)"),
        ("mcp__time", "mcp_time"),
    ],
)
def test_rules(theirs: str, ours: str) -> None:
    assert our_rule(theirs) == ours
    parse_rule(ours, "allow")


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("haiku", "small"), ("Sonnet", ""), ("inherit", ""), ("", ""), ("openai/gpt-5", "openai/gpt-5")],
)
def test_models(theirs: str, ours: str) -> None:
    assert our_model(theirs) == ours
