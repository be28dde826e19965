"""Text and metadata of each LSP tool, in virtual time: nothing found, one result, and more than the limit."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from extensions.lsp.in_memory_lsp import LspFixture, run_scenario
from holdfast.domain.errors import ToolError
from holdfast.domain.extensions import LspState
from holdfast.domain.tools import Tool, ToolContext, ToolOutcome
from holdfast.extensions.lsp import lsp_tools
from holdfast.extensions.lsp.lsp_types import file_uri
from holdfast.workspace.search.search import Match, Searcher

Json = dict[str, Any]
TEXT = "def one(): pass\none()\none()\n"
PROVIDERS = ("referencesProvider", "definitionProvider", "callHierarchyProvider", "documentSymbolProvider")
ALL = {"textDocumentSync": 1, **dict.fromkeys(PROVIDERS, True)}


def span(line: int, first: int = 0, last: int = 3) -> Json:
    return {"start": {"line": line, "character": first}, "end": {"line": line, "character": last}}


def places(path: str, count: int) -> list[Json]:
    return [{"uri": file_uri(path), "range": span(line)} for line in range(count)]


def symbols(_: str, count: int) -> list[Json]:
    return [
        {"name": f"s{number}", "kind": 12, "range": span(number), "selectionRange": span(number), "detail": "()"}
        for number in range(count)
    ]


def calls(key: str) -> Callable[[str, int], list[Json]]:
    return lambda path, count: [
        {
            key: {
                "name": f"f{line}",
                "kind": 12,
                "uri": file_uri(path),
                "range": span(line),
                "selectionRange": span(line),
            }
        }
        for line in range(count)
    ]


class Workspace:
    """Tools of a workspace whose language server answers each request with a number of items."""

    def __init__(self, fixture: LspFixture) -> None:
        self.fixture = fixture
        self.permits: list[tuple[str, str]] = []
        fixture.file.write_text(TEXT)
        fixture.capabilities = ALL
        self.path = str(fixture.file)
        self.tools: dict[str, Tool] = {item.spec.name: item for item in lsp_tools.create_lsp_tools(fixture.manager)}

    def answer(self, method: str, items: Callable[[str, int], list[Json]], count: int) -> None:
        self.fixture.methods[method] = lambda *_: {"result": items(self.path, count)}

    async def call(self, name: str, /, **arguments: object) -> ToolOutcome:
        return await self.tools[name].run(cast(ToolContext, self), arguments)

    # Context of the call

    @property
    def workspace_path(self) -> str:
        return str(self.fixture.place.project)

    environment: dict[str, str] = {}  # noqa: RUF012

    async def permit(self, permit: Any) -> None:  # noqa: ANN401
        self.permits.append((permit.tool, permit.action))


@pytest.fixture(autouse=True)
def found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the search program: the name is in the first line of the file."""

    async def grep(*_: object) -> SimpleNamespace:
        return SimpleNamespace(matches=(Match("a.txt", 1, 5, "def one(): pass"),))

    monkeypatch.setattr(Searcher, "grep", grep)
    monkeypatch.setattr(lsp_tools, "_MAX_LOCATIONS", 2)
    monkeypatch.setattr(lsp_tools, "_MAX_SYMBOLS", 2)


LINES = ["a.txt:1:1: def one(): pass", "a.txt:2:1: one()"]
LOCATED = [
    ("lsp_references", "textDocument/references", "reference"),
    ("lsp_definition", "textDocument/definition", "definition"),
]


