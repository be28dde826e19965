"""Locations of settings files, lowest precedence first."""

from pathlib import Path

from config.settings_files import SettingsFiles
from holdfast.config.locations import locate_settings, project_root


def test_the_order_of_the_files(files: SettingsFiles) -> None:
    inner = files.project / "a" / "b"
    inner.mkdir(parents=True)
    names = [source.path for source in files.locations(inner).sources]
    project = [
        str(folder / name)
        for folder in (files.project, files.project / "a", inner)
        for name in (".mcp.json", "crush.json", ".crush.json", "holdfast.toml", ".holdfast.toml")
    ]
    assert names == [
        str(files.system),
        str(files.home / ".config/crush/crush.json"),
        str(files.home / ".local/share/crush/crush.json"),
        str(files.home / ".config/holdfast/config.toml"),
        *project,
        str(files.data / "config.json"),
        str(files.data / "workspaces/w1/config.json"),
    ]


def test_system_wide_file_is_the_lowest(files: SettingsFiles) -> None:
    locations = locate_settings(str(files.project), {"HOME": "/h"}, data_dir="/d")
    assert locations.sources[0].path == "/etc/holdfast/config.toml"
    assert locations.sources[-1].path == "/d/config.json", "without an id there is no file of the workspace"


def test_environment_changes_the_locations(files: SettingsFiles) -> None:
    files.environment |= {"XDG_CONFIG_HOME": "/c", "XDG_DATA_HOME": "/s"}
    paths = [source.path for source in files.locations().sources]
    assert "/c/holdfast/config.toml" in paths
    assert {"/c/crush/crush.json", "/s/crush/crush.json"} <= set(paths)
    files.environment |= {"CRUSH_GLOBAL_CONFIG": "/g", "CRUSH_GLOBAL_DATA": "/gd", "XDG_CONFIG_HOME": "not/absolute"}
    paths = [source.path for source in files.locations().sources]
    assert {"/g/crush.json", "/gd/crush.json", str(files.user_file)} <= set(paths)


def test_project_is_limited_to_its_repository(tmp_path: Path) -> None:
    (tmp_path / "crush.json").write_text("{}")
    inner = tmp_path / "repository" / "src"
    inner.mkdir(parents=True)
    assert project_root(str(inner)) == str(inner), "without a repository a project is its directory"
    (tmp_path / "repository" / ".git").write_text("gitdir: elsewhere")
    assert project_root(str(inner)) == str(tmp_path / "repository")


def test_writable_file_of_a_project(files: SettingsFiles) -> None:
    inner = files.project / "src"
    inner.mkdir()
    assert files.locations(inner).project_file == str(files.project / "holdfast.toml")
    files.write(inner / "crush.json", "{}")
    assert files.locations(inner).project_file == str(files.project / "holdfast.toml"), "JSON is not written"
    files.write(files.project / "holdfast.toml", "")
    assert files.locations(inner).project_file == str(files.project / "holdfast.toml")
    files.write(inner / "holdfast.toml", "")
    assert files.locations(inner).project_file == str(inner / "holdfast.toml")
    files.write(inner / ".holdfast.toml", "")
    assert files.locations(inner).project_file == str(inner / ".holdfast.toml")
