"""Effects of the disk on a harmless-looking line: links, patterns, and repositories that configure programs."""

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.domain.approvals import Decision
from holdfast.domain.settings import PermissionSettings
from holdfast.permissions.rule_decision import RuleSet
from holdfast.workspace.git.readonly_check import git_runs_nothing_else
from holdfast.workspace.process.program_files import expand_glob, real_path
from permissions.test_corpus import bash


def judge(root: Path, line: str) -> Decision:
    own = {"HOME": str(root.parent), "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
    rules = RuleSet(
        PermissionSettings(),
        str(root),
        real=real_path,
        expansions=expand_glob,
        git_is_quiet=lambda folder: git_runs_nothing_else(folder, own),
    )
    permit = bash(line)
    return rules.judge(type(permit)(permit.tool, permit.action, str(root), "", permit.params, command=line)).decision


def git(root: Path, *words: str) -> None:
    own = {"HOME": str(root.parent), "GIT_CONFIG_NOSYSTEM": "1", "PATH": os.environ["PATH"]}
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *identity, *words], cwd=root, env=own, check=True, capture_output=True)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = (tmp_path / "project").resolve()
    (root / "src").mkdir(parents=True)
    (root / "src" / "a.py").write_text("a\n")
    (tmp_path / "away" / "deep").mkdir(parents=True)
    (tmp_path / "away" / "key").write_text("secret\n")
    return root


@pytest.mark.parametrize("line", ["cat l/../key", "head < l/../key", "rg -f l/../key src", "cat src/../l/../key"])
def test_parent_of_a_linked_directory_is_resolved(root: Path, line: str) -> None:
    (root / "l").symlink_to("../away/deep")
    assert judge(root, line) == "ask"
    assert judge(root, "cat src/../src/a.py") == "allow"


@pytest.mark.parametrize(
    "line", ["cat n*", "cat src/?", "cat */k", "cat s[r]c/k", "wc -l -- *", "grep a src/*", "cat .h*"]
)
def test_pattern_that_matches_a_link_out_of_the_workspace_asks(root: Path, line: str) -> None:
    for name in ("notes", "src/k", ".hidden"):
        (root / name).symlink_to(root.parent / "away" / "key")
    assert judge(root, line) == "ask"
    assert judge(root, "cat src/*.py") == "ask"
    (root / "src" / "k").unlink()
    assert judge(root, "cat src/*.py") == "allow"


def test_links_followed_without_being_named_ask(root: Path) -> None:
    """Comparing directories reads their content; a number may be the name of a file."""
    (root / "docs").mkdir()
    assert judge(root, "diff src docs") == judge(root, "false; cat $?") == "allow"
    (root / "docs" / "a.py").symlink_to(root.parent / "away" / "key")
    assert judge(root, "diff src docs") == "ask"
    assert judge(root, "diff -r --no-dereference docs/b src") == "allow"
    (root / "1").symlink_to(root.parent / "away" / "key")
    assert judge(root, "false; cat $?") == "ask"
    assert judge(root, "false; echo $?") == "allow"


def test_pattern_with_too_many_matches_asks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert judge(root, "cat src/*") == "allow"
    monkeypatch.setattr("holdfast.workspace.process.program_files._MAX_ENTRIES", 0)
    assert judge(root, "cat src/*") == "ask"
    assert judge(root, "cat src/a.py") == "allow"


def test_too_many_links_or_patterns_ask(root: Path) -> None:
    for number in range(1_100):
        (root / "src" / f"l{number}").symlink_to("a.py")
    assert judge(root, "cat src/l10*") == "allow"
    assert judge(root, "cat src/*") == "ask"
    assert judge(root, "cat" + " d*" * 30) == "allow"
    assert judge(root, "cat" + " d*" * 40) == "ask"


