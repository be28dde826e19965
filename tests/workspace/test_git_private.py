"""Read-only git commands and the private git directory: every clause of the check, every part of the copy."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from holdfast.workspace.git import git_command
from holdfast.workspace.git.git_command import PrivateGit, git_program, list_settings
from holdfast.workspace.git.readonly_check import git_runs_nothing_else

ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/nowhere", "GIT_CONFIG_NOSYSTEM": "1"}
HASH = "a" * 40


def put(path: Path, text: str = "") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


# Read-only commands


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    top = tmp_path_factory.mktemp("checks").resolve() / "top"
    top.mkdir()
    run(top, "init", "-q", "-b", "main")
    return top


def run(folder: Path, *words: str) -> None:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "protocol.file.allow=always")
    subprocess.run(["git", *identity, *words], cwd=folder, env=ENVIRONMENT, check=True, capture_output=True)


@pytest.mark.parametrize(
    ("config", "is_quiet"),
    [
        ("", True),
        ("[user]\n\tname = A\n[advice]\n\tanything = x\n", True),
        ("[core]\n\tpager = less\n", False),
        ("[core]\n\tfsmonitor = true\n", True),
        ("[core]\n\tfsmonitor = false\n", True),
        ("[core]\n\tfsmonitor = ./evil\n", False),
        ("[core]\n\thooksPath = hooks of mine\n", True),
        ("[core]\n\thooksPath = with a hook\n", False),
        ("[core]\n\tworktree = ..\n", True),
        ('[remote "o"]\n\turl = https://example.org/x\n\tpushurl = git@example.org:x\n', True),
        ('[remote "o"]\n\turl = ext::sh -c x\n', False),
        ('[remote "o"]\n\tpushurl = ext::sh -c x\n', False),
        ('[filter "lfs"]\n\tclean = git-lfs clean -- %f\n\tsmudge = git-lfs smudge -- %f\n\trequired = true\n', True),
        ('[filter "lfs"]\n\tprocess = git-lfs filter-process\n', True),
        ('[filter "lfs"]\n\tprocess = evil\n', False),
        ('[filter "other"]\n\tclean = git-lfs clean -- %f\n', False),
        ("[include]\n\tpath = nothing\n", False),
        ("[broken\n", False),
    ],
)
def test_only_harmless_configurations_are_quiet(repository: Path, config: str, is_quiet: bool) -> None:
    put(repository / "with a hook/post-index-change", "")
    before = (repository / ".git/config").read_text()
    try:
        (repository / ".git/config").write_text(before + config)
        assert git_runs_nothing_else(str(repository), ENVIRONMENT) is is_quiet
    finally:
        (repository / ".git/config").write_text(before)


def test_locations_of_git_commands(repository: Path, tmp_path: Path) -> None:
    """Outside a repository, in its own directory, with its hook, with a directory from the environment."""
    sub = put(repository / "sub/x").parent
    assert git_runs_nothing_else(str(sub), ENVIRONMENT)
    assert git_runs_nothing_else(str(tmp_path), ENVIRONMENT)
    assert not git_runs_nothing_else(str(repository / ".git"), ENVIRONMENT)
    assert not git_runs_nothing_else(str(tmp_path / "nothing"), ENVIRONMENT)
    assert not git_runs_nothing_else(str(tmp_path), {**ENVIRONMENT, "PATH": "/nowhere"})
    (tmp_path / ".git").write_text("gitdir: nowhere\n")
    assert not git_runs_nothing_else(str(tmp_path), ENVIRONMENT)
    hook = put(repository / ".git/hooks/post-index-change")
    assert not git_runs_nothing_else(str(sub), ENVIRONMENT)
    hook.unlink()
    # The user's global keys count equally, unless their file is in the project.
    inside = put(repository / "settings", "[core]\n\tpager = evil\n")
    outside = put(tmp_path / "settings", "[core]\n\tpager = less\n")
    for path, is_quiet in ((inside, False), (outside, True)):
        environment = {**ENVIRONMENT, "GIT_CONFIG_GLOBAL": str(path)}
        assert git_runs_nothing_else(str(sub), environment) is is_quiet
    environment = {**ENVIRONMENT, "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "core.pager", "GIT_CONFIG_VALUE_0": "x"}
    assert git_runs_nothing_else(str(sub), environment)


def test_submodules_are_examined_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = tmp_path.resolve()
    for name in ("inner", "top"):
        put(base / name / "file", name)
        run(base / name, "init", "-q", "-b", "main")
        run(base / name, "add", ".")
        run(base / name, "commit", "-q", "-m", "x")
    run(base / "top", "submodule", "-q", "add", "../inner", "mod")
    top, settings = str(base / "top"), base / "top/.git/modules/mod/config"
    assert git_runs_nothing_else(top, ENVIRONMENT)
    assert git_runs_nothing_else(str(base / "top/mod"), ENVIRONMENT)
    with monkeypatch.context() as patch:
        patch.setattr("holdfast.workspace.git.readonly_check._MAX_SUBMODULES", 0)
        assert not git_runs_nothing_else(top, ENVIRONMENT)
        patch.setattr("holdfast.workspace.git.readonly_check._MAX_SUBMODULES", 1)
        assert git_runs_nothing_else(top, ENVIRONMENT)
    before = settings.read_text()
    (base / "top/elsewhere").mkdir()
    (base / "top/mod/below").mkdir()
    places = [top, f"{top}/elsewhere", f"{top}/mod", f"{top}/mod/below"]
    assert [git_runs_nothing_else(place, ENVIRONMENT) for place in places] == [True] * 4
    settings.write_text(before + "[core]\n\tpager = evil\n")
    assert [git_runs_nothing_else(place, ENVIRONMENT) for place in places] == [False] * 4
    settings.write_text(before)
    # A submodule that is not checked out is not entered.
    shutil.rmtree(base / "top/mod")
    settings.write_text(before + "[core]\n\tpager = evil\n")
    assert git_runs_nothing_else(top, ENVIRONMENT)


# The private git directory


def test_contents_of_private_directory(repository: Path, tmp_path: Path) -> None:
    top = tmp_path.resolve() / "top"
    shutil.copytree(repository, top)
    put(top / "file", "x")
    run(top, "add", "file")
    run(top, "commit", "-q", "-m", "first")
    put(top / ".git/info/exclude", "hidden\n")
    home = tmp_path / 'h"o\\me'
    put(home / ".config/git/ignore", "*.tmp\n")
    private = PrivateGit(str(tmp_path / "private"))
    environment = {**ENVIRONMENT, "HOME": str(home), "GIT_DIR": "/evil", "GIT_SSH_COMMAND": "evil", "OTHER": "kept"}
    found = private.prepare(str(top), environment, "/elsewhere")
    assert found is not None
    directory = Path(found.environment["GIT_DIR"])
    assert {name: value for name, value in found.environment.items() if not name.startswith("GIT_")} == {
        "PATH": ENVIRONMENT["PATH"], "OTHER": "kept", "HOME": str(directory), "XDG_CONFIG_HOME": str(directory),
        "LC_ALL": "C.UTF-8",
    }  # fmt: skip
    assert {name: value for name, value in found.environment.items() if name.startswith("GIT_")} == {
        "GIT_DIR": str(directory), "GIT_WORK_TREE": str(top), "GIT_INDEX_FILE": f"{directory}/index",
        "GIT_OBJECT_DIRECTORY": f"{top}/.git/objects", "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_SYSTEM": "/dev/null",
        "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_ATTR_NOSYSTEM": "1", "GIT_NO_LAZY_FETCH": "1",
        "GIT_NO_REPLACE_OBJECTS": "1", "GIT_ALLOW_PROTOCOL": "none", "GIT_OPTIONAL_LOCKS": "0",
        "GIT_TERMINAL_PROMPT": "0", "GIT_PAGER": "cat",
    }  # fmt: skip
    settings = dict(list_settings((directory / "config").read_bytes()) or ())
    assert settings["core.excludesfile"] == f"{home}/.config/git/ignore"
    assert (settings["core.fsmonitor"], settings["core.hookspath"]) == ("false", "/dev/null")
    assert (directory / "info/exclude").read_text() == "hidden\n"
    assert (directory / "HEAD").read_text() == f"{found.head.commit if found.head else ''}\n"
    assert (directory / "index").read_bytes() == (top / ".git/index").read_bytes()
    assert (directory / "index").stat().st_mtime_ns == (top / ".git/index").stat().st_mtime_ns
    assert directory.stat().st_mode & 0o777 == 0o700
    assert private.prepare(str(top), environment, "/elsewhere") == found
    # A change of any part creates another directory, and the previous one stays until the next.
    made = [directory]
    for change in ("exclude", "index", "shallow", "HEAD", "home"):
        if change == "index":
            os.utime(top / ".git/index")
        elif change == "home":
            environment = {**environment, "HOME": "/nowhere"}
        else:
            text = {"exclude": "other\n", "HEAD": "ref: refs/heads/other\n", "shallow": ""}[change]
            put(top / ".git" / {"exclude": "info/exclude"}.get(change, change), text or f"{HASH}\n")
        again = private.prepare(str(top), environment, "/elsewhere")
        assert again is not None
        made.append(Path(again.environment["GIT_DIR"]))
        assert len(set(made)) == len(made), change
        assert [path for path in made if path.exists()] == made[-2:], change
    assert private.prepare(str(top), environment, str(Path(git_program() or "/").parent)) is None
    assert private.prepare(str(tmp_path), environment, "/elsewhere") is None
    private.close()
    assert not (tmp_path / "private").exists()


def test_failed_private_directory_leaves_nothing(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = tmp_path.resolve() / "top"
    shutil.copytree(repository, top)
    put(top / "file", "x")
    run(top, "add", "file")
    private = PrivateGit(str(tmp_path / "private"))
    real, before = os.utime, len(os.listdir("/proc/self/fd"))

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(git_command.os, "utime", fail)  # type: ignore[attr-defined]
    assert private.prepare(str(top), ENVIRONMENT, "/elsewhere") is None
    assert os.listdir(tmp_path / "private") == []
    monkeypatch.setattr(git_command.os, "utime", real)  # type: ignore[attr-defined]
    monkeypatch.setattr(git_command, "_MAX_INDEX", (top / ".git/index").stat().st_size - 1)
    assert private.prepare(str(top), ENVIRONMENT, "/elsewhere") is None
    monkeypatch.setattr(git_command, "_MAX_INDEX", (top / ".git/index").stat().st_size)
    assert private.prepare(str(top), ENVIRONMENT, "/elsewhere") is not None
    assert len(os.listdir("/proc/self/fd")) == before
    private.close()


def test_number_of_private_directories_is_bounded(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_command, "_MAX_REPOSITORIES", 2)
    private = PrivateGit(str(tmp_path / "private"))
    tops = [tmp_path.resolve() / f"top{number}" for number in range(3)]
    for top in tops:
        shutil.copytree(repository, top)
    # Those of an earlier server are removed with the first.
    put(tmp_path / "private/earlier/x")
    first = [private.prepare(str(top), ENVIRONMENT, "/elsewhere") for top in (*tops[:2], tops[0], tops[2])]
    places = [Path(item.environment["GIT_DIR"]) for item in first if item is not None]
    assert (places[0], len(places)) == (places[2], 4)
    assert [path.exists() for path in places] == [True, False, True, True]
    assert not (tmp_path / "private/earlier").exists()
    private.close()
