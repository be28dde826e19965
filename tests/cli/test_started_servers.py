"""Commands that wait for MCP and language servers, and what they may check on this machine, with a fake server."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from cli.fake_server import FakeServer
from holdfast.cli import lsp, mcp, server_connection
from holdfast.cli.click_group import holdfast
from holdfast.domain.extensions import LspInfo, LspState, McpInfo

HOST = ("--host", "unix:///fake")


def lsp_info(state: LspState, error: str = "") -> dict[str, Any]:
    return {"one": LspInfo("one", state, "", error)}


def mcp_info(state: Any, error: str = "") -> dict[str, Any]:  # noqa: ANN401
    return {"one": McpInfo("one", state, "", error)}


class Clock:
    """Time passes only while a command sleeps."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        for module in (lsp, mcp):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
            monkeypatch.setattr(module, "sleep", self._sleep)
        monkeypatch.setattr(server_connection, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds
        assert self.now < 100, "the command does not stop waiting"


def call(*arguments: str) -> Result:
    return CliRunner().invoke(holdfast, [*arguments], prog_name="holdfast")


LSP_STATES = [LspState.STARTING, LspState.READY, LspState.ERROR]
MCP_STATES = ["starting", "connected", "error"]
COMMANDS: dict[str, tuple[tuple[str, ...], str, Callable[..., Any], list[Any]]] = {
    # the arguments, the list that is polled, an entry of it, and its states: starting, started, failed
    "lsp list": (("lsp", "list"), "GET W/lsps", lsp_info, LSP_STATES),
    "lsp start": (("lsp", "start", "a.py"), "GET W/lsps", lsp_info, LSP_STATES),
    "lsp restart": (("lsp", "restart"), "GET W/lsps", lsp_info, LSP_STATES),
    "mcp list": (("mcp", "list"), "GET W/mcp/states", mcp_info, MCP_STATES),
    "mcp logs": (("mcp", "logs", "one"), "GET W/mcp/states", mcp_info, MCP_STATES),
    "mcp restart": (("mcp", "restart", "one"), "GET W/mcp/states", mcp_info, MCP_STATES),
}  # fmt: skip


def served(monkeypatch: pytest.MonkeyPatch) -> FakeServer:
    server = FakeServer(monkeypatch)
    server.answers |= {
        "POST W/lsps/start": {}, "POST W/lsps/restart": {"names": ["one"]}, "POST W/mcp/restart": {},
        "GET W/mcp/log": {"name": "one", "text": ""},
    }  # fmt: skip
    return server


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_waits_until_its_servers_have_started(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments, path, entry, (starting, started, failed) = COMMANDS[name]
    server, clock = served(monkeypatch), Clock(monkeypatch)
    server.answers[path] = [entry(starting), entry(starting), entry(started)]
    done = call(*arguments, *HOST)
    assert (done.exit_code, server.sent().count(path)) == (0, 3), done.output
    assert round(clock.now, 3) == 0.2
    server.answers[path] = entry(starting)
    call(*arguments, *HOST)
    assert 0.2 < clock.now <= 20.5 + 0.2, "the wait is limited"
    server.answers[path] = entry(failed, "it broke")
    done = call(*arguments, *HOST)
    assert done.exit_code == (4 if "restart" in name else 0)
    if name != "mcp logs":
        assert "it broke" in done.output
    assert "Traceback" not in done.output


@pytest.mark.parametrize(("exists", "host", "code"), [(True, (), 0), (False, (), 4), (False, HOST, 0), (True, HOST, 0)])
def test_files_of_a_remote_server_are_not_looked_for_here(
    exists: bool, host: tuple[str, ...], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = served(monkeypatch)
    server.answers["GET W/lsps"] = lsp_info(LspState.READY)
    if exists:
        (tmp_path / "a.py").touch()
    done = call("lsp", "start", "a.py", "--cwd", str(tmp_path), "--data-dir", str(tmp_path / "data"), *host)
    assert done.exit_code == code, done.output
    assert [request.body for request in server.requests if request.name == "POST W/lsps/start"] == (
        [] if code else [{"path": "a.py"}]
    )
