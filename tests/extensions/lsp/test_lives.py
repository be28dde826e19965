"""Language servers and the rest of a workspace: trust, permissions, history, and that nothing is left of them."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from e2e.tool_client import until
from extensions.lsp.tongues import SERVER, Tongues, edit, tongues, view
from holdfast.client.client import Client
from holdfast.client.errors import ServerProblem
from holdfast.domain.extensions import LspState
from holdfast.domain.files import UndoAsk
from holdfast.domain.ids import RunId
from holdfast.protocol.bodies import AgentMessage
from server.helpers import place, process
from trials.hostile_commands import new_token, survivors


async def opened(speak: Tongues, session: str, **files: str) -> None:
    """Files that our server has open."""
    for name, text in files.items():
        (speak.project / f"{name}.zz").write_text(text)
        await speak.says(("lsp_diagnostics", {"file_path": f"{name}.zz"}), session)


@pytest.mark.parametrize("counts", ["utf-16", "utf-8"])
async def test_a_rename_is_whole_on_record_and_can_be_taken_back(counts: str) -> None:
    async with tongues() as speak:
        speak.start(counts)
        session = await speak.one.session()
        await opened(speak, session, a="😀 old = 1\r\nold\r\n", b="use(old, older)\n", c="nothing\n")
        await speak.says(view("a.zz"), session)
        run = await speak.one.ask(session, ("lsp_rename", {"symbol": "old", "new_name": "fresh", "path": "a.zz"}))
        await speak.one.end(run)
        result = (await speak.one.results(session))[-1]
        assert result.content.splitlines() == ["Renamed old to fresh in 2 files:", "a.zz: 2", "b.zz: 1"]
        assert (speak.project / "a.zz").read_bytes() == "😀 fresh = 1\r\nfresh\r\n".encode()
        assert (speak.project / "b.zz").read_text() == "use(fresh, older)\n"
        assert json.loads(result.metadata)["additions"] == 3

        versions = await speak.one.client.list_history(speak.one.workspace, session)
        assert sorted((Path(item.path).name, item.version) for item in versions) == [
            ("a.zz", 0), ("a.zz", 1), ("b.zz", 0), ("b.zz", 1),
        ]  # fmt: skip
        assert len({item.id for item in versions}) == 4
        (known,) = await speak.do(edit("a.zz", "fresh = 1", "fresh = 2"), session=session)
        assert not known.is_error, "it was read before, and what changed since is known"
        (unknown,) = await speak.do(edit("b.zz", "use", "call"), session=session)
        assert unknown.is_error, "it was never read"

        (speak.project / "a.zz").write_bytes("😀 fresh = 1\r\nfresh\r\n".encode())
        await speak.do(view("a.zz"), session=session)
        report = await speak.one.client.undo_changes(speak.one.workspace, UndoAsk(run_id=run.run_id, force=True))
        assert report.is_done
        assert (speak.project / "a.zz").read_bytes() == "😀 old = 1\r\nold\r\n".encode()
        assert (speak.project / "b.zz").read_text() == "use(old, older)\n"


async def test_a_rename_that_is_denied_for_one_file_changes_none() -> None:
    async with tongues(yolo=False) as speak:
        await speak.one.client.config_set(speak.one.workspace, "permissions.allow", ["lsp_rename(a.zz)"], scope=1)
        session = await speak.one.session()
        await opened(speak, session, a="old\n", b="old\n")
        run = await speak.one.ask(session, ("lsp_rename", {"symbol": "old", "new_name": "fresh", "path": "a.zz"}))
        (ask,) = await speak.one.permissions()
        assert (ask.tool_name, ask.action, ask.params["file_path"]) == (
            "lsp_rename", "write", str(speak.project / "b.zz"),
        )  # fmt: skip
        assert (ask.params["old_content"], ask.params["new_content"]) == ("old\n", "fresh\n")
        await speak.one.grant(ask, "deny", "not this one")
        await speak.one.end(run)
        assert (speak.project / "a.zz").read_text() == (speak.project / "b.zz").read_text() == "old\n"
        assert await speak.one.client.list_history(speak.one.workspace, session) == ()


@pytest.mark.parametrize("counts", ["utf-16", "utf-8"])
async def test_references_and_names_that_are_not_there(counts: str) -> None:
    async with tongues() as speak:
        speak.start(counts)
        session = await speak.one.session()
        await opened(speak, session, a="😀 old + old\n# old\n")
        found = await speak.says(("lsp_references", {"symbol": "old"}), session)
        assert found.splitlines() == [
            "3 references of old in 1 file:",
            "a.zz:1:3: 😀 old + old",
            "a.zz:1:9: 😀 old + old",
            "a.zz:2:3: # old",
        ]
        results = await speak.do(
            ("lsp_references", {"symbol": "missing"}),
            ("lsp_symbols", {"file_path": "a.zz"}),
            ("lsp_definition", {"symbol": "old", "path": "../elsewhere"}),
            ("lsp_restart", {"name": "nobody"}),
            session=session,
        )
        assert all(result.is_error for result in results)
        said = {result.name: result.content for result in results}
        assert "missing was not found" in said["lsp_references"]
        assert "ours cannot do that" in said["lsp_symbols"]
        assert "There is: ours" in said["lsp_restart"]


async def test_what_a_project_names_waits_for_trust() -> None:
    """R12: neither a server that its settings name, nor a program in its directories."""
    async with tongues(is_set_up=False) as speak:
        own = speak.project / ".venv/bin/basedpyright-langserver"
        own.parent.mkdir(parents=True)
        own.write_text(f"#!/bin/sh\ntouch {speak.folder}/own-ran\n")
        own.chmod(0o755)
        (speak.project / "holdfast.toml").write_text(
            f'[lsp.ours]\ncommand = "{sys.executable}"\nargs = {json.dumps(speak.command())}\nfiletypes = ["zz"]\n'
        )
        (speak.project / "a.zz").write_text("BAD\n")
        (speak.project / "a.py").write_text("x = 1\n")
        session = await speak.one.session()
        await speak.do(view("a.zz"), view("a.py"), session=session)
        assert await speak.infos() == {}
        (missing,) = await speak.do(("lsp_diagnostics", {"file_path": "a.zz"}), session=session)
        assert missing.is_error
        client, workspace = speak.one.client, speak.one.workspace
        trust = await client.get_trust(workspace)
        assert [item.key for item in trust.withheld] == ["lsp.ours"]
        await client.set_trust(workspace, trusted=True, digest=trust.digest)
        assert "BAD is here" in await speak.says(("lsp_diagnostics", {"file_path": "a.zz"}), session)
        await speak.do(view("a.py"), session=session)
        await until((speak.folder / "own-ran").exists)
        await client.set_trust(workspace, trusted=False)
        assert "ours" not in await speak.infos()


@pytest.mark.parametrize("way", ["trust", "name"])
async def test_one_that_runs_code_of_the_project_waits_for_trust_or_for_its_name(way: str, tmp_path: Path) -> None:
    program = tmp_path / "rust-analyzer"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} {SERVER} {tmp_path}\n")
    program.chmod(0o755)
    async with tongues(path=[tmp_path], is_set_up=False) as speak:
        (speak.project / "Cargo.toml").write_text("[package]\n")
        (speak.project / "a.rs").write_text("fn BAD() {}\n")
        session = await speak.one.session()
        await speak.says(view("a.rs"), session)
        info = (await speak.infos())["rust-analyzer"]
        assert info.state == LspState.UNSTARTED
        assert "would run code of this project" in info.error
        (finding,) = (await speak.one.client.doctor(speak.one.workspace, "language servers")).findings
        assert (finding.severity, finding.what_to_do) == ("note", info.error)
        assert not (tmp_path / "heard").exists()
        if way == "trust":
            # There are no settings that could be trusted: the project itself is.
            digest = (await speak.one.client.get_trust(speak.one.workspace)).digest
            await speak.one.client.set_trust(speak.one.workspace, trusted=True, digest=digest)
        else:
            await speak.one.client.config_set(speak.one.workspace, "lsp.rust-analyzer", {"timeout": 20}, scope=1)
        assert "BAD is here" in await speak.says(("lsp_diagnostics", {"file_path": "a.rs"}), session)


async def test_a_server_in_another_part_of_the_workspace_is_told_of_it() -> None:
    async with tongues() as speak:
        speak.start("folders")
        await speak.set_up(root_markers=["zz.toml"])
        session = await speak.one.session()
        for name in ("one", "two"):
            (speak.project / name).mkdir()
            (speak.project / name / "zz.toml").touch()
            (speak.project / name / "a.zz").write_text("x\n")
            await speak.says(("lsp_diagnostics", {"file_path": f"{name}/a.zz"}), session)
        assert speak.heard("initialize")[0]["params"]["rootUri"] == (speak.project / "one").as_uri()
        (told,) = speak.heard("workspace/didChangeWorkspaceFolders")
        assert told["params"]["event"]["added"] == [{"uri": (speak.project / "two").as_uri(), "name": "two"}]
        (speak.project / "b.zz").write_text("x\n")
        (none,) = await speak.do(("lsp_diagnostics", {"file_path": "b.zz"}), session=session)
        assert none.is_error, "no marker, no server"


async def test_values_that_cannot_be_expanded_are_named_and_what_is_said_can_be_written_down() -> None:
    async with tongues() as speak:
        await speak.set_up(env={"OURS": "set $((", "PLAIN": "yes"})
        (speak.project / "a.zz").write_text("x\n")
        session = await speak.one.session()
        await speak.says(view("a.zz"), session)
        info = await speak.comes_to(LspState.ERROR)
        assert info.error.startswith("lsp.ours.env.OURS: ")
        await speak.set_up(env={"PLAIN": "yes"})
        await speak.one.client.config_set(speak.one.workspace, "options.debug_lsp", True, scope=1)
        await speak.says(("lsp_diagnostics", {"file_path": "a.zz"}), session)
        log = await speak.one.client.lsp_log(speak.one.workspace, "ours")
        written = await asyncio.to_thread(Path(log.file).read_text)
        assert "-> initialize " in written
        assert "<- textDocument/publishDiagnostics " in written


@pytest.mark.parametrize("way", ["leave", "stop", "stays"])
async def test_a_workspace_leaves_no_language_server_behind(way: str) -> None:
    """R4: neither the server, nor what it has started in a session of its own; not even one that only says it goes."""
    token = new_token()
    async with tongues(token) as speak:
        speak.start("child", way)
        (speak.project / "a.zz").write_text("x\n")
        session = await speak.one.session()
        await speak.says(view("a.zz"), session)
        await speak.comes_to(LspState.READY)
        await until(lambda: len(survivors(token)) == 2)
        if way != "stop":
            await speak.one.client.leave_workspace(speak.one.workspace)
            await until(lambda: not survivors(token))
            with pytest.raises(ServerProblem):
                await speak.infos()
    assert not survivors(token)


async def test_a_server_that_is_killed_leaves_no_language_server_behind() -> None:
    """R4: kill -9."""
    token = new_token()
    async with place() as where:
        folder, project = where.root / "ours", Path(where.project())
        folder.mkdir()
        where.data.mkdir()
        (folder / "start").write_text("child")
        (project / "a.zz").write_text("x\n")
        ours = {"command": sys.executable, "args": [str(SERVER), str(folder), token], "filetypes": ["zz"]}
        (where.data / "config.json").write_text(json.dumps({"lsp": {"ours": ours}}))
        async with process(where) as running, Client(where.address) as client:
            workspace = (await client.create_workspace(str(project), yolo=True)).id
            session = (await client.create_session(workspace, "s")).id
            prompt = f"tool=view {json.dumps({'file_path': 'a.zz'})}"
            await client.send_prompt(workspace, AgentMessage(session, prompt, RunId("r1")))
            await until(lambda: len(survivors(token)) == 2)
            os.kill(running.process.pid, signal.SIGKILL)
            await running.wait()
            await until(lambda: not survivors(token))
