"""`holdfast mcp`: add, list, disable, log in and remove, with the real command."""

import asyncio
import json
import re
import tomllib
from pathlib import Path

import pytest

from e2e.cli_environment import TIMEOUT, cli_environment
from extensions.mcp.authorization_server import authorization_server, browse
from extensions.mcp.servers import STUB_TIME


async def test_servers_are_added_listed_toggled_and_removed(tmp_path: Path) -> None:
    async with cli_environment() as cli_env:
        time = (STUB_TIME["command"], *STUB_TIME["args"])
        empty = await cli_env.call("mcp")
        assert (empty.code, empty.out) == (0, "")
        assert "holdfast mcp add --help" in empty.err
        for word in ("logs", "restart", "login"):
            refused = await cli_env.call("mcp", word, "x")
            assert refused.code != 0
            assert "There is no MCP server" in refused.err
        await cli_env.stdout_of("mcp", "add", "time", "--tool", "convert_time", "--timeout", "60", "--", *time)
        await cli_env.stdout_of(
            "mcp", "add", "talks", "--env", "A=b", "--", "sh", "-c", "echo to you >&2; printenv A >&2; exit 1"
        )
        await cli_env.stdout_of("mcp", "add", "ours", "--project", "--url", "http://127.0.0.1:9/mcp", "--type", "sse")
        written = tomllib.loads(cli_env.settings.read_text())["mcp"]
        assert written["time"] == {
            "type": "stdio",
            "command": STUB_TIME["command"],
            "args": STUB_TIME["args"],
            "enabled_tools": ["convert_time"],
            "timeout": 60,
        }
        assert cli_env.settings.stat().st_mode & 0o777 == 0o600
        shown = await cli_env.call("mcp")
        rows = {line.split()[0]: line for line in shown.out.splitlines()}
        assert re.fullmatch(r"time +connected +1 +stdio", rows["time"])
        assert re.fullmatch(r"talks +error +stdio", rows["talks"])
        assert re.fullmatch(r"ours +not trusted +of the project", rows["ours"])
        assert "talks: It ended with exit code 1. Its last output: b" in shown.err
        assert (await cli_env.stdout_of("mcp", "logs", "talks")).startswith("to you\nb")
        listed = {item["name"]: item for item in json.loads(await cli_env.stdout_of("mcp", "list", "--json"))}
        assert listed["time"]["tools"] == ["mcp_time_convert_time"]
        await cli_env.stdout_of("mcp", "disable", "talks")
        assert re.search(r"^talks +disabled", await cli_env.stdout_of("mcp"), re.MULTILINE)
        await cli_env.stdout_of("mcp", "enable", "talks")
        restarted = await cli_env.call("mcp", "restart", "talks")
        assert restarted.code != 0
        assert "It ended with exit code 1" in restarted.err
        assert "time: connected, 1 tool." in (await cli_env.call("mcp", "restart", "time")).err
        await cli_env.stdout_of("mcp", "remove", "talks")
        elsewhere = await cli_env.call("mcp", "remove", "ours")
        assert elsewhere.code != 0
        assert re.search(r"also set in \S*holdfast\.toml:\d+ \(--project\)", elsewhere.err)
        await cli_env.stdout_of("mcp", "remove", "ours", "--project")
        assert [line.split()[0] for line in (await cli_env.stdout_of("mcp")).splitlines()] == ["SERVER", "time"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("add", "x"), "Give either a command after --"),
        (("add", "x", "--url", "http://h", "--", "y"), "Give either a command"),
        (("add", "x", "--type", "http", "--", "y"), "A command has the type stdio"),
        (("add", "x y", "--", "z"), "letters, digits"),
        (("add", "x", "--env", "novalue", "--", "z"), "NAME=VALUE"),
        (("add", "x", "--url", "http://h", "--header", "Authorization=Bearer abcdefghijkl"), "$MY_KEY"),
        (("remove", "x"), "is not set"),
        (("disable", "x"), "There is no server x"),
    ],
)
async def test_invalid_arguments_are_explained_and_change_nothing(arguments: tuple[str, ...], sentence: str) -> None:
    async with cli_environment(serves=False) as cli_env:
        before = cli_env.settings.read_text()
        done = await cli_env.call("mcp", *arguments)
        assert done.code != 0
        assert sentence in done.err
        assert "Traceback" not in done.err
        assert cli_env.settings.read_text() == before


async def test_login_with_browser() -> None:
    async with authorization_server() as there, cli_environment() as cli_env:
        await cli_env.stdout_of("mcp", "add", "office", "--url", there.url)
        shown = await cli_env.call("mcp")
        assert "needs login" in shown.out
        assert "holdfast mcp login office" in shown.err
        process = await cli_env.start("mcp", "login", "office", "--no-browser")
        assert process.stderr is not None
        async with asyncio.timeout(TIMEOUT):
            while not (line := (await process.stderr.readline()).decode().strip()).startswith("http://"):
                pass
            assert "You are logged in" in await browse(line)
            rest = (await process.communicate())[1].decode()
        assert process.returncode == 0
        assert "office: connected, 2 tools." in rest
        assert next(iter(there.access)) in (cli_env.settings.parent / "credentials.toml").read_text()
        assert "mcp:http://" in await cli_env.stdout_of("login", "--list")
