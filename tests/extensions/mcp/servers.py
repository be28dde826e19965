"""Servers of tools, real ones from the registries and our own, how they are configured, and how they are watched."""

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
    "answered",
    "everything",
    "filesystem",
    "living",
    "results",
    "rogue",
    "stands",
    "state",
    "wrapped",
]

_BIN = Path(sys.executable).parent
_NODE = Path(__file__).parents[1] / "node/node_modules/@modelcontextprotocol"

_PATIENT = {"timeout": 60}
"""Machines that test are busy."""
GIT: dict[str, Any] = {"command": str(_BIN / "mcp-server-git"), **_PATIENT}
TIME: dict[str, Any] = {"command": str(_BIN / "mcp-server-time"), "args": ["--local-timezone", "UTC"], **_PATIENT}


def _stub(kind: str) -> dict[str, Any]:
    return {
        "command": sys.executable,
        "args": ["-I", "-S", str(Path(__file__).with_name("stub_server.py")), kind],
        **_PATIENT,
    }


STUB_TIME = _stub("time")
STUB_EVERYTHING = _stub("everything")
"""Tools of the same names. The real ones take a second of a processor to start, which most tests need not."""


def rogue(folder: Path, *how: str) -> dict[str, Any]:
    """Our own, with its manners."""
    return {
        "command": sys.executable,
        "args": [str(Path(__file__).parent / "misbehaving_server.py"), str(folder), *how],
        **_PATIENT,
    }


def everything(*arguments: str) -> list[str]:
    return ["node", str(_NODE / "server-everything/dist/index.js"), *arguments]


needs_node = pytest.mark.skipif(
    shutil.which("node") is None or not _NODE.is_dir(), reason="the servers of tests/extensions/node are not installed"
)
EVERYTHING: dict[str, Any] = {"command": "node", "args": everything("stdio")[1:], **_PATIENT}


def filesystem(*folders: Path) -> dict[str, Any]:
    return {"command": "node", "args": [str(_NODE / "server-filesystem/dist/index.js"), *map(str, folders)], **_PATIENT}


def wrapped(line: str, server: dict[str, Any]) -> dict[str, Any]:
    """The server below a shell line, which has its command as `"$@"`."""
    return {**server, "command": "sh", "args": ["-c", line, "sh", server["command"], *server.get("args", ())]}


async def add(one: ToolClient, **servers: dict[str, Any]) -> dict[str, McpInfo]:
    """Configured beside those that are there; returns when all have been tried."""
    for name, server in servers.items():
        await one.client.config_set(one.workspace, f"mcp.{name}", server, scope=1)
    return {name: await stands(one, name, "connected", "error", "needs auth", "disabled") for name in servers}


async def results(one: ToolClient, *calls: tuple[str, object]) -> list[ToolResult]:
    """In the order of the calls, whichever was done first."""
    return sorted(await one.call_tools_and_wait(*calls), key=lambda result: result.tool_call_id)


async def state(one: ToolClient, name: str) -> McpInfo:
    return (await one.client.mcp_states(one.workspace))[name]


async def stands(one: ToolClient, name: str, *wanted: str, but: Callable[[McpInfo], bool] = lambda _: True) -> McpInfo:
    """Until it stands so."""
    async with asyncio.timeout(100), one.client.events(one.workspace, since=0) as events:
        await read_until(events, lambda item: isinstance(item.event, HelloEvent))
        while (info := await state(one, name)).state not in wanted or not but(info):
            async for item in events:
                if isinstance(item.event, McpEvent):
                    break
    return info


async def answered(one: ToolClient, call: tuple[str, object]) -> ToolResult:
    """Until it is no error: a server that comes back on a busy machine may miss a time limit first."""
    async with asyncio.timeout(100):
        while (result := (await one.call_tools_and_wait(call))[0]).is_error:
            pass
    return result


def own(server: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same server under a path of this folder, by which its processes are found."""
    link = folder / Path(server["command"]).name
    link.symlink_to(server["command"])
    return {**server, "command": str(link)}


def living(folder: Path, word: str = "") -> list[int]:
    """The processes whose command line names the folder, and this word."""
    return [int(line.partition(":")[0]) for line in survivors(str(folder)) if word in line]


async def gone(*pids: int) -> None:
    """Until these have ended."""
    loop = asyncio.get_running_loop()
    for pid in pids:
        try:
            end = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        told = asyncio.Event()
        loop.add_reader(end, told.set)
        try:
            async with asyncio.timeout(30):
                await told.wait()
        finally:
            loop.remove_reader(end)
            os.close(end)


async def dead(folder: Path) -> None:
    """Until nothing that names the folder lives."""
    while pids := living(folder):
        await gone(*pids)
