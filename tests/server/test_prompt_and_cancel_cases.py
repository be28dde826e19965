"""The cases about accepting and cancelling, over HTTP and a real socket."""

import asyncio

import pytest

from holdfast.client.client import Client
from holdfast.client.errors import ServerProblem
from holdfast.client.events import StreamEvent
from holdfast.domain.errors import ProviderError
from holdfast.domain.events import AgentEvent, MessageEvent, RunCompleteEvent
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.messages import text_of
from holdfast.protocol.bodies import AgentMessage
from holdfast.providers.scripted_model import Fail, Say, ScriptedModel, Step
from holdfast.server.workspace_manager import GracePeriods
from holdfast.testing.gates import GatedModel, until
from holdfast.testing.harness import FixedModels
from server.helpers import (
    collect_run_ends,
    exchange,
    in_process_server,
    open_raw,
    raw_request,
    read_until,
    run_ended,
    send_prompt,
    server_directory,
)


def gated(*, after: int = 0) -> GatedModel:
    return GatedModel(ScriptedModel(lambda _: Step((Say("one two three"),))), after=after)


async def outline(client: Client, workspace: WorkspaceId, session: SessionId) -> list[tuple[str, str, str]]:
    messages = await client.list_messages(workspace, session)
    return [(item.role, text_of(item), item.finish.reason if item.finish else "") for item in messages]


def errors(items: list[StreamEvent]) -> list[StreamEvent]:
    return [item for item in items if isinstance(item.event, AgentEvent) and item.event.change.object.type == "error"]


async def test_c21_c36_cancel_right_after_202_is_not_lost() -> None:
    """C-21, C-36: user message, `canceled` response, no model output, at whatever point the cancel arrives."""
    model = gated()
    model.before.shut()
    async with server_directory() as directory, in_process_server(directory, model) as server:
        client, workspace = await server.open_workspace()
        other = await server.client()
        session = (await client.create_session(workspace, "s")).id
        for number in range(20):
            run = f"r{number}"
            await send_prompt(client, workspace, session, "go", run)
            answer = await other.cancel_session(workspace, session)
            assert answer.cancelled == (RunId(run),)
            # While the first run is still ending, the next one would wait behind it and be listed with it.
            end = (await collect_run_ends(client, workspace, [run]))[-1]
            assert (end.run_id, end.outcome, end.cancelled) == (run, "cancelled", True)
        assert await outline(client, workspace, session) == [("user", "go", "stop"), ("assistant", "", "canceled")] * 20
        assert model.open_streams == 0


async def test_c25_invalid_prompts_are_refused_and_not_stored() -> None:
    """C-25: with the statuses of the table."""
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        refused = [
            (404, WorkspaceId("nowhere"), AgentMessage(session, "x")),
            (400, workspace, AgentMessage(session, "")),
            (400, workspace, AgentMessage(session, " \n\t ")),
            (400, workspace, AgentMessage(SessionId(""), "x")),
            (400, workspace, AgentMessage(SessionId("unknown"), "x")),
            (400, workspace, AgentMessage(session, "x", RunId("no/slash"))),
            (400, workspace, AgentMessage(session, "x", RunId("x" * 129))),
        ]
        for status, where_to, message in refused:
            with pytest.raises(ServerProblem) as caught:
                await client.send_prompt(where_to, message)
            assert caught.value.status == status
        assert await client.list_runs(workspace) == ()
        assert await client.list_messages(workspace, session) == ()
        await send_prompt(client, workspace, session, "x", "r1")
        assert (await send_prompt(client, workspace, session, "x", "r1")).run_id == "r1"
        with pytest.raises(ServerProblem) as caught:
            await send_prompt(client, workspace, session, "other", "r1")
        assert caught.value.status == 409


async def test_c25_prompt_without_usable_model_is_refused_and_workspace_is_readable() -> None:
    """C-25: a workspace without a usable provider is not initialised."""
    nothing = ProviderError("No provider is set up.")
    async with server_directory() as directory, in_process_server(directory, FixedModels(nothing, nothing)) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        with pytest.raises(ServerProblem) as caught:
            await send_prompt(client, workspace, session, "x")
        assert caught.value.status == 400
        with pytest.raises(ServerProblem) as caught:
            await client.init_agent(workspace)
        assert caught.value.status == 400
        assert await client.list_runs(workspace) == ()
        assert (await client.get_config(workspace))["providers"] == {}


