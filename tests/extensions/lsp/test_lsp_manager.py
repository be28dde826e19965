"""A language server of ours behind the real Holdfast server: what it says, and what it does when it is bad."""

import asyncio
import json
from pathlib import Path

import pytest

from extensions.lsp.lsp_workspace import LspWorkspace, edit, lsp_workspace, view, write
from holdfast.client.errors import ServerProblem
from holdfast.domain.events import HelloEvent, LspEvent
from holdfast.domain.extensions import NEVER, LspState
from holdfast.domain.ids import SessionId
from holdfast.extensions.lsp import server_lifecycle
from holdfast.extensions.lsp.diagnostics_wait import WaitLimits
from holdfast.testing.gates import until
from server.helpers import RawStream, read_until

SHORT = WaitLimits(0.5, 0.2, 0.05)
"""When a server is bad, and it is known how that ends."""


async def begun(lsp: LspWorkspace, text: str = "one\n") -> SessionId:
    """A session that has read `a.zz`, and a server that is ready."""
    (lsp.project / "a.zz").write_text(text)
    session = await lsp.one.session()
    await lsp.says(view("a.zz"), session)
    await lsp.comes_to(LspState.READY)
    return session


async def test_an_error_is_told_with_the_edit_that_made_it_and_gone_with_the_one_that_mends_it() -> None:
    async with lsp_workspace() as lsp:
        session = await begun(lsp)
        bad = await lsp.says(edit("a.zz", "one", "😀 BAD and ODD"), session)
        assert bad.splitlines()[1:] == [
            "<file_diagnostics>",
            "error a.zz:1:3 BAD is here [ours bad]",
            "warning a.zz:1:11 ODD is here [ours odd]",
            "</file_diagnostics>",
            "(file: 1 error, 1 warning)",
        ]
        seen = await lsp.says(view("a.zz"), session)
        assert "error a.zz:1:3 BAD is here" in seen
        elsewhere = await lsp.says(write("b.zz", "fine\n"), session)
        assert elsewhere.splitlines()[1:] == [
            "<project_diagnostics>",
            "error a.zz:1:3 BAD is here [ours bad]",
            "</project_diagnostics>",
            "(project: 1 error)",
        ]
        good = await lsp.says(edit("a.zz", "BAD and ODD", "well"), session)
        assert len(good.splitlines()) == 1
        many = ("multiedit", {"file_path": "a.zz", "edits": [{"old_string": "well", "new_string": "BAD\n" * 12}]})
        cut = await lsp.says(many, session)
        assert cut.count("BAD is here") == 10
        assert "(2 more)" in cut
        assert "(file: 12 errors)" in cut


async def test_what_a_server_is_told_in_which_order() -> None:
    async with lsp_workspace() as lsp:
        session = await begun(lsp)
        for word in ("two", "three"):
            await lsp.says(write("a.zz", f"{word}\n"), session)
        said = [message for message in lsp.heard() if message.get("method", "").startswith("textDocument/did")]
        uri = (lsp.project / "a.zz").as_uri()
        assert all(message["params"]["textDocument"]["uri"] == uri for message in said)
        opened, changed, saved, *rest = said
        assert opened["params"]["textDocument"] | {"uri": ""} == {
            "uri": "", "languageId": "zz", "version": 1, "text": "one\n",
        }  # fmt: skip
        assert changed["params"]["textDocument"]["version"] == 2
        assert changed["params"]["contentChanges"] == [{"text": "two\n"}]
        assert saved["params"]["text"] == "two\n"
        assert [message["method"].rpartition("/")[2] for message in rest] == ["didChange", "didSave"]
        first, second = lsp.heard()[:2]
        assert (first["method"], second["method"]) == ("initialize", "initialized")
        assert first["params"]["processId"] is None
        assert first["params"]["rootUri"] == lsp.project.as_uri()


async def test_what_a_server_asks_is_answered() -> None:
    async with lsp_workspace() as lsp:
        await lsp.set_up(options={"our": {"part": {"x": 1}}}, init_options={"fast": True})
        await begun(lsp)
        await until(lambda: sum("method" not in message for message in lsp.heard()) == 3)
        answers = {message["id"]: message for message in lsp.heard() if "method" not in message}
        assert answers[902]["result"] is None
        assert answers[903]["result"] == [{"x": 1}]
        assert answers[904]["error"]["code"] == -32601
        assert lsp.heard("initialize")[0]["params"]["initializationOptions"] == {"fast": True}
        settings = lsp.heard("workspace/didChangeConfiguration")[0]["params"]["settings"]
        assert settings == {"our": {"part": {"x": 1}}}


