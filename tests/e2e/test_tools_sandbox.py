"""The sandbox through the real server: its restrictions on bash, its visibility, and that it is never skipped."""

import socket
import sys

import pytest

from e2e.cli_environment import cli_environment
from e2e.tool_client import bash, tool_client
from holdfast.client.errors import ServerProblem
from holdfast.client.server_launcher import locate
from holdfast.runtime import workspace_services
from holdfast.workspace.sandbox.sandbox import Sandbox, SandboxImpossible


async def test_in_a_sandbox_only_the_workspace_can_be_written() -> None:
    async with tool_client() as one:
        assert (await one.client.get_sandbox(one.workspace)).mode == "off"
        await one.client.config_set(one.workspace, "options.sandbox", "workspace", scope=1)
        state = await one.client.get_sandbox(one.workspace)
        assert state.mode == "workspace"
        outside = one.server.directory.root / "outside"
        outside.mkdir()
        (one.project / ".git" / "hooks").mkdir(parents=True)
        (one.project / ".git" / "config").write_text("[core]\n")
        settings = "[permissions]\ndeny = []\n"
        (one.project / "holdfast.toml").write_text(settings)
        lines = (
            "touch inside",
            f"touch {outside}/x",
            "echo x >.git/hooks/pre-commit",
            "echo x >>.git/config",
            "echo x >>holdfast.toml",
            "mv .git elsewhere && cp -r elsewhere .git && echo x >.git/hooks/pre-commit",
            "rm holdfast.toml || mv holdfast.toml elsewhere",
            f"cat {one.server.directory.data}/*",
        )
        results = await one.call_tools_and_wait(*(bash(line) for line in lines))
        assert [("Exit code" in result.content or result.is_error) for result in results] == [False, *[True] * 7]
        assert (one.project / "inside").exists()
        assert not list(outside.iterdir())
        typed = await one.client.run_shell(one.workspace, await one.session(), f"touch {outside}/y")
        assert typed.exit_code != 0
        assert not list(outside.iterdir())
        assert (one.project / "holdfast.toml").read_text() == settings
        assert not list((one.project / ".git" / "hooks").iterdir())


async def test_unconfinable_command_is_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def impossible(*_: object, **__: object) -> Sandbox:
        raise SandboxImpossible("There is neither bubblewrap nor Landlock here.")

    monkeypatch.setattr(workspace_services, "Sandbox", impossible)
    async with tool_client() as one:
        await one.client.config_set(one.workspace, "options.sandbox", "workspace", scope=1)
        foreground, background = await one.call_tools_and_wait(bash("touch a"), bash("touch b", run_in_background=True))
        assert foreground.is_error
        assert background.is_error
        assert "bubblewrap" in foreground.content
        with pytest.raises(ServerProblem, match="bubblewrap") as caught:
            await one.client.get_sandbox(one.workspace)
        assert caught.value.status == 400
        with pytest.raises(ServerProblem, match="bubblewrap") as caught:
            await one.client.run_shell(one.workspace, await one.session(), "touch c")
        assert caught.value.status == 400
        assert not list(one.project.iterdir())


async def test_network_follows_setting() -> None:
    """A setting disables it from the next command on, and enables it again."""
    listener = socket.create_server(("127.0.0.1", 0))
    knock = f"exec 3<>/dev/tcp/127.0.0.1/{listener.getsockname()[1]}"
    with listener:
        async with tool_client() as one:
            await one.client.config_set(one.workspace, "options.sandbox", "workspace", scope=1)
            for is_there in (True, False, True):
                await one.client.config_set(one.workspace, "options.sandbox_network", is_there, scope=1)
                assert (await one.client.get_sandbox(one.workspace)).network is is_there
                (result,) = await one.call_tools_and_wait(bash(knock))
                assert ("Exit code" not in result.content) is is_there


async def test_sandbox_enabled_during_approval_applies() -> None:
    """The settings change during an approval: the command is then confined."""
    async with tool_client(yolo=False) as one:
        outside = one.server.directory.root / "outside.txt"
        run = await one.call_tools(await one.session(), bash(f"touch {outside}"))
        (ask,) = await one.pending_permissions()
        await one.client.config_set(one.workspace, "options.sandbox", "workspace", scope=1)
        assert await one.grant(ask)
        await one.run_end(run)
        assert not outside.exists()


@pytest.mark.parametrize("place", ["runtime", "apart"])
async def test_sandboxed_command_cannot_reach_server_or_keys(place: str) -> None:
    """A client of the server could disable the sandbox, so the server is unreachable wherever it listens."""
    async with cli_environment(serves=False) as cli_env:
        cli_env.write('[options]\nsandbox = "workspace"')
        keys = cli_env.settings.with_name("credentials.toml")
        keys.write_text("")
        if place == "apart":
            (cli_env.root / "apart").mkdir(mode=0o700)
            cli_env.environment["HOLDFAST_HOST"] = f"unix://{cli_env.root}/apart/s"
        await cli_env.serve(*(("--host", cli_env.environment["HOLDFAST_HOST"]) if place == "apart" else ()))
        keys.write_text('local = "secret"\n')
        path = locate(environment=cli_env.environment).address.path
        ask = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
        watched = await cli_env.open_workspace()
        for line in ("true", f"{sys.executable} -c '{ask}' {path}", f"grep secret {keys}"):
            done = await watched.client.run_shell(watched.id, watched.session, line)
            assert (done.exit_code == 0) is (line == "true"), done.output
