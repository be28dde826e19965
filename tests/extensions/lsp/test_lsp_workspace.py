"""Language servers and other parts of a workspace: trust, permissions, history, and complete cleanup."""

import asyncio
import json
import os
import signal
import sys
from pathlib import Path

import pytest

from extensions.lsp.lsp_workspace import SERVER, LspWorkspace, edit, lsp_workspace, view
from holdfast.client.client import Client
from holdfast.client.errors import ServerProblem
from holdfast.domain.extensions import LspState
from holdfast.domain.files import UndoRequest
from holdfast.domain.ids import RunId
from holdfast.protocol.bodies import AgentMessage
from holdfast.testing.gates import until
from server.helpers import server_directory, server_process
from trials.hostile_commands import new_token, survivors


async def open_files(lsp: LspWorkspace, session: str, **files: str) -> None:
    """Return the files that the scripted server has open."""
    for name, text in files.items():
        (lsp.project / f"{name}.zz").write_text(text)
        await lsp.call_tool(("lsp_diagnostics", {"file_path": f"{name}.zz"}), session)


@pytest.mark.parametrize("counts", ["utf-16", "utf-8"])
async def test_rename_is_recorded_and_can_be_undone(counts: str) -> None:
    async with lsp_workspace() as lsp:
        lsp.start(counts)
        session = await lsp.one.session()
        await open_files(lsp, session, a="😀 old = 1\r\nold\r\n", b="use(old, older)\n", c="nothing\n")
        await lsp.call_tool(view("a.zz"), session)
        run = await lsp.one.call_tools(session, ("lsp_rename", {"symbol": "old", "new_name": "fresh", "path": "a.zz"}))
        await lsp.one.run_end(run)
        result = (await lsp.one.results(session))[-1]
        assert result.content.splitlines() == ["Renamed old to fresh in 2 files:", "a.zz: 2", "b.zz: 1"]
        assert (lsp.project / "a.zz").read_bytes() == "😀 fresh = 1\r\nfresh\r\n".encode()
        assert (lsp.project / "b.zz").read_text() == "use(fresh, older)\n"
        assert json.loads(result.metadata)["additions"] == 3

        versions = await lsp.one.client.list_history(lsp.one.workspace, session)
        assert sorted((Path(item.path).name, item.version) for item in versions) == [
            ("a.zz", 0), ("a.zz", 1), ("b.zz", 0), ("b.zz", 1),
        ]  # fmt: skip
        assert len({item.id for item in versions}) == 4
        (known,) = await lsp.do(edit("a.zz", "fresh = 1", "fresh = 2"), session=session)
        assert not known.is_error, "it was read before, and what changed since is known"
        (unknown,) = await lsp.do(edit("b.zz", "use", "call"), session=session)
        assert unknown.is_error, "it was never read"

        (lsp.project / "a.zz").write_bytes("😀 fresh = 1\r\nfresh\r\n".encode())
        await lsp.do(view("a.zz"), session=session)
        report = await lsp.one.client.undo_changes(lsp.one.workspace, UndoRequest(run_id=run.run_id, force=True))
        assert report.is_done
        assert (lsp.project / "a.zz").read_bytes() == "😀 old = 1\r\nold\r\n".encode()
        assert (lsp.project / "b.zz").read_text() == "use(old, older)\n"


async def test_rename_denied_for_one_file_changes_none() -> None:
    async with lsp_workspace(yolo=False) as lsp:
        await lsp.one.client.config_set(lsp.one.workspace, "permissions.allow", ["lsp_rename(a.zz)"], scope=1)
        session = await lsp.one.session()
        await open_files(lsp, session, a="old\n", b="old\n")
        run = await lsp.one.call_tools(session, ("lsp_rename", {"symbol": "old", "new_name": "fresh", "path": "a.zz"}))
        (ask,) = await lsp.one.pending_permissions()
        assert (ask.tool_name, ask.action, ask.params["file_path"]) == (
            "lsp_rename", "write", str(lsp.project / "b.zz"),
        )  # fmt: skip
        assert (ask.params["old_content"], ask.params["new_content"]) == ("old\n", "fresh\n")
        await lsp.one.grant(ask, "deny", "not this one")
        await lsp.one.run_end(run)
        assert (lsp.project / "a.zz").read_text() == (lsp.project / "b.zz").read_text() == "old\n"
        assert await lsp.one.client.list_history(lsp.one.workspace, session) == ()


