"""Every clause of the checks on git directories and their configuration decides once by itself."""

import functools
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.workspace.git import repository
from holdfast.workspace.git.git_command import list_settings
from holdfast.workspace.git.readonly_check import is_harmless, pattern_of
from holdfast.workspace.git.repository import (
    Head,
    Repository,
    find_repository,
    read_bytes,
    read_head,
    read_path,
    repository_of,
    resolve_gitfile,
)
from holdfast.workspace.sandbox import git_dir_scan, linked_git_dirs
from holdfast.workspace.sandbox.git_dir_scan import (
    added_settings,
    is_plain_directory,
    is_plain_file,
    is_plain_settings,
    is_plain_step,
)
from holdfast.workspace.sandbox.linked_git_dirs import LinkedGit, decide_linked_git, find_linked_git, named_paths
from planting import assert_every_clause_decides

ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "GIT_CONFIG_NOSYSTEM": "1"}
HASH, LONG_HASH = "a" * 40, "b" * 64


@pytest.fixture(autouse=True)
def _asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same text is put to git only once."""
    listed = functools.cache(list_settings)
    for module in (git_dir_scan, linked_git_dirs, linked_git_dirs):
        monkeypatch.setattr(module, "list_settings", listed)


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def put_git(folder: Path, *, head: str = "ref: refs/heads/main\n", config: str = "") -> Path:
    """A git directory as git makes it."""
    for name in ("objects", "refs/heads", "hooks"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    put(folder / "HEAD", head)
    put(folder / "config", config)
    return folder


# Keys


def check_keys() -> None:
    rows = {
        "Core.Pager": "core.pager",
        "filter.A.b.Clean": "filter.*.clean",
        "advice.<x>": "advice.*",
        "color.branch.<slot>": "color.*.*",
        "a.<b": "a.<b",
        "a.b>": "a.b>",
        "alias": "alias.",
    }
    assert {key: pattern_of(key) for key in rows} == rows
    for key in ("core.pager", "include.path", "alias.st", "credential.x.helper", "fsck.skiplist", "x.y", "x.y.z"):
        assert not is_harmless(key), key
    for key in ("core.bare", "advice.anything", "color.diff.meta", "branch.x.anything", "diff.x.binary", "fsck.any"):
        assert is_harmless(key), key
    # The subsection may be anything; a key of this name is only harmless in its own section.
    assert not is_harmless("core.x.bare")
    assert not is_harmless("diff.binary")
    assert not is_harmless("branch.x.mergeoptions")


def test_keys() -> None:
    check_keys()
    assert_every_clause_decides([pattern_of, is_harmless], check_keys)


# Files


def check_files(base: Path) -> None:
    def read(name: str) -> bytes | None:
        try:
            return read_bytes(str(base / name))
        except OSError:
            return None

    for name, expected in (("plain", b"x\n"), ("link", None), ("folder", None), ("pipe", None), ("nothing", None)):
        assert read(name) == expected, name
    assert len(read("largest") or b"") == repository.MAX_FILE
    assert read("too large") is None
    assert read_path(str(base / "plain")) == "x"
    assert read_path(str(base / "two lines")) == "x\ny"
    leads = {"plain": "folder", "without end": "folder", "absolute": "folder", "spaces inside": "a b"}
    for name, target in leads.items():
        assert resolve_gitfile(str(base / f"git-{name}")) == os.path.realpath(base / target), name
    for name in ("other", "empty", "space before", "space after", "two lines", "nul", "link", "nothing"):
        assert resolve_gitfile(str(base / f"git-{name}")) is None, name


def test_files_of_git_are_read_strictly(tmp_path: Path) -> None:
    put(tmp_path / "plain", "x\n")
    put(tmp_path / "two lines", "x\ny\n")
    os.symlink("plain", tmp_path / "link")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    put(tmp_path / "largest", "x" * repository.MAX_FILE)
    put(tmp_path / "too large", "x" * (repository.MAX_FILE + 1))
    texts = {
        "plain": "gitdir: folder\n",
        "without end": "gitdir: folder",
        "absolute": f"gitdir: {tmp_path}/folder\n",
        "spaces inside": "gitdir: a b\n",
        "other": "folder\n",
        "empty": "gitdir: \n",
        "space before": "gitdir:  folder\n",
        "space after": "gitdir: folder \n",
        "two lines": "gitdir: folder\nx",
        "nul": "gitdir: fol\0der\n",
    }
    for name, text in texts.items():
        put(tmp_path / f"git-{name}", text)
    os.symlink("git-plain", tmp_path / "git-link")
    check_files(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    assert_every_clause_decides([read_bytes, read_path, resolve_gitfile], lambda: check_files(tmp_path))
    assert len(os.listdir("/proc/self/fd")) == before


# Repositories


class Layouts:
    """Directories as git makes them, and each with one thing changed."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.plain = put_git(base / "plain/.git").parent
        (self.plain / "sub/sub").mkdir(parents=True)
        self.tree = self._worktree("tree")
        self.module = base / "plain/module"
        put_git(base / "plain/.git/modules/module")
        put(self.module / ".git", "gitdir: ../.git/modules/module\n")

    def _worktree(self, name: str, common: str = "plain/.git", place: str = "worktrees") -> Path:
        own = self.base / common / place / name
        tree = self.base / name
        put(own / "HEAD", f"{HASH}\n")
        put(own / "commondir", "../..\n")
        put(own / "gitdir", f"{tree}/.git\n")
        put(tree / ".git", f"gitdir: {own}\n")
        return tree

    def wrong(self) -> Iterator[tuple[str, Path]]:
        """Layouts that are not those of git, with what is wrong."""
        base = self.base
        os.symlink("../plain/.git", put(base / "linked/x").parent / ".git")
        yield "a link", base / "linked"
        (base / "no head/.git").mkdir(parents=True)
        yield "no HEAD", base / "no head"
        (base / "head is a directory/.git/HEAD").mkdir(parents=True)
        yield "a directory as HEAD", base / "head is a directory"
        put_git(base / "common/.git")
        put(base / "common/.git/commondir", "../../plain/.git\n")
        yield "a commondir in a .git directory", base / "common"
        os.mkfifo(put(base / "pipe/x").parent / ".git")
        yield "a pipe", base / "pipe"
        put(base / "other text/.git", "gitdir ../plain/.git\n")
        yield "another text", base / "other text"
        put(base / "foreign/.git", f"gitdir: {self.plain}/.git\n")
        yield "the directory of another", base / "foreign"
        yield "another place", self._worktree("elsewhere", place="trees")
        tree = self._worktree("other common")
        put(base / "plain/.git/worktrees/other common/commondir", "..\n")
        yield "another common directory", tree
        tree = self._worktree("other name")
        put(base / "plain/.git/worktrees/other name/gitdir", f"{tree}/git\n")
        yield "a file of another name", tree
        tree = self._worktree("other tree")
        put(base / "plain/.git/worktrees/other tree/gitdir", f"{self.tree}/.git\n")
        yield "a file of another tree", tree
        put(base / "plain/modules itself/.git", "gitdir: ../.git/modules\n")
        put_git(base / "plain/.git/modules")
        yield "the directory of all modules", base / "plain/modules itself"
        put(base / "no outer/.git", f"gitdir: {self.plain}/.git/modules/module\n")
        yield "a module without a repository around it", base / "no outer"
        put(base / "plain/foreign/.git", f"gitdir: {base}/common/.git/modules/x\n")
        put_git(base / "common/.git/modules/x")
        yield "a module of another", base / "plain/foreign"


