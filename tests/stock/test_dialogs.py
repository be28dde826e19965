"""Requests of the terminal UI besides prompts: its dialogs, mentioned files, missing workspaces."""

import base64
from pathlib import Path

import pytest

from stock.client import ChangedWorkspace
from stock.recorded_story import check_shape
from stock.tui import StockTui
from stock.wire import Pool

FINISHED = "agent_event created agent_finished"


async def test_dialogs(socket: Path, project: Path) -> None:
    tui = StockTui(socket, project)
    await tui.start()
    await tui.send("hello")
    await tui.see(FINISHED)

    await tui.call("POST", "/permissions/skip", {"skip": True})
    assert await tui.call("GET", "/permissions/skip", into="skip") == {"skip": True}
    await tui.call("POST", "/config/compact", {"scope": 0, "enabled": True})
    await tui.call("POST", "/config/set", {"scope": 0, "key": "options.tui.transparent", "value": True})
    changed = await tui.ask("GET", f"/v1/workspaces/{tui.workspace['id']}", into="workspace")
    assert changed["config"]["options"]["tui"] == {"compact_mode": True, "transparent": True}
    assert changed["yolo"]
    tui.adopt(changed)

    renamed = {**tui.screen.session, "title": "Another name"}
    await tui.call("PUT", f"/sessions/{tui.session_id}", renamed, into="session")
    while tui.screen.session["title"] != "Another name":
        await tui.see("session updated")
    await tui.call("POST", f"/agent/sessions/{tui.session_id}/summarize")
    assert any(message.get("is_summary_message") for message in await _messages(tui))

    await tui.call("DELETE", f"/sessions/{tui.session_id}")
    await tui.see("session deleted")
    await tui.call("POST", f"/current-session?client_id={tui.id}", {"session_id": ""})
    await tui.call("POST", "/lsps/stop")
    assert await tui.call("GET", "/messages/user", into="messages") == []
    await tui.call("POST", "/project/init")
    await tui.leave()


async def test_project_init_is_offered_once(socket: Path, project: Path) -> None:
    """A refusal is stored: the next start does not prompt again, and every screen reloads the workspace."""
    (project / "main.go").write_text("package main\n")
    tui = StockTui(socket, project)
    await tui.start()
    assert await tui.call("GET", "/project/needs-init", into="needs_init") == {"needs_init": True}
    await tui.call("POST", "/project/init")
    await tui.see("config_changed updated")
    await tui.leave()
    again = StockTui(socket, project)
    await again.start()
    assert await again.call("GET", "/project/needs-init", into="needs_init") == {"needs_init": False}
    await again.leave()


async def test_token_is_hidden_and_workspace_stays_decodable(socket: Path, project: Path) -> None:
    """With a string in place of a number a stock client could decode nothing of the workspace."""
    tui = StockTui(socket, project)
    await tui.start()
    provider = tui.workspace["config"]["models"]["large"]["provider"]
    token = {"access_token": "canary", "refresh_token": "canary", "expires_in": 3600, "expires_at": 1794890155}
    key = {"scope": 0, "provider_id": provider, "kind": "oauth", "api_key": token}
    await tui.call("POST", "/config/provider-key", key)
    changed = await tui.ask("GET", f"/v1/workspaces/{tui.workspace['id']}", into="workspace")
    reported = changed["config"]["providers"][provider]["oauth"]
    assert reported == {**token, "access_token": "set", "refresh_token": "set"}
    await tui.leave()


async def _messages(tui: StockTui) -> list[dict[str, object]]:
    found: list[dict[str, object]] = await tui.call("GET", f"/sessions/{tui.session_id}/messages", into="messages")
    return found


async def test_a_mentioned_file(socket: Path, project: Path) -> None:
    tui = StockTui(socket, project)
    await tui.start()
    await tui.send("hello")
    await tui.see(FINISHED)
    content = base64.b64encode(b"a < b & c\n").decode()
    file = {"content": content, "file_path": "a.txt", "file_name": "a.txt", "mime_type": "text/plain; charset=utf-8"}
    body = {"session_id": tui.session_id, "prompt": "read it", "attachments": [file]}
    await tui.together(
        tui.call("POST", "/agent", body),
        tui.call("POST", "/filetracker/read", {"session_id": tui.session_id, "path": str(project / "a.txt")}),
        tui.call("POST", "/lsps/start", {"path": "a.txt"}),
    )
    await tui.see(FINISHED)
    question = [message for message in tui.screen.messages.values() if message["role"] == "user"][-1]
    binary = [part["data"] for part in question["parts"] if part["type"] == "binary"]
    assert binary == [{"Path": "a.txt", "MIMEType": "text/plain; charset=utf-8", "Data": content}]
    paths = await tui.call("GET", f"/sessions/{tui.session_id}/filetracker/files", into="paths")
    assert paths == [str(project / "a.txt")]
    await tui.leave()


async def test_missing_workspace_is_404(socket: Path, project: Path) -> None:
    tui = StockTui(socket, project)
    await tui.start()
    await tui.leave()
    tui.workspace = {**tui.workspace, "id": "gone"}
    for path in ("", "/agent", "/sessions", "/lsps", "/permissions/skip", "/messages/user"):
        with pytest.raises(ChangedWorkspace):
            await tui.call("GET", path)
    with pytest.raises(ChangedWorkspace):
        await tui.subscribe()
    with pytest.raises(ChangedWorkspace):
        await tui.call("POST", f"/current-session?client_id={tui.id}", {"session_id": "s"})
    assert await tui.call("GET", "/mcp/states", into="mcps") == {}
    await tui.ask("DELETE", f"/v1/workspaces/gone?client_id={tui.id}")
    await tui.leave()


async def test_probes_without_request_are_harmless(socket: Path) -> None:
    """The probe connects and disconnects without a request; the server is unaffected."""
    for _ in range(20):
        tui = StockTui(socket, "/")
        await tui.bootstrap()
    pool = Pool(socket)
    assert (await pool.ask("GET", "/v1/workspaces")).json() == []
    await pool.close()


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        ({"a": "string"}, {}),
        ({"a": "string"}, {"a": "x", "b": 1}),
        ({"a?": "integer"}, {"a": True}),
        ("integer", 1.0),
        (["string"], ["x", None]),
        ({"*": "@skip"}, {"x": {"skip": "no"}}),
        (None, ""),
        ("empty", "{}"),
    ],
)
def test_shapes_are_not_lenient(shape: object, value: object) -> None:
    with pytest.raises(AssertionError):
        check_shape(shape, value, "here")
