"""Checks on git configuration keys, files and layouts: every clause decides once by itself."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.workspace.git import repository
from holdfast.workspace.git.readonly_check import is_harmless, pattern_of
from holdfast.workspace.git.repository import (
    GitHead,
    Repository,
    find_repository,
    read_bytes,
    read_head,
    read_path,
    repository_of,
    resolve_gitfile,
)
from planting import assert_every_clause_decides
from workspace.git_directories import HASH, put, put_git

LONG_HASH = "b" * 64


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
    """Directories as git creates them, and each with one change."""

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
        """Return invalid layouts with the reason."""
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


def test_only_layouts_created_by_git_are_accepted(tmp_path: Path) -> None:
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
    rows: list[tuple[str, GitHead | None]] = [
        (f"{HASH}\n", GitHead("", HASH)),
        (LONG_HASH, GitHead("", LONG_HASH)),
        (f"{HASH}a\n", None),
        (HASH.upper(), None),
        ("ref: refs/heads/main\n", GitHead("main", HASH)),
        ("ref: refs/heads/packed\n", GitHead("packed", LONG_HASH)),
        ("ref: refs/heads/ack\n", GitHead("ack", "")),
        ("ref: refs/heads/new\n", GitHead("new", "")),
        ("ref: refs/heads/a/b.c-d\n", GitHead("a/b.c-d", "")),
        ("ref: refs/heads/main/x\n", GitHead("main/x", "")),
        ("ref: refs/heads/a\n", GitHead("a", "")),
        ("ref: refs/heads/broken\n", None),
        ("ref: refs/heads/linked\n", None),
        ("ref: refs/tags/main\n", None),
        ("refs/heads/main\n", None),
        ("ref: refs/heads/\n", None),
        *((f"ref: refs/heads/{name}\n", None) for name in ("a//b", ".a", "a/.b", "a.lock", "a.lock/b", "a.", "a..b")),
        *((f"ref: refs/heads/{name}\n", None) for name in ("a@{b", "a b", "a~", "a^", "a:", "a?", "a*", "a[", "a\\")),
        (f"ref: refs/heads/{'x' * 250}\n", GitHead("x" * 250, "")),
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
    assert read_head(Repository(str(tmp_path), str(folder), str(folder))) == GitHead("packed", "")


def test_a_pointer_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = put_git(tmp_path / ".git", head="ref: refs/heads/main\n")
    place = Repository(str(tmp_path), str(folder), str(folder))
    for limit, expected in ((21, GitHead("main", "")), (20, None)):
        monkeypatch.setattr(repository, "_MAX_POINTER", limit)
        assert read_head(place) == expected
    monkeypatch.undo()
    (folder / "HEAD").unlink()
    os.mkfifo(folder / "HEAD")
    assert read_head(place) is None
    with pytest.raises(IsADirectoryError):
        repository.read_regular(str(folder), 10)
