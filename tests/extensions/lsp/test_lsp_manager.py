"""A scripted language server behind the real Holdfast server: its results and its misbehaviour."""

import asyncio
import json
from pathlib import Path

import pytest

from extensions.lsp.lsp_workspace import LspWorkspace, edit, lsp_workspace, view, write
from holdfast.client.errors import ServerProblem
from holdfast.domain.events import HelloEvent, LspEvent
from holdfast.domain.extensions import NEVER, LspState
from holdfast.domain.ids import SessionId
from holdfast.extensions.lsp import server_state_machine
from holdfast.extensions.lsp.diagnostics_wait import WaitLimits
from holdfast.testing.gates import until
from server.helpers import RawStream, read_until

SHORT = WaitLimits(0.5, 0.2, 0.05)
"""For misbehaving servers, where the outcome is known."""


async def start_session(lsp: LspWorkspace, text: str = "one\n") -> SessionId:
    """Return a session that has read `a.zz` with a ready server."""
    (lsp.project / "a.zz").write_text(text)
    session = await lsp.one.session()
    await lsp.call_tool(view("a.zz"), session)
    await lsp.wait_for_server_state(LspState.READY)
    return session


async def test_error_is_reported_by_edit_that_causes_it_until_fixed() -> None:
    async with lsp_workspace() as lsp:
        session = await start_session(lsp)
        bad = await lsp.call_tool(edit("a.zz", "one", "😀 BAD and ODD"), session)
        assert bad.splitlines()[1:] == [
            "<file_diagnostics>",
            "error a.zz:1:3 BAD is here [ours bad]",
            "warning a.zz:1:11 ODD is here [ours odd]",
            "</file_diagnostics>",
            "(file: 1 error, 1 warning)",
        ]
        seen = await lsp.call_tool(view("a.zz"), session)
        assert "error a.zz:1:3 BAD is here" in seen
        elsewhere = await lsp.call_tool(write("b.zz", "fine\n"), session)
        assert elsewhere.splitlines()[1:] == [
            "<project_diagnostics>",
            "error a.zz:1:3 BAD is here [ours bad]",
            "</project_diagnostics>",
            "(project: 1 error)",
        ]
        good = await lsp.call_tool(edit("a.zz", "BAD and ODD", "well"), session)
        assert len(good.splitlines()) == 1
        many = ("multiedit", {"file_path": "a.zz", "edits": [{"old_string": "well", "new_string": "BAD\n" * 12}]})
        cut = await lsp.call_tool(many, session)
        assert cut.count("BAD is here") == 10
        assert "(2 more)" in cut
        assert "(file: 12 errors)" in cut


async def test_order_of_messages_to_server() -> None:
    async with lsp_workspace() as lsp:
        session = await start_session(lsp)
        for word in ("two", "three"):
            await lsp.call_tool(write("a.zz", f"{word}\n"), session)
        output = [message for message in lsp.received() if message.get("method", "").startswith("textDocument/did")]
        uri = (lsp.project / "a.zz").as_uri()
        assert all(message["params"]["textDocument"]["uri"] == uri for message in output)
        opened, changed, saved, *rest = output
        assert opened["params"]["textDocument"] | {"uri": ""} == {
            "uri": "", "languageId": "zz", "version": 1, "text": "one\n",
        }  # fmt: skip
        assert changed["params"]["textDocument"]["version"] == 2
        assert changed["params"]["contentChanges"] == [{"text": "two\n"}]
        assert saved["params"]["text"] == "two\n"
        assert [message["method"].rpartition("/")[2] for message in rest] == ["didChange", "didSave"]
        first, second = lsp.received()[:2]
        assert (first["method"], second["method"]) == ("initialize", "initialized")
        assert first["params"]["processId"] is None
        assert first["params"]["rootUri"] == lsp.project.as_uri()