@pytest.mark.parametrize("counts", ["utf-16", "utf-8"])
async def test_references_and_unknown_names(counts: str) -> None:
    async with lsp_workspace() as lsp:
        lsp.start(counts)
        session = await lsp.one.session()
        await open_files(lsp, session, a="😀 old + old\n# old\n")
        found = await lsp.call_tool(("lsp_references", {"symbol": "old"}), session)
        assert found.splitlines() == [
            "3 references of old in 1 file:",
            "a.zz:1:3: 😀 old + old",
            "a.zz:1:9: 😀 old + old",
            "a.zz:2:3: # old",
        ]
        results = await lsp.do(
            ("lsp_references", {"symbol": "missing"}),
            ("lsp_symbols", {"file_path": "a.zz"}),
            ("lsp_definition", {"symbol": "old", "path": "../elsewhere"}),
            ("lsp_restart", {"name": "nobody"}),
            session=session,
        )
        assert all(result.is_error for result in results)
        output = {result.name: result.content for result in results}
        assert "missing was not found" in output["lsp_references"]
        assert "ours cannot do that" in output["lsp_symbols"]
        assert "There is: ours" in output["lsp_restart"]


async def test_r12_servers_of_project_wait_for_trust() -> None:
    """R12: neither a server of its settings nor a program in its directories."""
    async with lsp_workspace(is_set_up=False) as lsp:
        own = lsp.project / ".venv/bin/basedpyright-langserver"
        own.parent.mkdir(parents=True)
        own.write_text(f"#!/bin/sh\ntouch {lsp.folder}/own-ran\n")
        own.chmod(0o755)
        (lsp.project / "holdfast.toml").write_text(
            f'[lsp.ours]\ncommand = "{sys.executable}"\nargs = {json.dumps(lsp.command())}\nfiletypes = ["zz"]\n'
        )
        (lsp.project / "a.zz").write_text("BAD\n")
        (lsp.project / "a.py").write_text("x = 1\n")
        session = await lsp.one.session()
        await lsp.do(view("a.zz"), view("a.py"), session=session)
        assert await lsp.infos() == {}
        (missing,) = await lsp.do(("lsp_diagnostics", {"file_path": "a.zz"}), session=session)
        assert missing.is_error
        client, workspace = lsp.one.client, lsp.one.workspace
        trust = await client.get_trust(workspace)
        assert [item.key for item in trust.withheld] == ["lsp.ours"]
        await client.set_trust(workspace, trusted=True, digest=trust.digest)
        assert "BAD is here" in await lsp.call_tool(("lsp_diagnostics", {"file_path": "a.zz"}), session)
        await lsp.do(view("a.py"), session=session)
        await until((lsp.folder / "own-ran").exists)
        await client.set_trust(workspace, trusted=False)
        assert "ours" not in await lsp.infos()


@pytest.mark.parametrize("way", ["trust", "name"])
async def test_server_that_runs_project_code_waits_for_trust_or_explicit_setting(way: str, tmp_path: Path) -> None:
    program = tmp_path / "rust-analyzer"
    program.write_text(f"#!/bin/sh\nexec {sys.executable} {SERVER} {tmp_path}\n")
    program.chmod(0o755)
    async with lsp_workspace(path=[tmp_path], is_set_up=False) as lsp:
        (lsp.project / "Cargo.toml").write_text("[package]\n")
        (lsp.project / "a.rs").write_text("fn BAD() {}\n")
        session = await lsp.one.session()
        await lsp.call_tool(view("a.rs"), session)
        info = (await lsp.infos())["rust-analyzer"]
        assert info.state == LspState.UNSTARTED
        assert "would run code of this project" in info.error
        (finding,) = (await lsp.one.client.doctor(lsp.one.workspace, "language servers")).findings
        assert (finding.severity, finding.what_to_do) == ("note", info.error)
        assert not (tmp_path / "received").exists()
        if way == "trust":
            # There are no settings to trust: the project itself is trusted.
            digest = (await lsp.one.client.get_trust(lsp.one.workspace)).digest
            await lsp.one.client.set_trust(lsp.one.workspace, trusted=True, digest=digest)
        else:
            await lsp.one.client.config_set(lsp.one.workspace, "lsp.rust-analyzer", {"timeout": 20}, scope=1)
        assert "BAD is here" in await lsp.call_tool(("lsp_diagnostics", {"file_path": "a.rs"}), session)


