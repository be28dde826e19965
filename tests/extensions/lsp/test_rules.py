"""Rules of language servers that need no server: positions, symbols, capabilities, edits and diagnostics.

A mistake of any kind that `scripts/mutation` plants in these functions fails a row.
"""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from holdfast.domain.errors import ToolError
from holdfast.extensions.lsp import diagnostics as reports
from holdfast.extensions.lsp import lsp_types, positions, refactoring_tools, server_session, symbol_search
from holdfast.extensions.lsp.diagnostics import DiagnosticStore, FileDiagnostic
from holdfast.extensions.lsp.lsp_types import (
    Diagnostic,
    DocumentSymbol,
    Location,
    Position,
    Range,
    ServerCapabilities,
    TextEdit,
    WorkspaceEdit,
)
from holdfast.extensions.lsp.positions import TextLines
from holdfast.extensions.lsp.refactoring_tools import ReplaceSymbolArguments
from holdfast.extensions.lsp.server_session import Documents
from holdfast.extensions.lsp.symbol_search import Symbol
from holdfast.workspace.search.search import Match

TEXT = "é😀x\r\nab\n\ncd"


def error_of(kind: type[Exception], function: Callable[..., object], *arguments: object) -> str:
    """Return the text of the error. Its absence is an `AssertionError`, which is how a planted mistake shows itself."""
    try:
        function(*arguments)
    except kind as error:
        return str(error)
    raise AssertionError(f"{arguments} raised nothing")


def check_positions() -> None:
    starts = {"utf-16": (0, 1, 3, 4), "utf-32": (0, 1, 2, 3), "utf-8": (0, 2, 6, 7)}
    for encoding, units in starts.items():
        text = TextLines(TEXT, encoding)
        assert [text.line(number) for number in range(-1, 5)] == ["", "é😀x", "ab", "", "cd", ""]
        for column, unit in enumerate(units):
            assert text.position(0, column) == Position(0, unit)
            assert text.index(Position(0, unit)) == text.column(Position(0, unit)) == column
        assert text.index(Position(0, 99)) == 3
        assert [text.index(Position(1, unit)) for unit in (-1, 0, 1, 2, 3)] == [5, 5, 6, 7, 7]
        assert [text.column(Position(3, unit)) for unit in (0, 1, 2, 3)] == [0, 1, 2, 2]
        assert [text.index(Position(line, 1)) for line in (2, 3, 4, 9)] == [8, 10, 11, 11]
        assert [text.column(Position(line, 1)) for line in (2, 4, 9)] == [0, 2, 2], "from the last line on"
    assert TextLines("😀", "utf-16").index(Position(0, 1)) == 0
    assert TextLines("\uffff", "utf-16").position(0, 1) == Position(0, 1)
    assert TextLines("\ud800", "utf-8").position(0, 1) == Position(0, 3)


def edit(line: int, first: int, last: int, text: str) -> TextEdit:
    return TextEdit(Range(Position(line, first), Position(line, last)), text)


def check_edits() -> None:
    rows: tuple[tuple[list[TextEdit], str | None], ...] = (
        ([], "abcdef"),
        ([edit(0, 4, 5, "X"), edit(0, 0, 1, "Y")], "YbcdXf"),
        ([edit(0, 1, 1, "1"), edit(0, 1, 1, "2")], "a12bcdef"),
        ([edit(0, 0, 2, "1"), edit(0, 2, 3, "2")], "12def"),
        ([edit(0, 0, 2, "1"), edit(0, 1, 3, "2")], None),
        ([edit(0, 2, 1, "1")], None),
    )
    for edits, expected in rows:
        if expected is None:
            assert error_of(ValueError, positions.apply_edits, "abcdef", edits) == "edits overlap"
        else:
            assert positions.apply_edits("abcdef", edits) == expected
    assert positions.apply_edits("é😀x", [edit(0, 3, 4, "y")]) == "é😀y"
    assert positions.apply_edits("é😀x", [edit(0, 6, 7, "y")], "utf-8") == "é😀y"


def span(first: int, last: int | None = None) -> Range:
    return Range(Position(first, 1), Position(first if last is None else last, 2))


