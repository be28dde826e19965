"""Every route once with its effect and once refused: server, workspaces, sessions, prompts, runs."""

import asyncio
import json
import os

from holdfast import __version__
from holdfast.domain.ids import RunId, SessionId
from holdfast.protocol import PROTOCOL
from holdfast.protocol.routes import ROUTES
from holdfast.testing.gates import until
from server import test_route_effects_more as more
from server.api import COVERED, Api, covers
from server.helpers import RawStream

UNKNOWN_CLIENT = "6f0b3a52-6d1e-4a8e-9c1e-0d4f5b6a7c8d"


def test_every_route_is_called() -> None:
    assert more.__doc__
    elsewhere = set(more.ELSEWHERE)
    assert {route.name for route in ROUTES} == COVERED | elsewhere
    assert not COVERED & elsewhere


@covers("health", "version", "server_config", "openapi", "docs", "all_stats", "metrics")
async def test_the_server(api: Api) -> None:
    await api.expect_ok("health")
    version = await api.expect_ok("version")
    assert (version["version"], version["protocol"], version["pid"]) == (__version__, PROTOCOL, os.getpid())
    assert version["data_id"] == api.server.manager.data_id
    assert (await api.expect_ok("server_config"))["options"]["data_directory"] == str(api.server.directory.data)
    assert (await api.expect_ok("openapi"))["info"]["version"] == __version__
    assert "list_sessions" not in await api.expect_ok("docs")
    session = await api.approvals.session()
    await api.approvals.events_until_end(await api.approvals.call_tools(session))
    assert (await api.expect_ok("all_stats"))["sessions"] == 1
    assert "zone" in await api.expect_error(400, "all_stats", query={"zone": "841"})
    assert "options.metrics" in await api.expect_error(404, "metrics")
    api.server.observers.metrics = more.ServerMetrics()
    assert "holdfast_workspaces_open 1" in await api.expect_ok("metrics")
    for name in ("health", "version", "server_config", "openapi", "docs"):
        await api.expect_other_server(name)


@covers("list_nodes")
async def test_nodes_without_a_cluster(api: Api) -> None:
    """`tests/e2e/test_cluster_operation.py` has one."""
    assert await api.expect_ok("list_nodes") == {"is_cluster": False, "nodes": []}
    for name in ("drain_node", "evict_node"):
        assert "it is the only node" in await api.expect_error(409, name, node="n")
    assert not api.server.manager.stopping.is_set()
    await api.expect_other_server("list_nodes")


@covers("control", "retire_client")
async def test_leaving_workspaces(api: Api) -> None:
    await api.expect_error(400, "retire_client", client_id="nobody")
    await api.expect_error(400, "control", {"command": "dance"})
    await api.expect_error(409, "control", {"command": "replace"})
    assert len(api.server.manager.handles) == 1
    await api.expect_ok("retire_client")
    await until(lambda: not api.server.manager.handles)
    await api.expect_error(
        409, "create_workspace", {"path": api.server.directory.project(), "client_id": api.client.client_id}
    )
    await api.expect_ok("control", {"command": "stop"})
    assert api.server.over is not None
    await asyncio.wait_for(asyncio.shield(api.server.over), 20)


@covers("list_workspaces", "create_workspace", "get_workspace", "leave_workspace")
async def test_workspaces(api: Api) -> None:
    path = api.server.directory.project("second")
    await api.expect_error(400, "create_workspace", {"path": path, "client_id": "nobody"})
    assert [item["path"] for item in await api.expect_ok("list_workspaces")] == [api.server.directory.project()]
    made = await api.expect_ok("create_workspace", {"path": path, "client_id": UNKNOWN_CLIENT})
    assert (await api.expect_ok("get_workspace", id=made["id"]))["path"] == path
    assert len(await api.expect_ok("list_workspaces")) == 2
    await api.expect_unknown_workspace("get_workspace")
    await api.expect_error(400, "leave_workspace", id=made["id"])
    await api.expect_ok("leave_workspace", query={"client_id": api.client.client_id}, id=made["id"])
    await api.expect_ok("leave_workspace", query={"client_id": UNKNOWN_CLIENT}, id="nowhere")
    assert len(await api.expect_ok("list_workspaces")) == 2, "who has no claim takes none away"
    await api.expect_ok("leave_workspace", query={"client_id": UNKNOWN_CLIENT}, id=made["id"])
    await until(lambda: len(api.server.manager.handles) == 1)
    await api.expect_other_server("list_workspaces")


