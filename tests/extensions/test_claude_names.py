"""Claude Code's names for tools, rules and models."""

import msgspec
import pytest

from holdfast.domain.permission_rules import parse_rules
from holdfast.domain.tools import canonical_tool_name, claude_tool_name
from holdfast.extensions.search_paths import resolve_model_alias


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("Read", "view"), ("Bash", "bash"), ("mcp__git__log_all", "mcp_git_log_all"), ("view", "view"), ("X", "X")],
)
def test_tools(theirs: str, ours: str) -> None:
    assert canonical_tool_name(theirs) == ours


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [("view", "Read"), ("multiedit", "MultiEdit"), ("agent", "Task"), ("mcp_git_log", "mcp__git__log")],
)
def test_claude_tools(ours: str, theirs: str) -> None:
    assert claude_tool_name(ours) == theirs


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("Bash(git add:*)", "bash(git add *)"),
        ("Bash(npm test)", "bash(npm test)"),
        ("Bash", "bash"),
        ("Bash(*)", "bash"),
        ("Read(src/**)", "view(src/**)"),
        ("Edit(/docs/**)", "edit(docs/**)"),
        ("Edit(//docs/**)", "edit(/docs/**)"),
        ("Read(.env)", "view(**/.env)"),
        ("WebFetch(domain:example.com)", "fetch(https://example.com/*)"),
        ("bash(git status *)", "bash(git status *)"),
        ("mcp__time", "mcp_time_*"),
        ("mcp__time__now", "mcp_time_now"),
    ],
)
def test_rules(theirs: str, ours: str) -> None:
    """Of several readings the last one is our rule beside it."""
    *_, found = parse_rules(theirs, "allow")
    (expected,) = parse_rules(ours, "allow")
    assert msgspec.structs.replace(found, text="") == msgspec.structs.replace(expected, text="")
    assert found.ours == ours


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("haiku", "small"), ("Sonnet", ""), ("inherit", ""), ("", ""), ("openai/gpt-5", "openai/gpt-5")],
)
def test_models(theirs: str, ours: str) -> None:
    assert resolve_model_alias(theirs) == ours