def check_symbols() -> None:
    inner = DocumentSymbol("in", 2, selection_range=span(3), range=span(2, 4))
    listed = [
        DocumentSymbol("out", 1, "detail", "ignored?", span(1), span(0, 9), children=[inner]),
        DocumentSymbol("flat", 3, container_name="Box", location=Location("u", span(5, 6)), children=None),
        DocumentSymbol("whole", 4, range=span(7, 8)),
        DocumentSymbol("name", 5, selection_range=span(7)),
        DocumentSymbol("nothing", 6),
        DocumentSymbol("both", 7, range=span(1), location=Location("u", span(2))),
    ]
    found = [
        (item.path, item.kind, item.detail, item.start.line, item.first, item.last)
        for item in symbol_search._flatten(listed, ())
    ]
    assert found == [
        (("ignored?", "out"), 1, "detail", 1, 0, 9),
        (("ignored?", "out", "in"), 2, "", 3, 2, 4),
        (("Box", "flat"), 3, "", 5, 5, 6),
        (("whole",), 4, "", 7, 7, 8),
        (("both",), 7, "", 1, 1, 1),
    ]
    lines = [
        "// x",
        "use(x)",
        "x = 1",
        "# x",
        "import x",
        "def x():",
        "  // x",
        "from x",
        "*x",
        "-- x",
        "func (a) x",
        "a = x",
    ]
    matches = [Match("f", number, text.index("x") + 1, text) for number, text in enumerate(lines)]
    assert [lines[match.line] for match in symbol_search._sort_by_likelihood(matches)] == [
        "def x():", "func (a) x", "x = 1", "a = x", "use(x)", "// x", "# x", "import x", "  // x", "from x", "*x",
        "-- x",
    ]  # fmt: skip
    plain = {"uri": "u", "range": msgspec.to_builtins(span(1))}
    link = {"targetUri": "v", "targetSelectionRange": msgspec.to_builtins(span(2)), "range": 1}
    assert symbol_search._to_location(plain) == Location("u", span(1))
    assert symbol_search._to_location(link) == Location("v", span(2))


def symbol(name: str, first: int, last: int) -> Symbol:
    return Symbol(tuple(name.split(".")), 1, "", Position(first, 0), first, last)


def check_replacements() -> None:
    text = "a\nb\nc\nd"
    rows = {
        ("replace", "X", 1, 2): "a\nX\nd",
        ("replace", "X\n", 3, 3): "a\nb\nc\nX\n",
        ("delete", "", 1, 2): "a\nd",
        ("delete", "", 0, 3): "",
        ("add_before", "X", 3, 3): "a\nb\nc\nX\nd\n",
        ("add_after", "X", 3, 3): "a\nb\nc\nd\nX\n",
        ("add_after", "X", 2, 3): "a\nb\nc\nd\nX\n",
        ("add_before", "X", 4, 4): "a\nb\nc\ndX\n",
        ("add_after", "X\nY", 0, 0): "a\nX\nY\nb\nc\nd",
    }
    for (action, new, first, last), expected in rows.items():
        arguments = ReplaceSymbolArguments("s", "f", new, action)  # type: ignore[arg-type]
        assert refactoring_tools._apply(text, symbol("s", first, last), arguments) == expected
    assert refactoring_tools._apply("a\r\nb\r\n", symbol("s", 1, 1), ReplaceSymbolArguments("s", "f", "X\nY")) == (
        "a\r\nX\r\nY\r\n"
    )
    known = [symbol("A.run", 4, 5), symbol("B.run", 7, 9), symbol("top", 0, 1), *[symbol("n", 20, 20)] * 11]
    for wanted in ("A.run", "A::run", "A#run", "A.run()"):
        assert refactoring_tools._find_unique(known, wanted, "f") is known[0]
    unknown, ambiguous, many = (
        error_of(ToolError, refactoring_tools._find_unique, known, name, "f") for name in ("C.run", "run", "n")
    )
    assert unknown.startswith("f has no symbol C.run.")
    assert ambiguous.startswith("run is ambiguous: A.run (line 5), B.run (line 8). Qualify")
    assert many.count("line 21") == 10