async def test_c25_closing_workspace_refuses_prompt() -> None:
    """C-25: refused with 409 during the close, with 404 once the workspace is removed."""
    model = gated()
    model.before.shut()
    async with server_directory() as directory, in_process_server(directory, model) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        server.manager.handle(workspace).owned.engine.closing = True
        with pytest.raises(ServerProblem) as caught:
            await send_prompt(client, workspace, session, "x")
        assert caught.value.status == 409
        assert await client.list_runs(workspace) == ()


async def test_c31_ids_errors_and_cancelled_survive_the_wire() -> None:
    """C-31: in both directions."""
    model = ScriptedModel([Step((Say("half"), Fail("It broke: <&> “quoted” \n next")))])
    async with server_directory() as directory, in_process_server(directory, model) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        accepted = await send_prompt(client, workspace, session, "go", "Run.1_-x")
        assert (accepted.run_id, accepted.session_id, accepted.delivery) == ("Run.1_-x", session, "queue")
        async with client.events(workspace, since=0) as events:
            items = await read_until(events, run_ended("Run.1_-x"))
        end = items[-1].event
        assert isinstance(end, RunCompleteEvent)
        reported = end.change.object
        assert (reported.run_id, reported.session_id, reported.outcome, reported.cancelled) == (
            "Run.1_-x",
            session,
            "failed",
            False,
        )
        assert "It broke: <&> “quoted” \n next" in reported.error
        notices = [item.event.change.object for item in items if isinstance(item.event, AgentEvent)]
        assert [(notice.run_id, notice.session_id) for notice in notices if notice.type == "error"] == [
            ("Run.1_-x", session)
        ]
        stored = await client.get_run(workspace, RunId("Run.1_-x"))
        assert (stored.outcome, stored.error) == ("failed", reported.error)


async def test_c33_202_precedes_release_of_run() -> None:
    """C-33."""
    model = gated()
    model.before.shut()
    async with server_directory() as directory, in_process_server(directory, model) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        await send_prompt(client, workspace, session, "go", "r1")
        assert (await client.get_run(workspace, RunId("r1"))).state in ("accepted", "active")
        assert (await client.agent_info(workspace)).is_busy
        model.before.open()
        assert [end.outcome for end in await collect_run_ends(client, workspace, ["r1"])] == ["completed"]


@pytest.mark.parametrize("is_answer_awaited", [True, False])
async def test_c34_dropped_connection_does_not_end_run(is_answer_awaited: bool) -> None:
    """C-34: the run belongs to the workspace, not to the connection it came over."""
    model = gated()
    model.before.shut()
    async with server_directory() as directory, in_process_server(directory, model) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        reader, writer = await open_raw(server.address)
        body = b'{"session_id":"%s","prompt":"go","run_id":"r1"}' % session.encode()
        writer.write(raw_request(f"/v1/workspaces/{workspace}/agent", "POST", body))
        if is_answer_awaited:
            assert (await reader.readline()).startswith(b"HTTP/1.1 202")
        else:
            await until(server.manager.handle(workspace).owned.engine.is_busy)
        writer.transport.abort()
        await asyncio.wait_for(model.before.reached.wait(), 10)
        model.before.open()
        assert [end.outcome for end in await collect_run_ends(client, workspace, ["r1"])] == ["completed"]


async def test_c34_incomplete_request_has_no_effect() -> None:
    """C-34: an incomplete request has no effect."""
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        body = b'{"session_id":"%s","prompt":"go"}' % session.encode()
        for path, cut in ((f"/v1/workspaces/{workspace}/agent", 1), (f"/v1/workspaces/{workspace}/agent/init", 5)):
            _, writer = await open_raw(server.address)
            whole = raw_request(path, "POST", body)
            writer.write(whole[:-cut])
            await writer.drain()
            writer.transport.abort()
        assert (await exchange(server.address, raw_request("/v1/health"))).status == 200
        assert await client.list_runs(workspace) == ()


