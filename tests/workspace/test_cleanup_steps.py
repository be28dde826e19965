"""Distinction between files of the user and files of commands: starts and ends of commands, simulated without a
command.
"""

import errno
import os
from pathlib import Path

import pytest

from holdfast.workspace.sandbox.git_dir_search import GitScanner
from holdfast.workspace.sandbox.linked_git_dirs import named_paths
from holdfast.workspace.sandbox.quarantine import Quarantine, SandboxCleanup, restore
from trials.sandbox_escapes import git

NAMES = ("settings.json", "conf/more.json")
PROGRAM = "[core]\nfsmonitor = /bin/x\n"
NOTHING: frozenset[str] = frozenset()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    root = Path(os.path.realpath(tmp_path)) / "project"
    root.mkdir()
    return root


def cleanup_of(place: Path) -> SandboxCleanup:
    return SandboxCleanup(str(place), NAMES, str(place.parent / "kept"))


def repository(place: Path, *, runs: bool = False) -> Path:
    """Create a repository of the user. Returns its configuration, which names a program if `runs` is true."""
    place.mkdir(exist_ok=True)
    git("init", "-q", cwd=place)
    config = place / ".git/config"
    append(config, PROGRAM if runs else "")
    return config


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


def names_of(cleanup: SandboxCleanup) -> list[str]:
    return [path for path, _ in cleanup.existing()]


def test_files_created_between_commands_belong_to_user(place: Path) -> None:
    """Even if the second command begins right after the end of the first."""
    cleanup = cleanup_of(place)
    assert cleanup.begin(NOTHING)() == ""
    (place / "settings.json").write_text("mine")
    assert cleanup.begin(NOTHING)() == ""
    assert (place / "settings.json").read_text() == "mine"
    end = cleanup.begin(NOTHING)
    (place / "conf").mkdir()
    (place / "conf/more.json").write_text("made")
    output = end()
    assert "conf/more.json (now" in output
    assert "settings.json" not in output.replace("more.json", "")
    assert [path.name for path in (place.parent / "kept").iterdir()] == ["1-more.json"]


def test_exchanged_settings_directory(place: Path) -> None:
    (place / "conf").mkdir()
    (place / "conf/more.json").write_text("mine")
    cleanup = cleanup_of(place)
    end = cleanup.begin(NOTHING)
    (place / "conf").rename(place / "away")
    (place / "conf").mkdir()
    (place / "conf/more.json").write_text("made")
    assert "conf/more.json" in end()
    assert not (place / "conf/more.json").exists()
    assert (place / "away/more.json").read_text() == "mine"


@pytest.mark.parametrize(("mounts", "is_guarded"), [("both", True), ("first", False), ("second", False)])
def test_change_of_read_only_file_is_attributed_to_user(place: Path, mounts: str, is_guarded: bool) -> None:
    config = repository(place)
    before = config.read_text()
    cleanup = cleanup_of(place)
    mounted = frozenset((str(config),))
    ends = [cleanup.begin(mounted if mounts in ("both", which) else NOTHING) for which in ("first", "second")]
    append(config, PROGRAM)
    output = ends[0]()
    assert (".git/config" in output) is not is_guarded
    assert config.read_text() == (before + PROGRAM if is_guarded else before)
    ends[1]()


def test_a_file_with_a_second_name_is_not_guarded_by_its_mount(place: Path) -> None:
    config = repository(place)
    os.link(config, place / "second name")
    cleanup = cleanup_of(place)
    end = cleanup.begin(frozenset((str(config),)))
    append(place / "second name", PROGRAM)
    assert ".git/config" in end()


def test_the_report_of_a_killed_server_is_delivered_once(place: Path) -> None:
    earlier = cleanup_of(place)
    earlier.begin(NOTHING)
    (place / "settings.json").write_text("made")
    cleanup = cleanup_of(place)
    assert not (place / "settings.json").exists()
    assert "settings.json" in cleanup.begin(NOTHING)()
    assert cleanup.begin(NOTHING)() == ""


def test_an_earlier_comparison_is_made_once(place: Path) -> None:
    cleanup_of(place).begin(NOTHING)
    (place / "settings.json").write_text("made")
    cleanup_of(place)
    (place / "settings.json").write_text("mine")
    assert cleanup_of(place).begin(NOTHING)() == ""
    assert (place / "settings.json").read_text() == "mine"
    # A command that has ended leaves nothing to compare either.
    cleanup_of(place).begin(NOTHING)()
    (place / "settings.json").unlink()
    (place / "conf").mkdir()
    (place / "conf/more.json").write_text("mine")
    assert cleanup_of(place).begin(NOTHING)() == ""


def test_a_repository_that_a_command_has_made_can_be_removed_by_the_next(place: Path) -> None:
    """It is not mounted read-only, however many commands and servers run in between."""
    mine = repository(place / "mine").parent
    cleanup = cleanup_of(place)
    end = cleanup.begin(NOTHING)
    made = repository(place / "made").parent
    assert end() == ""
    for _ in range(2):
        assert names_of(cleanup) == [str(mine)]
        assert cleanup.begin(NOTHING)() == ""
    later = cleanup_of(place)
    later.refresh()
    assert names_of(later) == [str(mine)]
    end = later.begin(NOTHING)
    append(made / "config", PROGRAM)
    assert "made/.git/config" in end()