@pytest.mark.parametrize(("tool", "method", "noun"), LOCATED)
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_locations(tmp_path: Path, tool: str, method: str, noun: str, count: int) -> None:
    async def scenario(fixture: LspFixture) -> None:
        workspace = Workspace(fixture)
        workspace.answer(method, places, count)
        outcome = await workspace.call(tool, symbol="one")
        files = min(count, 1)
        assert json.loads(outcome.metadata) == {
            f"number_of_{noun}s": count, "number_of_files": files, "truncated": count > 2,
        }  # fmt: skip
        heading = f"{count} {noun}{'s' if count > 1 else ''} of one in 1 file:"
        expected = [heading, *LINES[:count], *["(1 more)"] * (count > 2)] if count else [f"No {noun} of one was found."]
        assert outcome.content.splitlines() == expected
        (params,) = fixture.last.params(method)
        assert params["position"] == {"line": 0, "character": 4}
        assert params.get("context") == ({"includeDeclaration": True} if noun == "reference" else None)
        assert workspace.permits == [(tool, "list")]

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize(("direction", "key", "verb"), [
    ("incoming", "from", "calls it"), ("outgoing", "to", "is called by it"),
])  # fmt: skip
@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_calls(tmp_path: Path, direction: str, key: str, verb: str, count: int) -> None:
    async def scenario(fixture: LspFixture) -> None:
        workspace = Workspace(fixture)
        prepared = [{"name": "one", "uri": file_uri(workspace.path), "range": span(0), "selectionRange": span(0)}]
        workspace.answer("textDocument/prepareCallHierarchy", lambda *_: prepared, 1)
        workspace.answer(f"callHierarchy/{direction}Calls", calls(key), count)
        outcome = await workspace.call("lsp_call_hierarchy", symbol="one", direction=direction)
        assert json.loads(outcome.metadata) == {"number_of_calls": count}
        named = [f"f{number}  {line}" for number, line in enumerate(LINES[:count])]
        assert outcome.content.splitlines() == ([f"What {verb}:", *named] if count else [f"Nothing {verb}."])
        (params,) = fixture.last.params(f"callHierarchy/{direction}Calls")
        assert params == {"item": prepared[0]}
        workspace.answer("textDocument/prepareCallHierarchy", lambda *_: [], 0)
        with pytest.raises(ToolError, match="The language server knows no function one"):
            await workspace.call("lsp_call_hierarchy", symbol="one", direction=direction)

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("count", [0, 1, 2, 3])
def test_symbols(tmp_path: Path, count: int) -> None:
    async def scenario(fixture: LspFixture) -> None:
        workspace = Workspace(fixture)
        workspace.answer("textDocument/documentSymbol", symbols, count)
        outcome = await workspace.call("lsp_symbols", file_path="a.txt")
        assert json.loads(outcome.metadata) == {
            "file_path": workspace.path, "number_of_symbols": count, "truncated": count > 2,
        }  # fmt: skip
        listed = [f"function s{number} () (line {number + 1})" for number in range(min(count, 2))]
        expected = [*listed, *["(1 more)"] * (count > 2)] if count else ["a.txt has no symbols."]
        assert outcome.content.splitlines() == expected
        assert workspace.permits == [("lsp_symbols", "read")]

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("is_named", [True, False])
@pytest.mark.parametrize(("here", "elsewhere"), [(0, 0), (1, 0), (0, 2), (1, 2)])
def test_diagnostics(tmp_path: Path, is_named: bool, here: int, elsewhere: int) -> None:
    async def scenario(fixture: LspFixture) -> None:
        workspace = Workspace(fixture)

        def publish(program: Any, _: Json) -> None:  # noqa: ANN401
            program.publish(workspace.path, *["bad"] * here)
            program.publish(f"{workspace.workspace_path}/b.txt", *[f"worse {number}" for number in range(elsewhere)])

        fixture.methods["textDocument/didOpen"] = publish
        nothing = await workspace.call("lsp_diagnostics")
        assert nothing.content == "No language server is running yet. Name a file to start the one for it."
        outcome = await workspace.call("lsp_diagnostics", file_path="a.txt")
        if not is_named:
            outcome = await workspace.call("lsp_diagnostics")
        counts = (here, elsewhere) if is_named else (0, here + elsewhere)
        assert json.loads(outcome.metadata) == {"file_diagnostics": counts[0], "project_diagnostics": counts[1]}
        assert outcome.content.count("bad") == here
        if not here + elsewhere:
            place = "the file" if is_named else "the known files"
            assert outcome.content == f"No problems in {place}, according to tongue."
        assert workspace.permits == [("lsp_diagnostics", "read")]

    run_scenario(tmp_path, scenario)


@pytest.mark.parametrize("name", ["", "tongue"])
def test_restarts(tmp_path: Path, name: str) -> None:
    async def scenario(fixture: LspFixture) -> None:
        workspace = Workspace(fixture)
        if not name:
            none = await workspace.call("lsp_restart")
            assert (none.content, none.metadata) == (
                "No language server is running: one starts with the first file of its language.", "",
            )  # fmt: skip
        await fixture.touch_file()
        await fixture.wait_for_state(LspState.READY)
        outcome = await workspace.call("lsp_restart", name=name)
        assert outcome.content == "Restarting tongue."
        assert json.loads(outcome.metadata) == {"servers": ["tongue"]}
        with pytest.raises(ToolError, match="There is: tongue"):
            await workspace.call("lsp_restart", name="other")

    run_scenario(tmp_path, scenario)
