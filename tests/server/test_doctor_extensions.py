"""Findings of `holdfast doctor` about MCP and language servers, for every combination of their states."""

from itertools import combinations_with_replacement
from types import SimpleNamespace
from typing import cast, get_args

from holdfast.domain.doctor import Finding
from holdfast.domain.extensions import LspInfo, LspState, McpInfo, McpState
from holdfast.server.routes import lsp, mcp
from holdfast.server.workspace_handle import WorkspaceHandle

MCP_PROBLEMS = {
    "starting": ("note", "is still starting.", "Check again in a moment."),
    "needs auth": ("warning", "requires a login.", "Log in: holdfast mcp login {}"),
    "error": ("error", "is not connected. It ended.", "See its output: holdfast mcp logs {}"),
}


class Configuration:
    """The settings of the servers: each has its file and two lines, and the lines of others lie around them."""

    def __init__(self, section: str, names: list[str]) -> None:
        self.reads = 0
        self.origins = {
            (section, name, key): SimpleNamespace(file=f"/{name}.toml", line=line)
            for name in names
            for key, line in (("command", 7), ("args", 5))
        } | {(other, names[0]): SimpleNamespace(file="/other.toml", line=1) for other in {"mcp", "lsp"} - {section}}

    def snapshot(self) -> None:
        self.reads += 1


def handle(configuration: Configuration, **extensions: object) -> WorkspaceHandle:
    services = SimpleNamespace(configuration=configuration, extensions=SimpleNamespace(**extensions))
    return cast(WorkspaceHandle, SimpleNamespace(services=services))


class McpServers:
    """Servers in given states. The states may be read once the running attempts have been awaited."""

    def __init__(self, infos: dict[str, McpInfo]) -> None:
        self._infos = infos
        self.waits: list[float] = []

    async def wait_attempts(self, seconds: float) -> None:
        self.waits.append(seconds)

    def states(self) -> dict[str, McpInfo]:
        assert self.waits == [15.0]
        return self._infos


def mcp_findings(states: tuple[McpState, ...]) -> list[Finding]:
    """Return the expected findings: one for each problem, otherwise a summary of the servers that are switched on."""
    found = []
    for name, state in zip("abc", states, strict=False):
        if state in MCP_PROBLEMS:
            severity, text, todo = MCP_PROBLEMS[state]
            what = f"mcp.{name} {text}"
            found.append(Finding("mcp servers", severity, what, todo.format(name), f"/{name}.toml", 5))  # type: ignore[arg-type]
    if found or not states:
        return found
    count = states.count("connected")
    tools = "1 tool" if count == 1 else f"{count} tools"
    on = f"{count} connected" if count else "none enabled"
    return [Finding("mcp servers", "ok", f"{on}, {tools}.")]


async def test_mcp_servers_in_every_combination_of_states() -> None:
    for size in range(4):
        for states in combinations_with_replacement(get_args(McpState), size):
            infos = {
                name: McpInfo(name, state, "", "It ended." * (state == "error"), int(state == "connected"))
                for name, state in zip("abc", states, strict=False)
            }
            configuration = Configuration("mcp", [*infos, "z"])
            found = await mcp.check(handle(configuration, mcp=McpServers(infos)))
            assert list(found) == mcp_findings(states), states
            assert configuration.reads == 1


class LspServers:
    """Language servers in given states, and the reasons why some cannot be started."""

    def __init__(self, infos: dict[str, LspInfo], faults: dict[str, str]) -> None:
        self._infos, self._faults = infos, faults
        self.manager = self

    def infos(self) -> dict[str, LspInfo]:
        return self._infos

    async def launch_problems(self) -> dict[str, str]:
        return self._faults


def lsp_finding(name: str, state: LspState, error: str, fault: str) -> Finding | None:
    if state == LspState.ERROR and error:
        severity, text, todo = "warning", f"is not running: {error}", f"See its output: holdfast lsp logs {name}"
    elif error:
        severity, text, todo = "note", "was not started.", error
    elif fault:
        severity, text = "warning", f"could not be started: {fault}"
        todo = "Correct its settings, or remove it."
    else:
        return None
    return Finding("language servers", severity, f"lsp.{name} {text}", todo, f"/{name}.toml", 5)  # type: ignore[arg-type]


async def test_language_servers_in_every_combination_of_states() -> None:
    kinds = [
        (state, error, fault)
        for state in (LspState.UNSTARTED, LspState.READY, LspState.ERROR)
        for error in ("", "It ended.")
        for fault in ("", "no program")
        if error or state != LspState.ERROR
    ]
    for size in range(3):
        for chosen in combinations_with_replacement(kinds, size):
            infos = {name: LspInfo(name, kind[0], "", kind[1]) for name, kind in zip("ab", chosen, strict=False)}
            faults = {name: kind[2] for name, kind in zip("ab", chosen, strict=False) if kind[2]}
            expected = [
                found
                for name, kind in zip("ab", chosen, strict=False)
                if (found := lsp_finding(name, *kind)) is not None
            ]
            if not expected and chosen:
                ready = sum(kind[0] == LspState.READY for kind in chosen)
                expected = [Finding("language servers", "ok", f"{size} known, {ready} running.")]
            configuration = Configuration("lsp", [*infos, "z"])
            findings = await lsp.check(handle(configuration, lsp=LspServers(infos, faults)))
            assert list(findings) == expected, chosen
