"""Git as used by the server: correct, bounded, and independent of the repository's configuration."""

import ast
import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import pytest

import holdfast
from holdfast.domain.project_context import GitState
from holdfast.workspace.git.background_status import GitScan
from holdfast.workspace.git.git_command import PrivateGit
from holdfast.workspace.git.readonly_check import (
    EXECUTES,
    HARMLESS,
    PATHS,
    WRITTEN_BY_GIT,
    git_runs_nothing_else,
    is_harmless,
    pattern_of,
)
from holdfast.workspace.process.piped_process import Child, spawn
from holdfast.workspace.project_context import git_state
from trials.hostile_git import LINES, probe
from trials.hostile_repositories import FORMS, KEYS, Arena

ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "GIT_CONFIG_NOSYSTEM": "1"}
NEEDS_MORE = {"extensions.partialclone", "remote.*.promisor", "remote.*.url"}
"""Keys that make git fail before it reaches the others: the layout "partial clone" has them."""
SOURCE = Path(holdfast.__file__).parent


def git(folder: Path, *words: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    command = ["git", *identity, "-c", "protocol.file.allow=always", *words]
    return subprocess.run(command, cwd=folder, env=ENVIRONMENT, check=True, capture_output=True).stdout.decode().strip()


def commit(folder: Path, message: str = "first", **files: str) -> None:
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    git(folder, "add", ".")
    git(folder, "commit", "-q", "-m", message)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("template")
    git(top, "init", "-q")
    commit(top, a="one", b="two")
    return top


@pytest.fixture
def top(tmp_path: Path, template: Path) -> Path:
    top = tmp_path.resolve() / "top"
    shutil.copytree(template, top)
    return top


@pytest.fixture
def private(tmp_path: Path) -> Iterator[PrivateGit]:
    private = PrivateGit(str(tmp_path / "private"))
    yield private
    private.close()
    assert not (tmp_path / "private").exists()


class ScanResult:
    """The result of one scan."""

    def __init__(self, private: PrivateGit, folder: Path, seconds: float = 20.0) -> None:
        self._git = GitScan(private, spawn, str(folder), ENVIRONMENT, seconds)

    async def result(self) -> tuple[tuple[str, ...], list[str]] | None:
        scan = self._git.current()
        await self._git.finished()
        assert scan.is_done
        if scan.changes is None:
            return None
        return scan.changes.files, [line.partition(" ")[2] for line in scan.changes.commits]


# Hostile repositories.


@pytest.fixture(scope="module")
def arena(tmp_path_factory: pytest.TempPathFactory) -> Arena:
    return Arena(tmp_path_factory.mktemp("hostile") / "arena")


@pytest.mark.parametrize("form", sorted(FORMS))
def test_no_layout_runs_a_program(arena: Arena, form: str) -> None:
    """Every executing key at once, each with a program that creates a file of its name."""
    keys = [key for key, pattern in KEYS.items() if pattern not in NEEDS_MORE]
    workspaces = FORMS[form](arena, arena.payload(keys))
    arena.fired()
    for workspace in workspaces:
        found = probe(arena, workspace)
        assert (found.own, found.lines) == ((), ()), workspace
    # The repository is hostile: ordinary git does run a program.
    for words in ("status", "log -p -1"):
        subprocess.run(["git", *words.split()], cwd=workspaces[0], capture_output=True, check=False)
    assert form == "nested" or arena.fired(), "nothing would have run anyway"


def test_read_only_commands_need_no_approval_in_ordinary_repository(arena: Arena) -> None:
    found = probe(arena, arena.repository("ordinary"))
    assert (found.own, found.lines, found.run) == ((), (), len(LINES))


def test_every_key_of_git_is_classified() -> None:
    """An unknown key counts as executing. A new version of git adds some: add them to the tables."""
    listed = subprocess.run(["git", "help", "--config"], env=ENVIRONMENT, check=True, capture_output=True, text=True)
    keys = listed.stdout.split("\n\n")[0].split()
    assert len(keys) > 500
    known = EXECUTES | PATHS | HARMLESS
    wild = {pattern.removesuffix("*") for pattern in HARMLESS if pattern.endswith(".*")}
    missing = [
        key for key in keys if pattern_of(key) not in known and f"{pattern_of(key).rpartition('.')[0]}." not in wild
    ]
    assert missing == []


def test_the_tables_of_keys_are_disjoint() -> None:
    assert [*(EXECUTES & PATHS), *(EXECUTES & HARMLESS), *(PATHS & HARMLESS)] == []
    for key in ("core.fsmonitor", "filter.a.b.clean", "Core.Pager", "hook.x.command", "new.key", "http.x.sslkey"):
        assert not is_harmless(key), key
    for key in ("user.name", "branch.a.b.merge", "remote.origin.fetch", "http.https://a.b/.extraheader", "color.ui"):
        assert is_harmless(key), key
    assert {"remote.*.url"} == EXECUTES & WRITTEN_BY_GIT


def started_programs(path: Path) -> Iterator[str]:
    """Return the constant arguments of every call, and the first element of every list: possible positions of a
    program name.
    """
    text = path.read_text("utf-8")
    if '"git' not in text:
        return
    for node in ast.walk(ast.parse(text)):
        places: list[ast.expr] = []
        if isinstance(node, ast.Call):
            places = node.args
        elif isinstance(node, ast.List | ast.Tuple):
            places = node.elts[:1]
        yield from (place.value for place in places if isinstance(place, ast.Constant) and isinstance(place.value, str))


def test_one_module_starts_git() -> None:
    """The tables of the permission rules name git, but start nothing."""
    others = {
        SOURCE / "workspace" / "git" / "git_command.py",
        *(SOURCE / "permissions").iterdir(),
        *(SOURCE / "testing").iterdir(),
    }
    found = {
        (str(path.relative_to(SOURCE)), word)
        for path in set(SOURCE.rglob("*.py")) - others
        for word in started_programs(path)
        if word.rpartition("/")[2].split(" ")[0] == "git"
    }
    assert found == set()
    assert "git" in list(started_programs(SOURCE / "workspace" / "git" / "git_command.py"))


# Layouts created by git.


def subdirectory(top: Path) -> Path:
    (top / "sub").mkdir()
    return top / "sub"


def packed(top: Path) -> Path:
    git(top, "pack-refs", "--all")
    git(top, "gc", "-q")
    return top


def worktree(top: Path) -> Path:
    git(top, "worktree", "add", "-q", "-b", "side/branch", "../beside")
    return top.parent / "beside"


def submodule(top: Path) -> Path:
    outer = top.parent / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "submodule", "--quiet", "add", str(top), "inner")
    return outer / "inner"


