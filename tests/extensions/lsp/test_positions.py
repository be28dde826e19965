"""Positions in the encodings of servers: UTF-16 units, bytes or code points."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.extensions.lsp.lsp_types import Position, Range, TextEdit, file_uri, path_from_uri
from holdfast.extensions.lsp.positions import TextLines, apply_edits

LINE = 'print("😀é", name)'
NAME = LINE.index("name")


@pytest.mark.parametrize(("encoding", "character"), [("utf-16", 13), ("utf-32", 12), ("utf-8", 16)])
def test_emoji_length_by_encoding(encoding: str, character: int) -> None:
    text = TextLines(f"a\r\n{LINE}\nb", encoding)
    assert text.position(1, NAME) == Position(1, character)
    assert text.column(Position(1, character)) == NAME
    assert text.text[text.index(Position(1, character)) :].startswith("name")


def test_positions_within_character_and_beyond_end() -> None:
    text = TextLines("😀x\rb")
    assert text.index(Position(0, 1)) == 0
    assert text.index(Position(0, 2)) == 1
    assert text.index(Position(0, 99)) == 2
    assert text.index(Position(1, 0)) == 3
    assert text.index(Position(9, 0)) == 4
    assert (text.line(0), text.line(1), text.line(2)) == ("😀x", "b", "")


@given(st.text(alphabet="aé😀\n\r\t", max_size=40), st.data())
def test_positions_round_trip(text: str, data: st.DataObject) -> None:
    for encoding in ("utf-16", "utf-32", "utf-8"):
        known = TextLines(text, encoding)
        line = data.draw(st.integers(0, text.count("\n") + 1))
        column = data.draw(st.integers(0, len(known.line(line))))
        position = known.position(line, column)
        if known.line(line):
            assert known.column(position) == column


def edit(line: int, start: int, end: int, text: str) -> TextEdit:
    return TextEdit(Range(Position(line, start), Position(line, end)), text)


def test_edits_refer_to_original_text() -> None:
    text = "😀 old + old\r\nold\n"
    edits = [edit(1, 0, 3, "new"), edit(0, 9, 12, "new"), edit(0, 3, 6, "new")]
    assert apply_edits(text, edits) == "😀 new + new\r\nnew\n"
    assert apply_edits("ab", [edit(0, 1, 1, "x"), edit(0, 1, 1, "y")]) == "axyb"
    assert apply_edits("ab", []) == "ab"


def test_edits_that_overlap_are_refused() -> None:
    with pytest.raises(ValueError, match="overlap"):
        apply_edits("abcdef", [edit(0, 0, 3, "x"), edit(0, 2, 4, "y")])


@pytest.mark.parametrize("path", ["/a/b.py", "/a b/ä#1?.py", "/a%20/b:c@d.py", "/a/\udcff"])
def test_paths_and_uris(path: str) -> None:
    assert path_from_uri(file_uri(path)) == path


def test_uri_of_other_machine_has_no_path() -> None:
    assert path_from_uri("file:///a/b%3Ac.py") == "/a/b:c.py"
    assert path_from_uri("untitled:Untitled-1") == ""
    assert path_from_uri("file://elsewhere/a") == ""
    assert path_from_uri("file://localhost/a") == "/a"
    assert path_from_uri("file://[/a") == ""