async def test_server_receives_additional_workspace_folder() -> None:
    async with lsp_workspace() as lsp:
        lsp.start("folders")
        await lsp.configure_server(root_markers=["zz.toml"])
        session = await lsp.one.session()
        for name in ("one", "two"):
            (lsp.project / name).mkdir()
            (lsp.project / name / "zz.toml").touch()
            (lsp.project / name / "a.zz").write_text("x\n")
            await lsp.call_tool(("lsp_diagnostics", {"file_path": f"{name}/a.zz"}), session)
        assert lsp.received("initialize")[0]["params"]["rootUri"] == (lsp.project / "one").as_uri()
        (published,) = lsp.received("workspace/didChangeWorkspaceFolders")
        assert published["params"]["event"]["added"] == [{"uri": (lsp.project / "two").as_uri(), "name": "two"}]
        (lsp.project / "b.zz").write_text("x\n")
        (none,) = await lsp.do(("lsp_diagnostics", {"file_path": "b.zz"}), session=session)
        assert none.is_error, "no marker, no server"


async def test_unexpandable_values_are_reported_and_traffic_can_be_traced() -> None:
    async with lsp_workspace() as lsp:
        await lsp.configure_server(env={"OURS": "set $((", "PLAIN": "yes"})
        (lsp.project / "a.zz").write_text("x\n")
        session = await lsp.one.session()
        await lsp.call_tool(view("a.zz"), session)
        info = await lsp.wait_for_server_state(LspState.ERROR)
        assert info.error.startswith("lsp.ours.env.OURS: ")
        await lsp.configure_server(env={"PLAIN": "yes"})
        await lsp.one.client.config_set(lsp.one.workspace, "options.debug_lsp", True, scope=1)
        await lsp.call_tool(("lsp_diagnostics", {"file_path": "a.zz"}), session)
        log = await lsp.one.client.lsp_log(lsp.one.workspace, "ours")
        written = await asyncio.to_thread(Path(log.file).read_text)
        assert "-> initialize " in written
        assert "<- textDocument/publishDiagnostics " in written


@pytest.mark.parametrize("way", ["leave", "stop", "stays"])
async def test_r4_closed_workspace_leaves_no_language_server(way: str) -> None:
    """R4: neither the server nor a process it started in another session; including one that only acknowledges the
    shutdown.
    """
    token = new_token()
    async with lsp_workspace(token) as lsp:
        lsp.start("child", way)
        (lsp.project / "a.zz").write_text("x\n")
        session = await lsp.one.session()
        await lsp.call_tool(view("a.zz"), session)
        await lsp.wait_for_server_state(LspState.READY)
        await until(lambda: len(survivors(token)) == 2)
        if way != "stop":
            await lsp.one.client.leave_workspace(lsp.one.workspace)
            await until(lambda: not survivors(token))
            with pytest.raises(ServerProblem):
                await lsp.infos()
    assert not survivors(token)


async def test_r4_killed_server_leaves_no_language_server() -> None:
    """R4: kill -9."""
    token = new_token()
    async with server_directory() as directory:
        folder, project = directory.root / "ours", Path(directory.project())
        folder.mkdir()
        directory.data.mkdir()
        (folder / "start").write_text("child")
        (project / "a.zz").write_text("x\n")
        ours = {"command": sys.executable, "args": [str(SERVER), str(folder), token], "filetypes": ["zz"]}
        (directory.data / "config.json").write_text(json.dumps({"lsp": {"ours": ours}}))
        async with server_process(directory) as running, Client(directory.address) as client:
            workspace = (await client.create_workspace(str(project), yolo=True)).id
            session = (await client.create_session(workspace, "s")).id
            prompt = f"tool=view {json.dumps({'file_path': 'a.zz'})}"
            await client.send_prompt(workspace, AgentMessage(session, prompt, RunId("r1")))
            await until(lambda: len(survivors(token)) == 2)
            os.kill(running.process.pid, signal.SIGKILL)
            await running.wait()
            await until(lambda: not survivors(token))