@covers("set_current_session", "snapshot", "read_log", "stats", "get_session")
async def test_viewed_sessions(api: Api) -> None:
    session = await api.approvals.session()
    mine = {"client_id": api.client.client_id}
    assert "no open stream" in await api.expect_error(409, "set_current_session", {"session_id": session}, mine)
    path = f"/v1/workspaces/{api.workspace}/events"
    stream = await RawStream.open(api.server.address, f"{path}?since=0&client_id={api.client.client_id}")
    await api.expect_ok("set_current_session", {"session_id": session}, mine)
    assert (await api.expect_ok("get_session", sid=session))["attached_clients"] == 1
    stream.close()
    assert "no such session" in await api.expect_error(400, "get_session", sid="nothing")
    run = await api.approvals.call_tools(session)
    await api.approvals.events_until_end(run)
    snapshot = await api.expect_ok("snapshot", query={"session_id": session})
    assert [item["id"] for item in snapshot["sessions"]] == [session]
    assert snapshot["cursor"] == await api.last_event()
    page = await api.expect_ok("read_log")
    assert [page["events"][-1]["number"], page["more"]] == [snapshot["cursor"], False]
    assert "limit" in await api.expect_error(400, "read_log", query={"limit": 0})
    assert (await api.expect_ok("stats"))["runs"] == {"completed": 1}
    await api.expect_error(400, "stats", query={"zone": "x"})
    await api.expect_unknown_workspace("snapshot")


@covers("create_session", "put_session", "delete_session", "list_sessions", "agent_session")
async def test_sessions(api: Api) -> None:
    made = await api.expect_ok("create_session", {"title": " of \n two  words "})
    assert made["title"] == "of two words"
    await api.expect_error(400, "create_session", b'{"title":"\\ud800"}')
    assert [item["id"] for item in await api.expect_ok("list_sessions")] == [made["id"]]
    await api.expect_unknown_workspace("list_sessions")
    changed = await api.expect_ok("put_session", {"title": "other"}, sid=made["id"])
    assert (changed["title"], (await api.expect_ok("agent_session", sid=made["id"]))["title"]) == ("other", "other")
    before = await api.last_event()
    await api.expect_error(400, "put_session", {"title": "third"}, sid="nothing")
    await api.expect_error(400, "agent_session", sid="nothing")
    await api.expect_error(400, "delete_session", sid="nothing")
    assert await api.last_event() == before
    await api.expect_ok("delete_session", sid=made["id"])
    assert await api.expect_ok("list_sessions") == []
    await api.expect_error(400, "agent_session", sid=made["id"])


@covers("list_messages", "list_user_messages", "list_all_user_messages", "list_history")
async def test_conversations(api: Api) -> None:
    session = await api.approvals.session()
    for text in ("one", "two"):
        calls = ("write", {"file_path": f"{text}.txt", "content": text})
        run = await api.approvals.call_tools(session, calls)
        await api.approvals.grant((await api.approvals.pending_permissions())[0])
        await api.approvals.events_until_end(run)
    roles = [item["role"] for item in await api.expect_ok("list_messages", sid=session)]
    assert roles == ["user", "assistant", "tool", "assistant"] * 2
    for prompts in (
        await api.expect_ok("list_user_messages", sid=session),
        await api.expect_ok("list_all_user_messages"),
    ):
        texts = [json.dumps(item["parts"]) for item in prompts]
        assert ["two.txt" in text for text in texts] == [True, False], "the newest first"
    versions = await api.expect_ok("list_history", sid=session)
    found = sorted((os.path.basename(item["path"]), item["version"], item["content"]) for item in versions)
    assert found == [("one.txt", 0, ""), ("one.txt", 1, "one"), ("two.txt", 0, ""), ("two.txt", 1, "two")]
    assert [item["version"] for item in versions] == [0, 0, 1, 1]
    for name in ("list_messages", "list_user_messages", "list_history"):
        assert await api.expect_ok(name, sid="nothing") == []
        await api.expect_unknown_workspace(name, sid=session)
    await api.expect_unknown_workspace("list_all_user_messages")


@covers("list_read_files", "mark_read", "last_read")
async def test_files_read(api: Api) -> None:
    session = await api.approvals.session()
    path = os.path.join(api.server.directory.project(), "a.txt")
    asked = {"session_id": session, "path": "a.txt"}
    assert await api.expect_ok("last_read", query=asked) == "0001-01-01T00:00:00Z"
    await api.expect_ok("mark_read", asked)
    assert await api.expect_ok("list_read_files", sid=session) == [path]
    assert (await api.expect_ok("last_read", query={**asked, "path": path})).startswith("20")
    await api.expect_error(400, "mark_read", {**asked, "session_id": "nothing"})
    await api.expect_error(400, "last_read", query={"session_id": session})
    await api.expect_unknown_workspace("list_read_files", sid=session)
    assert await api.expect_ok("list_read_files", sid="nothing") == []


