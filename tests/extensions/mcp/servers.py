"""MCP servers, real ones and stubs: their configuration, and helpers to observe them."""

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from e2e.tool_client import ToolClient
from holdfast.domain.events import HelloEvent, McpEvent
from holdfast.domain.extensions import McpInfo
from holdfast.domain.messages import ToolResult
from server.helpers import read_until
from trials.hostile_commands import survivors

__all__ = [
    "EVERYTHING",
    "GIT",
    "STUB_EVERYTHING",
    "STUB_TIME",
    "TIME",
    "add",
    "everything",
    "filesystem",
    "misbehaving",
    "results",
    "running_processes",
    "state",
    "wait_for_state",
    "wait_for_success",
    "wrapped",
]

_BIN = Path(sys.executable).parent
_NODE = Path(__file__).parents[1] / "node/node_modules/@modelcontextprotocol"

_GENEROUS_TIMEOUTS = {"timeout": 60}
"""Test machines are busy."""
GIT: dict[str, Any] = {"command": str(_BIN / "mcp-server-git"), **_GENEROUS_TIMEOUTS}
TIME: dict[str, Any] = {
    "command": str(_BIN / "mcp-server-time"),
    "args": ["--local-timezone", "UTC"],
    **_GENEROUS_TIMEOUTS,
}


def _stub(kind: str) -> dict[str, Any]:
    return {
        "command": sys.executable,
        "args": ["-I", "-S", str(Path(__file__).with_name("stub_server.py")), kind],
        **_GENEROUS_TIMEOUTS,
    }


STUB_TIME = _stub("time")
STUB_EVERYTHING = _stub("everything")
"""Tools of the same names. The real servers need a second of processor time to start, which most tests can avoid."""


def misbehaving(folder: Path, *how: str) -> dict[str, Any]:
    """Configuration of the misbehaving server."""
    return {
        "command": sys.executable,
        "args": [str(Path(__file__).parent / "misbehaving_server.py"), str(folder), *how],
        **_GENEROUS_TIMEOUTS,
    }


def everything(*arguments: str) -> list[str]:
    return ["node", str(_NODE / "server-everything/dist/index.js"), *arguments]


needs_node = pytest.mark.skipif(
    shutil.which("node") is None or not _NODE.is_dir(), reason="the servers of tests/extensions/node are not installed"
)
EVERYTHING: dict[str, Any] = {"command": "node", "args": everything("stdio")[1:], **_GENEROUS_TIMEOUTS}


def filesystem(*folders: Path) -> dict[str, Any]:
    return {
        "command": "node",
        "args": [str(_NODE / "server-filesystem/dist/index.js"), *map(str, folders)],
        **_GENEROUS_TIMEOUTS,
    }


def wrapped(line: str, server: dict[str, Any]) -> dict[str, Any]:
    """Wrap the server in a shell line, which has its command as `"$@"`."""
    return {**server, "command": "sh", "args": ["-c", line, "sh", server["command"], *server.get("args", ())]}


async def add(one: ToolClient, **servers: dict[str, Any]) -> dict[str, McpInfo]:
    """Add servers to the configuration. Returns when each has been tried."""
    for name, server in servers.items():
        await one.client.config_set(one.workspace, f"mcp.{name}", server, scope=1)
    return {name: await wait_for_state(one, name, "connected", "error", "needs auth", "disabled") for name in servers}


async def results(one: ToolClient, *calls: tuple[str, object]) -> list[ToolResult]:
    """Call tools. Returns the results in the order of the calls."""
    return sorted(await one.call_tools_and_wait(*calls), key=lambda result: result.tool_call_id)


async def state(one: ToolClient, name: str) -> McpInfo:
    return (await one.client.mcp_states(one.workspace))[name]


async def wait_for_state(
    one: ToolClient, name: str, *wanted: str, but: Callable[[McpInfo], bool] = lambda _: True
) -> McpInfo:
    """Wait for this state."""
    async with asyncio.timeout(100), one.client.events(one.workspace, since=0) as events:
        await read_until(events, lambda item: isinstance(item.event, HelloEvent))
        while (info := await state(one, name)).state not in wanted or not but(info):
            async for item in events:
                if isinstance(item.event, McpEvent):
                    break
    return info


async def wait_for_success(one: ToolClient, call: tuple[str, object]) -> ToolResult:
    """Repeat a call until it succeeds: a server that restarts on a busy machine may exceed a time limit first."""
    async with asyncio.timeout(100):
        while (result := (await one.call_tools_and_wait(call))[0]).is_error:
            pass
    return result


def private_copy(server: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the same server under a path in this folder, by which its processes are found."""
    link = folder / Path(server["command"]).name
    link.symlink_to(server["command"])
    return {**server, "command": str(link)}


def running_processes(folder: Path, word: str = "") -> list[int]:
    """Return the processes whose command line contains the folder and this word."""
    return [int(line.partition(":")[0]) for line in survivors(str(folder)) if word in line]


async def wait_until_gone(*pids: int) -> None:
    """Wait until these processes have ended."""
    loop = asyncio.get_running_loop()
    for pid in pids:
        try:
            end = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        published = asyncio.Event()
        loop.add_reader(end, published.set)
        try:
            async with asyncio.timeout(30):
                await published.wait()
        finally:
            loop.remove_reader(end)
            os.close(end)


async def wait_until_dead(folder: Path) -> None:
    """Wait until no process with the folder in its command line is running."""
    while pids := running_processes(folder):
        await wait_until_gone(*pids)
