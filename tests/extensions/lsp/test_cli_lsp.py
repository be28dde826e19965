"""The command `holdfast lsp`."""

import json
import sys
from collections.abc import Iterator

import pytest

from cli.isolated_home import IsolatedHome, isolated_home
from extensions.lsp.lsp_workspace import SERVER


@pytest.fixture
def home() -> Iterator[IsolatedHome]:
    with isolated_home() as made:
        yield made


def test_the_lsp_command(home: IsolatedHome) -> None:
    assert home.call("lsp").stderr.startswith("No language server is running here")
    ours = home.home / "ours"
    ours.mkdir()
    settings = home.home / ".config/holdfast/config.toml"
    settings.parent.mkdir(parents=True, exist_ok=True)
    settings.write_text(
        f"""
[lsp.ours]
command = "{sys.executable}"
args = ["{SERVER}", "{ours}"]
filetypes = ["zz"]

[lsp.missing]
command = "no-such-program"
filetypes = ["zz"]
"""
    )
    (home.work / "a.zz").write_text("BAD\n")
    head, *rows = home.stdout_of("lsp").splitlines()
    assert head.split() == ["SERVER", "STATE", "FOUND"]
    assert [row.split() for row in rows] == [["missing", "unstarted"], ["ours", "unstarted"]]
    nothing = home.call("lsp", "start", "b.zz")
    assert (nothing.returncode, nothing.stderr) == (4, "holdfast: There is no file b.zz.\n")
    started = home.stdout_of("lsp", "start", "a.zz")
    assert "no-such-program is not installed" in started
    states = {item["name"]: item["state"] for item in json.loads(home.stdout_of("lsp", "list", "--json"))}
    assert states == {"missing": "error", "ours": "ready"}
    assert home.stdout_of("lsp", "restart", "ours").splitlines()[1].split()[:2] == ["ours", "ready"]
    failed = home.call("lsp", "restart")
    assert failed.returncode == 4
    assert "holdfast lsp logs" in failed.stderr
    log = home.call("lsp", "logs", "ours")
    assert "starting" in log.stdout
    assert "debug_lsp" in log.stderr
    unknown = home.call("lsp", "logs", "nobody")
    assert (unknown.returncode, "Traceback" in unknown.stderr) == (4, False)
    published = home.call("doctor").stdout
    assert "lsp.missing is not running: no-such-program is not installed" in published
    assert ".config/holdfast/config.toml:" in published
