"""Texts, edits, histories, environments: each rule at its bounds. No program is run."""

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from holdfast.domain.errors import NotFound, ToolError
from holdfast.domain.files import FileVersion, Origin
from holdfast.domain.ids import MessageId, RunId, SessionId
from holdfast.workspace import project_context
from holdfast.workspace.files import ignore_files, text_edit, text_encoding
from holdfast.workspace.files import undo as history
from holdfast.workspace.files.ignore_files import IgnoreRules
from holdfast.workspace.files.text_edit import replace_text
from holdfast.workspace.files.text_encoding import TextFormat, decode, line_ending, with_line_ending
from holdfast.workspace.files.undo import last_change, last_run, plan
from holdfast.workspace.git.background_status import StatusScan
from holdfast.workspace.process import output_capture, shell_launch
from holdfast.workspace.process.output_capture import Output, shorten
from holdfast.workspace.process.shell_launch import command_environment
from holdfast.workspace.project_context import (
    ContextLoader,
    ContextOptions,
    ContextSource,
    find_context_sources,
    git_state,
    read_context_files,
)
from planting import assert_every_clause_decides

# Texts


def check_texts() -> None:
    for data, expected in (
        (b"", ("", TextFormat())),
        (b"a\r\nb", ("a\r\nb", TextFormat())),
        (b"\xef\xbb\xbfa", ("a", TextFormat("utf-8", b"\xef\xbb\xbf"))),
        ("\ufeffa\n".encode("utf-16-le"), ("a\n", TextFormat("utf-16-le", b"\xff\xfe"))),
        ("\ufeffa\n".encode("utf-16-be"), ("a\n", TextFormat("utf-16-be", b"\xfe\xff"))),
    ):
        assert decode(data, "f") == expected
        assert expected[1].encode(expected[0]) == data
    for data, why in ((b"a\0b", "looks binary"), (b"\xe9", "another encoding"), (b"\xff\xfea", "another encoding")):
        with pytest.raises(ToolError, match=why):
            decode(data, "f")
    with pytest.raises(ToolError, match="another encoding"):
        decode(b"\xe9" * 8_192 + b"\0", "f")
    with pytest.raises(ToolError, match="unpaired surrogate"):
        TextFormat().encode("\ud800")
    ends = {"": "\n", "a": "\n", "a\n": "\n", "a\r\n": "\r\n", "a\r\nb\n": "\n", "a\r\nb\r\nc": "\r\n", "a\rb": "\n"}
    assert {item: line_ending(item) for item in ends} == ends
    assert with_line_ending("a\r\nb\nc", "\n") == "a\nb\nc"
    assert with_line_ending("a\r\nb\nc", "\r\n") == "a\r\nb\r\nc"


def test_texts() -> None:
    check_texts()
    assert_every_clause_decides([decode, line_ending, with_line_ending], check_texts)


# Edits


def edited(whole: str, old: str, new: str, *, every: bool = False) -> str:
    try:
        return replace_text(whole, old, new, replace_all=every).text
    except ToolError as error:
        return f"refused: {error}"


def test_repeated_lines_are_found() -> None:
    """The same positions as a plain search, from left to right and without overlaps."""
    rng = random.Random(7)
    for _ in range(400):
        lines = [rng.choice("ab") for _ in range(rng.randint(1, 12))]
        wanted = [rng.choice("ab") for _ in range(rng.randint(2, 5))]
        expected, place = [], 0
        count = 0
        while place < len(lines):
            if lines[place : place + len(wanted)] == wanted:
                expected += ["X"]
                place += len(wanted)
                count += 1
            else:
                expected.append(lines[place])
                place += 1
        # Two spaces in the file, one in the searched text: only white space differs.
        whole = "\n".join(f"{line}  ." for line in lines)
        found = edited(whole, "\n".join(f"{line} ." for line in wanted), "X", every=True)
        shown = "\n".join("X" if line == "X" else f"{line}  ." for line in expected)
        assert found == shown if count else found.startswith("refused: old_string is not in the file"), (lines, wanted)


