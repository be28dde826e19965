"""Configured hooks and their selection by event."""

import json
from typing import Any

import pytest

from holdfast.config.line_numbers import KeyPath
from holdfast.config.merge import SettingOrigin
from holdfast.domain.settings import HookSettings
from holdfast.extensions.hooks.hook_config import Hook, hooks_from_settings, matching_hooks, parse_claude_settings


def claude(tree: object) -> bytes:
    return json.dumps(tree).encode()


def group(*commands: str, matcher: str = "", **more: Any) -> dict[str, Any]:  # noqa: ANN401
    return {"matcher": matcher, "hooks": [{"type": "command", "command": command, **more} for command in commands]}


@pytest.mark.parametrize("name", ["PreToolUse", "pre_tool_use", "pre-tool-use", "PRETOOLUSE"])
def test_event_names_in_all_spellings(name: str) -> None:
    (hook,) = hooks_from_settings({name: (HookSettings("x", timeout=5),)}, {})
    assert (hook.event, hook.timeout) == ("PreToolUse", 5)


def test_invalid_hooks_are_not_run() -> None:
    """They are reported with the settings that contain them: tests/server/test_rule_errors.py."""
    settings = {
        "Nonsense": (HookSettings("x"),),
        "PreToolUse": (
            HookSettings(" "),
            HookSettings("ok", matcher="("),
            HookSettings("never", matcher="^bahs$"),
            HookSettings("good", matcher="^bash$"),
        ),
    }
    origins: dict[KeyPath, SettingOrigin] = {
        ("hooks", "PreToolUse", 3, "command"): SettingOrigin("/c.toml", 6, may_run=True)
    }
    (hook,) = hooks_from_settings(settings, origins)
    assert (hook.command, hook.file, hook.line) == ("good", "/c.toml", 6)


def test_claude_code_format() -> None:
    tree = {
        "permissions": {},
        "hooks": {
            "PreToolUse": [group("a", "b", matcher="Bash|Write", timeout=3)],
            "Stop": [{"hooks": [{"type": "command", "command": "c"}]}],
            "UserPromptSubmit": [group("d", matcher="(")],
            "Notification": [group("e")],
        },
    }
    found = parse_claude_settings(claude(tree), "/s.json")
    reported = [(hook.event, hook.command, hook.matcher, hook.timeout, hook.dialect) for hook in found.hooks]
    assert reported == [
        ("PreToolUse", "a", "Bash|Write", 3, "claude"),
        ("PreToolUse", "b", "Bash|Write", 3, "claude"),
        ("RunEnd", "c", "", 60, "claude"),
        ("UserPromptSubmit", "d", "", 60, "claude"),
    ]
    assert [problem.severity for problem in found.problems] == ["warning"]


@pytest.mark.parametrize(
    "tree",
    [
        {"hooks": []},
        {"hooks": {"PreToolUse": {}}},
        {"hooks": {"PreToolUse": [3]}},
        {"hooks": {"PreToolUse": [{"hooks": 3}]}},
        {"hooks": {"PreToolUse": [{"matcher": 3, "hooks": []}]}},
        {"hooks": {"PreToolUse": [{"hooks": [3]}]}},
        {"hooks": {"PreToolUse": [{"hooks": [{"command": 3}]}]}},
        {"hooks": {"PreToolUse": [{"hooks": [{"type": "command"}]}]}},
        {"hooks": {"PreToolUse": [group("x", matcher="[")]}},
        {"hooks": {"PreToolUse": [group("x", matcher="Bahs")]}},
        {"hooks": {"Whatever": [group("x")]}},
    ],
)
def test_invalid_claude_code_files(tree: object) -> None:
    found = parse_claude_settings(claude(tree), "/s.json")
    assert found.hooks == ()
    assert [problem.severity for problem in found.problems] == ["error"]
    assert found.problems[0].line == 1


def test_invalid_claude_matcher_is_reported_with_line() -> None:
    data = json.dumps({"hooks": {"PreToolUse": [group("x", matcher="[")]}}, indent=1).encode()
    (problem,) = parse_claude_settings(data, "/s.json").problems
    assert data.splitlines()[problem.line - 1].strip() == b'"matcher": "[",'


@pytest.mark.parametrize("data", [b"{", b"\xff", b"[]", b'{"hooks": ' + b"[" * 5_000])
def test_unparsable_file(data: bytes) -> None:
    found = parse_claude_settings(data, "/s.json")
    assert (found.hooks, len(found.problems)) == ((), 1)


def test_unknown_keys_do_not_drop_hook() -> None:
    tree = {"disableAllHooks": True, "hooks": {"RunEnd": [group("x", timeout="soon"), {"hooks": [{"type": "prompt"}]}]}}
    found = parse_claude_settings(claude(tree), "/s.json")
    assert ([hook.timeout for hook in found.hooks], found.disables_all) == ([60], True)
    assert [problem.severity for problem in found.problems] == ["warning", "warning"]


