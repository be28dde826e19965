"""Lines that run without an approval: ordinary ones do; those with effects, or that show outside content, never do."""

import random
from pathlib import Path

import pytest

from holdfast.domain.settings import PermissionSettings
from holdfast.permissions.rule_decision import RuleSet
from holdfast.workspace.process.program_files import ProgramFiles, expand_glob, real_path
from permissions.corpus import read_tables
from permissions.test_corpus import bash
from trials.unapproved_commands import UnapprovedShell, hostile_line

ASKS = read_tables("unasked.txt")
ORDINARY = ASKS.pop("ordinary")


def rules_of(root: Path) -> RuleSet:
    programs = ProgramFiles(lambda: "/usr/local/bin:/usr/bin:/bin")
    return RuleSet(PermissionSettings(), str(root), real=real_path, expansions=expand_glob, programs=programs)


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> UnapprovedShell:
    return UnapprovedShell(tmp_path_factory.mktemp("unasked"))


def test_ordinary_lines_need_no_approval(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    (root / "src").mkdir()
    for name in ("a.txt", "b.txt", "data.json", "src/a.py", "README.md"):
        (root / name).touch()
    assert len(ORDINARY) > 150
    rules = rules_of(root)
    found = [
        (line, verdict) for line in ORDINARY if (verdict := rules.judge(bash(line, str(root)))).decision != "allow"
    ]
    assert found == []


@pytest.mark.parametrize("kind", ASKS)
def test_lines_that_need_an_approval(shell: UnapprovedShell, kind: str) -> None:
    assert [line for line in ASKS[kind] if shell.needs_no_approval(line)] == []


def test_file_names_that_look_like_options_ask(tmp_path: Path) -> None:
    """A pattern matches operands until there is a file whose name is an option."""
    root = tmp_path.resolve()
    (root / "a.txt").touch()
    lines = ("cat *", "wc -l *", "md5sum *", "ls ?*", "stat *", "head *")
    rules = rules_of(root)
    assert [line for line in lines if rules.judge(bash(line, str(root))).decision != "allow"] == []
    (root / "--files0-from=x").touch()
    assert [line for line in lines if rules.judge(bash(line, str(root))).decision == "allow"] == []
    assert rules.judge(bash("wc -l a*", str(root))).decision == "allow"


def test_programs_of_the_project_ask(tmp_path: Path) -> None:
    """A project directory on the PATH, such as a virtual environment, may contain a program called ls."""
    root = tmp_path.resolve() / "project"
    (root / "bin").mkdir(parents=True)
    program = root / "bin" / "ls"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    rules = RuleSet(PermissionSettings(), str(root), programs=ProgramFiles(lambda: f"{root}/bin:/usr/bin:/bin"))
    for line in ("ls", "env ls", "timeout 5 ls", "bash -c ls"):
        assert rules.judge(bash(line, str(root))).decision == "ask", line
    assert rules.judge(bash("timeout 5 cat a.txt", str(root))).decision == "allow"
    program.rename(root / "bin" / "timeout")
    assert rules.judge(bash("timeout 5 cat a.txt", str(root))).decision == "ask"
    assert rules.judge(bash("ls", str(root))).decision == "allow"
    program = (root / "bin" / "timeout").rename(program)
    elsewhere = tmp_path / "bin"
    elsewhere.mkdir()
    (elsewhere / "ls").symlink_to(program)
    linked = ProgramFiles(lambda: f"{elsewhere}:/usr/bin:/bin")
    rules = RuleSet(PermissionSettings(), str(root), real=real_path, programs=linked)
    assert rules.judge(bash("ls", str(root))).decision == "ask"


def test_workspace_at_the_root_directory() -> None:
    rules = RuleSet(PermissionSettings(), "/")
    for line in ("cat proc/self/environ", "grep -r x .", "cat a.txt"):
        assert rules.judge(bash(line, "/")).decision == "ask"


def test_generated_lines_have_no_unapproved_effect(shell: UnapprovedShell) -> None:
    """A sample of what `scripts/long` tries with fresh seeds."""
    rng = random.Random(20261117)
    lines = [line for line in (hostile_line(rng, shell.outside) for _ in range(700)) if shell.needs_no_approval(line)]
    assert len(lines) > 50
    assert [found for line in lines[:90] if (found := shell.violation(line))] == []


def test_shell_detects_secrets_and_changes(tmp_path: Path) -> None:
    """A check that cannot fail would prove nothing."""
    shell = UnapprovedShell(tmp_path)
    for line in ("cat way/key", "ps axeww", "git config --get user.name", "cat d/.x", "diff d .x"):
        assert "secret" in shell.violation(line), line
    assert "changes" in shell.violation("touch made")
