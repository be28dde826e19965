"""Background jobs through the real server: listed, read, killed, and cleaned up."""

import asyncio
import contextlib
import json
import os

import pytest

from e2e.tool_client import ToolClient, bash, tool_client
from holdfast.client.client import Client
from holdfast.client.errors import ServerProblem
from holdfast.domain.ids import WorkspaceId
from holdfast.testing.gates import until
from server.helpers import Server
from trials.hostile_commands import SHAPES, new_token, survivors

_GATE = "until [ -e go ]; do sleep 0.01; done"


async def wait_until_closed(client: Client, workspace: WorkspaceId) -> None:
    """Wait until the workspace is closed or closing."""

    async def poll() -> None:
        async with asyncio.timeout(20):
            while True:
                await client.list_jobs(workspace)

    with pytest.raises(ServerProblem, match="no such workspace"):
        await poll()


async def job_of(one: ToolClient, line: str, **more: object) -> str:
    """Complete a run that leaves this job running."""
    (result,) = await one.call_tools_and_wait(bash(line, run_in_background=True, **more))
    metadata = json.loads(result.metadata)
    assert metadata["background"]
    assert metadata["shell_id"] in result.content
    return str(metadata["shell_id"])


async def test_a_job_is_listed_read_and_killed_through_the_api() -> None:
    token = new_token()
    async with tool_client() as one:
        job = await job_of(one, f"echo begun; setsid sleep {token} & sleep {token}")
        (info,) = await one.client.list_jobs(one.workspace)
        assert (info.id, info.state, info.working_directory) == (job, "running", str(one.project))
        assert await one.client.list_jobs(one.workspace, await one.session()) == ()
        assert (await one.client.job_output(one.workspace, job)).stdout == "begun\n"
        snapshot = await one.client.snapshot(one.workspace)
        assert [item["id"] for item in snapshot.jobs] == [job]
        assert survivors(token)
        killed = await one.client.kill_job(one.workspace, job)
        assert killed.job.state == "killed"
        assert not survivors(token)
        for call in (one.client.job_output, one.client.kill_job):
            with pytest.raises(ServerProblem) as caught:
                await call(one.workspace, job)
            assert caught.value.status == 404


async def test_the_model_reads_and_kills_its_jobs() -> None:
    async with tool_client() as one:
        session = await one.session()
        line = f"echo begun; {_GATE}; echo over; exit 3"
        (started,) = await one.call_tools_and_wait(bash(line, run_in_background=True), session=session)
        job = json.loads(started.metadata)["shell_id"]
        (running,) = await one.call_tools_and_wait(("job_output", {"shell_id": job}), session=session)
        assert running.content == "Status: running\n\nbegun"
        assert json.loads(running.metadata)["done"] is False
        (one.project / "go").touch()
        (over,) = await one.call_tools_and_wait(("job_output", {"shell_id": job, "wait": True}), session=session)
        assert over.content == "Status: completed\n\nbegun\nover\nExit code 3"
        assert json.loads(over.metadata).keys() == {"shell_id", "command", "description", "done", "working_directory"}
        (foreign,) = await one.call_tools_and_wait(("job_output", {"shell_id": job}))
        assert foreign.is_error
        (killed,) = await one.call_tools_and_wait(("job_kill", {"shell_id": job}), session=session)
        assert not killed.is_error
        assert await one.client.list_jobs(one.workspace) == ()


async def test_long_command_continues_in_background() -> None:
    async with tool_client() as one:
        (result,) = await one.call_tools_and_wait(bash(f"echo begun; {_GATE}; touch over", auto_background_after=1))
        assert json.loads(result.metadata)["background"]
        assert "begun" in result.content
        (one.project / "go").touch()
        await until((one.project / "over").exists)


async def test_r4_jobs_of_cancelled_run_end_before_its_end_is_published() -> None:
    token = new_token()
    async with tool_client() as one:
        session = await one.session()
        shape = SHAPES["respawner"].format(token=token)
        run = await one.call_tools(session, bash(shape, run_in_background=True), bash("echo waits; sleep 99"))
        await one.wait_for_output(session, "waits")
        assert survivors(token)
        await one.client.cancel_run(one.workspace, run.run_id)
        assert (await one.run_end(run)).cancelled
        assert not survivors(token)
        assert [job.state for job in await one.client.list_jobs(one.workspace)] == ["killed"]