@pytest.mark.parametrize("start", ["pull", "late-pull", "utf-8"])
async def test_other_ways_to_be_told(start: str) -> None:
    """A server that wants to be asked, one that says so after a while, one that counts bytes."""
    async with lsp_workspace() as lsp:
        lsp.start(start)
        session = await begun(lsp)
        bad = await lsp.says(edit("a.zz", "one", "é😀 BAD"), session)
        assert "error a.zz:1:4 BAD is here [ours bad]" in bad
        good = await lsp.says(edit("a.zz", "BAD", "good"), session)
        assert "BAD" not in good
        assert bool(lsp.heard("textDocument/diagnostic")) == ("pull" in start)


async def test_states_and_counts_are_told_to_everybody() -> None:
    async with lsp_workspace() as lsp:
        one = lsp.one
        path = f"/v1/workspaces/{one.workspace}/events?client_id={one.client.client_id}"
        stock = await RawStream.open(one.server.address, path)
        async with one.client.events(one.workspace, since=0) as events:
            await read_until(events, lambda item: isinstance(item.event, HelloEvent))
            session = await begun(lsp)
            await lsp.says(edit("a.zz", "one", "BAD ODD"), session)
            told = await read_until(
                events,
                lambda item: isinstance(item.event, LspEvent) and item.event.change.object.diagnostic_count > 0,
            )
        notices = [item.event.change.object for item in told if isinstance(item.event, LspEvent)]
        assert [(notice.type, notice.state) for notice in notices] == [
            ("state_changed", LspState.STARTING),
            ("state_changed", LspState.READY),
            ("diagnostics_changed", LspState.READY),
        ]
        assert all(item.number is None for item in told if isinstance(item.event, LspEvent))
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
        info = await lsp.comes_to(LspState.READY)
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
        await lsp.comes_to(LspState.READY)
        with pytest.raises(ServerProblem) as caught:
            await client.restart_lsps(workspace, "nobody")
        assert caught.value.status == 404
        assert "ready" in (await client.lsp_log(workspace, "ours")).text
        outside = Path(lsp.one.server.directory.root) / "b.zz"
        outside.write_text("x")
        await client.start_lsps(workspace, str(outside))


@pytest.mark.parametrize("start", ["pull", "late-pull"])
async def test_a_file_that_a_client_opens_is_looked_at(start: str) -> None:
    """Also by servers that say nothing unless they are asked: their counts are there before anything is changed."""
    async with lsp_workspace() as lsp:
        lsp.start(start)
        (lsp.project / "a.zz").write_text("BAD\n")
        await lsp.one.client.start_lsps(lsp.one.workspace, "a.zz")
        async with asyncio.timeout(30):
            while (await lsp.infos())["ours"].diagnostic_count != 1:
                pass


