"""Diagnostics: stored, bounded, published; and files that change on the disk."""

import os
from pathlib import Path

import msgspec
import pytest

from holdfast.extensions.lsp.changed_file_scan import (
    FileChange,
    FileScan,
    compare_scans,
    matching_changes,
    parse_glob,
    scan_files,
)
from holdfast.extensions.lsp.diagnostics import DiagnosticStore, format_counts, format_diagnostics, to_file_diagnostics
from holdfast.extensions.lsp.lsp_connection import Incoming
from holdfast.extensions.lsp.lsp_types import Diagnostic, Position, Range, file_uri
from holdfast.extensions.lsp.server_config import ServerConfig
from holdfast.extensions.lsp.server_session import Documents, ServerSession, configuration_section


def found(message: str = "m", line: int = 0, severity: int | None = 1) -> Diagnostic:
    return Diagnostic(Range(Position(line, 0), Position(line, 1)), message, severity, "c", "s", (1,))


def test_published_and_pulled_diagnostics_are_separate() -> None:
    findings = DiagnosticStore()
    findings.replace("pushed", "u", [found("a"), found("b")])
    findings.replace("pulled", "u", [found("b"), found("c")])
    assert [item.message for item in findings.get("u")] == ["a", "b", "c"]
    findings.replace("pulled", "u", [])
    assert [item.message for item in findings.get("u")] == ["a", "b"]
    findings.remove("u")
    assert (findings.all(), findings.count) == ({}, 0)


def test_diagnostics_are_bounded() -> None:
    findings = DiagnosticStore()
    for number in range(2_500):
        findings.replace("pushed", f"u{number}", [found()] * 3)
    findings.replace("pushed", "u0", [found()] * 9_000)
    assert len(findings.all()) == 2_000
    assert findings.count == 1_999 * 3 + 500
    findings.clear()
    assert findings.count == 0


def test_diagnostic_text() -> None:
    items = [
        (found("two\n  lines", 4, 2), 7),
        (found("x" * 600, 1, None), 0),
        (found("h", 0, 9), 0),
        (found("i", 2, 3), 1),
    ]
    lines = to_file_diagnostics("a.py", "server", items)
    assert str(lines[0]) == "warning a.py:5:8 two lines [s c]"
    assert str(lines[1]) == f"error a.py:2:1 {'x' * 500}… [s c]"
    assert str(lines[2]).startswith("error"), "an unknown severity is the worst"
    assert format_counts(lines) == "2 errors, 1 warning, 1 other"
    assert format_counts([]) == ""
    assert format_diagnostics({"file_diagnostics": [], "project_diagnostics": []}) == ""
    text = format_diagnostics({"file_diagnostics": lines[:1], "project_diagnostics": lines * 4})
    assert text.count("information") == 0, "the worst come first"
    assert text.endswith("(6 more)\n</project_diagnostics>\n(file: 1 warning; project: 8 errors, 4 warnings, 4 others)")


def test_settings_by_dotted_name() -> None:
    options = {"python": {"analysis": {"x": 1}}, "a.b": 2}
    assert configuration_section(options, "python.analysis") == {"x": 1}
    assert configuration_section(options, "a.b") == 2
    assert configuration_section(options, "") == options
    assert configuration_section(options, "python.nothing.x") is None
    assert configuration_section({}, "") is None


def test_least_recently_used_file_is_closed() -> None:
    output: list[tuple[str, str]] = []

    def notify(method: str, params: object) -> None:
        assert isinstance(params, dict)
        output.append((method.rpartition("/")[2], params["textDocument"]["uri"]))

    documents = Documents(notify)
    for number in range(64):
        assert documents.sync(f"/{number}.py", "x")
    assert not documents.sync("/0.py", "x")
    assert documents.sync("/new.py", "x")
    assert output[-1] == ("didClose", file_uri("/1.py"))
    for number in range(3):
        documents.sync(f"/big{number}.py", "x" * (9 << 20))
    assert len(documents.open) == 1
    documents.close("/nobody.py")
    assert output[-1][0] == "didClose"
    assert documents.sync("/big2.py", "y")
    assert output[-1] == ("didChange", file_uri("/big2.py"))
    assert documents.open["/big2.py"].version == 2


