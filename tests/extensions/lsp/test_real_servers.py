"""Real language servers: basedpyright, ruff, typescript-language-server."""

import json
import sys
from pathlib import Path

import pytest

from extensions.lsp.lsp_workspace import NODE, LspWorkspace, edit, lsp_workspace, view
from holdfast.domain.extensions import LspState
from holdfast.domain.files import UndoRequest
from holdfast.domain.ids import SessionId

VENV = Path(sys.executable).parent

pytestmark = [
    pytest.mark.skipif(not (NODE / "basedpyright").exists(), reason="scripts/test installs it"),
    pytest.mark.timeout(120),
]


def plant_program(place: Path, text: str) -> None:
    """Create a program that must not run."""
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text(text)
    place.chmod(0o755)


def count(text: str, server: str) -> int:
    return sum(server in line for line in text.splitlines())


async def test_python_with_basedpyright_and_ruff() -> None:
    async with lsp_workspace(path=[NODE, VENV], is_set_up=False) as lsp:
        root = lsp.project
        (root / "pyproject.toml").write_text("[tool.ruff]\nline-length = 100\n")
        (root / "shapes.py").write_text(
            "class Square:\n    def area(self, side: int) -> int:\n        return side * side\n"
        )
        (root / "main.py").write_text('from shapes import Square\n\nprint("😀", Square().area(2))\n')
        session = await lsp.one.session()
        assert await lsp.infos() == {}, "nothing runs before it is needed"
        await lsp.call_tool(view("main.py"), session)
        await lsp.wait_for_server_state(LspState.READY, "basedpyright")
        bad = await lsp.call_tool(edit("main.py", "area(2)", 'area("😀"), area(oops'), session)
        assert bad.splitlines()[1] == "<file_diagnostics>"
        assert count(bad, "[basedpyright") >= 1
        assert count(bad, "[Ruff") >= 1
        (root / "main.py").write_text('from shapes import Square\n\nprint("😀", Square().area(2))\n')
        await lsp.call_tool(view("main.py"), session)
        wrong = await lsp.call_tool(edit("main.py", "area(2)", 'area("2")'), session)
        assert "error main.py:3:26 Argument of type" in wrong, "the column counts what a person sees"
        await infos_of(lsp, wrong)
        corrected = await lsp.call_tool(edit("main.py", 'area("2")', "area(2)"), session)
        assert len(corrected.splitlines()) == 1
        await check_tools(lsp, session)
        await check_rename_and_undo(lsp, session)


async def infos_of(lsp: LspWorkspace, wrong: str) -> None:
    infos = await lsp.infos()
    assert {name: info.state for name, info in infos.items()} == {
        "basedpyright": LspState.READY,
        "ruff": LspState.READY,
    }
    assert infos["basedpyright"].diagnostic_count >= count(wrong, "[basedpyright")
    diagnostics = await lsp.one.client.lsp_diagnostics(lsp.one.workspace, "basedpyright")
    assert diagnostics[(lsp.project / "main.py").as_uri()][0]["severity"] in (1, 2)


async def check_tools(lsp: LspWorkspace, session: str) -> None:
    found = await lsp.call_tool(("lsp_references", {"symbol": "Square.area"}), session)
    assert found.splitlines() == [
        "2 references of Square.area in 2 files:",
        'main.py:3:21: print("😀", Square().area(2))',
        "shapes.py:2:9: def area(self, side: int) -> int:",
    ]
    found = await lsp.call_tool(("lsp_definition", {"symbol": "Square", "path": "main.py"}), session)
    assert found.splitlines()[1:] == ["shapes.py:1:7: class Square:"]
    symbols = await lsp.call_tool(("lsp_symbols", {"file_path": "shapes.py"}), session)
    assert symbols.splitlines()[:2] == ["class Square (line 1-3)", "  method area (line 2-3)"]
    callers = await lsp.call_tool(("lsp_call_hierarchy", {"symbol": "Square.area", "direction": "incoming"}), session)
    assert "main.py" in callers


