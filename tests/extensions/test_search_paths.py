"""Search paths of extensions: every directory, in order, with its owner, its dialect and its bound."""

from pathlib import Path

import pytest

from holdfast.config.locations import SettingsLocations, locate_settings
from holdfast.extensions.search_paths import (
    SearchPath,
    agent_directories,
    claude_settings_files,
    command_directories,
    skill_directories,
)

Rows = list[tuple[str, str, str, str]]


@pytest.fixture
def places(tmp_path: Path) -> SettingsLocations:
    """A directory below the root of its repository."""
    (tmp_path / "repo/.git").mkdir(parents=True)
    (tmp_path / "repo/below").mkdir()
    return locate_settings(
        str(tmp_path / "repo/below"), {"HOME": str(tmp_path / "home")}, data_dir=str(tmp_path / "data")
    )


def rows(folders: tuple[SearchPath, ...], top: Path) -> Rows:
    """Return rows with directory names instead of full paths."""
    found: Rows = []
    for folder in folders:
        path = folder.path.replace(str(top), "")
        found.append((path, folder.owner, folder.dialect, folder.within.replace(str(top), "")))
    return found


def test_commands(places: SettingsLocations, tmp_path: Path) -> None:
    assert rows(command_directories(places, {"HOME": str(tmp_path / "home")}), tmp_path) == [
        ("/home/.config/crush/commands", "user", "crush", ""),
        ("/home/.crush/commands", "user", "crush", ""),
        ("/home/.claude/commands", "user", "claude", ""),
        ("/home/.config/holdfast/commands", "user", "holdfast", ""),
        ("/repo/.crush/commands", "project", "crush", "/repo"),
        ("/repo/.claude/commands", "project", "claude", "/repo"),
        ("/repo/.holdfast/commands", "project", "holdfast", "/repo"),
        ("/repo/below/.crush/commands", "project", "crush", "/repo"),
        ("/repo/below/.claude/commands", "project", "claude", "/repo"),
        ("/repo/below/.holdfast/commands", "project", "holdfast", "/repo"),
    ]


def test_agents(places: SettingsLocations, tmp_path: Path) -> None:
    assert rows(agent_directories(places, {"HOME": str(tmp_path / "home")}), tmp_path) == [
        ("/home/.claude/agents", "user", "claude", ""),
        ("/home/.config/holdfast/agents", "user", "holdfast", ""),
        ("/repo/.claude/agents", "project", "claude", "/repo"),
        ("/repo/.holdfast/agents", "project", "holdfast", "/repo"),
        ("/repo/below/.claude/agents", "project", "claude", "/repo"),
        ("/repo/below/.holdfast/agents", "project", "holdfast", "/repo"),
    ]


def test_claude_code_settings_files(places: SettingsLocations, tmp_path: Path) -> None:
    assert rows(claude_settings_files(places, {"HOME": str(tmp_path / "home")}), tmp_path) == [
        ("/home/.claude/settings.json", "user", "claude", ""),
        ("/repo/.claude/settings.json", "project", "claude", "/repo"),
        ("/repo/.claude/settings.local.json", "project", "claude", "/repo"),
        ("/repo/below/.claude/settings.json", "project", "claude", "/repo"),
        ("/repo/below/.claude/settings.local.json", "project", "claude", "/repo"),
    ]


def test_skills(places: SettingsLocations, tmp_path: Path) -> None:
    found = rows(skill_directories(places, {"HOME": str(tmp_path / "home")}, ("own", "/abs")), tmp_path)
    assert found[0][0].endswith("/extensions/skills/builtin")
    assert found[0][1:] == ("builtin", "holdfast", "")
    assert found[1:8] == [
        (path, "user", "holdfast", "")
        for path in (
            "/home/.config/crush/skills",
            "/home/.config/agents/skills",
            "/home/.agents/skills",
            "/home/.claude/skills",
            "/home/.config/holdfast/skills",
            "/repo/below/own",
            "/abs",
        )
    ]
    names = (".agents", ".crush", ".claude", ".cursor", ".holdfast")
    assert found[8:] == [
        (f"{place}/{name}/skills", "project", "holdfast", "/repo")
        for place in ("/repo", "/repo/below")
        for name in names
    ]


@pytest.mark.parametrize(
    ("name", "value", "path"),
    [
        ("XDG_CONFIG_HOME", "{top}/xdg", "/xdg/crush/commands"),
        ("XDG_CONFIG_HOME", "relative", "/home/.config/crush/commands"),
        ("CLAUDE_CONFIG_DIR", "{top}/claude", "/claude/commands"),
    ],
)
def test_variables_change_paths(places: SettingsLocations, tmp_path: Path, name: str, value: str, path: str) -> None:
    environment = {"HOME": str(tmp_path / "home"), name: value.format(top=tmp_path)}
    assert path in [row[0] for row in rows(command_directories(places, environment), tmp_path)]


def test_crush_directory_can_be_configured(places: SettingsLocations, tmp_path: Path) -> None:
    found = skill_directories(places, {"HOME": str(tmp_path / "home"), "CRUSH_SKILLS_DIR": "/named"})
    assert found[1].path == "/named"


def test_project_in_home_directory_belongs_to_user(tmp_path: Path) -> None:
    """A directory in both roles needs no trust."""
    environment = {"HOME": str(tmp_path)}
    places = locate_settings(str(tmp_path), environment, data_dir=str(tmp_path / "data"))
    owners = {folder.path: folder.owner for folder in claude_settings_files(places, environment)}
    assert owners[str(tmp_path / ".claude/settings.json")] == "user"
    assert owners[str(tmp_path / ".claude/settings.local.json")] == "project"


def test_directory_equal_to_root_is_listed_once(tmp_path: Path) -> None:
    (tmp_path / "repo/.git").mkdir(parents=True)
    environment = {"HOME": str(tmp_path / "home")}
    places = locate_settings(str(tmp_path / "repo"), environment, data_dir=str(tmp_path / "data"))
    assert len(agent_directories(places, environment)) == 4


@pytest.mark.parametrize(
    ("given", "path"),
    [
        ("more", "/repo/below/more"),
        ("../more", "/repo/below/../more"),
        ("/opt/more", "/opt/more"),
        ("~/more", "/me/more"),
    ],
)
def test_directories_of_the_settings(
    places: SettingsLocations, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str, path: str
) -> None:
    monkeypatch.setenv("HOME", "/me")
    found = rows(skill_directories(places, {"HOME": str(tmp_path / "home")}, (given,)), tmp_path)
    assert (path, "user", "holdfast", "") in found