TOLERATED: list[tuple[str, str, str, str]] = [
    # Line endings: of a complete last line, of a removed line, of an empty one.
    ("a  b\nc\n", "a b\n", "x\n", "x\nc\n"),
    ("a  b\nc\n", "a b\n", "x", "x\nc\n"),
    ("a  b\nc\n", "a b", "", "\nc\n"),
    ("a  b\nc\n", "a b\n", "", "c\n"),
    ("a  b\nc", "a b\n", "x\ny\n", "x\ny\nc"),
    # Deeper, further left, and with the indentation of the file.
    ("\ta =  1\n", "    a = 1", "    a = 2\n        b", "\ta = 2\n\t\tb\n"),
    ("\t\ta =  1\n", "  a = 1", "  a = 2\n      b", "\t\ta = 2\n\t\t\t\t\t\tb\n"),
    ("\ta =  1\n", "a = 1", "a = 2\n    b", "\ta = 2\n\t\tb\n"),
    ("    a =  1\n", "\ta = 1", "\ta = 2\n\t\tb", "    a = 2\n        b\n"),
    ("    a =  1\n", "a = 1", "a = 2\n\tb", "    a = 2\n        b\n"),
    ("    a =  1\n    b\n", "  a = 1\n  b", "  a\nb", "    a\n  b\n"),
    ("a =  1\n", "a = 1", "a = 2\n\tb", "a = 2\n\tb\n"),
    ("a =  1\n", "  a = 1", "  a\n    b", "a\n  b\n"),
    ("\t a =  1\n", "  a = 1", "  a\n    b", "\t a\n\t   b\n"),
    ("\ta =  1\n", "  a = 1", "  a\n  \t\tb", "\ta\n\t\t\tb\n"),
    # Line numbers of a view, also beside an empty line.
    ("one\n\ntwo\n", "     1|one\n\n     3|two", "     1|ONE\n\n     3|TWO", "ONE\n\nTWO\n"),
    ("one\ntwo\n", "     1|one\ntwo", "x", "refused"),
    # Windows line endings are kept, whether all or only some lines have them.
    ("a  b\r\nc\r\n", "a b\nc", "x\n\ny", "x\r\n\r\ny\r\n"),
    ("a  b\r\nc\n", "a b", "x\ny", "x\r\ny\r\nc\n"),
    ("a\n\n", " \n", "x", "refused"),
]


@pytest.mark.parametrize(("whole", "old", "new", "expected"), TOLERATED)
def test_edits_tolerate_white_space(whole: str, old: str, new: str, expected: str) -> None:
    found = edited(whole, old, new)
    assert found.startswith("refused") if expected == "refused" else found == expected


def test_new_lines_end_as_those_they_replace_if_all_of_them_end_alike() -> None:
    """For each mixture of line endings in four lines of which some are replaced, the others are unchanged."""
    for ends in itertools.product(("\n", "\r\n"), repeat=4):
        whole = "".join(f"{name}  .{end}" for name, end in zip("abcd", ends, strict=True))
        for begin, stop in itertools.combinations(range(5), 2):
            end = "\r\n" if set(ends[begin:stop]) == {"\r\n"} else "\n"
            before, after = (
                "".join(f"{'abcd'[at]}  .{ends[at]}" for at in places) for places in (range(begin), range(stop, 4))
            )
            old = "".join(f"{name} .\n" for name in "abcd"[begin:stop])
            expected = before + f"x{end}{end}y{end}" + after
            assert edited(whole, old, "x\n\ny\n") == expected, (whole, old)
            assert edited(whole, old, "x\n\ny") == expected, (whole, old)


