"""Details of a server's life that only callers and clients notice: limits, order of attempts, notices, names."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest

from extensions.mcp.in_memory_mcp import Context, McpFixture, Program, ends, hangs, now, refuses, run_scenario, tool
from holdfast.domain.errors import ToolError
from holdfast.domain.extensions import NEVER
from holdfast.domain.settings import McpSettings
from holdfast.extensions.mcp import mcp_connection
from holdfast.extensions.mcp.mcp_connection import McpConnection
from holdfast.extensions.mcp.mcp_types import LoginNeeded
from holdfast.testing.gates import start
from holdfast.testing.seeded_loop import elapse

Json = dict[str, Any]

# The first test of a process imports a library that takes seconds on a busy machine.
pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize(("settings", "seconds"), [({}, 10), ({"timeout": 0}, 10), ({"timeout": 3}, 3)])
def test_the_time_limit_of_a_start(tmp_path: Path, settings: Json, seconds: float) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.methods["initialize"] = hangs
        info = await fixture.wait_for_state("error")
        assert now() == 0.6 + seconds
        assert info.error == f"It did not answer within {seconds} seconds."

    run_scenario(tmp_path, scenario, s={"command": "x", **settings})


def test_the_environment_of_a_program(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        environment = fixture.last.environment
        assert (environment["GIVEN"], environment["OWN"]) == ("of the settings", "1")

    run_scenario(tmp_path, scenario, s={"command": "x", "env": {"GIVEN": "of the settings", "OWN": "1"}})


def test_instructions_are_bounded(tmp_path: Path) -> None:
    def initialize(_: Program, message: Json) -> Json:
        version = message["params"]["protocolVersion"]
        about = {"name": "memory", "version": "1"}
        return {
            "result": {"protocolVersion": version, "capabilities": {}, "serverInfo": about, "instructions": "x" * 9_000}
        }

    async def scenario(fixture: McpFixture) -> None:
        fixture.methods["initialize"] = initialize
        await fixture.wait_for_state("connected")
        (note,) = fixture.mcp.notes()
        assert note.count("x" * 8_192) == 1
        assert "x" * 8_193 not in note

    run_scenario(tmp_path, scenario)


def test_the_time_of_a_connection_is_cleared_and_each_state_published_once(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        assert fixture.mcp.states()["s"].connected_at == NEVER
        await fixture.wait_for_state("connected")
        assert fixture.state().connected_at != NEVER
        fixture.methods["initialize"] = hangs
        fixture.last.end()
        await fixture.wait_for_state("error")
        assert fixture.state().connected_at == NEVER
        await elapse(30)
        states = [state for kind, state, _ in fixture.published() if kind == "state_changed"]
        assert states == ["starting", "connected", "error", "starting", "error", "starting", "error", "starting"]

    run_scenario(tmp_path, scenario)


def test_a_call_between_two_attempts_starts_one_and_fails_with_it(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        fixture.methods["initialize"] = hangs
        fixture.last.end()
        await fixture.wait_for_state("error")
        await elapse(0.1)
        began = now()
        with pytest.raises(ToolError, match="cannot be reached"):
            await fixture.call()
        assert (now(), len(fixture.programs)) == (began + 10, 2)

    run_scenario(tmp_path, scenario)


def test_a_call_to_a_server_that_requires_a_login_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")

        def refused(*_: object) -> None:
            raise LoginNeeded

        monkeypatch.setattr(mcp_connection, "open_connection", refused)
        fixture.last.end()
        assert (await fixture.wait_for_state("needs auth")).error == "It requires a login: holdfast mcp login s"
        with pytest.raises(ToolError, match="holdfast mcp login s"):
            await fixture.call()

    run_scenario(tmp_path, scenario)


def test_a_server_that_ends_at_a_ping_is_replaced_before_the_call(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        fixture.methods["ping"] = ends
        await elapse(60)
        assert (await fixture.call()).content == "done"
        assert len(fixture.programs) == 2

    run_scenario(tmp_path, scenario)


def test_a_connection_with_traffic_is_not_pinged(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        for _ in range(3):
            await elapse(20)
            await fixture.call()
        assert fixture.last.count("ping") == 0

    run_scenario(tmp_path, scenario)


def test_the_first_reason_of_an_end_is_kept() -> None:
    async def main() -> None:
        connection = McpConnection(cast(Any, None), cast(Any, None))
        for reason in ("", "first", "second", ""):
            connection.end(reason)
        assert connection.reason == "first"

    asyncio.run(main())


def test_an_unattended_run_waits_for_the_first_attempt_only(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.methods["initialize"] = hangs
        waiting = start(fixture.mcp.wait_settled())
        await asyncio.wait({waiting})
        assert now() == 10.0, "the first attempt began at once and took ten seconds"
        await fixture.wait_for_state("starting")
        again = start(fixture.mcp.wait_settled())
        await asyncio.wait({again}, timeout=1)
        assert again.done(), "a second attempt is not awaited"

    run_scenario(tmp_path, scenario)


def test_a_remembered_server_is_not_awaited(tmp_path: Path) -> None:
    async def first(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        await elapse(1)

    async def again(fixture: McpFixture) -> None:
        fixture.methods["initialize"] = hangs
        await fixture.mcp.wait_settled()
        assert now() == 0.0
        assert next(item.spec.name for item in fixture.mcp.tools()) == "mcp_s_go"

    run_scenario(tmp_path / "one", first)
    (tmp_path / "two/data").mkdir(parents=True)
    (tmp_path / "two/data/mcp.json").write_bytes((tmp_path / "one/data/mcp.json").read_bytes())
    run_scenario(tmp_path / "two", again)


def test_names_that_collide_between_servers(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.methods["tools/list"] = lambda program, _: {
            "result": {"tools": [tool("b_c" if program.command == ("x",) else "c")]}
        }
        await fixture.wait_for_state("connected", name="a")
        await fixture.wait_for_state("connected", name="a_b")
        names = [item.spec.name for item in fixture.mcp.tools() if item.spec.name.startswith("mcp_")]
        assert len(names) == 2
        assert names[0] == "mcp_a_b_c"
        assert names[1].startswith("mcp_a_b_c_")
        for name in names:
            await fixture.call(name)
        called = {program.command: program for program in fixture.programs}
        sent = {
            command: [
                message["params"]["name"] for message in program.received if message.get("method") == "tools/call"
            ]
            for command, program in called.items()
        }
        assert sent == {("x",): ["b_c"], ("y",): ["c"]}

    run_scenario(tmp_path, scenario, a={"command": "x"}, a_b={"command": "y"})


def test_resources_are_listed_with_a_connection_and_a_permission(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.items["resources"] = [
            {"uri": f"file:///{number}", "name": f"n{number}", "mimeType": "text/plain"} for number in range(201)
        ]
        await fixture.wait_for_state("connected")
        fixture.last.end()
        await fixture.wait_for_state("error")
        context = Context(fixture)
        content = (await fixture.call("list_mcp_resources", context=context, mcp_name="s")).content
        assert fixture.state().state == "connected"
        lines = content.splitlines()
        assert (lines[0], lines[-1], len(lines)) == ("file:///0 (text/plain) n0", "… and 1 more", 201)
        (permit,) = context.permits
        assert (permit.tool, permit.action, permit.params) == ("list_mcp_resources", "list", {"mcp_name": "s"})
        with pytest.raises(ToolError, match="no MCP server called t"):
            await fixture.call("list_mcp_resources", mcp_name="t")

    run_scenario(tmp_path, scenario)


def test_a_list_that_cannot_be_read_again_keeps_its_last_state(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        fixture.methods["tools/list"] = refuses
        fixture.last.send(method="notifications/tools/list_changed")
        await elapse(5)
        assert fixture.state().tools == ("mcp_s_go",)
        assert "tools cannot be listed" in (await fixture.mcp.manager()).log("s")

    run_scenario(tmp_path, scenario)


def test_the_list_of_tools_follows_the_connection(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        await fixture.wait_for_state("connected")
        assert [item.spec.name for item in fixture.mcp.tools()][:1] == ["mcp_s_go"]
        fixture.items["tools"] = [tool("stop")]
        fixture.last.send(method="notifications/tools/list_changed")
        await fixture.wait_until(lambda: fixture.state().tools == ("mcp_s_stop",))
        assert [item.spec.name for item in fixture.mcp.tools()][:1] == ["mcp_s_stop"]

    run_scenario(tmp_path, scenario)


def test_a_restarted_server_of_a_client_remains_its_own(tmp_path: Path) -> None:
    """Variables in its settings are not expanded, and a server of the settings replaces it."""

    async def scenario(fixture: McpFixture) -> None:
        lent = McpSettings(command="y", args=("$HOME",))
        fixture.mcp.set_client_servers("c", {"lent": lent})
        await fixture.wait_for_state("connected", name="lent")
        (await fixture.mcp.manager()).restart("lent")
        await fixture.wait_until(lambda: [program.command for program in fixture.programs].count(("y", "$HOME")) == 2)
        await fixture.wait_for_state("connected", name="lent")
        fixture.mcp.set_client_servers("c", {})
        assert "lent" not in fixture.mcp.states()

    run_scenario(tmp_path, scenario)


def test_a_removed_server_is_not_published_any_more(tmp_path: Path) -> None:
    async def scenario(fixture: McpFixture) -> None:
        fixture.is_stubborn = True
        await fixture.wait_for_state("connected")
        fixture.configure(s={"command": "other"})
        before = len(fixture.published())
        fixture.mcp.refresh()
        await fixture.wait_until(lambda: len(fixture.programs) == 2)
        await fixture.wait_for_state("connected")
        states = [state for kind, state, _ in fixture.published()[before:] if kind == "state_changed"]
        assert states == ["starting", "connected"], "the end of the first is not a state of the second"

    run_scenario(tmp_path, scenario)


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
    async def scenario(fixture: McpFixture) -> None:
        fixture.items["tools"] = [tool("go", **item)]
        await fixture.wait_for_state("connected")
        assert fixture.mcp.tools()[0].spec.description == description

    run_scenario(tmp_path, scenario)


def test_progress_is_published_up_to_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.extensions.mcp.mcp_tools._MAX_PROGRESS", 12)

    def reporting(program: Program, message: Json) -> Json:
        token = message["params"]["_meta"]["progressToken"]
        for number, more in ((0, {"total": 1}), (1, {"total": 1}), (2, {}), (3, {"message": "far"}), (4, {})):
            params = {"progressToken": token, "progress": number, **more}
            program.send(method="notifications/progress", params=params)
        return {"result": {"content": []}}

    async def scenario(fixture: McpFixture) -> None:
        fixture.methods["tools/call"] = reporting
        await fixture.wait_for_state("connected")
        context = Context(fixture)
        await fixture.call(context=context)
        assert context.reported == ["0/1\n", "1/1\n", "2\n", "4\n"], "one line found no room"

    run_scenario(tmp_path, scenario)
