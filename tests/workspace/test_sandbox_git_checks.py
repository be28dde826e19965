"""Checks of the sandbox on git directories, created by commands or outside the workspace: every clause decides once."""

import functools
import os
from pathlib import Path

import pytest

from holdfast.workspace.git.git_command import list_settings
from holdfast.workspace.sandbox import git_dir_search, linked_git_dirs
from holdfast.workspace.sandbox.git_dir_search import (
    added_settings,
    is_plain_directory,
    is_plain_file,
    is_plain_settings,
    is_plain_step,
)
from holdfast.workspace.sandbox.linked_git_dirs import LinkedGit, decide_linked_git, find_linked_git, named_paths
from planting import assert_every_clause_decides
from workspace.git_directories import HASH, put, put_git

ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "GIT_CONFIG_NOSYSTEM": "1"}


@pytest.fixture(autouse=True)
def _cache_git_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache the answers of git, so that each text is passed to it once."""
    listed = functools.cache(list_settings)
    for module in (git_dir_search, linked_git_dirs, linked_git_dirs):
        monkeypatch.setattr(module, "list_settings", listed)


SETTINGS: list[tuple[str, bool]] = [
    ("[core]\n\tbare = false\n\tfilemode\n", True),
    ("[user]\n\tname = A\n", True),
    ("[user]\n\tname\n", False),
    ("[core]\n\tpager = less\n", False),
    ("[alias]\n\tname = x\n", False),
    ('[remote "o"]\n\turl = https://a.b/c\n\tfetch = +refs/*\n', True),
    ('[remote "o"]\n\turl = ext::sh\n', False),
    ('[remote "o"]\n\turl = a-b.c+d::x\n', False),
    ('[remote "o"]\n\turl = https://a::b/\n', True),
    ('[remote "o"]\n\turl = -x\n', False),
    ('[remote "o"]\n\turl = "a\\nb"\n', False),
    ('[remote "o"]\n\tuploadpack = x\n', False),
    ('[submodule "s"]\n\tupdate = merge\n\turl = ../x\n', True),
    ('[submodule "s"]\n\tupdate = !evil\n', False),
    ("[core]\n\tworktree = ../sub\n", True),
    ("[core]\n\tworktree = ..\n", False),
    ("[core]\n\tworktree = ../..\n", False),
    ("[core]\n\tworktree = /elsewhere\n", False),
    ("[core]\n\tworktree = inner\n", False),
    ("[broken\n", False),
    ("", True),
]


def check_settings(root: Path) -> None:
    path = str(root / ".git")
    for text, expected in SETTINGS:
        assert is_plain_settings(text.encode(), path, str(root)) is expected, text
        assert added_settings(text.encode(), b"", path, str(root)) is not expected, text
        # Existing settings stay; only a text that git cannot parse is refused.
        assert added_settings(text.encode(), text.encode(), path, str(root)) is ("broken" in text), text
    assert added_settings(b"[user]\n\tname = A\n", b"[broken\n", path, str(root))
    assert added_settings(b"[core]\n\tpager = more\n", b"[core]\n\tpager = less\n", path, str(root))


def check_steps() -> None:
    rows = [
        ("rebase-merge/git-rebase-todo", "pick a b\nexecute c\nxx\n", True),
        ("rebase-merge/git-rebase-todo", "pick a\nexec make\n", False),
        ("rebase-merge/git-rebase-todo", "  x make\n", False),
        ("rebase-merge/git-rebase-todo", "pick a exec b\n", True),
        ("rebase-merge/git-rebase-todo", "", True),
        ("rebase-merge/strategy", "ort\n", True),
        ("rebase-merge/strategy", "\n", True),
        ("rebase-merge/strategy", "evil\n", False),
        ("sequencer/opts", "[options]\n\tstrategy = ours\n", True),
        ("sequencer/opts", "[options]\n\tstrategy\n", True),
        ("sequencer/opts", "[options]\n\tother = evil\n", True),
        ("sequencer/opts", "[options]\n\tstrategy = evil\n", False),
        ("sequencer/opts", "[broken\n", False),
    ]
    for name, text, expected in rows:
        assert is_plain_step(name, text.encode()) is expected, (name, text)


def test_settings_that_a_sandboxed_command_may_make(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    check_settings(tmp_path)
    check_steps()
    assert_every_clause_decides(
        [is_plain_settings, added_settings, git_dir_search._is_plain], lambda: check_settings(tmp_path)
    )
    assert_every_clause_decides([is_plain_step], check_steps)


class Made:
    """Git directories below a root, with one difference in each."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.plain: list[Path] = [put_git(root / "plain/.git"), put(root / "nothing but a directory/.git/x").parent]
        self.other: list[Path] = []
        put(root / "plain/.git/hooks/a.sample")
        self.plain.append(put_git(root / "no hooks/.git"))
        (root / "no hooks/.git/hooks").rmdir()
        self.accepted = str(self.plain[0])
        self.plain.append(self._linked("plain/.git/worktrees/w"))
        self._add_other()

    def _linked(self, path: str, commondir: str = "../..") -> Path:
        own = self.root / path
        put(own / "HEAD", f"{HASH}\n")
        put(own / "commondir", f"{commondir}\n")
        put(own / "gitdir", "/anywhere/.git\n")
        return own

    def _add_other(self) -> None:
        root, other = self.root, self.other
        os.symlink("plain/.git", put(root / "link/x").parent / ".git")
        other.append(root / "link/.git")
        other.append(put(root / "file/.git"))
        other.append(put_git(root / "hook/.git"))
        put(root / "hook/.git/hooks/post-commit")
        other.append(put_git(root / "hooks as link/.git"))
        (root / "hooks as link/.git/hooks").rmdir()
        os.symlink("../../plain/.git/hooks", root / "hooks as link/.git/hooks")
        other.append(put_git(root / "hooks as file/.git"))
        (root / "hooks as file/.git/hooks").rmdir()
        put(root / "hooks as file/.git/hooks")
        for name, text in (("rebase-merge/git-rebase-todo", "exec x\n"), ("sequencer/opts", "[broken\n")):
            other.append(put_git(root / name.replace("/", " ") / ".git"))
            put(other[-1] / name, text)
        other.append(put_git(root / "step as link/.git"))
        (root / "step as link/.git/rebase-merge").mkdir()
        os.symlink("/dev/null", root / "step as link/.git/rebase-merge/strategy")
        other.append(put_git(root / "setting/.git", config="[core]\n\tpager = x\n"))
        other.append(put_git(root / "setting of the work tree/.git"))
        put(other[-1] / "config.worktree", "[core]\n\tpager = x\n")
        other.append(put_git(root / "config as link/.git"))
        (other[-1] / "config").unlink()
        os.symlink("/dev/null", other[-1] / "config")
        other.append(self._linked("plain/.git/worktrees/other common", "../../.."))
        other.append(self._linked("plain/.git/trees/w"))
        other.append(self._linked("setting/.git/worktrees/w"))
        for name in ("commondir", "gitdir"):
            other.append(self._linked(f"plain/.git/worktrees/no {name}"))
            (other[-1] / name).unlink()
        for name in ("commondir", "gitdir"):
            # It is not a configuration, whatever its content.
            other.append(put(root / f"only {name}/.git" / name, "[core]\n\tbare = false\n").parent)
        for name in ("config", "config.worktree"):
            other.append(self._linked(f"plain/.git/worktrees/with {name}"))
            put(other[-1] / name)
        other.append(self._linked("plain/.git/worktrees/with hooks"))
        (other[-1] / "hooks").mkdir()
        other.append(self._linked("plain/.git/worktrees/commondir as link"))
        (other[-1] / "commondir").unlink()
        os.symlink("../w/commondir", other[-1] / "commondir")


