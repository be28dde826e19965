"""`holdfast doctor`: output of the local checks and of the checks of the server."""

import msgspec
from click.testing import CliRunner

from cli.isolated_home import IsolatedHome
from holdfast.cli.click_group import holdfast
from holdfast.domain.doctor import Health


def test_problems_are_listed_with_remedies(home: IsolatedHome) -> None:
    (home.work / "holdfast.toml").write_text('[options]\nmax_steps = "many"\n')
    done = home.call("doctor")
    assert done.returncode == 1
    assert "settings" in done.stdout
    assert "~/w/holdfast.toml:2: options.max_steps: expected a whole number" in done.stdout
    assert "→ Correct the file" in done.stdout
    assert "is the scripted model" in done.stdout
    assert done.stdout.rstrip().splitlines()[-1].startswith("1 error")
    (home.work / "holdfast.toml").unlink()
    health = msgspec.json.decode(home.call("doctor", "--json").stdout, type=Health)
    areas = {item.area for item in health.findings}
    assert {"socket", "server", "models", "sandbox", "search tools", "data directory"} <= areas
    assert not [item for item in health.findings if item.severity == "error"]
    assert [item.area for item in health.findings if item.area == "data directory" and item.severity != "ok"] == []


def test_one_area_alone(home: IsolatedHome) -> None:
    done = home.call("doctor", "--area", "search tools", "--json")
    assert done.returncode == 0
    assert {item["area"] for item in msgspec.json.decode(done.stdout)["findings"]} == {"search tools"}


def test_an_unusable_socket_directory(alone: IsolatedHome) -> None:
    """Problems that prevent the start of a server are found without it."""
    place = alone.home / "r" / "holdfast"
    place.mkdir()
    place.chmod(0o755)
    done = alone.call("doctor")
    assert done.returncode == 1
    assert "chmod 700" in done.stdout
    assert alone.server_process() is None


def test_a_data_directory_that_is_a_file(alone: IsolatedHome) -> None:
    file = alone.home / "file"
    file.touch()
    done = alone.call("doctor", "--data-dir", str(file))
    assert done.returncode == 1
    assert f"{file} is a file." in done.stdout
    assert "→ Move it, or" in done.stdout


def test_a_server_that_cannot_start(alone: IsolatedHome) -> None:
    """The last lines of its output are shown."""
    place = alone.home / "broken"
    place.mkdir(mode=0o700)
    (place / "holdfast.db").write_text("no database at all\n")
    done = alone.call("doctor", "--data-dir", str(place))
    assert done.returncode == 1
    last = next(line for line in done.stdout.splitlines() if "is not a SQLite database" in line)
    assert last.startswith("          Error: ")
    assert "\\n" not in done.stdout


def test_no_server_at_the_address(alone: IsolatedHome) -> None:
    done = alone.call("doctor", "--host", f"unix://{alone.home}/nobody")
    assert done.returncode == 1
    assert "No Holdfast server answers" in done.stdout
    assert "holdfast serve" in done.stdout


def test_help_contains_examples_of_doctor() -> None:
    for name in ("doctor", "stats", "acp"):
        output = CliRunner().invoke(holdfast, [name, "--help"], prog_name="holdfast").stdout
        assert f"\n    holdfast {name}" in output
