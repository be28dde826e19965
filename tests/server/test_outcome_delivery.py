"""Delivery of outcomes: by the response to the call, or by events."""

import pytest

from holdfast.client.client import Client
from holdfast.client.errors import ServerProblem
from holdfast.client.events import StreamEvent
from holdfast.domain.events import RunCompleteEvent, RunEvent
from holdfast.domain.ids import SessionId, WorkspaceId
from holdfast.domain.messages import text_of
from holdfast.domain.model_requests import ModelRequest
from holdfast.providers.scripted_model import Fail, Say, ScriptedModel, Step
from holdfast.testing.gates import GatedModel
from server.helpers import (
    FeedModel,
    collect_run_ends,
    in_process_server,
    read_until,
    run_ended,
    send_prompt,
    server_directory,
)


def _step(request: ModelRequest) -> Step:
    return Step((Say("so "), Fail("the model broke")) if text_of(request.messages[-1]) == "break" else (Say("yes"),))


async def refused(client: Client, workspace: WorkspaceId, session: str, text: str) -> int:
    with pytest.raises(ServerProblem) as caught:
        await send_prompt(client, workspace, SessionId(session), text, "refused")
    assert caught.value.message
    return caught.value.status


async def test_c32_acceptance_is_in_response_and_outcome_in_events() -> None:
    """C-32: 202 before any model output; a refusal is only in the response to its call and stores nothing; failure
    and cancellation are events for all clients, never the response to an accepted call.
    """
    model = GatedModel(ScriptedModel(_step))
    model.before.shut()
    async with server_directory() as directory, in_process_server(directory, model) as server:
        client, workspace = await server.open_workspace()
        watcher = await server.client()
        session = (await client.create_session(workspace, "s")).id
        async with watcher.events(workspace, since=0) as events:
            assert await refused(client, workspace, session, "   ") == 400
            assert await refused(client, workspace, "no such session", "hello") == 400
            accepted = await send_prompt(client, workspace, session, "break", "r1")
            assert (accepted.run_id, model.requests) == ("r1", [])
            model.before.open()
            seen = await read_until(events, run_ended("r1"))
            assert _outcome(seen[-1]) == ("failed", "the model broke")
            model.before.shut()
            assert (await send_prompt(client, workspace, session, "hello", "r2")).run_id == "r2"
            assert (await client.cancel_session(workspace, session)).cancelled == ("r2",)
            seen += await read_until(events, run_ended("r2"))
            assert _outcome(seen[-1]) == ("cancelled", "")
            reported = {item.event.change.object.run_id for item in seen if isinstance(item.event, RunEvent)}
            assert reported == {"r1", "r2"}
        assert {end.run_id for end in await collect_run_ends(client, workspace, ["r1", "r2"])} == {"r1", "r2"}


def _outcome(item: StreamEvent) -> tuple[str, str]:
    assert isinstance(item.event, RunCompleteEvent)
    return item.event.change.object.outcome, item.event.change.object.error


async def test_run_end_names_client_that_stopped_it() -> None:
    """The end of a run names the client that stopped it, for every way of stopping it."""
    async with server_directory() as directory:
        model = FeedModel()
        async with in_process_server(directory, model) as server:
            client, workspace = await server.open_workspace()
            session = (await client.create_session(workspace)).id
            runs = [(await send_prompt(client, workspace, session, "go")).run_id]
            # Prompts that arrive before the first model request would be folded into it.
            await model.asked.wait()
            runs += [(await send_prompt(client, workspace, session, "go")).run_id for _ in range(2)]
            await client.cancel_run(workspace, runs[2])
            await client.clear_queue(workspace, session)
            await client.cancel_session(workspace, session)
            async with client.events(workspace, since=0) as events:
                await read_until(events, run_ended(runs[0]))
            found = [await client.get_run(workspace, run) for run in runs]
            assert [run.cancelled_by for run in found] == [client.client_id] * 3