def check_made(made: Made) -> None:
    for path in made.plain:
        assert is_plain_directory(str(path), str(made.root), {made.accepted}), path
    for path in made.other:
        assert not is_plain_directory(str(path), str(made.root), {made.accepted}), path
    for text, expected in (("gitdir: plain/.git\n", True), ("gitdir: setting/.git\n", False), ("x", False)):
        file = put(made.root / "dot", text)
        assert is_plain_file(str(file), {made.accepted}) is expected, text
    assert not is_plain_file(str(made.root / "dot link"), {made.accepted})


def test_git_directories_that_a_sandboxed_command_may_make(tmp_path: Path) -> None:
    made = Made(tmp_path)
    os.symlink("dot", tmp_path / "dot link")
    check_made(made)
    checked = [is_plain_directory, is_plain_file, git_dir_search._is_linked, git_dir_search._is_plain_at]
    equivalent = {
        "_matches_kind(stat.S_ISREG, path) and resolve_gitfile(path) in accepted -> resolve_gitfile(path) in accepted":
        "only regular files are read",
    }  # fmt: skip
    checked.append(git_dir_search._has_only_samples)
    assert_every_clause_decides(checked, lambda: check_made(made), equivalent=equivalent)


# Git directories outside the workspace


class Linked:
    """Work trees with a git directory elsewhere; the directories of `right` name them in turn."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.right: dict[str, tuple[str, str]] = {}
        self.wrong: list[str] = []
        put_git(base / "main")
        self._worktree("tree")
        self.right["tree"] = ("main/worktrees/tree", "main")
        self._module("module")
        self.right["module"] = ("main/modules/module", "main/modules/module")
        self._module("nested", "main/modules/module/modules/nested")
        self.right["nested"] = ("main/modules/module/modules/nested",) * 2
        put_git(base / "main/modules/no repository/x")
        self._module("below", "main/modules/no repository/modules/below")
        self.right["below"] = ("main/modules/no repository/modules/below",) * 2
        self._add_wrong()

    def _worktree(self, name: str, own: str = "", back: str = "") -> Path:
        place = self.base / (own or f"main/worktrees/{name}")
        put(place / "HEAD", f"{HASH}\n")
        put(place / "commondir", "../..\n")
        put(place / "gitdir", f"{back or self.base / name / '.git'}\n")
        put(self.base / name / ".git", f"gitdir: {place}\n")
        return place

    def _module(self, name: str, own: str = "", tree: str = "") -> Path:
        place = self.base / (own or f"main/modules/{name}")
        put_git(place, config=f"[core]\n\tworktree = {tree or self.base / name}\n")
        put(self.base / name / ".git", f"gitdir: {place}\n")
        return place

    def _add_wrong(self) -> None:
        base = self.base
        put_git(base / "own directory/.git")
        put(base / "inside/.git", "gitdir: git\n")
        put_git(base / "inside/git", config=f"[core]\n\tworktree = {base}/inside\n")
        put_git(base / "module inside/main")
        self._module("module inside", "module inside/main/modules/x")
        put(base / "missing/.git", "gitdir: ../nowhere\n")
        self._worktree("elsewhere", "main/trees/elsewhere")
        self._worktree("no repository", "bare/worktrees/no repository")
        self._worktree("names another", back=str(base / "tree/.git"))
        self._worktree("names no file", back=str(base / "names no file/git"))
        os.mkdir(base / "half")
        put(base / "half/HEAD")
        self._worktree("half a repository", "half/worktrees/half a repository")
        place = self._module("without objects")
        (place / "objects").rmdir()
        self._module("not among modules", "main/other/not among modules")
        self._module("no repository above", "bare/modules/no repository above")
        self._module("of another tree", tree=str(base / "module"))
        place = self._module("without a tree")
        put(place / "config", "")
        place = self._module("broken")
        put(place / "config", "[broken\n")
        place = self._module("other settings")
        put(place / "config", f"[user]\n\tname = A\n[core]\n\tworktree\n\tworktree = {base}/other settings\n")
        self.right["other settings"] = ("main/modules/other settings",) * 2
        place = self._module("with two trees")
        put(place / "config", f"[core]\n\tworktree = /x\n\tworktree = {base}/with two trees\n")
        place = self._module("linked config")
        (place / "config").rename(place / "real")
        os.symlink("real", place / "config")
        put(base / "to a link/.git", "gitdir: ../linked git\n")
        self.wrong = [
            "own directory", "inside", "missing", "elsewhere", "no repository", "names another", "names no file",
            "half a repository", "without objects", "not among modules", "no repository above", "of another tree",
            "without a tree", "with two trees", "linked config", "to a link", "nowhere",
            "module inside", "broken",
        ]  # fmt: skip


def check_linked(linked: Linked) -> None:
    def found(name: str) -> tuple[str, str] | None:
        place = find_linked_git(str(linked.base / name))
        if place is None:
            return None
        return os.path.relpath(place.own, linked.base), os.path.relpath(place.common, linked.base)

    for name, expected in linked.right.items():
        assert found(name) == expected, name
    for name in linked.wrong:
        assert found(name) is None, name


def test_a_git_directory_elsewhere_has_to_name_the_work_tree(tmp_path: Path) -> None:
    linked = Linked(tmp_path.resolve())
    check_linked(linked)
    checked = [find_linked_git, linked_git_dirs._linked_work_tree, linked_git_dirs._is_git_directory]
    equivalent = {
        "own is None or is_within(work_tree, own) or (not _is_directory(own))"
        " -> own is None or is_within(work_tree, own)": "a missing directory has no HEAD either",
    }
    assert_every_clause_decides(checked, lambda: check_linked(linked), equivalent=equivalent)
    tree = find_linked_git(str(linked.base / "tree"))
    assert tree is not None
    base = f"{linked.base}/main"
    assert tree.writable == (f"{base}/worktrees/tree", f"{base}/objects", f"{base}/refs")
    put(linked.base / "main/logs/HEAD")
    assert tree.writable[-1] == f"{base}/logs"
    names = ("config", "config.worktree", "hooks", "commondir", "gitdir")
    assert tree.protected == tuple(f"{base}/worktrees/tree/{name}" for name in names)
    module = find_linked_git(str(linked.base / "module"))
    assert module is not None
    assert module.writable == (f"{base}/modules/module",)


def test_decision_is_cached_per_work_tree(tmp_path: Path) -> None:
    base = tmp_path.resolve()
    linked = Linked(base)
    tree, record = str(base / "tree"), base / "data/record.json"
    expected = find_linked_git(tree)
    assert expected is not None
    assert decide_linked_git(tree, base / "other.json", lambda path: path != expected.writable[-1]) is None
    assert decide_linked_git(tree, base / "other.json", lambda _: True) is None, "the stored decision stands"
    assert decide_linked_git(tree, record, lambda _: True) == expected
    assert decide_linked_git(tree, record, lambda _: False) is None, "and is still checked"
    assert decide_linked_git(tree, record, lambda _: True) == expected
    (base / "tree/.git").write_text(f"gitdir: {base}/main/modules/module\n")
    put(base / "main/modules/module/config", f"[core]\n\tworktree = {tree}\n")
    other = find_linked_git(tree)
    assert other == LinkedGit(f"{base}/main/modules/module", f"{base}/main/modules/module")
    assert decide_linked_git(tree, record, lambda _: True) is None, "another directory than was decided"
    (base / "tree").rename(base / "tree as it was")
    linked._module("tree")
    assert decide_linked_git(tree, record, lambda _: True) is not None, "another work tree of that name"
    record.write_text("{")
    assert decide_linked_git(tree, record, lambda _: True) is not None


# Files named in a configuration


def test_files_that_configuration_makes_git_read(tmp_path: Path) -> None:
    base = tmp_path.resolve()
    top = base / "top"
    own = put_git(
        top / ".git",
        config='[include]\n\tpath = ../one\n[includeIf "gitdir:/x/"]\n\tpath = ../two\n[core]\n\thooksPath = my hooks\n'
        f"\tworktree = {base}/other\n",
    )
    put(own / "config.worktree", "[include]\n\tpath = /absolute\n")
    put(top / "one", "[include]\n\tpath = deeper\n[includeIf]\n\tx = y\n[core]\n\thooksPath\n")
    put(top / "deeper", "[core]\n\thooksPath = ../others\n")
    put(top / "my hooks/plain")
    os.symlink("../target", top / "my hooks/link")
    os.symlink("../../script", own / "hooks/post-commit")
    assert {os.path.normpath(path) for path in named_paths(str(own))} == {
        f"{base}/top/one", f"{base}/top/two", f"{base}/top/deeper", "/absolute", f"{base}/top/my hooks",
        f"{base}/other/my hooks", f"{base}/others", f"{base}/top/target", f"{base}/top/script",
    }  # fmt: skip
    # A linked work tree uses the files named by the repository, too.
    tree = base / "tree"
    put(own / "worktrees/w/commondir", "../..\n")
    put(tree / ".git", f"gitdir: {own}/worktrees/w\n")
    assert f"{base}/tree/my hooks" in {os.path.normpath(path) for path in named_paths(str(tree / ".git"))}
    assert list(named_paths(str(base / "nothing/.git"))) == []
    put(top / "loop", "[include]\n\tpath = loop\n")
    put(own / "config", "[include]\n\tpath = ../loop\n")
    assert len(list(named_paths(str(own)))) < 20
    os.remove(own / "config")
    os.mkfifo(own / "config")
    assert f"{base}/top/script" in set(named_paths(str(own)))