def test_disk_scan(tmp_path: Path) -> None:
    for name in ("a.py", "d/b.py", "node_modules/c.py", ".git/x"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("1")
    (tmp_path / "link").symlink_to("/etc")
    before = scan_files(str(tmp_path), ["/no/such/file"])
    assert {os.path.relpath(path, tmp_path) for path in before.files} == {"a.py", "d/b.py"}
    (tmp_path / "a.py").write_text("22")
    (tmp_path / "d/b.py").unlink()
    (tmp_path / "e.py").touch()
    now = compare_scans(before, scan_files(str(tmp_path)))
    assert [(os.path.basename(change.path), change.kind) for change in now] == [("a.py", 2), ("b.py", 3), ("e.py", 1)]
    assert scan_files(str(tmp_path / "nowhere")) == FileScan({})
    hurried = scan_files(str(tmp_path), [str(tmp_path / "a.py")], timeout=-1)
    assert (len(hurried.files), hurried.is_complete) == (1, False)
    assert [change.kind for change in compare_scans(before, hurried)] == [2], "what it has not seen may still be there"
    assert compare_scans(hurried, scan_files(str(tmp_path))) == [], "and may have been there"


def test_watched_file_patterns() -> None:
    every = [FileChange("/w/a.py", 2), FileChange("/w/x/b.ts", 1), FileChange("/elsewhere/c.py", 1)]

    def fit(pattern: object) -> list[str]:
        known = parse_glob(pattern, "/w")
        return [change.path for change in matching_changes(every, [known])] if known else ["nothing"]

    assert fit("**/*.py") == ["/w/a.py"]
    assert fit("**/*.{py,ts}") == ["/w/a.py", "/w/x/b.ts"]
    assert fit("/w/x/**") == ["/w/x/b.ts"]
    assert fit({"baseUri": "file:///elsewhere", "pattern": "*.py"}) == ["/elsewhere/c.py"]
    assert fit({"baseUri": {"uri": "file:///w/x", "name": "x"}, "pattern": "**"}) == ["/w/x/b.ts"]
    assert fit({"pattern": 7}) == ["nothing"]
    assert fit(None) == ["nothing"]
    assert fit("{a,b" + "{a,b}" * 20 + "}") == ["nothing"]


def test_invalid_message_does_not_end_connection() -> None:
    output: list[str] = []
    session = ServerSession(ServerConfig("x", ("x",)), "/w", output.append)
    for method, params in (
        ("textDocument/publishDiagnostics", {"uri": 7}),
        ("textDocument/publishDiagnostics", {"uri": "file:///w/a", "diagnostics": [{"range": {}}]}),
        ("$/progress", {"token": [], "value": 1}),
        ("client/registerCapability", {"registrations": [{"id": "a", "method": "workspace/didChangeWatchedFiles",
                                                           "registerOptions": {"watchers": [{"globPattern": {
                                                               "baseUri": "file://[", "pattern": "*"}}, 5]}}]}),
        ("workspace/configuration", "nothing"),
        ("window/showMessage", None),
    ):  # fmt: skip
        assert session.handle(Incoming(method, 1, msgspec.Raw(msgspec.json.encode(params)))) is None
    assert session.handle(Incoming("workspace/unheardOf", 1)) is NotImplemented
    assert session.diagnostics.count == 0


@pytest.mark.parametrize("bound", [0, 1, 2, 3, 4])
def test_a_scan_is_bounded(tmp_path: Path, bound: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No further directory is read once there are as many files; the scan is then incomplete."""
    for name in ("a.py", "d/b.py", "d/e/c.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr("holdfast.extensions.lsp.changed_file_scan._MAX_FILES", bound)
    found = scan_files(str(tmp_path))
    assert (len(found.files), found.is_complete) == (min(bound, 3), bound > 2)


@pytest.mark.parametrize(
    ("fields", "source"), [({}, "server"), ({"source": "s"}, "s"), ({"code": 0}, "server 0"), ({"code": ""}, "server ")]
)
def test_the_source_of_a_diagnostic_has_the_reported_words_only(fields: dict[str, object], source: str) -> None:
    spot = {"line": 0, "character": 0}
    item = msgspec.convert({"range": {"start": spot, "end": spot}, "message": "m", **fields}, Diagnostic)
    (shown,) = to_file_diagnostics("/a", "server", [(item, 0)])
    assert shown.source == source
