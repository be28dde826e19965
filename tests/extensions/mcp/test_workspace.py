"""MCP servers in a workspace: start, waits, system prompt, cleanup."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import msgspec

from e2e.cli_environment import CliEnvironment, cli_environment, model_requests
from e2e.tool_client import tool_client
from extensions.mcp.authorization_server import authorization_server
from extensions.mcp.servers import (
    STUB_EVERYTHING,
    STUB_TIME,
    add,
    filesystem,
    needs_node,
    private_copy,
    running_processes,
    state,
    wait_for_state,
    wait_until_dead,
    wrapped,
)
from holdfast.domain.extensions import McpInfo
from holdfast.domain.settings import McpSettings
from holdfast.protocol.bodies import AgentMessage
from holdfast.testing.gates import start, until
from model_server.script import CallTool, Reply, Say
from model_server.server import RecordedRequest
from server.helpers import read_until, run_ended, server_directory

pytestmark = needs_node

NOW = ("mcp_time_get_current_time", {"timezone": "UTC"})


async def test_mcp_tool_requests_permission() -> None:
    """With its name, its server and its arguments; and a saved rule applies."""
    async with tool_client(yolo=False) as one:
        await add(one, time=STUB_TIME, all=STUB_EVERYTHING)
        session = await one.session()
        run = await one.call_tools(session, NOW)
        (ask,) = await one.pending_permissions()
        assert (ask.tool_name, ask.action, ask.path) == ("mcp_time_get_current_time", "execute", str(one.project))
        assert ask.params == {"timezone": "UTC"}
        assert "get_current_time of the MCP server time" in ask.description
        assert await one.grant(ask, "allow_always")
        await one.run_end(run)
        (allowed,) = await one.call_tools_and_wait(NOW)
        assert not allowed.is_error
        run = await one.call_tools(session, ("mcp_all_echo", {"message": "x"}))
        (ask,) = await one.pending_permissions()
        assert await one.grant(ask, "deny", "not now")
        await one.run_end(run)
        denied = (await one.results(session))[-1]
        assert denied.is_error
        assert "not now" in denied.content
        resource = {"mcp_name": "all", "uri": "demo://resource/static/document/features.md"}
        run = await one.call_tools(session, ("read_mcp_resource", resource))
        (ask,) = await one.pending_permissions()
        assert (ask.action, ask.params) == ("read", resource)
        await one.client.cancel_run(one.workspace, run.run_id)
        assert (await one.run_end(run)).cancelled


async def test_hooks_apply_to_mcp_tools() -> None:
    """Changed arguments are displayed, checked and sent; a refused call is not sent."""
    elsewhere = json.dumps({"updated_input": {"timezone": "Asia/Tokyo"}})
    changes = {"matcher": "^mcp_time_get", "command": f"cat >/dev/null; echo '{elsewhere}'"}
    refuses = {"matcher": "^mcp_time_convert", "command": "cat >/dev/null; echo not that >&2; exit 2"}
    async with tool_client(yolo=False) as one:
        await one.client.config_set(one.workspace, "hooks.PreToolUse", [changes, refuses], scope=1)
        await add(one, time=STUB_TIME)
        session = await one.session()
        run = await one.call_tools(session, NOW, ("mcp_time_convert_time", {}))
        (ask,) = await one.pending_permissions()
        assert ask.params == {"timezone": "Asia/Tokyo"}
        assert await one.grant(ask)
        await one.run_end(run)
        now, refused = sorted(await one.results(session), key=lambda result: result.tool_call_id)
        assert json.loads(now.content)["timezone"] == "Asia/Tokyo"
        assert refused.is_error
        assert "not that" in refused.content


async def test_server_instructions_are_in_system_prompt() -> None:
    async with authorization_server() as there, tool_client() as one:
        there.access.add("k")
        await add(one, office={"url": there.url, "headers": {"Authorization": "Bearer k"}})
        await one.call_tools_and_wait()
        system = one.model.requests[-1].system
        assert "<mcp-instructions>" in system
        assert "Be polite to the office." in system
        assert '<server name="office">' in system


async def test_only_unattended_run_waits_for_servers(tmp_path: Path) -> None:
    """The first prompt of a script has all tools; an interactive one begins with the available ones."""
    (tmp_path / "go").touch()
    slow = f'while [ ! -e {tmp_path}/ready ]; do sleep 0.05; done; exec "$@"'
    async with tool_client() as one:
        server = {**STUB_TIME, "command": "sh", "args": ["-c", slow, "sh", STUB_TIME["command"], *STUB_TIME["args"]]}
        await one.client.config_set(one.workspace, "mcp.time", server, scope=1)
        attended = await one.call_tools_and_wait(NOW)
        assert "There is no tool called" in attended[0].content
        session = await one.session()
        message = AgentMessage(session, json.dumps([NOW]), interactive=False)
        async with one.client.events(one.workspace, since=0) as events:
            run = await one.client.send_prompt(one.workspace, message)
            (tmp_path / "ready").touch()
            await read_until(events, run_ended(run.run_id))
        (result,) = await one.results(session)
        assert not result.is_error


async def test_cached_offers_are_known_before_start(tmp_path: Path) -> None:
    """A cached server is not awaited by the prompt but by its first call. With other settings it is another server."""
    gate = tmp_path / "gate"
    gate.touch()
    slow = f'while [ ! -e {gate} ]; do sleep 0.05; done; exec "$@"'
    server = wrapped(slow, STUB_TIME)
    async with server_directory() as directory:
        async with tool_client(directory) as one:
            await add(one, time=server)
            await until((directory.data / "workspaces" / one.workspace / "mcp.json").exists)
        gate.unlink()
        async with tool_client(directory) as again:
            session = await again.session()
            message = AgentMessage(session, json.dumps([NOW]), interactive=False)
            run = await again.client.send_prompt(again.workspace, message)
            await until(lambda: again.model.requests)
            assert any(tool.name == "mcp_time_get_current_time" for tool in again.model.requests[0].tools)
            assert (await state(again, "time")).state == "starting"
            gate.touch()
            await again.run_end(run)
            (result,) = await again.results(session)
            assert not result.is_error
            gate.unlink()
            await again.client.config_set(again.workspace, "mcp.time.timeout", 59, scope=1)
            assert (await state(again, "time")).tool_count == 0
            gate.touch()
            (directory.data / "workspaces" / again.workspace / "mcp.json").write_text("{ broken")
        async with tool_client(directory) as last:
            await wait_for_state(last, "time", "connected")


async def test_nothing_is_loaded_before_a_server_is_configured(tmp_path: Path) -> None:
    code = (
        "import sys, asyncio\n"
        "from pathlib import Path\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from e2e.tool_client import tool_client\n"
        "async def main():\n"
        "    async with tool_client() as one:\n"
        "        await one.call_tools_and_wait(('bash', {'command': 'true', 'description': 'x'}))\n"
        "        await one.client.mcp_states(one.workspace)\n"
        "        await one.client.doctor(one.workspace, 'mcp servers')\n"
        "    print([name for name in sys.modules if name.split('.')[0] in ('mcp', 'mcp_types', 'starlette')])\n"
        "asyncio.run(main())\n"
    )
    tests = Path(__file__).parents[2]
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(tests), stdout=asyncio.subprocess.PIPE, cwd=tmp_path
    )
    out, _ = await child.communicate()
    assert out.decode().strip().splitlines()[-1] == "[]"


async def test_doctor_waits_for_starting_servers(tmp_path: Path) -> None:
    """A server that was not tried yet is not reported as working."""
    slow = f"while [ ! -e {tmp_path}/ready ]; do sleep 0.05; done; exit 3"
    async with tool_client() as one:
        await one.client.config_set(one.workspace, "mcp.slow", wrapped(slow, STUB_TIME), scope=1)
        report = start(one.client.doctor(one.workspace, "mcp servers"))
        await wait_for_state(one, "slow", "starting")
        (tmp_path / "ready").touch()
        (finding,) = (await report).findings
        assert finding.severity == "error"
        assert finding.what == "mcp.slow is not connected. It ended with exit code 3."


async def test_lent_server_lasts_as_long_as_its_client(tmp_path: Path) -> None:
    """The settings take precedence; its values are not expanded and not stored."""
    async with tool_client() as one:
        mcp = one.server.manager.handle(one.workspace).services.extensions.mcp
        lent = msgspec.convert({**private_copy(STUB_TIME, tmp_path), "env": {"A": "$B"}}, McpSettings)
        mcp.set_client_servers("editor", {"time": lent, "clock": lent})
        await wait_for_state(one, "time", "connected")
        await wait_for_state(one, "clock", "connected")
        before = running_processes(tmp_path)
        assert len(before) == 2
        assert not (await one.call_tools_and_wait(NOW))[0].is_error
        mcp.set_client_servers("editor", {"time": lent, "clock": lent})
        mcp.set_client_servers("another", {"clock": msgspec.structs.replace(lent, command="no-such-program")})
        assert (await state(one, "clock")).state == "connected"
        assert running_processes(tmp_path) == before
        await one.client.config_set(one.workspace, "mcp.time", {"command": "true", "disabled": True}, scope=1)
        assert (await state(one, "time")).state == "disabled"
        mcp.set_client_servers("another", {})
        mcp.set_client_servers("editor", {})
        assert set(await one.client.mcp_states(one.workspace)) == {"time"}
        await wait_until_dead(tmp_path)


async def settled_states(cli_env: CliEnvironment) -> dict[str, McpInfo]:
    """Return the states that the command prints when no server is starting any more."""
    async with asyncio.timeout(100):
        while True:
            listed = json.loads(await cli_env.stdout_of("mcp", "list", "--json", "--no-wait"))
            if all(item["state"] != "starting" for item in listed):
                return {
                    item["name"]: McpInfo(item["name"], item["state"], "", item.get("error", "")) for item in listed
                }


async def test_r12_a_projects_servers_start_when_it_is_trusted(tmp_path: Path) -> None:
    """By hash: a change revokes the trust. For both files that may name servers."""
    async with cli_environment() as cli_env:
        server = private_copy(STUB_TIME, tmp_path)
        (cli_env.project / ".mcp.json").write_text(json.dumps({"mcpServers": {"theirs": server}}))
        (cli_env.project / "holdfast.toml").write_text(
            f'[mcp.ours]\ntimeout = 60\ncommand = "{server["command"]}"\nargs = {json.dumps(server["args"])}\n'
        )
        here = await cli_env.open_workspace()
        assert await here.client.mcp_states(here.id) == {}
        shown = await cli_env.call("mcp")
        assert shown.out.count("not trusted") == 2
        assert "holdfast trust" in shown.err
        await here.send_and_wait("hello")
        assert running_processes(tmp_path) == []
        await cli_env.stdout_of("trust", "--yes")
        assert {name: info.state for name, info in (await settled_states(cli_env)).items()} == {
            "ours": "connected",
            "theirs": "connected",
        }
        assert len(running_processes(tmp_path)) == 2
        (cli_env.project / ".mcp.json").write_text(json.dumps({"mcpServers": {"theirs": {"command": "sh"}}}))
        assert {info.state for info in (await settled_states(cli_env)).values()} == {"not trusted"}
        await wait_until_dead(tmp_path)


async def test_r4_killed_server_leaves_no_mcp_server(tmp_path: Path) -> None:
    """And the first run of a script has the tools of a newly started server."""
    async with cli_environment() as cli_env:
        server = private_copy(STUB_TIME, tmp_path)
        command, arguments = (json.dumps(server[name]) for name in ("command", "args"))
        cli_env.write(
            f"[mcp.time]\ntimeout = 60\ncommand = {command}\nargs = {arguments}\n"
            f"[mcp.files]\ntimeout = 60\ncommand = 'node'\nargs = {json.dumps(filesystem(tmp_path)['args'])}\n"
        )
        pid = await cli_env.serve_again()
        here = await cli_env.open_workspace()
        await here.send_and_wait("hello")
        assert "mcp_time_convert_time" in json.dumps(model_requests(cli_env.provider)[-1].json["tools"])
        assert len(running_processes(tmp_path)) == 2
        os.kill(pid, signal.SIGKILL)
        await wait_until_dead(tmp_path)


async def test_r12_mcp_server_gets_no_model_key() -> None:
    """It gets the variables named in its settings, not the keys of models."""

    def script(asked: RecordedRequest) -> Reply:
        begins = "tools" in asked.json and '"role": "tool"' not in json.dumps(asked.json)
        return Reply((CallTool("1", "mcp_all_get-env", ("{}",)) if begins else Say(("done",)),))

    async with cli_environment(script) as cli_env:
        cli_env.environment["A_WALKING_KEY"] = "k-walking-1234567"
        cli_env.environment["ANOTHER"] = "seen-by-all"
        cli_env.write()
        settings = cli_env.settings.read_text().replace("a-walking-key", "$A_WALKING_KEY")
        command, arguments = (json.dumps(STUB_EVERYTHING[name]) for name in ("command", "args"))
        given = f"[mcp.all]\ntimeout = 60\ncommand = {command}\nargs = {arguments}\n"
        allowed = "[permissions]\nallow = ['mcp_all_get-env']\n"
        cli_env.settings.write_text(settings + given + allowed + '[mcp.all.env]\nOWN = "for-$ANOTHER"\n')
        await cli_env.serve_again()
        here = await cli_env.open_workspace()
        await here.send_and_wait("go")
        published = json.dumps(model_requests(cli_env.provider)[-1].json["messages"])
        assert "seen-by-all" in published
        assert "for-seen-by-all" in published
        assert "k-walking-1234567" not in published
