"""A server whose data directory is gone: 503 with the reason on every route and in every report."""

import asyncio
import logging
import os

import pytest

from holdfast.client.errors import ServerProblem
from holdfast.domain.events import AgentEvent, HelloEvent
from holdfast.domain.ids import RunId
from holdfast.protocol.bodies import AgentMessage
from holdfast.server.workspace_manager import GracePeriods
from server.helpers import (
    FeedModel,
    exchange,
    in_process_server,
    raw_request,
    read_until,
    send_prompt,
    server_directory,
)


async def test_a_missing_data_directory_is_reported_everywhere(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR, "holdfast.server")
    async with server_directory() as here, in_process_server(here) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace)).id
        async with client.events(workspace, since=0) as events:
            await read_until(events, lambda item: isinstance(item.event, HelloEvent))
            here.data.rename(here.data.with_name("away"))
            with pytest.raises(ServerProblem) as caught:
                await client.send_prompt(workspace, AgentMessage(session, "lost?", RunId("r1")))
            assert caught.value.status == 503
            assert "is gone" in str(caught.value)
            seen = await read_until(events, lambda item: isinstance(item.event, AgentEvent))
        last = seen[-1].event
        assert isinstance(last, AgentEvent)
        assert (last.change.object.type, "is gone" in last.change.object.error) == ("error", True)
        health = await exchange(server.address, raw_request("/v1/health"))
        assert (health.status, b"is gone" in health.body) == (503, True)
        findings = (await client.doctor(workspace, "data directory")).findings
        assert [(item.severity, "is gone" in item.what) for item in findings] == [("error", True)]
        assert "is gone" in caplog.text
        here.data.with_name("away").rename(here.data)
        assert (await exchange(server.address, raw_request("/v1/health"))).status == 200
        await send_prompt(client, workspace, session, "again", RunId("r1"))


async def test_reason_is_reported_while_run_end_cannot_be_stored() -> None:
    model = FeedModel()
    async with server_directory() as here, in_process_server(here, model) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace)).id
        async with client.events(workspace, since=0) as events:
            await send_prompt(client, workspace, session, "one", RunId("r1"))
            await model.asked.wait()
            here.data.rename(here.data.with_name("away"))
            model.words.put_nowait(None)
            await read_until(events, lambda item: "is gone" in str(item.event))
        for run in ("r2", "r3"):
            with pytest.raises(ServerProblem, match="is gone"):
                await send_prompt(client, workspace, session, "two", RunId(run))
        here.data.with_name("away").rename(here.data)
        await send_prompt(client, workspace, session, "two", RunId("r2"))
        model.words.put_nowait(None)


async def test_missing_data_directory_is_detected_while_idle() -> None:
    async with server_directory() as here, in_process_server(here, graces=GracePeriods(check_interval=0.02)) as server:
        client, workspace = await server.open_workspace()
        async with client.events(workspace, since=0) as events, asyncio.timeout(20):
            await read_until(events, lambda item: isinstance(item.event, HelloEvent))
            (here.data / "holdfast.db").rename(here.data / "other")
            seen = await read_until(events, lambda item: isinstance(item.event, AgentEvent))
        assert "is gone" in str(seen[-1].event)


@pytest.mark.parametrize(("name", "mode"), [("", 0o777), ("holdfast.db", 0o666), ("token", 0o640), ("logs", 0o777)])
async def test_files_accessible_to_others_are_reported(name: str, mode: int, caplog: pytest.LogCaptureFixture) -> None:
    async with server_directory() as here:
        async with in_process_server(here, with_tcp=True) as server:
            (here.data / "logs").mkdir()
            client, workspace = await server.open_workspace()
            before = [item.severity for item in (await client.doctor(workspace, "data directory")).findings]
            os.chmod(here.data / name, mode)
            findings = (await client.doctor(workspace, "data directory")).findings
        assert "warning" not in before
        path = str(here.data / name) if name else str(here.data)
        assert any(item.severity == "warning" and item.file == path and "chmod" in item.what_to_do for item in findings)
        caplog.clear()
        async with in_process_server(here):
            assert any(path in record.getMessage() and record.levelname == "WARNING" for record in caplog.records)