def check_layouts(layouts: Layouts, wrong: list[tuple[str, Path]]) -> None:
    def found(folder: Path) -> tuple[str, str, str] | None:
        place = find_repository(str(folder))
        parts = () if place is None else (place.top, place.git_dir, place.common_dir)
        return tuple(os.path.relpath(path, layouts.base) for path in parts) or None  # type: ignore[return-value]

    assert found(layouts.plain) == found(layouts.plain / "sub/sub") == ("plain", "plain/.git", "plain/.git")
    assert found(layouts.tree) == ("tree", "plain/.git/worktrees/tree", "plain/.git")
    module = ("plain/module", "plain/.git/modules/module", "plain/.git/modules/module")
    assert found(layouts.module) == module
    for what, folder in wrong:
        assert found(folder) is None, what
        assert repository_of(str(folder)) == str(folder), what
    assert found(layouts.base) is None
    assert repository_of("/") is repository_of(str(layouts.base)) is None


def test_only_layouts_of_git_itself_are_understood(tmp_path: Path) -> None:
    layouts = Layouts(tmp_path.resolve())
    wrong = list(layouts.wrong())
    check_layouts(layouts, wrong)
    equivalent = {
        "top is None or depth > _MAX_DEPTH -> top is None": "ends with the path, which has that many directories",
        "found is None or not is_usual or os.path.lexists(os.path.join(found.common_dir, 'commondir'))"
        " -> not is_usual or os.path.lexists(os.path.join(found.common_dir, 'commondir'))": "is no usual one",
    }
    checked = [find_repository, repository_of, repository._read_git_file, repository._is_same_file]
    assert_every_clause_decides(checked, lambda: check_layouts(layouts, wrong), equivalent=equivalent)


