"""Shell commands typed by a user, and the environment of commands, through the real server."""

import asyncio
import json

import pytest

from e2e.tool_client import ToolClient, bash, tool_client
from holdfast.client.errors import ServerProblem
from holdfast.domain.ids import SessionId
from holdfast.domain.messages import ShellCommand
from holdfast.domain.model_requests import ModelRequest
from holdfast.testing.conversation_validity import problems_of_request
from holdfast.testing.gates import start, until
from server.helpers import open_raw, raw_request
from trials.hostile_commands import new_token, survivors


def shell_lines(request: ModelRequest) -> str:
    return str([message for message in request.messages if message.role == "user"])


async def shells(one: ToolClient, session: SessionId) -> list[ShellCommand]:
    messages = await one.client.list_messages(one.workspace, session)
    return [part.data for message in messages for part in message.parts if isinstance(part.data, ShellCommand)]


async def test_shell_command_is_run_stored_and_sent_to_model() -> None:
    async with tool_client(yolo=False) as one:
        session = await one.session()
        result = await one.client.run_shell(one.workspace, session, "echo seen; echo bad >&2; exit 3", 77)
        assert (result.output, result.exit_code) == ("seen\nbad\n", 3)
        assert await shells(one, session) == [ShellCommand("echo seen; echo bad >&2; exit 3", "seen\nbad\n", 3)]
        (message,) = await one.client.list_messages(one.workspace, session)
        assert message.role == "user"
        await one.call_tools_and_wait(session=session)
        assert "seen" in shell_lines(one.model.requests[-1])
        width = await one.client.run_shell(one.workspace, session, "echo $COLUMNS", 77)
        assert width.output == "77\n"


async def test_shell_command_during_turn_follows_running_step() -> None:
    async with tool_client() as one:
        session = await one.session()
        run = await one.call_tools(session, bash("touch begun; until [ -e go ]; do sleep 0.01; done"))
        await until((one.project / "begun").exists)
        await one.client.run_shell(one.workspace, session, "echo from-outside")
        # Not from the line itself: it is stored after the end of its command.
        (one.project / "go").touch()
        await one.run_end(run)
        second = one.model.requests[-1]
        assert [message.role for message in second.messages] == ["user", "assistant", "tool", "user"]
        assert "from-outside" in shell_lines(second)
        await one.call_tools_and_wait(session=session)
        third = one.model.requests[-1]
        assert [message.role for message in third.messages][:4] == ["user", "assistant", "tool", "user"]
        assert [problems_of_request(request) for request in one.model.requests] == [[], [], []]


@pytest.mark.parametrize("shuts", [False, True])
async def test_shell_command_ends_with_its_caller(*, shuts: bool) -> None:
    """The connection is cut: no process is left, and nothing is stored. Also for a half-closed caller."""
    token = new_token()
    async with tool_client() as one:
        session = await one.session()
        body = json.dumps({"command": f"touch begun; setsid sleep {token} & sleep {token}"}).encode()
        path = f"/v1/workspaces/{one.workspace}/agent/sessions/{session}/shell"
        _, writer = await open_raw(one.server.address)
        writer.write(raw_request(path, "POST", body, ("Content-Type: application/json",)))
        if shuts:
            writer.write_eof()
        await until((one.project / "begun").exists)
        assert survivors(token)
        writer.transport.abort()
        await until(lambda: not survivors(token))
        assert await shells(one, session) == []


async def test_half_closed_caller_receives_result() -> None:
    async with tool_client() as one:
        session = await one.session()
        body = json.dumps({"command": "touch begun; until [ -e go ]; do sleep 0.01; done; echo seen"}).encode()
        path = f"/v1/workspaces/{one.workspace}/agent/sessions/{session}/shell"
        reader, writer = await open_raw(one.server.address)
        writer.write(raw_request(path, "POST", body, ("Content-Type: application/json",)))
        writer.write_eof()
        await until((one.project / "begun").exists)
        (one.project / "go").touch()
        assert b'"seen' in await asyncio.wait_for(reader.read(), 20)
        writer.close()


async def test_shell_command_in_unknown_session_is_not_stored() -> None:
    async with tool_client() as one:
        result = await one.client.run_shell(one.workspace, SessionId("nobody"), "touch ran; echo ran")
        assert (result.output, result.exit_code) == ("ran\n", 0)
        assert (one.project / "ran").exists()
        assert await one.client.list_sessions(one.workspace) == ()
        for line in ("", " \n", "a\0b"):
            with pytest.raises(ServerProblem) as caught:
                await one.client.run_shell(one.workspace, SessionId("nobody"), line)
            assert caught.value.status == 400


async def test_shell_command_starts_no_turn_and_blocks_no_session() -> None:
    async with tool_client() as one:
        session = await one.session()
        slow = start(one.client.run_shell(one.workspace, session, "touch begun; until [ -e go ]; do sleep 0.01; done"))
        await until((one.project / "begun").exists)
        await one.call_tools_and_wait()
        (one.project / "go").touch()
        assert (await slow).exit_code == 0
        assert len(one.model.requests) == 1


async def test_r12_commands_get_client_variables_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """R12: the canaries of the server's environment reach neither the model's commands nor the user's."""
    for name in ("HOLDFAST_TOKEN", "HOLDFAST_HOST", "HOLDFAST_DATA_DIR", "SERVER_ONLY", "OPENAI_API_KEY"):
        monkeypatch.setenv(name, "canary-of-the-server")
    given = ("MINE=from the client", "HOLDFAST_TOKEN=canary-of-the-client", "BASH_ENV=/tmp/x", "EMPTY=", "NO_VALUE")
    async with tool_client(env=given) as one:
        (result,) = await one.call_tools_and_wait(
            bash("env; echo; cat /proc/$PPID/environ /proc/self/environ | tr '\\0' '\\n'")
        )
        typed = await one.client.run_shell(one.workspace, await one.session(), "env")
        for seen in (result.content, typed.output):
            assert "MINE=from the client" in seen
            assert "canary" not in seen
            assert str(one.server.directory.socket) not in seen
            assert "HOLDFAST=1" in seen
            assert "BASH_ENV" not in seen