@pytest.mark.parametrize(
    ("whole", "old", "hint"),
    [
        ("x\nab\ncd\n", "ab\nce", "differs in line 3:\n  the file has: cd\n  you sent:     ce"),
        ("def f(a):\n", "def f(b):", "differs in line 1"),
        ("\n\ndef f(a):\n", "\ndef f(b):\n", "differs in line 3"),
        ("a\n", "zzzz", "Nothing similar was found"),
        ("a\n", "z\\nz", r"It has \\n written out"),
        ("ab\ncd\n", "ab\\n\ncd", "differs in line 1"),
        ("ab", "ab\ncd", "Its line 2 would be outside of the file, which has 1 lines"),
        ("a\n", "\t", "It contains only white space"),
        ("p\nq\nx\np\nq\n", "p\nq\nr", "differs in line 3"),
    ],
)
def test_hint_for_missing_text(whole: str, old: str, hint: str) -> None:
    with pytest.raises(ToolError, match=hint):
        replace_text(whole, old, "new", replace_all=False)


def test_positions_of_ambiguous_text() -> None:
    with pytest.raises(ToolError, match=r"3 times \(lines 1, 2, 4\)"):
        replace_text("a\na\nb\na\n", "a", "c", replace_all=False)
    with pytest.raises(ToolError, match=r"7 times \(lines 1, 2, 3, 4, 5, …\)"):
        replace_text("a\n" * 7, "a", "c", replace_all=False)
    with pytest.raises(ToolError, match=r"5 times \(lines 1, 2, 3, 4, 5\)"):
        replace_text("a\n" * 5, "a", "c", replace_all=False)
    with pytest.raises(ToolError, match=r"2 times \(lines 1\)"):
        replace_text("aa\n", "a", "c", replace_all=False)
    assert replace_text("a a\n", "a", "b", replace_all=True).places == 2
    with pytest.raises(ToolError, match="are the same"):
        replace_text("a\n", "a", "a", replace_all=False)
    with pytest.raises(ToolError, match="would not change"):
        replace_text("a\r\nb\r\n", "a\nb", "a\r\nb", replace_all=False)


def test_clauses_of_edits() -> None:
    def check() -> None:
        for row in TOLERATED:
            test_edits_tolerate_white_space(*row)

    equivalent = {
        "'\\t' in extra and theirs and ('\\t' not in theirs) -> theirs and '\\t' not in theirs": "no tab to replace"
    }
    assert_every_clause_decides(text_edit._convert_indentation, check, equivalent=equivalent)


# Output


def test_output_is_bounded_exactly() -> None:
    for size, is_whole in ((8, True), (9, False)):
        kept = Output(limit=4)
        for place in range(size):
            assert kept.feed(str(place).encode()) == str(place)
        assert (kept.is_whole, kept.size) == (is_whole, size)
        assert kept.excerpt(8).startswith("0123")
        assert kept.excerpt(8).endswith("4567" if is_whole else "5678")
    assert shorten("abcd", 4) == "abcd"
    assert shorten("abcde", 4) == "ab\n\n... [1 lines truncated] ...\n\nde"
    assert shorten("a\n\n\n\nb", 2) == "a\n\n... [4 lines truncated] ...\n\nb"
    lines = Output(limit=2)
    lines.feed(b"a\n" + b"\n" * 10 + b"b\n")
    assert lines.excerpt(4) == "a\n\n\n... [10 lines truncated] ...\n\nb\n"
    cut = Output()
    cut.feed(b"\xe2\x82")
    assert (cut.buffered, cut.finish(), cut.finish(), cut.buffered) == ("", "\ufffd", "", "\ufffd")


def test_small_pieces_are_joined_without_a_loss() -> None:
    kept = Output(limit=3_000)
    text = "".join(chr(97 + number % 26) for number in range(9_001))
    for character in text:
        kept.feed(character.encode())
    assert kept.excerpt(6_000) == f"{text[:3_000]}\n\n... [1 lines truncated] ...\n\n{text[-3_000:]}"
    assert (output_capture.MAX_SHOWN, Output()._limit) == (30_000, 65_536)


