"""Wire details: requests of stock clients, input they cannot handle, and checks that the strict client detects it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stock.client import RequestFailed
from stock.decode import decode, decode_event
from stock.run import CommandResult, StockRun
from stock.screen import Screen
from stock.servers import HeldModel
from stock.tui import StockTui
from stock.wire import ClientFailure, Pool

FINISHED = "agent_event created agent_finished"
MESSAGE = {
    "parts": [{"type": "text", "data": {"text": "hm"}}], "id": "m", "role": "assistant", "session_id": "s",
    "model": "", "provider": "", "created_at": 1, "updated_at": 1,
}  # fmt: skip


async def test_a_proxy_makes_targets_absolute(socket: Path, project: Path) -> None:
    assert await StockRun(socket, project, has_proxy=True).run("around a corner") == CommandResult(
        0, "echo: around a corner\n"
    )


async def test_the_stream_has_data_lines_and_blank_ones(socket: Path, project: Path) -> None:
    run = StockRun(socket, project)
    await run.run("frames")
    assert run.stream is not None
    raw = bytes(run.stream.raw)
    assert re.fullmatch(rb"\n*(data: \{[^\n]*\}\n\n)+\n*", raw + b"\n"), raw
    events = [json.loads(line.removeprefix(b"data: ")) for line in raw.split(b"\n") if line]
    assert all(set(event) == {"type", "payload"} for event in events)
    assert all(set(event["payload"]) == {"type", "payload"} for event in events)
    ends = [event["payload"]["payload"] for event in events if event["type"] == "run_complete"]
    assert [set(end) for end in ends] == [{"session_id", "run_id", "message_id", "text", "outcome"}]
    # Discovered skills are published when they are found, possibly first.
    question = next(event for event in events if event["type"] == "message")["payload"]["payload"]
    assert question["parts"][-1] == {"type": "finish", "data": {"reason": "stop", "time": 0}}
    assert "is_summary_message" not in question


async def test_headers_precede_events(socket: Path, project: Path) -> None:
    """`start` subscribes in an idle workspace, and continues when it has the headers."""
    tui = StockTui(socket, project)
    await tui.start()
    assert tui.stream is not None
    assert [label for label in tui.screen.labels if label != "skills_event updated"] == []
    await tui.leave()


async def test_tool_call_precedes_result(socket: Path, project: Path) -> None:
    tui = StockTui(socket, project)
    await tui.start()
    await tui.send("look around")
    await tui.see(FINISHED)
    assert not tui.is_busy()
    assert tui.screen.ends() == ["tool_use", "end_turn"]
    assert "message created tool" in tui.screen.labels
    await tui.leave()


async def test_failed_run_fails_its_process_and_releases_every_screen(socket: Path, project: Path) -> None:
    tui, run = StockTui(socket, project), StockRun(socket, project)
    await tui.start()
    assert await run.run("break down") == CommandResult(1, "\n")
    await tui.see(FINISHED)
    assert not tui.is_busy()
    assert tui.screen.ends() == ["error"]
    assert "agent_event created error" in tui.screen.labels
    await tui.leave()


async def test_unknown_session_is_not_404(socket: Path, project: Path) -> None:
    """404 on a route below a workspace makes a stock client create the workspace again."""
    tui = StockTui(socket, project)
    await tui.start()
    calls: list[tuple[str, str, object]] = [
        ("POST", "/agent", {"session_id": "nobody", "prompt": "hello"}),
        ("POST", "/agent", {"session_id": "", "prompt": "hello"}),
        ("POST", "/agent", {"session_id": "nobody", "prompt": ""}),
        ("GET", "/sessions/nobody", None),
        ("GET", "/agent/sessions/nobody", None),
        ("DELETE", "/sessions/nobody", None),
        ("POST", "/agent/sessions/nobody/summarize", None),
    ]
    for method, path, body in calls:
        with pytest.raises(RequestFailed) as refused:
            await tui.call(method, path, body)
        assert refused.value.status == 400, path
    await tui.call("POST", "/agent/sessions/nobody/cancel")
    await tui.call("POST", "/agent/sessions/nobody/prompts/clear")
    assert await tui.call("GET", "/sessions/nobody/messages", into="messages") == []
    await tui.leave()


async def test_retired_client_is_refused(socket: Path, project: Path) -> None:
    run = StockRun(socket, project)
    await run.run("once")
    with pytest.raises(RequestFailed) as refused:
        await run.create()
    assert refused.value.status == 409
    await run.leave()


async def test_last_client_sees_end_of_its_stream(socket: Path, project: Path) -> None:
    """A process that receives a stop retires while its stream is still open."""
    tui = StockTui(socket, project)
    await tui.start()
    await tui.ask("DELETE", f"/v1/clients/{tui.id}")
    await tui.read_stream_end()
    run = StockRun(socket, project)
    assert await run.run("next") == CommandResult(0, "echo: next\n")


async def test_client_without_stream_views_no_session(socket: Path, project: Path) -> None:
    run = StockRun(socket, project)
    await run.prepare()
    with pytest.raises(RequestFailed) as refused:
        await run.call("POST", f"/current-session?client_id={run.id}", {"session_id": ""})
    assert refused.value.status == 409
    await run.leave()


async def test_unknown_paths_return_plain_text(socket: Path) -> None:
    pool = Pool(socket)
    for method, path, status, text in (
        ("GET", "/v1/nowhere", 404, b"404 page not found\n"),
        ("PUT", "/v1/health", 405, b"Method Not Allowed\n"),
    ):
        answer = await pool.ask(method, path)
        assert (answer.status, answer.body) == (status, text)
        assert answer.headers["content-type"].startswith("text/plain")
    await pool.close()


async def test_settings_never_remove_required_fields(socket: Path, project: Path) -> None:
    tui = StockTui(socket, project)
    await tui.start()
    for key in ("options.tui", "options", "providers", "models"):
        await tui.call("POST", "/config/set", {"scope": 1, "key": key, "value": None})
        tui.adopt(await tui.ask("GET", f"/v1/workspaces/{tui.workspace['id']}", into="workspace"))
        await tui.call("POST", "/config/remove", {"scope": 1, "key": key})
    await tui.leave()


async def test_relative_path_is_resolved_against_client_directory(socket: Path, project: Path) -> None:
    body = {"id": "", "path": project.name, "client_id": "0" * 32, "env": [f"PWD={project.parent}"]}
    pool = Pool(socket)
    answer = decode("workspace", (await pool.ask("POST", "/v1/workspaces", body)).json())
    assert answer["path"] == str(project)
    await pool.close()


async def test_client_recovers_after_lost_stream(socket: Path, project: Path, model: HeldModel) -> None:
    tui = StockTui(socket, project)
    await tui.start()
    model.is_held = True
    await tui.send("half of it and the rest")
    await tui.see("message created assistant")
    await model.release_words(3)
    assert tui.stream is not None
    await tui.stream.close()
    await tui.reconnect()
    assert tui.screen.text("assistant") == ["echo: half of"]
    assert tui.is_busy()
    model.release()
    await tui.see(FINISHED)
    assert not tui.is_busy()
    assert tui.screen.text("assistant") == ["echo: half of it and the rest"]
    await tui.leave()


def event(kind: str, change: str, payload: object) -> dict[str, object]:
    return {"type": kind, "payload": {"type": change, "payload": payload}}


@pytest.mark.parametrize(
    "bad",
    [
        event("message", "created", None),
        event("agent_event", "created", None),
        event("agent_event", "created", {"type": "error", "message": None}),
        event("message", "created", {key: value for key, value in MESSAGE.items() if key != "parts"}),
        event("message", "created", {**MESSAGE, "created_at": 1.0}),
        event("message", "created", {**MESSAGE, "parts": [{"type": "hologram", "data": {}}]}),
        event("message", "created", {**MESSAGE, "parts": [{"type": "tool_call", "data": {"input": {}}}]}),
        event("mcp_event", "updated", {"type": "state_changed", "name": "x", "state": "sleeping"}),
        event("hello", "created", {}),
    ],
)
def test_strict_client_rejects_invalid_responses(bad: dict[str, object]) -> None:
    with pytest.raises(ClientFailure):
        decode_event(bad)


@pytest.mark.parametrize(
    "events",
    [
        [event("message", "updated", MESSAGE)],
        [event("message", "created", MESSAGE), event("message", "created", MESSAGE)],
        [event("message", "created", {**MESSAGE, "parts": [{"type": "tool_result", "data": {"tool_call_id": "c"}}]})],
        [
            event("message", "created", {**MESSAGE, "parts": [{"type": "tool_call", "data": {"id": "c"}}]}),
            event("message", "updated", MESSAGE),
        ],
        [event("run_complete", "updated", {"session_id": "s", "message_id": "m"})],
    ],
)
def test_strict_screen_rejects_invalid_events(events: list[dict[str, Any]]) -> None:
    screen = Screen()
    for item in events[:-1]:
        screen.see(item)
    with pytest.raises(ClientFailure):
        screen.see(events[-1])


def test_null_is_no_list_item_and_true_is_no_number() -> None:
    with pytest.raises(ClientFailure):
        decode("messages", [None])
    with pytest.raises(ClientFailure):
        decode("session", {"message_count": True})
    with pytest.raises(ClientFailure):
        decode("mcps", {"x": {"state": 2}})


async def test_null_equals_missing(socket: Path, project: Path) -> None:
    """Go encodes an empty list or map as null; required fields are still required."""
    tui = StockTui(socket, project)
    await tui.start()
    nothing = {"env": None, "channels": None, "skills": None, "config": None}
    body = {"path": str(project), "client_id": tui.id, **nothing}
    assert (await tui.ask("POST", "/v1/workspaces", body, into="workspace"))["id"] == tui.workspace["id"]
    assert not (await tui.call("POST", "/questions/answer", {"responses": None}, into="resolved"))["resolved"]
    choice = {**tui.workspace["config"]["models"]["large"], "provider_options": None}
    await tui.call("POST", "/config/model", {"scope": 1, "model_type": "large", "model": choice})
    for path, wrong in {
        "/mcp/get-prompt": {"client_id": "nobody", "prompt_id": "p", "args": None},
        "/permissions/grant": {"permission": None, "action": "allow"},
        "/config/compact": None,
    }.items():
        with pytest.raises(RequestFailed) as refused:
            await tui.call("POST", path, wrong)
        assert ("There is no MCP server" in str(refused.value)) is path.startswith("/mcp"), refused.value
    await tui.leave()