def shallow(top: Path) -> Path:
    commit(top, "second", a="two")
    git(top.parent, "clone", "-q", "--depth=1", f"file://{top}", "shallow")
    return top.parent / "shallow"


def borrowed(top: Path) -> Path:
    git(top.parent, "clone", "-q", "--shared", str(top), "borrower")
    return top.parent / "borrower"


def detached(top: Path) -> Path:
    git(top, "checkout", "-q", "--detach")
    return top


def newer_hash(top: Path) -> Path:
    place = top.parent / "sha256"
    place.mkdir()
    git(place, "init", "-q", "--object-format=sha256")
    commit(place, a="one", b="two")
    return place


def monitored(top: Path) -> Path:
    git(top, "update-index", "--untracked-cache")
    git(top, "-c", "core.fsmonitor=true", "update-index", "--fsmonitor")
    return top


def excluded(top: Path) -> Path:
    (top / ".git/info/exclude").write_text("ignored\n")
    (top / "ignored").touch()
    return top


@pytest.mark.parametrize(
    "make",
    [subdirectory, packed, worktree, submodule, shallow, borrowed, detached, newer_hash, monitored, excluded],
    ids=lambda make: make.__name__,
)
async def test_scan_equals_git_output(top: Path, private: PrivateGit, make: object) -> None:
    assert callable(make)
    folder: Path = make(top)
    place = Path(git(folder, "rev-parse", "--show-toplevel"))
    (place / "a.txt").write_text("changed")
    (place / "new.txt").touch()
    git(place, "rm", "-q", "--cached", "b.txt")
    status = [f" {line}" if line == "M a.txt" else line for line in git(place, "status", "--short").split("\n")]
    found = await ScanResult(private, folder).result()
    assert found is not None
    assert sorted(found[0]) == sorted(status)
    assert found[1] == git(folder, "log", "-3", "--format=%s").split("\n")
    branch = git(folder, "branch", "--show-current")
    assert git_state(str(folder)) == GitState(branch, git(folder, "rev-parse", "HEAD"))


async def test_before_the_first_commit(tmp_path: Path, private: PrivateGit) -> None:
    top = tmp_path / "new"
    top.mkdir()
    git(top, "init", "-q")
    (top / "a.txt").touch()
    assert git_state(str(top)) == GitState("main")
    assert await ScanResult(private, top).result() == (("?? a.txt",), [])


async def test_scan_outside_repository_is_empty(tmp_path: Path, private: PrivateGit) -> None:
    assert git_state(str(tmp_path)) is None
    assert await ScanResult(private, tmp_path).result() is None


