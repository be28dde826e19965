"""Lifecycle of an MCP server in virtual time: start, retry, ping, giving up and close.

After every test there is no task left, and every started program is killed and closed.
"""

import asyncio
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from extensions.mcp.in_memory_mcp import (
    McpFixture,
    Program,
    ends,
    hangs,
    in_virtual_time,
    now,
    refuses,
    run_scenario,
    tool,
)
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import elapse

Json = dict[str, Any]

# The first test of a process imports a library that takes seconds on a busy machine.
pytestmark = pytest.mark.timeout(60)


# Start


def test_server_starts_shortly_after_workspace_opens(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        assert fixture.state().state == "starting"
        await fixture.wait_for_state("connected")
        assert fixture.last.began_at == 0.6

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("hurry", ["settled", "servers", "tried"])
def test_request_starts_server_at_once(tmp_path: Path, hurry: str) -> None:
    async def scenario(fixture: McpFixture) -> None:
        if hurry == "servers":
            servers = await fixture.mcp.manager()
            await servers.wait_lists("s")
        elif hurry == "tried":
            await fixture.mcp.wait_attempts(5.0)
        else:
            await fixture.mcp.wait_settled()
        assert fixture.state().state == "connected"
        assert now() == 0.0

    run_scenario(tmp_path, scenario, pause=9.0)


def test_cached_server_is_listed_at_once_and_its_call_waits(tmp_path: Path) -> None:
    async def first(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        await elapse(1)

    async def again(fixture: McpFixture) -> None:
        await asyncio.sleep(0)
        await fixture.wait_until(fixture.mcp.tools)
        assert now() == 0.0
        assert fixture.state().tools == ("mcp_s_go",)
        assert fixture.programs == []
        assert (await fixture.call()).content == "done"
        assert now() == 9.0, "the server still has its pause"

    run_scenario(tmp_path / "one", first)
    data = (tmp_path / "one/data/mcp.json").read_bytes()
    (tmp_path / "two/data").mkdir(parents=True)
    (tmp_path / "two/data/mcp.json").write_bytes(data)
    run_scenario(tmp_path / "two", again, pause=9.0)

    async def changed(fixture: McpFixture) -> None:
        await asyncio.sleep(0)
        await elapse(1)
        assert fixture.state().tools == (), "with other settings it may be another server"

    (tmp_path / "three/data").mkdir(parents=True)
    (tmp_path / "three/data/mcp.json").write_bytes(data)
    run_scenario(tmp_path / "three", changed, pause=9.0, s={"command": "x", "args": ["other"]})


def test_at_most_three_start_at_once_and_hanging_one_yields(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.methods["initialize"] = lambda program, message: None
        await fixture.wait_until(lambda: len(fixture.programs) == 3)
        await elapse(2.9)
        assert len(fixture.programs) == 3
        await fixture.wait_until(lambda: len(fixture.programs) == 4)
        assert now() == 3.6

    slow: Json = {"command": "x", "timeout": 30}
    run_scenario(tmp_path, scenario, a=slow, b=slow, c=slow, d=slow)


# Failure of each step of the start


def _no_process(fixture: McpFixture) -> None:
    fixture.cannot_spawn = "no such program"


def _cannot_run(fixture: McpFixture) -> None:
    fixture.cannot_run = "x could not be started: No such file or directory."
    fixture.methods["initialize"] = ends


def _at(method: str, how: Callable[[Program, Json], Json | None]) -> Callable[[McpFixture], None]:
    def set_up(fixture: McpFixture) -> None:
        fixture.methods[method] = how

    return set_up


FAULTS: dict[str, tuple[Callable[[McpFixture], None], str, float, bool]] = {
    # behaviour, reason, seconds until it is published, retried automatically
    "it cannot be spawned": (_no_process, "no such program", 0.0, False),
    "it never ran": (_cannot_run, "could not be started", 0.0, False),
    "it ends in the handshake": (
        _at("initialize", ends),
        "It ended with exit code 3. Its last output: last words",
        0.0,
        True,
    ),
    "it refuses the handshake": (_at("initialize", refuses), "It refused the handshake: not today.", 0.0, True),
    "it hangs in the handshake": (_at("initialize", hangs), "It did not answer within 10 seconds.", 10.0, True),
    "it hangs at its list": (_at("tools/list", hangs), "It did not list its tools within 10 seconds.", 10.0, True),
    "it ends at its list": (_at("tools/list", ends), "Connection closed.", 0.0, True),
}


@pytest.mark.parametrize("name", FAULTS)
def test_failed_start_is_cleaned_up_and_retried(tmp_path: Path, name: str) -> None:
    set_up, reason, seconds, is_retried = FAULTS[name]

    async def scenario(fixture: McpFixture) -> None:
        set_up(fixture)
        found = await fixture.wait_for_state("error")
        assert reason in found.error
        assert now() == 0.6 + seconds
        assert fixture.unreleased() == []
        tries = len(fixture.programs)
        await elapse(0.4)
        assert len(fixture.programs) == tries
        await elapse(0.2)
        assert len(fixture.programs) == tries + is_retried
        fixture.methods = McpFixture(tmp_path / "sound").methods
        fixture.cannot_spawn = fixture.cannot_run = ""
        assert (await (await fixture.mcp.manager())._get("s").connection()) is not None
        await fixture.wait_for_state("connected")

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("what", ["tools", "prompts", "resources"])
def test_refused_list_is_empty_and_others_are_used(tmp_path: Path, what: str) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.items = {
            "tools": [tool("go")],
            "prompts": [{"name": "p"}],
            "resources": [{"uri": "r://1", "name": "r"}],
        }
        fixture.methods[f"{what}/list"] = refuses
        found = await fixture.wait_for_state("connected")
        counts = {"tools": found.tool_count, "prompts": found.prompt_count, "resources": found.resource_count}
        assert counts == {**dict.fromkeys(counts, 1), what: 0}
        assert f"[{what} cannot be listed: not today]" in (await fixture.mcp.manager()).log("s")

    run_scenario(tmp_path, scenario)


def test_retries_back_off_and_stop_after_eight(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.methods["initialize"] = refuses
        await elapse(3600)
        begun = [program.began_at for program in fixture.programs]
        assert [round(b - a, 3) for a, b in pairwise(begun)] == [0.5, 1, 2, 4, 8, 16, 32]
        fixture.methods = McpFixture(tmp_path / "sound").methods
        assert fixture.mcp.tools() == () or fixture.state().state == "error"
        assert (await (await fixture.mcp.manager())._get("s").connection()) is not None
        assert len(fixture.programs) == 9, "a call has it tried at once"

    run_scenario(tmp_path, scenario)


# Connections that end


@pytest.mark.parametrize(("lasts", "delay"), [(1.0, 1.0), (29.9, 1.0), (30.0, 0.5), (3600.0, 0.5)])
def test_lasting_connection_resets_failures(tmp_path: Path, lasts: float, delay: float) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.methods["initialize"] = refuses
        await fixture.wait_for_state("error")
        fixture.methods = McpFixture(tmp_path / "sound").methods
        await fixture.wait_for_state("connected")
        await elapse(lasts)
        fixture.last.end(1)
        ended = now()
        assert (await fixture.wait_for_state("error")).error == "It ended with exit code 1."
        await fixture.wait_for_state("connected")
        assert fixture.last.began_at == pytest.approx(ended + delay)

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize(("idle", "pings"), [(0.0, 0), (29.9, 0), (30.0, 1), (300.0, 1)])
def test_idle_connection_is_pinged_before_use(tmp_path: Path, idle: float, pings: int) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        await elapse(idle)
        assert (await fixture.call()).content == "done"
        assert fixture.last.count("ping") == pings
        assert len(fixture.programs) == 1

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize(("timeout", "waits"), [(4, 4.0), (60, 10.0)])
def test_server_without_ping_response_is_replaced_before_call(tmp_path: Path, timeout: int, waits: float) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        await elapse(100)
        fixture.methods["ping"] = hangs
        began = now()
        assert (await fixture.call()).content == "done"
        first, second = fixture.programs
        assert second.began_at == pytest.approx(began + waits, abs=2)
        assert second.began_at >= began + waits
        assert first.count("tools/call") == 0
        assert first.killed_at is not None

    run_scenario(tmp_path, scenario, s={"command": "x", "timeout": timeout})


# Close


def test_unstoppable_server_is_dropped_with_its_settings(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        fixture.is_stubborn = fixture.is_undying = True
        fixture.configure()
        fixture.mcp.refresh()
        await elapse(5)
        assert fixture.last.is_closed
        assert fixture.last.stops == [0.5], "its input ends, it is asked to go, it is killed"
        fixture.last.end(137)

    run_scenario(tmp_path, scenario)


def test_nothing_starts_after_close_without_servers(tmp_path: Path) -> None:
    async def main() -> None:
        fixture = McpFixture(tmp_path)
        fixture.mcp.start()
        await fixture.mcp.close()
        fixture.configure(s={"command": "x"})
        fixture.mcp.refresh()
        await elapse(10)
        assert fixture.programs == []

    in_virtual_time(main)


def test_request_during_start_does_not_shorten_later_back_off(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        greet = fixture.methods["initialize"]

        def slowly(program: Program, message: Json) -> None:
            answer = greet(program, message)
            assert answer is not None
            asyncio.get_running_loop().call_later(2.0, lambda: program.send(id=message["id"], **answer))

        fixture.methods["initialize"] = slowly
        await fixture.wait_until(lambda: fixture.programs and fixture.last.count("initialize"))
        await (await fixture.mcp.manager())._get("s").connection()
        await elapse(1)
        fixture.last.end(1)
        ended = now()
        await fixture.wait_until(lambda: len(fixture.programs) == 2)
        assert fixture.last.began_at == pytest.approx(ended + 0.5)

    run_scenario(tmp_path, scenario)


def test_last_stderr_lines_are_of_last_attempt(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.methods["initialize"] = ends
        assert "Its last output: last words" in (await fixture.wait_for_state("error")).error
        fixture.methods["initialize"] = lambda program, _: program.end(4)
        await fixture.wait_until(lambda: "exit code 4" in fixture.state().error)
        assert fixture.state().error == "It ended with exit code 4."

    run_scenario(tmp_path, scenario)


def test_pending_list_reloads_run_once_after_restart(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        fixture.last.end(1)
        await fixture.wait_for_state("error")
        (await fixture.mcp.manager()).refresh_list("s", "tools")
        await fixture.wait_for_state("connected")
        await elapse(5)
        assert fixture.last.count("tools/list") == 1

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("moment", ["waiting", "handshake", "connected", "call", "list", "error"])
@pytest.mark.parametrize("kind", ["willing", "stubborn", "undying"])
def test_workspace_closes_in_every_server_state(tmp_path: Path, moment: str, kind: str) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.is_stubborn = kind != "willing"
        fixture.is_undying = kind == "undying"
        if moment in ("handshake", "list"):
            fixture.methods["initialize" if moment == "handshake" else "tools/list"] = hangs
        if moment == "call":
            fixture.methods["tools/call"] = hangs
        if moment == "error":
            fixture.methods["initialize"] = refuses
        calls = []
        if moment in ("handshake", "list"):
            method = "initialize" if moment == "handshake" else "tools/list"
            await fixture.wait_until(lambda: fixture.programs and fixture.last.count(method))
        elif moment in ("connected", "call"):
            await fixture.wait_for_state("connected")
        elif moment == "error":
            if kind == "undying":
                return
            await fixture.wait_for_state("error")
        if moment == "call":
            calls.append(start(fixture.call()))
            await fixture.wait_until(lambda: fixture.last.count("tools/call"))
        began = now()
        await fixture.mcp.close()
        assert now() - began <= 5.0
        assert [program for program in fixture.programs if program.killed_at is None] == []
        assert all(call.done() for call in calls)
        if kind == "undying":
            for program in fixture.programs:
                program.end(137)

    run_scenario(tmp_path, scenario)


def test_nothing_starts_after_close(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        await fixture.mcp.close()
        count, published = len(fixture.programs), len(fixture.events)
        fixture.configure(s={"command": "z"}, t={"command": "y"})
        fixture.mcp.refresh()
        await elapse(100)
        assert len(fixture.programs) == count
        assert len(fixture.events) == published

    run_scenario(tmp_path, scenario)


def test_cache_contains_current_servers_only(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        file = fixture.place.data / "mcp.json"
        await fixture.wait_for_state("connected", name="s")
        await fixture.wait_for_state("connected", name="t")
        await elapse(1)
        assert set(json.loads(file.read_text())) == {"s", "t"}
        assert file.stat().st_mode & 0o777 == 0o600
        fixture.items["tools"] = [tool("other")]
        fixture.configure(s={"command": "x", "args": ["n"]})
        fixture.mcp.refresh()
        await fixture.wait_until(lambda: fixture.state("s").tools == ("mcp_s_other",))
        await elapse(1)
        assert set(json.loads(file.read_text())) == {"s"}

    run_scenario(tmp_path, scenario, s={"command": "x"}, t={"command": "y"})
