"""The settings of a project that a user sees before trusting it are those that have no effect until then."""

import pytest

from config.settings_files import SettingsFiles

INSIDE = {
    "": ["a.md"],
    "sub": ["a.md", "../a.md", "out/a.md"],
    "sub/deep": ["a.md", "../a.md", "../../a.md", "out/a.md", "../out/a.md"],
}
"""The context files inside of the project, as seen from each directory of it."""


@pytest.mark.parametrize("below", INSIDE)
def test_shown_settings_are_the_withheld_ones(files: SettingsFiles, below: str) -> None:
    """Relative paths count from the directory of the workspace, which may lie below that of the settings."""
    directory = files.project / below
    directory.mkdir(parents=True, exist_ok=True)
    (files.project / "out").symlink_to(files.home)
    paths = ["a.md", "../a.md", "../../a.md", "../../../a.md", "out/a.md", "../out/a.md", "/etc/a", "~/a"]
    listed = ", ".join(f'"{path}"' for path in paths)
    files.write_project(
        f"[options]\ncontext_paths = [{listed}]\nmax_steps = 5\n"
        "[permissions]\nallow = ['bash(x)']\ndeny = ['bash(y)']\n"
    )
    configuration = files.open(directory)
    effective = configuration.snapshot()
    shown = [item for _, withheld in configuration.project_layers() for item in withheld]
    assert shown == list(effective.withheld)
    assert list(effective.settings.options.context_paths) == INSIDE[below]
    names = {("options", "context_paths"), ("options", "max_steps"), ("permissions", "allow")}
    assert {item.path[:2] for item in shown} == names