@pytest.fixture
def stays_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that went does not come back by itself."""
    monkeypatch.setattr(server_lifecycle, "FIRST_DELAY", 1_000.0)


@pytest.mark.usefixtures("stays_away")
async def test_one_that_crashes_says_why() -> None:
    """An edit that kills it is told at once, and waits for nobody."""
    async with lsp_workspace() as lsp:
        session = await begun(lsp)
        lsp.how("crash")
        said = await lsp.says(edit("a.zz", "one", "BAD"), session)
        assert "not answered" not in said
        info = await lsp.comes_to(LspState.ERROR)
        assert info.error == "It ended with exit code 3. Its last words: the disk ate my homework"
        told = await lsp.says(("lsp_diagnostics", {}), session)
        assert "(ours does not run: It ended with exit code 3." in told
        lsp.how()
        assert await lsp.says(("lsp_restart", {"name": "ours"}), session) == "Restarting ours."
        assert "BAD is here" in await lsp.says(("lsp_diagnostics", {"file_path": "a.zz"}), session)


async def test_one_that_crashes_comes_back_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_lifecycle, "FIRST_DELAY", 0.01)
    async with lsp_workspace() as lsp:
        session = await begun(lsp)
        lsp.how("crash")
        await lsp.says(edit("a.zz", "one", "BAD"), session)
        lsp.how()
        await until(lambda: len(lsp.heard("initialized")) > 1)
        await lsp.comes_to(LspState.READY)
        assert "BAD is here" in await lsp.says(("lsp_diagnostics", {"file_path": "a.zz"}), session)


@pytest.mark.usefixtures("stays_away")
async def test_one_that_cannot_start_says_why() -> None:
    async with lsp_workspace() as lsp:
        lsp.start("crash")
        (lsp.project / "a.zz").write_text("one\n")
        session = await lsp.one.session()
        await lsp.says(view("a.zz"), session)
        info = await lsp.comes_to(LspState.ERROR)
        assert info.error == "It ended with exit code 7. Its last words: cannot find my settings"
        (failed,) = await lsp.do(("lsp_references", {"symbol": "one"}), session=session)
        assert failed.is_error
        assert "cannot find my settings" in failed.content
        await lsp.set_up(command="no-such-program-here")
        await lsp.says(view("a.zz"), session)
        info = await lsp.comes_to(LspState.ERROR)
        assert info.error == "no-such-program-here is not installed, or not on the PATH: install it, or set command."
        health = await lsp.one.client.doctor(lsp.one.workspace, "language servers")
        (finding,) = health.findings
        assert finding.severity == "warning"
        assert "lsp.ours" in finding.what
        assert finding.file.endswith("config.json")


async def test_one_that_could_not_be_started_is_found_before_a_file_calls_for_it() -> None:
    async with lsp_workspace() as lsp:
        client, workspace = lsp.one.client, lsp.one.workspace
        await client.config_set(workspace, "lsp.missing", {"command": "no-such-program", "filetypes": ["yy"]}, scope=1)
        await client.config_set(workspace, "lsp.off", {"command": "neither-this", "disabled": True}, scope=1)
        (finding,) = (await client.doctor(workspace, "language servers")).findings
        assert finding.what.startswith("lsp.missing could not be started: no-such-program is not installed")
        assert (finding.severity, finding.line > 0) == ("warning", True)
        assert (await lsp.infos())["missing"].state == LspState.UNSTARTED


@pytest.mark.parametrize("manners", ["hang", "silent", "busy", "deaf"])
async def test_nobody_waits_for_one_that_does_not_answer(manners: str) -> None:
    """However it is silent, the edit is told, with a word about who has not answered."""
    async with lsp_workspace() as lsp:
        lsp.start(*(["hang"] if manners == "hang" else ["pull"] if manners == "deaf" else []))
        lsp.waits(SHORT)
        (lsp.project / "a.zz").write_text("one\n")
        session = await lsp.one.session()
        await lsp.says(view("a.zz"), session)
        await lsp.comes_to(LspState.STARTING if manners == "hang" else LspState.READY)
        lsp.how(manners)
        said = await lsp.says(edit("a.zz", "one", "BAD"), session)
        assert said.splitlines()[1:] == ["(ours has not answered yet: call lsp_diagnostics to check again.)"]


async def test_one_that_floods_is_believed_up_to_a_point() -> None:
    async with lsp_workspace() as lsp:
        session = await begun(lsp)
        lsp.how("flood")
        said = await lsp.says(edit("a.zz", "one", "BAD"), session)
        assert "error a.zz:1:1 BAD is here [ours bad]" in said
        assert len(said) < 1_000
        assert (await lsp.infos())["ours"].diagnostic_count == 3 * 500 + 1
        log = (await lsp.one.client.lsp_log(lsp.one.workspace, "ours")).text
        assert len(log.splitlines()) == 500
        told = await lsp.says(("lsp_diagnostics", {}), session)
        assert len(told.splitlines()) < 20


@pytest.mark.usefixtures("stays_away")
async def test_one_that_talks_nonsense_is_ended() -> None:
    async with lsp_workspace() as lsp:
        session = await begun(lsp)
        lsp.how("garbage")
        await lsp.says(edit("a.zz", "one", "BAD"), session)
        info = await lsp.comes_to(LspState.ERROR)
        assert info.error.startswith("It sent something else than messages: 'Segmentation fault, but politely")


async def test_what_it_says_of_an_older_text_is_not_the_answer() -> None:
    async with lsp_workspace() as lsp:
        session = await begun(lsp)
        lsp.waits(SHORT)
        lsp.how("old")
        said = await lsp.says(edit("a.zz", "one", "BAD"), session)
        assert "has not answered yet" in said


async def test_files_that_others_change_are_told() -> None:
    """A command changes an open file and makes, changes and removes others: told when the server is asked next."""
    async with lsp_workspace() as lsp:
        session = await begun(lsp, "ODD\n")
        await lsp.says(("lsp_diagnostics", {"file_path": "a.zz"}), session)
        (lsp.project / "a.zz").write_text("changed BAD\n")
        (lsp.project / "new.zz").write_text("x\n")
        (lsp.project / "other.txt").write_text("x\n")
        told = await lsp.says(("lsp_diagnostics", {"file_path": "a.zz"}), session)
        assert "error a.zz:1:9 BAD is here" in told
        (lsp.project / "new.zz").unlink()
        await lsp.says(("lsp_diagnostics", {}), session)
        # A notification has no answer: the server's own record says when it has arrived.
        await until(lambda: len(lsp.heard("workspace/didChangeWatchedFiles")) == 2)
        said = [message["params"]["changes"] for message in lsp.heard("workspace/didChangeWatchedFiles")]
        names = [[(item["uri"].rpartition("/")[2], item["type"]) for item in items] for items in said]
        assert names == [[("a.zz", 2), ("new.zz", 1)], [("new.zz", 3)]]


async def test_the_settings_say_who_works() -> None:
    async with lsp_workspace() as lsp:
        session = await begun(lsp)
        await lsp.set_up(disabled=True)
        assert (await lsp.infos())["ours"].state == LspState.DISABLED
        assert len((await lsp.says(edit("a.zz", "one", "BAD"), session)).splitlines()) == 1
        (refused,) = await lsp.do(("lsp_diagnostics", {"file_path": "a.zz"}), session=session)
        assert refused.is_error
        await lsp.set_up()
        assert "BAD is here" in await lsp.says(edit("a.zz", "BAD", "now BAD"), session)
        await lsp.one.client.config_remove(lsp.one.workspace, "lsp", scope=1)
        assert await lsp.infos() == {}


async def test_models_are_told_of_them_where_there_is_one() -> None:
    """And have the tools; a helper has those that only look."""
    async with lsp_workspace(is_set_up=False) as lsp:
        session = await begun_without(lsp)
        asked = lsp.one.model.requests[-1]
        assert not [tool.name for tool in asked.tools if tool.name.startswith("lsp_")]
        assert "Language servers" not in asked.system
        await lsp.set_up()
        facts = await lsp.says(("holdfast_info", {}), session)
        assert "ours: unstarted" in facts
        asked = lsp.one.model.requests[-1]
        assert [tool.name for tool in asked.tools if tool.name.startswith("lsp_")] == [
            "lsp_call_hierarchy", "lsp_definition", "lsp_diagnostics", "lsp_references", "lsp_rename",
            "lsp_replace_symbol", "lsp_restart", "lsp_symbols",
        ]  # fmt: skip
        assert "Language servers know the code here." in asked.system
        await lsp.says(("agent", {"prompt": "look"}), session)
        helpers = [{tool.name for tool in request.tools} for request in lsp.one.model.requests]
        assert any("lsp_symbols" in names and "lsp_rename" not in names for names in helpers)
        await lsp.one.client.config_set(lsp.one.workspace, "options.disabled_tools", ["lsp_rename"], scope=1)
        await lsp.says(view("a.zz"), session)
        assert "lsp_rename" not in {tool.name for tool in lsp.one.model.requests[-1].tools}


async def begun_without(lsp: LspWorkspace) -> SessionId:
    (lsp.project / "a.zz").write_text("one\n")
    session = await lsp.one.session()
    await lsp.says(view("a.zz"), session)
    return session


async def test_a_cancel_does_not_wait_for_a_language_server() -> None:
    """R5: the change has been made and is on record; what is wrong with it nobody hears any more."""
    async with lsp_workspace() as lsp:
        session = await begun(lsp)
        lsp.how("silent")
        run = await lsp.one.call_tools(session, edit("a.zz", "one", "BAD"), edit("a.zz", "BAD", "two"))
        await until(lambda: lsp.heard("textDocument/didChange"))
        await lsp.one.client.cancel_run(lsp.one.workspace, run.run_id)
        assert (await lsp.one.run_end(run)).cancelled
        assert (lsp.project / "a.zz").read_text() == "BAD\n"
        versions = await lsp.one.client.list_history(lsp.one.workspace, session)
        assert [version.content for version in versions] == ["one\n", "BAD\n"]
        results = (await lsp.one.results(session))[-2:]
        assert all(result.is_error for result in results)