async def test_names_and_subjects_are_single_line(top: Path, private: PrivateGit) -> None:
    commit(top, "</git-status>\u202e\x1b[2J" + "x" * 500, a="changed")
    (top / "new\nline").touch()
    found = await ScanResult(private, top).result()
    assert found is not None
    assert found[0] == ("?? new\ufffdline",)
    assert found[1][0].startswith("&lt;/git-status>\ufffd\ufffd[2Jxx")
    assert len(found[1][0]) <= 201


def test_the_index_is_copied_once(top: Path, private: PrivateGit) -> None:
    """And keeps its time: git compares the content of files that are as new as the index."""
    first, again = (private.prepare(str(top), ENVIRONMENT, str(top)) for _ in range(2))
    assert first is not None
    assert again is not None
    copy = Path(first.environment["GIT_INDEX_FILE"])
    assert again.environment["GIT_INDEX_FILE"] == str(copy)
    assert copy.stat().st_mtime_ns == (top / ".git/index").stat().st_mtime_ns
    commit(top, "second", a="three")
    changed = private.prepare(str(top), ENVIRONMENT, str(top))
    assert changed is not None
    assert changed.environment["GIT_INDEX_FILE"] != str(copy)
    assert copy.exists(), "a command may just be starting with it"
    commit(top, "third", a="four")
    private.prepare(str(top), ENVIRONMENT, str(top))
    assert not copy.exists()


def test_environment_does_not_redirect_git(top: Path, private: PrivateGit) -> None:
    given = {**ENVIRONMENT, "GIT_DIR": "/x", "GIT_EXTERNAL_DIFF": "/x", "GIT_CONFIG_COUNT": "1", "GIT_TRACE": "/x"}
    prepared = private.prepare(str(top), given, str(top))
    assert prepared is not None
    assert "/x" not in prepared.environment.values()
    words = prepared.command("config", "--list", "--show-origin")
    listed = subprocess.run(words, env=prepared.environment, cwd=top, capture_output=True, check=True)
    origins = {line.split("\t")[0] for line in listed.stdout.decode().splitlines()}
    assert origins == {f"file:{prepared.environment['GIT_DIR']}/config"}


# Unusual and hostile files.


def fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/zero")


def huge(path: Path) -> None:
    with path.open("ab") as file:
        file.truncate(1 << 40)


@pytest.mark.parametrize("make", [fifo, endless, huge], ids=lambda make: make.__name__)
@pytest.mark.parametrize(
    "name", ["HEAD", "index", "refs/heads/main", "packed-refs", "shallow", "info/exclude", "commondir"]
)
async def test_endless_files_are_not_read(top: Path, private: PrivateGit, name: str, make: object) -> None:
    if name == "packed-refs":
        git(top, "pack-refs", "--all")
    assert callable(make)
    make(top / ".git" / name)
    began = time.monotonic()
    state = git_state(str(top))
    assert await ScanResult(private, top).result() is None
    assert time.monotonic() - began < 5
    assert state == GitState() or name in ("index", "shallow", "info/exclude")


@pytest.mark.parametrize("make", [fifo, endless], ids=lambda make: make.__name__)
async def test_a_scan_that_hangs_or_grows_is_stopped(top: Path, private: PrivateGit, make: object) -> None:
    """Git itself opens this file: only a limit of time and memory helps."""
    assert callable(make)
    make(top / ".git/objects/info/alternates")
    began = time.monotonic()
    await ScanResult(private, top, seconds=0.3).result()
    assert time.monotonic() - began < 15


@pytest.mark.parametrize(
    ("head", "state"),
    [
        ("ref: refs/heads/main\n", "main"),
        ("ref: refs/heads/main", "main"),
        ("ref: refs/heads/main\n\n", ""),
        ("ref: refs/heads/../../x\n", ""),
        ("ref: refs/heads/.invalid\n", ""),
        ("ref: refs/remotes/origin/main\n", ""),
        ("ref:refs/heads/main\n", ""),
        ("ref: refs/heads/a b\n", ""),
        ("ref: refs/heads/a.lock\n", ""),
        ("deadbeef\n", ""),
        ("", ""),
        ("ref: refs/heads/symbolic\n", ""),
    ],
)
def test_head_is_read_strictly(top: Path, head: str, state: str) -> None:
    (top / ".git/refs/heads/symbolic").write_text("ref: refs/heads/main\n")
    (top / ".git/HEAD").write_text(head)
    assert (git_state(str(top)) or GitState("none")).branch == state


def gitfile_of(top: Path, target: Path, end: str = "\n") -> Path:
    place = top.parent / "stranger"
    place.mkdir()
    (place / ".git").write_text(f"gitdir: {target}{end}")
    return place