def check_types() -> None:
    off: tuple[Any, ...] = (None, 1, [], {}, {"save": None}, {"save": False})
    for sync, wants, has_text in (
        *((value, False, False) for value in off),
        ({"save": True}, True, False),
        ({"save": {}}, True, False),
        ({"save": {"includeText": False}}, True, False),
        ({"save": {"includeText": True}}, True, True),
    ):
        known = ServerCapabilities(text_document_sync=sync)
        assert (known.wants_saves, known.saves_with_text) == (wants, has_text), sync
    folders = {"supported": True, "changeNotifications": "id"}
    assert ServerCapabilities(workspace={"workspaceFolders": folders}).accepts_folder_changes
    for left_out in folders:
        less = {name: value for name, value in folders.items() if name != left_out}
        assert not ServerCapabilities(workspace={"workspaceFolders": less}).accepts_folder_changes
    for nothing in (None, True, {}, {"workspaceFolders": True}):
        assert not ServerCapabilities(workspace=nothing).accepts_folder_changes
    moved = msgspec.convert({"documentChanges": [{"kind": "rename"}]}, WorkspaceEdit)
    one = {"range": msgspec.to_builtins(span(1)), "newText": "x"}
    several = [
        {"textDocument": {"uri": "u"}, "edits": [one]},
        {"textDocument": {"uri": "u", "version": 3}, "edits": [one]},
    ]
    edits = msgspec.convert({"changes": {"ignored": [one]}, "documentChanges": several}, WorkspaceEdit)
    assert (moved.moves_files, moved.by_uri(), edits.moves_files, WorkspaceEdit().moves_files) == (
        True,
        {},
        False,
        False,
    )
    assert {uri: len(items) for uri, items in edits.by_uri().items()} == {"u": 2}
    assert set(msgspec.convert({"changes": {"v": [one]}}, WorkspaceEdit).by_uri()) == {"v"}
    assert WorkspaceEdit().by_uri() == {}
    for uri, path in (
        ("file:///a%20b", "/a b"), ("file://localhost/a", "/a"), ("file://other/a", ""), ("http:///a", ""),
        ("file:///a?b#c", "/a?b#c"), ("file://[", ""), ("", ""),
        ("file:///%FF", "/\udcff"),
    ):  # fmt: skip
        assert lsp_types.path_from_uri(uri) == path, uri
    assert lsp_types.file_uri("/a b") == "file:///a%20b"


def check_documents() -> None:
    for saves, has_text in ((False, False), (True, False), (True, True), (False, True)):
        sent: list[tuple[str, Any]] = []
        known = Documents(lambda method, params: sent.append((method, params)), saves=saves, saves_text=has_text)  # noqa: B023
        assert known.sync("/d/a.py", "1")
        assert not known.sync("/d/a.py", "1")
        assert known.sync("/d/b", "2")
        assert known.sync("/d/a.py", "3")
        assert list(known.open) == ["/d/b", "/d/a.py"], "the least recently used first"
        assert not known.sync("/d/b", "2")
        assert list(known.open) == ["/d/a.py", "/d/b"]
        known.close("/d/b")
        count = len(sent)
        known.close("/d/b")
        assert (len(sent), sent[-1][0]) == (count, "textDocument/didClose")
        uri: dict[str, Any] = {"uri": "file:///d/a.py"}
        saved = [("textDocument/didSave", {"textDocument": uri, **({"text": "3"} if has_text else {})})]
        assert sent == [
            ("textDocument/didOpen", {"textDocument": {**uri, "languageId": "python", "version": 1, "text": "1"}}),
            (
                "textDocument/didOpen",
                {"textDocument": {"uri": "file:///d/b", "languageId": "b", "version": 1, "text": "2"}},
            ),
            ("textDocument/didChange", {"textDocument": uri | {"version": 2}, "contentChanges": [{"text": "3"}]}),
            *(saved if saves else []),
            ("textDocument/didClose", {"textDocument": {"uri": "file:///d/b"}}),
        ]
        assert known.open["/d/a.py"].version == 2


def check_evictions() -> None:
    for limit, size, expected in ((2, 100, "bc"), (9, 2, "bc"), (9, 1, "c"), (9, 0, "c"), (1, 100, "c"), (3, 3, "abc")):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server_session, "_MAX_OPEN", limit)
            patch.setattr(server_session, "_MAX_TEXT", size)
            sent: list[str] = []
            known = Documents(lambda method, _: sent.append(method.rpartition("/")[2]))  # noqa: B023
            for name in "abc":
                known.sync(name, "x")
            assert "".join(known.open) == expected, (limit, size)
            closed = sent.count("didClose")
            assert (sent.count("didOpen"), closed, sent[0]) == (3, 3 - len(expected), "didOpen")
            assert sent[-1] == ("didClose" if closed else "didOpen"), "it is opened before another one is closed"


