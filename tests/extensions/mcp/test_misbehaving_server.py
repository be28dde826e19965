"""Servers that lie, storm, flood, leave processes behind: what can be used of them is used, and nobody else suffers."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from e2e.tool_client import ToolClient, tool_client
from extensions.mcp.servers import add, dead, gone, living, results, rogue, stands, state
from holdfast.extensions.mcp import mcp_types
from holdfast.extensions.mcp.bounded_wait import RateLimit, StartLimiter
from holdfast.testing.gates import start, until

GO: tuple[str, object] = ("mcp_rogue_go", {})


def heard(folder: Path, method: str) -> int:
    lines = (folder / "heard").read_text().splitlines()
    return sum(json.loads(line).get("method") == method for line in lines)


async def test_lists_that_never_rest_are_read_less_and_less_often(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that says with each list that it is another one already does not keep anybody busy."""
    monkeypatch.setattr(mcp_types, "FIRST_DELAY", 600.0)
    async with tool_client() as one:
        await add(one, rogue=rogue(tmp_path, "restless"))
        await stands(one, "rogue", "connected", but=lambda info: "mcp_rogue_number2" in info.tools)
        await results(one, GO, GO, GO)
        await one.client.mcp_refresh_tools(one.workspace, "rogue")
        await results(one, GO)
        assert heard(tmp_path, "tools/list") == 2
    assert mcp_types.refresh_delay(1.0, is_quiet=False) == 2.0
    assert mcp_types.refresh_delay(50.0, is_quiet=False) == mcp_types.MAX_DELAY
    assert mcp_types.refresh_delay(50.0, is_quiet=True) == 600.0


async def test_one_wrong_entry_does_not_cost_the_whole_list(tmp_path: Path) -> None:
    """And what providers would refuse is not sent to them: one such schema would end every turn."""
    async with tool_client() as one:
        info = (await add(one, rogue=rogue(tmp_path, "odd")))["rogue"]
        assert info.tools == ("mcp_rogue_go", "mcp_rogue_words", "mcp_rogue_banana", "mcp_rogue_deep")
        for result in await results(one, GO, ("mcp_rogue_banana", {"x": 1})):
            assert not result.is_error
        specs = {tool.name: json.loads(tool.parameters) for tool in one.model.requests[-1].tools}
        assert specs["mcp_rogue_go"]["properties"] == {"what": {"type": "array", "items": {}}}
        for name in ("words", "banana", "deep"):
            assert specs[f"mcp_rogue_{name}"] == {"type": "object", "properties": {}}
        said = (await one.client.mcp_log(one.workspace, "rogue")).text
        assert "what banana takes is not told: it is no JSON Schema at properties/x/type" in said
        assert "it does not say what words takes" in said
        assert "number 5 of its tools has no name" in said


@pytest.mark.parametrize("how", ["noisy", "babbling"])
async def test_a_flood_of_messages_keeps_nobody_else_waiting(how: str, tmp_path: Path) -> None:
    async with tool_client() as one:
        await add(one, rogue={**rogue(tmp_path, how), "call_timeout": 1})
        session = await one.session()
        run = await one.call_tools(session, GO)
        await until(lambda: heard(tmp_path, "tools/call"))
        (other,) = await one.call_tools_and_wait(("bash", {"command": "echo here", "description": "x"}))
        assert "here" in other.content
        assert (await one.run_end(run)).outcome == "completed"
        assert "said nothing for 1 s" in (await one.results(session))[0].content
    await dead(tmp_path)


async def test_whoever_floods_is_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have their turn, though there is always something to read."""
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    pace = RateLimit()
    for _ in range(1_000):
        await pace.step()
    assert len(pauses) == 1_000 // 64
    assert min(pauses) > 0


async def test_one_that_stalls_while_its_list_is_read_again_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The owner of a server never waits for it where it could not hear that it is to be given up."""
    monkeypatch.setattr("holdfast.extensions.mcp.mcp_server.PING_TIMEOUT", 0.5)
    async with tool_client() as one:
        await add(one, rogue={**rogue(tmp_path, "stuck"), "timeout": 600, "call_timeout": 1})
        await until(lambda: heard(tmp_path, "tools/list") == 2)
        (stalled,) = await one.call_tools_and_wait(GO)
        assert "said nothing for 1 s" in stalled.content
        await stands(one, "rogue", "error", "starting")
    await dead(tmp_path)


