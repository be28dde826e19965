"""Which files there are, lowest first."""

from pathlib import Path

from config.place import Place
from holdfast.config.locations import locate_settings, project_root


def test_the_order_of_the_files(place: Place) -> None:
    inner = place.project / "a" / "b"
    inner.mkdir(parents=True)
    names = [source.path for source in place.places(inner).sources]
    project = [
        str(folder / name)
        for folder in (place.project, place.project / "a", inner)
        for name in (".mcp.json", "crush.json", ".crush.json", "holdfast.toml", ".holdfast.toml")
    ]
    assert names == [
        str(place.system),
        str(place.home / ".config/crush/crush.json"),
        str(place.home / ".local/share/crush/crush.json"),
        str(place.home / ".config/holdfast/config.toml"),
        *project,
        str(place.data / "config.json"),
        str(place.data / "workspaces/w1/config.json"),
    ]


def test_the_system_has_a_file_too(place: Place) -> None:
    places = locate_settings(str(place.project), {"HOME": "/h"}, data_dir="/d")
    assert places.sources[0].path == "/etc/holdfast/config.toml"
    assert places.sources[-1].path == "/d/config.json", "without an id there is no file of the workspace"


def test_the_environment_moves_files(place: Place) -> None:
    place.environment |= {"XDG_CONFIG_HOME": "/c", "XDG_DATA_HOME": "/s"}
    files = [source.path for source in place.places().sources]
    assert "/c/holdfast/config.toml" in files
    assert {"/c/crush/crush.json", "/s/crush/crush.json"} <= set(files)
    place.environment |= {"CRUSH_GLOBAL_CONFIG": "/g", "CRUSH_GLOBAL_DATA": "/gd", "XDG_CONFIG_HOME": "not/absolute"}
    files = [source.path for source in place.places().sources]
    assert {"/g/crush.json", "/gd/crush.json", str(place.user_file)} <= set(files)


def test_a_project_ends_at_its_repository(tmp_path: Path) -> None:
    (tmp_path / "crush.json").write_text("{}")
    inner = tmp_path / "repository" / "src"
    inner.mkdir(parents=True)
    assert project_root(str(inner)) == str(inner), "without a repository a project is its directory"
    (tmp_path / "repository" / ".git").write_text("gitdir: elsewhere")
    assert project_root(str(inner)) == str(tmp_path / "repository")


def test_where_a_project_is_written(place: Place) -> None:
    inner = place.project / "src"
    inner.mkdir()
    assert place.places(inner).project_file == str(place.project / "holdfast.toml")
    place.write(inner / "crush.json", "{}")
    assert place.places(inner).project_file == str(place.project / "holdfast.toml"), "JSON is not written"
    place.write(place.project / "holdfast.toml", "")
    assert place.places(inner).project_file == str(place.project / "holdfast.toml")
    place.write(inner / "holdfast.toml", "")
    assert place.places(inner).project_file == str(inner / "holdfast.toml")
    place.write(inner / ".holdfast.toml", "")
    assert place.places(inner).project_file == str(inner / ".holdfast.toml")
