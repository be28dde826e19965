"""A thousand shell lines, and the decision of the default rules for each."""

import posixpath

import pytest

from holdfast.domain.settings import PermissionSettings
from holdfast.domain.tools import Permit
from holdfast.permissions.rule_decision import RuleSet
from holdfast.permissions.shell_parser import parse
from permissions.corpus import LINES

THEMES = list(dict.fromkeys(item.theme for item in LINES))


def real(path: str) -> str:
    """Resolve the one link of the corpus that leads out of the workspace."""
    return "/etc/passwd" if path.endswith("link-to-outside") else posixpath.normpath(path)


def bash(line: str, path: str = "/w") -> Permit:
    return Permit("bash", "execute", path, "", {}, line)


@pytest.mark.parametrize("theme", THEMES)
def test_every_line_has_the_expected_decision(theme: str) -> None:
    rules = RuleSet(PermissionSettings(), "/w", real=real)
    wrong = []
    for item in LINES:
        if item.theme == theme:
            verdict = rules.judge(bash(item.line))
            if verdict.decision != item.decision:
                wrong.append((item.line, verdict))
    assert wrong == []


def test_the_corpus_is_large_and_has_no_line_twice() -> None:
    assert len(LINES) >= 500
    lines = [item.line for item in LINES]
    assert sorted(lines) == sorted(set(lines))
    assert all(sum(item.decision == decision for item in LINES) >= 200 for decision in ("allow", "ask"))


def test_approval_states_its_reason_and_the_rule_to_save() -> None:
    """No rule is offered where the directory, a program or a redirected file is only known while the line runs."""
    rules = RuleSet(PermissionSettings(), "/w", real=real)
    verdicts = {item.line: rules.judge(bash(item.line)) for item in LINES}
    asking = {line: verdict for line, verdict in verdicts.items() if verdict.decision == "ask"}
    assert all(verdict.why for verdict in asking.values())
    assert sum(not verdict.saves for verdict in asking.values()) < len(asking) / 10
    for line in ("make", "make > out", "cd src && make", "for f in a b; do wc $f; done", "./run.sh", "rm *.py"):
        assert rules.judge(bash(line)).saves, line


def test_saved_rule_allows_the_same_line_and_no_other() -> None:
    """C-60 for saved rules: "always allow" for a line allows that line and no other command."""
    before = RuleSet(PermissionSettings(), "/w", real=real)
    offered = {item.line: before.judge(bash(item.line)).saves for item in LINES if item.decision == "ask"}
    saves = {line: rules for line, rules in offered.items() if rules}
    others = [line for line in saves if line.startswith(("rm", "curl", "git branch", "ls &"))]
    for line, saved in saves.items():
        rules = RuleSet(PermissionSettings(allow=saved), "/w", real=real)
        assert rules.judge(bash(line)).decision == "allow", line
    for line in others:
        rules = RuleSet(PermissionSettings(allow=saves[line]), "/w", real=real)
        allowed = [other for other in others if rules.judge(bash(other)).decision == "allow"]
        assert all(set(saves[other]) <= set(saves[line]) for other in allowed), (line, allowed)


@pytest.mark.parametrize("size", [200, 20_000])
def test_long_and_deeply_nested_lines_are_decided(size: int) -> None:
    rules = RuleSet(PermissionSettings(), "/w", real=real)
    for line in ("(" * size, "ls;" * size, "$(" * size, '"' * size, "ls " + "a" * size, "{ " * size, "ls | " * size):
        assert rules.judge(bash(line)).decision in ("allow", "ask")


def test_invisible_characters_make_a_line_uncertain() -> None:
    for line in ("ls\r", "ls\x1b[2K", "ls \u202e", "ls\u00a0x", "ls\x00"):
        assert parse(line).uncertainties == ("it contains invisible characters",)


def test_commands_of_unparsed_lines_are_still_named() -> None:
    for line in (
        "for f in *; do rm $f; done",
        "echo $(rm x)",
        'echo "`rm x`"',
        "case x in x) rm y;; esac",
        "f() { rm x; }",
    ):
        assert "rm" in [command.name for command in parse(line).commands], line
        assert parse(line).uncertainties, line