# Environments


def check_environments() -> None:
    def passed(server: dict[str, str] | None = None, **client: str) -> dict[str, str]:
        known = command_environment(
            server or {}, client, cwd="/w", withheld=("SECRET",), secrets=("12345678", "1234567")
        )
        return {name: value for name, value in known.items() if name in {*(server or {}), *client}}

    assert passed({"HOME": "/h", "LC_ALL": "C", "LCX": "x", "OTHER": "x"}) == {"HOME": "/h", "LC_ALL": "C"}
    assert passed({"HOME": "/h"}, HOME="/c", ANY="x") == {"HOME": "/c", "ANY": "x"}
    assert passed(SECRET="x", SECRETS="x") == {"SECRETS": "x"}
    assert passed(A="x12345678x", B="x1234567x", C="1234") == {"B": "x1234567x", "C": "1234"}
    odd = {
        "": "x",
        "a=b": "x",
        "a\0b": "x",
        "c": "x\0y",
        "BASH_FUNC_x%%": "x",
        "HOLDFAST_X": "x",
        "BASH_ENV": "x",
        "d": "x",
    }
    assert {name for name in odd if name in command_environment({}, odd, cwd="/w")} == {"d"}
    paths = {"": None, "rel:/a::./b:/c": "/a:/c", "rel": None}
    for path, expected in paths.items():
        fallback = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        assert command_environment({}, {"PATH": path}, cwd="/w")["PATH"] == expected or fallback
        assert (command_environment({}, {"PATH": path}, cwd="/w")["PATH"] == fallback) is (expected is None)
    assert command_environment({}, {"PWD": "/x", "TERM": "xterm"}, cwd="/w")["PWD"] == "/w"
    assert command_environment({}, {"TERM": "xterm"}, cwd="/w")["TERM"] == "dumb"


def test_environments() -> None:
    check_environments()
    assert_every_clause_decides(
        [command_environment, shell_launch._is_passed_on, shell_launch._absolute_entries], check_environments
    )


# Histories


def versions(*rows: tuple[str, Origin, str, int]) -> list[FileVersion]:
    """Build the versions of one file from run, origin, content and restored version, a second apart."""
    return [
        FileVersion(
            f"v{at}", SessionId("s"), "/f", content, at, at, at,
            run_id=RunId(run), origin=origin, is_missing=not content, restores=restores,
        )
        for at, (run, origin, content, restores) in enumerate(rows)
    ]  # fmt: skip


def back(*rows: tuple[str, Origin, str, int], run: str = "") -> tuple[str, bool, bool]:
    """Return the restored version, whether there is an obstacle, and whether it is current already."""
    (item,) = plan(versions(*rows), path="" if run else "/f", run_id=RunId(run))
    return item.target.content, bool(item.reason), item.is_done


