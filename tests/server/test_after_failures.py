"""Interaction of server components, and behaviour after a failure."""

import asyncio
import json
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import pytest

from holdfast.client.errors import ServerProblem
from holdfast.domain.doctor import Finding
from holdfast.domain.errors import HoldfastError, ProviderError, StorageUnavailable
from holdfast.domain.ids import RunId, SessionId, WorkspaceId
from holdfast.domain.messages import text_of
from holdfast.domain.model_requests import ModelRequest, StreamPart
from holdfast.domain.settings import McpSettings
from holdfast.providers.scripted_model import Say, ScriptedModel, Step
from holdfast.runtime.workspace import Workspace
from holdfast.server.presence import WorkBegan
from holdfast.server.workspace_manager import GracePeriods
from holdfast.storage.sqlite_ledger import SqliteLedger
from holdfast.testing.gates import Gate, GatedModel, settle_down, start, until
from server.helpers import (
    EchoModel,
    FeedModel,
    RawStream,
    ServerDirectory,
    collect_run_ends,
    exchange,
    in_process_server,
    open_raw,
    raw_request,
    send_prompt,
    server_directory,
)

TIMEOUT = 20.0


# Open and reopen


@pytest.mark.parametrize("fails", [False, True])
async def test_work_during_close_reopens_workspace_unchanged(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its flags and environment; if it cannot be reopened, it is removed with its claims."""
    model = GatedModel(ScriptedModel(lambda _: Step((Say("done"),))))
    async with (
        server_directory() as directory,
        in_process_server(directory, model, graces=GracePeriods(create=1e9), leaves_when_idle=True) as server,
    ):
        manager, gate, reopened = server.manager, Gate(), []
        client = await server.client()
        workspace = (await client.create_workspace(directory.project(), yolo=True, debug=True, env=("A=1",))).id
        manager.handles[0].channels = ("c",)
        close, find = manager.services.close_workspace, manager.services.open_workspace

        async def held(closing: Workspace) -> None:
            await gate()
            await close(closing)

        async def found(*given: Any, **more: Any) -> Workspace:  # noqa: ANN401
            reopened.append(given[1])
            if fails:
                raise StorageUnavailable
            return await find(*given, **more)

        monkeypatch.setattr(manager.services, "close_workspace", held)
        await client.leave_workspace(workspace)
        await gate.reached.wait()
        manager.apply(WorkBegan(workspace))
        monkeypatch.setattr(manager.services, "close_workspace", close)
        monkeypatch.setattr(manager.services, "open_workspace", found)
        seen: list[tuple[bool, bool, tuple[str, ...], tuple[str, ...]]] = []
        reported = manager.apply

        def noted(event: Any) -> None:  # noqa: ANN401
            seen.extend((handle.yolo, handle.debug, handle.env, handle.channels) for handle in manager.handles)
            reported(event)

        monkeypatch.setattr(manager, "apply", noted)
        gate.open()
        await until(lambda: reopened and workspace not in manager.presence.workspaces)
        assert reopened == [{"A": "1"}]
        assert not manager.handles
        assert set(seen) == (set() if fails else {(True, True, ("A=1",), ("c",))})
        monkeypatch.undo()
        assert (await client.create_workspace(directory.project())).id == workspace


@pytest.mark.parametrize("error", [StorageUnavailable, RuntimeError])
async def test_server_starts_although_unfinished_runs_cannot_be_listed(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse(_: SqliteLedger) -> Sequence[str]:
        raise error

    monkeypatch.setattr(SqliteLedger, "unfinished_workspaces", refuse)
    async with server_directory() as directory, in_process_server(directory) as server:
        client = await server.client()
        async with asyncio.timeout(TIMEOUT):
            assert await client.list_workspaces() == ()
            await client.create_workspace(directory.project())


async def stopped_with_unfinished_runs(directory: ServerDirectory, names: Sequence[str]) -> None:
    """Return workspaces of a server that was stopped with one active and one waiting run in each."""
    model = GatedModel(ScriptedModel(lambda _: Step((Say("done"),))))
    model.before.shut()
    async with in_process_server(directory, model) as server:
        for name in names:
            client, workspace = await server.open_workspace(name)
            session = (await client.create_session(workspace, "s")).id
            await send_prompt(client, workspace, session, "one", f"{name}-1")
            await send_prompt(client, workspace, session, "two", f"{name}-2")
        await model.before.reached.wait()


@pytest.mark.parametrize("trouble", ["removed", "refused"])
async def test_recovery_of_each_workspace_is_independent(trouble: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_directory() as directory:
        await stopped_with_unfinished_runs(directory, ("a", "b", "c"))
        opened = SqliteLedger.open_workspace

        async def sometimes(ledger: SqliteLedger, path: str) -> Any:  # noqa: ANN401
            if path.endswith("/a") and trouble == "refused":
                raise StorageUnavailable
            return await opened(ledger, path)

        monkeypatch.setattr(SqliteLedger, "open_workspace", sometimes)
        if trouble == "removed":
            (directory.root / "a").rmdir()
        model = GatedModel(ScriptedModel(lambda _: Step((Say("done"),))))
        model.before.shut()
        async with in_process_server(directory, model, graces=GracePeriods(create=1e9)) as server:
            client = await server.client()
            found_open = {Path(item.path).name for item in await client.list_workspaces()}
            assert found_open == {"b", "c"}, "without any client"
            monkeypatch.undo()
            model.before.open()
            for name in ("b", "c"):
                found = await client.create_workspace(directory.project(name))
                await collect_run_ends(client, found.id, [f"{name}-2"])
                assert (await client.get_run(found.id, RunId(f"{name}-1"))).outcome == "interrupted"
                assert (await client.get_run(found.id, RunId(f"{name}-2"))).outcome == "completed"


async def test_recovered_workspace_closes_when_its_work_is_done() -> None:
    """No client has connected: the workspace is opened for its unfinished runs only."""
    async with server_directory() as directory:
        await stopped_with_unfinished_runs(directory, ("a",))
        model = GatedModel(ScriptedModel(lambda _: Step((Say("done"),))))
        model.before.shut()
        async with in_process_server(directory, model) as server:
            await model.before.reached.wait()
            await settle_down()
            assert len(server.manager.handles) == 1
            model.before.open()
            await until(lambda: not server.manager.handles)


async def test_disconnect_during_open_does_not_cancel_open(monkeypatch: pytest.MonkeyPatch) -> None:
    gate, opened = Gate(), SqliteLedger.open_workspace

    async def held(ledger: SqliteLedger, path: str) -> Any:  # noqa: ANN401
        await gate()
        return await opened(ledger, path)

    async with server_directory() as directory, in_process_server(directory) as server:
        monkeypatch.setattr(SqliteLedger, "open_workspace", held)
        body = {"path": directory.project(), "client_id": "6f0b3a52-6d1e-4a8e-9c1e-0d4f5b6a7c8d"}
        _, writer = await open_raw(server.address)
        writer.write(raw_request("/v1/workspaces", "POST", json.dumps(body).encode()))
        await gate.reached.wait()
        writer.transport.abort()
        await exchange(server.address, raw_request("/v1/health"))
        gate.open()
        await until(lambda: server.manager.handles)
        assert server.manager.presence.creating == 0


async def test_closed_server_refuses_every_request() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace)).id
        server.manager.is_closed = True
        for path in ("/v1/workspaces", f"/v1/workspaces/{workspace}/sessions/{session}", "/v1/openapi.json"):
            answer = await exchange(server.address, raw_request(path))
            assert (answer.status, "shutting down" in answer.json["message"]) == (503, True)
        assert (await exchange(server.address, raw_request("/v1/health"))).status == 200
        server.manager.is_closed = False


# Prompts and summaries


class Broken(EchoModel):
    """Model that raises an error once `broken` is set."""

    broken = False

    async def stream(self, request: ModelRequest) -> AsyncGenerator[StreamPart, None]:
        if self.broken:
            raise ProviderError("The model has left.", trouble="refused")
        async for part in super().stream(request):
            yield part


async def test_failed_summary_returns_reason_and_stores_nothing() -> None:
    model = Broken()
    async with server_directory() as directory, in_process_server(directory, model) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace)).id
        await send_prompt(client, workspace, session, "hello", "r1")
        bus = server.manager.handle(workspace).workspace.bus
        await until(lambda: not server.manager.handle(workspace).owned.engine.is_busy())
        model.broken = True
        with pytest.raises(ServerProblem, match="The model has left") as caught:
            await client.summarize(workspace, session)
        assert caught.value.status == 400
        assert bus._readers == 0
        assert not (await client.get_session(workspace, session)).summary_message_id
        with pytest.raises(ServerProblem):
            await client.summarize(workspace, SessionId("nothing"))
        assert bus._readers == 0


async def test_server_stop_ends_summary() -> None:
    model = FeedModel()
    async with server_directory() as directory, in_process_server(directory, model) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace)).id
        model.words.put_nowait(None)
        await send_prompt(client, workspace, session, "hello", "r1")
        await until(lambda: not server.manager.handle(workspace).owned.engine.is_busy())
        model.asked.clear()
        asked = start(client.summarize(workspace, session))
        await model.asked.wait()
        await asyncio.wait_for(server.stop(), TIMEOUT)
        with pytest.raises(HoldfastError):
            await asked


async def test_command_or_agent_name_in_prompt_is_resolved() -> None:
    """For a command at the beginning and for the name of an agent within the text."""
    async with server_directory() as directory, in_process_server(directory) as server:
        folder = Path(directory.project()) / ".holdfast/agents"
        folder.mkdir(parents=True)
        (folder / "looker.md").write_text("---\nname: looker\ndescription: looks\n---\nLook.\n")
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace)).id
        (folder.parent / "commands").mkdir()
        (folder.parent / "commands/greet.md").write_text("Greet.")
        texts = {"r1": "ask @looker about it", "r2": " /greet", "r3": "nobody is named"}
        for run, text in texts.items():
            await send_prompt(client, workspace, session, text, run)
            record = await server.manager.ledger.run(workspace, RunId(run))
            assert record is not None
            assert (record.brief is not None) is (run != "r3"), text
            await until(lambda: not server.manager.handle(workspace).owned.engine.is_busy())
        asked = [text_of(item) for item in await client.list_messages(workspace, session) if item.role == "user"]
        assert asked == list(texts.values())


# Streams


async def test_stock_client_that_connects_mid_message_receives_current_message() -> None:
    model = FeedModel()
    async with server_directory() as directory, in_process_server(directory, model) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace)).id
        async with client.events(workspace, since=0) as events:
            await send_prompt(client, workspace, session, "go", "r1")
            model.words.put_nowait("one ")
            async for item in events:
                if "one " in str(item.event):
                    break
        stream = await RawStream.open(server.address, f"/v1/workspaces/{workspace}/events")
        model.words.put_nowait("two")
        event = await stream.until(lambda item: b"one two" in item.data)
        assert json.loads(event.data)["payload"]["type"] == "updated"
        model.words.put_nowait(None)
        await stream.until(lambda item: b'"run_complete"' in item.data)
        stream.close()


# Extensions of clients, and the description of a workspace


async def test_mcp_servers_of_client_stop_when_it_leaves() -> None:
    """Not earlier and not with another client; servers of the configuration stay."""
    lent = {"lent": McpSettings(command="true", disabled=True)}
    async with server_directory() as directory, in_process_server(directory, graces=GracePeriods(create=1e9)) as server:
        stays, workspace = await server.open_workspace()
        leaves, _ = await server.open_workspace()
        third, _ = await server.open_workspace()
        await stays.config_set(workspace, "mcp.own", {"command": "true", "disabled": True})
        await leaves.mcp_lend(workspace, lent)
        assert set(await stays.mcp_states(workspace)) == {"own", "lent"}
        await third.leave_workspace(workspace)
        assert set(await stays.mcp_states(workspace)) == {"own", "lent"}
        await leaves.leave_workspace(workspace)
        assert set(await stays.mcp_states(workspace)) == {"own"}
        other, _ = await server.open_workspace()
        await other.mcp_lend(workspace, lent)
        await other.retire_client()
        assert set(await stays.mcp_states(workspace)) == {"own"}


async def test_workspace_lists_errors_of_its_own_settings_only() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        many = {f"key{number}": 1 for number in range(20)}
        (Path(directory.project()) / "crush.json").write_text(json.dumps({"options": {"debug": "loud"}, "tools": many}))
        client, workspace = await server.open_workspace()
        found = await client.config_problems(workspace)
        errors = [item for item in found if item.severity == "error"]
        shown = (await client.get_workspace(workspace)).problems
        assert len(shown) == min(10, len(errors))
        assert any("options.debug" in line for line in shown)
        assert len({item.severity for item in found}) >= 1


async def test_snapshot_lists_jobs_of_its_session_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        session = (await client.create_session(workspace)).id
        asked: list[SessionId | None] = []
        jobs = server.manager.handle(workspace).services.jobs

        def listed(session: SessionId | None = None) -> tuple[()]:
            asked.append(session)
            return ()

        monkeypatch.setattr(jobs, "list", listed)
        await client.snapshot(workspace)
        await client.snapshot(workspace, session)
        await client.list_jobs(workspace, session)
        await client.list_jobs(workspace)
        assert asked == [None, session, session, None]


async def test_server_findings_are_listed_with_workspace_findings() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        client, workspace = await server.open_workspace()
        server.observers.problems = lambda: (  # type: ignore[method-assign]
            Finding("telemetry", "warning", "nothing is sent"),
        )
        for areas, expected in (("telemetry", ["telemetry"]), ("settings", ["settings"]), ("telemetry,trust", None)):
            found = [item.area for item in (await client.doctor(workspace, areas)).findings]
            assert found[0] == "telemetry" if expected is None else found == expected


async def test_environment_sent_by_page_overrides_that_of_its_link() -> None:
    async with server_directory() as directory, in_process_server(directory) as server:
        opened = await server.application.web.open()
        token = opened.exchange(opened.link(("A=1",)).code).token
        address = server.address._replace(path="", host="127.0.0.1", port=opened.app.port, token=token)
        page = await server.client(address)
        for name, env in (("first", ("B=2",)), ("second", ())):
            workspace = (await page.create_workspace(directory.project(name), env=env)).id
            assert server.manager.handle(WorkspaceId(workspace)).env == (env or ("A=1",))