def check_sections() -> None:
    options = {"a": {"b": 1, "c": {"d": 2}}, "a.b": 3, "n": None}
    for section, expected in (
        ("", options), ("a", options["a"]), ("a.b", 3), ("a.c", {"d": 2}), ("a.c.d", 2), ("a.c.d.e", None), ("x", None),
        ("a.x", None), ("n", None),
    ):  # fmt: skip
        assert server_session.configuration_section(options, section) == expected, section
    assert server_session.configuration_section({}, "") is None
    assert server_session.workspace_folders(["/a/b", "/"]) == [
        {"uri": "file:///a/b", "name": "b"}, {"uri": "file:///", "name": "/"},
    ]  # fmt: skip
    plain = server_session.initialize_params("/a", {})
    assert "initializationOptions" not in plain
    assert server_session.initialize_params("/a", {"x": 1}) == {**plain, "initializationOptions": {"x": 1}}
    assert (plain["processId"], plain["rootPath"], plain["rootUri"]) == (None, "/a", "file:///a")
    assert plain["workspaceFolders"] == [{"uri": "file:///a", "name": "a"}]


def found(severity: int | None, line: int, message: str = "m", **more: Any) -> Diagnostic:  # noqa: ANN401
    return msgspec.convert(
        {"range": msgspec.to_builtins(span(line)), "severity": severity, "message": message, **more}, Diagnostic
    )


def check_store() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reports, "_MAX_FILES", 2)
        patch.setattr(reports, "_MAX_PER_FILE", 2)
        known = DiagnosticStore()
        one, two, three = (found(1, line) for line in range(3))
        known.replace("pushed", "a", [one, two, three])
        known.replace("pulled", "a", [two])
        assert (known.count, known.get("a"), known.get("x")) == (3, (one, two), ())
        known.replace("pulled", "b", [three])
        known.replace("pulled", "c", [three])
        assert (known.count, set(known.all())) == (4, {"a", "b"}), "the third file is left out"
        known.replace("pulled", "b", [])
        known.replace("pulled", "c", [three])
        assert known.all() == {"a": (one, two), "c": (three,)}
        known.remove("a")
        assert (known.count, known.all()) == (1, {"c": (three,)})
        known.clear()
        assert (known.count, known.all()) == (0, {})
        known.replace("pushed", "a", [one])
        known.clear()
        assert (known.count, known.all()) == (0, {})


def check_reports() -> None:
    items = [
        found(1, 2, " a\n b "), found(2, 1, source="s", code="c"), found(3, 0, code=7),
        found(4, 5, source="s", code="s"), found(None, 3), found(9, 4),
    ]  # fmt: skip
    converted = reports.to_file_diagnostics("f", "server", [(item, number) for number, item in enumerate(items)])
    assert [str(item) for item in converted] == [
        "error f:3:1 a b [server]", "warning f:2:2 m [s c]", "information f:1:3 m [server 7]", "hint f:6:4 m [s]",
        "error f:4:5 m [server]", "error f:5:6 m [server]",
    ]  # fmt: skip
    for length, shown in ((500, "x" * 500), (501, "x" * 500 + "…")):
        (long,) = reports.to_file_diagnostics("f", "s", [(found(1, 0, "x" * length), 0)])
        assert long.message == shown
    one = [
        FileDiagnostic("f", line, 1, severity, "m", "s") for line, severity in ((1, 4), (2, 1), (3, 2), (4, 3), (5, 1))
    ]
    assert reports.format_counts(one) == "2 errors, 1 warning, 2 others"
    assert reports.format_counts(one[:2]) == "1 error, 1 other"
    assert reports.format_counts([]) == ""
    for count, rest in ((10, []), (11, ["(1 more)"]), (12, ["(2 more)"])):
        many = [FileDiagnostic("f", count - line, 1, 1, "m", "s") for line in range(count)]
        lines = reports.format_diagnostics({"file_x": many, "project_x": []}).splitlines()
        first = [f"error f:{line + 1}:1 m [s]" for line in range(10)]
        assert lines == ["<file_x>", *first, *rest, "</file_x>", f"(file: {count} errors)"]
    unsorted = [
        FileDiagnostic(*values, "m", "s") for values in (("b", 1, 1, 1), ("a", 2, 1, 1), ("a", 1, 2, 1), ("a", 1, 1, 1))
    ]
    lines = reports.format_diagnostics({"x_": unsorted, "y_": one[:1]}).splitlines()
    assert [line.split()[1] for line in lines[1:5]] == ["a:1:1", "a:1:2", "a:2:1", "b:1:1"]
    assert lines[-1] == "(x: 4 errors; y: 1 other)"
    assert reports.format_diagnostics({"x_": []}) == ""


CHECKS = (
    check_positions, check_edits, check_symbols, check_replacements, check_types, check_documents, check_evictions,
    check_sections, check_store, check_reports,
)  # fmt: skip


@pytest.mark.parametrize("check", CHECKS)
def test_the_rules(check: Callable[[], None]) -> None:
    check()
