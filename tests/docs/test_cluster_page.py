"""The page about several servers: its systemd unit and its metrics are those of the program."""

import configparser
import re
import shlex
from pathlib import Path

from holdfast.cli.server import serve_command
from holdfast.server.serve import DEFAULT_DRAIN_TIMEOUT

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/cluster.md").read_text()
_C55_SECONDS = 5
"""The time for which a server may end its runs after the drain."""


def _block(kind: str) -> str:
    found = re.search(rf"^```{kind}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None, kind
    return found[1]


def test_the_unit_lets_a_drain_finish_and_signals_only_the_server() -> None:
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(_block("ini"))
    service = unit["Service"]
    command = shlex.split(service["ExecStart"])
    assert Path(command[0]).name == "holdfast"
    known = {option: parameter.name for parameter in serve_command.params for option in parameter.opts}
    options = dict(zip(command[2::2], command[3::2], strict=True))
    assert options.keys() <= known.keys()
    drain = float(options["--drain-timeout"])
    assert drain == DEFAULT_DRAIN_TIMEOUT
    assert float(service["TimeoutStopSec"]) > drain + _C55_SECONDS
    # By default systemd also sends SIGTERM to the commands of active runs.
    assert service["KillMode"] == "mixed"
    # A node that was drained exits with 0 and must not be started again.
    assert service["Restart"] == "on-failure"


def test_the_page_lists_the_metrics_of_a_cluster() -> None:
    source = (ROOT / "src/holdfast/server/telemetry/metrics.py").read_text()
    names = set(re.findall(r'"((?:cluster|postgres)_\w+)"', source))
    assert len(names) == 8
    listed = set(re.findall(r"^\| `holdfast_(\w+)", PAGE, re.MULTILINE))
    assert listed == names


def test_the_proxy_passes_events_on_at_once_and_names_a_host_that_every_node_accepts() -> None:
    proxy = _block("nginx")
    for directive in ("proxy_buffering off;", "proxy_set_header Host localhost:7437;", "proxy_http_version 1.1;"):
        assert directive in proxy
    assert len(set(re.findall(r"server [\d.]+:(\d+) ", proxy))) == 1, "the name contains the port"
