"""A server that starts with unfinished work: its actions before any client connects."""

import asyncio
from collections.abc import Sequence

import pytest

from holdfast.domain.ids import RunId, WorkspaceId
from holdfast.domain.model_requests import ModelInfo
from holdfast.domain.runs import Run
from holdfast.protocol.bodies import WorkspaceBody
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.runtime.server_services import ServerServices, ServiceOverrides
from holdfast.server.workspace_manager import WorkspaceManager
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.gates import Gate, GatedModel, settle_down, start, until
from server.helpers import (
    QUICK,
    ServerDirectory,
    exchange,
    in_process_server,
    raw_request,
    send_prompt,
    server_directory,
)

CLIENT = "6f0d1f2e-6f3a-4c1e-9d2b-0a1b2c3d4e5f"


async def stopped_with_unfinished_runs(directory: ServerDirectory, provider: str) -> WorkspaceId:
    """Return the workspace of a server that was stopped while r1 was active with this provider and r2 waited."""
    model = GatedModel(ScriptedModel(lambda _: Step((Say("a b c"),)), info=ModelInfo(provider, "m")))
    model.before.shut()
    async with in_process_server(directory, model) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace, "s")).id
        await send_prompt(client, workspace, session, "one", "r1")
        await model.before.reached.wait()
        await send_prompt(client, workspace, session, "words=3", "r2")
    return workspace


@pytest.mark.parametrize(("provider", "waits"), [("elsewhere", True), ("demo", False)])
async def test_prompts_wait_for_client_without_usable_model(
    provider: str, waits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key may have been that of a client, which is never stored. The scripted demo model is not a substitute."""
    monkeypatch.setattr("holdfast.providers.model_registry.LOCAL_SERVERS", ())
    async with server_directory() as directory:
        workspace = await stopped_with_unfinished_runs(directory, provider)
        manager = WorkspaceManager(ServerServices(directory.data, ServiceOverrides(QUICK)))
        try:
            await manager.open_unfinished()
            assert [handle.id for handle in manager.handles] == ([] if waits else [workspace])
            assert (await stored(manager, workspace, "r1")).outcome == "interrupted"
            if waits:
                assert (await stored(manager, workspace, "r2")).outcome is None
            handle = await manager.create(WorkspaceBody(WorkspaceId(""), directory.project(), client_id=CLIENT))
            await until(lambda: not handle.owned.engine.is_busy())
            await handle.owned.engine.wait_until_idle((await stored(manager, workspace, "r2")).session_id)
            assert (await stored(manager, workspace, "r2")).outcome == "completed"
        finally:
            await manager.close()


async def stored(manager: WorkspaceManager, workspace: WorkspaceId, run: str) -> Run:
    record = await manager.ledger.run(workspace, RunId(run))
    assert record is not None
    return record.run


async def test_requests_during_recovery_are_held_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, look = Gate(), SqliteLedger.unfinished_workspaces

    async def held(ledger: SqliteLedger) -> Sequence[str]:
        await gate()
        return await look(ledger)

    monkeypatch.setattr(SqliteLedger, "unfinished_workspaces", held)
    async with server_directory() as directory, in_process_server(directory) as server:
        await gate.reached.wait()
        for path in ("/v1/health", "/v1/version"):
            assert (await exchange(server.address, raw_request(path))).status == 200
        asked = start(exchange(server.address, raw_request("/v1/workspaces")))
        await settle_down()
        assert (await exchange(server.address, raw_request("/v1/health"))).status == 200
        assert not asked.done()
        gate.open()
        async with asyncio.timeout(20):
            assert (await asked).status == 200
