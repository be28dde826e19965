"""Details of a server's life that only callers and clients notice: limits, order of attempts, notices, names."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from extensions.mcp.in_memory import Context, Program, Site, ends, hangs, now, play, refuses, tool
from holdfast.domain.errors import ToolError
from holdfast.domain.extensions import NEVER
from holdfast.domain.settings import McpSettings
from holdfast.extensions.mcp import mcp_connection
from holdfast.extensions.mcp.mcp_connection import Connection
from holdfast.extensions.mcp.mcp_types import LoginNeeded
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import elapse

Json = dict[str, Any]

# The first test of a process imports a library that takes seconds on a busy machine.
pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(("settings", "seconds"), [({}, 10), ({"timeout": 0}, 10), ({"timeout": 3}, 3)])
def test_the_time_limit_of_a_start(tmp_path: Path, settings: Json, seconds: float) -> None:
    async def story(site: Site) -> None:
        site.methods["initialize"] = hangs
        info = await site.stands("error")
        assert now() == 0.6 + seconds
        assert info.error == f"It did not answer within {seconds} seconds."

    play(tmp_path, story, s={"command": "x", **settings})


def test_the_environment_of_a_program(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        environment = site.last.environment
        assert (environment["GIVEN"], environment["OWN"]) == ("of the settings", "1")

    play(tmp_path, story, s={"command": "x", "env": {"GIVEN": "of the settings", "OWN": "1"}})


def test_instructions_are_bounded(tmp_path: Path) -> None:
    def initialize(_: Program, message: Json) -> Json:
        version = message["params"]["protocolVersion"]
        about = {"name": "memory", "version": "1"}
        return {
            "result": {"protocolVersion": version, "capabilities": {}, "serverInfo": about, "instructions": "x" * 9_000}
        }

    async def story(site: Site) -> None:
        site.methods["initialize"] = initialize
        await site.stands("connected")
        (note,) = site.mcp.notes()
        assert note.count("x" * 8_192) == 1
        assert "x" * 8_193 not in note

    play(tmp_path, story)


def test_the_time_of_a_connection_is_cleared_and_each_state_published_once(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        assert site.mcp.states()["s"].connected_at == NEVER
        await site.stands("connected")
        assert site.state().connected_at != NEVER
        site.methods["initialize"] = hangs
        site.last.end()
        await site.stands("error")
        assert site.state().connected_at == NEVER
        await elapse(30)
        states = [state for kind, state, _ in site.told() if kind == "state_changed"]
        assert states == ["starting", "connected", "error", "starting", "error", "starting", "error", "starting"]

    play(tmp_path, story)


def test_a_call_between_two_attempts_starts_one_and_fails_with_it(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        site.methods["initialize"] = hangs
        site.last.end()
        await site.stands("error")
        await elapse(0.1)
        began = now()
        with pytest.raises(ToolError, match="cannot be reached"):
            await site.call()
        assert (now(), len(site.programs)) == (began + 10, 2)

    play(tmp_path, story)


def test_a_call_to_a_server_that_requires_a_login_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")

        def refused(*_: object) -> None:
            raise LoginNeeded

        monkeypatch.setattr(mcp_connection, "open_connection", refused)
        site.last.end()
        assert (await site.stands("needs auth")).error == "It wants a login: holdfast mcp login s"
        with pytest.raises(ToolError, match="holdfast mcp login s"):
            await site.call()

    play(tmp_path, story)


def test_a_server_that_ends_at_a_ping_is_replaced_before_the_call(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        site.methods["ping"] = ends
        await elapse(60)
        assert (await site.call()).content == "done"
        assert len(site.programs) == 2

    play(tmp_path, story)


def test_a_connection_with_traffic_is_not_pinged(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        for _ in range(3):
            await elapse(20)
            await site.call()
        assert site.last.count("ping") == 0

    play(tmp_path, story)


def test_the_first_reason_of_an_end_is_kept() -> None:
    async def main() -> None:
        connection = Connection(cast(Any, None), cast(Any, None))
        for reason in ("", "first", "second", ""):
            connection.end(reason)
        assert connection.reason == "first"

    asyncio.run(main())


def test_an_unattended_run_waits_for_the_first_attempt_only(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.methods["initialize"] = hangs
        waiting = start(site.mcp.wait_settled())
        await asyncio.wait({waiting})
        assert now() == 10.0, "the first attempt began at once and took ten seconds"
        await site.stands("starting")
        again = start(site.mcp.wait_settled())
        await asyncio.wait({again}, timeout=1)
        assert again.done(), "a second attempt is not awaited"

    play(tmp_path, story)


def test_a_remembered_server_is_not_awaited(tmp_path: Path) -> None:
    async def first(site: Site) -> None:
        await site.stands("connected")
        await elapse(1)

    async def again(site: Site) -> None:
        site.methods["initialize"] = hangs
        await site.mcp.wait_settled()
        assert now() == 0.0
        assert next(item.spec.name for item in site.mcp.tools()) == "mcp_s_go"

    play(tmp_path / "one", first)
    (tmp_path / "two/data").mkdir(parents=True)
    (tmp_path / "two/data/mcp.json").write_bytes((tmp_path / "one/data/mcp.json").read_bytes())
    play(tmp_path / "two", again)


def test_names_that_collide_between_servers(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.methods["tools/list"] = lambda program, _: {
            "result": {"tools": [tool("b_c" if program.command == ("x",) else "c")]}
        }
        await site.stands("connected", name="a")
        await site.stands("connected", name="a_b")
        names = [item.spec.name for item in site.mcp.tools() if item.spec.name.startswith("mcp_")]
        assert len(names) == 2
        assert names[0] == "mcp_a_b_c"
        assert names[1].startswith("mcp_a_b_c_")
        for name in names:
            await site.call(name)
        called = {program.command: program for program in site.programs}
        sent = {
            command: [message["params"]["name"] for message in program.heard if message.get("method") == "tools/call"]
            for command, program in called.items()
        }
        assert sent == {("x",): ["b_c"], ("y",): ["c"]}

    play(tmp_path, story, a={"command": "x"}, a_b={"command": "y"})


def test_resources_are_listed_with_a_connection_and_a_permission(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.items["resources"] = [
            {"uri": f"file:///{number}", "name": f"n{number}", "mimeType": "text/plain"} for number in range(201)
        ]
        await site.stands("connected")
        site.last.end()
        await site.stands("error")
        context = Context(site)
        content = (await site.call("list_mcp_resources", context=context, mcp_name="s")).content
        assert site.state().state == "connected"
        lines = content.splitlines()
        assert (lines[0], lines[-1], len(lines)) == ("file:///0 (text/plain) n0", "… and 1 more", 201)
        (permit,) = context.permits
        assert (permit.tool, permit.action, permit.params) == ("list_mcp_resources", "list", {"mcp_name": "s"})
        with pytest.raises(ToolError, match="no MCP server called t"):
            await site.call("list_mcp_resources", mcp_name="t")

    play(tmp_path, story)


def test_a_list_that_cannot_be_read_again_keeps_its_last_state(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        site.methods["tools/list"] = refuses
        site.last.say(method="notifications/tools/list_changed")
        await elapse(5)
        assert site.state().tools == ("mcp_s_go",)
        assert "tools cannot be listed" in (await site.mcp.manager()).log("s")

    play(tmp_path, story)


def test_the_list_of_tools_follows_the_connection(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        await site.stands("connected")
        assert [item.spec.name for item in site.mcp.tools()][:1] == ["mcp_s_go"]
        site.items["tools"] = [tool("stop")]
        site.last.say(method="notifications/tools/list_changed")
        await site.until(lambda: site.state().tools == ("mcp_s_stop",))
        assert [item.spec.name for item in site.mcp.tools()][:1] == ["mcp_s_stop"]

    play(tmp_path, story)


def test_a_restarted_server_of_a_client_remains_its_own(tmp_path: Path) -> None:
    """Variables in its settings are not expanded, and a server of the settings replaces it."""

    async def story(site: Site) -> None:
        lent = McpSettings(command="y", args=("$HOME",))
        site.mcp.set_client_servers("c", {"lent": lent})
        await site.stands("connected", name="lent")
        (await site.mcp.manager()).restart("lent")
        await site.until(lambda: [program.command for program in site.programs].count(("y", "$HOME")) == 2)
        await site.stands("connected", name="lent")
        site.mcp.set_client_servers("c", {})
        assert "lent" not in site.mcp.states()

    play(tmp_path, story)


def test_a_removed_server_is_not_published_any_more(tmp_path: Path) -> None:
    async def story(site: Site) -> None:
        site.is_stubborn = True
        await site.stands("connected")
        site.configure(s={"command": "other"})
        before = len(site.told())
        site.mcp.refresh()
        await site.until(lambda: len(site.programs) == 2)
        await site.stands("connected")
        states = [state for kind, state, _ in site.told()[before:] if kind == "state_changed"]
        assert states == ["starting", "connected"], "the end of the first is not a state of the second"

    play(tmp_path, story)


@pytest.mark.parametrize(
    ("item", "description"),
    [
        ({"description": "Does it.", "title": "It"}, "Does it."),
        ({"description": "", "title": "It"}, "It"),
        ({"description": "", "title": ""}, "go of s"),
        ({"description": "x" * 5_000}, "x" * 4_096),
    ],
)
def test_the_description_of_a_tool(tmp_path: Path, item: Json, description: str) -> None:
    async def story(site: Site) -> None:
        site.items["tools"] = [tool("go", **item)]
        await site.stands("connected")
        assert site.mcp.tools()[0].spec.description == description

    play(tmp_path, story)


def test_progress_is_published_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.extensions.mcp.mcp_tools._MAX_PROGRESS", 12)

    def reporting(program: Program, message: Json) -> Json:
        token = message["params"]["_meta"]["progressToken"]
        for number, more in ((0, {"total": 1}), (1, {"total": 1}), (2, {}), (3, {"message": "far"}), (4, {})):
            params = {"progressToken": token, "progress": number, **more}
            program.say(method="notifications/progress", params=params)
        return {"result": {"content": []}}

    async def story(site: Site) -> None:
        site.methods["tools/call"] = reporting
        await site.stands("connected")
        context = Context(site)
        await site.call(context=context)
        assert context.said == ["0/1\n", "1/1\n", "2\n", "4\n"], "one line found no room"

    play(tmp_path, story)
