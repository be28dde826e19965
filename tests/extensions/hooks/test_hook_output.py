"""Output of hooks in both formats, and the merged decision of several hooks."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.domain.hooks import HookDecision, HookEvent
from holdfast.extensions.hooks.hook_config import Hook
from holdfast.extensions.hooks.hook_process import HookResult, merge_results, parse_output


@pytest.mark.parametrize(
    ("printed", "means"),
    [
        ({"decision": "allow"}, HookResult("allow")),
        ({"decision": "deny", "reason": "no"}, HookResult("deny", reason="no")),
        ({"version": 1, "decision": None}, HookResult()),
        ({"decision": "maybe"}, HookResult()),
        ({"halt": True, "reason": "stop"}, HookResult("deny", halts=True, reason="stop")),
        ({"context": "a"}, HookResult(context="a")),
        ({"context": ["a", "", 3, "b"]}, HookResult(context="a\nb")),
        ({"updated_input": {"a": 1}}, HookResult(patch={"a": 1})),
        ({"updated_input": '{"a": 1}'}, HookResult(patch={"a": 1})),
        ({"updated_input": "x"}, HookResult()),
        ({"updated_input": [1]}, HookResult()),
        ({"updated_input": {"a": "\ud800"}}, HookResult()),
        ({"reason": "\ud800", "decision": "deny"}, HookResult("deny", reason="?")),
        ({"decision": "approve"}, HookResult("allow")),
        ({"decision": "block", "reason": "no"}, HookResult("deny", reason="no")),
        ({"continue": False, "stopReason": "enough"}, HookResult("deny", halts=True, reason="enough")),
        ({"systemMessage": "hello"}, HookResult(message="hello")),
        (
            {"hookSpecificOutput": {"permissionDecision": "ask", "permissionDecisionReason": "sure?"}},
            HookResult("ask", reason="sure?"),
        ),
        (
            {"hookSpecificOutput": {"permissionDecision": "allow", "updatedInput": {"b": 2}, "additionalContext": "c"}},
            HookResult("allow", context="c", patch={"b": 2}),
        ),
        ({"decision": "allow", "hookSpecificOutput": {"permissionDecision": "deny"}}, HookResult("deny")),
        ({"hookSpecificOutput": 3, "reason": 4, "context": {}}, HookResult()),
        ([], HookResult()),
        ("text", HookResult()),
    ],
)
def test_printed_output(printed: Any, means: HookResult) -> None:  # noqa: ANN401
    assert parse_output("PreToolUse", 0, json.dumps(printed), "") == means


@pytest.mark.parametrize(
    ("code", "means"),
    [
        (2, HookResult("deny", reason="why")),
        (49, HookResult("deny", halts=True, reason="why")),
        (1, HookResult(error="ended with code 1: why.")),
        (127, HookResult(error="ended with code 127: why.")),
    ],
)
def test_exit_codes(code: int, means: HookResult) -> None:
    assert parse_output("PreToolUse", code, '{"decision": "allow"}', "why\n") == means


@pytest.mark.parametrize("event", ["UserPromptSubmit", "SessionStart"])
def test_plain_text_before_prompt_reaches_model(event: HookEvent) -> None:
    assert parse_output(event, 0, "the build is red\n", "") == HookResult(context="the build is red")
    assert parse_output("PostToolUse", 0, "formatted\n", "") == HookResult()
    broken = '{"decision": "deny"} and more'
    assert parse_output("PreToolUse", 0, broken, "") == HookResult(error="printed JSON that is not valid.")
    assert parse_output(event, 0, broken, "") == HookResult(context=broken)


@given(st.text(max_size=80), st.integers(0, 255))
def test_any_output_is_parsed(text: str, code: int) -> None:
    parse_output("PreToolUse", code, text, text)
    parse_output("SessionStart", code, f'{{"hookSpecificOutput": {json.dumps(text)}}}', "")


def test_long_text_is_truncated() -> None:
    assert len(parse_output("PreToolUse", 2, "", "x" * 100_000).reason) < 33_000
    assert parse_output("PreToolUse", 0, "[" * 100_000, "") == HookResult()


def hooks(count: int) -> tuple[Hook, ...]:
    return tuple(Hook("PreToolUse", f"c{number}", matcher="^b") for number in range(count))


DECISIONS: tuple[HookDecision, ...] = ("", "allow", "ask", "deny")


@pytest.mark.parametrize("decisions", list(itertools.product(DECISIONS, repeat=3)))
def test_strictest_decision_wins(decisions: tuple[HookDecision, ...]) -> None:
    output = [HookResult(decision, reason=f"r{number}") for number, decision in enumerate(decisions)]
    ruling = merge_results(hooks(3), output, {})
    strictest = max(decisions, key=DECISIONS.index)
    assert ruling.decision == strictest
    assert ruling.reason == "\n".join(f"r{n}" for n, decision in enumerate(decisions) if decision == strictest)


def test_input_changes_are_merged_in_order() -> None:
    output = [HookResult(patch={"a": 1, "b": 1}), HookResult(), HookResult(patch={"b": 2})]
    ruling = merge_results(hooks(3), output, {"a": 0, "c": 0}, is_about_input=True)
    assert ruling.input == {"a": 1, "b": 2, "c": 0}
    assert merge_results(hooks(3), output, {"a": 0}).input is None, "after a tool has run nothing is changed"
    assert merge_results(hooks(1), [HookResult(patch={"a": 0})], {"a": 0}, is_about_input=True).input is None


def test_report_lists_result_of_each_hook() -> None:
    output = [HookResult("deny", reason="no", patch={"a": 1}), HookResult(error="took too long.", message="hm")]
    two = (Hook("PreToolUse", "c0", name="guard", matcher="^b"), Hook("PreToolUse", "c1"))
    assert merge_results(two, output, {}, is_about_input=True).report == {
        "hook_count": 2,
        "decision": "deny",
        "halt": False,
        "input_rewrite": True,
        "reason": "no",
        "hooks": [
            {
                "name": "guard",
                "decision": "deny",
                "halt": False,
                "input_rewrite": True,
                "matcher": "^b",
                "reason": "no",
            },
            {
                "name": "c1",
                "decision": "none",
                "halt": False,
                "input_rewrite": False,
                "message": "hm",
                "error": "took too long.",
            },
        ],
    }


@pytest.mark.parametrize(("code", "halts"), [(2, False), (49, True)])
def test_a_hook_that_refuses_gives_its_reason_on_either_stream(code: int, halts: bool) -> None:
    assert parse_output("PreToolUse", code, "out\n", "") == HookResult("deny", halts=halts, reason="out")
    assert parse_output("PreToolUse", code, "out\n", " err ") == HookResult("deny", halts=halts, reason="err")
    assert parse_output("PreToolUse", code, "", "") == HookResult("deny", halts=halts)


def test_last_line_of_stderr_is_reported() -> None:
    assert parse_output("RunEnd", 1, "", "first\nlast\n") == HookResult(error="ended with code 1: last.")
    assert parse_output("RunEnd", 1, "", "") == HookResult(error="ended with code 1.")
    assert parse_output("RunEnd", 1, "", "x" * 300).error == f"ended with code 1: {'x' * 200}."


def test_blank_reason_is_omitted() -> None:
    printed = {"decision": "deny", "reason": "so", "hookSpecificOutput": {"permissionDecisionReason": "  "}}
    assert parse_output("PreToolUse", 0, json.dumps(printed), "") == HookResult("deny", reason="so")


def test_outputs_of_several_hooks_are_one_decision() -> None:
    hooks = [Hook("PreToolUse", command, name) for command, name in (("a", "first"), ("b", ""), ("c", ""))]
    output = [
        HookResult("allow", reason="fine", context="one", patch={"x": 1}),
        HookResult("deny", reason="no", message="for people"),
        HookResult(context="two", error="is slow"),
    ]
    ruling = merge_results(hooks, output, {"x": 0}, is_about_input=True)
    assert (ruling.decision, ruling.halts, ruling.reason, ruling.context) == ("deny", False, "no", "one\ntwo")
    assert ruling.input == {"x": 1}
    assert ruling.report == {
        "hook_count": 3,
        "decision": "deny",
        "halt": False,
        "input_rewrite": True,
        "reason": "no",
        "hooks": [
            {"name": "first", "decision": "allow", "halt": False, "input_rewrite": True, "reason": "fine"},
            {
                "name": "b",
                "decision": "deny",
                "halt": False,
                "input_rewrite": False,
                "reason": "no",
                "message": "for people",
            },
            {"name": "c", "decision": "none", "halt": False, "input_rewrite": False, "error": "is slow"},
        ],
    }


def test_output_after_tool_does_not_change_input() -> None:
    ruling = merge_results([Hook("PostToolUse", "a")], [HookResult(patch={"x": 1})], {"x": 0})
    assert (ruling.input, ruling.decision, ruling.reason) == (None, "", "")
    assert ruling.report == {
        "hook_count": 1,
        "decision": "none",
        "halt": False,
        "input_rewrite": False,
        "hooks": [{"name": "a", "decision": "none", "halt": False, "input_rewrite": False}],
    }


def test_reasons_are_joined_where_there_are_some() -> None:
    hooks = [Hook("PreToolUse", name) for name in "abc"]
    output = [HookResult("deny", reason="one"), HookResult("deny"), HookResult("deny", halts=True, reason="two")]
    ruling = merge_results(hooks, output, {})
    assert (ruling.reason, ruling.halts) == ("one\ntwo", True)


@pytest.mark.parametrize(("length", "is_cut"), [(32_768, False), (32_769, True)])
def test_hook_text_is_bounded(length: int, is_cut: bool) -> None:
    reported = parse_output("UserPromptSubmit", 0, "x" * length, "").context
    assert reported == "x" * 32_768 + ("\n[…]" if is_cut else "")