async def test_requests_of_server_are_answered() -> None:
    async with lsp_workspace() as lsp:
        await lsp.configure_server(options={"our": {"part": {"x": 1}}}, init_options={"fast": True})
        await start_session(lsp)
        await until(lambda: sum("method" not in message for message in lsp.received()) == 3)
        answers = {message["id"]: message for message in lsp.received() if "method" not in message}
        assert answers[902]["result"] is None
        assert answers[903]["result"] == [{"x": 1}]
        assert answers[904]["error"]["code"] == -32601
        assert lsp.received("initialize")[0]["params"]["initializationOptions"] == {"fast": True}
        settings = lsp.received("workspace/didChangeConfiguration")[0]["params"]["settings"]
        assert settings == {"our": {"part": {"x": 1}}}


@pytest.mark.parametrize("start", ["pull", "late-pull", "utf-8"])
async def test_other_diagnostic_modes(start: str) -> None:
    """Pull diagnostics, pull diagnostics registered late, and UTF-8 positions."""
    async with lsp_workspace() as lsp:
        lsp.start(start)
        session = await start_session(lsp)
        bad = await lsp.call_tool(edit("a.zz", "one", "é😀 BAD"), session)
        assert "error a.zz:1:4 BAD is here [ours bad]" in bad
        good = await lsp.call_tool(edit("a.zz", "BAD", "good"), session)
        assert "BAD" not in good
        assert bool(lsp.received("textDocument/diagnostic")) == ("pull" in start)


async def test_states_and_counts_are_published() -> None:
    async with lsp_workspace() as lsp:
        one = lsp.one
        path = f"/v1/workspaces/{one.workspace}/events?client_id={one.client.client_id}"
        stock = await RawStream.open(one.server.address, path)
        async with one.client.events(one.workspace, since=0) as events:
            await read_until(events, lambda item: isinstance(item.event, HelloEvent))
            session = await start_session(lsp)
            await lsp.call_tool(edit("a.zz", "one", "BAD ODD"), session)
            published = await read_until(
                events,
                lambda item: isinstance(item.event, LspEvent) and item.event.change.object.diagnostic_count > 0,
            )
        notices = [item.event.change.object for item in published if isinstance(item.event, LspEvent)]
        assert [(notice.type, notice.state) for notice in notices] == [
            ("state_changed", LspState.STARTING),
            ("state_changed", LspState.READY),
            ("diagnostics_changed", LspState.READY),
        ]
        assert all(item.number is None for item in published if isinstance(item.event, LspEvent))
        raw = await stock.until(lambda event: b"diagnostics_changed" in event.data)
        assert json.loads(raw.data) == {
            "type": "lsp_event",
            "payload": {
                "type": "updated",
                "payload": {"type": "diagnostics_changed", "name": "ours", "state": 2, "diagnostic_count": 2},
            },
        }
        stock.close()


async def test_the_routes() -> None:
    async with lsp_workspace() as lsp:
        client, workspace = lsp.one.client, lsp.one.workspace
        info = (await lsp.infos())["ours"]
        assert (info.state, info.connected_at, info.error) == (LspState.UNSTARTED, NEVER, "")
        (lsp.project / "a.zz").write_text("BAD\n")
        await client.start_lsps(workspace, "a.zz")
        info = await lsp.wait_for_server_state(LspState.READY)
        assert info.connected_at > "2026"
        async with asyncio.timeout(20):
            while not (found := await client.lsp_diagnostics(workspace, "ours")):
                pass
        (diagnostics,) = found.values()
        assert list(found) == [(lsp.project / "a.zz").as_uri()]
        assert diagnostics[0]["severity"] == 1
        assert diagnostics[0]["range"]["start"] == {"line": 0, "character": 0}
        with pytest.raises(ServerProblem) as caught:
            await client.lsp_diagnostics(workspace, "nobody")
        assert caught.value.status == 404
        await client.stop_lsps(workspace)
        assert (await lsp.infos())["ours"].state == LspState.STOPPED
        assert await client.lsp_diagnostics(workspace, "ours") == {}
        assert (await client.restart_lsps(workspace, "ours")).names == ("ours",)
        await lsp.wait_for_server_state(LspState.READY)
        with pytest.raises(ServerProblem) as caught:
            await client.restart_lsps(workspace, "nobody")
        assert caught.value.status == 404
        assert "ready" in (await client.lsp_log(workspace, "ours")).text
        outside = Path(lsp.one.server.directory.root) / "b.zz"
        outside.write_text("x")
        await client.start_lsps(workspace, str(outside))