def check_histories() -> None:
    first: list[tuple[str, Origin, str, int]] = [("", "outside", "0", -1), ("r1", "tool", "1", -1)]
    assert back(*first) == ("0", False, False)
    assert back(*first, ("r2", "tool", "2", -1)) == ("1", False, False)
    assert back(*first, ("", "outside", "x", -1)) == ("0", True, False)
    assert back(*first, ("", "outside", "x", -1), ("r2", "tool", "2", -1)) == ("x", False, False)
    assert back(*first, ("", "undo", "0", 0)) == ("0", False, True)
    assert back(*first, ("r2", "tool", "2", -1), ("", "undo", "1", 1)) == ("0", False, False)
    twice: list[tuple[str, Origin, str, int]] = [
        *first,
        ("r2", "tool", "2", -1),
        ("", "undo", "1", 1),
        ("", "undo", "0", 0),
    ]
    assert back(*twice) == ("0", False, True)
    assert back(*twice, ("r3", "tool", "3", -1)) == ("0", False, False)
    # Runs
    assert back(*first, run="r1") == ("0", False, False)
    assert back(*first, ("r1", "tool", "2", -1), run="r1") == ("0", False, False)
    assert back(*first, ("r2", "tool", "2", -1), run="r1") == ("0", True, False)
    assert back(*first, ("r2", "tool", "2", -1), run="r2") == ("1", False, False)
    assert back(*first, ("r1", "outside", "x", -1), ("r1", "tool", "2", -1), run="r1") == ("0", True, False)
    assert back(*first, ("r2", "tool", "2", -1), ("", "undo", "1", 1), run="r1") == ("0", False, False)
    assert back(*first, ("", "undo", "0", 0), run="r1") == ("0", False, True)
    # The last run
    assert last_run(versions(*first, ("r2", "tool", "2", -1))) == "r2"
    assert last_run(versions(*first, ("r2", "tool", "2", -1), ("", "undo", "1", 1))) == "r1"
    assert last_change(versions(*first, ("", "undo", "0", 0))) is None
    assert last_change(versions(*first), "/other") is None
    assert last_change([]) is None
    two = [*versions(*first), *(
        FileVersion(f"w{at}", SessionId("s"), path, "x", number, seconds, seconds, run_id=RunId(run), origin="tool")
        for at, (path, number, seconds, run) in enumerate([("/a", 1, 9, "late"), ("/g", 1, 0, "early")])
    )]  # fmt: skip
    assert last_run(two) == "late"
    assert last_change(two, "/g").run_id == "early"  # type: ignore[union-attr]
    later = [msgspec.structs.replace(item, path="/z") if item.path == "/a" else item for item in two]
    assert last_run(later) == "late"
    assert [item.path for item in plan(two, run_id=RunId("r1"))] == ["/f"]
    assert is_missing(lambda: back(first[0], ("r1", "outside", "x", -1), ("r2", "tool", "2", -1), run="r1"))
    assert is_missing(lambda: plan(two, path="/other"))
    assert is_missing(lambda: plan(two, path="/other", run_id=RunId("r1")))


def is_missing(call: Callable[[], object]) -> bool:
    try:
        call()
    except NotFound:
        return True
    return False


def test_histories() -> None:
    check_histories()
    checked = [last_change, plan, history._before_run, history._before_last_change]
    equivalent = {
        "found = [_before_run(history, run_id) for history in histories if history]"
        " -> found = [_before_run(history, run_id) for history in histories]":
        "nothing comes of an empty history",
        "item.run_id == run_id and item.origin == 'tool' and index -> item.run_id == run_id and item.origin == 'tool'":
        "the first version of a file is what was there before",
    }  # fmt: skip
    assert_every_clause_decides(checked, check_histories, equivalent=equivalent)


# Project context


