"""`holdfast trust`: lists settings, requires a confirmation, stores trust."""

import os
import pty
import subprocess
from pathlib import Path

import pytest

from config.commands import Commands

CANARY = "hunter2canaryhunter2"
FILE = f"""\
[models.large]
model = "m"
[mcp.m]
command = "evil"
env = {{TOKEN = "{CANARY}"}}
"""


@pytest.fixture
def place(tmp_path: Path) -> Commands:
    return Commands(tmp_path)


def test_withheld_settings_are_shown(place: Commands) -> None:
    place.write_project(FILE)
    done = place.call("trust", "--show")
    assert done.stdout.splitlines() == [
        str(place.project_file),
        '    models.large.model = "m"  (line 2)',
        '  ! mcp.m.command = "evil"  (line 4)',
        '  ! mcp.m.env.TOKEN = "set"  (line 5)',
    ]
    assert "is not trusted" in done.stderr
    assert place.open().current().mcp == {}


def test_trust_and_revoke(place: Commands) -> None:
    place.write_project(FILE)
    assert "is trusted, until" in place.call("trust", "--yes").stderr
    assert place.open().current().mcp["m"].command == "evil"
    again = place.call("trust", "--yes")
    assert again.stderr == f"{place.project} is trusted.\n"
    assert "! mcp.m.command" in again.stdout, "settings that need trust are marked also when trusted"
    assert CANARY not in again.output
    assert "no longer trusted" in place.call("trust", "--revoke").stderr
    assert "was not trusted" in place.call("trust", "--revoke").stderr
    assert place.open().current().mcp == {}


def test_trust_requires_a_confirmation(place: Commands) -> None:
    place.write_project(FILE)
    done = place.call("trust")
    assert (done.exit_code, "--yes" in done.stderr) == (2, True)
    assert place.call("trust", "--yes", "--revoke").exit_code == 2
    assert not (place.data / "trust.json").exists()


@pytest.mark.parametrize(("answer", "is_trusted"), [("y", True), ("n", False), ("", False)])
def test_the_confirmation_decides(place: Commands, answer: str, is_trusted: bool) -> None:
    place.write_project(FILE)
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        place.arguments("trust"),
        stdin=theirs,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        cwd=place.project,
        env=place.variables(),
    )
    os.close(theirs)
    try:
        os.write(ours, f"{answer}\n".encode())
        process.communicate(timeout=60)
    finally:
        os.close(ours)
    assert (process.returncode == 0) is is_trusted
    assert ("m" in place.open().current().mcp) is is_trusted


def test_a_project_without_settings_is_trusted_until_it_has_some(place: Commands) -> None:
    """Language servers may run code of the project; settings that are added later need trust again."""
    shown = place.call("trust", "--show").stderr
    assert "There are no settings" in shown
    assert "build scripts" in shown
    assert f"{place.project} is not trusted." in shown
    assert place.call("trust").exit_code == 2
    assert not place.open().snapshot().project.is_trusted
    assert "is trusted, until it contains settings" in place.call("trust", "--yes").stderr
    assert place.open().snapshot().project.is_trusted
    place.write_project(FILE)
    assert place.open().current().mcp == {}
    assert "is not trusted" in place.call("trust", "--show").stderr
    place.project_file.unlink()
    assert "no longer trusted" in place.call("trust", "--revoke").stderr
    assert not place.open().snapshot().project.is_trusted


def test_a_broken_file_is_not_trusted(place: Commands) -> None:
    place.write_project(FILE)
    place.write(place.project / ".holdfast.toml", "[env")
    done = place.call("trust", "--yes")
    assert done.exit_code == 4
    assert f"{place.project / '.holdfast.toml'}:1: this is not TOML" in done.stderr
    assert "Correct these files first" in done.stderr


def test_long_files_are_shortened(place: Commands) -> None:
    place.write_project("[env]\n" + "".join(f"V{number} = 'x'\n" for number in range(300)))
    shown = place.call_ok("trust", "--show")
    assert "and 100 more: read the file before you trust it" in shown
