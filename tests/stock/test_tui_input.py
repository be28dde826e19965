"""Stories of tools and of dialogs, played by a client that is as strict as a stock one."""

import base64
import json
from pathlib import Path
from typing import Any

from stock.client import StockClient, new_session
from stock.recorded_story import Story
from stock.run import CommandResult, StockRun
from stock.tui import StockTui

FINISHED = "agent_event created agent_finished"


def check(story: str, **clients: StockClient) -> None:
    for name, client in clients.items():
        Story(story).check(name, client.log, client.screen.labels)


def use(tool: str, **arguments: object) -> str:
    return f"use {tool} {json.dumps(arguments)}"


async def results(socket: Path, project: Path) -> list[tuple[str, dict[str, Any]]]:
    """Return the results of the last session as a screen loads them, with the data it displays."""
    tui = StockTui(socket, project)
    await tui.start(is_continued=True)
    data = [item["parts"][0]["data"] for item in tui.screen.messages.values() if item["role"] == "tool"]
    assert not any(item["is_error"] for item in data), data
    await tui.leave()
    return [(item["content"], json.loads(item["metadata"])) for item in data]


async def test_run_tools(socket: Path, project: Path, tmp_path: Path) -> None:
    """A file is read, changed with its versions published, and counted by a command that fails."""
    (tmp_path / "data" / "config.json").write_text('{"permissions": {"allowed_tools": ["edit", "bash"]}}')
    file = project / "a.txt"
    file.write_text("one\ntwo\nthree\n")
    first, second, third = (StockRun(socket, project) for _ in range(3))
    prompts = (
        use("view", file_path="a.txt"),
        use("edit", file_path="a.txt", old_string="two", new_string="TWO"),
        use("bash", description="count", command="wc -l a.txt; exit 3"),
    )
    for run, prompt, continued in zip((first, second, third), prompts, (False, True, True), strict=True):
        assert await run.run(prompt, is_continued=continued) == CommandResult(0, f"echo: {prompt}\n")
    (text, viewed), (_, edited), (counted, ran) = await results(socket, project)
    assert text == "<file>\n     1|one\n     2|two\n     3|three\n</file>"
    assert viewed == {"file_path": str(file), "content": "one\ntwo\nthree"}
    assert file.read_text() == "one\nTWO\nthree\n"
    assert (edited["additions"], edited["removals"]) == (1, 1)
    assert (edited["old_content"], edited["new_content"]) == ("one\ntwo\nthree\n", "one\nTWO\nthree\n")
    assert counted == f"3 a.txt\nExit code 3\n\n<cwd>{project}</cwd>"
    assert ran.keys() == {"start_time", "end_time", "output", "description", "working_directory"}
    check("run-tools", A=first, B=second, C=third)


async def test_tui_dialogs(socket: Path, project: Path) -> None:
    """Shell mode, yolo, a summary, an option, a model, a new session, rename, switch, delete, a mentioned file."""
    tui = StockTui(socket, project)
    await tui.start()
    await tui.send("hello there")
    await tui.see(FINISHED)
    first = tui.session_id
    await _shell(tui)
    await _settings(tui)

    await _nothing(tui)
    await tui.send("second session")
    await tui.see(FINISHED)
    second = tui.session_id
    sessions = await tui.call("GET", "/sessions", into="sessions")
    assert {item["id"] for item in sessions} == {first, second}
    renamed = await tui.call("PUT", f"/sessions/{second}", {**tui.screen.session, "title": "two"}, into="session")
    assert renamed["title"] == "two"
    await tui.load(first)
    await tui.call("GET", "/sessions", into="sessions")
    await tui.call("GET", f"/agent/sessions/{second}", into="session")
    await tui.call("DELETE", f"/sessions/{second}")
    await tui.see("elsewhere: session deleted")
    await _nothing(tui)
    await _mention(tui, project)
    await tui.leave()
    check("tui-dialogs", A=tui)


async def _shell(tui: StockTui) -> None:
    asked = {"session_id": "", "command": "echo shell-says-hi", "term_width": 103}
    output = await tui.call("POST", f"/agent/sessions/{tui.session_id}/shell", asked, into="shell")
    assert output == {"output": "shell-says-hi\n", "exit_code": 0}
    await tui.see("message created user")
    parts = [part for item in tui.screen.messages.values() for part in item["parts"] or ()]
    typed = [part["data"] for part in parts if part["type"] == "shell_command"]
    assert typed == [{"command": "echo shell-says-hi", **output}]


async def _settings(tui: StockTui) -> None:
    """Yolo on and off, a summary, an option, a model."""
    for skip in (True, False):
        await tui.call("POST", "/permissions/skip", {"skip": skip})
        await tui.see("config_changed updated")
        assert await tui.call("GET", "/permissions/skip", into="skip") == {"skip": skip}
    await tui.call("POST", f"/agent/sessions/{tui.session_id}/summarize")
    await tui.call("POST", "/config/set", {"scope": 0, "key": "options.tui.transparent", "value": True})
    await tui.see("config_changed updated")
    chosen = {"model": "scripted", "provider": "demo", "max_tokens": 4096}
    await tui.call("POST", "/config/model", {"scope": 0, "model_type": "large", "model": chosen})
    await tui.see("config_changed updated")
    changed = await tui.ask("GET", f"/v1/workspaces/{tui.workspace['id']}", into="workspace")
    assert changed["config"]["options"]["tui"]["transparent"]
    await tui.call("POST", "/agent/update")


async def _nothing(tui: StockTui) -> None:
    """Show no session: the next prompt creates one."""
    tui.session_id = tui.screen.shown = ""
    await tui.call("POST", f"/current-session?client_id={tui.id}", {"session_id": ""})
    await tui.call("POST", "/lsps/stop")
    await tui.call("GET", "/messages/user", into="messages")


async def _mention(tui: StockTui, project: Path) -> None:
    (project / "notes.txt").write_text("data\n")
    made = await tui.call("POST", "/sessions", new_session("New Session"), into="session")
    session = tui.session_id = tui.screen.shown = made["id"]
    content = base64.b64encode(b"data\n").decode()
    file = {"content": content, "file_path": "notes.txt", "file_name": "notes.txt", "mime_type": "text/plain"}
    body = {"session_id": session, "prompt": "read notes.txt", "attachments": [file]}
    await tui.call("POST", "/agent", body)
    await tui.call("POST", "/filetracker/read", {"session_id": session, "path": str(project / "notes.txt")})
    await tui.call("POST", "/lsps/start", {"path": str(project / "notes.txt")})
    await tui.see(FINISHED)
    read = await tui.call("GET", f"/sessions/{session}/filetracker/files", into="paths")
    assert read == [str(project / "notes.txt")]