async def test_those_that_hang_do_not_keep_others_from_starting() -> None:
    """A few start at a time; one that says nothing gives way after a moment."""
    doors = StartLimiter(limit=1, seconds=0.0)
    hung = asyncio.Event()

    async def hang() -> None:
        async with doors.slot():
            await hung.wait()

    waiting = start(hang())
    async with asyncio.timeout(20):
        for _ in range(2):
            async with doors.slot():
                pass
    hung.set()
    await waiting


async def test_half_a_character_in_an_answer_is_replaced(tmp_path: Path) -> None:
    """The message counts: who waits for it is not left waiting."""
    async with tool_client() as one:
        await add(one, rogue=rogue(tmp_path, "halves"))
        (result,) = await results(one, GO)
        assert result.content == "half \N{REPLACEMENT CHARACTER} here"


async def test_an_answer_that_is_too_large_is_an_error_with_a_reason(tmp_path: Path) -> None:
    async with tool_client() as one:
        await add(one, rogue=rogue(tmp_path, "huge"))
        (huge,) = await one.call_tools_and_wait(GO)
        assert huge.is_error
        assert "It sent a message of more than 16 MiB." in huge.content


async def _fork(one: ToolClient, folder: Path) -> list[int]:
    """What it has left behind."""
    (result,) = await one.call_tools_and_wait(GO)
    assert not result.is_error
    # It has answered; what it began may still be on its way.
    await until(lambda: living(folder, "trap"))
    return living(folder, "trap")


async def test_what_a_server_leaves_behind_goes_with_it(tmp_path: Path) -> None:
    """Though it has a session of its own, hears no signal, and its parent is gone: killed, restarted, switched off."""
    async with tool_client() as one:
        await add(one, rogue=rogue(tmp_path, "forks"))
        left = await _fork(one, tmp_path)
        (server,) = living(tmp_path, "misbehaving_server.py")
        os.kill(server, signal.SIGKILL)
        await gone(*left)
        left = await _fork(one, tmp_path)
        await one.client.mcp_restart(one.workspace, "rogue")
        await gone(*left)
        left = await _fork(one, tmp_path)
        await one.client.config_set(one.workspace, "mcp.rogue.disabled", True, scope=1)
        await gone(*left)
        await one.client.config_set(one.workspace, "mcp.rogue.disabled", False, scope=1)
        left = await _fork(one, tmp_path)
        await one.client.leave_workspace(one.workspace)
        await gone(*left)
        await dead(tmp_path)


async def test_the_newest_revision_tells_of_lists_to_those_who_listen(tmp_path: Path) -> None:
    async with tool_client() as one:
        await add(one, rogue=rogue(tmp_path, "newest"))
        assert (await state(one, "rogue")).tool_count == 1
        await until(lambda: heard(tmp_path, "subscriptions/listen"))
        (tmp_path / "more").touch()
        await stands(one, "rogue", "connected", but=lambda info: "mcp_rogue_more" in info.tools)
        (more,) = await one.call_tools_and_wait(("mcp_rogue_more", {}))
        assert not more.is_error


async def test_two_servers_never_share_the_name_of_a_tool(tmp_path: Path) -> None:
    """`a` with `b_go` and `a_b` with `go` would: the second is told apart."""
    one_folder, other_folder = tmp_path / "one", tmp_path / "other"
    one_folder.mkdir()
    other_folder.mkdir()
    async with tool_client() as one:
        await add(one, a=rogue(one_folder, "twin"), a_b=rogue(other_folder))
        await one.call_tools_and_wait()
        names = [tool.name for tool in one.model.requests[-1].tools if tool.name.startswith("mcp_a_b_go")]
        assert len(names) == len(set(names)) == 2
        for result in await results(one, *((name, {}) for name in names)):
            assert not result.is_error
        assert heard(one_folder, "tools/call") == heard(other_folder, "tools/call") == 1