@covers("agent_info", "send_prompt", "init_agent", "update_agent", "default_small_model", "events")
async def test_prompts(api: Api) -> None:
    info = await api.expect_ok("agent_info")
    assert (info["is_ready"], info["is_busy"]) == (True, False)
    for name in ("init_agent", "update_agent"):
        await api.expect_ok(name)
        await api.expect_unknown_workspace(name)
    assert (await api.expect_ok("default_small_model"))["model"] == info["model"]["id"]
    await api.expect_unknown_workspace("default_small_model")
    await api.expect_unknown_workspace("agent_info")
    session = await api.approvals.session()
    before = await api.last_event()
    await api.expect_error(400, "send_prompt", {"session_id": session, "prompt": " "})
    await api.expect_error(400, "send_prompt", {"session_id": "nothing", "prompt": "hi"})
    assert await api.last_event() == before
    sent = await api.expect_ok("send_prompt", {"session_id": session, "prompt": "[]", "run_id": "r1"})
    assert (sent["run_id"], sent["session_id"]) == ("r1", session)
    again = await api.expect_ok("send_prompt", {"session_id": session, "prompt": "[]", "run_id": "r1"})
    assert again["run_id"] == "r1"
    await api.expect_error(409, "send_prompt", {"session_id": session, "prompt": "other", "run_id": "r1"})
    raw = await RawStream.open(api.server.address, f"/v1/workspaces/{api.workspace}/events?since={before}")
    end = await raw.until(lambda item: b'"run_complete"' in item.data)
    assert json.loads(end.data)["payload"]["payload"]["run_id"] == "r1"
    raw.close()
    api.done.add("events")
    await api.expect_error(400, "events", query={"since": "x"})
    assert len(await api.client.list_runs(api.workspace)) == 1


@covers("cancel_session", "count_queued", "list_queued", "clear_queue", "list_runs", "get_run", "patch_run")
async def test_the_queue(api: Api) -> None:
    session = await api.approvals.session()
    first = await api.approvals.bash(session, "held")
    await api.approvals.pending_permissions()
    for name in ("a", "b", "c"):
        await api.expect_ok("send_prompt", {"session_id": session, "prompt": f'["{name}"]', "run_id": name})
    assert await api.expect_ok("count_queued", sid=session) == 3
    moved = await api.expect_ok("patch_run", {"position": 0}, run_id="c")
    assert (moved["run_id"], moved["state"]) == ("c", "waiting")
    assert await api.expect_ok("list_queued", sid=session) == ['["c"]', '["a"]', '["b"]']
    await api.expect_error(409, "patch_run", {"position": 0}, run_id=first.run_id)
    await api.expect_error(400, "patch_run", {}, run_id="a")
    assert [run["run_id"] for run in await api.expect_ok("list_runs", query={"state": "waiting"})] == ["c", "b", "a"]
    await api.expect_error(400, "list_runs", query={"limit": "-1"})
    assert (await api.expect_ok("get_run", run_id="a"))["state"] == "waiting"
    await api.expect_error(404, "get_run", run_id="nothing")
    for name in ("cancel_session", "clear_queue", "count_queued", "list_queued"):
        await api.expect_unknown_workspace(name, sid=session)
    assert sorted((await api.expect_ok("clear_queue", sid=session))["cancelled"]) == ["a", "b", "c"]
    assert await api.expect_ok("count_queued", sid=session) == 0
    assert (await api.expect_ok("cancel_session", sid=session))["cancelled"] == [first.run_id]
    await api.approvals.events_until_end(first)
    assert {run.outcome for run in await api.client.list_runs(api.workspace)} == {"cancelled"}
    assert await api.expect_ok("list_queued", sid="nothing") == []


@covers("cancel_run", "summarize")
async def test_run_cancellation(api: Api) -> None:
    session = await api.approvals.session()
    run = await api.approvals.bash(session, "held")
    await api.approvals.pending_permissions()
    await api.expect_error(404, "cancel_run", run_id="nothing")
    asked = await api.expect_ok("cancel_run", run_id=run.run_id)
    assert (asked["run_id"], asked["cancel_requested"]) == (run.run_id, True)
    await api.approvals.events_until_end(run)
    assert (await api.client.get_run(api.workspace, RunId(run.run_id))).outcome == "cancelled"
    await api.expect_error(400, "summarize", sid="nothing")
    await api.approvals.events_until_end(await api.approvals.call_tools(session))
    await api.expect_ok("summarize", sid=session)
    found = await api.client.get_session(api.workspace, SessionId(session))
    assert found.summary_message_id