def test_directories_that_are_covered_later(place: Path) -> None:
    """Existing files belong to the user, also while a command runs."""
    area = place.parent / "area"
    config = repository(area, runs=True)
    cleanup = cleanup_of(place)
    end = cleanup.begin(NOTHING)
    cleanup.cover((str(area),))
    cleanup.cover((str(area),))
    assert end() == ""
    assert PROGRAM in config.read_text()
    end = cleanup.begin(NOTHING)
    append(config, "[core]\npager = /bin/y\n")
    assert end().count("config (now") == 1
    assert config.read_text().endswith(PROGRAM)


def test_names_that_are_covered_later(place: Path) -> None:
    (place / "old").symlink_to("target")
    cleanup = cleanup_of(place)
    end = cleanup.begin(NOTHING)
    cleanup.cover_names([str(place / "old"), str(place / "new")])
    (place / "old").unlink()
    (place / "new").write_text("made")
    assert "new (now" in end()
    assert os.readlink(place / "old") == "target"


def test_a_failed_check_is_reported_and_repeated(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cleanup = cleanup_of(place)
    end = cleanup.begin(NOTHING)
    with monkeypatch.context() as patch:
        patch.setattr(GitScanner, "scan", lambda _: 1 / 0)
        assert "could not be checked" in end()
    (place / "settings.json").write_text("mine")
    assert cleanup.begin(NOTHING)() == ""
    assert (place / "settings.json").exists()


@pytest.mark.parametrize("is_link", [False, True])
def test_a_new_git_file_may_name_an_accepted_directory_itself(place: Path, is_link: bool) -> None:
    """A link to such a file may lead to another one later."""
    repository(place)
    (place / "text").write_text(f"gitdir: {place}/.git\n")
    cleanup = cleanup_of(place)
    end = cleanup.begin(NOTHING)
    (place / "sub").mkdir()
    if is_link:
        (place / "sub/.git").symlink_to("../text")
    else:
        (place / "sub/.git").write_text(f"gitdir: {place}/.git\n")
    assert ("sub/.git (now" in end()) is is_link


# Moving files


def test_moved_files_are_numbered_and_kept(place: Path) -> None:
    quarantine = Quarantine(place.parent / "kept")
    for number in (1, 2, 3):
        (place / "a-b").write_text(str(number))
        assert quarantine.move(str(place / "a-b"), str(place)) == str(place.parent / f"kept/{number}-a-b")
    (place.parent / "kept/2-a-b").unlink()
    (place / "c").write_text("4")
    assert quarantine.move(str(place / "c"), str(place)).endswith("/2-c")
    kept = {path.name: path.read_text() for path in (place.parent / "kept").iterdir()}
    assert kept == {"1-a-b": "1", "3-a-b": "3", "2-c": "4"}


@pytest.mark.parametrize(("number", "is_moved"), [(errno.EXDEV, True), (errno.EACCES, False), (errno.EBUSY, False)])
def test_move_copies_only_across_file_systems(
    place: Path, monkeypatch: pytest.MonkeyPatch, number: int, is_moved: bool
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, "no")

    (place / "d/e").mkdir(parents=True)
    (place / "d/e/f").write_text("x")
    monkeypatch.setattr(os, "rename", refuse)
    target = Quarantine(place.parent / "kept").move(str(place / "d"), str(place))
    assert bool(target) is is_moved
    assert (place / "d/e/f").exists() is not is_moved
    assert not is_moved or Path(target, "e/f").read_text() == "x"


def test_restore_does_not_overwrite(place: Path) -> None:
    restore(str(place / "f"), str(place), b"text")
    restore(str(place / "f"), str(place), b"other")
    restore(str(place / "l"), str(place), b"\0there")
    restore(str(place / "l"), str(place), b"\0elsewhere")
    (place / "dangling").symlink_to(place.parent / "outside")
    restore(str(place / "dangling"), str(place), b"text")
    assert ((place / "f").read_text(), os.readlink(place / "l")) == ("text", "there")
    assert not (place.parent / "outside").exists()


# Searching


@pytest.mark.parametrize(("error", "is_reported"), [(FileNotFoundError(), False), (OSError(errno.EIO, "no"), True)])
def test_directory_removed_during_search_is_not_reported_unread(
    place: Path, monkeypatch: pytest.MonkeyPatch, error: OSError, is_reported: bool
) -> None:
    (place / "gone/deep").mkdir(parents=True)
    really_open = os.open

    def opens(path: str, *arguments: int, **options: int) -> int:
        if path == "gone":
            raise error
        return really_open(path, *arguments, **options)

    monkeypatch.setattr(os, "open", opens)
    assert GitScanner(str(place)).scan().unread == ((str(place / "gone"),) if is_reported else ())


def test_paths_named_in_configuration(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(place.parent))
    config = repository(place)
    append(config, '[include]\npath = one\n[includeIf "gitdir:/nowhere/"]\npath = ../../two\n[core]\nhooksPath = ~/h\n')
    (place / ".git/one").write_text("[include]\npath = sub/three\n[core]\nhooksPath = own\n")
    (place / ".git/sub").mkdir()
    (place / ".git/sub/three").write_text("[include]\npath = four\n")
    (place / "own").mkdir()
    (place / "own/pre-commit").symlink_to(place.parent / "program")
    (place / "own/plain").write_text("")
    (place / ".git/hooks").mkdir(exist_ok=True)
    (place / ".git/hooks/post-commit").symlink_to("../other")
    found = set(map(os.path.normpath, named_paths(str(place / ".git"))))
    top = str(place)
    assert found == {
        f"{top}/.git/one", f"{top}/.git/sub/three", f"{top}/.git/sub/four", str(place.parent / "two"),
        str(place.parent / "h"), f"{top}/own", str(place.parent / "program"), f"{top}/.git/other",
    }  # fmt: skip
