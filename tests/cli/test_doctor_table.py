"""Output and exit code of `holdfast doctor` for each severity and each connection error."""

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from holdfast import __version__
from holdfast.cli.click_group import holdfast
from holdfast.cli.server_connection import ServerConnection
from holdfast.client.errors import ConnectionLost, ServerProblem, StartFailed, TimedOut, Unreachable
from holdfast.client.server_check import VersionMismatch
from holdfast.domain.doctor import Finding, Health
from holdfast.domain.errors import HoldfastError
from holdfast.protocol.bodies import VersionInfo


class Server:
    """Scripted responses of a server, and its recorded requests."""

    def __init__(self, top: Path, patch: pytest.MonkeyPatch) -> None:
        self.findings: tuple[Finding, ...] = ()
        self.version = __version__
        self.error: HoldfastError | None = None
        self.queries: list[object] = []
        self.closed = 0
        self._environment = {"HOME": str(top), "XDG_RUNTIME_DIR": str(top / "r"), "HOLDFAST_DATA_DIR": str(top / "d")}
        (top / "r").mkdir(mode=0o700)
        patch.chdir(top)
        patch.setattr(ServerConnection, "open", self._open)
        patch.setattr(ServerConnection, "request", self._request)
        patch.setattr(ServerConnection, "path", lambda _, *names: "/".join(names))
        patch.setattr(ServerConnection, "close", self._close)

    def _open(self, *_: object) -> None:
        if self.error is not None:
            raise self.error

    def _close(self, *_: object) -> None:
        self.closed += 1

    def _request(self, answer: type, method: str, path: str, **more: object) -> object:
        if answer is VersionInfo:
            return VersionInfo(self.version, "", "", "", "", 1, 7)
        self.queries.append(more.get("query"))
        return Health(self.findings)

    def call(self, *arguments: str) -> Result:
        return CliRunner().invoke(holdfast, ["doctor", *arguments], env=self._environment, prog_name="holdfast")


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(tmp_path, monkeypatch)


OK, NOTE = Finding("models", "ok", "fine"), Finding("models", "note", "by the way")
WARNING = Finding("hooks", "warning", "look at it", "Do this.", "/f", 3)
ERROR = Finding("settings", "error", "broken", file="/g")


@pytest.mark.parametrize(
    ("findings", "code", "last"),
    [
        ((OK,), 0, "No problems."),
        ((OK, NOTE), 0, "No problems."),
        ((OK, WARNING), 0, "1 warning."),
        ((ERROR,), 1, "1 error."),
        ((ERROR, ERROR, WARNING), 1, "2 errors and 1 warning."),
        ((WARNING, WARNING), 0, "2 warnings."),
    ],
)
def test_the_exit_code_and_the_summary(server: Server, findings: tuple[Finding, ...], code: int, last: str) -> None:
    server.findings = findings
    done = server.call()
    assert done.exit_code == code
    assert done.stdout.rstrip().splitlines()[-1] == last
    assert json.loads(server.call("--json").stdout)["findings"][-1]["severity"] == findings[-1].severity
    assert server.call("--json").exit_code == code


def test_a_finding_has_a_location_and_a_remedy(server: Server) -> None:
    server.findings = (WARNING, ERROR)
    lines = server.call().stdout.splitlines()
    width = len("installation") if any(line.startswith("installation") for line in lines) else len("settings")
    assert f"{'hooks':<{width}}  ! /f:3: look at it" in lines
    assert f"{'':<{width}}    → Do this." in lines
    assert f"{'settings':<{width}}  ✗ /g: broken" in lines


@pytest.mark.parametrize(
    ("areas", "shown", "code"),
    [((), {"hooks", "settings"}, 1), (("hooks",), {"hooks"}, 0), (("settings",), {"settings"}, 1)],
)
def test_only_selected_areas_count(server: Server, areas: tuple[str, ...], shown: set[str], code: int) -> None:
    server.findings = (WARNING, ERROR)
    done = server.call("--json", *(word for area in areas for word in ("--area", area)))
    found = {item["area"] for item in json.loads(done.stdout)["findings"]} - {"server", "socket", "installation"}
    assert (found, done.exit_code) == (shown, code)
    assert server.queries == [(("areas", ",".join(areas) or None),)]


@pytest.mark.parametrize(
    ("error", "advice"),
    [
        (VersionMismatch("It is older."), ""),
        (StartFailed("It did not start."), "See its output: holdfast logs."),
        (Unreachable("Nobody."), "Check the address, and that a server is running there: holdfast serve."),
        (TimedOut("Late."), "See holdfast logs. After holdfast server stop --force"),
        (ConnectionLost("Cut."), "See holdfast logs. After holdfast server stop --force"),
        (ServerProblem(500, "Broken."), "See holdfast logs. After holdfast server stop --force"),
        (HoldfastError("Something."), ""),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, HoldfastError) else "",
)
def test_an_unreachable_server_is_an_error_with_a_remedy(server: Server, error: HoldfastError, advice: str) -> None:
    server.error = error
    done = server.call("--json")
    assert done.exit_code == 1
    last = json.loads(done.stdout)["findings"][-1]
    assert (last["area"], last["severity"], last["what"]) == ("server", "error", str(error))
    assert last.get("what_to_do", "").startswith(advice)
    assert bool(last.get("what_to_do")) == bool(advice)
    assert server.closed >= 1


def test_a_server_of_another_version_is_a_warning(server: Server) -> None:
    server.version = "9.9"
    found = [item for item in json.loads(server.call("--json").stdout)["findings"] if item["area"] == "server"]
    assert [item["severity"] for item in found] == ["warning"]
    assert f"This command is version {__version__}." in found[0]["what"]
    assert "holdfast server stop" in found[0]["what_to_do"]


@pytest.mark.parametrize("mode", [0o700, 0o500, 0o600])
def test_a_data_directory_that_cannot_be_written(
    server: Server, mode: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tests may run as root, for which every directory is writable."""
    (tmp_path / "d").mkdir()
    monkeypatch.setattr(os, "access", lambda _, wanted: mode & (wanted << 6) == wanted << 6)
    found = [item for item in json.loads(server.call("--json").stdout)["findings"] if item["area"] == "data directory"]
    assert [item["what"] for item in found] == ([] if mode == 0o700 else ["cannot be written."])