def put(path: Path, content: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


def test_context_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [ContextSource(str(put(tmp_path / name, content))) for name, content in (
        ("a", "abc"), ("b", " "), ("c", "abc\n"), ("d", "defg"), ("e", "h"),
    )]  # fmt: skip
    os.link(tmp_path / "d", tmp_path / "z")
    places.insert(4, ContextSource(str(tmp_path / "z")))

    def context_of() -> list[tuple[str, str, int]]:
        return [(os.path.basename(file.path), file.text, file.left_out) for file in read_context_files(places)]

    assert context_of() == [("a", "abc", 0), ("d", "defg", 0), ("e", "h", 0)]
    monkeypatch.setattr(project_context, "_MAX_TEXT", 7)
    assert [name for name, _, _ in context_of()] == ["a", "d"]
    monkeypatch.setattr(project_context, "_MAX_TEXT", 8)
    assert [name for name, _, _ in context_of()] == ["a", "d", "e"]
    monkeypatch.setattr(project_context, "_MAX_FILE_TEXT", 3)
    assert context_of()[1] == ("d", "def", 1)
    monkeypatch.setattr(project_context, "_MAX_FILE_TEXT", 1)
    assert context_of()[0] == ("a", "a", 2)
    monkeypatch.undo()
    monkeypatch.setattr(project_context, "_MAX_FILES", 2)
    assert [name for name, _, _ in context_of()] == ["a", "d"]
    # The same file under another name is included once, whatever its content is by then.
    assert read_context_files([ContextSource(str(tmp_path / "nothing")), ContextSource(str(tmp_path))]) == []


def test_a_context_file_outside_of_its_directories_is_omitted(tmp_path: Path) -> None:
    inside, outside = put(tmp_path / "top/f", "inside"), put(tmp_path / "g", "outside")
    top = str(inside.parent)
    assert [file.text for file in read_context_files([ContextSource(str(inside), (top,))])] == ["inside"]
    assert read_context_files([ContextSource(str(outside), (top,))]) == []
    assert [file.text for file in read_context_files([ContextSource(str(outside))])] == ["outside"]


def test_a_folder_of_context_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("b.md", "a.md", "c.md"):
        put(tmp_path / ".cursor/rules" / name, name)
    (tmp_path / ".cursor/rules/folder").mkdir()
    os.mkfifo(tmp_path / "AGENTS.md")

    def names() -> list[str]:
        return [os.path.basename(place.path) for place in find_context_sources(tmp_path, ())]

    assert names() == ["a.md", "b.md", "c.md"]
    monkeypatch.setattr(project_context, "_MAX_FILES", 2)
    assert names() == ["a.md", "b.md"]


async def test_remembered_sessions_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(project_context, "_MAX_SESSIONS", 2)
    days = iter(range(10))
    loader = ContextLoader(str(tmp_path), today=lambda: str(next(days)))
    seen = [(await loader.load(SessionId(name))).date for name in ("a", "b", "a", "c", "a", "b")]
    assert seen == ["0", "1", "0", "2", "0", "3"]
    assert loader.git_changes(SessionId("a"), MessageId("m")) == {}
    assert loader.git_changes(SessionId("nobody"), MessageId("m")) == {}
    with_scan = ContextLoader(str(tmp_path), ContextOptions, scan=lambda: StatusScan(0.0))
    await with_scan.load(SessionId("a"))
    assert with_scan.git_changes(SessionId("a"), MessageId("m")) == {}
    assert git_state(str(tmp_path)) is None


async def test_file_removed_during_scan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "AGENTS.md", "here")
    loader = ContextLoader(str(tmp_path))
    real = project_context.find_context_sources

    def then_gone(*arguments: object) -> list[ContextSource]:
        found = real(*arguments)  # type: ignore[arg-type]
        path.unlink(missing_ok=True)
        return found

    monkeypatch.setattr(project_context, "find_context_sources", then_gone)
    assert (await loader.load(SessionId("a"))).context == ()


# Ignored files


def test_paths_outside_root_are_not_ignored(tmp_path: Path) -> None:
    put(tmp_path / "root/.gitignore", "*.log\nbuild/\n")
    put(tmp_path / ".gitignore", "root\n")
    rules = IgnoreRules(str(tmp_path / "root"))
    rows = {"root/a.log": True, "root/a": False, "root/build/x": True, "root/sub/build/y/z": True, "root/b/c": False}
    for _ in range(2):
        assert {name: rules.covers(str(tmp_path / name)) for name in rows} == rows
    assert not rules.covers(str(tmp_path / "elsewhere/build"))
    assert not rules.is_root_ignored
    (tmp_path / ".git").mkdir()
    assert IgnoreRules(str(tmp_path / "root")).is_root_ignored
    assert not IgnoreRules(str(tmp_path / "root/sub")).covers(str(tmp_path / "root/sub/x"))
    assert not IgnoreRules(str(tmp_path)).is_root_ignored
    assert {".git", "node_modules", "__pycache__", ".venv"} <= ignore_files.GENERATED_NAMES
    assert text_encoding.placeholder(1_234, "ab") == "(1,234 bytes that are not kept, blake2b ab)\n"
