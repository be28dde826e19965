"""Lists and settings of a server of tools that change, in virtual time; and each setting with its effect."""

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import pytest

from extensions.mcp.in_memory import Program, Site, hangs, now, play, tool
from holdfast.domain.errors import BadRequest
from holdfast.domain.settings import McpSettings
from holdfast.extensions.mcp.mcp_types import CallFailed
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import elapse

Json = dict[str, Any]

# The first test of a process imports a library that takes seconds on a busy machine.
pytestmark = pytest.mark.timeout(60)


# Lists


def test_a_list_that_has_changed_is_read_again_and_told_once(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        site.items["tools"] = [tool("go"), tool("more")]
        site.last.say(method="notifications/tools/list_changed")
        await site.until(lambda: site.state().tool_count == 2)
        assert site.told()[-1] == ("tools_list_changed", "connected", 2)
        notices = len(site.told())
        await elapse(5)
        site.last.say(method="notifications/tools/list_changed")
        await site.until(lambda: site.last.count("tools/list") == 3)
        await elapse(5)
        assert len(site.told()) == notices, "the same list is not told again"

    play(tmp_path, story)


@pytest.mark.parametrize("what", ["prompts", "resources"])
def test_other_lists_are_read_again_too(tmp_path: Path, what: str) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        site.items[what] = [{"name": "n", "uri": "r://n"}]
        site.last.say(method=f"notifications/{what}/list_changed")
        await site.until(lambda: site.told()[-1][0] == f"{what}_list_changed")

    play(tmp_path, story)


def test_lists_that_change_at_once_again_are_read_less_and_less_often(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        times: list[float] = []

        def restless(program: Program, _: Json) -> Json:
            times.append(now())
            program.say(method="notifications/tools/list_changed")
            return {"result": {"tools": [tool(f"t{len(times)}")]}}

        site.methods["tools/list"] = restless
        await elapse(400)
        pauses = [round(b - a, 3) for a, b in pairwise(times)]
        assert pauses[1:10] == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0]

    play(tmp_path, story)


def test_one_that_hangs_while_a_list_is_read_again_is_given_up(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        site.methods["tools/list"] = hangs
        site.last.say(method="notifications/tools/list_changed")
        found = await site.stands("error")
        assert found.error.startswith("It did not answer within 10 seconds.")
        assert now() == pytest.approx(10.6, abs=1.1)

    play(tmp_path, story)


@pytest.mark.parametrize(("code", "is_over"), [(-32000, True), (-32601, False), (-32603, False)])
def test_a_list_that_is_refused_when_it_is_read_again(tmp_path: Path, code: int, is_over: bool) -> None:
    """A refusal leaves the connection and the list as they are; one that says the connection is closed ends it."""

    async def story(site: Site) -> None:
        await site.stands("connected")
        site.methods["tools/list"] = lambda *_: {"error": {"code": code, "message": "no"}}
        site.last.say(method="notifications/tools/list_changed")
        await site.until(lambda: site.last.count("tools/list") == 2)
        await elapse(5)
        assert (site.programs[0].killed_at is not None) is is_over
        assert is_over or site.state().tool_count == 1

    play(tmp_path, story)


@pytest.mark.parametrize(("bound", "count"), [(1, 1), (2, 2), (3, 3), (50, 3)])
def test_lists_are_read_page_by_page_up_to_a_bound(
    tmp_path: Path, bound: int, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def page(_: Program, message: Json) -> Json:
        number = int((message.get("params") or {}).get("cursor") or 0)
        more = {"nextCursor": str(number + 1)} if number < 2 else {}
        return {"result": {"tools": [tool(f"t{number}")], **more}}

    async def story(site: Site) -> None:
        site.methods["tools/list"] = page
        found = await site.stands("connected")
        assert found.tools == tuple(f"mcp_s_t{number}" for number in range(count))
        assert site.last.count("tools/list") == count

    monkeypatch.setattr("holdfast.extensions.mcp.mcp_connection.MAX_PAGES", bound)
    play(tmp_path, story)


@pytest.mark.parametrize("bound", [0, 1, 2])
def test_entries_of_a_list_are_bounded(tmp_path: Path, bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(site: Site) -> None:
        site.items["tools"] = [tool(name) for name in "abc"]
        assert (await site.stands("connected")).tool_count == bound

    monkeypatch.setattr("holdfast.extensions.mcp.mcp_server._MAX_ENTRIES", bound)
    play(tmp_path, story)


# Settings


EFFECTS: dict[str, tuple[Json, Callable[[Site], object], object]] = {
    "command": ({"command": "prog"}, lambda site: site.last.command, ("prog",)),
    "args": ({"command": "x", "args": ["a", "$HOME"]}, lambda site: site.last.command[1], "a"),
    "env": ({"command": "x", "env": {"MINE": "1"}}, lambda site: site.last.environment["MINE"], "1"),
    "disabled_tools": ({"command": "x", "disabled_tools": ["go"]}, lambda site: site.state().tools, ("mcp_s_b",)),
    "enabled_tools": ({"command": "x", "enabled_tools": ["go"]}, lambda site: site.state().tools, ("mcp_s_go",)),
    "type": ({"command": "x", "type": "stdio"}, lambda site: site.state().type, "stdio"),
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

    async def story(site: Site) -> None:
        site.items["tools"].append(tool("b"))
        await site.stands("connected")
        assert seen(site) == expected
        plain = {"GIVEN": "by the client"}
        assert site.last.environment.items() >= plain.items()
        assert "WITHHELD" not in site.last.environment

    play(tmp_path, story, s=settings)


def test_every_setting_has_a_test() -> None:
    names = {field.name for field in msgspec.structs.fields(McpSettings)}
    assert names == EFFECTS.keys() | ELSEWHERE.keys()


def test_one_that_is_switched_off_is_not_started(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await elapse(10)
        assert site.state().state == "disabled"
        assert site.programs == []
        assert site.mcp.tools() == ()
        with pytest.raises(CallFailed, match="was switched off"):
            await (await site.mcp.manager())._get("s").connection()

    play(tmp_path, story, s={"command": "x", "disabled": True})


def test_settings_that_change_are_followed_and_others_are_left_alone(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected", name="s")
        await site.stands("connected", name="other")
        site.is_stubborn = True
        site.configure(s={"command": "x", "args": ["new"]}, other={"command": "y"})
        site.mcp.refresh()
        await site.until(lambda: len(site.programs) == 3)
        await site.stands("connected", name="s")
        first = next(program for program in site.programs if program.command == ("x",))
        assert first.killed_at is not None
        assert first.killed_at <= site.last.began_at, "both may want the same port"
        assert site.last.command == ("x", "new")
        site.configure()
        site.mcp.refresh()
        assert site.mcp.states() == {}
        await elapse(5)
        assert site.unreleased() == []

    play(tmp_path, story, s={"command": "x"}, other={"command": "y"})


def test_a_restart_starts_it_again_with_the_same_settings(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        servers = await site.mcp.manager()
        servers.restart("s")
        assert site.state().state == "starting"
        await site.stands("connected")
        first, second = site.programs
        assert (first.is_closed, second.command) == (True, ("x",))
        with pytest.raises(BadRequest, match=r"no MCP server called t\. There is: s\."):
            servers.restart("t")

    play(tmp_path, story)


def test_who_waits_for_one_whose_settings_change_is_told(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        site.last.end(1)
        await site.stands("error")
        site.methods["initialize"] = hangs
        calling = start(site.call())
        await site.stands("starting")
        site.configure()
        site.mcp.refresh()
        with pytest.raises(CallFailed, match="was switched off, or its settings were changed"):
            await calling

    play(tmp_path, story)


# What was lent


def test_what_is_lent_stands_below_the_settings_and_goes_with_its_lender(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        lent = McpSettings(command="$NOT_EXPANDED")
        site.mcp.set_client_servers("one", {"s": lent, "t": lent})
        site.mcp.set_client_servers("two", {"t": McpSettings(command="later")})
        await site.stands("connected", name="t")
        await site.stands("connected", name="s")
        commands = sorted(program.command for program in site.programs)
        assert commands == [("$NOT_EXPANDED",), ("x",)], "the settings first, then who lent first; as it stands there"
        site.mcp.set_client_servers("one", {"s": lent, "t": lent})
        await elapse(3)
        assert len(site.programs) == 2
        site.mcp.set_client_servers("one", {})
        await site.until(lambda: site.last.command == ("later",))
        site.mcp.set_client_servers("two", {})
        assert set(site.mcp.states()) == {"s"}
        await elapse(5)
        assert len(site.unreleased()) == 1

    play(tmp_path, story)


def test_what_was_lent_and_is_then_configured_alike_is_expanded(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.mcp.set_client_servers("one", {"t": McpSettings(command="$HOME")})
        await site.stands("connected", name="t")
        await site.stands("connected", name="s")
        assert {program.command for program in site.programs} == {("$HOME",), ("x",)}
        site.configure(s={"command": "x"}, t={"command": "$HOME"})
        site.mcp.refresh()
        await site.until(lambda: len(site.programs) == 3)
        assert site.last.command == (str(tmp_path / "home"),)

    play(tmp_path, story)