async def test_a_job_of_a_completed_run_keeps_its_workspace_open_until_it_is_over() -> None:
    async with tool_client() as one:
        await job_of(one, f"{_GATE}; touch over")
        await one.client.leave_workspace(one.workspace)
        assert len(await one.client.list_jobs(one.workspace)) == 1
        (one.project / "go").touch()
        await wait_until_closed(one.client, one.workspace)
        assert (one.project / "over").exists()


async def test_job_keeps_unattended_workspace_for_limited_time() -> None:
    token = new_token()
    async with tool_client() as one:
        await one.client.config_set(one.workspace, "options.job_linger", 1, scope=1)
        await job_of(one, f"sleep {token}")
        assert survivors(token)
        await one.client.leave_workspace(one.workspace)
        await wait_until_closed(one.client, one.workspace)
        await one.client.create_workspace(str(one.project))
        assert not survivors(token)


async def test_c49_jobs_end_with_their_workspace_only() -> None:
    """C-49: processes of another workspace continue."""
    mine, theirs = new_token(), new_token()
    async with tool_client() as one:
        await job_of(one, f"sleep {mine}")
        client, other = await one.server.client(), one.server.directory.project("other")
        second = ToolClient(one.server, client, (await client.create_workspace(other, yolo=True)).id, one.model)
        await job_of(second, f"sleep {theirs}")
        await _close(one.server, one.workspace)
        assert not survivors(mine)
        assert survivors(theirs)
        assert len(await client.list_jobs(second.workspace)) == 1


async def _close(server: Server, workspace: WorkspaceId) -> None:
    handle = server.manager.handle(workspace)
    await server.manager.services.close_workspace(handle.owned)


async def test_deleting_session_ends_its_jobs() -> None:
    token = new_token()
    async with tool_client() as one:
        session = await one.session()
        await one.call_tools_and_wait(bash(f"sleep {token}", run_in_background=True), session=session)
        assert survivors(token)
        await one.client.delete_session(one.workspace, session)
        assert not survivors(token)
        assert await one.client.list_jobs(one.workspace) == ()


async def test_c57_finished_jobs_do_not_count_towards_limit() -> None:
    """C-57: after more jobs than may run at once, a command still works."""
    async with tool_client() as one:
        jobs = one.server.manager.handle(one.workspace).services.jobs
        gate = one.project / "gate"
        os.mkfifo(gate)
        for _ in range(2):
            await asyncio.gather(
                *(one.call_tools_and_wait(bash("read line <gate", run_in_background=True)) for _ in range(26))
            )
            async with asyncio.timeout(20):
                while jobs.is_busy:
                    with contextlib.suppress(OSError):
                        os.close(os.open(gate, os.O_WRONLY | os.O_NONBLOCK))
                    await asyncio.sleep(0)
        (result,) = await one.call_tools_and_wait(bash("echo still here"))
        assert result.content.startswith("still here")
        assert {job.state for job in await one.client.list_jobs(one.workspace)} == {"completed"}


async def test_c56_unresponsive_command_delays_close_by_its_grace_only() -> None:
    """C-56: meanwhile the directory is not opened a second time: a new client waits, and finds nothing left."""
    token = new_token()
    async with tool_client() as one:
        await one.client.config_set(one.workspace, "options.job_linger", 0, scope=1)
        shape = SHAPES["trapped TERM"].format(token=token)
        (result,) = await one.call_tools_and_wait(bash(shape, run_in_background=True))
        assert json.loads(result.metadata)["background"]
        assert survivors(token)
        await one.client.leave_workspace(one.workspace)
        await wait_until_closed(one.client, one.workspace)
        assert (await one.client.create_workspace(str(one.project), yolo=True)).id == one.workspace
        assert not survivors(token)
        (again,) = await one.call_tools_and_wait(bash("echo again"))
        assert again.content.startswith("again")
