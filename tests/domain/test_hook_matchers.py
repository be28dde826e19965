"""Matchers of hooks: each clause of the check decides a result."""

import pytest

from holdfast.domain.hooks import matcher_trouble
from planting import assert_every_clause_decides

NO_PATTERN, NO_TOOL, NO_WAY = "not a regular expression", "matches no tool", "matches no way"
ROWS = [
    ("PreToolUse", "", ""),
    ("PreToolUse", "*", ""),
    ("PreToolUse", "bash", ""),
    ("PreToolUse", "^Bash$", ""),
    ("PreToolUse", "mcp__unknown__tool", ""),
    ("PostToolUse", "mcp_unknown_.*", ""),
    ("PreToolUse", "nothing_like_it", NO_TOOL),
    ("PreToolUse", "(", NO_PATTERN),
    ("PreToolUse", "a{99999999999999}", NO_PATTERN),
    ("PreToolUse", "startup", NO_TOOL),
    ("SessionStart", "startup", ""),
    ("SessionStart", "bash", NO_WAY),
    ("SessionStart", "", ""),
    ("SessionStart", "(", NO_PATTERN),
    ("RunEnd", "nothing_like_it", ""),
    ("RunEnd", "(", ""),
    ("UserPromptSubmit", "nothing_like_it", ""),
    (None, "nothing_like_it", ""),
]


@pytest.mark.parametrize(("event", "matcher", "trouble"), ROWS)
def test_matcher_matches_tool_names(event: str | None, matcher: str, trouble: str) -> None:
    found = matcher_trouble(event, matcher)  # type: ignore[arg-type]
    assert bool(found) == bool(trouble)
    assert trouble in found


def test_every_clause_decides() -> None:
    def check() -> None:
        for event, matcher, trouble in ROWS:
            test_matcher_matches_tool_names(event, matcher, trouble)

    assert_every_clause_decides([matcher_trouble], check)