def check_heads(folder: Path) -> None:
    place = Repository(str(folder.parent), str(folder), str(folder))
    rows: list[tuple[str, Head | None]] = [
        (f"{HASH}\n", Head("", HASH)),
        (LONG_HASH, Head("", LONG_HASH)),
        (f"{HASH}a\n", None),
        (HASH.upper(), None),
        ("ref: refs/heads/main\n", Head("main", HASH)),
        ("ref: refs/heads/packed\n", Head("packed", LONG_HASH)),
        ("ref: refs/heads/ack\n", Head("ack", "")),
        ("ref: refs/heads/new\n", Head("new", "")),
        ("ref: refs/heads/a/b.c-d\n", Head("a/b.c-d", "")),
        ("ref: refs/heads/main/x\n", Head("main/x", "")),
        ("ref: refs/heads/a\n", Head("a", "")),
        ("ref: refs/heads/broken\n", None),
        ("ref: refs/heads/linked\n", None),
        ("ref: refs/tags/main\n", None),
        ("refs/heads/main\n", None),
        ("ref: refs/heads/\n", None),
        *((f"ref: refs/heads/{name}\n", None) for name in ("a//b", ".a", "a/.b", "a.lock", "a.lock/b", "a.", "a..b")),
        *((f"ref: refs/heads/{name}\n", None) for name in ("a@{b", "a b", "a~", "a^", "a:", "a?", "a*", "a[", "a\\")),
        (f"ref: refs/heads/{'x' * 250}\n", Head("x" * 250, "")),
        (f"ref: refs/heads/{'x' * 251}\n", None),
        ("\xff", None),
    ]
    for text, expected in rows:
        (folder / "HEAD").write_bytes(text.encode("latin-1"))
        assert read_head(place) == expected, text


def test_a_head_is_read_strictly(tmp_path: Path) -> None:
    folder = put_git(tmp_path / ".git")
    put(folder / "refs/heads/main", f"{HASH}\n")
    put(folder / "refs/heads/a/x", f"{HASH}\n")
    put(folder / "refs/heads/broken", "ref: refs/heads/main\n")
    os.symlink("main", folder / "refs/heads/linked")
    put(folder / "packed-refs", f"# pack-refs\n{LONG_HASH} refs/heads/packed\n{HASH} refs/heads/packed/more\n")
    check_heads(folder)
    checked = [read_head, repository._is_ref_name, repository._commit_of, repository.read_regular]
    equivalent = {
        "not stat.S_ISREG(status.st_mode) or status.st_size > limit -> not stat.S_ISREG(status.st_mode)": "read again",
        "not stat.S_ISREG(status.st_mode) or status.st_size > limit -> status.st_size > limit": "tested with a pipe",
    }
    assert_every_clause_decides(checked, lambda: check_heads(folder), equivalent=equivalent)
    (folder / "packed-refs").unlink()
    (folder / "HEAD").write_text("ref: refs/heads/packed\n")
    assert read_head(Repository(str(tmp_path), str(folder), str(folder))) == Head("packed", "")


def test_a_pointer_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = put_git(tmp_path / ".git", head="ref: refs/heads/main\n")
    place = Repository(str(tmp_path), str(folder), str(folder))
    for limit, expected in ((21, Head("main", "")), (20, None)):
        monkeypatch.setattr(repository, "_MAX_POINTER", limit)
        assert read_head(place) == expected
    monkeypatch.undo()
    (folder / "HEAD").unlink()
    os.mkfifo(folder / "HEAD")
    assert read_head(place) is None
    with pytest.raises(IsADirectoryError):
        repository.read_regular(str(folder), 10)


# What a sandboxed command has made


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
        # What was there before stays, whatever it is; only a text that git cannot read is refused.
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
        [is_plain_settings, added_settings, git_dir_scan._is_plain], lambda: check_settings(tmp_path)
    )
    assert_every_clause_decides([is_plain_step], check_steps)


class Made:
    """Git directories below a root, one thing different in each."""

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
            # It is no configuration, whatever it looks like.
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
    checked = [is_plain_directory, is_plain_file, git_dir_scan._is_linked, git_dir_scan._is_plain_at]
    equivalent = {
        "_is(stat.S_ISREG, path) and resolve_gitfile(path) in accepted -> resolve_gitfile(path) in accepted":
        "only regular files are read",
    }  # fmt: skip
    checked.append(git_dir_scan._has_only_samples)
    assert_every_clause_decides(checked, lambda: check_made(made), equivalent=equivalent)


# Git directories outside of the workspace


class Linked:
    """Work trees with a git directory elsewhere; `right` are those whose directory names them in turn."""

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
        " -> own is None or is_within(work_tree, own)": "what is missing has no HEAD either",
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


def test_a_decision_is_taken_once_for_a_work_tree(tmp_path: Path) -> None:
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


# Files that a configuration names


def test_what_a_configuration_makes_git_obey(tmp_path: Path) -> None:
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
    # A linked work tree obeys what the repository names, too.
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
