"""What the parts of language servers do in each state, in virtual time: renames and replacements, closing, servers that
no settings name, diagnostics that a server refuses, and frames that are not messages.
"""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from extensions.lsp.in_memory_lsp import LspFixture, Program, run_scenario
from extensions.lsp.test_tool_outcomes import Json, Workspace, span
from holdfast.domain.errors import ToolError
from holdfast.domain.extensions import LspState
from holdfast.extensions.lsp import lsp_manager, refactoring_tools, server_supervisor
from holdfast.extensions.lsp.diagnostics_wait import AFTER_CHANGE, ON_VIEW
from holdfast.extensions.lsp.extension import LanguageServers
from holdfast.extensions.lsp.lsp_connection import FrameParser, ProtocolError
from holdfast.extensions.lsp.lsp_types import file_uri
from holdfast.extensions.lsp.server_config import ServerMatch
from holdfast.workspace.search.search import Match, Searcher

PROVIDERS = {"renameProvider": True, "documentSymbolProvider": True, "textDocumentSync": 1}


def _read(path: str) -> str | None:
    return Path(path).read_text() if Path(path).exists() else None


def _write(path: str, text: str) -> None:
    Path(path).write_text(text)


class Changes:
    """The file tools that a refactoring calls: what was read, permitted and written, in this order."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.steps: list[tuple[Any, ...]] = []
        self.texts: dict[str, str | None] = {}
        self.refused = ""
        for name in ("read_current", "plan_change", "make_change", "current_file", "change_file"):
            monkeypatch.setattr(refactoring_tools, name, getattr(self, name))

    async def read_current(self, _: object, path: str) -> tuple[Any, bool]:
        name = Path(path).name
        self.steps.append(("read", name))
        text = self.texts[name] if name in self.texts else _read(path)
        return SimpleNamespace(text=text, location=SimpleNamespace(name=name, path=path)), name == "a.txt"

    async def plan_change(self, _: object, tool: str, now: Any, text: str) -> Any:  # noqa: ANN401
        self.steps.append(("permit", tool, now.location.name, text))
        if now.location.name == self.refused:
            raise ToolError("refused")
        difference = SimpleNamespace(additions=len(text), removals=len(now.text or ""), counts="+1 -1")
        return SimpleNamespace(now=now, difference=difference, text=text)

    async def make_change(self, _: object, plan: Any, *, part: int, is_known: bool) -> None:  # noqa: ANN401
        self.steps.append(("write", plan.now.location.name, part, is_known))
        _write(plan.now.location.path, plan.text)

    async def current_file(self, _: object, path: str) -> Any:  # noqa: ANN401
        return (await self.read_current(_, str(self.root / path)))[0]

    async def change_file(self, context: object, tool: str, now: Any, text: str) -> tuple[Any, str, str]:  # noqa: ANN401
        plan = await self.plan_change(context, tool, now, text)
        await self.make_change(context, plan, part=1, is_known=True)
        return plan.difference, now.text or "", text


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    async def grep(*_: object) -> SimpleNamespace:
        return SimpleNamespace(matches=(Match("a.txt", 1, 5, "def one(): pass"),))

    monkeypatch.setattr(Searcher, "grep", grep)


def edits(*lines: int, text: str = "two") -> list[Json]:
    return [{"range": span(line), "newText": text} for line in lines]


@pytest.mark.parametrize("names", [["a.txt"], ["a.txt", "b.txt"]])
@pytest.mark.parametrize("form", ["changes", "documentChanges"])
def test_a_rename(tmp_path: Path, names: list[str], form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(fixture: LspFixture) -> None:
        workspace = Workspace(fixture)
        fixture.capabilities = PROVIDERS
        changes = Changes(fixture.place.project, monkeypatch)
        (fixture.place.project / "b.txt").write_text("one\n")
        uris = {name: file_uri(str(fixture.place.project / name)) for name in names}
        by_uri = {uri: edits(*((1, 2) if name == "a.txt" else (0,))) for name, uri in reversed(uris.items())}
        documents = [{"textDocument": {"uri": uri}, "edits": items} for uri, items in by_uri.items()]
        fixture.methods["textDocument/rename"] = lambda *_: {
            "result": {form: by_uri if form == "changes" else documents}
        }
        outcome = await workspace.call("lsp_rename", symbol="one", new_name="two")
        new = {"a.txt": "def one(): pass\ntwo()\ntwo()\n", "b.txt": "two\n"}
        assert [step[:2] for step in changes.steps if step[0] == "read"] == [("read", name) for name in names]
        assert [step for step in changes.steps if step[0] == "permit"] == [
            ("permit", "lsp_rename", name, new[name]) for name in names
        ]
        assert changes.steps[2 * len(names) :] == [
            ("write", name, part, name == "a.txt") for part, name in enumerate(names, 1)
        ], "every permission is requested before the first file is written"
        count = len(names)
        listed = ["a.txt: 2", "b.txt: 1"][:count]
        assert outcome.content.splitlines()[: count + 1] == [
            f"Renamed one to two in {count} file{'s' if count > 1 else ''}:", *listed,
        ]  # fmt: skip
        assert json.loads(outcome.metadata) == {
            "files": [str(fixture.place.project / name) for name in names],
            "additions": sum(len(new[name]) for name in names),
            "removals": len("def one(): pass\none()\none()\n") + (4 if count > 1 else 0),
        }
        (params,) = fixture.last.params("textDocument/rename")
        assert (params["newName"], params["position"]) == ("two", {"line": 0, "character": 4})
        assert workspace.permits == [("lsp_rename", "list")]

    run_scenario(tmp_path, scenario)


RENAMES: dict[str, tuple[object, str]] = {
    "null": ({"result": None}, "cannot rename one"),
    "nothing": ({"result": {"changes": {}}}, "cannot rename one"),
    "no edits": ({"result": {"changes": {"PATH": []}}}, "cannot rename one"),
    "refused": ({"error": {"code": 1, "message": "not a name"}}, "not a name"),
    "moves": ({"result": {"documentChanges": [{"kind": "rename"}]}}, "also move files"),
    "outside": ({"result": {"changes": {"file:///etc/x": edits(0)}}}, r"outside of the workspace \(/etc/x\)"),
    "no file": ({"result": {"changes": {"http:///x": edits(0)}}}, r"outside of the workspace \(not a file\)"),
    "overlap": ({"result": {"changes": {"PATH": [*edits(0), *edits(0)]}}}, "not valid"),
    "many": ({"result": {"changes": {"PATH": edits(0), "PATHb": edits(0)}}}, "used in 2 files; at most 1"),
}


@pytest.mark.parametrize("name", [*RENAMES, "changed", "gone", "not permitted"])
def test_a_rename_that_is_refused_changes_nothing(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(fixture: LspFixture) -> None:
        workspace = Workspace(fixture)
        fixture.capabilities = PROVIDERS
        changes = Changes(fixture.place.project, monkeypatch)
        monkeypatch.setattr(refactoring_tools, "_MAX_FILES", 2 if name == "not permitted" else 1)
        (fixture.place.project / "a.txtb").write_text("one\n")
        two = {"result": {"changes": {"PATH": edits(1), "PATHb": edits(0)}}}
        one = {"result": {"changes": {"PATH": edits(1)}}}
        answer, says = RENAMES.get(name, (two if name == "not permitted" else one, "changed meanwhile"))
        if name == "not permitted":
            changes.refused, says = "a.txtb", "refused"
        elif name not in RENAMES:
            changes.texts["a.txt"] = "other" if name == "changed" else None
        raw = json.dumps(answer).replace("PATH", file_uri(workspace.path))
        fixture.methods["textDocument/rename"] = lambda *_: json.loads(raw)
        with pytest.raises(ToolError, match=says):
            await workspace.call("lsp_rename", symbol="one", new_name="two")
        assert [step for step in changes.steps if step[0] == "write"] == []

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize(("action", "verb", "text"), [
    ("", "Replaced", "new\none()\none()\n"), ("replace", "Replaced", "new\none()\none()\n"),
    ("delete", "Removed", "one()\none()\n"), ("add_before", "Added before", "new\ndef one(): pass\none()\none()\n"),
    ("add_after", "Added after", "def one(): pass\nnew\none()\none()\n"),
])  # fmt: skip
def test_a_replacement(tmp_path: Path, action: str, verb: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(fixture: LspFixture) -> None:
        workspace = Workspace(fixture)
        fixture.capabilities = PROVIDERS
        changes = Changes(fixture.place.project, monkeypatch)
        symbol = {"name": "one", "kind": 12, "range": span(0), "selectionRange": span(0, 4, 7)}
        fixture.methods["textDocument/documentSymbol"] = lambda *_: {"result": [symbol]}
        old = fixture.file.read_text()
        given = {"symbol": "one", "file_path": "a.txt"} | ({"action": action} if action else {})
        if action != "delete":
            with pytest.raises(ToolError, match="The replacement is empty"):
                await workspace.call("lsp_replace_symbol", **given)
            given["replacement"] = "new"
        changes.steps.clear()
        outcome = await workspace.call("lsp_replace_symbol", **given)
        assert outcome.content.splitlines()[0] == f"{verb} one in a.txt (+1 -1)."
        assert json.loads(outcome.metadata) == {
            "file_path": workspace.path, "old_content": old, "new_content": text, "action": action or "replace",
            "additions": len(text), "removals": len(old),
        }  # fmt: skip
        assert changes.steps == [
            ("read", "a.txt"), ("permit", "lsp_replace_symbol", "a.txt", text), ("write", "a.txt", 1, True),
        ]  # fmt: skip
        for current, says in ((None, "There is no file a.txt."), ("other", "a.txt has changed meanwhile")):
            changes.texts["a.txt"] = current
            with pytest.raises(ToolError, match=says):
                await workspace.call("lsp_replace_symbol", **given)

    run_scenario(tmp_path, scenario)


def test_nothing_is_started_after_the_end(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        servers = LanguageServers(fixture.ground)
        assert (servers.status_lines(), await servers.on_change("/elsewhere")) == (["tongue: unstarted"], "")
        await servers.close()
        assert await servers.on_view(str(fixture.file)) == ""
        assert await servers.on_change(str(fixture.file)) == ""
        assert fixture.programs == []
        unused = LanguageServers(fixture.ground)
        await unused.close()
        assert await unused.on_change(str(fixture.file)) == ""
        assert (unused._manager, fixture.programs) == (None, [])
        closed = lsp_manager.LspManager(fixture.ground)
        await closed.close()
        assert await closed.servers_for(str(fixture.file)) == []

    run_scenario(tmp_path, scenario)


def test_a_server_that_no_setting_names_is_added_with_its_first_file(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        manager = fixture.manager
        (config,) = manager._configs
        manager._servers.clear()
        match = ServerMatch(config, str(fixture.place.project))

        async def matches(path: str) -> tuple[ServerMatch, ...]:
            assert path == str(fixture.file)
            return (match,)

        manager._matches = matches  # type: ignore[method-assign]
        (server,) = await manager.servers_for(str(fixture.file))
        assert (server, manager.get(fixture.name), server.root) == (manager.get(fixture.name), server, match.root)
        assert await manager.servers_for(str(fixture.file)) == [server]
        await fixture.wait_for_state(LspState.READY)
        assert len(fixture.programs) == 1
        assert await manager.servers_for(str(tmp_path / "outside.txt")) == []

    run_scenario(tmp_path, scenario)


def test_a_file_that_cannot_be_read_is_not_diagnosed(tmp_path: Path) -> None:
    async def scenario(fixture: LspFixture) -> None:
        await fixture.touch_file()
        await fixture.wait_for_state(LspState.READY)
        missing = str(fixture.place.project / "missing.txt")
        for limits in (ON_VIEW, AFTER_CHANGE):
            assert await fixture.manager.request_diagnostics(missing, limits) == {}
            assert await fixture.manager.request_diagnostics(str(fixture.place.project / "x.none"), limits) == {}
        assert missing not in {path for message in fixture.last.received for path in [str(message)] if missing in path}

    run_scenario(tmp_path, scenario)


def test_only_files_are_queued_for_a_server_that_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(fixture: LspFixture) -> None:
        monkeypatch.setattr(server_supervisor, "_MAX_QUEUED_FILES", 2)
        for name in "bcd":
            (fixture.place.project / f"{name}.txt").write_text(name)
        server = fixture.manager.servers[0]
        server.request_start()
        assert server._queued_files == {}
        for name in "bcbd":
            server.request_start(str(fixture.place.project / f"{name}.txt"))
        assert [Path(path).name for path in server._queued_files] == ["b.txt", "d.txt"], "the latest two"
        await fixture.wait_for_state(LspState.READY)
        await fixture.wait_until(lambda: not server._queued_files)
        server.request_start(str(fixture.file))
        assert server._queued_files == {}

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("method", ["textDocument/diagnostic", "textDocument/other"])
@pytest.mark.parametrize("options", [None, {}, {"interFileDependencies": False}, {"interFileDependencies": True}])
@pytest.mark.parametrize("is_static", [True, False])
def test_dependent_files(tmp_path: Path, method: str, options: Json | None, is_static: bool) -> None:
    async def scenario(fixture: LspFixture) -> None:
        if is_static:
            fixture.capabilities = {**fixture.capabilities, "diagnosticProvider": options}
        await fixture.touch_file()
        await fixture.wait_for_state(LspState.READY)
        session = fixture.manager.servers[0].session
        assert session is not None
        for name in range(10):
            session.documents.sync(f"/{name}", "")
        if not is_static:
            item = SimpleNamespace(method=method, register_options=options)
            session._registrations["1"] = cast(Any, item)
        depends = bool(options and options["interFileDependencies"]) and (is_static or method.endswith("diagnostic"))
        assert session.dependent_files("/9") == ([f"/{name}" for name in range(1, 9)] if depends else [])
        offers = options is not None if is_static else method.endswith("diagnostic")
        assert session.supports_pull is offers

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("fails_at", [0, 1, 2, 9])
def test_a_refused_pull_is_no_error(tmp_path: Path, fails_at: int) -> None:
    async def scenario(fixture: LspFixture) -> None:
        fixture.capabilities = {**fixture.capabilities, "diagnosticProvider": {"interFileDependencies": True}}
        asked: list[str] = []

        def answer(_: Program, message: Json) -> object:
            asked.append(Path(message["params"]["textDocument"]["uri"]).name)
            if len(asked) > fails_at:
                return {"error": {"code": 1, "message": "no"}}
            return {"result": {"kind": "full", "items": []}}

        await fixture.touch_file()
        await fixture.wait_for_state(LspState.READY)
        server = fixture.manager.servers[0]
        assert server.session is not None
        for name in ("a", "b"):
            server.session.documents.sync(f"/{name}", "")
        await server.session.request("x", {}, object)
        fixture.methods["textDocument/diagnostic"] = answer
        task = server.pull(server.session, "/b", 5.0)
        await task
        known = [name for name in ["b", *(Path(path).name for path in server.session.documents.open if path != "/b")]]
        assert asked == known[: fails_at + 1]

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize(("header", "body"), [
    (b"Content-Length: 2", b"{}"), (b"content-length:2", b"{}"), (b"X: 1\r\n CONTENT-LENGTH : 2 ", b"{}"),
    (b"Content-Length: x\r\nContent-Length: 2", b"{}"), (b"Content-Length: x", None), (b"Content-Length: -2", None),
    (b"Content-Length:", None), (b"X: 2", None), (b"", None), (b"Content-Length: 9", None),
])  # fmt: skip
def test_headers_of_frames(header: bytes, body: bytes | None) -> None:
    parser = FrameParser(8)
    if body is None:
        with pytest.raises(ProtocolError):
            parser.feed(header + b"\r\n\r\n{}")
    else:
        assert len(list(parser.feed(header + b"\r\n\r\n" + body))) == 1
