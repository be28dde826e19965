"""Changes of lists and settings of an MCP server, in virtual time; and each setting with its effect."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extensions.mcp.in_memory_mcp import McpFixture, Program, hangs, now, refuses, run_scenario, tool
from holdfast.domain.errors import BadRequest
from holdfast.domain.settings import McpSettings
from holdfast.extensions.mcp.mcp_types import CallFailed
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import elapse

Json = dict[str, Any]

# The first test of a process imports a library that takes seconds on a busy machine.
pytestmark = pytest.mark.timeout(60)


# Lists


def test_changed_list_is_read_again_and_published_once(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        fixture.items["tools"] = [tool("go"), tool("more")]
        fixture.last.send(method="notifications/tools/list_changed")
        await fixture.wait_until(lambda: fixture.state().tool_count == 2)
        assert fixture.published()[-1] == ("tools_list_changed", "connected", 2)
        notices = len(fixture.published())
        await elapse(5)
        fixture.last.send(method="notifications/tools/list_changed")
        await fixture.wait_until(lambda: fixture.last.count("tools/list") == 3)
        await elapse(5)
        assert len(fixture.published()) == notices, "the same list is not told again"

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("what", ["prompts", "resources"])
def test_other_lists_are_read_again_too(tmp_path: Path, what: str) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        fixture.items[what] = [{"name": "n", "uri": "r://n"}]
        fixture.last.send(method=f"notifications/{what}/list_changed")
        await fixture.wait_until(lambda: fixture.published()[-1][0] == f"{what}_list_changed")

    run_scenario(tmp_path, scenario)


def test_rapidly_changing_lists_are_read_with_back_off(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        times: list[float] = []

        def restless(program: Program, _: Json) -> Json:
            times.append(now())
            program.send(method="notifications/tools/list_changed")
            return {"result": {"tools": [tool(f"t{len(times)}")]}}

        fixture.methods["tools/list"] = restless
        await elapse(400)
        pauses = [round(b - a, 3) for a, b in pairwise(times)]
        assert pauses[1:10] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]

    run_scenario(tmp_path, scenario)


def test_server_that_hangs_during_list_reload_is_replaced(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        fixture.methods["tools/list"] = hangs
        fixture.last.send(method="notifications/tools/list_changed")
        found = await fixture.wait_for_state("error")
        assert found.error.startswith("It did not answer within 10 seconds.")
        assert now() == pytest.approx(10.6, abs=1.1)

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize(("code", "is_over"), [(-32000, True), (-32601, False), (-32603, False)])
def test_a_list_that_is_refused_when_it_is_read_again(tmp_path: Path, code: int, is_over: bool) -> None:
    """A refusal leaves the connection and the list unchanged; one that reports a closed connection ends it."""

    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        fixture.methods["tools/list"] = lambda *_: {"error": {"code": code, "message": "no"}}
        fixture.last.send(method="notifications/tools/list_changed")
        await fixture.wait_until(lambda: fixture.last.count("tools/list") == 2)
        await elapse(5)
        assert (fixture.programs[0].killed_at is not None) is is_over
        assert is_over or fixture.state().tool_count == 1

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize(("bound", "count"), [(1, 1), (2, 2), (3, 3), (50, 3)])
def test_lists_are_read_page_by_page_up_to_a_bound(
    tmp_path: Path, bound: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def page(_: Program, message: Json) -> Json:
        number = int((message.get("params") or {}).get("cursor") or 0)
        more = {"nextCursor": str(number + 1)} if number < 2 else {}
        return {"result": {"tools": [tool(f"t{number}")], **more}}

    async def scenario(fixture: McpFixture) -> None:
        fixture.methods["tools/list"] = page
        found = await fixture.wait_for_state("connected")
        assert found.tools == tuple(f"mcp_s_t{number}" for number in range(count))
        assert fixture.last.count("tools/list") == count

    monkeypatch.setattr("holdfast.extensions.mcp.mcp_connection.MAX_PAGES", bound)
    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_entries_of_a_list_are_bounded(tmp_path: Path, bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.items["tools"] = [tool(name) for name in "abc"]
        assert (await fixture.wait_for_state("connected")).tool_count == bound

    monkeypatch.setattr("holdfast.extensions.mcp.mcp_server._MAX_ENTRIES", bound)
    run_scenario(tmp_path, scenario)


def _without(what: str) -> Callable[[Program, Json], Json]:
    """Answer `initialize` without the capability of this list."""

    def initialize(_: Program, message: Json) -> Json:
        capabilities: Json = {name: {} for name in ("tools", "prompts", "resources") if name != what}
        about = {"name": "memory", "version": "2"}
        version = message["params"]["protocolVersion"]
        return {"result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": about}}

    return initialize


@pytest.mark.parametrize("what", ["tools", "prompts", "resources"])
@pytest.mark.parametrize("way", ["no capability", "refused", "empty"])
def test_a_new_connection_replaces_the_lists_of_the_last_one(tmp_path: Path, what: str, way: str) -> None:
    """The list that the new server lacks is empty, whatever the reason; the others are those of the new server."""

    async def scenario(fixture: McpFixture) -> None:
        fixture.items = {name: [tool(f"{name}{number}", uri="r://x") for number in range(2)] for name in fixture.items}
        await fixture.wait_for_state("connected")
        fixture.items = {name: items[:1] for name, items in fixture.items.items()}
        if way == "no capability":
            fixture.methods["initialize"] = _without(what)
        elif way == "refused":
            fixture.methods[f"{what}/list"] = refuses
        else:
            fixture.items[what] = []
        fixture.last.end(1)
        await fixture.wait_for_state("error")
        info = await fixture.wait_for_state("connected")
        counts = {"tools": info.tool_count, "prompts": info.prompt_count, "resources": info.resource_count}
        assert counts == {"tools": 1, "prompts": 1, "resources": 1, what: 0}
        names = {item.spec.name for item in fixture.mcp.tools()}
        assert set(info.tools) == {name for name in names if name.startswith("mcp_s_")}
        assert len(info.tools) == info.tool_count

    run_scenario(tmp_path, scenario)


# Settings


EFFECTS: dict[str, tuple[Json, Callable[[McpFixture], object], object]] = {
    "command": ({"command": "prog"}, lambda fixture: fixture.last.command, ("prog",)),
    "args": ({"command": "x", "args": ["a", "$HOME"]}, lambda fixture: fixture.last.command[1], "a"),
    "env": ({"command": "x", "env": {"MINE": "1"}}, lambda fixture: fixture.last.environment["MINE"], "1"),
    "disabled_tools": ({"command": "x", "disabled_tools": ["go"]}, lambda fixture: fixture.state().tools, ("mcp_s_b",)),
    "enabled_tools": ({"command": "x", "enabled_tools": ["go"]}, lambda fixture: fixture.state().tools, ("mcp_s_go",)),
    "type": ({"command": "x", "type": "stdio"}, lambda fixture: fixture.state().type, "stdio"),
}
ELSEWHERE = {
    "disabled": "test_one_that_is_switched_off_is_not_started",
    "timeout": "test_lives.py",
    "call_timeout": "test_calls.py",
    "url": "test_http.py",
    "headers": "test_http.py",
    "oauth": "test_settings.py",
    "oauth_client_id": "test_settings.py",
    "oauth_client_secret": "test_settings.py",
    "oauth_callback_port": "test_settings.py",
    "oauth_token": "domain.settings: kept for other programs' files",
}


@pytest.mark.parametrize("name", EFFECTS)
def test_a_setting_has_its_effect(tmp_path: Path, name: str) -> None:
    settings, seen, expected = EFFECTS[name]

    async def scenario(fixture: McpFixture) -> None:
        fixture.items["tools"].append(tool("b"))
        await fixture.wait_for_state("connected")
        assert seen(fixture) == expected
        plain = {"GIVEN": "by the client"}
        assert fixture.last.environment.items() >= plain.items()
        assert "WITHHELD" not in fixture.last.environment

    run_scenario(tmp_path, scenario, s=settings)


def test_every_setting_has_a_test() -> None:
    names = {field.name for field in msgspec.structs.fields(McpSettings)}
    assert names == EFFECTS.keys() | ELSEWHERE.keys()


def test_disabled_server_is_not_started(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await elapse(10)
        assert fixture.state().state == "disabled"
        assert fixture.programs == []
        assert fixture.mcp.tools() == ()
        with pytest.raises(CallFailed, match="was disabled"):
            await (await fixture.mcp.manager())._get("s").connection()

    run_scenario(tmp_path, scenario, s={"command": "x", "disabled": True})


def test_changed_settings_restart_only_their_server(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected", name="s")
        await fixture.wait_for_state("connected", name="other")
        fixture.is_stubborn = True
        fixture.configure(s={"command": "x", "args": ["new"]}, other={"command": "y"})
        fixture.mcp.refresh()
        await fixture.wait_until(lambda: len(fixture.programs) == 3)
        await fixture.wait_for_state("connected", name="s")
        first = next(program for program in fixture.programs if program.command == ("x",))
        assert first.killed_at is not None
        assert first.killed_at <= fixture.last.began_at, "both may want the same port"
        assert fixture.last.command == ("x", "new")
        fixture.configure()
        fixture.mcp.refresh()
        assert fixture.mcp.states() == {}
        await elapse(5)
        assert fixture.unreleased() == []

    run_scenario(tmp_path, scenario, s={"command": "x"}, other={"command": "y"})


def test_a_restart_starts_it_again_with_the_same_settings(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        servers = await fixture.mcp.manager()
        servers.restart("s")
        assert fixture.state().state == "starting"
        await fixture.wait_for_state("connected")
        first, second = fixture.programs
        assert (first.is_closed, second.command) == (True, ("x",))
        with pytest.raises(BadRequest, match=r"no MCP server called t\. There is: s\."):
            servers.restart("t")

    run_scenario(tmp_path, scenario)


def test_waiter_is_notified_of_changed_settings(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        fixture.last.end(1)
        await fixture.wait_for_state("error")
        fixture.methods["initialize"] = hangs
        calling = start(fixture.call())
        await fixture.wait_for_state("starting")
        fixture.configure()
        fixture.mcp.refresh()
        with pytest.raises(CallFailed, match="was disabled, or its settings were changed"):
            await calling

    run_scenario(tmp_path, scenario)


# Servers lent by clients


def test_lent_server_yields_to_settings_and_ends_with_its_client(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        lent = McpSettings(command="$NOT_EXPANDED")
        fixture.mcp.set_client_servers("one", {"s": lent, "t": lent})
        fixture.mcp.set_client_servers("two", {"t": McpSettings(command="later")})
        await fixture.wait_for_state("connected", name="t")
        await fixture.wait_for_state("connected", name="s")
        commands = sorted(program.command for program in fixture.programs)
        assert commands == [("$NOT_EXPANDED",), ("x",)], "the settings first, then who lent first; as it stands there"
        fixture.mcp.set_client_servers("one", {"s": lent, "t": lent})
        await elapse(3)
        assert len(fixture.programs) == 2
        fixture.mcp.set_client_servers("one", {})
        await fixture.wait_until(lambda: fixture.last.command == ("later",))
        fixture.mcp.set_client_servers("two", {})
        assert set(fixture.mcp.states()) == {"s"}
        await elapse(5)
        assert len(fixture.unreleased()) == 1

    run_scenario(tmp_path, scenario)


def test_lent_server_configured_identically_is_expanded(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.mcp.set_client_servers("one", {"t": McpSettings(command="$HOME")})
        await fixture.wait_for_state("connected", name="t")
        await fixture.wait_for_state("connected", name="s")
        assert {program.command for program in fixture.programs} == {("$HOME",), ("x",)}
        fixture.configure(s={"command": "x"}, t={"command": "$HOME"})
        fixture.mcp.refresh()
        await fixture.wait_until(lambda: len(fixture.programs) == 3)
        assert fixture.last.command == (str(tmp_path / "home"),)

    run_scenario(tmp_path, scenario)
