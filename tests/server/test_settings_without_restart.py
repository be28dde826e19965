"""Settings changed while a workspace is open apply to the next run."""

from holdfast.domain.model_requests import ModelRequest
from holdfast.providers.scripted_model import Call, Say, ScriptedModel, Step
from server.helpers import in_process_server, read_until, run_ended, send_prompt, server_directory


def _busy(request: ModelRequest) -> Step:
    """Call a tool in three steps, then finish."""
    steps = sum(message.role == "tool" for message in request.messages)
    return Step((Call("ls", '{"path": "."}'),)) if steps < 3 else Step((Say("done"),))


async def test_limit_applies_from_next_run() -> None:
    async with server_directory() as directory, in_process_server(directory, ScriptedModel(_busy)) as server:
        client, workspace = await server.open_workspace()
        ends = []
        for most in (500, 2, 0):
            await client.config_set(workspace, "options.max_steps", most)
            session = (await client.create_session(workspace)).id
            cursor = (await client.snapshot(workspace)).cursor
            async with client.events(workspace, since=cursor) as events:
                run = await send_prompt(client, workspace, session, "look around")
                await read_until(events, run_ended(run.run_id))
            ends.append((await client.get_run(workspace, run.run_id)).outcome)
        assert ends == ["completed", "failed", "completed"]


async def test_approval_timeout_follows_setting() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        asks = server.manager.handle(workspace).owned.approvals
        assert asks.timeout() == 86_400
        await client.config_set(workspace, "options.ask_timeout", 7)
        assert asks.timeout() == 7