async def check_rename_and_undo(lsp: LspWorkspace, session: SessionId) -> None:
    root = lsp.project
    run = await lsp.one.call_tools(session, ("lsp_rename", {"symbol": "Square.area", "new_name": "surface"}))
    await lsp.one.run_end(run)
    result = (await lsp.one.results(session))[-1]
    assert result.content.splitlines()[0] == "Renamed Square.area to surface in 2 files:"
    assert "def surface(self" in (root / "shapes.py").read_text()
    assert '"😀", Square().surface(2)' in (root / "main.py").read_text()
    assert (await lsp.one.client.undo_changes(lsp.one.workspace, UndoRequest(run_id=run.run_id))).is_done
    assert "def area(self" in (root / "shapes.py").read_text()
    assert "Square().area(2)" in (root / "main.py").read_text()
    await lsp.call_tool(view("shapes.py"), session)
    new = "    def area(self, side: int) -> int:\n        return side ** missing\n"
    arguments = {"symbol": "Square.area", "file_path": "shapes.py", "replacement": new}
    replaced = await lsp.call_tool(("lsp_replace_symbol", arguments), session)
    assert '"missing" is not defined' in replaced
    assert (root / "shapes.py").read_text() == "class Square:\n" + new


async def test_r12_no_program_of_untrusted_project_runs() -> None:
    """R12: its interpreter is not run, and its packages are found nevertheless."""
    async with lsp_workspace(path=[NODE, VENV], is_set_up=False) as lsp:
        ran = lsp.folder / "ran"
        plant_program(lsp.project / ".venv/bin/python", f"#!/bin/sh\ntouch {ran}\n")
        plant_program(lsp.project / ".venv/bin/python3", f"#!/bin/sh\ntouch {ran}\n")
        plant_program(lsp.project / ".venv/bin/basedpyright-langserver", f"#!/bin/sh\ntouch {ran}\n")
        (lsp.project / ".venv/pyvenv.cfg").write_text("home = /usr/bin\nversion = 3.11.0\n")
        package = lsp.project / ".venv/lib/python3.11/site-packages/vendored"
        package.mkdir(parents=True)
        (package / "__init__.py").write_text("answer: int = 42\n")
        (package / "py.typed").touch()
        (lsp.project / "a.py").write_text("import vendored\n\nx: str = vendored.answer\n")
        session = await lsp.one.session()
        await lsp.call_tool(view("a.py"), session)
        await lsp.wait_for_server_state(LspState.READY, "basedpyright")
        output = await lsp.call_tool(edit("a.py", "x: str", "y: str"), session)
        assert '"int" is not assignable to "str"' in output
        assert "could not be resolved" not in output
        assert not ran.exists()


async def test_typescript() -> None:
    """Its library is not taken from an untrusted project."""
    async with lsp_workspace(path=[NODE], is_set_up=False) as lsp:
        root, ran = lsp.project, lsp.folder / "ran"
        plant_program(root / "node_modules/typescript/lib/tsserver.js", f'require("fs").writeFileSync("{ran}", "x");\n')
        (root / "node_modules/typescript/package.json").write_text('{"name": "typescript", "version": "5.9.3"}')
        (root / "tsconfig.json").write_text(json.dumps({"compilerOptions": {"strict": True}}))
        (root / "lib.ts").write_text("export function double(n: number): number {\n  return n * 2;\n}\n")
        (root / "main.ts").write_text('import { double } from "./lib";\n\nconsole.log("😀", double(2));\n')
        session = await lsp.one.session()
        await lsp.call_tool(view("main.ts"), session)
        await lsp.wait_for_server_state(LspState.READY, "typescript")
        bad = await lsp.call_tool(edit("main.ts", "double(2)", 'double("2")'), session)
        assert "error main.ts:3:25 Argument of type 'string'" in bad
        assert "[typescript 2345]" in bad
        good = await lsp.call_tool(edit("main.ts", 'double("2")', "double(2)"), session)
        assert len(good.splitlines()) == 1
        found = await lsp.call_tool(("lsp_references", {"symbol": "double"}), session)
        assert found.splitlines()[0] == "3 references of double in 2 files:"
        renamed = await lsp.call_tool(
            ("lsp_rename", {"symbol": "double", "new_name": "twice", "path": "lib.ts"}), session
        )
        assert renamed.splitlines()[0] == "Renamed double to twice in 2 files:"
        assert 'console.log("😀", twice(2));' in (root / "main.ts").read_text()
        assert "export function twice" in (root / "lib.ts").read_text()
        assert not ran.exists()