async def test_c35_cancel_by_another_client_is_not_an_error() -> None:
    """C-35: both clients see the `canceled` response, neither sees an error."""
    model = gated(after=1)
    model.midway.shut()
    async with server_directory() as directory, in_process_server(directory, model) as server:
        client, workspace = await server.open_workspace()
        other = await server.client()
        session = (await client.create_session(workspace, "s")).id
        async with client.events(workspace, since=0) as mine, other.events(workspace, since=0) as theirs:
            await send_prompt(client, workspace, session, "go", "r1")
            await asyncio.wait_for(model.midway.reached.wait(), 10)
            assert (await other.cancel_session(workspace, session)).cancelled == (RunId("r1"),)
            for events in (mine, theirs):
                items = await read_until(events, run_ended("r1"))
                assert errors(items) == []
                finishes = [
                    item.event.change.object.finish.reason
                    for item in items
                    if isinstance(item.event, MessageEvent) and item.event.change.object.finish
                ]
                assert finishes[-1] == "canceled"
        run = await client.get_run(workspace, RunId("r1"))
        assert run.outcome == "cancelled"


async def test_c37_idle_cancel_does_not_affect_next_prompt() -> None:
    """C-37."""
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        assert (await client.cancel_session(workspace, session)).cancelled == ()
        assert (await client.cancel_session(workspace, session)).cancelled == ()
        await send_prompt(client, workspace, session, "go", "r1")
        await collect_run_ends(client, workspace, ["r1"])
        assert await outline(client, workspace, session) == [
            ("user", "go", "stop"),
            ("assistant", "echo: go", "end_turn"),
        ]


async def test_c38_cancel_between_start_and_first_token() -> None:
    """C-38: the model request was sent and no response has arrived."""
    model = gated()
    model.before.shut()
    async with server_directory() as directory, in_process_server(directory, model) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        async with client.events(workspace, since=0) as events:
            await send_prompt(client, workspace, session, "go", "r1")
            await asyncio.wait_for(model.before.reached.wait(), 10)
            await client.cancel_session(workspace, session)
            items = await read_until(events, run_ended("r1"))
        assert errors(items) == []
        assert await outline(client, workspace, session) == [("user", "go", "stop"), ("assistant", "", "canceled")]
        cancelled = await client.cancel_run(workspace, RunId("r1"))
        assert (cancelled.outcome, cancelled.state) == ("cancelled", "ended")


async def test_c39_run_continues_without_clients() -> None:
    """C-39: the run keeps its workspace open; a returning client sees it finish."""
    model = gated(after=1)
    model.midway.shut()
    graces = GracePeriods(detach=0.01)
    async with server_directory() as directory, in_process_server(directory, model, graces=graces) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        await send_prompt(client, workspace, session, "go", "r1")
        await asyncio.wait_for(model.midway.reached.wait(), 10)
        await client.leave_workspace(workspace)
        await client.retire_client()
        await until(lambda: not server.manager.presence.workspaces[workspace].claims)
        other, again = await server.open_workspace()
        assert again == workspace
        async with other.events(workspace, since=0) as events:
            model.midway.open()
            items = await read_until(events, run_ended("r1"))
        end = items[-1].event
        assert isinstance(end, RunCompleteEvent)
        assert end.change.object.outcome == "completed"


async def test_c40_cancel_stops_active_run_and_accepted_follow_up() -> None:
    """C-40: releasing the gates afterwards starts nothing."""
    model = gated(after=1)
    model.midway.shut()
    async with server_directory() as directory, in_process_server(directory, model) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        await send_prompt(client, workspace, session, "one", "r1")
        await asyncio.wait_for(model.midway.reached.wait(), 10)
        await send_prompt(client, workspace, session, "two", "r2")
        assert set((await client.cancel_session(workspace, session)).cancelled) == {"r1", "r2"}
        model.midway.open()
        ends = await collect_run_ends(client, workspace, ["r1", "r2"])
        assert sorted((end.run_id, end.outcome) for end in ends) == [("r1", "cancelled"), ("r2", "cancelled")]
        assert len(model.requests) == 1
        assert "end_turn" not in [reason for _, _, reason in await outline(client, workspace, session)]
