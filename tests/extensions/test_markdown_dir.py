"""Scans of Markdown directories: they terminate for any content, and read only changed files again."""

import os
from pathlib import Path

from holdfast.atomic_files import MAX_FILE_SIZE
from holdfast.config.locations import locate_settings
from holdfast.extensions.markdown_dir import MarkdownDirectory, MarkdownFile
from holdfast.extensions.search_paths import (
    SearchPath,
    agent_directories,
    claude_settings_files,
    command_directories,
    skill_directories,
)

PROJECT_NAMES = ("agents", "crush", "claude", "cursor", "holdfast")


def taken(*folders: SearchPath) -> dict[str, MarkdownFile]:
    directory = MarkdownDirectory("files", lambda file: file)
    return {file.name: file for file in directory.scan(folders)}


def test_directories_are_namespaces(tmp_path: Path) -> None:
    (tmp_path / "git/deep").mkdir(parents=True)
    for name in ("a.md", "git/b.MD", "git/deep/c.md", "no.txt"):
        (tmp_path / name).write_text(name)
    assert set(taken(SearchPath(str(tmp_path), "user"))) == {"a", "git:b", "git:deep:c"}


def test_only_changed_files_are_read_again(tmp_path: Path) -> None:
    read: list[str] = []

    def reading(file: MarkdownFile) -> bytes:
        read.append(file.name)
        return file.data

    for name in ("a", "b"):
        (tmp_path / f"{name}.md").write_text(name)
    directory = MarkdownDirectory("files", reading)
    folder = SearchPath(str(tmp_path), "user")
    assert directory.scan([folder]) == (b"a", b"b")
    assert directory.scan([folder]) == (b"a", b"b")
    (tmp_path / "b.md").write_text("other")
    (tmp_path / "a.md").unlink()
    assert directory.scan([folder]) == (b"other",)
    assert read == ["a", "b", "b"]


def test_scan_of_hostile_directory_terminates(tmp_path: Path) -> None:
    """Symlink cycles, a pipe, a directory with the name of a file, a file above the limit, a dangling symlink."""
    place = tmp_path / "commands"
    place.mkdir()
    (place / "loop").symlink_to(place)
    (place / "self.md").symlink_to(place / "self.md")
    (place / "gone.md").symlink_to(tmp_path / "nowhere")
    (place / "dir.md").mkdir()
    os.mkfifo(place / "pipe.md")
    (place / "large.md").write_bytes(b"x" * 300_000)
    (place / "bytes.md").write_bytes(b"\xff\xfe")
    deep = place
    for number in range(12):
        deep = deep / f"d{number}"
    deep.mkdir(parents=True)
    (deep / "x.md").write_text("too deep")
    found = taken(SearchPath(str(place), "user"))
    assert set(found) == {"self", "gone", "pipe", "large", "bytes"}
    assert {name for name, file in found.items() if file.error} == {"self", "gone", "pipe", "large"}


def test_project_symlinks_do_not_leave_project(tmp_path: Path) -> None:
    """They would give the user's files to a model."""
    secret = tmp_path / "secret.md"
    secret.write_text("a key")
    project = tmp_path / "project"
    (project / "c").mkdir(parents=True)
    (project / "c/a.md").symlink_to(secret)
    (project / "c/b.md").symlink_to(project / "own.md")
    (project / "own.md").write_text("mine")
    found = taken(SearchPath(str(project / "c"), "project", within=str(project)))
    assert (found["a"].data, bool(found["a"].error)) == (b"", True)
    assert found["b"].data == b"mine"


def test_bounds_of_depth_and_size(tmp_path: Path) -> None:
    deep = tmp_path / "1/2/3/4/5"
    deep.mkdir(parents=True)
    (deep.parent / "in.md").write_text("x")
    (deep / "out.md").write_text("x")
    for name, size in (("fits", MAX_FILE_SIZE), ("large", MAX_FILE_SIZE + 1)):
        (tmp_path / f"{name}.md").write_bytes(b"x" * size)
    for within in ("", str(tmp_path)):
        found = taken(SearchPath(str(tmp_path), "user", within=within))
        assert {name: bool(file.error) for name, file in found.items()} == {
            "1:2:3:4:in": False, "fits": False, "large": True,
        }  # fmt: skip


def test_entries_are_in_the_order_of_their_names(tmp_path: Path) -> None:
    for name in ("b/2.md", "b/1.md", "a/3.md", "c.md", "a/b/4.md"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        (tmp_path / name).write_text("x")
    assert [*taken(SearchPath(str(tmp_path), "user"))] == ["c", "a:3", "a:b:4", "b:1", "b:2"]


def test_a_flood_of_files_is_bounded(tmp_path: Path) -> None:
    for number in range(600):
        (tmp_path / f"{number}.md").touch()
    assert len(taken(SearchPath(str(tmp_path), "user"))) == 512


def test_a_flood_of_words_is_bounded(tmp_path: Path) -> None:
    for number in range(100):
        (tmp_path / f"{number:03}.md").write_bytes(b"x" * 250_000)
    found = taken(SearchPath(str(tmp_path), "user"))
    assert 60 < sum(not file.error for file in found.values()) < 70


def test_directory_precedence(tmp_path: Path) -> None:
    """Project before user, directory before repository, own names last."""
    home, project = tmp_path / "home", tmp_path / "repo/sub"
    project.mkdir(parents=True)
    (tmp_path / "repo/.git").mkdir()
    environment = {"HOME": str(home)}
    places = locate_settings(str(project), environment, data_dir=str(tmp_path / "data"))

    def named(folders: tuple[SearchPath, ...]) -> list[str]:
        return [folder.path.removeprefix(f"{tmp_path}/") for folder in folders if folder.owner != "builtin"]

    assert named(skill_directories(places, environment, ("~x", "/abs", "rel"))) == [
        "home/.config/crush/skills",
        "home/.config/agents/skills",
        "home/.agents/skills",
        "home/.claude/skills",
        "home/.config/holdfast/skills",
        "repo/sub/~x",
        "/abs",
        "repo/sub/rel",
        *(f"repo/{at}.{name}/skills" for at in ("", "sub/") for name in PROJECT_NAMES),
    ]
    assert named(command_directories(places, environment))[:4] == [
        "home/.config/crush/commands",
        "home/.crush/commands",
        "home/.claude/commands",
        "home/.config/holdfast/commands",
    ]
    assert named(agent_directories(places, environment))[-1] == "repo/sub/.holdfast/agents"
    files = claude_settings_files(places, environment)
    assert [file.owner for file in files] == ["user", *["project"] * 4]


def test_project_in_home_directory_belongs_to_user(tmp_path: Path) -> None:
    environment = {"HOME": str(tmp_path)}
    places = locate_settings(str(tmp_path), environment, data_dir=str(tmp_path / "data"))
    for folders in (claude_settings_files(places, environment), agent_directories(places, environment)):
        mine = [folder for folder in folders if "/.claude/" in folder.path and "local" not in folder.path]
        assert [folder.owner for folder in mine] == ["user"]
