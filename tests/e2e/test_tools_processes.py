"""Commands through the real server: no process survives a cancel, a stop or a kill, and output is live."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from e2e.tool_client import bash, tool_client
from holdfast.client.client import Client
from holdfast.domain.events import MessageEvent, ToolOutputEvent
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.protocol.bodies import AgentMessage
from holdfast.testing.conversation_validity import problems_of_session
from holdfast.testing.gates import until
from server.helpers import RawStream, ServerDirectory, read_until, run_ended, server_directory, server_process
from trials.hostile_commands import SHAPES, new_token, survivors

_LEFT = ("own session", "trapped TERM", "daemon that holds stdout", "respawner", "stopped child")


def line_of(shape: str, token: str) -> str:
    return SHAPES[shape].format(python=sys.executable, token=token)


@pytest.mark.parametrize("shape", _LEFT)
async def test_c53_cancel_leaves_no_process_when_end_is_published(shape: str) -> None:
    """R4, R5, C-45, C-53: the end is published after the last process has ended, and no later step has begun."""
    token = new_token()
    async with tool_client() as one:
        session = await one.session()
        # The command itself stays, whatever its children do.
        line = f"( {line_of(shape, token)} ) & exec sleep {token}"
        later = ("write", {"file_path": "later.txt", "content": "x"})
        run = await one.call_tools(session, bash(line), later, bash("touch later"))
        await one.wait_for_output(session, "ready")
        assert len(survivors(token)) >= 2
        await one.client.cancel_run(one.workspace, run.run_id)
        assert (await one.run_end(run)).cancelled
        assert not survivors(token)
        assert not list(one.project.iterdir())
        assert len(await one.results(session)) == 3
        messages = await one.client.list_messages(one.workspace, session)
        assert problems_of_session(list(messages)) == []


async def test_c54_no_write_takes_effect_after_a_cancel() -> None:
    """C-54, hazard 6: an edit that waits for its permission is not performed after a cancel."""
    async with tool_client(yolo=False) as one:
        session = await one.session()
        run = await one.call_tools(session, ("write", {"file_path": "a.txt", "content": "x"}))
        (ask,) = await one.pending_permissions()
        await asyncio.gather(one.client.cancel_run(one.workspace, run.run_id), one.grant(ask))
        assert (await one.run_end(run)).cancelled
        (result,) = await one.results(session)
        versions = await one.client.list_history(one.workspace, session)
        if (one.project / "a.txt").exists():
            # The permission was first: completed changes are published and recorded, so that they can be undone.
            assert not result.is_error or "was not undone" in result.content
            assert versions[-1].content == "x"
        else:
            assert result.is_error


async def _busy(directory: ServerDirectory, *calls: tuple[str, object]) -> tuple[Client, WorkspaceId, SessionId]:
    client = Client(directory.address)
    workspace = (await client.create_workspace(directory.project(), yolo=True)).id
    session = (await client.create_session(workspace, "s")).id
    prompt_text = " ".join(f"tool={name} {json.dumps(arguments)}" for name, arguments in calls)
    await client.send_prompt(workspace, AgentMessage(session, prompt_text, RunId("r1")))
    return client, workspace, session


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
async def test_c55_end_of_server_ends_every_process(number: signal.Signals) -> None:
    """R4, R7, R9, C-55: the command, its job and all descendants; the next server ends the run without repeating it."""
    token = new_token()
    async with server_directory() as directory:
        project = Path(directory.project())
        job = bash(f"setsid sleep {token} & setsid sleep {token} & sleep {token}", run_in_background=True)
        command = bash(f"echo x >>begun; setsid sleep {token} & trap '' TERM; touch ready; sleep {token}")
        async with server_process(directory) as first:
            client, workspace, session = await _busy(directory, job, command)
            await until((project / "ready").exists)
            assert len(survivors(token)) >= 4
            path = f"/v1/workspaces/{workspace}/events?client_id={client.client_id}&since=0"
            stream = await RawStream.open(directory.address, path)
            os.kill(first.process.pid, number)
            assert await first.wait() == (0 if number == signal.SIGTERM else -signal.SIGKILL)
            if number == signal.SIGTERM:
                assert not survivors(token)
                await stream.rest()
            stream.close()
            await until(lambda: not survivors(token))
            await client.close()
        async with server_process(directory), Client(directory.address) as again:
            workspace = (await again.create_workspace(str(project))).id
            run = await again.get_run(workspace, RunId("r1"))
            assert (run.state, run.outcome) == ("ended", "interrupted")
            messages = await again.list_messages(workspace, session)
            assert problems_of_session(list(messages)) == []
            calls = [call.id for message in messages for call in message.tool_calls]
            assert [result.tool_call_id for message in messages for result in message.tool_results] == calls
            assert (project / "begun").read_text() == "x\n"
            assert not await again.list_jobs(workspace)


async def test_output_is_live() -> None:
    """The command waits for a file that is created when its first output has arrived."""
    async with tool_client() as one:
        session = await one.session()
        path = f"/v1/workspaces/{one.workspace}/events?client_id={one.client.client_id}"
        crush = await RawStream.open(one.server.address, path)
        gate = "until [ -e go ]; do sleep 0.01; done"
        run = await one.call_tools(session, bash(f"echo first; {gate}; echo second"))
        async with one.client.events(one.workspace, since=0) as events:
            before = await read_until(events, lambda item: isinstance(item.event, ToolOutputEvent))
            (one.project / "go").touch()
            after = await read_until(events, run_ended(run.run_id))
        printed = [item.event.payload for item in before + after if isinstance(item.event, ToolOutputEvent)]
        assert "".join(output.text for output in printed) == "first\nsecond\n"
        assert [output.offset for output in printed] == [0, *(len(printed[0].text) for _ in printed[1:])]
        assert all(item.number is None for item in before + after if isinstance(item.event, ToolOutputEvent))
        (result,) = await one.results(session)
        assert result.content == f"first\nsecond\n\n<cwd>{one.project}</cwd>"
        metadata = json.loads(result.metadata)
        assert metadata.keys() == {"start_time", "end_time", "output", "description", "working_directory"}
        await crush.until(lambda event: b'"run_complete"' in event.data)
        assert b"tool_output" not in crush.raw
        crush.close()


async def test_long_output_is_bounded_and_the_model_can_view_the_rest() -> None:
    async with tool_client(yolo=False) as one:
        await one.client.config_set(one.workspace, "permissions.allow", ["bash(seq *)"], scope=1)
        session = await one.session()
        run = await one.call_tools(session, bash("seq 1 400000"))
        items = await one.events_until_end(run)
        live = sum(len(item.event.payload.text) for item in items if isinstance(item.event, ToolOutputEvent))
        (result,) = await one.results(session)
        assert len(result.content) < 32_000
        assert result.content.startswith("1\n2\n3\n")
        assert "\n400000\n" in result.content
        assert "lines truncated" in result.content
        spill = next(word.strip(".,:;[]") for word in result.content.split() if "/output/" in word)
        (seen,) = await one.call_tools_and_wait(
            ("view", {"file_path": spill, "offset": 199_999, "limit": 1}), session=session
        )
        assert "200000|200000" in seen.content.replace(" ", "")
        assert live <= 1_048_576 + 100
        stored = [item for item in items if isinstance(item.event, MessageEvent)]
        assert sum(len(str(item.event)) for item in stored) < 300_000