@pytest.mark.parametrize("start", ["pull", "late-pull"])
async def test_file_opened_by_client_is_diagnosed(start: str) -> None:
    """Including pull servers: their counts exist before any change."""
    async with lsp_workspace() as lsp:
        lsp.start(start)
        (lsp.project / "a.zz").write_text("BAD\n")
        await lsp.one.client.start_lsps(lsp.one.workspace, "a.zz")
        async with asyncio.timeout(30):
            while (await lsp.infos())["ours"].diagnostic_count != 1:
                pass


@pytest.fixture
def no_restart(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prevent a server that ended from restarting by itself."""
    monkeypatch.setattr(server_state_machine, "FIRST_DELAY", 1_000.0)


@pytest.mark.usefixtures("no_restart")
async def test_crash_is_reported_with_reason() -> None:
    """The edit that kills it returns at once with the reason."""
    async with lsp_workspace() as lsp:
        session = await start_session(lsp)
        lsp.set_behaviour("crash")
        output = await lsp.call_tool(edit("a.zz", "one", "BAD"), session)
        assert "not answered" not in output
        info = await lsp.wait_for_server_state(LspState.ERROR)
        assert info.error == "It ended with exit code 3. Its last output: the disk ate my homework"
        published = await lsp.call_tool(("lsp_diagnostics", {}), session)
        assert "(ours does not run: It ended with exit code 3." in published
        lsp.set_behaviour()
        assert await lsp.call_tool(("lsp_restart", {"name": "ours"}), session) == "Restarting ours."
        assert "BAD is here" in await lsp.call_tool(("lsp_diagnostics", {"file_path": "a.zz"}), session)


async def test_crashed_server_restarts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_state_machine, "FIRST_DELAY", 0.01)
    async with lsp_workspace() as lsp:
        session = await start_session(lsp)
        lsp.set_behaviour("crash")
        await lsp.call_tool(edit("a.zz", "one", "BAD"), session)
        lsp.set_behaviour()
        await until(lambda: len(lsp.received("initialized")) > 1)
        await lsp.wait_for_server_state(LspState.READY)
        assert "BAD is here" in await lsp.call_tool(("lsp_diagnostics", {"file_path": "a.zz"}), session)


@pytest.mark.usefixtures("no_restart")
async def test_failed_start_is_reported_with_reason() -> None:
    async with lsp_workspace() as lsp:
        lsp.start("crash")
        (lsp.project / "a.zz").write_text("one\n")
        session = await lsp.one.session()
        await lsp.call_tool(view("a.zz"), session)
        info = await lsp.wait_for_server_state(LspState.ERROR)
        assert info.error == "It ended with exit code 7. Its last output: cannot find my settings"
        (failed,) = await lsp.do(("lsp_references", {"symbol": "one"}), session=session)
        assert failed.is_error
        assert "cannot find my settings" in failed.content
        await lsp.configure_server(command="no-such-program-here")
        await lsp.call_tool(view("a.zz"), session)
        info = await lsp.wait_for_server_state(LspState.ERROR)
        assert info.error == "no-such-program-here is not installed, or not on the PATH: install it, or set command."
        health = await lsp.one.client.doctor(lsp.one.workspace, "language servers")
        (finding,) = health.findings
        assert finding.severity == "warning"
        assert "lsp.ours" in finding.what
        assert finding.file.endswith("config.json")


async def test_missing_program_is_detected_before_first_file() -> None:
    async with lsp_workspace() as lsp:
        client, workspace = lsp.one.client, lsp.one.workspace
        await client.config_set(workspace, "lsp.missing", {"command": "no-such-program", "filetypes": ["yy"]}, scope=1)
        await client.config_set(workspace, "lsp.off", {"command": "neither-this", "disabled": True}, scope=1)
        (finding,) = (await client.doctor(workspace, "language servers")).findings
        assert finding.what.startswith("lsp.missing could not be started: no-such-program is not installed")
        assert (finding.severity, finding.line > 0) == ("warning", True)
        assert (await lsp.infos())["missing"].state == LspState.UNSTARTED


@pytest.mark.parametrize("behaviour", ["hang", "silent", "busy", "deaf"])
async def test_unresponsive_server_does_not_delay_edit(behaviour: str) -> None:
    """The edit returns in each case and names the server that did not answer."""
    async with lsp_workspace() as lsp:
        lsp.start(*(["hang"] if behaviour == "hang" else ["pull"] if behaviour == "deaf" else []))
        lsp.set_wait_limits(SHORT)
        (lsp.project / "a.zz").write_text("one\n")
        session = await lsp.one.session()
        await lsp.call_tool(view("a.zz"), session)
        await lsp.wait_for_server_state(LspState.STARTING if behaviour == "hang" else LspState.READY)
        lsp.set_behaviour(behaviour)
        output = await lsp.call_tool(edit("a.zz", "one", "BAD"), session)
        assert output.splitlines()[1:] == ["(ours has not answered yet: call lsp_diagnostics to check again.)"]


async def test_flood_of_diagnostics_is_bounded() -> None:
    async with lsp_workspace() as lsp:
        session = await start_session(lsp)
        lsp.set_behaviour("flood")
        output = await lsp.call_tool(edit("a.zz", "one", "BAD"), session)
        assert "error a.zz:1:1 BAD is here [ours bad]" in output
        assert len(output) < 1_000
        assert (await lsp.infos())["ours"].diagnostic_count == 3 * 500 + 1
        log = (await lsp.one.client.lsp_log(lsp.one.workspace, "ours")).text
        assert len(log.splitlines()) == 500
        published = await lsp.call_tool(("lsp_diagnostics", {}), session)
        assert len(published.splitlines()) < 20


@pytest.mark.usefixtures("no_restart")
async def test_server_with_invalid_messages_is_stopped() -> None:
    async with lsp_workspace() as lsp:
        session = await start_session(lsp)
        lsp.set_behaviour("garbage")
        await lsp.call_tool(edit("a.zz", "one", "BAD"), session)
        info = await lsp.wait_for_server_state(LspState.ERROR)
        assert info.error.startswith("It sent output that is not a message: 'Segmentation fault, but politely")


async def test_diagnostics_of_older_version_are_not_the_answer() -> None:
    async with lsp_workspace() as lsp:
        session = await start_session(lsp)
        lsp.set_wait_limits(SHORT)
        lsp.set_behaviour("old")
        output = await lsp.call_tool(edit("a.zz", "one", "BAD"), session)
        assert "has not answered yet" in output


async def test_files_changed_by_commands_are_sent_to_server() -> None:
    """A command changes an open file and creates, changes and removes others: sent before the next request to the
    server.
    """
    async with lsp_workspace() as lsp:
        session = await start_session(lsp, "ODD\n")
        await lsp.call_tool(("lsp_diagnostics", {"file_path": "a.zz"}), session)
        (lsp.project / "a.zz").write_text("changed BAD\n")
        (lsp.project / "new.zz").write_text("x\n")
        (lsp.project / "other.txt").write_text("x\n")
        published = await lsp.call_tool(("lsp_diagnostics", {"file_path": "a.zz"}), session)
        assert "error a.zz:1:9 BAD is here" in published
        (lsp.project / "new.zz").unlink()
        await lsp.call_tool(("lsp_diagnostics", {}), session)
        # A notification has no response: the record of the server shows its arrival.
        await until(lambda: len(lsp.received("workspace/didChangeWatchedFiles")) == 2)
        output = [message["params"]["changes"] for message in lsp.received("workspace/didChangeWatchedFiles")]
        names = [[(item["uri"].rpartition("/")[2], item["type"]) for item in items] for items in output]
        assert names == [[("a.zz", 2), ("new.zz", 1)], [("new.zz", 3)]]


async def test_settings_enable_and_disable_servers() -> None:
    async with lsp_workspace() as lsp:
        session = await start_session(lsp)
        await lsp.configure_server(disabled=True)
        assert (await lsp.infos())["ours"].state == LspState.DISABLED
        assert len((await lsp.call_tool(edit("a.zz", "one", "BAD"), session)).splitlines()) == 1
        (refused,) = await lsp.do(("lsp_diagnostics", {"file_path": "a.zz"}), session=session)
        assert refused.is_error
        await lsp.configure_server()
        assert "BAD is here" in await lsp.call_tool(edit("a.zz", "BAD", "now BAD"), session)
        await lsp.one.client.config_remove(lsp.one.workspace, "lsp", scope=1)
        assert await lsp.infos() == {}


async def test_system_prompt_mentions_language_servers_if_any() -> None:
    """And have the tools; a sub-agent has the read-only ones."""
    async with lsp_workspace(is_set_up=False) as lsp:
        session = await start_session_without_server(lsp)
        asked = lsp.one.model.requests[-1]
        assert not [tool.name for tool in asked.tools if tool.name.startswith("lsp_")]
        assert "Language servers" not in asked.system
        await lsp.configure_server()
        facts = await lsp.call_tool(("holdfast_info", {}), session)
        assert "ours: unstarted" in facts
        asked = lsp.one.model.requests[-1]
        assert [tool.name for tool in asked.tools if tool.name.startswith("lsp_")] == [
            "lsp_call_hierarchy", "lsp_definition", "lsp_diagnostics", "lsp_references", "lsp_rename",
            "lsp_replace_symbol", "lsp_restart", "lsp_symbols",
        ]  # fmt: skip
        assert "Language servers know the code here." in asked.system
        await lsp.call_tool(("agent", {"prompt": "look"}), session)
        helpers = [{tool.name for tool in request.tools} for request in lsp.one.model.requests]
        assert any("lsp_symbols" in names and "lsp_rename" not in names for names in helpers)
        await lsp.one.client.config_set(lsp.one.workspace, "options.disabled_tools", ["lsp_rename"], scope=1)
        await lsp.call_tool(view("a.zz"), session)
        assert "lsp_rename" not in {tool.name for tool in lsp.one.model.requests[-1].tools}


async def start_session_without_server(lsp: LspWorkspace) -> SessionId:
    (lsp.project / "a.zz").write_text("one\n")
    session = await lsp.one.session()
    await lsp.call_tool(view("a.zz"), session)
    return session


async def test_a_cancel_does_not_wait_for_a_language_server() -> None:
    """R5: the change was made and stored; its diagnostics are not awaited."""
    async with lsp_workspace() as lsp:
        session = await start_session(lsp)
        lsp.set_behaviour("silent")
        run = await lsp.one.call_tools(session, edit("a.zz", "one", "BAD"), edit("a.zz", "BAD", "two"))
        await until(lambda: lsp.received("textDocument/didChange"))
        await lsp.one.client.cancel_run(lsp.one.workspace, run.run_id)
        assert (await lsp.one.run_end(run)).cancelled
        assert (lsp.project / "a.zz").read_text() == "BAD\n"
        versions = await lsp.one.client.list_history(lsp.one.workspace, session)
        assert [version.content for version in versions] == ["one\n", "BAD\n"]
        results = (await lsp.one.results(session))[-2:]
        assert all(result.is_error for result in results)
