"""MCP servers that send invalid data, floods or processes: the usable part is used, and no other component is
affected.
"""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from e2e.tool_client import ToolClient, tool_client
from extensions.mcp.servers import (
    add,
    misbehaving,
    results,
    running_processes,
    state,
    wait_for_state,
    wait_until_dead,
    wait_until_gone,
)
from holdfast.extensions.mcp import mcp_types
from holdfast.extensions.mcp.bounded_waits import RateLimit, StartLimiter
from holdfast.testing.gates import start, until

GO: tuple[str, object] = ("mcp_misbehaving_go", {})


def received(folder: Path, method: str) -> int:
    lines = (folder / "received").read_text().splitlines()
    return sum(json.loads(line).get("method") == method for line in lines)


async def test_constantly_changing_lists_are_read_with_back_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that announces a change with every list does not cause a busy loop."""
    monkeypatch.setattr(mcp_types, "FIRST_DELAY", 600.0)
    async with tool_client() as one:
        await add(one, misbehaving=misbehaving(tmp_path, "restless"))
        await wait_for_state(one, "misbehaving", "connected", but=lambda info: "mcp_misbehaving_number2" in info.tools)
        await results(one, GO, GO, GO)
        await one.client.mcp_refresh_tools(one.workspace, "misbehaving")
        await results(one, GO)
        assert received(tmp_path, "tools/list") == 2
    assert mcp_types.refresh_delay(1.0, is_quiet=False) == 2.0
    assert mcp_types.refresh_delay(50.0, is_quiet=False) == mcp_types.MAX_DELAY
    assert mcp_types.refresh_delay(50.0, is_quiet=True) == 600.0


async def test_invalid_entry_is_dropped_from_list(tmp_path: Path) -> None:
    """And a schema that providers would refuse is not sent to them, because it would end every turn."""
    async with tool_client() as one:
        info = (await add(one, misbehaving=misbehaving(tmp_path, "odd")))["misbehaving"]
        assert info.tools == (
            "mcp_misbehaving_go",
            "mcp_misbehaving_words",
            "mcp_misbehaving_banana",
            "mcp_misbehaving_deep",
        )
        for result in await results(one, GO, ("mcp_misbehaving_banana", {"x": 1})):
            assert not result.is_error
        specs = {tool.name: json.loads(tool.parameters) for tool in one.model.requests[-1].tools}
        assert specs["mcp_misbehaving_go"]["properties"] == {"what": {"type": "array", "items": {}}}
        for name in ("words", "banana", "deep"):
            assert specs[f"mcp_misbehaving_{name}"] == {"type": "object", "properties": {}}
        reported = (await one.client.mcp_log(one.workspace, "misbehaving")).text
        assert "what banana takes is not told: it is not JSON Schema at properties/x/type" in reported
        assert "words has no input schema" in reported
        assert "number 5 of its tools has no name" in reported


@pytest.mark.parametrize("how", ["noisy", "babbling"])
async def test_flood_of_messages_does_not_block_others(how: str, tmp_path: Path) -> None:
    async with tool_client() as one:
        await add(one, misbehaving={**misbehaving(tmp_path, how), "call_timeout": 1})
        session = await one.session()
        run = await one.call_tools(session, GO)
        await until(lambda: received(tmp_path, "tools/call"))
        (other,) = await one.call_tools_and_wait(("bash", {"command": "echo here", "description": "x"}))
        assert "here" in other.content
        assert (await one.run_end(run)).outcome == "completed"
        assert "sent nothing for 1 s" in (await one.results(session))[0].content
    await wait_until_dead(tmp_path)


async def test_flooding_server_is_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks get their turn although there is always something to read."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    pace = RateLimit()
    for _ in range(1_000):
        await pace.step()
    assert len(pauses) == 1_000 // 64
    assert min(pauses) > 0


async def test_server_that_stalls_during_list_reload_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of a server never waits for it without being able to receive a stop."""
    monkeypatch.setattr("holdfast.extensions.mcp.mcp_server.PING_TIMEOUT", 0.5)
    async with tool_client() as one:
        await add(one, misbehaving={**misbehaving(tmp_path, "stuck"), "timeout": 600, "call_timeout": 1})
        await until(lambda: received(tmp_path, "tools/list") == 2)
        (stalled,) = await one.call_tools_and_wait(GO)
        assert "sent nothing for 1 s" in stalled.content
        await wait_for_state(one, "misbehaving", "error", "starting")
    await wait_until_dead(tmp_path)


