"""Ignore files have the semantics of git: compared with git itself."""

import os
import subprocess
from pathlib import Path

from holdfast.workspace.files.ignore_files import AGENT_IGNORE_FILES, IgnoreRules
from holdfast.workspace.search.fallback_scan import walk

FILES = (
    "a.log", "b.txt", "build/x", "build/keep.txt", "src/a.log", "src/build/x", "src/deep/er/c.tmp", "src/important.log",
    "docs/a.md", "docs/b.md", "docs/sub/c.md", "space name", "#hash", "!bang", "x/y/z/w", "x/y/q", "only/top",
    "in/only/top", "a/b/c/d", "foo1", "foo2", "fooA", "trail", "UPPER.TXT", "dir.d/x", "file.d",
)  # fmt: skip
RULES = {
    ".gitignore": "# remark\n\n*.log\n!important.log\nbuild/\n/only\ndocs/*.md\n!docs/b.md\n\\#hash\n\\!bang\nx/**/w\n"
    "**/c/d\nfoo[0-9]\ntrail   \n*.d/\n",
    "src/.gitignore": "!a.log\n*.tmp\n",
    "docs/sub/.gitignore": "*\n!.gitignore\n",
}


def make(root: Path) -> None:
    subprocess.run(["git", "init", "-q", str(root)], check=True)
    for name in FILES:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text("x")
    for name, text in RULES.items():
        (root / name).write_text(text)


def walked(root: str) -> list[str]:
    handle = os.open(root, os.O_RDONLY)
    try:
        return list(walk(handle, root, IgnoreRules(root)))
    finally:
        os.close(handle)


def test_ignored_files_equal_those_of_git(tmp_path: Path) -> None:
    make(tmp_path)
    listed = subprocess.run(
        ["git", "-C", str(tmp_path), "ls-files", "-oz", "--exclude-standard"], check=True, capture_output=True
    )
    wanted = sorted(listed.stdout.decode().strip("\0").split("\0"))
    root = str(tmp_path)
    assert sorted(walked(root)) == wanted
    ignore = IgnoreRules(root)
    every = [str(path) for path in tmp_path.rglob("*") if path.is_file() and ".git/" not in str(path)]
    assert sorted(path[len(root) + 1 :] for path in every if not ignore.covers(path)) == wanted
    below = f"{root}/src"
    found = sorted(f"src/{path}" for path in walked(below))
    assert found == [path for path in wanted if path.startswith("src/")]


def test_ignore_files_can_be_restricted(tmp_path: Path) -> None:
    make(tmp_path)
    (tmp_path / ".holdfastignore").write_text("b.txt\n")
    ignore = IgnoreRules(str(tmp_path), AGENT_IGNORE_FILES, extra=["UPPER*"])
    assert ignore.covers(str(tmp_path / "b.txt"))
    assert ignore.covers(str(tmp_path / "UPPER.TXT"))
    assert ignore.covers(str(tmp_path / "node_modules/deep/x"))
    assert not ignore.covers(str(tmp_path / "a.log"))


def test_a_root_that_is_ignored_is_shown(tmp_path: Path) -> None:
    make(tmp_path)
    for name in ("build", "only"):
        assert IgnoreRules(str(tmp_path / name)).is_root_ignored
    assert not IgnoreRules(str(tmp_path / "src")).is_root_ignored
    root = str(tmp_path / "build")
    assert sorted(walked(root)) == ["keep.txt", "x"]