@pytest.mark.parametrize(
    "settings",
    [
        "[core]\n\tfsmonitor = ./evil",
        "[CORE] FSMonitor=./evil",
        "[a][core] fsmonitor = ./evil",
        "[core]\n\tfsmon\\\nitor = ./evil",
        "[diff]\n\texternal = ./evil",
        '[diff "x"]\n\ttextconv = ./evil',
        "[diff.x]\n\tcommand = ./evil",
        '[filter "x"]\n\tclean = ./evil',
        "[include]\n\tpath = ../evil",
        '[includeIf "gitdir:/"]\n\tpath = ../evil',
        "[gpg]\n\tprogram = ./evil",
        '[merge "x"]\n\tdriver = ./evil',
        '[remote "origin"]\n\tpromisor = true',
        "[core]\n\tworktree = /",
        "[format]\n\tpretty = %h %G?",
        "[pretty]\n\tmine = %h %G?",
        "[diff]\n\tsubmodule = diff",
    ],
)
def test_repository_settings_that_name_programs_ask(root: Path, settings: str) -> None:
    git(root, "init")
    assert judge(root, "git status") == "allow"
    with (root / ".git" / "config").open("a") as file:
        file.write(f"\n{settings}\n")
    assert judge(root, "git status") == "ask"


def test_repository_settings_without_programs_need_no_approval(root: Path) -> None:
    git(root, "init")
    with (root / ".git" / "config").open("a") as file:
        file.write('[core]\n\tfsmonitor = true\n\thooksPath = .husky\n[filter "lfs"]\n\tclean = git-lfs clean -- %f\n')
        file.write('[remote "origin"]\n\turl = git@example.org:a/b.git\n[branch "main"]\n\tremote = origin\n')
    assert judge(root, "git status") == "allow"
    (root / ".husky").mkdir()
    (root / ".husky" / "post-index-change").touch()
    assert judge(root, "git diff") == "ask"


def test_byte_order_mark_in_repository_settings_hides_nothing(root: Path) -> None:
    git(root, "init")
    config = root / ".git" / "config"
    config.write_bytes(b"\xef\xbb\xbf[core]\n\tfsmonitor = ./evil\n" + config.read_bytes())
    assert judge(root, "git status") == "ask"


def test_directory_that_looks_like_a_repository_asks(root: Path) -> None:
    """It may be part of a clone, in a subdirectory."""
    (root / "src" / "HEAD").write_text("ref: refs/heads/main\n")
    (root / "src" / "objects").mkdir()
    (root / "src" / "refs").mkdir()
    assert judge(root / "src", "git status") == "ask"
    (root / ".git").mkdir()
    assert judge(root, "git status") == "ask"


def test_pipe_in_place_of_repository_settings_asks(root: Path) -> None:
    os.mkfifo(root / ".git")
    assert judge(root, "git status") == "ask"


def test_submodules_and_work_trees_have_settings_of_their_own(root: Path) -> None:
    other = root.parent / "other"
    for place in (root, other):
        place.mkdir(exist_ok=True)
        git(place, "init")
        git(place, "commit", "--allow-empty", "-m", "first")
    git(root, "submodule", "add", str(other), "below")
    git(root, "worktree", "add", str(root.parent / "beside"))
    assert judge(root, "git status") == "allow"
    assert judge(root.parent / "beside", "git status") == "allow"
    with (root / ".git" / "modules" / "below" / "config").open("a") as file:
        file.write("[core]\n\tfsmonitor = ./evil\n")
    assert judge(root, "git status") == "ask"


def test_link_resolved_per_process_asks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the server's working directory it would lead into the workspace."""
    monkeypatch.chdir(root / "src")
    (root / "l").symlink_to("/proc/self/cwd/../away/key")
    (root / "m").symlink_to("src/../src/a.py")
    assert judge(root, "cat l") == judge(root, "cat < l") == judge(root, "cd src && cat ../l") == "ask"
    assert judge(root, "cat m") == "allow"
    for path in (root / "m", root / "src" / ".." / "m", root / "none" / "a", root / "src" / "."):
        assert real_path(str(path)) == os.path.realpath(path)