async def test_hanging_servers_do_not_block_other_starts() -> None:
    """A few start at a time; a silent one yields its slot."""
    limiter = StartLimiter(limit=1, seconds=0.0)
    hung = asyncio.Event()

    async def hang() -> None:
        async with limiter.slot():
            await hung.wait()

    waiting = start(hang())
    async with asyncio.timeout(20):
        for _ in range(2):
            async with limiter.slot():
                pass
    hung.set()
    await waiting


async def test_incomplete_character_in_response_is_replaced(tmp_path: Path) -> None:
    """The message is used, so its waiter is not left waiting."""
    async with tool_client() as one:
        await add(one, misbehaving=misbehaving(tmp_path, "halves"))
        (result,) = await results(one, GO)
        assert result.content == "half \N{REPLACEMENT CHARACTER} here"


async def test_response_above_limit_is_error_with_reason(tmp_path: Path) -> None:
    async with tool_client() as one:
        await add(one, misbehaving=misbehaving(tmp_path, "huge"))
        (huge,) = await one.call_tools_and_wait(GO)
        assert huge.is_error
        assert "It sent a message of more than 16 MiB." in huge.content


async def _fork(one: ToolClient, folder: Path) -> list[int]:
    """Return the processes that it has left behind."""
    (result,) = await one.call_tools_and_wait(GO)
    assert not result.is_error
    # It has answered; the process it started may not be visible yet.
    await until(lambda: running_processes(folder, "trap"))
    return running_processes(folder, "trap")


async def test_processes_of_server_are_killed_with_it(tmp_path: Path) -> None:
    """Although they have their own session, ignore signals, and have lost their parent: after a kill, a restart, a
    disable.
    """
    async with tool_client() as one:
        await add(one, misbehaving=misbehaving(tmp_path, "forks"))
        left = await _fork(one, tmp_path)
        (server,) = running_processes(tmp_path, "misbehaving_server.py")
        os.kill(server, signal.SIGKILL)
        await wait_until_gone(*left)
        left = await _fork(one, tmp_path)
        await one.client.mcp_restart(one.workspace, "misbehaving")
        await wait_until_gone(*left)
        left = await _fork(one, tmp_path)
        await one.client.config_set(one.workspace, "mcp.misbehaving.disabled", True, scope=1)
        await wait_until_gone(*left)
        await one.client.config_set(one.workspace, "mcp.misbehaving.disabled", False, scope=1)
        left = await _fork(one, tmp_path)
        await one.client.leave_workspace(one.workspace)
        await wait_until_gone(*left)
        await wait_until_dead(tmp_path)


async def test_newest_revision_announces_lists_to_subscribers(tmp_path: Path) -> None:
    async with tool_client() as one:
        await add(one, misbehaving=misbehaving(tmp_path, "newest"))
        assert (await state(one, "misbehaving")).tool_count == 1
        await until(lambda: received(tmp_path, "subscriptions/listen"))
        (tmp_path / "more").touch()
        await wait_for_state(one, "misbehaving", "connected", but=lambda info: "mcp_misbehaving_more" in info.tools)
        (more,) = await one.call_tools_and_wait(("mcp_misbehaving_more", {}))
        assert not more.is_error


async def test_tool_names_of_two_servers_are_distinct(tmp_path: Path) -> None:
    """`a` with `b_go` and `a_b` with `go` would; the second gets a suffix."""
    one_folder, other_folder = tmp_path / "one", tmp_path / "other"
    one_folder.mkdir()
    other_folder.mkdir()
    async with tool_client() as one:
        await add(one, a=misbehaving(one_folder, "twin"), a_b=misbehaving(other_folder))
        await one.call_tools_and_wait()
        names = [tool.name for tool in one.model.requests[-1].tools if tool.name.startswith("mcp_a_b_go")]
        assert len(names) == len(set(names)) == 2
        for result in await results(one, *((name, {}) for name in names)):
            assert not result.is_error
        assert received(one_folder, "tools/call") == received(other_folder, "tools/call") == 1
