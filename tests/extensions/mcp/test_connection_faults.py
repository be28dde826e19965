"""MCP servers that are killed, stalled, flooding, crashing or invalid: each is a tool error, and the turn continues."""

import asyncio
import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from e2e.tool_client import ToolClient, tool_client
from extensions.mcp.servers import (
    STUB_EVERYTHING,
    STUB_TIME,
    add,
    filesystem,
    needs_node,
    private_copy,
    results,
    running_processes,
    wait_for_state,
    wait_for_success,
    wait_until_dead,
    wait_until_gone,
    wrapped,
)
from holdfast.domain.events import HelloEvent, McpEvent
from holdfast.testing.gates import until
from server.helpers import read_until

pytestmark = needs_node

LONG = ("mcp_all_trigger-long-running-operation", {"duration": 60, "steps": 60})
ECHO = ("mcp_all_echo", {"message": "hi"})


def marked(server: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a Node server with the folder as an argument that it ignores."""
    return {**server, "args": [*server["args"], str(folder)]}


async def test_server_killed_during_call_is_error_and_restarts(tmp_path: Path) -> None:
    async with tool_client() as one:
        await add(one, all=marked(STUB_EVERYTHING, tmp_path))
        session = await one.session()
        run = await one.call_tools(session, LONG, ECHO)
        await one.wait_for_output(session, "1/60\n")
        (pid,) = running_processes(tmp_path)
        os.kill(pid, signal.SIGKILL)
        assert (await one.run_end(run)).outcome == "completed"
        killed, echoed = sorted(await one.results(session), key=lambda result: result.tool_call_id)
        assert killed.is_error
        assert "disconnected" in killed.content
        assert "exit code 137" in killed.content
        assert echoed.content == "Echo: hi", "the next call has it started again"
        assert running_processes(tmp_path) != [pid]


async def test_stalled_server_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.extensions.mcp.mcp_server.PING_TIMEOUT", 0.5)
    async with tool_client() as one:
        await add(one, all={**marked(STUB_EVERYTHING, tmp_path), "timeout": 30, "call_timeout": 2})
        (pid,) = running_processes(tmp_path)
        os.kill(pid, signal.SIGSTOP)
        (stalled,) = await one.call_tools_and_wait(ECHO)
        assert stalled.is_error
        assert "sent nothing for 2 s" in stalled.content
        await wait_until_gone(pid)
        assert (await wait_for_success(one, ECHO)).content == "Echo: hi"


async def test_idle_server_is_pinged_before_use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that was never sent may be sent to the next process."""
    monkeypatch.setattr("holdfast.extensions.mcp.mcp_server.PING_AFTER_IDLE", 0.0)
    monkeypatch.setattr("holdfast.extensions.mcp.mcp_server.PING_TIMEOUT", 1.0)
    async with tool_client() as one:
        await add(one, all={**marked(STUB_EVERYTHING, tmp_path), "timeout": 30})
        (pid,) = running_processes(tmp_path)
        os.kill(pid, signal.SIGSTOP)
        (echoed,) = await one.call_tools_and_wait(ECHO)
        assert echoed.content == "Echo: hi"
        assert running_processes(tmp_path) != [pid]


async def test_a_cancelled_call_is_cancelled_on_the_server(tmp_path: Path) -> None:
    """R4, R5: at once, and the server stays."""
    received = tmp_path / "received"
    async with tool_client() as one:
        await add(one, all=wrapped(f'tee {received} | "$@"', STUB_EVERYTHING))
        session = await one.session()
        run = await one.call_tools(session, LONG)
        await one.wait_for_output(session, "1/60\n")
        await one.client.cancel_run(one.workspace, run.run_id)
        assert (await one.run_end(run)).cancelled
        await until(lambda: b"notifications/cancelled" in received.read_bytes())
        sent = [json.loads(line) for line in received.read_text().splitlines()]
        (asked,) = [item for item in sent if item.get("method") == "tools/call"]
        (cancelled,) = [item for item in sent if item.get("method") == "notifications/cancelled"]
        assert cancelled["params"]["requestId"] == asked["id"]
        (echoed,) = await one.call_tools_and_wait(ECHO)
        assert echoed.content == "Echo: hi"


async def test_a_cancel_does_not_wait_for_a_server_that_stalls(tmp_path: Path) -> None:
    async with tool_client() as one:
        await add(one, all=marked(STUB_EVERYTHING, tmp_path))
        session = await one.session()
        run = await one.call_tools(session, LONG)
        await one.wait_for_output(session, "1/60\n")
        (pid,) = running_processes(tmp_path)
        os.kill(pid, signal.SIGSTOP)
        await one.client.cancel_run(one.workspace, run.run_id)
        assert (await one.run_end(run)).cancelled


async def test_flood_of_output_is_bounded(tmp_path: Path) -> None:
    flood = "yes a flood of words >&2 & echo junk; exec "
    async with tool_client() as one:
        await add(one, time=wrapped(flood + '"$@"', private_copy(STUB_TIME, tmp_path)))
        now = ("mcp_time_get_current_time", {"timezone": "UTC"})
        for result in await results(one, now, now, now):
            assert not result.is_error
        # The flood has its own process, which may start to write after the first results.
        reported = ""
        async with asyncio.timeout(20):
            while "a flood of words" not in reported:
                reported = (await one.client.mcp_log(one.workspace, "time")).text
        assert len(reported) < 100_000
        assert "[stdout] junk" in reported or "truncated" in reported
    assert not running_processes(tmp_path)


def _broken(one: ToolClient) -> dict[str, dict[str, Any]]:
    return {
        "crash": {"command": "sh", "args": ["-c", "echo it broke >&2; exit 3"]},
        "wrong": {"command": "no-such-program"},
        "empty": {"args": ["x"]},
        "address": {"url": "ftp://host/x"},
        "away": {"url": "http://127.0.0.1:9/mcp"},
        "variable": {"command": "$NOT_SET_ANYWHERE"},
        "silent": {"command": "sleep", "args": ["600"], "timeout": 1},
        "quits": {"command": "true"},
        "off": {"command": "true", "disabled": True},
        "login": {"command": str(one.project)},
    }


async def test_failed_start_reports_reason_and_remedy() -> None:
    async with tool_client() as one:
        found = await add(one, **_broken(one))
        assert found.pop("off").state == "disabled"
        assert {info.state for info in found.values()} <= {"error", "starting"}
        reasons = {name: info.error for name, info in found.items()}
        expected = {
            "crash": "It ended with exit code 3. Its last output: it broke",
            "wrong": "no-such-program could not be started: No such file or directory.",
            "empty": "It has no command: set mcp.empty.command, or a url.",
            "address": "Its address is not valid",
            "away": "No server responds at its address.",
            "variable": "NOT_SET_ANYWHERE is not set",
            "silent": "It did not answer within 1 seconds.",
            "quits": "It ended with exit code 0.",
            "login": "could not be started: Permission denied.",
        }
        assert {name: text for name, text in expected.items() if text not in reasons[name]} == {}
        report = await one.client.doctor(one.workspace, "mcp servers")
        published = {finding.what.split(" ")[0]: finding for finding in report.findings}
        assert published.keys() == {f"mcp.{name}" for name in expected}
        assert published["mcp.wrong"].severity == "error"
        assert published["mcp.wrong"].file.endswith("config.json")
        assert "holdfast mcp logs wrong" in published["mcp.wrong"].what_to_do
        (bare,) = await one.call_tools_and_wait(("mcp_wrong_anything", {}))
        assert bare.is_error
        assert (await one.client.mcp_log(one.workspace, "crash")).text.startswith("it broke\n")


async def test_states_are_published() -> None:
    """With the event types of stock clients."""
    async with tool_client() as one, one.client.events(one.workspace, since=0) as events:
        await read_until(events, lambda item: isinstance(item.event, HelloEvent))
        await one.client.config_set(one.workspace, "mcp.time", STUB_TIME, scope=1)
        states: list[tuple[str, int]] = []
        while not states or states[-1][0] != "connected":
            seen = await read_until(events, lambda item: isinstance(item.event, McpEvent))
            event = seen[-1].event
            assert isinstance(event, McpEvent)
            states.append((event.change.object.state, event.change.object.tool_count))
        assert states == [("starting", 0), ("connected", 2)]


async def test_a_closed_workspace_leaves_no_process(tmp_path: Path) -> None:
    """C-49, R4: including servers that ignore the stop; those of another workspace stay."""
    stubborn = "trap '' TERM; setsid sleep 6000 & "
    other = tmp_path / "other"
    other.mkdir()
    async with tool_client() as one:
        await add(
            one,
            files=filesystem(tmp_path),
            stubborn=wrapped(f'{stubborn} : {tmp_path}; "$@"; sleep 6000', STUB_TIME),
            stopped=marked(STUB_EVERYTHING, tmp_path),
        )
        second = await one.client.create_workspace(one.server.directory.project("second"), yolo=True)
        await one.client.config_set(second.id, "mcp.files", filesystem(other), scope=1)
        mine = running_processes(tmp_path)
        assert len(mine) >= 3
        (pid,) = running_processes(tmp_path, "everything")
        os.kill(pid, signal.SIGSTOP)
        elsewhere = ToolClient(one.server, one.client, second.id, one.model)
        await wait_for_state(elsewhere, "files", "connected")
        await one.client.leave_workspace(one.workspace)
        await wait_until_gone(*set(mine) - set(running_processes(other)))
        assert set(running_processes(tmp_path)) == set(running_processes(other))
        assert running_processes(other)
        await wait_for_state(elsewhere, "files", "connected")
    await wait_until_dead(tmp_path)