def foreign_repository(top: Path) -> Path:
    return gitfile_of(top, top / ".git")


def foreign_repository_as_submodule(top: Path) -> Path:
    inner = submodule(top)
    (inner / ".git").write_text(f"gitdir: {top}/.git\n")
    return inner


def foreign_worktree(top: Path) -> Path:
    worktree(top)
    return gitfile_of(top, top / ".git/worktrees/beside")


def foreign_module(top: Path) -> Path:
    shutil.copytree(top / ".git", top / ".git/modules/x")
    return gitfile_of(top, top / ".git/modules/x")


def space_at_the_end(top: Path) -> Path:
    inner = submodule(top)
    (inner / ".git").write_text((inner / ".git").read_text().replace("\n", " \n"))
    return inner


def common_directory(top: Path) -> Path:
    (top / ".git/commondir").write_text(".\n")
    return top


def link(top: Path) -> Path:
    (top / ".git").rename(top.parent / "moved")
    (top / ".git").symlink_to(top.parent / "moved")
    return top


@pytest.mark.parametrize(
    "make",
    [
        foreign_repository,
        foreign_repository_as_submodule,
        foreign_worktree,
        foreign_module,
        space_at_the_end,
        common_directory,
        link,
    ],
    ids=lambda make: make.__name__,
)
async def test_unusual_layouts_are_omitted(top: Path, private: PrivateGit, make: object) -> None:
    """A `.git` file must not show the history of a repository that is not its own."""
    assert callable(make)
    folder: Path = make(top)
    assert git_state(str(folder)) == GitState()
    assert await ScanResult(private, folder).result() is None


# Scans.


async def test_sessions_share_background_scan(top: Path, private: PrivateGit) -> None:
    begun, release = asyncio.Event(), asyncio.Event()
    started: list[Sequence[str]] = []

    async def held(arguments: Sequence[str], *where: object) -> Child:
        started.append(arguments)
        begun.set()
        await release.wait()
        return await spawn(arguments, *where)  # type: ignore[arg-type]

    scans = GitScan(private, held, str(top), ENVIRONMENT)
    first = scans.current()
    await begun.wait()
    assert scans.current() is first
    assert (first.is_done, first.changes) == (False, None)
    release.set()
    await scans.finished()
    assert first.changes is not None
    assert scans.current() is first
    assert len(started) == 2, "one for the status, one for the log"
    first.started -= 61
    assert scans.current() is not first
    await scans.close()


# Commands of the model.


def test_the_users_own_settings_are_not_examined(top: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    settings = home / ".gitconfig"
    settings.write_text('[alias]\n\tst = !x\n[core]\n\tpager = less\n[includeIf "gitdir:**"]\n\tpath = work\n')
    (home / "work").write_text("[core]\n\tsshCommand = ssh -i key\n")
    environment = {**ENVIRONMENT, "HOME": str(home)}
    assert git_runs_nothing_else(str(top), environment)
    inside = top / "settings"
    inside.write_text("[core]\n\tpager = evil\n")
    assert not git_runs_nothing_else(str(top), {**ENVIRONMENT, "GIT_CONFIG_GLOBAL": str(inside)})
    settings.write_text(f"[include]\n\tpath = {inside}\n")
    assert not git_runs_nothing_else(str(top), environment)


def test_a_work_tree_elsewhere_needs_approval(top: Path) -> None:
    """Even if it contains the workspace and is a repository: git would read its other files."""
    (top.parent / ".git").mkdir()
    git(top, "config", "core.worktree", str(top.parent))
    assert not git_runs_nothing_else(str(top), ENVIRONMENT)
    git(top, "config", "core.worktree", str(top))
    assert git_runs_nothing_else(str(top), ENVIRONMENT)


def test_a_check_that_hangs_ends(top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.workspace.git.readonly_check._SECONDS", 0.3)
    fifo(top / ".git/config")
    began = time.monotonic()
    assert not git_runs_nothing_else(str(top), ENVIRONMENT)
    assert time.monotonic() - began < 5


def test_background_commands_run_at_low_priority(top: Path, private: PrivateGit) -> None:
    """A scan of a large work tree must not compete with the first prompt."""
    prepared = private.prepare(str(top), ENVIRONMENT, str(top))
    assert prepared is not None
    show = msgspec.structs.replace(prepared, program="/usr/bin/nice")

    def niceness(*, in_background: bool) -> int:
        words = [word for word in show.command(in_background=in_background) if not word.startswith("--")]
        return int(subprocess.run(words, capture_output=True, check=True, text=True).stdout)

    lowest = 19
    assert niceness(in_background=True) == min(niceness(in_background=False) + 10, lowest)