@pytest.mark.parametrize(
    ("matcher", "dialect", "tool", "fits"),
    [
        ("", "holdfast", "bash", True),
        ("as", "holdfast", "bash", True),
        ("^edit$", "holdfast", "multiedit", False),
        ("Bash", "holdfast", "bash", True),
        ("^(Edit|Write)$", "holdfast", "write", True),
        ("*", "claude", "view", True),
        ("Read", "claude", "view", True),
        ("view", "claude", "view", True),
        ("Edit", "claude", "multiedit", False),
        ("Edit|MultiEdit", "claude", "multiedit", True),
        ("mcp__git.*", "claude", "mcp_git_log", True),
        ("bash", "claude", "bash", True),
    ],
)
def test_matchers(matcher: str, dialect: Any, tool: str, fits: bool) -> None:  # noqa: ANN401
    hook = Hook("PreToolUse", "x", matcher=matcher, dialect=dialect)
    assert bool(matching_hooks([hook], "PreToolUse", tool)) is fits
    assert matching_hooks([hook], "PostToolUse", tool) == ()


def test_session_start_can_be_matched() -> None:
    tree = {"hooks": {"SessionStart": [group("new", matcher="startup"), group("all"), group("no", matcher="compact")]}}
    hooks = parse_claude_settings(claude(tree), "/s.json").hooks
    assert [hook.command for hook in matching_hooks(hooks, "SessionStart", "startup")] == ["new", "all"]
    assert [hook.command for hook in matching_hooks(hooks, "SessionStart", "resume")] == ["all"]


@pytest.mark.parametrize(("value", "disables"), [(True, True), (False, False), ("false", False), (1, False)])
def test_hooks_are_disabled_by_true_alone(value: object, disables: bool) -> None:
    assert parse_claude_settings(json.dumps({"disableAllHooks": value}).encode(), "f").disables_all == disables


def test_a_command_is_run_once() -> None:
    twice = [Hook("RunEnd", "x", name="a"), Hook("RunEnd", "y"), Hook("RunEnd", "x", name="b")]
    assert [hook.name or hook.command for hook in matching_hooks(twice, "RunEnd")] == ["a", "y"]


@pytest.mark.parametrize(
    ("timeout", "ours", "theirs"),
    [(None, 30, 60), (5, 5, 5), (0.5, 0.5, 0.5), (600, 600, 600), (601, 600, 600), (1, 1, 1)],
)
def test_hook_timeouts(timeout: float | None, ours: float, theirs: float) -> None:
    given: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    (mine,) = hooks_from_settings({"RunEnd": (HookSettings("x", **given),)}, {})
    (read,) = parse_claude_settings(claude({"hooks": {"RunEnd": [group("x", **given)]}}), "/s.json").hooks
    assert (mine.timeout, read.timeout) == (ours, theirs)
    assert (mine.name, mine.matcher, mine.dialect, mine.file, mine.line) == ("", "", "holdfast", "", 0)


@pytest.mark.parametrize("timeout", [True, False, 0, -1, "5", None, []])
def test_invalid_timeout_is_reported_and_default_used(timeout: object) -> None:
    data = json.dumps({"hooks": {"RunEnd": [group("x", timeout=timeout)]}}, indent=1).encode()
    found = parse_claude_settings(data, "/s.json")
    assert [hook.timeout for hook in found.hooks] == [60]
    (problem,) = found.problems
    assert (problem.severity, problem.key) == ("warning", "hooks.RunEnd[0].hooks[0].timeout")
    assert data.splitlines()[problem.line - 1].strip().startswith(b'"timeout"')


@pytest.mark.parametrize(("command", "why"), [("", "is empty"), (" \n", "is empty"), ("a\0b", "contains a NUL")])
def test_unusable_command_is_reported(command: str, why: str) -> None:
    assert hooks_from_settings({"RunEnd": (HookSettings(command),)}, {}) == ()
    found = parse_claude_settings(claude({"hooks": {"RunEnd": [group(command)]}}), "/s.json")
    assert found.hooks == ()
    (problem,) = found.problems
    assert (why in problem.text, problem.severity) == (True, "error")


def test_group_without_matcher_matches_everything() -> None:
    hooks = [{"type": "command", "command": "x"}]
    for group_ in ({"hooks": hooks}, {"matcher": None, "hooks": hooks}, {"matcher": "", "hooks": hooks}):
        (hook,) = parse_claude_settings(claude({"hooks": {"PreToolUse": [group_]}}), "/s.json").hooks
        assert matching_hooks([hook], "PreToolUse", "bash") == matching_hooks([hook], "PreToolUse") == (hook,)


def test_lines_and_enabled_state() -> None:
    data = json.dumps({"permissions": {}, "hooks": {"RunEnd": [group("x")]}}, indent=1).encode()
    found = parse_claude_settings(data, "/s.json")
    lines = [line.strip() for line in data.splitlines()]
    assert (found.disables_all, lines[found.line - 1]) == (False, b'"hooks": {')
    (hook,) = found.hooks
    assert (hook.file, lines[hook.line - 1]) == ("/s.json", b'"command": "x"')
    assert parse_claude_settings(b"{}", "/s.json").line == 0


def test_event_without_subject_selects_all_hooks() -> None:
    hook = Hook("PreToolUse", "x", matcher="^bash$")
    assert matching_hooks([hook], "PreToolUse") == (hook,)
    assert matching_hooks([hook], "PreToolUse", "x") == ()
